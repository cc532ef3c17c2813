"""Other interpreters that an instrumented program starts: at its start-up, later, with and without PYTHONPATH."""

from __future__ import annotations

import pytest

from tests.support.workers import NUMBERS, WAYS, Room, check

PROGRAM = """
import os, subprocess, sys
import job

CHILD = "import job; job.say(job.report(URL))".replace("URL", repr(URL))

def start(**changes):
    environment = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, check=True, capture_output=True, text=True)
    assert done.stderr == "", done.stderr
    os.write(1, done.stdout.encode())
"""


@pytest.mark.parametrize("way", WAYS)
def test_B63_a_child_started_at_start_up_is_one_process_and_guarded_once(room: Room, way: str) -> None:
    room.way = way

    reports = room.run(PROGRAM + "start()\njob.say(job.report(URL))")

    check(reports, 2)
    assert room.vendor.hits == 2 * 2
    assert list(room.admissions().values()) == [NUMBERS] * 2


@pytest.mark.parametrize(("way", "layers"), [("variable", 1), ("opentelemetry-instrument", 0)])
def test_B63_without_PYTHONPATH_nothing_raises(room: Room, way: str, layers: int) -> None:
    """The launcher of OpenTelemetry reaches a child by that variable alone; ours does not need it."""
    room.way = way

    (child,) = room.run(PROGRAM + "start(PYTHONPATH=None)")

    assert child["layers"] == layers


def test_a_child_of_an_interpreter_that_switched_on_by_hand_is_off_unless_it_does_so_too(room: Room) -> None:
    parent, child = room.run(
        "import otel_breaker; otel_breaker.instrument()" + PROGRAM + "job.say(job.report(URL)); start()",
        OTEL_BREAKER_ENABLED="",
    )

    assert (parent["layers"], parent["seen"]) == (1, [503, 503, "circuit_open"])
    assert (child["layers"], child["seen"]) == (0, [503, 503, 503])


def test_a_child_that_calls_nothing_says_nothing(room: Room) -> None:
    (reply,) = room.run(
        """
        import subprocess, sys
        import job
        child = "import sys; print([name for name in sys.modules if name.startswith('opentelemetry')])"
        job.say(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
        """
    )

    assert reply == "[]\n"
    assert room.receiver.requests == 0
