"""The second act: a LangGraph agent loses its MCP server and its vendor. Its script, and what a run leaves behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .driver import Agent, Process, environment, idle, program, structured
from .vendor import Behaviour, Vendor

ASSISTANT: Final = Path(__file__).with_name("assistant.py")
"""The agent's program text."""
WAREHOUSE: Final = Path(__file__).with_name("warehouse.py")
"""The MCP server's program text."""
COOLDOWN: Final = 4
"""Seconds of the first cooldown; the default would be 30."""
PATIENCE: Final = 15.0
"""Seconds that the user comes back later at most, whatever the model said."""
TRIES: Final = 3
"""How often the agent's model asks for a tool that fails."""

QUESTIONS: Final = ("stock lamps", "payment ch_1042")


@dataclass(frozen=True, slots=True)
class Scene:
    """A stretch of turns.

    Attributes:
        name: one word.
        says: what happens at its start.
        behaviours: what the vendor does, for each round of the questions.
        database: whether the MCP server finds its database when it starts.
    """

    name: str
    says: str
    behaviours: tuple[Behaviour, ...]
    database: bool = True


SCENES: Final = (
    Scene("healthy", "both work", ("answers",)),
    Scene(
        "down",
        "the MCP server is killed and will not start; the vendor is silent, or its gateway gives up",
        ("stalls", "gives up", "stalls", "gives up"),
        database=False,
    ),
    Scene("recovered", "both work again", ("answers",)),
)
DOWN: Final = sum(len(scene.behaviours) for scene in SCENES if not scene.database)
"""Rounds of questions during the outage."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call that the model asked for.

    Attributes:
        tool: name of the tool.
        told: what the model was told.
        failed: whether that was an error.
        waited: seconds that it took.
    """

    tool: str
    told: str
    failed: bool
    waited: float

    @property
    def answer(self) -> dict[str, Any] | None:
        """The structured answer, if the model was told one."""
        return structured(self.told) if self.failed else None


@dataclass(frozen=True, slots=True)
class Counts:
    """What reached the servers.

    Attributes:
        requests: HTTP requests at the vendor.
        starts: processes of the MCP server that were started.
        calls: tool calls that reached the MCP server.
    """

    requests: int = 0
    starts: int = 0
    calls: int = 0

    def __sub__(self, other: Counts) -> Counts:
        return Counts(self.requests - other.requests, self.starts - other.starts, self.calls - other.calls)

    def __str__(self) -> str:
        named = (("request", self.requests), ("start", self.starts), ("call", self.calls))
        return ", ".join(f"{n} {word}{'s' if n > 1 else ''}" for word, n in named if n) or "nothing"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One message of the user until the model's answer.

    Attributes:
        number: the turn, from 1.
        scene: where in the script.
        tool: the tool that the user's words name.
        calls: the tool calls of the model.
        said: the model's answer to the user.
        reached: what reached the servers meanwhile.
    """

    number: int
    scene: Scene
    tool: str
    calls: tuple[Call, ...]
    said: str
    reached: Counts


@dataclass(slots=True)
class Second(Process):
    """Everything that one run of the second act left behind.

    Attributes:
        exchanges: turn by turn.
        killed: the process id of the server that was killed.
        pids: those of every server that was started.
    """

    exchanges: list[Exchange] = field(default_factory=list)
    killed: int = 0
    pids: list[int] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        """Every tool call that the model asked for."""
        return [call for exchange in self.exchanges for call in exchange.calls]

    @property
    def requests(self) -> int:
        """HTTP requests at the vendor."""
        return sum(exchange.reached.requests for exchange in self.exchanges)

    @property
    def starts(self) -> int:
        """Processes of the MCP server that were started."""
        return sum(exchange.reached.starts for exchange in self.exchanges)

    @property
    def waited(self) -> float:
        """Seconds that the agent waited for its tools while the servers were down."""
        return sum(call.waited for one in self.exchanges for call in one.calls if not one.scene.database)

    @property
    def failure_text(self) -> int:
        """Characters of failure text in the model's context."""
        return sum(len(call.told) for call in self.calls if call.failed)

    @property
    def read_last(self) -> str:
        """What the model read last of the dead MCP server."""
        return [one for one in self.exchanges if one.tool == "stock" and not one.scene.database][-1].calls[-1].told


def play(
    vendor: Vendor,
    folder: Path,
    extra: Mapping[str, str],
    *,
    before: Callable[[Scene], None],
    after: Callable[[Exchange], None],
    meanwhile: Callable[[], None],
) -> Second:
    """Run the assistant once through the whole script.

    Args:
        vendor: the vendor; told at each round how to behave.
        folder: where the two programs are copied to and started.
        extra: environment of this run.
        before: called with each scene before it begins.
        after: called with each exchange when it is over.
        meanwhile: called over and over while the driver waits.

    Raises:
        AgentDiedError: if the agent did not get through.
    """
    (folder / WAREHOUSE.name).write_bytes(WAREHOUSE.read_bytes())
    servers = _Servers(vendor, folder)
    run = Second(vendor.address)
    numbers = itertools.count(1)
    with program(ASSISTANT, folder, environment(vendor, extra), run) as agent:
        for scene in SCENES:
            before(scene)
            if scene.database:
                servers.database.touch()
                # The user comes back when the model said so.
                idle(time.monotonic() + _asked_to_wait(run), meanwhile)
            else:
                servers.database.unlink()
                run.killed = servers.kill()
            for behaviour, question in itertools.product(scene.behaviours, QUESTIONS):
                vendor.behaviour = behaviour
                exchange = _exchange(agent, servers, scene, next(numbers), question, meanwhile)
                run.exchanges.append(exchange)
                after(exchange)
        run.exit_status = agent.leave()
    run.pids = servers.pids()
    return run


def _exchange(
    agent: Agent, servers: _Servers, scene: Scene, number: int, question: str, meanwhile: Callable[[], None]
) -> Exchange:
    already = servers.counts()
    agent.ask(question)
    calls = []
    while "said" not in (event := agent.hear(meanwhile)):
        calls.append(Call(**event))
    reached = servers.counts() - already
    return Exchange(number, scene, question.partition(" ")[0], tuple(calls), event["said"], reached)


def _asked_to_wait(run: Second) -> float:
    """Seconds after which the last refusals said that a call is worth while."""
    answers = (exchange.calls[-1].answer for exchange in run.exchanges[-len(QUESTIONS) :])
    return min(max((answer["retry_after_ms"] / 1000 for answer in answers if answer), default=0.0), PATIENCE)


class _Servers:
    """The vendor's and the MCP server's counts."""

    def __init__(self, vendor: Vendor, folder: Path) -> None:
        self._vendor = vendor
        self._notes = folder / "warehouse.notes"
        self._notes.touch()
        self.database = folder / "warehouse.db"

    def counts(self) -> Counts:
        """What reached them so far."""
        words = [words[0] for words in self._lines()]
        return Counts(len(self._vendor.hits()), words.count("start"), words.count("call"))

    def pids(self) -> list[int]:
        """Of every start of the MCP server."""
        return [int(words[1]) for words in self._lines() if words[0] == "start"]

    def kill(self) -> int:
        """Kill the MCP server; its process id."""
        pid = self.pids()[-1]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        return pid

    def _lines(self) -> Iterator[list[str]]:
        for line in self._notes.read_text().splitlines():
            yield line.split()
