"""Starts an agent as a program of its own; walks the first act's agent and the vendor through the script."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from .script import PAUSE, Turn, turns
from .vendor import Hit, Vendor

AGENT: Final = Path(__file__).with_name("agent.py")
"""The agent's program text."""
KEY: Final = "sk_demo_4eC39HqLyjWDarjtT1zdp7dc"
"""The agent's credential at the vendor."""
ANSWER_LIMIT: Final = 60.0
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
        answer = structured(self.told) if self.failed else None
        return str(answer["status"]) if answer else None


@dataclass(slots=True)
class Process:
    """How an agent's program ended.

    Attributes:
        vendor: host and port of the vendor that it called.
        exit_status: that of the process.
        complaints: what the process wrote to stderr.
    """

    vendor: str
    exit_status: int | None = None
    complaints: str = ""


@dataclass(slots=True)
class Run(Process):
    """Everything that one run of the agent left behind.

    Attributes:
        steps: the agent's tool calls.
    """

    steps: list[Step] = field(default_factory=list)

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


def structured(told: str) -> dict[str, Any] | None:
    """The structured answer, if that is what the model was told."""
    try:
        answer = json.loads(told)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and "status" in answer else None


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
    pace: float,
    before: Callable[[Turn], None],
    after: Callable[[Step], None],
    meanwhile: Callable[[], None],
) -> Run:
    """Run the agent once through the whole script.

    Args:
        vendor: the vendor; told at each turn how to behave.
        folder: where the agent is copied to and started.
        extra: environment of this run.
        pace: seconds from one turn's start to the next one's; 0 for as soon as the agent is ready.
        before: called with each turn before its message is sent.
        after: called with each step when the agent has reported it.
        meanwhile: called over and over while the driver waits.

    Raises:
        AgentDiedError: if the agent did not get through.
    """
    run = Run(vendor.address)
    with program(AGENT, folder, environment(vendor, extra), run) as agent:
        due = 0.0
        for turn in turns():
            idle(due, meanwhile)
            before(turn)
            due = time.monotonic() + pace
            step = _step(agent, vendor, turn, meanwhile)
            run.steps.append(step)
            after(step)
            due = max(due, time.monotonic() + (PAUSE if pace else 0))
        idle(due, meanwhile)
        run.exit_status = agent.leave()
    return run


@contextlib.contextmanager
def program(text: Path, folder: Path, env: Mapping[str, str], run: Process) -> Iterator[Agent]:
    """Start a copy of a program, and end it if it has not ended itself; what it wrote to stderr goes to ``run``."""
    copy = folder / text.name
    copy.write_bytes(text.read_bytes())
    with (folder / "stderr.txt").open("w+") as stderr:
        agent = Agent([sys.executable, copy.name], folder, env, stderr)
        try:
            yield agent
        finally:
            agent.kill()
            stderr.seek(0)
            run.complaints = stderr.read()


class Agent:
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
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="agent", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._answers:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, question: str) -> None:
        """Send one message of the user."""
        try:
            self._questions.write(f"{question}\n")
            self._questions.flush()
        except OSError:
            raise self.died() from None

    def hear(self, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """The next line that it says, decoded."""
        limit = time.monotonic() + ANSWER_LIMIT
        while time.monotonic() < limit:
            try:
                line = self._lines.get(timeout=_TICK)
            except queue.Empty:
                meanwhile()
                continue
            if not line:
                break
            said: dict[str, Any] = json.loads(line)
            return said
        raise self.died()

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


def idle(until: float, meanwhile: Callable[[], None]) -> None:
    """Wait until then, by the monotonic clock."""
    meanwhile()
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _TICK))
        meanwhile()


def _step(agent: Agent, vendor: Vendor, turn: Turn, meanwhile: Callable[[], None]) -> Step:
    """Send one turn's message and wait for what the agent reports."""
    vendor.behaviour = turn.behaviour
    already = len(vendor.hits())
    agent.ask(turn.question)
    said = agent.hear(meanwhile)
    hits = tuple(vendor.hits()[already:])
    return Step(turn, said["tool"], said["told"], said["failed"], said["waited"], hits)
