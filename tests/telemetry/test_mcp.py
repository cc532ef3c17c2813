"""MCP calls in every signal: on the caller's span, in logs and metrics, and nothing that must not leave the process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from otel_breaker import settings
from otel_breaker._registry import Registry, registry
from otel_breaker.core.clock import ManualClock
from otel_breaker.instrumentations import _patch
from tests.support import mcp_client
from tests.support.mcp_client import is_error, once, open_http, open_stdio, structured
from tests.support.mcp_process import DeadCommand, HttpServer, StdioServer
from tests.telemetry.signals import Signals

SUM = {"a": 1, "b": 2}
Told = tuple[str, dict[str, Any]]


@pytest.fixture
def mcp() -> Iterator[Registry]:
    """The SDK, patched; two failures open a circuit."""
    mcp_client.modules()
    settings.use(settings.load(failure_threshold=2))
    _patch.enable()
    yield registry()
    _patch.remove()


@pytest.fixture(scope="module")
def running() -> Iterator[HttpServer]:
    with HttpServer() as server:
        yield server


@pytest.fixture
def server(running: HttpServer) -> HttpServer:
    running.heal()
    running.forget()
    return running


def ours(signals: Signals) -> list[dict[str, Any]]:
    """The spans that carry something of ours; SDK 2.x makes spans too."""
    return [span for span in signals.plain_spans if span["events"] or span["name"].startswith("otel_breaker ")]


def base(server: HttpServer, tool: str = "", part: str = "") -> dict[str, Any]:
    """What every event of one circuit carries: of the server's, or of a tool's."""
    told = {"otel_breaker.name": f"{server.name}{part}"}
    if tool:
        told["gen_ai.tool.name"] = tool
    if not part.startswith("/"):
        told["server.address"] = "127.0.0.1"
    return told


def admitted(told: dict[str, Any]) -> Told:
    return "otel_breaker.call.admitted", {**told, "otel_breaker.state": "closed", "otel_breaker.decision": "admitted"}


def moved(told: dict[str, Any], previous: str, state: str, reason: str, cooldown: float | None = None) -> Told:
    told = {**told, "otel_breaker.previous_state": previous, "otel_breaker.state": state, "otel_breaker.reason": reason}
    if cooldown is not None:
        told |= {"otel_breaker.cooldown.remaining": cooldown, "error.type": reason}
    return "otel_breaker.state.changed", told


def rejected(told: dict[str, Any], reason: str, left: float) -> Told:
    return "otel_breaker.call.rejected", {
        **told,
        "otel_breaker.state": "open",
        "otel_breaker.decision": "circuit_open",
        "otel_breaker.cooldown.remaining": left,
        "otel_breaker.reason": reason,
        "error.type": reason,
    }


def probe(told: dict[str, Any], outcome: str, state: str) -> tuple[Told, Told]:
    return (
        ("otel_breaker.probe.started", {**told, "otel_breaker.state": "half_open", "otel_breaker.decision": "probe"}),
        ("otel_breaker.probe.finished", {**told, "otel_breaker.state": state, "otel_breaker.outcome": outcome}),
    )


def test_a_tools_circuit_on_the_callers_span(
    mcp: Registry, signals: Signals, clock: ManualClock, server: HttpServer
) -> None:
    async def run() -> None:
        async with open_http(server) as session:
            await session.list_tools()
            with signals.tracer.start_as_current_span("turn"):
                for _ in range(2):
                    await session.call_tool("toolerr", {})
                assert structured(await session.call_tool("toolerr", {}))["tool"] == "toolerr"
                clock.advance(30)
                server.fault("rpc-32602")  # a neutral probe
                with pytest.raises(Exception, match="no"):
                    await session.call_tool("toolerr", {})

    asyncio.run(run())
    (turn,) = [span for span in ours(signals) if span["name"] == "turn"]
    above, tool = base(server, "toolerr"), base(server, "toolerr", "/toolerr")
    began, ended = probe(tool, "neutral", "half_open")
    assert turn["events"] == [
        admitted(above),
        admitted(tool),
        admitted(above),
        admitted(tool),
        moved(tool, "closed", "open", "unclassified", 30.0),
        admitted(above),
        rejected(tool, "unclassified", 30.0),
        admitted(above),
        moved(tool, "open", "half_open", "cooldown_elapsed"),
        began,
        ended,
    ]
    assert [(name, attributes["otel_breaker.name"]) for name, _, attributes in signals.plain_logs] == [
        ("otel_breaker.state.changed", f"{server.name}/toolerr"),
        ("otel_breaker.call.rejected", f"{server.name}/toolerr"),
        ("otel_breaker.state.changed", f"{server.name}/toolerr"),
    ]


def test_a_servers_circuit_on_the_callers_span(
    mcp: Registry, signals: Signals, clock: ManualClock, server: HttpServer
) -> None:
    async def run() -> None:
        server.fault("s503", times=2)
        for _ in range(2):
            await once(open_http(server), "add", SUM)
        async with open_http(server) as session:
            await session.list_tools()
            with signals.tracer.start_as_current_span("turn"):
                assert is_error(await session.call_tool("add", SUM))
                clock.advance(30)
                assert not is_error(await session.call_tool("add", SUM))

    asyncio.run(run())
    (turn,) = [span for span in ours(signals) if span["name"] == "turn"]
    above, tool = base(server, "add"), base(server, "add", "/add")
    began, ended = probe(above, "success", "closed")
    assert turn["events"] == [
        rejected(above, "server_error", 30.0),
        moved(above, "open", "half_open", "cooldown_elapsed"),
        began,
        admitted(tool),
        moved(above, "half_open", "closed", "probe_succeeded"),
        ended,
    ]


def test_connecting_is_told_too(mcp: Registry, signals: Signals, server: HttpServer) -> None:
    async def run() -> None:
        with signals.tracer.start_as_current_span("start"):
            async with open_http(server):
                pass

    asyncio.run(run())
    (start,) = [span for span in ours(signals) if span["name"] == "start"]
    assert start["events"] == [admitted(base(server, part="#connect"))]


def test_a_process_has_no_address(mcp: Registry, signals: Signals) -> None:
    async def run() -> None:
        with StdioServer() as process, signals.tracer.start_as_current_span("turn"):
            async with open_stdio(process) as session:
                await session.call_tool("add", SUM)

    asyncio.run(run())
    (turn,) = [span for span in ours(signals) if span["name"] == "turn"]
    assert [told["otel_breaker.name"] for _, told in turn["events"]] == [
        "mcp:mcp_server#connect",
        "mcp:mcp_server",
        "mcp:mcp_server/add",
    ]
    assert not any("server.address" in told for _, told in turn["events"])


def test_without_a_current_span_a_call_has_one_of_ours(mcp: Registry, signals: Signals, server: HttpServer) -> None:
    async def run() -> None:
        async with open_http(server) as session:
            await session.call_tool("add", SUM)

    asyncio.run(run())
    connecting, call = ours(signals)
    whole = {"otel_breaker.decision": "admitted", "otel_breaker.outcome": "success"}
    assert connecting["name"] == f"otel_breaker {server.name}#connect"
    assert connecting["attributes"] == base(server, part="#connect") | whole
    assert connecting["events"] == [admitted(base(server, part="#connect"))]
    assert call["name"] == f"otel_breaker {server.name}"
    assert call["attributes"] == base(server, "add") | whole
    assert call["events"] == [admitted(base(server, "add")), admitted(base(server, "add", "/add"))]
    assert (call["kind"], call["root"], call["status"]) == ("INTERNAL", True, "UNSET")


def test_metrics(mcp: Registry, signals: Signals, server: HttpServer) -> None:
    async def run() -> None:
        async with open_http(server) as session:
            await session.call_tool("add", SUM)
            for _ in range(3):
                await session.call_tool("toolerr", {})

    asyncio.run(run())
    name = server.name
    assert signals.series("otel_breaker.tools") == {
        ("add", name): 1,
        ("add", f"{name}/add"): 1,
        ("toolerr", name): 1,
        ("toolerr", f"{name}/toolerr"): 1,
    }
    outcomes = {key: value for key, value in signals.series("otel_breaker.outcomes").items() if value}
    assert outcomes == {
        (name, "success"): 3,
        (name, "neutral"): 1,
        (f"{name}#connect", "success"): 1,
        (f"{name}/add", "success"): 1,
        (f"{name}/toolerr", "failure"): 2,
    }
    assert signals.series("otel_breaker.failures") == {("unclassified", f"{name}/toolerr"): 2}
    assert signals.series("otel_breaker.circuits") == {(): 4}


@pytest.mark.parametrize("way", ["http", "stdio", "dead"])
def test_nothing_of_path_arguments_headers_or_environment_is_told_B122(
    way: str, mcp: Registry, signals: Signals, server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "otel_breaker")
    secret = "S3CRET"
    told: list[str] = []

    async def call(session: Any) -> None:
        await session.call_tool("add", {**SUM, "mark": secret})
        for _ in range(3):
            result = await session.call_tool("toolerr", {"text": secret})
        told.append(json.dumps(structured(result)))

    async def run() -> None:
        with contextlib.ExitStack() as until:
            if way == "http":
                url = f"{server.url}?key={secret}".replace("http://", f"http://user:{secret}@")
                async with open_http(server, {"Authorization": f"Bearer {secret}", "X-Key": secret}, url) as session:
                    await call(session)
            elif way == "stdio":
                process = until.enter_context(StdioServer())
                process.more, process.environment = [secret, f"--token={secret}"], {"TOKEN": secret}
                async with open_stdio(process) as session:
                    await call(session)
            else:
                dead = until.enter_context(DeadCommand())
                dead.more, dead.environment = [secret], {"TOKEN": secret}
                for _ in range(3):
                    try:
                        async with open_stdio(dead):
                            pass
                    except BaseException as error:
                        last = error
                told.extend((str(last), repr(last)))

    with signals.tracer.start_as_current_span("turn"):
        asyncio.run(run())
    told += [str(span["events"]) for span in ours(signals)]
    told += [str(one) for one in signals.plain_logs]
    told += [str(signals.series(name)) for name in signals.collect() if name != "otel_breaker.open.duration"]
    told += caplog.messages
    told += [f"{circuit.key!r} {circuit.key} {circuit!r} {circuit.snapshot()}" for circuit in mcp]
    everything = "\n".join(told)
    assert "circuit_open" in everything
    assert secret not in everything
    assert "/mcp" not in everything.replace("mcp:mcp_server", "")
    assert str(server.directory) not in everything
