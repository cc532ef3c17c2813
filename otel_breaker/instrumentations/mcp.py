"""mcp 1.x and 2.x: `ClientSession.call_tool` is the call; opening a session is a call of its own.

A call is guarded twice: by its server's circuit, outside, and by its tool's. `_mcp_link` watches the transport below,
`_mcp_outcomes` says which of the two a failure belongs to.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any, Final

from otel_breaker import _guard, _log, keys
from otel_breaker._admission import QUIET
from otel_breaker._frames import CIRCUIT, FRAME, INNER, Frame, Site, charged, live
from otel_breaker._registry import registry
from otel_breaker.circuit import Circuit
from otel_breaker.errors import CircuitOpenError
from otel_breaker.keys import CircuitKey
from otel_breaker.outcomes import OK, Outcome
from otel_breaker.telemetry import emit

from . import _mcp_connect, _mcp_outcomes
from ._mcp_link import CALL, LIBRARY, Call, Link, link_of_session, link_of_stream
from ._mcp_wire import Watched

_TIMEOUT: Final = 2  # position in the signature of ClientSession.call_tool
_MOST: Final = 1024
"""Tools of one connection that are remembered; past it all are looked up anew: models make up names."""

connect_stdio = _mcp_connect.stdio
connect_sse = _mcp_connect.sse
connect_http = _mcp_connect.http


class _Plan:
    """What is the same for every call of one tool over one link."""

    __slots__ = ("name", "raises", "server", "server_site", "tool", "tool_site")

    def __init__(self, link: Link, name: str) -> None:
        circuits = registry()
        server = f"mcp:{link.server}"
        config = circuits.config(name, f"{server}/{name}")
        self.name = name
        self.raises = config.on_open == "raise"
        self.server: Circuit = circuits.keyed(CircuitKey(server, link.scope), server, circuits.config(None, server))
        if config.dependency is not None:
            self.tool: Circuit = circuits.client(config.dependency)
        else:
            self.tool = circuits.keyed(CircuitKey(f"{server}/{name}", link.scope), f"{server}/{name}", config)
        fit = _mcp_connect.fit
        # The layer of a tool: the one span around the call; the guard further in finds it there.
        self.server_site = Site(
            LIBRARY,
            layer="tool",
            tool=name,
            fit=fit,
            judge=_answered,
            explain=_explain_server,
            timed=False,
        )
        self.server_site.address = link.address
        self.tool_site = Site(LIBRARY, layer="tool", tool=name, fit=fit, judge=_judge, explain=_explain_tool, body=True)
        self.server_site.alternatives = self.tool_site.alternatives = config.alternatives


async def call_tool(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    """``ClientSession.call_tool``."""
    planned = _plan(session, args, kwargs)
    if planned is None:
        return await wrapped(*args, **kwargs)
    link, plan, timeout = planned
    call = Call(link, session)
    token = CALL.set(call)
    try:
        inner = (plan.tool_site, plan.tool, wrapped, args, kwargs, None, timeout)
        result = await _guard.acall(plan.server_site, plan.server, _guard.acall, inner, {}, link.credential, timeout)
    except CircuitOpenError as refusal:
        if plan.raises:
            raise
        return _answer(refusal, plan.name)
    finally:
        CALL.reset(token)
        call.over()
    _mcp_connect.answered(link)
    if call.charged and (around := live(FRAME.get())) is not None:
        around[INNER] = "charged"  # its tool has been: that the server answered is not the last word
    return result


async def send_request(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    """``ClientSession.send_request``: the id that the next request will have is the call's."""
    call = CALL.get()
    if call is not None and call.session is session:
        _note_id(call)
    return await wrapped(*args, **kwargs)


async def initialize(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    """``ClientSession.initialize``: the end of connecting."""
    return await _handshake(wrapped, session, args, kwargs, fallback=False)


async def discover(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    """``ClientSession.send_discover``, 2.x: the same, but a protocol error leads to `initialize`."""
    return await _handshake(wrapped, session, args, kwargs, fallback=True)


async def post_writer(wrapped: Any, transport: Any, args: Any, kwargs: Any) -> Any:
    """``StreamableHTTPTransport.post_writer``: hands the transport a client that is watched."""
    try:
        stream = args[3] if len(args) > 3 else kwargs["write_stream"]
        url = transport.url
        watched = Watched(args[0] if args else kwargs["client"], lambda: link_of_stream(stream, url))
        if args:
            args = (watched, *args[1:])
        else:
            kwargs = {**kwargs, "client": watched}
    except Exception as error:
        _log.fault(LIBRARY, "mcp: a transport could not be watched; HTTP statuses of its calls are lost", error)
    return await wrapped(*args, **kwargs)


async def quietly(wrapped: Any, transport: Any, args: Any, kwargs: Any) -> Any:
    """``StreamableHTTPTransport.handle_get_stream`` and ``terminate_session``: no calls of anybody's."""
    with _guard.quiet():
        return await wrapped(*args, **kwargs)


def _plan(session: Any, args: Any, kwargs: Any) -> tuple[Link, _Plan, float | None] | None:
    """(link, plan, time limit in seconds), or ``None`` to stay out of it."""
    try:
        if FRAME.get() is QUIET or emit.suppressed(emit.current()):
            return None
        name = args[0] if args else kwargs["name"]
        link = link_of_session(session)
        if _mcp_connect.excluded(link):
            return None
        plan = link.plans.get(name)
        if plan is None:
            if len(link.plans) >= _MOST:
                link.release()
            plan = link.plans[name] = _Plan(link, keys.display_safe(name))
        given = args[_TIMEOUT] if len(args) > _TIMEOUT else kwargs.get("read_timeout_seconds")
        given = getattr(session, "_session_read_timeout_seconds", None) if given is None else given
        seconds = getattr(given, "total_seconds", None)
        return link, plan, given if seconds is None else seconds()
    except Exception as error:
        _log.fault(LIBRARY, "mcp: a call could not be guarded", error)
        return None


async def _handshake(wrapped: Any, session: Any, args: Any, kwargs: Any, *, fallback: bool) -> Any:
    link = link_of_session(session)
    frame = link.connecting
    call = Call(link, session)
    token, pushed = CALL.set(call), FRAME.set(frame) if frame is not None else None
    try:
        if fallback:
            _note_id(call)
        if frame is not None and frame[CIRCUIT].policy.enforce_deadline:
            result = await _guard.bounded(wrapped(*args, **kwargs), frame, None)
        else:
            result = await wrapped(*args, **kwargs)
    except BaseException as error:
        # Cancelled, with nothing seen on the wire: leaving the transport will tell whether that was its doing.
        told = isinstance(error, Exception) or any(call.exchanges.values())
        if told and not (fallback and hasattr(error, "error")):
            _mcp_connect.failed(link, error, call)
        raise
    finally:
        if pushed is not None:
            FRAME.reset(pushed)
        CALL.reset(token)
        call.over()
    link.call_it(getattr(result, "server_info", None) or getattr(result, "serverInfo", None))
    _mcp_connect.answered(link)
    return result


def _note_id(call: Call) -> None:
    try:
        call.next_id()
    except Exception as error:
        _log.fault("mcp id", "mcp: requests cannot be told apart; HTTP statuses of calls are lost", error)


def _answered(frame: Frame, result: Any) -> Outcome:
    _learn(frame)
    return OK


def _judge(frame: Frame, result: Any) -> Outcome | None:
    outcome = _mcp_outcomes.of_result(result, frame[CIRCUIT].policy.unclassified)
    call = CALL.get()
    if call is not None and outcome is not None:
        call.charged = charged(outcome)
    return outcome


def _explain_server(frame: Frame, error: BaseException) -> Outcome | None:
    call = CALL.get()
    _learn(frame)
    return None if call is None else _mcp_outcomes.of_error(call, error, frame[CIRCUIT])[0]


def _explain_tool(frame: Frame, error: BaseException) -> Outcome | None:
    call = CALL.get()
    return None if call is None else _mcp_outcomes.of_error(call, error, frame[CIRCUIT])[1]


def _learn(frame: Frame) -> None:
    call = CALL.get()
    if call is not None:
        _guard.learn(frame, call.link.credential)


def _answer(refusal: CircuitOpenError, tool: str) -> Any:
    """The refusal as a tool's error result, which every client shows to the model."""
    types: Any = import_module("mcp.types")  # of either line: typed by neither
    body = refusal.answer(tool)
    new = "is_error" in types.CallToolResult.model_fields
    failed, structured = ("is_error", "structured_content") if new else ("isError", "structuredContent")
    text = types.TextContent(type="text", text=json.dumps(body, ensure_ascii=False))
    return types.CallToolResult(content=[text], **{failed: True, structured: body})
