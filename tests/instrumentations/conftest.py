"""Each way to use each library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

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
