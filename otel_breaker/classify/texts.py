"""Messages of libraries that put everything into one exception or result type: gRPC, MCP, psycopg, redis."""

from __future__ import annotations

import re
from typing import Any, Final

from otel_breaker.outcomes import ANSWERED, FAILURE, UNAUTHORIZED, Outcome

from .responses import response_outcome

_STATUS: Final = re.compile(
    r"\b([45]\d\d) (?:server|client) error:|(?:(?:server|client) error '|error code: |status(?: code)?:? )([45]\d\d)\b"
)
_PHRASES: Final = (
    (Outcome(FAILURE, "connection_refused"), ("connection refused",)),
    (
        Outcome(FAILURE, "dns_error"),
        (
            "could not translate host name",
            "failed to resolve",
            "name or service not known",
            "name resolution",
            "dns resolution failed",
            "lookup error",
            "nodename nor servname",
        ),
    ),
    (
        Outcome(FAILURE, "connection_reset"),
        (
            "connection reset",
            "broken pipe",
            "socket closed",
            "connection closed",
            "closed the connection",
            "server disconnected",
            "connection lost",
        ),
    ),
    (Outcome(FAILURE, "tls_error"), ("certificate verify failed", "handshake failed", "[ssl:")),
    (
        Outcome(FAILURE, "timeout"),
        ("timed out", "timeout expired", "timeout connecting", "timeout reading", "deadline exceeded"),
    ),
    (Outcome(FAILURE, "truncated_output"), ("without a response", "complete message body", "incomplete chunked read")),
    (
        Outcome(FAILURE, "malformed_output"),
        (
            "deserializing response",
            "failed parsing http/2",
            "parse json response",
            "unexpected content type",
            "answered a request with 202",
            "invalid structured content",
            "did not return structured content",
            "expected authentication request",
        ),
    ),
    (Outcome(FAILURE, "connection_error"), ("connection attempts failed",)),
    (Outcome(UNAUTHORIZED), ("password authentication failed",)),
    (Outcome(FAILURE, "overloaded"), ("too many clients", "max number of clients", "system is starting up")),
    (Outcome(FAILURE, "server_error"), ("server returned an error response",)),
    (
        ANSWERED,
        (
            "unknown tool",
            "input validation error",
            "invalid arguments",
            "validation error for",
            "validation errors for",
            "session terminated",
        ),
    ),
)


def text_outcome(text: Any) -> Outcome | None:
    """What a message of an opaque library says; ``None`` when no phrase of ours is in it.

    For gRPC details, MCP errors and ``isError`` texts, and database connection errors. Never for bodies of HTTP
    responses: words there prove nothing. Never raises.
    """
    if not isinstance(text, str):
        return None
    low = str.__str__(text)[:2000].lower()
    for outcome, phrases in _PHRASES:
        if any(phrase in low for phrase in phrases):
            return outcome
    status = _STATUS.search(low)
    return response_outcome(int(status[1] or status[2])) if status else None
