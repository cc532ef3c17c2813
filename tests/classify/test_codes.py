from __future__ import annotations

from typing import Any

import pytest

from otel_breaker.classify import code_outcome, text_outcome
from otel_breaker.classify.codes import sqlstate_outcome
from otel_breaker.outcomes import ANSWERED, IGNORED, Outcome

QUOTA = Outcome("throttled", "quota_exhausted")
THROTTLED = Outcome("throttled", "throttled")
OVERLOADED = Outcome("failure", "overloaded")
SERVER_ERROR = Outcome("failure", "server_error")
TIMEOUT = Outcome("failure", "timeout")
UNAUTHORIZED = Outcome("unauthorized")

CODES = {
    QUOTA: ["insufficient_quota", "quotaExceeded", "billing_hard_limit_reached"],
    THROTTLED: [
        "rate_limit_exceeded",
        "rate_limit_error",
        "rateLimitExceeded",
        "ratelimited",
        "RESOURCE_EXHAUSTED",
        "ThrottlingException",
        "Throttling",
        "TooManyRequestsException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "SlowDown",
        "com.amazonaws.dynamodb.v20120810#ThrottlingException",
        "ThrottlingException:http://internal.amazon.com/",
    ],
    OVERLOADED: ["overloaded_error", "server_busy", "ServerBusy", "ModelNotReadyException", "LOADING"],
    SERVER_ERROR: [
        "UNAVAILABLE",
        "INTERNAL",
        "UNKNOWN",
        "DATA_LOSS",
        "api_error",
        "server_error",
        "InternalFailure",
        "ServiceUnavailableException",
        "InternalServerException",
    ],
    TIMEOUT: ["DEADLINE_EXCEEDED", "RequestTimeout", "timeout_error"],
    UNAUTHORIZED: [
        "UNAUTHENTICATED",
        "invalid_api_key",
        "authentication_error",
        "token_revoked",
        "invalid_auth",
        "account_inactive",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "NOAUTH",
        "WRONGPASS",
    ],
    ANSWERED: [
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "UNIMPLEMENTED",
        "ABORTED",
        "FAILED_PRECONDITION",
        "invalid_request_error",
        "ValidationException",
        "AccessDeniedException",
        "context_length_exceeded",
        "NOPERM",
    ],
    IGNORED: ["CANCELLED", "approval_denied", "policy_denied", "guardrail_denied", "approval_error"],
}


@pytest.mark.parametrize(("outcome", "code"), [(o, c) for o, codes in CODES.items() for c in codes])
def test_B118_provider_codes(outcome: Outcome, code: str) -> None:
    assert code_outcome(code) == outcome


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (-32700, Outcome("failure", "malformed_output")),
        (-32603, SERVER_ERROR),
        (-32602, ANSWERED),
        ("-32602", ANSWERED),
        (-32601, ANSWERED),
        (-32600, IGNORED),
        (32600, IGNORED),
        (-32000, None),
        (-32050, None),
        (404, None),
        (True, None),
    ],
)
def test_json_rpc_numbers(code: Any, outcome: Outcome | None) -> None:
    assert code_outcome(code) == outcome


@pytest.mark.parametrize(
    "code",
    [
        None,
        "",
        " ",
        "INSUFFICIENT QUOTA!! pay now",
        "you have an insufficient_quota problem",
        "x" * 10_000,
        1.5,
        b"throttled",
        object(),
        ["throttled"],
        {},
        "\ud800",
        "é",
    ],
)
def test_B118_what_is_no_known_code_says_nothing(code: Any) -> None:
    assert code_outcome(code) is None


class Lying(str):
    __slots__ = ()

    def lower(self) -> str:
        raise RuntimeError("no")

    def __hash__(self) -> int:
        raise RuntimeError("no")


def test_a_code_in_a_hostile_string_is_read_all_the_same() -> None:
    assert code_outcome(Lying("insufficient_quota")) == QUOTA


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("28P01", UNAUTHORIZED),
        ("28000", UNAUTHORIZED),
        ("53300", OVERLOADED),
        ("57P03", OVERLOADED),
        ("57P01", Outcome("failure", "connection_error")),
        ("08006", Outcome("failure", "connection_error")),
        ("58030", SERVER_ERROR),
        ("XX000", SERVER_ERROR),
        ("23505", ANSWERED),
        ("42601", ANSWERED),
        ("57014", ANSWERED),
        ("e3q8", None),
        (None, None),
        (28000, None),
    ],
)
def test_sqlstates(state: Any, outcome: Outcome | None) -> None:
    assert sqlstate_outcome(state) == outcome


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused",
            "connection_refused",
        ),
        ("errors resolving x.invalid:80: [field:hostname lookup error:address lookup failed]", "dns_error"),
        ("failed to resolve host 'name.invalid': [Errno -2] Name or service not known", "dns_error"),
        ("UNAVAILABLE: ipv4:127.0.0.1:1: recvmsg:Connection reset by peer (104)", "connection_reset"),
        ("Handshake read failed (recvmsg:Connection reset by peer (104))", "connection_reset"),
        ("server closed the connection unexpectedly", "connection_reset"),
        ("Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL", "tls_error"),
        ("Request 'tools/call' timed out", "timeout"),
        ("SSE stream ended without a response", "truncated_output"),
        ("Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame)", "malformed_output"),
        ("Exception deserializing response!", "malformed_output"),
        ("Unexpected content type: text/html", "malformed_output"),
        ("All connection attempts failed", "connection_error"),
        ("FATAL:  sorry, too many clients already", "overloaded"),
        ("FATAL:  the database system is starting up", "overloaded"),
        ("Error executing tool x: Server error '503 Service Unavailable' for url 'http://h/'", "server_error"),
        ("503 Server Error: Service Unavailable for url: http://h/", "server_error"),
        ("Error code: 429 - slow down", "throttled"),
        ("Request failed with status code 503", "server_error"),
    ],
)
def test_texts_of_opaque_libraries(text: str, reason: str) -> None:
    outcome = text_outcome(text)
    assert outcome is not None
    assert outcome.reason == reason


@pytest.mark.parametrize(
    "text", ["Unknown tool: nosuch", "1 validation error for addArguments", "Client error '404 Not Found' for url"]
)
def test_texts_that_blame_the_caller_are_neutral(text: str) -> None:
    assert text_outcome(text) == ANSWERED


@pytest.mark.parametrize(
    "text", ["", "boom", "no rows", "order 503 not found", "Error executing tool boom", None, 7, b"timed out"]
)
def test_other_texts_say_nothing(text: Any) -> None:
    assert text_outcome(text) is None
