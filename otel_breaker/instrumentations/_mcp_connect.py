"""Opening a session to an MCP server: guarded from entering the transport until the server has answered.

It has a circuit of its own, ``mcp:<server>#connect``: a server that cannot be started must not be started again and
again, and one that lets everybody in says nothing about its tools.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, Final

import wrapt

from otel_breaker import _guard, _log, settings
from otel_breaker._frames import CIRCUIT, Frame, Site
from otel_breaker._registry import registry
from otel_breaker.circuit import Circuit
from otel_breaker.classify._chain import leaves
from otel_breaker.keys import CircuitKey
from otel_breaker.outcomes import IGNORED, Outcome
from otel_breaker.telemetry import emit

from . import _mcp_outcomes
from ._mcp_link import CALL, LIBRARY, Call, Link, attach, for_program, for_url
from ._mcp_wire import watch

REFUSED: Final = -32000
"""JSON-RPC code of a raised refusal; of -32000 to -32019 the protocol says that nobody must assume a meaning."""

_FACTORY: Final = 4  # position in the signature of sse_client


def stdio(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``stdio_client``."""
    link = _link(lambda: for_program(args[0] if args else kwargs["server"]))
    return wrapped(*args, **kwargs) if link is None else _Connection(wrapped(*args, **kwargs), link)


def http(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``streamable_http_client``, ``streamablehttp_client``, ``websocket_client``."""
    link = _link(lambda: for_url("http", args[0] if args else kwargs["url"], _headers(args, kwargs)))
    return wrapped(*args, **kwargs) if link is None else _Connection(wrapped(*args, **kwargs), link)


def sse(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``sse_client``: its client is made by a factory, which is watched."""
    link = _link(lambda: for_url("sse", args[0] if args else kwargs["url"], _headers(args, kwargs)))
    if link is None:
        return wrapped(*args, **kwargs)
    factory = args[_FACTORY] if len(args) > _FACTORY else kwargs.get("httpx_client_factory")

    def watched(*given: Any, **options: Any) -> Any:
        client = (factory or _default_factory())(*given, **options)
        send = client.send
        client.send = lambda request, **more: watch(lambda: link, send, request, **more)
        return client

    if len(args) > _FACTORY:
        args = (*args[:_FACTORY], watched, *args[_FACTORY + 1 :])
    else:
        kwargs = {**kwargs, "httpx_client_factory": watched}
    return _Connection(wrapped(*args, **kwargs), link)


def _headers(args: Any, kwargs: Any) -> Any:
    """The headers that the program gave: its own, or those of the client that it made."""
    client = kwargs.get("http_client")
    if client is not None:
        return client.headers
    return kwargs.get("headers") or (args[1] if len(args) > 1 and isinstance(args[1], dict) else {})


def _default_factory() -> Any:
    from mcp.shared._httpx_utils import create_mcp_http_client

    return create_mcp_http_client


def _link(make: Any) -> Link | None:
    try:
        if emit.suppressed(emit.current()):
            return None
        link: Link = make()
        return None if excluded(link) else link
    except Exception as error:
        _log.fault("mcp connect", "mcp: a connection could not be guarded", error)
        return None


def excluded(link: Link) -> bool:
    """Whether the settings leave this server alone: ``exclude`` may say ``mcp:name`` or ``name``."""
    chosen = settings.current()
    if not (chosen.exclude or chosen.excluded_urls):
        return False
    return chosen.excluded(link.url, link.server) or chosen.excluded(None, f"mcp:{link.server}")


class _Connection(wrapt.ObjectProxy):  # type: ignore[type-arg,unused-ignore]
    """The transport's context manager, with a guard around entering it."""

    def __init__(self, transport: Any, link: Link) -> None:
        super().__init__(transport)
        self._self_link = link

    async def __aenter__(self) -> Any:
        link = self._self_link
        link.connecting = _guard.begin(_site(link), _circuit(link), link.credential)
        try:
            with _guard.quiet():  # the tasks that it starts are the transport's, for as long as they live
                streams = await self.__wrapped__.__aenter__()
        except BaseException as error:
            failed(link, error)
            raise
        try:
            attach(streams[1], link)
        except Exception as error:
            _log.fault("mcp streams", "mcp: a connection could not be watched", error)
        return streams

    async def __aexit__(self, *raised: Any) -> Any:
        link = self._self_link
        try:
            with _guard.quiet():
                return await self.__wrapped__.__aexit__(*raised)
        except BaseException as error:
            if not _theirs(error, raised[1]):  # the transport's own, before anybody had heard from the server
                failed(link, error)
            raise
        finally:
            link.closed = True
            if raised[1] is not None and not isinstance(raised[1], Exception):
                failed(link, raised[1])
            _settle(link, IGNORED)


def _theirs(error: BaseException, raised: BaseException | None) -> bool:
    """Whether this is what the program itself raised inside, alone or wrapped by a task group."""
    return all(leaf is raised for leaf in leaves(error))


def answered(link: Link) -> None:
    """The server has answered: the connection stands."""
    _settle(link, None)


def failed(link: Link, error: BaseException, call: Call | None = None) -> None:
    """Connecting, or the first exchange over the connection, ended in this."""
    frame = link.connecting
    if frame is None:
        return
    link.connecting = None
    token = CALL.set(call or Call(link, None))
    try:
        _guard.learn(frame, link.credential)
        _guard.fail(frame, error)
    finally:
        CALL.reset(token)


def _settle(link: Link, outcome: Outcome | None) -> None:
    frame = link.connecting
    if frame is not None:
        link.connecting = None
        _guard.learn(frame, link.credential)
        _guard.finish(frame, outcome)


def _circuit(link: Link) -> Circuit:
    circuits = registry()
    name = f"mcp:{link.server}"
    config = circuits.config(None, name)
    config = replace(config, display_name=config.display_name or name)
    scope = f"connect {link.scope}" if link.scope else "connect"
    return circuits.keyed(CircuitKey(name, scope), f"{name}#connect", config)


def _site(link: Link) -> Site:
    site = Site(LIBRARY, fit=fit, explain=_explain)
    site.address = link.address
    return site


def _explain(frame: Frame, error: BaseException) -> Outcome | None:
    call = CALL.get()
    return None if call is None else _mcp_outcomes.of_connection(call, error, frame[CIRCUIT])


@cache
def fit() -> type[BaseException]:
    """The class that a raised refusal must also be: the SDK's one exception, with an ``error`` as handlers read it."""
    types: Any = import_module("mcp.types")  # of either line: typed by neither
    exceptions: Any = import_module("mcp.shared.exceptions")
    base: Any = getattr(exceptions, "MCPError", None) or exceptions.McpError

    class Refused(base):  # type: ignore[misc]
        @property
        def error(self) -> Any:
            return types.ErrorData(code=REFUSED, message=str(self))

    return Refused
