"""MCP as programs use it: names imported before and after, a client of their own, groups of sessions, both lines."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest

from otel_breaker._registry import Registry
from tests.support.counts import names
from tests.support.mcp_client import LINE, http_function, is_error, open_http, over_http, seconds, structured
from tests.support.mcp_process import HttpServer, StdioServer
from tests.support.mcp_told import told_of
from tests.support.python import last_json, python

SUM = {"a": 1, "b": 2}

PROGRAM = """
import asyncio, json, sys
{before}
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import {http} as over_http
{after}

OPENED = {{
    "stdio": lambda: stdio_client(StdioServerParameters(command=sys.executable, args={args!r})),
    "http": lambda: over_http({url!r}),
    "sse": lambda: sse_client({url!r}),
}}

async def main():
    async with OPENED[{kind!r}]() as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        for _ in range(6):
            result = await session.call_tool("toolerr", {{}})
    told = json.loads(result.content[0].text)
    from otel_breaker import registry
    print(json.dumps([told["status"], sorted(circuit.name for circuit in registry())]))

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["variable", "instrument first", "instrument late"])
@pytest.mark.parametrize("kind", ["stdio", "http", "sse"])
def test_a_program_that_takes_everything_by_name_B07(kind: str, how: str, request: pytest.FixtureRequest) -> None:
    """Late, the functions that open a session are the program's own already: its calls are guarded all the same."""
    server: Any = request.getfixturevalue(f"mcp_{kind}")
    turn_on = "import otel_breaker; assert otel_breaker.instrument()"
    code = PROGRAM.format(
        before=turn_on if how == "instrument first" else "",
        after=turn_on if how == "instrument late" else "",
        args=server.args if kind == "stdio" else [],
        url="" if kind == "stdio" else server.url,
        kind=kind,
        http=http_function(),
    )
    variables = {"OTEL_BREAKER_ENABLED": "true"} if how == "variable" else {}
    status, circuits = last_json(python(code, **variables))
    assert status == "circuit_open"
    assert server.hits == 5
    name = server.name
    if how == "instrument late" and kind != "http":
        name = "mcp:faulty"  # no transport was seen: what the server calls itself
    assert {name, f"{name}/toolerr"} <= set(circuits)
    assert (f"{name}#connect" in circuits) is (how != "instrument late")


def test_the_clients_own_requests_are_not_the_transports(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    """One HTTP client for both: it stays as it was, and what the program asks of it is guarded as ever."""
    from mcp import ClientSession

    library = importlib.import_module("httpx2" if LINE == 2 else "httpx")
    host = f"127.0.0.1:{mcp_http.port}"

    async def run() -> None:
        async with library.AsyncClient() as client:
            before = dict(vars(client))
            async with (
                over_http(mcp_http.url, client) as streams,
                ClientSession(streams[0], streams[1]) as session,
            ):
                await session.initialize()
                await session.call_tool("add", SUM)
                assert host not in names(mcp_patched)
                assert (await client.get(f"http://{host}/connections")).status_code == 200
            assert vars(client).keys() == before.keys()
            assert client.event_hooks == {"request": [], "response": []}

    asyncio.run(run())
    assert told_of(mcp_patched, host) == ["success"]


def test_credentials_of_an_auth_flow_are_seen(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    """The header is made by the client's ``auth``, for each request."""
    from mcp import ClientSession

    library = importlib.import_module("httpx2" if LINE == 2 else "httpx")

    async def call(user: str) -> Any:
        async with (
            library.AsyncClient(auth=(user, "S3CRET")) as client,
            over_http(mcp_http.url, client) as streams,
            ClientSession(streams[0], streams[1]) as session,
        ):
            await session.initialize()
            return await session.call_tool("add", SUM)

    async def run() -> None:
        assert not is_error(await call("one"))
        mcp_http.fault("s401", times=1)
        with pytest.raises((Exception, asyncio.CancelledError)):
            await call("one")
        assert structured(await call("one"))["status"] == "credential_paused"
        assert not is_error(await call("two"))

    asyncio.run(run())
    assert mcp_http.hits == 3


def test_a_group_of_sessions(mcp_patched: Registry, mcp_stdio: StdioServer) -> None:
    from mcp import StdioServerParameters
    from mcp.client import session_group

    async def run() -> None:
        async with session_group.ClientSessionGroup(component_name_hook=lambda name, _: f"mine-{name}") as group:
            parameters = StdioServerParameters(command=mcp_stdio.command, args=mcp_stdio.args)
            await group.connect_to_server(parameters)
            for _ in range(5):
                assert is_error(await group.call_tool("mine-toolerr", {}))
            assert structured(await group.call_tool("mine-toolerr", {}))["tool"] == "toolerr"

    asyncio.run(run())
    assert mcp_stdio.hits == 5
    assert told_of(mcp_patched, f"{mcp_stdio.name}#connect") == ["success"]


def test_the_timeout_of_the_session_is_the_calls(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    """And with it the lease of a probe."""
    from mcp import ClientSession

    async def run() -> None:
        async with (
            over_http(mcp_http.url) as streams,
            ClientSession(streams[0], streams[1], read_timeout_seconds=seconds(100)) as session,
        ):
            await session.initialize()
            for _ in range(5):
                await session.call_tool("toolerr", {})
            mcp_patched.clock.advance(30)  # type: ignore[union-attr]
            mcp_http.fault("hold")
            probe = asyncio.create_task(session.call_tool("toolerr", {}))
            while mcp_http.hits < 6:
                await asyncio.sleep(0.005)
            body = structured(await session.call_tool("toolerr", {}))
            assert (body["status"], body["retry_after_ms"]) == ("probe_in_flight", 100_000)
            mcp_http.release()
            assert is_error(await probe)

    asyncio.run(run())


def test_a_hundred_parallel_calls_over_one_session(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    async def run() -> None:
        async with open_http(mcp_http) as session:
            calls = (session.call_tool("add", {"a": number, "b": 1}) for number in range(100))
            results = await asyncio.gather(*calls)
        assert [structured(result)["result"] for result in results] == list(range(1, 101))

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_http.name}/add") == ["success"] * 100
    assert told_of(mcp_patched, mcp_http.name) == ["success"] * 100


def test_two_loops_one_after_another_share_circuits(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    async def run(times: int) -> Any:
        async with open_http(mcp_http) as session:
            for _ in range(times):
                result = await session.call_tool("toolerr", {})
            return structured(result)

    assert asyncio.run(run(3)) is None
    assert asyncio.run(run(2)) is None
    assert asyncio.run(run(1))["status"] == "circuit_open"
    assert mcp_http.hits == 5
