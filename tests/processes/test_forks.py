"""os.fork by hand: beside threads that call, in the middle of a call, and while a probe is out."""

from __future__ import annotations

import textwrap

import pytest

from tests.support.workers import NUMBERS, Room

FORK = """
import os, signal, threading, time
import job

def child(work, seconds=5):
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        status = 2
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.mark.parametrize("way", ["variable", "opentelemetry-instrument"])
def test_B62_fifty_children_forked_beside_threads_that_call_a_client(room: Room, way: str) -> None:
    room.way = way
    room.vendor.recover()
    statuses, made, counted = room.run(
        FORK
        + textwrap.dedent("""
        import httpx, otel_breaker
        stop, made = threading.Event(), []

        def loop(number):
            count = 0
            with httpx.Client() as client:
                while not stop.is_set():
                    assert (client.get(URL).status_code if number % 2 else job.call(URL)) == 200
                    count += 1
                    time.sleep(0.001)  # else what the main thread imports takes seconds
            made.append(count)

        def numbers():
            (one,) = otel_breaker.registry().names()
            return [one.admitted, one.success]

        job.call(URL)
        threads = [threading.Thread(target=loop, args=(number,)) for number in range(2)]
        [thread.start() for thread in threads]
        statuses = [child(lambda: job.call(URL) == 200 and numbers() == [1, 1]) for _ in range(50)]
        stop.set()
        [thread.join() for thread in threads]
        job.say(statuses)
        job.say(1 + sum(made))
        job.say(numbers())
        """),
        OTEL_TRACES_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
    )

    assert statuses == [0] * 50
    assert counted == [made, made]
    assert room.vendor.hits == made + 50
    assert room.admissions() == {next(iter(room.admissions())): {"admitted": made}}


SLOW = """
import sys, otel_breaker
from urllib.parse import urlsplit

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "opentelemetry.exporter.otlp.proto.http.trace_exporter":
            importing.set()
            time.sleep(DELAY)

importing = threading.Event()
sys.meta_path.insert(0, Slow())

@otel_breaker.guard(tool="tool", dependency=urlsplit(URL).netloc)
def tool():
    raise ConnectionRefusedError

def call():
    try:
        return tool()["status"]
    except ConnectionRefusedError:
        return "refused"

thread = threading.Thread(target=call)
thread.start()
assert importing.wait(10)
"""


def test_B62_a_fork_in_the_middle_of_the_first_call_of_another_thread(room: Room) -> None:
    """That call imports the exporters; a module that is being imported stays locked in the child for good.

    The calls are no client's: requests imports on its first call as well, which is not ours to hold back.
    """
    (status,) = room.run(
        "DELAY = 0.5\n"
        + textwrap.dedent(FORK + SLOW)
        + textwrap.dedent("""
        job.say(child(lambda: call() == "refused" and otel_breaker.flush()))
        thread.join()
        """)
    )

    assert status == 0
    assert list(room.admissions().values()) == [{"admitted": 1}] * 2


def test_a_child_that_was_forked_all_the_same_makes_its_calls_and_exports_nothing(room: Room) -> None:
    process = room.program(
        "DELAY = 0.5\n"
        + textwrap.dedent(FORK + SLOW)
        + textwrap.dedent("""
        from otel_breaker import _fork_gate
        _fork_gate.PATIENCE = 0.01
        job.say(child(lambda: [call() for _ in range(3)] == ["refused", "refused", "circuit_open"]))
        thread.join()
        """)
    )
    out, errors = process.communicate(timeout=20)

    assert (out, errors) == (
        "0\n", "forked in the middle of another thread's first call: this process exports nothing itself\n"
    )  # fmt: skip
    assert list(room.admissions().values()) == [{"admitted": 1}]


def test_what_a_child_calls_in_the_middle_of_a_parents_call_is_a_call_of_its_own(room: Room) -> None:
    """Else it would count as one attempt of a call that never ends here."""
    said = room.run(
        FORK
        + textwrap.dedent("""
        import otel_breaker
        from urllib.parse import urlsplit

        @otel_breaker.guard(tool="tool", dependency=urlsplit(URL).netloc)
        def tool():
            return child(lambda: job.say([job.call(URL) for _ in range(3)]) or otel_breaker.flush())

        job.say(tool())
        (numbers,) = otel_breaker.registry().names()
        job.say([numbers.admitted, numbers.success])
        """)
    )

    assert said == [[503, 503, "circuit_open"], 0, [1, 1]]
    assert sorted(room.admissions().values(), key=len) == [{"admitted": 1}, NUMBERS]


def test_a_probe_that_is_out_while_the_program_forks_is_the_parents_alone(room: Room) -> None:
    """The child's copy of the circuit must not wait out a lease for an answer that cannot come."""
    said = room.run(
        FORK
        + textwrap.dedent("""
        import otel_breaker

        circuit = otel_breaker.Circuit("mine", policy=otel_breaker.Policy(failure_threshold=1, cooldown=0.01))
        circuit.acquire().failure("timeout")
        while circuit.snapshot().retry_after:
            time.sleep(0.01)
        probe = circuit.acquire()

        def work():
            inherited = circuit.snapshot()
            own = circuit.acquire()
            job.say([inherited.state, inherited.failures, own.probe])
            own.success()
            return circuit.state == "closed"

        job.say([probe.probe, child(work), circuit.state])
        probe.success()
        job.say(circuit.state)
        """)
    )

    assert said == [["half_open", 1, True], [True, 0, "half_open"], "closed"]
