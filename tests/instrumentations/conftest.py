"""Patched libraries, real servers, and short ways to look at what the guards counted."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from otel_breaker import settings
from otel_breaker.instrumentations import _patch
from tests.support.clients import CLIENTS, Caller, Client
from tests.support.faults import FaultServer, Script, fault_server


@pytest.fixture
def patched(breaker_registry: Any) -> Iterator[Any]:
    """The HTTP libraries, patched, over a fresh registry and default settings."""
    for library in ("requests", "httpx", "httpx2"):
        importlib.import_module(library)
    settings.use(settings.load())
    _patch.enable()
    yield breaker_registry
    _patch.remove()
    settings.forget()


@pytest.fixture
def srv() -> Iterator[Script]:
    """A server with scripted replies."""
    with Script() as server:
        yield server


@pytest.fixture(scope="session")
def faults() -> Iterator[FaultServer]:
    """Every fault of the matrix."""
    with fault_server() as server:
        yield server


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    """Each way to use each library."""
    return CLIENTS[request.param]


@pytest.fixture
def caller(client: Client, patched: Any) -> Iterator[Caller]:
    """Each client, open and patched."""
    with client.open() as opened:
        yield opened
