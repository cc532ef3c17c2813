from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import json
import logging
import socket
import ssl
import subprocess
import sys
import urllib.error
import zlib
from collections.abc import Callable
from email.message import Message
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import httpx2
import pydantic
import pytest
import requests
import urllib3

from otel_breaker.classify import exception_outcome, walk
from otel_breaker.outcomes import ABORTED, ANSWERED, IGNORED, OK, Outcome

TOOL_ERROR = Outcome("failure", "tool_error")
UNCLASSIFIED = Outcome("failure", "unclassified")
MALFORMED = Outcome("failure", "malformed_output")
QUOTA = Outcome("throttled", "quota_exhausted")


def failed(reason: str) -> Outcome:
    return Outcome("failure", reason)


def named(name: str, text: str = "", base: type[BaseException] = Exception, **attributes: Any) -> BaseException:
    """An exception of a library that is not installed."""
    module, _, qualname = name.rpartition(".")
    exc: BaseException = type(qualname, (base,), {"__module__": module})(text)
    for key, value in attributes.items():
        setattr(exc, key, value)
    return exc


def caused(exc: BaseException, *causes: BaseException) -> BaseException:
    """``exc`` raised from the first of ``causes``, that from the next, and so on."""
    link = exc
    for cause in causes:
        link.__cause__ = cause
        link = cause
    return exc


def raised(exc: BaseException, within: BaseException) -> BaseException:
    """``exc`` raised ``from None`` while ``within`` was being handled."""
    exc.__context__ = within
    exc.__suppress_context__ = True
    return exc


def caught(call: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011 - whatever the library raises
        call()
    return info.value


def response(status: int, headers: dict[str, str] | None = None) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers=headers or {})


POOL: Any = None
BODY: Any = SimpleNamespace(tell=lambda: 0, length_remaining=0)

TRANSPORT: list[tuple[BaseException, str]] = [
    (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "connection_refused"),
    (OSError(errno.ECONNREFUSED, "refused"), "connection_refused"),
    (socket.gaierror(-2, "Name or service not known"), "dns_error"),
    (ConnectionResetError(errno.ECONNRESET, "reset"), "connection_reset"),
    (BrokenPipeError(errno.EPIPE, "pipe"), "connection_reset"),
    (ConnectionAbortedError(), "connection_reset"),
    (ssl.SSLError(1, "handshake"), "tls_error"),
    (ssl.SSLCertVerificationError(1, "certificate"), "tls_error"),
    (ssl.SSLEOFError(8, "eof"), "tls_error"),
    (OSError(errno.EHOSTUNREACH, "no route"), "connection_error"),
    (OSError(errno.ENETUNREACH, "no net"), "connection_error"),
    (ConnectionError("closed"), "connection_error"),
    (TimeoutError(), "timeout"),
    (TimeoutError(), "timeout"),
    (concurrent.futures.TimeoutError(), "timeout"),
    (OSError(errno.ETIMEDOUT, "timed out"), "timeout"),
    (subprocess.TimeoutExpired("x", 1), "timeout"),
    (httpx.ConnectTimeout("t"), "connect_timeout"),
    (httpx2.ConnectTimeout("t"), "connect_timeout"),
    (httpx.ReadTimeout("t"), "read_timeout"),
    (httpx2.ReadTimeout("t"), "read_timeout"),
    (httpx.WriteTimeout("t"), "timeout"),
    (requests.ConnectTimeout("t"), "connect_timeout"),
    (requests.ReadTimeout("t"), "read_timeout"),
    (requests.Timeout("t"), "timeout"),
    (requests.exceptions.SSLError("t"), "tls_error"),
    (requests.ConnectionError("t"), "connection_error"),
    (httpx.ConnectError("All connection attempts failed"), "connection_error"),
    (httpx.ReadError(""), "connection_reset"),
    (httpx2.RemoteProtocolError("Server disconnected without sending a response."), "connection_reset"),
    (httpx2.RemoteProtocolError("<ConnectionTerminated error_code:0, last_stream_id:1>"), "connection_reset"),
    (named("aiohttp.client_exceptions.ServerDisconnectedError", "Server disconnected"), "connection_reset"),
    (named("aiohttp.client_exceptions.ConnectionTimeoutError", "", TimeoutError), "connect_timeout"),
    (named("aiohttp.client_exceptions.SocketTimeoutError", "", TimeoutError), "read_timeout"),
    (named("openai.APITimeoutError", "Request timed out."), "timeout"),
    (named("openai.APIConnectionError", "Connection error."), "connection_error"),
    (named("anyio.ClosedResourceError"), "connection_error"),
    (urllib.error.URLError(ConnectionRefusedError(111, "refused")), "connection_refused"),
    (urllib.error.URLError(socket.gaierror(-2, "unknown")), "dns_error"),
    (urllib.error.URLError("unknown"), "connection_error"),
    (urllib3.exceptions.MaxRetryError(POOL, "/", ConnectionResetError(104, "reset")), "connection_reset"),
    (urllib3.exceptions.ProtocolError("aborted", ConnectionResetError(104, "reset")), "connection_reset"),
]


@pytest.mark.parametrize(
    ("exc", "reason"), TRANSPORT, ids=lambda value: value if isinstance(value, str) else repr(value)
)
def test_B121_each_transport_trouble_has_its_own_reason(exc: BaseException, reason: str) -> None:
    assert exception_outcome(exc) == failed(reason)
    assert exception_outcome(exc, tool=True, called=True) == failed(reason)


OUTPUT: list[tuple[BaseException, str]] = [
    (json.JSONDecodeError("bad", "{", 0), "malformed_output"),
    (requests.exceptions.JSONDecodeError("bad", "{", 0), "malformed_output"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "malformed_output"),
    (zlib.error("bad"), "malformed_output"),
    (httpx.DecodingError("bad"), "malformed_output"),
    (httpx.RemoteProtocolError("illegal status line: b'x'"), "malformed_output"),
    (httpx.RemoteProtocolError("peer closed connection without sending complete message body"), "truncated_output"),
    (httpx2.RemoteProtocolError("peer closed connection (incomplete chunked read)"), "truncated_output"),
    (requests.exceptions.ChunkedEncodingError("Response ended prematurely"), "truncated_output"),
    (requests.exceptions.ContentDecodingError("bad gzip"), "malformed_output"),
    (urllib3.exceptions.IncompleteRead(1, 2), "truncated_output"),
    (
        urllib3.exceptions.InvalidChunkLength(BODY, b"zz\r\n"),
        "malformed_output",
    ),
    (
        urllib3.exceptions.InvalidChunkLength(BODY, b""),
        "truncated_output",
    ),
    (
        named("aiohttp.client_exceptions.ClientPayloadError", "Not enough data to satisfy transfer length"),
        "truncated_output",
    ),
    (named("aiohttp.client_exceptions.ClientPayloadError", "Can not decode content-encoding"), "malformed_output"),
    (named("openai.APIResponseValidationError"), "malformed_output"),
    (RuntimeError("Invalid structured content returned by tool add: ..."), "malformed_output"),
    (asyncio.IncompleteReadError(b"", 5), "truncated_output"),
]


@pytest.mark.parametrize(
    ("exc", "reason"), OUTPUT, ids=lambda value: value if isinstance(value, str) else repr(value)[:60]
)
@pytest.mark.parametrize("called", [False, True])
def test_broken_output_is_malformed_or_truncated(exc: BaseException, reason: str, called: bool) -> None:
    assert exception_outcome(exc, tool=True, called=called) == failed(reason)


LOCAL: list[BaseException] = [
    httpx.PoolTimeout("wait"),
    httpx2.PoolTimeout("wait"),
    caused(httpx2.PoolTimeout("wait"), named("httpcore2.PoolTimeout"), TimeoutError()),
    urllib3.exceptions.EmptyPoolError(POOL, "pool is full"),
    urllib3.exceptions.ClosedPoolError(POOL, "closed"),
    named("sqlalchemy.exc.TimeoutError", "QueuePool limit of size 5 overflow 10 reached"),
    named("redis.exceptions.MaxConnectionsError", "", ConnectionError),
    OSError(errno.EMFILE, "Too many open files"),
    RuntimeError("Cannot send a request, as the client has been closed."),
    RuntimeError("Session is closed"),
    RuntimeError("Event loop is closed"),
    ValueError("Cannot invoke RPC on closed channel!"),
    caused(named("anthropic.APIConnectionError", "Connection error."), RuntimeError("the client has been closed.")),
    httpx.InvalidURL("x"),
    httpx2.UnsupportedProtocol("x"),
    httpx.LocalProtocolError("x"),
    httpx.TooManyRedirects("x"),
    httpx2.TooManyRedirects("x"),
    caused(named("openai.APIConnectionError", "Connection error."), httpx2.TooManyRedirects("x")),
    requests.exceptions.MissingSchema("x"),
    requests.exceptions.InvalidSchema("x"),
    requests.exceptions.InvalidURL("x"),
    requests.TooManyRedirects("x"),
    urllib3.exceptions.LocationParseError("x"),
    urllib3.exceptions.ResponseError("too many redirects"),
    named("grpc.FutureCancelledError"),
]


@pytest.mark.parametrize("exc", LOCAL, ids=lambda exc: repr(exc)[:60])
@pytest.mark.parametrize("tool", [False, True])
def test_B121_own_saturation_and_misuse_are_neutral(exc: BaseException, tool: bool) -> None:
    assert exception_outcome(exc, tool=tool, called=True) is IGNORED


def test_B121_a_wait_for_aiohttps_own_connector_is_neutral_and_a_slow_connect_is_not() -> None:
    code = "async def {name}():\n    raise asyncio.CancelledError\n"

    def timed_out_in(name: str) -> BaseException:
        scope: dict[str, Any] = {"__name__": "aiohttp.connector", "asyncio": asyncio}
        exec(code.format(name=name), scope)
        cancelled = caught(lambda: scope[name]().send(None))
        timeout = named("aiohttp.client_exceptions.ConnectionTimeoutError", "", TimeoutError)
        return caused(timeout, raised(TimeoutError(), cancelled))

    assert exception_outcome(timed_out_in("_wait_for_available_connection")) is IGNORED
    assert exception_outcome(timed_out_in("_create_connection")) == failed("connect_timeout")


def test_B121_asyncios_timeout_and_the_builtin_one_map_alike() -> None:
    old = named("asyncio.exceptions.TimeoutError")
    assert exception_outcome(old) == exception_outcome(TimeoutError()) == exception_outcome(TimeoutError())


def test_B121_the_chain_is_followed_through_suppressed_contexts() -> None:
    hidden = raised(httpx2.ConnectError("All connection attempts failed"), ConnectionRefusedError(111, "refused"))
    assert exception_outcome(caused(named("openai.APIConnectionError"), hidden)) == failed("connection_refused")


def test_B121_the_chain_is_followed_into_groups() -> None:
    inner = ExceptionGroup("inner", [ValueError("x"), httpx.ConnectTimeout("t")])
    assert exception_outcome(ExceptionGroup("outer", [KeyError("x"), inner])) == failed("connect_timeout")


def test_B121_the_walk_ends_at_what_was_being_handled_before_the_call() -> None:
    earlier = raised(ConnectionResetError(104, "the user's own"), socket.gaierror(-2, "older still"))
    exc = raised(KeyError("x"), earlier)
    assert exception_outcome(exc, tool=True) == failed("dns_error")
    assert exception_outcome(exc, tool=True, stop=earlier) == TOOL_ERROR
    assert walk(exc, earlier) == [exc]


def test_the_same_exception_raised_again_is_looked_at() -> None:
    earlier = TimeoutError()
    assert exception_outcome(earlier, stop=earlier) == failed("timeout")


def test_cycles_and_endless_chains_end() -> None:
    first, second = KeyError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first
    assert exception_outcome(first) == UNCLASSIFIED
    top: BaseException = TimeoutError()
    for _ in range(1000):
        top = raised(KeyError("x"), top)
    assert exception_outcome(top) == UNCLASSIFIED
    assert len(walk(top)) == 32


def test_category_goes_before_depth() -> None:
    deep_timeout = caused(
        ValueError("x"), named("x.HTTPError", status_code=503), json.JSONDecodeError("bad", "", 0), TimeoutError()
    )
    assert exception_outcome(deep_timeout) == failed("timeout")
    deep_json = caused(ValueError("x"), named("x.HTTPError", status_code=503), json.JSONDecodeError("bad", "", 0))
    assert exception_outcome(deep_json) == MALFORMED
    deep_status = caused(ValueError("x"), PermissionError("x"), named("x.HTTPError", status_code=503))
    assert exception_outcome(deep_status) == failed("server_error")
    deep_argument = caused(PermissionError("x"), ValueError("x"))
    assert exception_outcome(deep_argument) is IGNORED
    assert exception_outcome(caused(KeyError("x"), PermissionError("x"))) is IGNORED


def http_error(library: Any, status: int, headers: dict[str, str]) -> BaseException:
    request = library.Request("GET", "http://h/")
    answer = library.Response(status, headers=headers, request=request)
    return caught(answer.raise_for_status)


def requests_error(status: int, headers: dict[str, str]) -> BaseException:
    answer = requests.Response()
    answer.status_code = status
    answer.headers.update(headers)
    return caught(answer.raise_for_status)


def urllib_error(status: int, headers: dict[str, str]) -> BaseException:
    message = Message()
    for key, value in headers.items():
        message[key] = value
    return urllib.error.HTTPError("http://h/", status, "x", message, None)


CARRIERS: dict[str, Callable[[int, dict[str, str]], BaseException]] = {
    "httpx": lambda status, headers: http_error(httpx, status, headers),
    "httpx2": lambda status, headers: http_error(httpx2, status, headers),
    "requests": requests_error,
    "urllib": urllib_error,
    "openai": lambda status, headers: named(
        "openai.APIStatusError", status_code=status, response=response(status, headers)
    ),
    "aiohttp": lambda status, headers: named(
        "aiohttp.client_exceptions.ClientResponseError", status=status, headers=headers
    ),
    "stripe": lambda status, headers: named("stripe._error.APIError", http_status=status, headers=headers),
    "genai": lambda status, headers: named(
        "google.genai.errors.APIError", code=status, response=response(status, headers)
    ),
    "botocore": lambda status, headers: named(
        "botocore.exceptions.ClientError",
        response={
            "Error": {"Code": str(status)},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
        },
    ),
    "elastic": lambda status, headers: named(
        "elasticsearch.ApiError", status_code=status, meta=SimpleNamespace(status=status, headers=headers)
    ),
}


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
def test_B116_an_exception_that_carries_a_response_gives_its_outcome(carrier: Any) -> None:
    assert exception_outcome(carrier(404, {}), called=True) == ANSWERED
    assert exception_outcome(carrier(403, {}), tool=True) == ANSWERED
    assert exception_outcome(carrier(408, {})) == failed("timeout")
    assert exception_outcome(carrier(401, {})) == Outcome("unauthorized")
    assert exception_outcome(carrier(500, {})) == failed("server_error")
    assert exception_outcome(carrier(529, {})) == failed("overloaded")
    assert exception_outcome(carrier(429, {})) == Outcome("throttled", "throttled")
    assert exception_outcome(carrier(429, {"Retry-After": "7"})).retry_after == 7.0
    assert exception_outcome(carrier(503, {"retry-after-ms": "1500", "Retry-After": "2"})).retry_after == 1.5


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
def test_B111_dates_are_read_by_the_clock_that_was_given(carrier: Any) -> None:
    error = carrier(429, {"Retry-After": "Mon, 30 Nov 2026 20:00:07 GMT"})
    assert exception_outcome(error, wall=1_796_068_800.0).retry_after == 7.0


def test_redirects_that_end_in_an_exception_are_neutral() -> None:
    assert exception_outcome(urllib_error(302, {}), called=True) == ANSWERED
    assert exception_outcome(named("x.HTTPError", status_code=304)) == ANSWERED


@pytest.mark.parametrize("status", [0, 1, 200, 299, 600, -503, True, "503", 503.0, None, object()])
@pytest.mark.parametrize("name", ["status_code", "status", "code", "http_status"])
def test_numbers_that_are_no_error_status_say_nothing(name: str, status: Any) -> None:
    assert exception_outcome(named("app.Error", **{name: status})) == UNCLASSIFIED


def test_a_spent_urllib3_retry_budget_keeps_its_status() -> None:
    spent = urllib3.exceptions.MaxRetryError(
        POOL, "/", urllib3.exceptions.ResponseError("too many 503 error responses")
    )
    assert exception_outcome(spent) == failed("server_error")
    assert exception_outcome(caused(requests.exceptions.RetryError("x"), spent)) == failed("server_error")


CODED: list[tuple[BaseException, Outcome]] = [
    (named("openai.RateLimitError", code="insufficient_quota", response=response(429)), QUOTA),
    (named("openai.RateLimitError", type="insufficient_quota", code=None, response=response(429)), QUOTA),
    (named("openai.RateLimitError", body={"error": {"code": "insufficient_quota"}}, status_code=429), QUOTA),
    (
        named("openai.RateLimitError", code="rate_limit_exceeded", response=response(429, {"Retry-After": "7"})),
        Outcome("throttled", "throttled", retry_after=7.0),
    ),
    (
        named("openai.RateLimitError", "INSUFFICIENT QUOTA", code=None, response=response(429, {"Retry-After": "7"})),
        Outcome("throttled", "throttled", retry_after=7.0),
    ),
    (named("openai.APIError", code="server_error"), failed("server_error")),
    (
        named(
            "anthropic.APIStatusError",
            status_code=200,
            response=response(200),
            body={"type": "error", "error": {"type": "overloaded_error"}},
        ),
        failed("overloaded"),
    ),
    (
        named(
            "slack_sdk.errors.SlackApiError",
            response=SimpleNamespace(status_code=200, headers={}, data={"ok": False, "error": "token_revoked"}),
        ),
        Outcome("unauthorized"),
    ),
    (
        named(
            "botocore.exceptions.ClientError",
            response={"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": {"HTTPStatusCode": 400}},
        ),
        Outcome("throttled", "throttled"),
    ),
    (
        named(
            "botocore.exceptions.ClientError",
            response={"Error": {"Code": "ExpiredToken"}, "ResponseMetadata": {"HTTPStatusCode": 400}},
        ),
        Outcome("unauthorized"),
    ),
    (
        named("google.genai.errors.ClientError", code=429, status="RESOURCE_EXHAUSTED"),
        Outcome("throttled", "throttled"),
    ),
    (
        named("github.GithubException.RateLimitExceededException", status=403, headers={"x-ratelimit-remaining": "0"}),
        Outcome("throttled", "throttled"),
    ),
    (named("psycopg.errors.InvalidPassword", sqlstate="28P01"), Outcome("unauthorized")),
    (named("psycopg.errors.UniqueViolation", sqlstate="23505"), ANSWERED),
    (named("redis.exceptions.AuthenticationError", "invalid", ConnectionError), Outcome("unauthorized")),
    (named("redis.exceptions.BusyLoadingError", "loading", ConnectionError), failed("overloaded")),
    (named("psycopg.OperationalError", "FATAL:  password authentication failed"), Outcome("unauthorized")),
    (named("psycopg.OperationalError", "failed to resolve host 'x'"), failed("dns_error")),
    (named("tavily.errors.UsageLimitExceededError"), Outcome("throttled", "throttled")),
]


@pytest.mark.parametrize(("exc", "outcome"), CODED, ids=lambda value: type(value).__name__)
def test_B118_provider_codes_in_exceptions(exc: BaseException, outcome: Outcome) -> None:
    assert exception_outcome(exc, called=True) == outcome


MCP: list[tuple[BaseException, Outcome]] = [
    (named("mcp.shared.exceptions.MCPError", "Connection closed", code=-32000), failed("connection_reset")),
    (named("mcp.shared.exceptions.MCPError", "Request 'tools/call' timed out", code=-32001), failed("timeout")),
    (
        named(
            "mcp.shared.exceptions.McpError", "Timed out while waiting for response", error=SimpleNamespace(code=408)
        ),
        failed("timeout"),
    ),
    (named("mcp.shared.exceptions.MCPError", "bad arguments", code=-32602), ANSWERED),
    (named("mcp.shared.exceptions.McpError", "bad arguments", error=SimpleNamespace(code=-32602)), ANSWERED),
    (named("mcp.shared.exceptions.MCPError", "Failed to parse JSON response", code=-32700), MALFORMED),
    (named("mcp.shared.exceptions.MCPError", "Unexpected content type: text/html", code=-32600), MALFORMED),
    (named("mcp.shared.exceptions.MCPError", "boom", code=-32603), failed("server_error")),
    (named("mcp.shared.exceptions.MCPError", "boom", code=-32050), UNCLASSIFIED),
]


@pytest.mark.parametrize(("exc", "outcome"), MCP, ids=lambda value: type(value).__name__)
def test_mcp_errors(exc: BaseException, outcome: Outcome) -> None:
    assert exception_outcome(exc, called=True) == outcome


def test_an_mcp_error_that_stands_for_an_http_status_yields_to_the_status_that_was_seen() -> None:
    exc = named("mcp.shared.exceptions.MCPError", "Server returned an error response", code=-32603)
    throttled = Outcome("throttled", "throttled", retry_after=7.0)
    assert exception_outcome(exc) == failed("server_error")
    assert exception_outcome(exc, seen=throttled) is throttled
    assert exception_outcome(exc, seen=ANSWERED) is ANSWERED


class Rpc(grpc.RpcError):
    def __init__(self, code: Any, details: str = "", metadata: Any = ()) -> None:
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._metadata


GRPC: list[tuple[BaseException, Outcome]] = [
    (
        Rpc(grpc.StatusCode.UNAVAILABLE, "failed to connect; last error: Connection refused"),
        failed("connection_refused"),
    ),
    (Rpc(grpc.StatusCode.UNAVAILABLE, "errors resolving x: [hostname lookup error]"), failed("dns_error")),
    (Rpc(grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer (104)"), failed("connection_reset")),
    (Rpc(grpc.StatusCode.UNAVAILABLE, "Tls handshake failed (TSI_PROTOCOL_FAILURE)"), failed("tls_error")),
    (Rpc(grpc.StatusCode.UNAVAILABLE, "draining"), failed("server_error")),
    (
        Rpc(grpc.StatusCode.UNAVAILABLE, "draining", [("grpc-retry-pushback-ms", "1500")]),
        Outcome("failure", "server_error", retry_after=1.5),
    ),
    (Rpc(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"), failed("timeout")),
    (Rpc(grpc.StatusCode.INTERNAL, "Exception deserializing response!"), MALFORMED),
    (Rpc(grpc.StatusCode.INTERNAL, "boom"), failed("server_error")),
    (Rpc(grpc.StatusCode.UNKNOWN, "boom"), failed("server_error")),
    (Rpc(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down"), Outcome("throttled", "throttled")),
    (Rpc(grpc.StatusCode.UNAUTHENTICATED), Outcome("unauthorized")),
    (Rpc(grpc.StatusCode.PERMISSION_DENIED), ANSWERED),
    (Rpc(grpc.StatusCode.INVALID_ARGUMENT), ANSWERED),
    (Rpc(grpc.StatusCode.CANCELLED), IGNORED),
    (Rpc(None), UNCLASSIFIED),
]


@pytest.mark.parametrize(("exc", "outcome"), GRPC, ids=lambda value: str(getattr(value, "_code", "")))
def test_grpc_errors(exc: BaseException, outcome: Outcome) -> None:
    assert exception_outcome(exc, called=True) == outcome


def a_validation_error() -> BaseException:
    class Model(pydantic.BaseModel):
        n: int

    return caught(lambda: Model.model_validate({"n": "x"}))


@pytest.mark.parametrize(
    "exc", [ValueError("x"), TypeError("x"), UnicodeEncodeError("ascii", "é", 0, 1, "x")], ids=repr
)
def test_argument_errors_are_neutral_before_any_call_and_not_after(exc: BaseException) -> None:
    assert exception_outcome(exc, tool=True) is IGNORED
    assert exception_outcome(exc) is IGNORED
    assert exception_outcome(exc, tool=True, called=True) == TOOL_ERROR
    assert exception_outcome(exc, called=True) == UNCLASSIFIED


def test_a_failed_validation_is_of_the_arguments_before_a_call_and_of_the_output_after() -> None:
    for exc in (a_validation_error(), named("jsonschema.exceptions.ValidationError")):
        assert exception_outcome(exc, tool=True) is IGNORED
        assert exception_outcome(exc, tool=True, called=True) == MALFORMED


NEUTRAL = [
    "pydantic_ai.exceptions.ModelRetry",
    "pydantic_ai.exceptions.ApprovalRequired",
    "langgraph.errors.GraphInterrupt",
    "agents.exceptions.ToolInputGuardrailTripwireTriggered",
    "app.ApprovalDenied",
    "app.PermissionDeniedError",
    "app.PolicyDeniedException",
    "app.GuardrailDenied",
    "app.ApprovalError",
    "app.approval_denied",
]


@pytest.mark.parametrize("name", NEUTRAL)
def test_control_flow_and_denials_are_neutral_also_after_a_call(name: str) -> None:
    base = type("GraphBubbleUp", (Exception,), {"__module__": "langgraph.errors"}) if "langgraph" in name else Exception
    assert exception_outcome(named(name, base=base), tool=True, called=True) is IGNORED


@pytest.mark.parametrize("code", ["approval_denied", "policy_denied", "guardrail_denied", "approval_error"])
def test_a_denial_as_code_is_neutral(code: str) -> None:
    assert exception_outcome(named("app.ToolError", code=code), tool=True, called=True).kind == "neutral"


def test_a_permission_error_of_a_tool_is_neutral() -> None:
    assert exception_outcome(PermissionError(13, "denied"), tool=True, called=True) is IGNORED


def test_a_refusal_below_is_neutral() -> None:
    refusal = named("otel_breaker.errors.CircuitOpenError")
    assert exception_outcome(raised(refusal, ConnectionResetError(104, "x")), tool=True) is IGNORED


@pytest.mark.parametrize(
    ("exc", "outcome"),
    [
        (asyncio.CancelledError(), ABORTED),
        (concurrent.futures.CancelledError(), ABORTED),
        (BaseExceptionGroup("x", [asyncio.CancelledError(), asyncio.CancelledError()]), ABORTED),
        (GeneratorExit(), IGNORED),
        (KeyboardInterrupt(), IGNORED),
        (SystemExit(503), IGNORED),
        (BaseExceptionGroup("x", [KeyboardInterrupt(), TimeoutError()]), IGNORED),
        (BaseExceptionGroup("x", [asyncio.CancelledError(), TimeoutError()]), Outcome("failure", "timeout")),
    ],
    ids=repr,
)
def test_cancellation_and_interrupts(exc: BaseException, outcome: Outcome) -> None:
    assert exception_outcome(exc) == outcome
    assert exception_outcome(exc, tool=True, called=True, unclassified="neutral") == outcome


def test_a_cancellation_deep_in_a_chain_is_no_cancellation() -> None:
    assert exception_outcome(raised(TimeoutError(), asyncio.CancelledError())) == failed("timeout")
    assert exception_outcome(raised(KeyError("x"), asyncio.CancelledError()), tool=True) == TOOL_ERROR


def test_what_nothing_explains() -> None:
    assert exception_outcome(KeyError("x")) == UNCLASSIFIED
    assert exception_outcome(KeyError("x"), tool=True) == TOOL_ERROR
    assert exception_outcome(KeyError("x"), unclassified="neutral") is IGNORED
    assert exception_outcome(KeyError("x"), tool=True, unclassified="neutral") is IGNORED
    assert exception_outcome(TimeoutError(), unclassified="neutral") == failed("timeout")


SERVER_ERROR = failed("server_error")


@pytest.mark.parametrize(
    ("exc", "seen", "outcome"),
    [
        (ValueError("Request failed with status code 503"), SERVER_ERROR, SERVER_ERROR),
        (KeyError("x"), SERVER_ERROR, SERVER_ERROR),
        (KeyError("x"), ANSWERED, ANSWERED),
        (PermissionError("x"), SERVER_ERROR, SERVER_ERROR),
        (KeyError("x"), OK, UNCLASSIFIED),
        (KeyError("x"), ABORTED, UNCLASSIFIED),
        (TimeoutError(), SERVER_ERROR, failed("timeout")),
        (json.JSONDecodeError("bad", "", 0), SERVER_ERROR, MALFORMED),
        (named("x.E", status_code=404), SERVER_ERROR, ANSWERED),
        (named("openai.APIConnectionError"), failed("dns_error"), failed("dns_error")),
        (named("openai.APIConnectionError"), ANSWERED, failed("connection_error")),
        (named("openai.APIConnectionError"), OK, failed("connection_error")),
        (named("openai.APIConnectionError"), IGNORED, IGNORED),
    ],
)
def test_the_last_attempt_counts_as_a_status(exc: BaseException, seen: Outcome, outcome: Outcome) -> None:
    assert exception_outcome(exc, seen=seen, called=True) == outcome


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class HostileError(Exception):
    @property
    def response(self) -> Any:
        raise RuntimeError("no")

    status_code = status = code = body = meta = reason = headers = response


class LyingText(str):
    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError("no")

    def __contains__(self, key: Any) -> bool:
        raise RuntimeError("no")


class LyingTextError(Exception):
    def __str__(self) -> str:
        return LyingText("x")


class UnreadableError(Exception):
    @property
    def response(self) -> Any:
        class Response:
            status_code = 503

            @property
            def headers(self) -> Any:
                raise RuntimeError("no")

        return Response()


class Meta(type):
    @property
    def __mro__(cls) -> Any:
        raise RuntimeError("no")


class OddClassError(Exception, metaclass=Meta):
    pass


@pytest.mark.parametrize(
    "exc",
    [UnprintableError(), HostileError(), LyingTextError(), OddClassError(), Exception(HostileError())],
    ids=lambda e: type(e).__name__,
)
def test_no_exception_is_weird_enough_to_raise(exc: BaseException) -> None:
    assert exception_outcome(exc) == UNCLASSIFIED
    assert exception_outcome(exc, unclassified="neutral") is IGNORED


def test_unreadable_headers_leave_the_status() -> None:
    assert exception_outcome(UnreadableError()) == failed("server_error")


def test_an_exception_that_cannot_be_classified_is_logged_once_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "otel_breaker"):
        for _ in range(3):
            assert exception_outcome(OddClassError("S3CRET"), tool=True) == TOOL_ERROR
    assert [r.getMessage() for r in caplog.records] == ["an exception of type OddClassError cannot be classified"]


def test_no_client_library_is_imported() -> None:
    script = (
        "import sys; before = set(sys.modules); import otel_breaker.classify, otel_breaker.keys;"
        "from otel_breaker.classify import exception_outcome; exception_outcome(TimeoutError());"
        "found = {m.partition('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names);"
        "print(sorted(found - {'_missing_stdlib_info'}));"  # of Debian's Python 3.15
        "print('ssl' in sys.modules, 'asyncio' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["['otel_breaker']", "False False"]
