from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from otel_breaker.classify import response_outcome
from otel_breaker.outcomes import ANSWERED, OK, Outcome

FAILED = Outcome("failure", "server_error")
THROTTLED = Outcome("throttled", "throttled")
UNCLASSIFIED = Outcome("failure", "unclassified")


@pytest.mark.parametrize("status", [200, 201, 204, 206, 301, 302, 304, 307, 101, HTTPStatus.OK])
def test_B116_what_is_below_400_is_a_success(status: int) -> None:
    assert response_outcome(status) is OK


@pytest.mark.parametrize(
    "status", [400, 402, 403, 404, 405, 409, 410, 413, 414, 415, 418, 422, 423, 424, 425, 426, 428, 431, 451]
)
def test_B116_other_4xx_are_neutral_answers(status: int) -> None:
    assert response_outcome(status) is ANSWERED


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504, 505, 507, 511, 520, 522, 524, 530, 599])
def test_B116_5xx_count(status: int) -> None:
    assert response_outcome(status) == FAILED


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (401, Outcome("unauthorized")),
        (408, Outcome("failure", "timeout")),
        (429, THROTTLED),
        (529, Outcome("failure", "overloaded")),
        (600, ANSWERED),
        (999, ANSWERED),
        (0, UNCLASSIFIED),
        (-1, UNCLASSIFIED),
    ],
)
def test_B116_statuses_with_a_rule_of_their_own(status: int, outcome: Outcome) -> None:
    assert response_outcome(status) == outcome


@pytest.mark.parametrize(
    ("status", "seconds"),
    [(429, 7.0), (503, 7.0), (500, None), (502, None), (529, None), (404, None), (401, None), (408, None)],
)
def test_B111_retry_after_is_read_on_429_and_503(status: int, seconds: float | None) -> None:
    assert response_outcome(status, {"Retry-After": "7"}).retry_after == seconds


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({}, ANSWERED),
        ({"x-ratelimit-remaining": "4999"}, ANSWERED),
        ({"x-ratelimit-remaining": "0"}, THROTTLED),
        ({"Retry-After": "60"}, Outcome("throttled", "throttled", retry_after=60.0)),
        ({"Retry-After": "soon"}, ANSWERED),
    ],
)
def test_a_403_is_a_denial_unless_it_is_a_rate_limit(headers: dict[str, str], outcome: Outcome) -> None:
    assert response_outcome(403, headers) == outcome


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (429, "insufficient_quota", Outcome("throttled", "quota_exhausted", retry_after=7.0)),
        (429, "rate_limit_exceeded", Outcome("throttled", "throttled", retry_after=7.0)),
        (429, None, Outcome("throttled", "throttled", retry_after=7.0)),
        (429, "INSUFFICIENT QUOTA of words in a message", Outcome("throttled", "throttled", retry_after=7.0)),
        (400, "ThrottlingException", Outcome("throttled", "throttled", retry_after=7.0)),
        (400, "UnrecognizedClientException", Outcome("unauthorized")),
        (400, "ValidationException", ANSWERED),
        (400, "RequestTimeout", Outcome("failure", "timeout")),
        (200, "token_revoked", Outcome("unauthorized")),
        (200, "overloaded_error", Outcome("failure", "overloaded")),
        (200, "permission_denied", ANSWERED),
        (200, "no such code", OK),
        (503, "SlowDown", Outcome("throttled", "throttled", retry_after=7.0)),
        (503, "overloaded_error", Outcome("failure", "overloaded", retry_after=7.0)),
    ],
)
def test_B118_a_known_code_overrides_the_status(status: int, code: str | None, outcome: Outcome) -> None:
    assert response_outcome(status, {"Retry-After": "7"}, code=code) == outcome


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (429, "invalid_request_error", THROTTLED),
        (429, "server_error", THROTTLED),
        (500, "invalid_request_error", FAILED),
        (401, "permission_denied", Outcome("unauthorized")),
        (404, "internal_error", ANSWERED),
    ],
)
def test_B118_a_code_that_says_less_than_the_status_does_not(status: int, code: str, outcome: Outcome) -> None:
    assert response_outcome(status, code=code) == outcome


class Raising:
    def __lt__(self, other: object) -> bool:
        raise RuntimeError("no")


@pytest.mark.parametrize("status", [None, "503", object(), Raising(), float("nan")])
def test_an_unreadable_status_is_unclassified_and_never_raises(status: Any) -> None:
    assert response_outcome(status) == UNCLASSIFIED


@pytest.mark.parametrize("headers", [7, object(), [None], {"Retry-After": object()}])
def test_unreadable_headers_do_not_change_the_status(headers: Any) -> None:
    assert response_outcome(429, headers) == THROTTLED
    assert response_outcome(200, headers) is OK
