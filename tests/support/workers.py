"""Programs of many processes, started as a user starts them, beside a vendor and a receiver that count.

Every program finds the module `job` beside it: ``job.report(url)`` makes calls to the vendor in whatever process it is
called in and says what that process looks like.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otel_breaker.testing import FakeDependency
from tests.support.otlp import Receiver
from tests.support.python import BIN, environment

THRESHOLD = 2
"""Failures that open a circuit in these programs."""

JOB = '''
import json, os, time

import requests


def layers():
    """How many wrappers lie on requests."""
    count, wrapped = 0, vars(requests.Session)["request"]
    while hasattr(wrapped, "__wrapped__"):
        count, wrapped = count + 1, wrapped.__wrapped__
    return count


def call(url):
    """What one call came to: its status, what the breaker said, or the exception's name."""
    try:
        return requests.get(url, timeout=10).status_code
    except requests.RequestException as error:
        return error.answer()["status"] if hasattr(error, "answer") else type(error).__name__


def report(url, calls=3):
    """Make calls; say what they came to, and who made them."""
    seen = [call(url) for _ in range(calls)]
    return {"pid": os.getpid(), "layers": layers(), "seen": seen}


def meet(workers):
    """Wait until so many processes are here: each of them then does a share of the work."""
    open(f"met.{os.getpid()}", "w").close()
    until = time.monotonic() + 15
    while sum(name.startswith("met.") for name in os.listdir(".")) < workers:
        assert time.monotonic() < until
        time.sleep(0.01)


def say(value):
    """One line of JSON, in one piece, so that lines of several processes do not mix."""
    os.write(1, (json.dumps(value) + "\\n").encode())
'''


@dataclass
class Room:
    """A folder with `job.py`, a vendor that counts requests, and a receiver that decodes what is exported.

    Attributes:
        way: how breakers are switched on: a key of `WAYS`.
    """

    path: Path
    vendor: FakeDependency
    receiver: Receiver
    way: str = "variable"
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, code: str, name: str = "program.py") -> Path:
        """Put a module beside `job`; ``URL`` in it is the vendor's."""
        file = self.path / name
        file.write_text(f"URL = {self.vendor.url!r}\n" + textwrap.dedent(code))
        return file

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command in the folder, with breakers on and telemetry going to the receiver."""
        prefix, more = WAYS[self.way]
        defaults = {
            "OTEL_BREAKER_FAILURE_THRESHOLD": str(THRESHOLD),
            "OTEL_SERVICE_NAME": "agent",
            "PYTHONWARNINGS": "ignore:This process:DeprecationWarning",  # fork beside threads, Python 3.12 and later
            "OTEL_METRIC_EXPORT_INTERVAL": "600000",
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
            "OTEL_BLRP_SCHEDULE_DELAY": "600000",
        }
        process = subprocess.Popen(
            [*prefix, *command],
            cwd=self.path,
            env=environment(**self.receiver.environment(**{**defaults, **more, **variables})),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def program(self, code: str, **variables: str) -> subprocess.Popen[str]:
        """Start a Python program."""
        return self.start(sys.executable, str(self.write(code)), **variables)

    def run(self, code: str, status: int = 0, **variables: str) -> list[Any]:
        """Run a Python program to its end; the values that it said."""
        process = self.program(code, **variables)
        out, err = process.communicate(timeout=60)
        assert process.returncode == status, err
        assert "Warning" not in err, err
        assert "Traceback" not in err, err
        return [json.loads(line) for line in out.splitlines()]

    def met(self) -> int:
        """How many processes have come to `job.meet`."""
        return len(list(self.path.glob("met.*")))

    # --- what came ----------------------------------------------------------------------------------------------------

    def admissions(self) -> dict[str, dict[str, int]]:
        """The newest numbers of the vendor's circuit that are not 0, by instance id."""
        return self._by_instance("otel_breaker.admissions", "otel_breaker.decision")

    def transitions(self) -> dict[str, dict[str, int]]:
        """The transitions of the vendor's circuit, by instance id: the state moved to."""
        return self._by_instance("otel_breaker.transitions", "otel_breaker.state")

    def _by_instance(self, metric: str, attribute: str) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for point in self.receiver.series(metric):
            if point.attributes["otel_breaker.name"] == self.vendor.dependency:
                numbers = found.setdefault(str(point.resource["service.instance.id"]), {})
                if point.value:
                    key = str(point.attributes[attribute])
                    numbers[key] = numbers.get(key, 0) + int(point.value)
        return found

    def opened(self) -> list[str]:
        """The instances that logged the opening of the vendor's circuit, each as often as it did."""
        return [
            str(log.resource["service.instance.id"])
            for log in self.receiver.events("otel_breaker.state.changed")
            if log.attributes["otel_breaker.state"] == "open"
        ]

    def close(self) -> None:
        """End what still runs, with all its children."""
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "variable": ([], {"OTEL_BREAKER_ENABLED": "true"}),
    "run": ([str(BIN / "otel-breaker"), "run", "--"], {}),
    "opentelemetry-instrument": ([str(BIN / "opentelemetry-instrument")], {}),
}


@contextmanager
def room(path: Path) -> Iterator[Room]:
    """A room whose vendor answers 503 until it is told otherwise."""
    (path / "job.py").write_text(JOB)
    with FakeDependency() as vendor, Receiver() as receiver:
        vendor.fail(503)
        made = Room(path, vendor, receiver)
        try:
            yield made
        finally:
            made.close()


def stop(process: subprocess.Popen[str], number: int = signal.SIGTERM, timeout: float = 20.0) -> str:
    """Send a signal and wait for the end; what was on stderr."""
    process.send_signal(number)
    return process.communicate(timeout=timeout)[1]


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ask(port: int) -> Any:
    """The JSON that a server on this port answers, once it is there."""

    def answer() -> bytes:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as reply:
                return bytes(reply.read())
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return b""
            raise

    return json.loads(eventually(answer))


def ask_all(room: Room, port: int, workers: int) -> list[Any]:
    """One answer of each worker: the next is asked when the ones before it are busy."""
    with ThreadPoolExecutor(workers) as pool:
        asked = []
        for number in range(1, workers + 1):
            asked.append(pool.submit(ask, port))
            eventually(lambda count=number: room.met() >= count)
        return [one.result() for one in asked]


def eventually(condition: Callable[[], Any], timeout: float = 15.0) -> Any:
    """What ``condition()`` says once it is true; an assertion if it never is."""
    until = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < until, "this did not happen in time"
        time.sleep(0.02)
    return value


REPORT = {"layers": 1, "seen": [503, 503, "circuit_open"]}
"""What `job.report` says in a worker that is guarded once and starts with a closed circuit, but for its pid."""

NUMBERS = {"admitted": 2, "circuit_open": 1}
"""What the receiver has of such a worker."""


def check(reports: list[dict[str, Any]], workers: int) -> None:
    """Each of so many processes was guarded exactly once and opened its own circuit."""
    assert [{key: value for key, value in one.items() if key != "pid"} for one in reports] == [REPORT] * workers
    assert len({one["pid"] for one in reports}) == workers
