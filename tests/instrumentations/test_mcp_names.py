"""What MCP servers are called: a session is tried, and the circuit of connecting looked at."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from otel_breaker._registry import Registry
from tests.support.counts import names
from tests.support.mcp_client import once, open_http, open_memory, shown
from tests.support.mcp_process import HttpServer

PROGRAMS = {
    "/opt/vendor/weather-server --stdio": "weather-server",
    "weather": "weather",
    "python weather.py": "weather",
    "python3.12 /srv/s3/weather.py --token TOKEN": "weather",
    "python -m weather.server": "weather.server",
    "python -u -m weather_server --port 1": "weather_server",
    "python -W ignore weather.py": "weather",
    "python -X dev -I weather.py": "weather",
    "python -c print('TOKEN')": "python",
    "node /srv/dist/weather.js": "weather",
    "node --require ./TOKEN.js weather.mjs": "weather",
    "node -e console.log('TOKEN')": "node",
    "npx -y @modelcontextprotocol/server-weather /home/TOKEN": "server-weather",
    "npx -y @modelcontextprotocol/server-weather@1.2.3": "server-weather",
    "npx --package @vendor/TOKEN weather": "weather",
    "npx --yes mcp-remote https://user:TOKEN@api.example.com/mcp?key=TOKEN": "mcp-remote",
    "npx --registry https://user:TOKEN@registry.example.com weather": "npx",
    "uvx mcp-server-weather --local-timezone=TOKEN": "mcp-server-weather",
    "uvx mcp-server-weather@latest": "mcp-server-weather",
    "uvx --from git+https://TOKEN@example.com/x weather": "weather",
    "uvx git+https://TOKEN@example.com/x": "uvx",
    "uv --directory /home/TOKEN/weather run weather.py": "weather",
    "uv run --with mcp weather.py": "weather",
    "uv tool run weather": "weather",
    "pipx run weather": "weather",
    "bunx weather": "weather",
    "deno run -A weather.ts": "weather",
    "docker run -i --rm -e TOKEN vendor/weather": "docker",
    "sh -c TOKEN=1": "sh",
}
"""A command line, and its server's name."""


def try_to_start(line: str) -> None:
    from mcp import StdioServerParameters
    from mcp.client import stdio

    command, *args = line.split(" ")
    parameters = StdioServerParameters(command=f"/nonexistent/{command.lstrip('/')}", args=args)

    async def run() -> None:
        with pytest.raises(FileNotFoundError):
            async with stdio.stdio_client(parameters):
                pass

    asyncio.run(run())


@pytest.mark.parametrize("line", PROGRAMS)
def test_a_process_is_named_after_its_program(line: str, mcp_patched: Registry) -> None:
    try_to_start(line)
    assert names(mcp_patched) == [f"mcp:{PROGRAMS[line]}#connect"]
    assert not [circuit for circuit in mcp_patched if "TOKEN" in f"{circuit.key!r}{circuit!r}{circuit.snapshot()}"]


@pytest.mark.parametrize(
    ("one", "other", "circuits"),
    [
        ("npx weather", "npx weather", 1),
        ("npx weather --city Rome", "npx weather --city Oslo", 2),
        ("/a/weather", "/b/weather", 2),
    ],
)
def test_other_arguments_are_another_server_of_the_same_name(
    one: str, other: str, circuits: int, mcp_patched: Registry
) -> None:
    try_to_start(one)
    try_to_start(other)
    assert names(mcp_patched) == ["mcp:weather#connect"] * circuits


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://127.0.0.1:{port}/mcp", "mcp:127.0.0.1:{port}"),
        ("http://127.0.0.1:{port}/tenants/TOKEN/mcp?key=TOKEN#TOKEN", "mcp:127.0.0.1:{port}"),
        ("http://user:TOKEN@127.0.0.1:{port}/mcp", "mcp:127.0.0.1:{port}"),
        ("http://LOCALHOST:{port}/mcp", "mcp:localhost:{port}"),
    ],
)
def test_an_endpoint_is_named_after_its_host(url: str, name: str, mcp_patched: Registry, mcp_http: HttpServer) -> None:
    async def run() -> None:
        with contextlib.suppress(BaseException):
            async with open_http(mcp_http, url=url.format(port=mcp_http.port)):
                pass

    asyncio.run(run())
    assert names(mcp_patched) == [name.format(port=mcp_http.port) + "#connect"]
    assert not [circuit for circuit in mcp_patched if "TOKEN" in f"{circuit.key!r}{circuit!r}{circuit.snapshot()}"]


def test_two_paths_of_one_host_are_two_servers(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    """Gateways serve many behind one host; a query is no part of which one it is."""

    async def run() -> None:
        for path in ("one", "two", "two?session=3"):
            seen = await once(open_http(mcp_http, url=f"http://127.0.0.1:{mcp_http.port}/{path}"), "add", {})
            assert seen.call == ""

    asyncio.run(run())
    assert names(mcp_patched) == [f"{mcp_http.name}#connect"] * 2


@pytest.mark.parametrize("legacy", [False, True], ids=["direct", "streams"])
def test_in_memory_a_server_is_called_what_it_calls_itself(legacy: bool, mcp_patched: Registry) -> None:
    async def run() -> None:
        async with open_memory("here", legacy) as one, open_memory("there", legacy) as two:
            for session in (one, two):
                assert '"3"' in shown(await session.call_tool("add", {"a": 1, "b": 2}))

    asyncio.run(run())
    assert names(mcp_patched) == ["mcp:here", "mcp:here/add", "mcp:there", "mcp:there/add"]


def test_streams_of_ones_own_are_unknown_until_initialize(mcp_patched: Registry) -> None:
    """A session over streams that no transport of the SDK made."""
    from mcp import ClientSession
    from mcp.shared.memory import create_client_server_memory_streams

    from tests.support import mcp_server

    server: Any = mcp_server.make(name="own")
    inner = getattr(server, "_lowlevel_server", None) or server._mcp_server

    async def run() -> None:
        async with create_client_server_memory_streams() as (client, far):
            serving = asyncio.create_task(inner.run(*far, inner.create_initialization_options()))
            async with ClientSession(*client) as session:
                await session.initialize()
                assert '"3"' in shown(await session.call_tool("add", {"a": 1, "b": 2}))
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    asyncio.run(run())
    assert names(mcp_patched) == ["mcp:own", "mcp:own/add"]
