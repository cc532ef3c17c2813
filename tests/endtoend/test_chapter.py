"""The case of the chapter: a tool that tries twice, a vendor that fails; the requests are counted at the vendor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import pytest
import requests

import otel_breaker
from otel_breaker import Policy
from otel_breaker._registry import Registry
from tests.support.circuits import decisions, of, outcomes
from tests.support.faults import Script


def with_requests(url: str) -> Any:
    with requests.Session() as session:
        session.trust_env = False
        response = session.get(url, timeout=10)
        response.raise_for_status()
        return response.json()


def with_httpx_family(library: Any) -> Callable[[str], Any]:
    def get(url: str) -> Any:
        with library.Client(trust_env=False) as client:
            response = client.get(url)
            response.raise_for_status()
            return response.json()

    return get


def with_async_httpx_family(library: Any) -> Callable[[str], Any]:
    async def get(url: str) -> Any:
        async with library.AsyncClient(trust_env=False) as client:
            response = await client.get(url)
            response.raise_for_status()
            return response.json()

    return lambda url: asyncio.run(get(url))


CLIENTS = {
    "requests": with_requests,
    "httpx": with_httpx_family(httpx),
    "httpx2": with_httpx_family(httpx2),
    "httpx_async": with_async_httpx_family(httpx),
    "httpx2_async": with_async_httpx_family(httpx2),
}


@pytest.fixture(params=CLIENTS)
def get(request: pytest.FixtureRequest, patched: Registry) -> Callable[[str], Any]:
    """Asks, and raises for a bad status, with each library."""
    return CLIENTS[request.param]


def twice(get: Callable[[str], Any], url: str) -> Any:
    """A retry budget of two attempts."""
    try:
        return get(url)
    except (requests.RequestException, httpx.HTTPError, httpx2.HTTPError):
        return get(url)


def test_four_calls_make_six_requests_and_the_fifth_makes_none(get: Any, srv: Script) -> None:
    """Two attempts a call, threshold 3: the fourth call is refused before its first attempt."""

    @otel_breaker.guard(
        tool="refund_charge",
        dependency=srv.host,
        policy=Policy(failure_threshold=3),
        alternatives=["issue_refund_manually"],
    )
    def refund_charge() -> Any:
        return twice(get, srv.url())

    srv.reply(503, times=None)
    told: list[Any] = []
    for _ in range(4):
        try:
            told.append(refund_charge())
        except (requests.RequestException, httpx.HTTPError, httpx2.HTTPError) as error:
            told.append(type(error).__name__)
    assert srv.hits == 6
    assert [type(one) for one in told] == [str, str, str, dict]
    assert refund_charge() == told[3]
    assert told[3] == {
        "status": "circuit_open",
        "tool": "refund_charge",
        "reason": f"{srv.host} failing (3 consecutive failures, last: server error)",
        "retry_after_ms": told[3]["retry_after_ms"],
        "alternatives": ["issue_refund_manually"],
    }
    assert told[3]["retry_after_ms"] == 30000
    assert srv.hits == 6
    assert decisions(of(refund_charge)) == {"admitted": 3, "circuit_open": 2}
    assert outcomes(of(refund_charge)) == {"failure": 3}


def test_the_same_without_a_word_of_this_package_in_the_tool(get: Any, srv: Script, configure: Any) -> None:
    """Nobody told us that the two tries are one call: each is one, and the third failure stops the loop half-way."""
    configure(failure_threshold=3)
    srv.reply(503, times=None)
    told = []
    for _ in range(5):
        try:
            twice(get, srv.url())
        except Exception as error:
            told.append(str(error))
    assert srv.hits == 3
    assert "503" in told[0]
    assert [json.loads(text)["status"] for text in told[1:]] == ["circuit_open"] * 4


def test_ten_bad_requests_make_ten_requests_and_the_circuit_is_closed(get: Any, srv: Script) -> None:
    @otel_breaker.guard(dependency=srv.host, policy=Policy(failure_threshold=3))
    def tool() -> Any:
        return get(srv.url())

    srv.reply(400, times=None)
    for _ in range(10):
        with pytest.raises((requests.HTTPError, httpx.HTTPStatusError, httpx2.HTTPStatusError)):
            tool()
    assert srv.hits == 10
    assert of(tool).snapshot().state == "closed"
    assert of(tool).snapshot().failures == 0
    assert outcomes(of(tool)) == {"neutral": 10}


def test_the_vendor_recovers(get: Any, srv: Script, manual_clock: Any) -> None:
    @otel_breaker.guard(dependency=srv.host, policy=Policy(failure_threshold=3))
    def tool() -> Any:
        return twice(get, srv.url())

    srv.reply(503, times=7)
    for _ in range(3):
        with pytest.raises((requests.HTTPError, httpx.HTTPStatusError, httpx2.HTTPStatusError)):
            tool()
    assert srv.hits == 6
    manual_clock.advance(30)
    assert tool()["status"] == "circuit_open"  # the probe: one attempt, no second
    assert srv.hits == 7
    manual_clock.advance(59.9)
    assert tool()["status"] == "circuit_open"
    assert srv.hits == 7
    manual_clock.advance(0.1)
    assert tool() == {"ok": True}
    assert tool() == {"ok": True}
    assert srv.hits == 9
    assert of(tool).snapshot().state == "closed"
