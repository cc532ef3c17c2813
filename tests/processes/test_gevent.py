"""gevent: the world is patched after the start-up file, before the program imports what it calls with."""

from __future__ import annotations

import signal
import textwrap
import time

import pytest

from tests.support.workers import NUMBERS, Room

pytest.importorskip("gevent", reason="gevent: pip install 'otel-breaker[test]'")

PATCH = """
import sys
early = [name for name in ("ssl", "asyncio", "wrapt", "opentelemetry", "pydantic") if name in sys.modules]
assert early == [], early
from gevent import monkey
monkey.patch_all()
import gevent
import job
"""


def test_greenlets_share_one_circuit(room: Room) -> None:
    seen = room.run(
        PATCH
        + textwrap.dedent("""
        def work():
            return [job.call(URL) for _ in range(5)]

        first = job.report(URL)
        others = [gevent.spawn(work) for _ in range(10)]
        gevent.joinall(others, raise_error=True)
        job.say([first["layers"], first["seen"], [one.value for one in others]])
        """)
    )

    assert seen == [[1, [503, 503, "circuit_open"], [["circuit_open"] * 5] * 10]]
    assert room.vendor.hits == 2
    assert list(room.admissions().values()) == [{"admitted": 2, "circuit_open": 51}]
    assert len(room.opened()) == 1


def test_one_probe_among_greenlets(room: Room) -> None:
    program = room.program(
        PATCH
        + textwrap.dedent("""
        import collections, otel_breaker
        job.report(URL)
        circuit = next(iter(otel_breaker.registry()))
        print("ready", flush=True)
        sys.stdin.readline()
        while circuit.snapshot().retry_after:
            gevent.sleep(0.01)
        callers = [gevent.spawn(job.call, URL) for _ in range(20)]
        gevent.joinall(callers, raise_error=True)
        job.say([collections.Counter(str(one.value) for one in callers), circuit.state])
        """),
        OTEL_BREAKER_COOLDOWN="100ms",
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    room.vendor.recover()
    out, errors = program.communicate("go\n", timeout=20)

    assert (out, program.returncode) == ('[{"200": 1, "probe_in_flight": 19}, "closed"]\n', 0), errors
    assert room.vendor.hits == 2 + 1


def test_many_greenlets_at_once_do_not_hang_and_are_counted_exactly(room: Room) -> None:
    (said,) = room.run(
        PATCH
        + textwrap.dedent("""
        import otel_breaker

        @otel_breaker.guard(tool="busy")
        def tool(number):
            gevent.sleep(0) if number % 2 else None
            return {"error": "server_error"} if number % 3 else "ok"

        def work(count):
            for number in range(count):
                tool(number)
                otel_breaker.registry().reset()

        greenlets = [gevent.spawn(work, 300) for _ in range(13)]
        with gevent.Timeout(15):
            gevent.joinall(greenlets, raise_error=True)
        (numbers,) = otel_breaker.registry().names()
        job.say(numbers.admitted + numbers.circuit_open)
        """)
    )

    assert said == 13 * 300


@pytest.mark.parametrize("waits", ["gevent.sleep(20)", "gevent.spawn(gevent.sleep, 20).join()", "spin()"])
def test_SIGTERM_exports_also_where_the_event_loop_gets_it(room: Room, waits: str) -> None:
    process = room.program(
        PATCH
        + textwrap.dedent(f"""
        def spin():
            while True:
                pass

        job.report(URL)
        print("ready", flush=True)
        {waits}
        """)
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)  # until it waits: nothing of it is seen from here
    process.terminate()
    process.communicate(timeout=20)

    assert process.returncode == -signal.SIGTERM
    assert list(room.admissions().values()) == [NUMBERS]
    assert len(room.opened()) == 1


def test_a_forked_child_is_a_worker_of_its_own(room: Room) -> None:
    """Python 3.12 starts no thread at its end, and gevent looks a host up in one: there the child flushes by hand."""
    parent, child = room.run(
        PATCH
        + textwrap.dedent("""
        import os
        job.say(job.report(URL))
        pid = os.fork()
        if not pid:
            with gevent.Timeout(15):
                job.say(gevent.spawn(job.report, URL).get())
            if sys.version_info[:2] == (3, 12):
                import otel_breaker
                assert otel_breaker.flush()
            sys.exit()
        os.waitpid(pid, 0)
        """)
    )

    assert (parent["seen"], child["seen"]) == ([503, 503, "circuit_open"], ["circuit_open"] * 3)
    assert sorted(room.admissions().values(), key=len) == [{"circuit_open": 3}, NUMBERS]
