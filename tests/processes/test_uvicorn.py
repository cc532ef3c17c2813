"""uvicorn: workers by spawn, and a server that sends itself the signal again after it has shut down."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest

from tests.support.workers import NUMBERS, Room, ask_all, check, free_port, stop

pytest.importorskip("uvicorn", reason="uvicorn: pip install 'otel-breaker[test]'")

APP = """
import json, threading
import job

def work(replies):
    job.meet(WORKERS)
    replies.append(job.report(URL))

async def app(scope, receive, send):
    assert scope["type"] == "http"
    replies = []
    thread = threading.Thread(target=work, args=(replies,))  # as a framework does with handlers that are not async
    thread.start()
    thread.join()
    body = json.dumps(replies[0]).encode()
    headers = [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""


def serve(room: Room, workers: int) -> tuple[Any, int]:
    room.write(f"WORKERS = {workers}\n" + APP)
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", "program:app", "--port", str(port), "--lifespan", "off")
    return room.start(*command, "--workers", str(workers)), port


@pytest.mark.parametrize("way", ["variable", "run"])
def test_B63_two_workers(room: Room, way: str) -> None:
    room.way = way
    server, port = serve(room, 2)

    reports = ask_all(room, port, 2)
    errors = stop(server)

    check(reports, 2)
    assert "Traceback" not in errors, errors
    assert room.vendor.hits == 2 * 2
    assert list(room.admissions().values()) == [NUMBERS] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_process(room: Room, number: int) -> None:
    server, port = serve(room, 1)

    reports = ask_all(room, port, 1)
    stop(server, number)

    check(reports, 1)
    assert list(room.admissions().values()) == [NUMBERS]


def test_B63_under_opentelemetry_instrument_the_programs_own_providers_export(room: Room) -> None:
    """Uvicorn ends by SIGTERM, at which OpenTelemetry's SDK exports nothing: its interval is what leaves."""
    room.way = "opentelemetry-instrument"
    room.write("WORKERS = 2\n" + APP)
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", "program:app", "--port", str(port), "--lifespan", "off")
    server = room.start(*command, "--workers", "2", OTEL_METRIC_EXPORT_INTERVAL="200")

    reports = ask_all(room, port, 2)

    check(reports, 2)
    assert room.receiver.wait_for(lambda: list(room.admissions().values()) == [NUMBERS] * 2)
    errors = stop(server)
    assert "Traceback" not in errors, errors
    assert room.vendor.hits == 2 * 2
