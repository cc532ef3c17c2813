"""Sessions of the MCP SDK, opened alike on 1.x and 2.x, and what a call on one came to."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import anyio

from tests.support import mcp_server
from tests.support.mcp_process import PATIENCE, Command, HttpServer

LINE = int(version("mcp").partition(".")[0])
"""Which of the two lines of the SDK is installed."""

Session = Any
Opening = AbstractAsyncContextManager[Session]


def modules() -> None:
    """Import every module of the client: what is to be patched must be there."""
    for name in ("session", "streamable_http", "sse", "stdio", *(["client"] if LINE == 2 else [])):
        importlib.import_module(f"mcp.client.{name}")


def seconds(value: float | None) -> Any:
    """A time-out as this line takes it."""
    return value if value is None or LINE == 2 else timedelta(seconds=value)


def http_function() -> str:
    """What opens streamable HTTP: its name since 1.24, or the one before."""
    module = importlib.import_module("mcp.client.streamable_http")
    return "streamable_http_client" if hasattr(module, "streamable_http_client") else "streamablehttp_client"


def over_http(url: str, client: Any = None) -> Any:
    """Streamable HTTP by way of this client. Before 1.24 it made its own: that gets the headers and the auth."""
    function = getattr(importlib.import_module("mcp.client.streamable_http"), http_function())
    if function.__name__ == "streamable_http_client":
        return function(url, http_client=client)
    if client is None:
        return function(url)
    usual = {"accept", "accept-encoding", "connection", "user-agent"}
    headers = {name: value for name, value in client.headers.items() if name not in usual}
    return function(url, headers=headers, timeout=PATIENCE, auth=client.auth)


# --- ways to open a session -------------------------------------------------------------------------------------------


@asynccontextmanager
async def _session(opening: AbstractAsyncContextManager[Any]) -> AsyncIterator[Session]:
    from mcp import ClientSession

    async with opening as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        yield session


@asynccontextmanager
async def open_http(server: HttpServer, headers: Mapping[str, str] | None = None, url: str = "") -> AsyncIterator[Any]:
    """Streamable HTTP, with the handshake."""
    library = importlib.import_module("httpx2" if LINE == 2 else "httpx")
    async with (
        library.AsyncClient(headers=headers, timeout=PATIENCE) as client,
        _session(over_http(url or server.url, client)) as session,
    ):
        yield session


def open_sse(server: HttpServer, headers: Mapping[str, str] | None = None) -> Opening:
    """The older HTTP with SSE."""
    from mcp.client import sse

    return _session(sse.sse_client(server.url, headers=dict(headers or {})))


@asynccontextmanager
async def open_stdio(server: Command) -> AsyncIterator[Session]:
    """A process, over its standard input and output."""
    from mcp import StdioServerParameters
    from mcp.client import stdio

    environment = server.environment or None
    parameters = StdioServerParameters(command=server.command, args=server.args, env=environment)
    with open(os.devnull, "w") as nowhere:
        async with _session(stdio.stdio_client(parameters, errlog=nowhere)) as session:
            yield session


@asynccontextmanager
async def open_memory(name: str = "faulty", legacy: bool = False) -> AsyncIterator[Session]:
    """A server in this process."""
    server = mcp_server.make(name=name)
    if LINE == 2:
        from mcp.client.client import Client

        async with Client(server, mode="legacy" if legacy else "auto") as client:
            yield client
    else:
        from mcp.shared.memory import create_connected_server_and_client_session

        async with create_connected_server_and_client_session(server) as session:
            yield session


@asynccontextmanager
async def open_client(server: HttpServer | Command) -> AsyncIterator[Session]:
    """``mcp.Client`` of 2.x; in 1.x, which has none, the function that went with it."""
    if not isinstance(server, HttpServer):
        if LINE == 1:
            async with open_stdio(server) as session:
                yield session
            return
        from mcp import Client, StdioServerParameters

        async with Client(StdioServerParameters(command=server.command, args=server.args)) as client:
            yield client
    elif LINE == 2:
        from mcp.client.client import Client

        async with Client(server.url) as client:
            yield client
    else:
        from mcp.client import streamable_http

        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            opening = streamable_http.streamablehttp_client(server.url)
        async with _session(opening) as session:
            yield session


@asynccontextmanager
async def open_pinned(server: HttpServer) -> AsyncIterator[Session]:
    """``mcp.Client`` of 2.x with a version that it does not ask for: a call is the first request. 1.x always asks."""
    if LINE == 1:
        async with open_http(server) as session:
            yield session
        return
    from mcp.client.client import Client

    async with Client(server.url, mode="2026-07-28") as client:
        yield client


# --- what came of it --------------------------------------------------------------------------------------------------


def told(error: BaseException | None) -> str:
    """An exception in one line: type, code, text; without what differs from run to run."""
    if error is None:
        return ""
    inner = getattr(error, "error", None)
    code = f"({inner.code}, {inner.data})" if inner is not None else ""
    text = re.sub(r"cancel scope \w+", "cancel scope", str(error))
    line = f"{type(error).__name__}{code}: {text}"
    if isinstance(error, BaseExceptionGroup):
        line += f" [{'; '.join(told(one) for one in error.exceptions)}]"
    return line


def is_error(result: Any) -> bool:
    """``isError``."""
    return bool(result.is_error if LINE == 2 else result.isError)


def structured(result: Any) -> Any:
    """``structuredContent``."""
    return result.structured_content if LINE == 2 else result.structuredContent


def text(result: Any) -> str:
    """The text of the first content."""
    return str(result.content[0].text)


def shown(result: Any) -> str:
    """A result in one line; who the server is comes with some of 2.x, and is left out."""
    whole = result.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"meta"})
    return json.dumps(whole, sort_keys=True)


@dataclass(frozen=True)
class Seen:
    """What one call came to, as its caller sees it.

    Attributes:
        call: what it returned, or what it raised.
        left: what leaving the session raised; empty if nothing.
    """

    call: str
    left: str


async def once(
    opening: Opening,
    tool: str,
    arguments: Mapping[str, Any],
    timeout: float | None = None,
    before: Callable[[], Any] = lambda: None,
    after: Callable[[Session], Awaitable[Any]] | None = None,
) -> Seen:
    """Open a session, call one tool, leave.

    Args:
        opening: the session.
        tool: what to call; its arguments follow.
        arguments: of the tool.
        timeout: of the call, in seconds.
        before: runs when all is ready and only the call is missing.
        after: runs after it, on the session, unless that was cancelled.
    """
    call = ""
    try:
        with anyio.fail_after(PATIENCE):
            async with opening as session:
                await session.list_tools()
                before()
                try:
                    result = await session.call_tool(tool, dict(arguments), read_timeout_seconds=seconds(timeout))
                    call = shown(result)
                except asyncio.CancelledError as error:
                    call = told(error)
                    raise
                except Exception as error:
                    call = told(error)
                if after is not None:
                    await after(session)
    except BaseException as error:
        return Seen(call, told(error))
    return Seen(call, "")
