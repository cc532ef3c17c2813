"""Agents that make their tools and sessions anew, and one that goes on calling a dead MCP server: nothing grows.

`test_limits` does the same for guards and HTTP clients.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.tools import BaseTool

import otel_breaker
from otel_breaker import Circuit
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from otel_breaker.instrumentations import _mcp_link, _patch, mcp
from otel_breaker.telemetry import emit
from tests.support import mcp_client
from tests.support.counts import names as circuits_of
from tests.support.mcp_process import HttpServer
from tests.telemetry.signals import Signals

CALLS = 20_000
TICK = 1 / 1024
"""Seconds between two calls, exact in binary: `CALLS` of them take 19.5 s, less than one cooldown."""
TOLD = [1] + [1024] * 19
"""How many each refusal that is told stands for: the first for itself, then one a second for those since."""
FLAT = 8 * CALLS
"""Bytes by which memory may have grown: a single pointer kept for each refusal would be as much."""


@pytest.fixture
def signals(breaker_registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Signals]:
    """Real SDK providers with exporters in memory."""
    emit._state.reset()
    emit._state.started = True
    emit.configure()
    made = Signals()
    made.install(monkeypatch)
    yield made
    made.shutdown()
    emit._state.reset()
    emit.configure()


@pytest.fixture
def patched_tools(configure: Any, breaker_registry: Registry) -> Iterator[Registry]:
    """MCP and LangChain, patched, over a fresh registry."""
    mcp_client.modules()
    configure()
    _patch.enable()
    yield breaker_registry
    _patch.remove()


# --- 20,000 refusals --------------------------------------------------------------------------------------------------


class Dead:
    """A server that answers every call with 503; its circuit is open. ``each`` runs after every call."""

    def __init__(self, server: HttpServer, registry: Registry) -> None:
        self.server = server
        server.fault("s503")
        for _ in range(5):  # a session each: 1.x ends one at such an answer
            asyncio.run(self._fail())
        assert circuits_of(registry) == [server.name, f"{server.name}#connect", f"{server.name}/add"]
        (self.circuit,) = [circuit for circuit in registry if circuit.name == server.name]
        assert (self.circuit.snapshot().state, server.hits) == ("open", 5)

    async def _fail(self) -> None:
        try:
            async with mcp_client.open_http(self.server) as session:
                await session.call_tool("add", {"a": 1, "b": 2})
        except Exception:
            return
        raise AssertionError("it worked")

    async def refuse(self, times: int, each: Callable[[], Any], around: Any = None) -> None:
        async with mcp_client.open_http(self.server) as session:
            with around or nullcontext():
                for _ in range(times):
                    result = await session.call_tool("add", {"a": 1, "b": 2})
                    assert mcp_client.structured(result)["status"] == "circuit_open"
                    each()
        assert self.server.hits == 5


@pytest.fixture
def dead(patched_tools: Registry, signals: Signals) -> Iterator[Dead]:
    with HttpServer() as server:
        made = Dead(server, patched_tools)
        signals.forget()
        yield made


def merged(told: list[dict[str, Any]]) -> list[int]:
    return [attributes["otel_breaker.merged"] for attributes in told]


@pytest.mark.parametrize("around", ["nothing", "a recording span"])
def test_20_000_refused_mcp_calls_say_little(
    dead: Dead, around: str, signals: Signals, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "otel_breaker")
    caplog.clear()
    span = signals.tracer.start_as_current_span("agent") if around == "a recording span" else nullcontext()
    asyncio.run(dead.refuse(CALLS, lambda: manual_clock.advance(TICK), span))
    assert dead.circuit.stats.circuit_open == CALLS
    assert [record.getMessage() for record in caplog.records if record.name.startswith("otel_breaker")] == []
    logs = [told for name, _, told in signals.plain_logs if name == "otel_breaker.call.rejected"]
    assert len(signals.plain_logs) == len(logs)
    assert merged(logs) == TOLD
    if around == "nothing":
        own = [one for one in signals.plain_spans if one["name"] == f"otel_breaker {dead.server.name}"]
        assert merged([one["attributes"] for one in own]) == TOLD
        assert [[name for name, _ in one["events"]] for one in own] == [["otel_breaker.call.rejected"]] * 20
    else:
        (agent,) = [one for one in signals.plain_spans if one["name"] == "agent"]
        assert [name for name, _ in agent["events"]] == ["otel_breaker.call.rejected"] * 32
        assert agent["attributes"] == {"otel_breaker.events.dropped": CALLS - 32}


@pytest.mark.timeout(300)
def test_20_000_refused_mcp_calls_take_no_memory(dead: Dead, signals: Signals, manual_clock: ManualClock) -> None:
    warm = 2_000
    held: list[int] = []
    calls = 0

    def each() -> None:
        nonlocal calls
        calls += 1
        manual_clock.advance(TICK)
        if calls in (warm, warm + CALLS):
            signals.forget()  # those are the exporters' own
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        asyncio.run(dead.refuse(warm + CALLS, each))
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < FLAT


# --- 5,000 owners -----------------------------------------------------------------------------------------------------

FIRST = 1_200
"""So many owners later, the caches of 1,024 entries are full."""
PERIOD = 4096
"""So many owners later, the bounded memories of the settings and of the tools are as full as they were."""
CIRCUITS = 100
NAMES = 200


def by_name(number: int) -> None:
    otel_breaker.guard(tool=f"search {number}")(dict)()


def by_factory(number: int) -> None:
    otel_breaker.guard(tool="search")(dict)()


def by_hand(number: int) -> None:
    Circuit(f"search {number}").acquire().success()


def langchain_by_name(number: int) -> None:
    langchain_tool(f"search {number}")


def langchain_by_factory(number: int) -> None:
    langchain_tool("search")


def langchain_tool(name: str) -> None:
    assert Search(name=name).run({}) == "found"


class Search(BaseTool):
    description: str = "Search."

    def _run(self) -> str:
        return "found"


class Session:
    """As much of a session as the guard looks at; each has streams of its own."""

    def __init__(self, url: str) -> None:
        self._write_stream, self._request_id = Stream(), 0
        _mcp_link.attach(self._write_stream, _mcp_link.for_url("http", url))

    async def call_tool(self, name: str) -> Any:
        async def answer(name: str) -> Any:
            return SimpleNamespace(is_error=False, isError=False)

        return await mcp.call_tool(answer, self, (name,), {})


class Stream: ...


def mcp_servers(number: int) -> None:
    drive(Session(f"http://host-{number}.test/mcp").call_tool("search"))


def mcp_servers_of_one_gateway(number: int) -> None:
    drive(Session(f"http://gateway.test/{number}/mcp").call_tool("search"))


def mcp_tools(number: int) -> None:
    """A model that makes up names of tools, in a session that lasts."""
    drive(_SESSION.setdefault("one", Session("http://host.test/mcp")).call_tool(f"search {number}"))


_SESSION: dict[str, Session] = {}


def drive(coroutine: Any) -> Any:
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    return stop.value.value


def blocks() -> int:
    """What the process holds."""
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.parametrize(
    ("make", "scope", "circuits", "names", "tools"),
    [
        (by_name, "dependency", CIRCUITS, NAMES + 1, NAMES + 100),
        (by_name, "instance", 0, NAMES + 1, NAMES + 100),
        (by_factory, "dependency", 1, 1, 1),
        (by_factory, "instance", 0, 1, 1),
        (by_hand, "dependency", 0, NAMES + 1, 0),
        (langchain_by_name, "dependency", CIRCUITS, NAMES + 1, NAMES + 100),
        (langchain_by_name, "instance", 0, NAMES + 1, NAMES + 100),
        (langchain_by_factory, "dependency", 1, 1, 1),
        (langchain_by_factory, "instance", 0, 1, 1),
        (mcp_servers, "dependency", CIRCUITS, NAMES + 1, NAMES + 1),
        (mcp_servers, "instance", CIRCUITS, NAMES + 1, NAMES + 1),
        (mcp_servers_of_one_gateway, "dependency", CIRCUITS, 2, 2),
        (mcp_tools, "dependency", CIRCUITS, NAMES + 1, NAMES + 199),
    ],
)  # fmt: skip
def test_5_000_short_lived_owners_are_bounded_B74(
    make: Callable[[int], None],
    scope: str,
    circuits: int,
    names: int,
    tools: int,
    signals: Signals,
    patched_tools: Registry,
    configure: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Agents that make their tools and sessions anew for each conversation."""
    configure(scope=scope, max_circuits=CIRCUITS)
    emit.configure("none", "never")  # what the exporters in memory keep is theirs
    _SESSION.clear()

    def run(first: int, last: int) -> int:
        for number in range(first, last):
            make(number)
        return blocks()

    before = run(0, FIRST)
    grown = run(FIRST, FIRST + PERIOD) - before
    assert grown < 500  # one object kept for each eighth owner
    assert len(patched_tools) == circuits
    assert len(patched_tools.names()) == names
    found = {name.removeprefix("otel_breaker."): len(signals.series(name)) for name in signals.collect()}
    each = {"admissions": 8, "outcomes": 7, "transitions": 4, "status": 5}
    each |= dict.fromkeys(
        ("cooldowns_elapsed", "awaiting_probe", "cooldown.remaining", "open.elapsed", "time_saved",
         "credentials.revoked", "credentials.paused", "credentials.throttled"), 1,
    )  # fmt: skip
    expected = {name: number * names for name, number in each.items()} | {"circuits": 1, "store.errors": 1}
    assert found == expected | ({"tools": tools} if tools else {})
    said = [record.getMessage() for record in caplog.records if record.name == "otel_breaker"]
    assert said == ["more than 200 circuit names; further ones are counted as _other"] * (names > NAMES)
