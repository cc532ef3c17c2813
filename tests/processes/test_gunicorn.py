"""gunicorn: a process that forks its workers, before or after the application is loaded."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.workers import NUMBERS, REPORT, Room, ask, ask_all, check, eventually, free_port, stop

pytest.importorskip("gunicorn", reason="gunicorn: pip install 'otel-breaker[test]'")

APP = """
import json
import job

def app(environ, start_response):
    job.meet(WORKERS)
    body = json.dumps(job.report(URL)).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""


def serve(room: Room, app: str, *options: str, workers: int = 2) -> tuple[Any, int]:
    room.write(f"WORKERS = {workers}\n" + app)
    port = free_port()
    command = (sys.executable, "-m", "gunicorn", "program:app", "--bind", f"127.0.0.1:{port}", "--no-control-socket")
    return room.start(*command, "--workers", str(workers), *options), port


@pytest.mark.parametrize("way", ["variable", "opentelemetry-instrument"])
def test_B63_two_workers(room: Room, way: str) -> None:
    room.way = way
    server, port = serve(room, APP)

    reports = ask_all(room, port, 2)
    errors = stop(server)

    check(reports, 2)
    assert (server.returncode, "Traceback" in errors) == (0, False), errors
    assert room.vendor.hits == 2 * 2
    assert list(room.admissions().values()) == [NUMBERS] * 2


@pytest.mark.parametrize("kind", ["gthread", "gevent"])
def test_a_worker_of_another_class(room: Room, kind: str) -> None:
    server, port = serve(room, APP, "--worker-class", kind, workers=1)

    reports = [ask(port)]
    errors = stop(server)

    check(reports, 1)
    assert [word for word in ("Traceback", "MonkeyPatchWarning") if word in errors] == []
    assert server.returncode == 0
    assert list(room.admissions().values()) == [NUMBERS]


@pytest.mark.parametrize("way", ["variable", "opentelemetry-instrument"])
def test_an_application_loaded_before_the_fork_that_has_made_a_call(room: Room, way: str) -> None:
    room.way = way
    room.vendor.recover()
    server, port = serve(room, APP + "\nassert job.call(URL) == 200\n", "--preload")
    eventually(lambda: room.vendor.hits)
    room.vendor.fail(503)

    reports = ask_all(room, port, 2)
    errors = stop(server)

    check(reports, 2)
    assert (server.returncode, "Traceback" in errors) == (0, False), errors
    assert room.vendor.hits == 1 + 2 * 2
    assert sorted(room.admissions().values(), key=len) == [{"admitted": 1}, NUMBERS, NUMBERS]


def test_workers_that_are_replaced_after_some_requests_lose_nothing(room: Room) -> None:
    server, port = serve(room, APP, "--max-requests", "1", workers=1)

    reports = [ask(port) for _ in range(3)]
    stop(server)

    check(reports, 3)
    assert list(room.admissions().values()) == [NUMBERS] * 3


def test_a_worker_whose_request_takes_too_long_is_killed_and_the_next_one_is_guarded(room: Room) -> None:
    """Gunicorn asks by SIGABRT first, which ends the worker by sys.exit: what it had leaves."""
    app = APP.replace("body = json", "first = not os.path.exists('first'); open('first', 'w').close()\n    body = json")
    app = "import os, time\n" + app.replace("    start_response", "    first and time.sleep(30)\n    start_response")
    server, port = serve(room, app, "--timeout", "1", workers=1)

    with pytest.raises((ConnectionError, OSError)):
        ask(port)
    again = ask(port)
    stop(server)

    assert REPORT.items() <= again.items()
    assert list(room.admissions().values()) == [NUMBERS] * 2
