from __future__ import annotations

import pytest

from otel_breaker.core.events import Counted, Moved
from otel_breaker.outcomes import ABORTED, ANSWERED, IGNORED, OK, Outcome
from tests.core.drive import DENIED, START, Drive, bad, busy

LONG = busy(100)


@pytest.mark.parametrize("threshold", [1, 3, 4])
def test_a_run_of_long_429s_opens_on_exactly_the_configured_one(threshold: int) -> None:
    drive = Drive(throttle_threshold=threshold)
    for _ in range(threshold - 1):
        assert drive.call(LONG) == [Counted("throttled", "throttled")]
        assert (drive.name, drive.view.failures) == ("closed", 0)
    effects = drive.call(LONG)
    assert (drive.name, drive.view.reason, drive.view.cooldown) == ("open", "throttled", 100.0)
    moved = next(e for e in effects if isinstance(e, Moved))
    assert (moved.previous_state, moved.state, moved.reason, moved.cooldown) == ("closed", "open", "throttled", 100.0)
    assert moved.at == START


def test_429s_that_name_no_time_open_for_the_first_step() -> None:
    drive = Drive()
    drive.call(busy(), 3)
    assert (drive.name, drive.view.cooldown) == ("open", 30.0)


def test_B118_a_quota_opens_with_its_own_reason() -> None:
    drive = Drive()
    drive.call(busy(86_400, reason="quota_exhausted"), 3)
    assert (drive.view.reason, drive.view.cooldown) == ("quota_exhausted", 3600.0)


@pytest.mark.parametrize("breaker", [OK, busy(30), busy(1)])
def test_a_success_or_a_short_429_ends_the_run(breaker: Outcome) -> None:
    drive = Drive()
    drive.call(LONG, 2)
    drive.call(breaker)
    drive.call(LONG, 2)
    assert drive.name == "closed"
    drive.call(LONG)
    assert drive.name == "open"


@pytest.mark.parametrize("other", [bad(), IGNORED, ANSWERED, ABORTED, DENIED])
def test_nothing_else_ends_the_run(other: Outcome) -> None:
    drive = Drive()
    drive.call(LONG, 2)
    drive.call(other)
    assert drive.name == "closed"
    drive.call(LONG)
    assert (drive.name, drive.view.reason) == ("open", "throttled")


def test_throttles_do_not_touch_the_failure_streak() -> None:
    drive = Drive()
    drive.call(bad(), 4)
    drive.call(LONG, 2)
    assert drive.view.failures == 4
    drive.call(bad("timeout"))
    assert (drive.name, drive.view.reason, drive.view.failures) == ("open", "timeout", 5)


def test_the_run_starts_anew_after_a_recovery() -> None:
    drive = Drive()
    drive.call(LONG, 3)
    drive.at(100).settle(drive.probe())
    drive.call(LONG, 2)
    assert drive.name == "closed"
    drive.call(LONG)
    assert drive.name == "open"


def test_a_429_with_a_known_credential_does_not_touch_availability_while_closed() -> None:
    drive = Drive()
    assert drive.call(busy(100, credential="fp"), 20) == [Counted("throttled", "throttled")]
    assert (drive.name, drive.view.failures, drive.moves) == ("closed", 0, [])
    assert drive.trip().view.cooldown == 30.0


def test_throttles_are_neither_success_nor_failure_in_the_window() -> None:
    drive = Drive(failure_rate=0.5, minimum_calls=4, throttle_threshold=100)
    drive.call(bad())
    drive.call(LONG, 50)
    drive.call(OK)
    drive.call(OK)
    assert drive.name == "closed"
    drive.call(bad())
    assert drive.name == "open"
