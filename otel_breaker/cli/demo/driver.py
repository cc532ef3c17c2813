"""Starts the agent as a program of its own and walks it and the vendor through the script."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from .script import PACE, PAUSE, Turn, turns
from .vendor import Hit, Vendor

AGENT: Final = Path(__file__).with_name("agent.py")
"""The agent's program text."""
KEY: Final = "sk_demo_4eC39HqLyjWDarjtT1zdp7dc"
"""The agent's credential at the vendor."""
ANSWER_LIMIT: Final = 20.0
"""Seconds after which an agent that says nothing is taken for dead."""
_TICK: Final = 0.05


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call of the agent, as it reported it.

    Attributes:
        turn: the turn it belongs to.
        tool: name of the tool.
        told: what the model was told.
        failed: whether that was a failure's text.
        waited: seconds that the tool took.
        hits: the requests that reached the vendor meanwhile.
    """

    turn: Turn
    tool: str
    told: str
    failed: bool
    waited: float
    hits: tuple[Hit, ...]

    @property
    def refused(self) -> str | None:
        """The status of the structured answer, if the model was told one."""
        try:
            answer = json.loads(self.told)
        except ValueError:
            return None
        return str(answer["status"]) if self.failed and isinstance(answer, dict) and "status" in answer else None


@dataclass(slots=True)
class Run:
    """Everything that one run of the agent left behind.

    Attributes:
        vendor: host and port of the vendor.
        steps: the agent's tool calls.
        exit_status: that of the agent's process.
        complaints: what the process wrote to stderr.
    """

    vendor: str
    steps: list[Step] = field(default_factory=list)
    exit_status: int | None = None
    complaints: str = ""

    @property
    def hits(self) -> list[Hit]:
        """Requests on the wire, in order."""
        return [hit for step in self.steps for hit in step.hits]

    @property
    def waited(self) -> float:
        """Seconds that the agent waited for its tools."""
        return sum(step.waited for step in self.steps)

    @property
    def failure_text(self) -> int:
        """Characters of failure text in the model's context."""
        return sum(len(step.told) for step in self.steps if step.failed)


class AgentDiedError(Exception):
    """The agent's program ended, or went silent, before its time."""


def environment(vendor: Vendor, extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without proxies and without settings for OpenTelemetry, plus ``extra``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("OTEL_") and not name.upper().endswith("_PROXY")
    }
    return {**kept, "VENDOR_URL": f"http://{vendor.address}", "VENDOR_KEY": KEY, **extra}


def play(
    vendor: Vendor,
    folder: Path,
    extra: Mapping[str, str],
    *,
    before: Callable[[Turn], None],
    after: Callable[[Step], None],
    meanwhile: Callable[[], None],
) -> Run:
    """Run the agent once through the whole script.

    Args:
        vendor: the vendor; told at each turn how to behave.
        folder: where the agent is copied to and started.
        extra: environment of this run.
        before: called with each turn before its message is sent.
        after: called with each step when the agent has reported it.
        meanwhile: called over and over while the driver waits.

    Raises:
        AgentDiedError: if the agent did not get through.
    """
    program = folder / "agent.py"
    program.write_bytes(AGENT.read_bytes())
    run = Run(vendor.address)
    with (folder / "stderr.txt").open("w+") as stderr:
        agent = _Agent([sys.executable, program.name], folder, environment(vendor, extra), stderr)
        try:
            due = 0.0
            for turn in turns():
                _idle(due, meanwhile)
                before(turn)
                due = time.monotonic() + PACE
                step = _step(agent, vendor, turn, meanwhile)
                run.steps.append(step)
                after(step)
                due = max(due, time.monotonic() + PAUSE)
            _idle(due, meanwhile)
            run.exit_status = agent.leave()
        finally:
            agent.kill()
            stderr.seek(0)
            run.complaints = stderr.read()
    return run


class _Agent:
    """The agent's process; its lines come through a queue."""

    def __init__(self, command: list[str], folder: Path, env: Mapping[str, str], stderr: IO[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=pipe, stdout=pipe, stderr=stderr, encoding="utf-8"
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        self._stderr = stderr
        self.lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="agent", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._answers:
            self.lines.put(line)
        self.lines.put("")

    def ask(self, question: str) -> None:
        """Send one message of the user."""
        try:
            self._questions.write(f"{question}\n")
            self._questions.flush()
        except OSError:
            raise self.died() from None

    def died(self) -> AgentDiedError:
        """Why the agent says nothing any more."""
        self._stderr.seek(0)
        return AgentDiedError(f"the agent ended early or went silent:\n{self._stderr.read().strip()}")

    def leave(self) -> int:
        """Say that there are no more messages, and wait for the end."""
        try:
            self._questions.close()
            return self._process.wait(ANSWER_LIMIT)
        except (OSError, subprocess.TimeoutExpired):
            raise self.died() from None

    def kill(self) -> None:
        """End the process if it is still there, and let go of its pipes."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._answers.close()
        with contextlib.suppress(OSError):
            self._questions.close()


def _idle(until: float, meanwhile: Callable[[], None]) -> None:
    meanwhile()
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _TICK))
        meanwhile()


def _step(agent: _Agent, vendor: Vendor, turn: Turn, meanwhile: Callable[[], None]) -> Step:
    """Send one turn's message and wait for what the agent reports."""
    vendor.behaviour = turn.behaviour
    already = len(vendor.hits())
    agent.ask(turn.question)
    limit = time.monotonic() + ANSWER_LIMIT
    while time.monotonic() < limit:
        try:
            line = agent.lines.get(timeout=_TICK)
        except queue.Empty:
            meanwhile()
            continue
        if not line:
            break
        said = json.loads(line)
        hits = tuple(vendor.hits()[already:])
        return Step(turn, said["tool"], said["told"], said["failed"], said["waited"], hits)
    raise agent.died()
