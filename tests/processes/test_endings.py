"""Every way in which a process ends, and what is at the receiver then."""

from __future__ import annotations

import signal
import subprocess
import textwrap
from types import SimpleNamespace

import pytest

from otel_breaker.telemetry import providers
from tests.support.workers import NUMBERS, Room

PREFIX = """
import os, signal, sys, threading, time
import job

assert job.report(URL)["seen"] == [503, 503, "circuit_open"]
"""
READY = """
os.write(1, b"ready\\n")
while True:
    time.sleep(0.01)
"""


def everything(room: Room) -> bool:
    """Whether metrics, the log event and the spans of the calls are there, each once."""
    return (
        list(room.admissions().values()) == [NUMBERS]
        and len(room.opened()) == 1
        and [span.name for span in room.receiver.spans] == [f"otel_breaker {room.vendor.dependency}"] * 3
    )


def nothing(room: Room) -> bool:
    return not (room.receiver.points or room.receiver.logs or room.receiver.spans)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise SystemError('mine')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)", -signal.SIGTERM),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(4)); os.kill(os.getpid(), signal.SIGTERM)", 4),
        ("import otel_breaker; otel_breaker.flush(); os._exit(5)", 5),
        ("import otel_breaker; otel_breaker.flush(); os.execv('/bin/true', ['true'])", 0),
    ],
    ids=[
        "return",
        "sys.exit",
        "exception",
        "interrupt",
        "SIGTERM",
        "SIGTERM handled",
        "flush, os._exit",
        "flush, exec",
    ],
)
def test_these_ways_lose_nothing(room: Room, ending: str, status: int) -> None:
    process = room.program(PREFIX + ending)
    process.communicate(timeout=20)

    assert process.returncode == status
    assert everything(room)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("os._exit(5)", 5),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.execv('/bin/true', ['true'])", 0),
        ("os.kill(os.getpid(), signal.SIGHUP)", -signal.SIGHUP),
        ("signal.signal(signal.SIGTERM, lambda *_: os._exit(6)); os.kill(os.getpid(), signal.SIGTERM)", 6),
    ],
    ids=["os._exit", "SIGKILL", "exec", "SIGHUP", "SIGTERM handled by os._exit"],
)
def test_these_ways_leave_no_time(room: Room, ending: str, status: int) -> None:
    process = room.program(PREFIX + ending)
    process.communicate(timeout=20)

    assert process.returncode == status
    assert nothing(room)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_from_outside(room: Room, number: int, status: int) -> None:
    process = room.program(PREFIX + READY)
    ready(process)
    process.send_signal(number)
    process.communicate(timeout=20)

    assert process.returncode == status
    assert everything(room)


def test_SIGTERM_where_only_other_threads_have_called(room: Room) -> None:
    """The main thread alone may ask for a signal: it was asked when the interpreter started."""
    code = """
    import os, threading, time
    import job
    thread = threading.Thread(target=job.report, args=(URL,))
    thread.start()
    thread.join()
    """
    process = room.program(textwrap.dedent(code) + READY)
    ready(process)
    process.terminate()
    process.communicate(timeout=20)

    assert process.returncode == -signal.SIGTERM
    assert everything(room)


def test_SIGTERM_after_a_server_put_back_what_it_found(room: Room) -> None:
    """As uvicorn does: its own handler for as long as it serves, then the old one, then the signal once more."""
    process = room.program(
        """
        import signal
        seen = []
        found = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
        import job
        job.report(URL)
        signal.raise_signal(signal.SIGTERM)
        assert seen == [1]
        signal.signal(signal.SIGTERM, found)
        signal.raise_signal(signal.SIGTERM)
        """
    )
    process.communicate(timeout=20)

    assert process.returncode == -signal.SIGTERM
    assert everything(room)


def test_SIGTERM_stays_the_systems_where_nothing_of_ours_is_exported(room: Room) -> None:
    code = """
    import signal
    import job
    before = signal.getsignal(signal.SIGTERM)
    job.report(URL)
    job.say([before == signal.SIG_DFL, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL])
    """

    assert room.run(code, OTEL_SDK_DISABLED="true") == [[True, True]]
    room.way = "opentelemetry-instrument"
    assert room.run(code, OTEL_BREAKER_ENABLED="true") == [[False, True]]
    assert room.run(code) == [[True, True]]


def test_a_program_that_hands_SIGTERM_on_keeps_it(room: Room) -> None:
    """A second handler that asks who was there before finds ours, which flushes and ends the process."""
    process = room.program(
        """
        import signal
        before = signal.getsignal(signal.SIGTERM)
        def mine(number, frame):
            job.say("mine")
            before(number, frame)
        signal.signal(signal.SIGTERM, mine)
        import job
        job.report(URL)
        signal.raise_signal(signal.SIGTERM)
        """
    )
    out, _ = process.communicate(timeout=20)

    assert (process.returncode, out) == (-signal.SIGTERM, '"mine"\n')
    assert everything(room)


@pytest.mark.parametrize("ending", ["pass", "os.kill(os.getpid(), signal.SIGTERM)"], ids=["exit", "SIGTERM"])
def test_a_forked_child_reports_at_its_own_end(room: Room, ending: str) -> None:
    room.run(
        f"""
        import os, signal, sys
        import job
        child = os.fork()
        if not child:
            job.report(URL)
            {ending}
            sys.exit()
        os.waitpid(child, 0)
        """
    )

    assert everything(room)


def test_all_ends_of_one_process_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's end, the interpreter's end and SIGTERM may come one after another: a dead collector holds up once."""
    now = [100.0]
    monkeypatch.setattr(providers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(providers, "_state", providers._State())

    left = []
    for at in (100.0, 101.5, 104.0, 120.0):
        now[0] = at
        left.append(providers._time_left())

    assert left == [2.0, 0.5, 0.0, 2.0]


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
