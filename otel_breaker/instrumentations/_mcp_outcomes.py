"""What a failed MCP call says about its server and about its tool: two outcomes, of which at most one is a failure."""

from __future__ import annotations

from typing import Any, Final

from otel_breaker.classify import code_outcome, exception_outcome, text_outcome, walk
from otel_breaker.classify._chain import class_names, text_of
from otel_breaker.errors import CircuitOpenError
from otel_breaker.outcomes import ABORTED, ANSWERED, FAILURE, IGNORED, OK, SUCCESS, Outcome

from . import _http
from ._mcp_link import Call, Exchange

MALFORMED: Final = Outcome(FAILURE, "malformed_output")
TRUNCATED: Final = Outcome(FAILURE, "truncated_output")
RESET: Final = Outcome(FAILURE, "connection_reset")
LOST: Final = Outcome(FAILURE, "connection_error")
TIMEOUT: Final = Outcome(FAILURE, "timeout")
UNCLASSIFIED: Final = Outcome(FAILURE, "unclassified")

_TIMED_OUT: Final = (408, -32001)  # SDK 1.x, 2.x; the specification gives neither a meaning
_CLOSED_STREAM: Final = {"anyio.ClosedResourceError", "anyio.BrokenResourceError", "anyio.EndOfStream"}
_BY_TRANSPORT: Final = (
    ("connection closed", RESET),
    ("sse stream ended", TRUNCATED),
    ("sse stream failed", TRUNCATED),
    ("failed to parse json response", MALFORMED),
    ("failed to parse sse message", MALFORMED),
    ("unexpected content type", MALFORMED),
    ("answered a request with 202", MALFORMED),
    ("session terminated", IGNORED),
    ("not followed", IGNORED),
)
"""Errors that the SDK's own transports make up, by the words they use."""

Verdict = tuple[Outcome | None, Outcome | None]
"""What it says about the server, and about the tool; ``None`` where the built-in rules decide."""


def of_error(call: Call, error: BaseException, circuit: Any) -> Verdict:
    """Of an exception that came out of a call.

    Args:
        call: the call, with what was seen of its requests on the wire.
        error: the exception.
        circuit: the server's, for the time of day that a Retry-After date needs.
    """
    if isinstance(error, CircuitOpenError):  # nothing was sent
        return IGNORED, IGNORED
    exchanges = [exchange for exchange in call.exchanges.values() if exchange is not None]
    for exchange in exchanges:
        own = _on_the_wire(exchange, circuit, call.link.kind)
        if own is not None:
            return own, IGNORED
    fell = call.link.broken and not call.doomed  # with another call's connection, which this one shared
    if not isinstance(error, (Exception, BaseExceptionGroup)):
        ended = call.link.broken or (call.link.refused and not hasattr(call.session, "_dispatcher"))
        return (IGNORED, IGNORED) if ended else (ABORTED, None)
    found = getattr(error, "error", None)
    code = getattr(found, "code", None)
    if isinstance(code, int):
        verdict = _of_rpc(code, str(getattr(found, "message", "")), exchanges, circuit)
        return (IGNORED, IGNORED) if fell and verdict[0] is RESET else verdict
    names = class_names(type(error))
    if not _CLOSED_STREAM.isdisjoint(names):
        return (IGNORED if call.link.closed or fell else LOST), IGNORED
    if not call.exchanges:  # nothing was sent: it is about the arguments, or about the session
        return IGNORED, IGNORED
    if "pydantic_core.ValidationError" in names:
        return OK, MALFORMED
    if isinstance(error, RuntimeError):
        bad = "structured content" in text_of(error)
        return OK, MALFORMED if bad else IGNORED  # else: a result of a kind that this caller did not ask for
    if "builtins.TimeoutError" in names:  # the transport's own bounded write
        return TIMEOUT, IGNORED
    return IGNORED, None


def of_connection(call: Call, error: BaseException, circuit: Any) -> Outcome | None:
    """Of an exception that ended an attempt to connect: there is no tool to blame."""
    server, tool = of_error(call, error, circuit)
    if tool is TIMEOUT:
        return TIMEOUT
    if server is ABORTED:  # how long it had been waiting decides
        return None
    if server not in (None, OK) and (server is not IGNORED or call.exchanges):
        return server
    if any(isinstance(link, OSError) for link in walk(error)) and call.link.kind == "stdio":
        outcome = exception_outcome(error, unclassified="neutral")
        return LOST if outcome.reason is None else outcome  # no such program, not executable
    return None


def of_result(result: Any, unclassified: str) -> Outcome | None:
    """What a result says about its tool; ``None``: a success. That it came says that the server is well."""
    failed = getattr(result, "is_error", None)
    if failed is None:
        failed = getattr(result, "isError", None)
    if failed is None:
        return IGNORED  # a question back to the user, or an extension's own shape: the call goes on elsewhere
    if not failed:
        return None
    known = text_outcome(_text(result))
    if known is not None:
        return known
    return IGNORED if unclassified == "neutral" else UNCLASSIFIED


def _text(result: Any) -> str:
    for part in getattr(result, "content", None) or ():
        text = getattr(part, "text", None)
        if isinstance(text, str):
            return text[:2000]
    return ""


def _on_the_wire(exchange: Exchange, circuit: Any, kind: str) -> Outcome | None:
    if exchange.error is not None:
        return exception_outcome(exchange.error) if isinstance(exchange.error, Exception) else None
    response = exchange.response
    status = response.status_code
    if status == 202 and kind == "http":
        return MALFORMED
    if status < 300:
        form = response.headers.get("content-type", "").lower()
        return None if form.startswith(("application/json", "text/event-stream")) or kind != "http" else MALFORMED
    return ANSWERED if status < 400 else _http.answered(circuit, status, response.headers)


def _of_rpc(code: int, message: str, exchanges: list[Exchange], circuit: Any) -> Verdict:
    if code in _TIMED_OUT and ("timed out" in message.lower()):
        # SDK 1.x waits on after a body that ended without an answer.
        ended = next((e.response for e in exchanges if e.response is not None and e.response.is_closed), None)
        if ended is None:
            return IGNORED, TIMEOUT
        events = ended.headers.get("content-type", "").lower().startswith("text/event-stream")
        return (TRUNCATED if events else MALFORMED), IGNORED
    low = message.lower()
    for words, outcome in _BY_TRANSPORT:
        if words in low:
            return outcome, IGNORED
    known = code_outcome(code)
    if known is None:
        known = text_outcome(message)
    if known is None or known.kind == SUCCESS:
        known = IGNORED if circuit.policy.unclassified == "neutral" else UNCLASSIFIED
    return OK, known
