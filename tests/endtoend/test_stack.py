"""`make stack` as a user runs it: it tells the whole outage, and leaves nothing running, also after Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import page_path, stack
from tests.support.python import environment

pytestmark = pytest.mark.timeout(240)
LIMIT = 120.0


class Run:
    """One run in a process group of its own, as of a terminal; all that it starts lives below `room`."""

    def __init__(self, room: Path, *arguments: str) -> None:
        self.room = room
        self._out, self._err = room / "out", room / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.page_path", "--cooldown=3", *arguments], stdout=out, stderr=err,
                cwd=stack.ROOT, env=environment(TMPDIR=str(room)), start_new_session=True,
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return self._err.read_text()

    def says(self, line: str) -> bool:
        """Whether it says it in time."""
        return bool(stack.wait_until(lambda: line in self.text or self.process.poll() is not None, LIMIT)) and (
            line in self.text
        )

    def interrupt(self) -> int:
        """Ctrl-C reaches the whole group; the status at the end."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(LIMIT)

    def processes(self) -> list[str]:
        """What still runs of it."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "cwd").startswith(str(self.room)):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


@contextmanager
def running(room: Path, *arguments: str) -> Iterator[Run]:
    run = Run(room, *arguments)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.interrupt()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """One that goes through, one that is kept, one that is interrupted on its way: all at the same time."""
    stack.need(*stack.ALL)
    with ExitStack() as held:

        def run(name: str, *arguments: str) -> Run:
            return held.enter_context(running(tmp_path_factory.mktemp(name), *arguments))

        yield {"through": run("through"), "kept": run("kept", "--keep"), "cut": run("cut")}


def test_ctrl_c_in_the_middle_stops_everything(runs: dict[str, Run]) -> None:
    run = runs["cut"]
    assert run.says("the vendor goes down: 503"), run.text + run.errors
    assert len(run.processes()) == 4
    assert run.interrupt() == 130
    assert run.text.splitlines()[-1] == "stopped"
    assert run.errors == ""
    assert run.processes() == []


def test_it_tells_an_outage_from_the_first_failure_to_the_resolve(runs: dict[str, Run]) -> None:
    run = runs["through"]
    assert run.process.wait(LIMIT) == 0, run.text + run.errors
    assert run.errors == ""
    wanted = (
        r"Prometheus: +http://127\.0\.0\.1:\d+/alerts",
        r"Alertmanager: +http://127\.0\.0\.1:\d+",
        r"your agents: +OTEL_EXPORTER_OTLP_ENDPOINT=http://127\.0\.0\.1:\d+",
        r"the vendor goes down: 503",
        r"circuit 127\.0\.0\.1:\d+: closed -> open \(server_error\)",
        r"cooldowns elapsed: 1$",
        r"cooldowns elapsed: 2, past two: the rule fires",
        r"PAGE at the pager, critical: 127\.0\.0\.1:\d+ \(planner, production\): Circuit breaker has stayed open past",
        r"why: +server_error, \d+ times in the last hour",
        r"firing: +OtelBreakerOpenPastTwoCooldowns: Circuit 127\.0\.0\.1:\d+ of planner in production has not",
        r"runbook:\s+https://\S+/OtelBreakerOpenPastTwoCooldowns\.md",
        r"the vendor is back",
        r"RESOLVED at the pager, with the same key",
        r"one outage, one incident, one resolve",
    )
    at = 0
    for pattern in wanted:
        found = re.compile(pattern, re.MULTILINE).search(run.text, at)
        assert found, f"{pattern} is not there, or not in its place:\n{run.text}"
        at = found.end()
    assert len(re.findall("^ +[0-9.]+ s  PAGE ", run.text, re.MULTILINE)) == 1
    assert re.search(r"half_open -> closed \(probe_succeeded\)", run.text)
    assert run.processes() == []


def test_kept_it_runs_until_ctrl_c(runs: dict[str, Run]) -> None:
    run = runs["kept"]
    assert run.says("all of it is kept running until Ctrl-C"), run.text + run.errors
    time.sleep(1)
    assert run.process.poll() is None
    assert len(run.processes()) == 4
    assert run.interrupt() == 0
    assert run.errors == ""
    assert run.processes() == []


def test_make_runs_it() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "stack", "ARGS=--keep"]
    shown = subprocess.run(command, cwd=stack.ROOT, capture_output=True, text=True, check=True, env=environment())
    lines = shown.stdout.splitlines()
    assert lines[-1] == ".venv/bin/python -m tests.support.page_path --keep"
    assert "collector-config/build/tools.sh" in lines


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(stack, "TOOLS", Path("nowhere"))
    monkeypatch.setenv("PATH", "nowhere")
    kept = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert page_path.main([]) == 2
    finally:
        for one, handler in zip((signal.SIGINT, signal.SIGTERM), kept, strict=True):
            signal.signal(one, handler)
    assert capsys.readouterr().err == "needs otelcol-breaker: make tools\n"
