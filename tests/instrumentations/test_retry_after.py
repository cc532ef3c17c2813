"""Retry-After in every form, sent by a real server, for each client: what the circuit waits for it."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import asdict
from email.utils import formatdate
from typing import Any

import pytest

from otel_breaker import settings
from otel_breaker.errors import CircuitOpenError
from tests.support.clients import Caller, Client
from tests.support.counts import outcomes
from tests.support.faults import Script

STEP = 30.0
"""The first step of the ladder: what applies where no time is named."""


def forms(wall: float) -> dict[str, tuple[dict[str, str], float]]:
    """Headers, and the cooldown that they ask for. Every asked time lies beyond the client's time-out of 5 s."""

    def date(style: str, ahead: float = 7) -> str:
        return time.strftime(style, time.gmtime(wall + ahead))

    told = {
        "seconds": ({"Retry-After": "7"}, 7.0),
        "fraction": ({"Retry-After": "7.5"}, 7.5),
        "spaces": ({"Retry-After": "  7  "}, 7.0),
        "IMF-fixdate": ({"Retry-After": formatdate(wall + 7, usegmt=True)}, 7.0),
        "RFC 850": ({"Retry-After": date("%A, %d-%b-%y %H:%M:%S GMT")}, 7.0),
        "asctime": ({"Retry-After": date("%a %b %d %H:%M:%S %Y")}, 7.0),
        "no zone": ({"Retry-After": date("%a, %d %b %Y %H:%M:%S")}, 7.0),
        "numeric zone": ({"Retry-After": date("%a, %d %b %Y %H:%M:%S -0800", 7 - 8 * 3600)}, 7.0),
        "milliseconds": ({"retry-after-ms": "7500"}, 7.5),
        "milliseconds first": ({"Retry-After": "9", "retry-after-ms": "7500"}, 7.5),
        "beyond the cap": ({"Retry-After": "86400"}, 3600.0),
        "date beyond the cap": ({"Retry-After": formatdate(wall + 86_400, usegmt=True)}, 3600.0),
        "digits without end": ({"Retry-After": "9" * 400}, 3600.0),
        "past date": ({"Retry-After": formatdate(wall - 7, usegmt=True)}, STEP),
        "present date": ({"Retry-After": formatdate(wall, usegmt=True)}, STEP),
        "none": ({}, STEP),
    }
    unusable = ("inf", "Infinity", "1e400", "nan", "-1", "-0", "0", "", " ", "5, 10", "0x10", "\u0667", "soon")
    return told | {repr(value): ({"Retry-After": value}, STEP) for value in unusable}


@pytest.mark.parametrize("status", [429, 503])
def test_every_form_B111_B112(
    client: Client, caller: Caller, patched: Any, manual_clock: Any, srv: Script, status: int
) -> None:
    settings.use(settings.load(throttle_threshold=1, failure_threshold=1))
    expected = {name: cooldown for name, (_, cooldown) in forms(manual_clock.wall()).items()}
    waits, answers = {}, {}
    for name, (headers, _) in forms(manual_clock.wall()).items():
        srv.reply(status, headers=headers)
        assert caller.get(srv.url()).status == status
        circuit = patched.get(srv.host)
        shot = circuit.snapshot()
        assert shot.state == "open"
        assert all(math.isfinite(value) for value in asdict(shot).values() if isinstance(value, (int, float)))
        waits[name] = shot.cooldown
        error = caller.get(srv.url()).error
        assert isinstance(error, CircuitOpenError)
        answers[name] = error.answer()["retry_after_ms"]
        circuit.reset()
    assert waits == expected
    assert answers == {name: math.ceil(cooldown) * 1000 for name, cooldown in expected.items()}
    assert srv.hits == len(expected)
    assert outcomes(patched) == {"was_throttled" if status == 429 else "failure": len(expected)}


def test_an_unusable_one_is_said_once_B112(
    caller: Caller, patched: Any, srv: Script, caplog: pytest.LogCaptureFixture
) -> None:
    for value in ("inf", "nan", "-1"):
        srv.reply(503, headers={"Retry-After": value})
        caller.get(srv.url())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "invalid retry-after: retry-after 'inf' names no time, the configured cooldown applies"
    ]


@pytest.mark.parametrize("status", [429, 503])
def test_that_of_a_probe_sets_the_reopening_B111(
    caller: Caller, patched: Any, manual_clock: Any, srv: Script, status: int
) -> None:
    settings.use(settings.load(failure_threshold=1))
    srv.reply(503)
    caller.get(srv.url())
    cooldowns = [patched.get(srv.host).snapshot().cooldown]
    for headers in ({"Retry-After": "7"}, {}, {"retry-after-ms": "2500"}, {"Retry-After": "0"}):
        manual_clock.advance(cooldowns[-1])
        srv.reply(status, headers=headers)
        caller.get(srv.url())
        cooldowns.append(patched.get(srv.host).snapshot().cooldown)
    assert cooldowns == [30.0, 7.0, 300.0, 2.5, 900.0]  # the ladder goes on below what stood in for its steps
    assert srv.hits == 5


def test_a_429_within_the_clients_own_timeout_counts_towards_nothing(client: Client, patched: Any, srv: Script) -> None:
    """The library's time-out takes the place of `call_deadline` as the yardstick."""
    with client.open(timeout=120) as caller:
        for asked, state in (("120", "closed"), ("121", "open")):
            srv.reply(429, headers={"Retry-After": asked}, times=3)
            for _ in range(3):
                caller.get(srv.url())
            assert patched.get(srv.host).snapshot().state == state
    assert patched.get(srv.host).snapshot().cooldown == 121.0
    assert srv.hits == 6
