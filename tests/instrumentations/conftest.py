"""Each way to use each library."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from otel_breaker import settings
from otel_breaker._registry import Registry
from otel_breaker.instrumentations import _patch
from tests.support.clients import CLIENTS, Caller, Client


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    """Each way to use each library."""
    return CLIENTS[request.param]


@pytest.fixture
def caller(client: Client, patched: Any) -> Iterator[Caller]:
    """Each client, open and patched."""
    with client.open() as opened:
        yield opened


@pytest.fixture
def mcp_patched(breaker_registry: Registry, caplog: pytest.LogCaptureFixture) -> Iterator[Registry]:
    """The MCP SDK and the HTTP clients, patched, over a fresh registry and default settings; nothing of ours fails."""
    from tests.support import mcp_client

    mcp_client.modules()
    settings.use(settings.load())
    _patch.enable()
    yield breaker_registry
    _patch.remove()
    settings.forget()
    said = [one for one in caplog.get_records("call") if one.name.startswith("otel_breaker")]
    assert [one.getMessage() for one in said if one.levelno >= logging.WARNING] == []


@pytest.fixture(scope="session")
def _mcp_servers() -> Iterator[Callable[[str], Any]]:
    """One running server of each kind that was asked for."""
    from tests.support.mcp_process import HttpServer

    with ExitStack() as until_the_end:
        yield cache(lambda kind: until_the_end.enter_context(HttpServer(kind)))


def _healthy(server: Any) -> Iterator[Any]:
    server.heal()
    server.forget()
    yield server


@pytest.fixture
def mcp_http(_mcp_servers: Callable[[str], Any]) -> Iterator[Any]:
    """A streamable HTTP server, healthy, its counts at 0. Not to be killed."""
    yield from _healthy(_mcp_servers("http"))


@pytest.fixture
def mcp_json(_mcp_servers: Callable[[str], Any]) -> Iterator[Any]:
    """The same, which answers in JSON, not as a stream of events."""
    yield from _healthy(_mcp_servers("json"))


@pytest.fixture
def mcp_sse(_mcp_servers: Callable[[str], Any]) -> Iterator[Any]:
    """A server of the older HTTP with SSE, healthy, its counts at 0. Not to be killed."""
    yield from _healthy(_mcp_servers("sse"))


@pytest.fixture
def mcp_stdio() -> Iterator[Any]:
    """A stdio server that nobody has started yet."""
    from tests.support.mcp_process import StdioServer

    with StdioServer() as server:
        yield server
