"""Circuits of MCP servers and tools: opening, refusing, probing, closing, over every transport and on both lines."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

import pytest

import otel_breaker
from otel_breaker import CircuitOpenError, Transition, settings
from otel_breaker._registry import Registry
from otel_breaker.instrumentations import _patch
from otel_breaker.testing import ManualClock
from tests.support.circuits import decisions
from tests.support.counts import names
from tests.support.mcp_client import (
    LINE,
    Opening,
    Session,
    is_error,
    once,
    open_client,
    open_http,
    open_memory,
    open_sse,
    open_stdio,
    seconds,
    structured,
    text,
)
from tests.support.mcp_process import HttpServer, StdioServer, wait_until
from tests.support.mcp_told import told_of
from tests.support.unawaited import none_dropped

SUM = {"a": 1, "b": 2}

WAYS: dict[str, Callable[[Any], Opening]] = {
    "streamable HTTP": open_http,
    "JSON": open_http,
    "SSE": open_sse,
    "stdio": open_stdio,
    "client over HTTP": open_client,
    "client over stdio": open_client,
}
FIXTURES = {"JSON": "mcp_json", "SSE": "mcp_sse", "stdio": "mcp_stdio", "client over stdio": "mcp_stdio"}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[Callable[[Any], Opening], Any]:
    """Each way to open a session, with its server."""
    return WAYS[request.param], request.getfixturevalue(FIXTURES.get(request.param, "mcp_http"))


async def fails(session: Session, times: int = 1, tool: str = "toolerr", **arguments: Any) -> None:
    """That many calls whose result is an error of the tool's."""
    for _ in range(times):
        assert is_error(await session.call_tool(tool, arguments))


async def breaks(server: HttpServer, times: int, mode: str = "s503", headers: dict[str, str] | None = None) -> None:
    """That many sessions whose one call fails below the tool."""
    server.fault(mode, times=times)
    for _ in range(times):
        seen = await once(open_http(server, headers), "add", SUM)
        assert "isError" not in seen.call


def refused(result: Any, tool: str, **expected: Any) -> dict[str, Any]:
    """The five fields of an answer that came back as a result."""
    assert is_error(result)
    body: dict[str, Any] = structured(result)
    assert list(body) == ["status", "tool", "reason", "retry_after_ms", "alternatives"]
    assert json.loads(text(result)) == body
    assert len(result.content) == 1
    assert {"tool": tool, **expected}.items() <= body.items()
    return body


# --- a tool's circuit -------------------------------------------------------------------------------------------------


def test_the_call_after_the_threshold_sends_nothing(
    way: tuple[Callable[[Any], Opening], Any], mcp_patched: Registry, manual_clock: ManualClock
) -> None:
    opened, server = way

    async def run() -> None:
        async with opened(server) as session:
            await fails(session, 5)
            assert server.hits == 5
            result = await session.call_tool("toolerr", {})
            body = refused(result, "toolerr", status="circuit_open", retry_after_ms=30_000, alternatives=[])
            assert body["reason"].startswith(f"{server.name}/toolerr ")
            assert server.hits == 5
            # The server is well: its other tools work.
            assert not is_error(await session.call_tool("add", SUM))
            manual_clock.advance(30)
            await fails(session)  # the probe
            assert server.hits == 7
            assert refused(await session.call_tool("toolerr", {}), "toolerr")["retry_after_ms"] == 60_000

    asyncio.run(run())
    assert told_of(mcp_patched, f"{server.name}/toolerr") == ["failure:unclassified"] * 6
    # The two that its tool's circuit refused say nothing about the server.
    assert told_of(mcp_patched, server.name) == ["success"] * 7 + ["neutral"] * 2
    assert told_of(mcp_patched, f"{server.name}#connect") == ["success"]
    assert decisions(mcp_patched.get(f"{server.name}/toolerr")) == {"admitted": 5, "probe": 1, "circuit_open": 2}
    assert names(mcp_patched) == sorted(
        [server.name, f"{server.name}#connect", f"{server.name}/add", f"{server.name}/toolerr"]
    )


def test_two_sessions_share_the_circuits_of_their_server(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    async def run() -> None:
        async with open_http(mcp_http) as one, open_http(mcp_http) as two:
            await fails(one, 3)
            await fails(two, 2)
            refused(await one.call_tool("toolerr", {}), "toolerr")
            refused(await two.call_tool("toolerr", {}), "toolerr")
        async with open_http(mcp_http) as three:
            refused(await three.call_tool("toolerr", {}), "toolerr")

    asyncio.run(run())
    assert mcp_http.hits == 5


def test_in_memory_it_opens_too(mcp_patched: Registry) -> None:
    async def run() -> None:
        async with open_memory("here", legacy=True) as session:
            await fails(session, 5)
            body = refused(await session.call_tool("toolerr", {}), "toolerr")
            assert body["reason"].startswith("mcp:here/toolerr ")

    asyncio.run(run())
    assert decisions(mcp_patched.get("mcp:here/toolerr")) == {"admitted": 5, "circuit_open": 1}


def test_ten_rejected_calls_count_on_the_tool_B13(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    settings.use(settings.load(failure_threshold=10))

    async def run() -> dict[str, Any]:
        async with open_http(mcp_http) as session:
            await fails(session, 10)
            return refused(await session.call_tool("toolerr", {}), "toolerr")

    reason = asyncio.run(run())["reason"]
    assert told_of(mcp_patched, f"{mcp_http.name}/toolerr") == ["failure:unclassified"] * 10
    assert told_of(mcp_patched, mcp_http.name) == ["success"] * 10 + ["neutral"]
    assert "rejecting calls" in reason
    assert "unreachable" not in reason
    assert "down" not in reason


@pytest.mark.parametrize("where", ["defaults", "circuit"])
def test_ten_rejected_calls_need_not_count_B13(where: str, mcp_patched: Registry, mcp_http: HttpServer) -> None:
    neutral = {"unclassified": "neutral"}
    chosen = {
        "defaults": {"defaults": neutral},
        "circuit": {"circuits": [{"match": {"tool": "toolerr"}, **neutral}]},
    }[where]
    settings.use(settings.load(**chosen))

    async def run() -> None:
        async with open_http(mcp_http) as session:
            await fails(session, 10)
            await fails(session, 1)

    asyncio.run(run())
    assert mcp_http.hits == 11
    assert told_of(mcp_patched, f"{mcp_http.name}/toolerr") == ["neutral"] * 11
    assert told_of(mcp_patched, mcp_http.name) == ["success"] * 11


# --- a server's circuit -----------------------------------------------------------------------------------------------


def test_a_server_that_fails_is_not_called_again(
    mcp_patched: Registry, manual_clock: ManualClock, mcp_http: HttpServer, transitions: list[Transition]
) -> None:
    async def run() -> None:
        await breaks(mcp_http, 5)
        mcp_http.heal()
        async with open_http(mcp_http) as session:
            for tool, arguments in (("add", SUM), ("toolerr", {})):  # whichever tool: it is the server
                body = refused(await session.call_tool(tool, arguments), tool, status="circuit_open")
                assert body["reason"].startswith(f"{mcp_http.name} failing (5 consecutive failures, last: server error")
            assert mcp_http.hits == 5
            manual_clock.advance(30)
            assert not is_error(await session.call_tool("add", SUM))
            assert not is_error(await session.call_tool("add", SUM))

    asyncio.run(run())
    assert mcp_http.hits == 7
    assert [(one.name, one.previous_state, one.state) for one in transitions] == [
        (mcp_http.name, "closed", "open"),
        (mcp_http.name, "open", "half_open"),
        (mcp_http.name, "half_open", "closed"),
    ]
    assert decisions(mcp_patched.get(mcp_http.name)) == {"admitted": 6, "circuit_open": 2, "probe": 1}


@pytest.mark.parametrize("level", ["tool", "server"])
def test_of_five_parallel_calls_only_the_probe_reaches_the_server(
    level: str, mcp_patched: Registry, manual_clock: ManualClock, mcp_http: HttpServer
) -> None:
    name = mcp_http.name if level == "server" else f"{mcp_http.name}/add"

    async def run() -> None:
        if level == "server":
            await breaks(mcp_http, 5)
        async with open_http(mcp_http) as session:
            if level == "tool":
                mcp_http.fault("rpc-32603", times=5)
                for _ in range(5):
                    with pytest.raises(Exception, match="no"):
                        await session.call_tool("add", SUM)
            assert mcp_patched.get(name).snapshot().state == "open"
            manual_clock.advance(30)
            mcp_http.heal()
            mcp_http.forget()
            mcp_http.fault("hold")
            calls = [asyncio.create_task(session.call_tool("add", SUM)) for _ in range(5)]
            first = {call for call in calls if call.done()}
            while len(first) < 4:
                done, _ = await asyncio.wait(set(calls) - first, timeout=20, return_when=asyncio.FIRST_COMPLETED)
                assert done
                first |= done
            while mcp_http.hits < 1:
                await asyncio.sleep(0.005)
            for call in first:
                refused(call.result(), "add", status="probe_in_flight", retry_after_ms=30_000)
            mcp_http.release()
            (probe,) = set(calls) - first
            assert not is_error(await probe)
            assert mcp_http.hits == 1
            assert mcp_patched.get(name).snapshot().state == "closed"
            assert not is_error(await session.call_tool("add", SUM))

    asyncio.run(run())
    assert decisions(mcp_patched.get(name))["probe_in_flight"] == 4


def test_a_retry_after_sets_the_cooldown(
    mcp_patched: Registry, manual_clock: ManualClock, mcp_http: HttpServer
) -> None:
    async def run() -> None:
        await breaks(mcp_http, 5, "s503_ra77")
        async with open_http(mcp_http) as session:
            refused(await session.call_tool("add", SUM), "add", retry_after_ms=77_000)
            manual_clock.advance(76)
            refused(await session.call_tool("add", SUM), "add", retry_after_ms=1_000)
            manual_clock.advance(1)
            assert not is_error(await session.call_tool("add", SUM))

    asyncio.run(run())


def test_three_429_without_a_credential_open_the_server(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    async def run() -> None:
        await breaks(mcp_http, 3, "s429_ra120")
        async with open_http(mcp_http) as session:
            body = refused(await session.call_tool("add", SUM), "add", status="circuit_open", retry_after_ms=120_000)
            assert body["reason"].startswith(f"{mcp_http.name} limiting our rate")

    asyncio.run(run())
    assert mcp_http.hits == 3
    assert told_of(mcp_patched, mcp_http.name) == ["throttled"] * 3


def test_a_429_pauses_only_its_own_credential(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    one, two = ({"Authorization": f"Bearer {who}"} for who in ("one", "two"))

    async def run() -> None:
        await breaks(mcp_http, 3, "s429_ra120", headers=one)
        async with open_http(mcp_http, two) as session:
            assert not is_error(await session.call_tool("add", SUM))
        async with open_http(mcp_http, one) as session:
            refused(await session.call_tool("add", SUM), "add", status="circuit_open", retry_after_ms=120_000)
        async with open_http(mcp_http) as session:
            assert not is_error(await session.call_tool("add", SUM))

    asyncio.run(run())
    assert mcp_http.hits == 5
    assert mcp_patched.get(mcp_http.name).snapshot().state == "closed"


def test_a_credential_that_worked_and_is_refused_is_revoked(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    mine = {"Authorization": "Bearer S3CRET"}

    async def run() -> None:
        async with open_http(mcp_http, mine) as session:
            assert not is_error(await session.call_tool("add", SUM))
        await breaks(mcp_http, 1, "s401", headers=mine)
        async with open_http(mcp_http, mine) as session:
            body = refused(await session.call_tool("add", SUM), "add", status="credential_paused")
            assert "S3CRET" not in str(body)
        async with open_http(mcp_http, {"Authorization": "Bearer other"}) as session:
            assert not is_error(await session.call_tool("add", SUM))

    asyncio.run(run())
    assert mcp_http.hits == 3
    assert mcp_patched.get(mcp_http.name).stats.revoked == 1


# --- what a refusal looks like ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["tool", "server"])
def test_a_refusal_can_be_raised(level: str, mcp_patched: Registry, mcp_http: HttpServer) -> None:
    settings.use(settings.load(on_open="raise"))
    exceptions: Any = __import__("mcp.shared.exceptions", fromlist=["x"])
    base = exceptions.MCPError if LINE == 2 else exceptions.McpError

    async def run() -> None:
        if level == "server":
            await breaks(mcp_http, 5)
        async with open_http(mcp_http) as session:
            if level == "tool":
                await fails(session, 5)
            with pytest.raises(CircuitOpenError) as caught:
                await session.call_tool("toolerr", {})
            assert isinstance(caught.value, base)
            assert json.loads(str(caught.value)) == caught.value.answer()
            assert caught.value.answer()["tool"] == "toolerr"
            assert isinstance(caught.value.error.code, int)  # type: ignore[attr-defined]
            assert caught.value.retry_after == 30

    asyncio.run(run())
    assert mcp_http.hits == 5


def test_alternatives_and_display_name_are_told(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    row = {"match": {"tool": "toolerr"}, "display_name": "the tool", "alternatives": ["do_it_by_hand"]}
    settings.use(settings.load(circuits=[row]))

    async def run() -> None:
        async with open_http(mcp_http) as session:
            await fails(session, 5)
            body = refused(await session.call_tool("toolerr", {}), "toolerr", alternatives=["do_it_by_hand"])
            assert body["reason"].startswith("the tool ")

    asyncio.run(run())


@pytest.mark.parametrize("how", ["positional", "keyword", "keywords"])
def test_however_it_is_called(how: str, mcp_patched: Registry, mcp_http: HttpServer) -> None:
    async def run() -> None:
        async with open_http(mcp_http) as session:
            calls: dict[str, Callable[[], Any]] = {
                "positional": lambda: session.call_tool("add", SUM, seconds(9)),
                "keyword": lambda: session.call_tool("add", arguments=SUM, read_timeout_seconds=seconds(9)),
                "keywords": lambda: session.call_tool(name="add", arguments=SUM),
            }
            assert text(await calls[how]()) == "3"

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_http.name}/add") == ["success"]


def test_observe_counts_and_lets_through(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    settings.use(settings.load(mode="observe"))

    async def run() -> None:
        async with open_http(mcp_http) as session:
            await fails(session, 7)

    asyncio.run(run())
    assert mcp_http.hits == 7
    assert mcp_patched.get(f"{mcp_http.name}/toolerr").stats.would_reject == 2


def test_switched_off_it_calls_straight_through(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    async def run() -> None:
        async with open_http(mcp_http) as session:
            await session.call_tool("add", SUM)
            _patch.remove()
            await session.call_tool("add", SUM)
        async with open_http(mcp_http) as session:
            await session.call_tool("add", SUM)

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_http.name}/add") == ["success"]
    assert mcp_http.hits == 3


@pytest.mark.parametrize("pattern", ["mcp:127.0.0.1:{port}", "127.0.0.1:{port}", "127.0.0.1:*"])
def test_an_excluded_server_is_left_alone(pattern: str, mcp_patched: Registry, mcp_http: HttpServer) -> None:
    settings.use(settings.load(exclude=[pattern.format(port=mcp_http.port)]))

    async def run() -> None:
        async with open_http(mcp_http) as session:
            await fails(session, 7)

    asyncio.run(run())
    assert mcp_http.hits == 7
    assert names(mcp_patched) == []


def test_suppressed_calls_are_not_guarded(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    async def run() -> None:
        with suppress_instrumentation():
            async with open_http(mcp_http) as session:
                await fails(session, 7)

    asyncio.run(run())
    assert mcp_http.hits == 7
    assert names(mcp_patched) == []


def test_a_tool_around_an_mcp_call_is_not_charged_for_it(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    """An agent's own function that hands on to the server: one failure, one charge."""

    @otel_breaker.guard(tool="outer")
    async def outer(session: Session) -> Any:
        return await session.call_tool("toolerr", {})

    async def run() -> None:
        async with open_http(mcp_http) as session:
            for _ in range(5):
                assert is_error(await outer(session))
            refused(await outer(session), "toolerr")

    asyncio.run(run())
    assert not [outcome for outcome in told_of(mcp_patched, "outer") if outcome.startswith("failure")]
    assert told_of(mcp_patched, f"{mcp_http.name}/toolerr") == ["failure:unclassified"] * 5
    assert mcp_http.hits == 5


def test_a_tool_that_is_mapped_to_a_dependency_shares_its_circuit(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    settings.use(settings.load(circuits=[{"match": {"tool": "toolerr"}, "dependency": "api.example.com"}]))

    async def run() -> None:
        async with open_http(mcp_http) as session:
            await fails(session, 5)
            body = refused(await session.call_tool("toolerr", {}), "toolerr")
            assert body["reason"].startswith("api.example.com ")

    asyncio.run(run())
    assert mcp_patched.get("api.example.com").snapshot().state == "open"
    assert f"{mcp_http.name}/toolerr" not in names(mcp_patched)


@pytest.mark.parametrize(
    ("match", "circuit"),
    [
        ({"dependency": "mcp:127.0.0.1:*"}, "server"),
        ({"dependency": "mcp:127.0.0.1:*/add"}, "tool"),
        ({"tool": "add"}, "tool"),
    ],
)
def test_rules_of_the_settings_find_them(
    match: dict[str, str], circuit: str, mcp_patched: Registry, mcp_http: HttpServer
) -> None:
    settings.use(settings.load(circuits=[{"match": match, "failure_threshold": 2}]))

    async def run() -> None:
        async with open_http(mcp_http) as session:
            await session.call_tool("add", SUM)

    asyncio.run(run())
    thresholds = {one.name: one.policy.failure_threshold for one in mcp_patched}
    assert thresholds[mcp_http.name if circuit == "server" else f"{mcp_http.name}/add"] == 2
    assert thresholds[f"{mcp_http.name}/add" if circuit == "server" else mcp_http.name] == (
        2 if match == {"dependency": "mcp:127.0.0.1:*"} else 5
    )


# --- which circuit ----------------------------------------------------------------------------------------------------


def test_two_servers_of_one_name_are_two_circuits_B04_B39(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    """The same program, the same name at initialize, the same tools; one of them fails."""

    async def run() -> None:
        with HttpServer() as other:
            async with open_http(mcp_http) as one, open_http(other) as two:
                await fails(one, 5)
                refused(await one.call_tool("toolerr", {}), "toolerr")
                await fails(two, 1)
                assert (mcp_http.hits, other.hits) == (5, 1)
            states = {circuit.name: circuit.snapshot().state for circuit in mcp_patched}
            assert states[f"{mcp_http.name}/toolerr"] == "open"
            assert states[f"{other.name}/toolerr"] == "closed"

    asyncio.run(run())


def test_two_stdio_servers_of_one_program_are_two_circuits_of_one_name(mcp_patched: Registry) -> None:
    async def run() -> None:
        with StdioServer() as one, StdioServer() as two:
            async with open_stdio(one) as first, open_stdio(two) as second:
                await fails(first, 5)
                refused(await first.call_tool("toolerr", {}), "toolerr")
                await fails(second, 1)
                assert (one.hits, two.hits) == (5, 1)

    asyncio.run(run())
    tools = [circuit for circuit in mcp_patched if circuit.name == "mcp:mcp_server/toolerr"]
    assert sorted(circuit.snapshot().state for circuit in tools) == ["closed", "open"]
    assert told_of(mcp_patched, "mcp:mcp_server/toolerr") == ["failure:unclassified"] * 6


def test_the_host_of_the_server_has_no_circuit_of_its_own(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    """Although its requests go through httpx or httpx2, which are patched."""

    async def run() -> None:
        await breaks(mcp_http, 5)
        async with open_http(mcp_http) as session:
            await session.list_tools()

    asyncio.run(run())
    assert [name for name in names(mcp_patched) if not name.startswith("mcp:")] == []


def test_the_programs_own_requests_to_that_host_are_guarded_as_ever(
    mcp_patched: Registry, mcp_http: HttpServer
) -> None:
    library = __import__("httpx2" if LINE == 2 else "httpx")

    async def run() -> None:
        async with open_http(mcp_http) as session, library.AsyncClient() as client:
            await session.call_tool("add", SUM)
            await client.get(f"http://127.0.0.1:{mcp_http.port}/connections")

    asyncio.run(run())
    assert f"127.0.0.1:{mcp_http.port}" in names(mcp_patched)


# --- leaks ------------------------------------------------------------------------------------------------------------


def test_100_refusals_leave_nothing_behind_B33(mcp_patched: Registry) -> None:
    async def run(server: HttpServer) -> None:
        async with open_http(server) as session:
            await fails(session, 5)
            before = server.connections
            for _ in range(100):
                refused(await session.call_tool("toolerr", {}), "toolerr")
            for result in await asyncio.gather(*(session.call_tool("toolerr", {}) for _ in range(100))):
                refused(result, "toolerr")
            gc.collect()
            assert server.connections <= before
            assert server.hits == 5

    with none_dropped(), HttpServer() as server:
        asyncio.run(run(server))
        gc.collect()
        wait_until(lambda: server.connections == 0, "the end of the connections")


def test_refused_connections_leave_nothing_behind_B33(mcp_patched: Registry) -> None:
    async def run(server: HttpServer) -> None:
        for number in range(105):
            with pytest.raises(BaseException) as caught:  # noqa: PT011
                async with open_http(server):
                    pass
            assert isinstance(caught.value, CircuitOpenError) is (number >= 5)
        gc.collect()

    with none_dropped(), HttpServer() as server:
        server.fault("s503", on="initialize")
        asyncio.run(run(server))
        gc.collect()
        assert server.connects == 5
        wait_until(lambda: server.connections == 0, "the end of the connections")


def test_links_and_calls_are_forgotten(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    from otel_breaker.instrumentations import _mcp_link

    async def run() -> None:
        for _ in range(3):
            async with open_http(mcp_http) as session:
                await session.call_tool("add", SUM)
                await fails(session, 2)
                mcp_http.fault("rpc-32603", times=1)
                with pytest.raises(Exception, match="no"):
                    await session.call_tool("add", SUM)
                assert [link.waiting for link in _mcp_link._links.values() if link.waiting] == []

    asyncio.run(run())
    gc.collect()
    assert len(_mcp_link._links) == 0
