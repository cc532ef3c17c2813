from __future__ import annotations

import pytest

from otel_breaker.core.events import Admitted, Counted, Moved
from otel_breaker.core.states import Closed
from otel_breaker.outcomes import ABORTED, ANSWERED, IGNORED, OK, REASONS, Outcome
from tests.core.drive import DENIED, START, Drive, bad, busy

NEUTRAL = [IGNORED, ANSWERED, ABORTED]


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_opens_on_exactly_the_configured_failure(threshold: int) -> None:
    drive = Drive(failure_threshold=threshold)
    for n in range(threshold):
        assert (drive.name, drive.view.failures) == ("closed", n)
        drive.call(bad())
    assert drive.view.failures == threshold
    assert drive.saw(Moved) == [Moved("closed", "open", "server_error", threshold, 30.0, START)]


def test_says_admitted_then_counted_with_the_reason() -> None:
    drive = Drive()
    permit = drive.state.id
    assert drive.ask() == Admitted(permit, probe=False)
    assert drive.settle(permit, bad("dns_error")) == [Counted("failure", "dns_error")]


@pytest.mark.parametrize("reason", [r for r in REASONS if r not in ("throttled", "quota_exhausted")])
def test_every_failure_reason_is_charged_and_names_the_opening(reason: str) -> None:
    drive = Drive().trip(bad(reason))
    assert (drive.view.reason, drive.moves) == (reason, [("closed", "open", reason, 0.0)])


def test_a_success_ends_the_streak() -> None:
    drive = Drive()
    drive.call(bad(), 4)
    assert drive.call(OK) == [Counted("success")]
    assert drive.view.failures == 0
    drive.call(bad(), 4)
    assert drive.name == "closed"
    drive.call(bad())
    assert drive.name == "open"


@pytest.mark.parametrize("outcome", [*NEUTRAL, DENIED, busy(1), busy(100)])
def test_neutral_throttled_and_denied_leave_the_streak_alone(outcome: Outcome) -> None:
    drive = Drive()
    drive.call(bad(), 4)
    assert drive.call(outcome) == [Counted(outcome.kind, outcome.reason)]
    assert (drive.name, drive.view.failures) == ("closed", 4)
    drive.call(bad())
    assert drive.name == "open"


@pytest.mark.parametrize("outcome", NEUTRAL)
def test_B116_fifty_client_errors_count_nothing(outcome: Outcome) -> None:
    drive = Drive(failure_rate=0.1, minimum_calls=1)
    drive.call(outcome, 50)
    assert (drive.name, drive.view.failures, drive.moves) == ("closed", 0, [])
    assert isinstance(drive.state, Closed)
    assert drive.state.window is not None
    assert drive.state.window.totals(drive.now) == (0, 0, 0)


def test_B32_every_round_opens_on_exactly_the_third_failure() -> None:
    drive = Drive(failure_threshold=3, cooldown_steps=(1,))
    for round_ in range(5):
        drive.at(round_ * 100)
        drive.call(bad(), 2)
        assert (drive.name, drive.view.failures) == ("closed", 2)
        drive.call(bad())
        assert (drive.name, drive.view.failures, drive.view.cooldown) == ("open", 3, 30.0)
        drive.at(round_ * 100 + 30).settle(drive.probe())
        assert (drive.name, drive.view.failures) == ("closed", 0)


def test_B11_survives_fifty_failed_cooldowns_and_then_counts_afresh() -> None:
    drive = Drive().trip()
    moment = 0.0
    for _ in range(50):
        moment += drive.view.cooldown
        drive.at(moment).settle(drive.probe(), bad())
    assert (drive.view.failures, drive.view.cooldown) == (55, 900.0)
    drive.at(moment + 900).settle(drive.probe())
    assert drive.name == "closed"
    drive.call(bad(), 4)
    drive.call(OK)
    drive.call(bad(), 4)
    assert drive.name == "closed"
    drive.call(bad())
    assert drive.view.cooldown == 30.0


def test_a_closed_snapshot_holds_no_open_numbers() -> None:
    view = Drive().view
    assert (view.cooldown, view.retry_after, view.cooldowns_elapsed, view.open_elapsed) == (0, 0, 0, 0)
    assert (view.awaiting_probe, view.reason, view.name) == (False, None, "svc")
