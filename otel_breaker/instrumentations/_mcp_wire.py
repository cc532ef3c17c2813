"""The HTTP client under an MCP transport, watched: each request is our own traffic, and its link hears how it fared."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from otel_breaker import _guard, _log, keys

from ._mcp_link import Exchange, Link


class Watched:
    """The HTTP client as the transport sees it: the same client, whose requests are our own traffic and are watched."""

    def __init__(self, client: Any, link: Callable[[], Link]) -> None:
        self._client = client
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, request: Any, **options: Any) -> Any:
        """``AsyncClient.send``."""
        return await watch(self._link, self._client.send, request, **options)

    def stream(self, method: str, url: Any, **options: Any) -> _Stream:
        """``AsyncClient.stream``, which SDKs before 1.30 and 2.1 call."""
        return _Stream(self._link, self._client.stream(method, url, **options), options.get("json"))


class _Stream:
    def __init__(self, link: Callable[[], Link], stream: Any, message: Any) -> None:
        self._link, self._stream, self._message = link, stream, message

    async def __aenter__(self) -> Any:
        exchange = Exchange()
        try:
            with _guard.quiet():
                exchange.response = await self._stream.__aenter__()
        except BaseException as error:
            exchange.error = error
            raise
        finally:
            _tell(self._link, exchange, self._message)
        return exchange.response

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._stream.__aexit__(*raised)


async def watch(link: Callable[[], Link], send: Any, request: Any, **options: Any) -> Any:
    """Send a request of the transport, and note how it fared."""
    exchange = Exchange()
    try:
        with _guard.quiet():
            exchange.response = await send(request, **options)
    except BaseException as error:
        exchange.error = error
        raise
    finally:
        _tell(link, exchange, request)
    return exchange.response


def _tell(find: Callable[[], Link], exchange: Exchange, sent: Any) -> None:
    try:
        link = find()
        response = exchange.response
        if response is not None:
            link.credential = keys.credential_of(response.request.headers, str(response.request.url)) or link.credential
        if link.kind == "sse" and response is not None and response.status_code < 300:
            return  # only received: the answer comes over the event stream
        if not isinstance(sent, dict):
            sent = json.loads(sent.content) if getattr(sent, "method", "") == "POST" else {}
        link.saw(sent.get("id"), exchange)
    except Exception as error:
        _log.fault("mcp exchange", "mcp: a request could not be watched; it is unaffected", error)
