from __future__ import annotations

import logging
import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import httpx2
import pytest
import requests

from otel_breaker.classify import response_outcome, retry_after

NOW = datetime(2026, 11, 30, 20, 0, 0, tzinfo=UTC)
WALL = NOW.timestamp()

IN_SEVEN_SECONDS = {
    "IMF-fixdate": "Mon, 30 Nov 2026 20:00:07 GMT",
    "RFC 850": "Monday, 30-Nov-26 20:00:07 GMT",
    "asctime": "Mon Nov 30 20:00:07 2026",
    "no zone": "Mon, 30 Nov 2026 20:00:07",
    "numeric zone": "Mon, 30 Nov 2026 12:00:07 -0800",
}
PAST = [
    "Fri, 31 Dec 1999 23:59:59 GMT",
    "Mon, 30 Nov 2026 19:59:59 GMT",
    "Mon, 30 Nov 2026 20:00:00 GMT",
    "Thu, 01 Jan 1970 00:00:00 GMT",
]
UNUSABLE = [
    "inf",
    "Infinity",
    "-inf",
    "1e400",
    "1e3",
    "nan",
    "NaN",
    "-1",
    "-0",
    "-0.0",
    "0",
    "0.0",
    "00",
    "+5",
    "",
    " ",
    "\t",
    "5, 10",
    "5;10",
    "0x10",
    "1_000",
    "\u0667",
    "\uff17",
    "\u00b2",
    "soon",
    "5s",
    "1.",
    ".5",
    "1.2.3",
    "7 GMT",
    "Mon",
    "20:00:07",
    "Mon, 99 Nov 2026 20:00:07 GMT",
    "Mon, 30 Nov 99999999999999 20:00:07 GMT",
    "Mon, 30 Foo 2026 20:00:07 GMT",
    "2026-11-30T20:00:07Z",
    "\x00",
    "7\n8",
    "\ud800",
    "1" * 5 + "e5",
]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("date", IN_SEVEN_SECONDS.values(), ids=IN_SEVEN_SECONDS)
def test_B111_each_date_form_seven_seconds_ahead_is_seven_seconds(status: int, date: str) -> None:
    assert retry_after({"Retry-After": date}, WALL) == 7.0
    assert response_outcome(status, {"Retry-After": date}, wall=WALL).retry_after == 7.0


@pytest.mark.parametrize("date", PAST)
def test_B111_a_past_date_names_no_time(date: str) -> None:
    assert retry_after({"Retry-After": date}, WALL) is None


def test_B111_without_a_clock_given_the_systems_is_used() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    asked = retry_after({"Retry-After": soon}, None)
    assert asked is not None
    assert 90 < asked <= 100


@pytest.mark.parametrize("value", UNUSABLE)
@pytest.mark.parametrize("name", ["Retry-After", "retry-after-ms"])
def test_B112_what_is_no_positive_finite_number_names_no_time(name: str, value: str) -> None:
    assert retry_after({name: value}, WALL) is None


@pytest.mark.parametrize("value", UNUSABLE)
def test_B112_the_response_stays_throttled_without_a_time(value: str) -> None:
    outcome = response_outcome(429, {"Retry-After": value}, wall=WALL)
    assert (outcome.kind, outcome.reason, outcome.retry_after) == ("throttled", "throttled", None)


def test_B112_the_reason_is_visible_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "otel_breaker"):
        for value in ("inf", "nan", "-1"):
            retry_after({"Retry-After": value}, WALL)
    assert [record.getMessage() for record in caplog.records] == [
        "invalid retry-after: retry-after 'inf' names no time, the configured cooldown applies"
    ]


def test_B112_a_long_or_wild_value_is_logged_short_and_printable(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "otel_breaker"):
        retry_after({"Retry-After": "x\r\nforged: \x1b[31m" + "é" * 100 + "S3CRET"}, WALL)
    message = caplog.records[0].getMessage()
    assert "S3CRET" not in message
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 130


def test_B112_usable_values_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    retry_after({"Retry-After": "7"}, WALL)
    retry_after({"x-other": "nan"}, WALL)
    retry_after({}, WALL)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "2", "retry-after-ms": "1500"}, 1.5),
        ({"x-ms-retry-after-ms": "250", "retry-after": "30"}, 0.25),
        ({"grpc-retry-pushback-ms": "1500"}, 1.5),
        ({"retry-after-ms": "0", "retry-after": "2"}, 2.0),
        ({"retry-after-ms": "junk", "retry-after": "2"}, 2.0),
        ({"retry-after-ms": "0.5"}, 0.0005),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": " 7 "}, 7.0),
        ({"Retry-After": "007"}, 7.0),
        ({"RETRY-AFTER": "7"}, 7.0),
        ({b"Retry-After": b"7"}, 7.0),
        ([("Retry-After", "7")], 7.0),
        ([(b"retry-after", b"7"), (b"x", b"\xff")], 7.0),
        ({"Retry-After": "60000"}, 60_000.0),
        ({"Retry-After": "99999999999"}, 99_999_999_999.0),
        ({"Retry-After": "9" * 400}, 1e12),
        ({"retry-after-ms": "9" * 400}, 1e12),
    ],
)
def test_B114_units_precedence_and_large_values(headers: Any, seconds: float) -> None:
    assert retry_after(headers, WALL) == seconds


def test_B114_real_responses() -> None:
    real = requests.Response()
    real.headers["Retry-After-Ms"] = "1500"
    real.headers["Retry-After"] = "2"
    assert retry_after(real.headers, WALL) == 1.5
    assert retry_after(httpx.Response(429, headers={"Retry-After": "2"}).headers, WALL) == 2.0
    assert (
        retry_after(httpx2.Response(429, headers={"retry-after-ms": "1500", "Retry-After": "2"}).headers, WALL) == 1.5
    )
    twice = httpx.Response(429, headers=[("Retry-After", "5"), ("Retry-After", "10")]).headers
    assert retry_after(twice, WALL) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(WALL) + 60)}, 60.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "60"}, 60.0),
        ({"x-ratelimit-remaining": "0", "ratelimit-reset": "60"}, 60.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(WALL) - 60)}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "6m0s"}, None),
        ({"x-ratelimit-remaining": "17", "x-ratelimit-reset": "60"}, None),
        ({"x-ratelimit-reset": "60"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "60", "retry-after": "5"}, 5.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "60", "retry-after": "nan"}, None),
    ],
)
def test_the_reset_of_a_spent_rate_limit_stands_in_for_a_missing_retry_after(
    headers: Any, seconds: float | None
) -> None:
    assert retry_after(headers, WALL) == seconds


class Hostile:
    def items(self) -> Any:
        raise RuntimeError("no")


class Lying(str):
    __slots__ = ()

    def strip(self, chars: str | None = None, /) -> str:
        raise RuntimeError("no")

    def lower(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "headers",
    [None, Hostile(), 7, "retry-after: 7", [1, 2], {"retry-after": object()}, {7: 7}, {"retry-after": None}, object()],
)
def test_B111_no_headers_are_weird_enough_to_raise(headers: Any) -> None:
    assert retry_after(headers, WALL) is None


def test_B111_text_subclasses_are_read_as_text() -> None:
    assert retry_after({Lying("Retry-After"): Lying("7")}, WALL) == 7.0


@pytest.mark.parametrize("wall", [math.inf, math.nan, -math.inf])
def test_B112_a_broken_clock_gives_no_infinite_wait(wall: float) -> None:
    asked = retry_after({"Retry-After": IN_SEVEN_SECONDS["RFC 850"]}, wall)
    assert asked is None or math.isfinite(asked)
