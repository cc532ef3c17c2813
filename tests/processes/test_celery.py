"""Celery's prefork pool, over a broker that is a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.workers import NUMBERS, Room, check, eventually, stop

celery = pytest.importorskip("celery", reason="celery: pip install 'otel-breaker[test]'")

APP = """
import json, os
from celery import Celery
import job

for folder in ("queue", "processed", "control"):
    os.makedirs(folder, exist_ok=True)
app = Celery("program", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": "queue", "data_folder_out": "queue", "processed_folder": "processed", "control_folder": "control",
}
app.conf.task_ignore_result = True

@app.task
def work(number, workers):
    job.meet(workers)
    said = json.dumps(job.report(URL))
    with open(f"part.{number}", "w") as file:
        file.write(said)
    os.rename(f"part.{number}", f"said.{number}")
"""


def serve(room: Room, tasks: int, workers: int, *options: str) -> subprocess.Popen[str]:
    room.write(APP)
    (room.path / "queue").mkdir()
    with celery.Celery(broker="filesystem://", set_as_current=False) as sender:
        sender.conf.broker_transport_options = {
            "data_folder_in": str(room.path / "queue"),
            "data_folder_out": str(room.path / "queue"),
            "control_folder": str(room.path / "control"),
        }
        for number in range(tasks):
            sender.send_task("program.work", (number, workers))
    command = (sys.executable, "-m", "celery", "-A", "program", "worker", "--pool", "prefork")
    bare = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    return room.start(*command, "--concurrency", str(workers), *bare, *options)


def reports(room: Room, tasks: int) -> list[Any]:
    return [json.loads(eventually(lambda name=n: read(room, name))) for n in range(tasks)]


def read(room: Room, number: int) -> str:
    file = room.path / f"said.{number}"
    return file.read_text() if file.exists() else ""


def test_two_workers_until_a_warm_shutdown(room: Room) -> None:
    worker = serve(room, 2, 2)

    done = reports(room, 2)
    errors = stop(worker)

    check(done, 2)
    assert (worker.returncode, "Traceback" in errors) == (0, False), errors
    assert room.vendor.hits == 2 * 2
    assert list(room.admissions().values()) == [NUMBERS] * 2


def test_workers_that_are_replaced_after_each_task_under_opentelemetry_instrument_lose_nothing(room: Room) -> None:
    """Celery ends them by os._exit: the program's own providers, which these are, would not export by themselves."""
    room.way = "opentelemetry-instrument"
    worker = serve(room, 2, 1, "--max-tasks-per-child", "1")

    done = reports(room, 2)
    stop(worker)

    check(done, 2)
    assert list(room.admissions().values()) == [NUMBERS] * 2
