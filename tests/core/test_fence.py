from __future__ import annotations

import pytest

from otel_breaker.core.events import Counted, ForceOpen, Reset
from otel_breaker.outcomes import ABORTED, ANSWERED, IGNORED, OK, Outcome
from tests.core.drive import DENIED, Drive, bad, busy, opened, probing

EVERY = [OK, bad(), bad(retry_after=50), IGNORED, ANSWERED, ABORTED, DENIED, busy(), busy(100), busy(1, "fp")]


def test_calls_of_one_closed_period_share_its_id() -> None:
    drive = Drive()
    permits = [drive.enter() for _ in range(3)]
    for permit in permits:
        drive.settle(permit, bad())
    assert (len(set(permits)), drive.view.failures) == (1, 3)


@pytest.mark.parametrize("outcome", EVERY)
@pytest.mark.parametrize("moment", [0, 31])
def test_an_outcome_from_before_the_opening_is_late_and_changes_nothing(moment: float, outcome: Outcome) -> None:
    drive = Drive()
    slow = drive.enter()
    drive.trip().at(moment)
    before = drive.state
    assert drive.settle(slow, outcome) == [Counted("late")]
    assert drive.state == before


@pytest.mark.parametrize("outcome", EVERY)
def test_nor_can_it_settle_the_probe(outcome: Outcome) -> None:
    drive = Drive()
    slow = drive.enter()
    drive.trip().at(30).probe()
    before = drive.state
    assert drive.settle(slow, outcome, pause=True) == [Counted("late")]
    assert drive.state == before


@pytest.mark.parametrize("outcome", EVERY)
def test_a_lost_probe_cannot_override_the_next_one(outcome: Outcome) -> None:
    drive, lost = probing()
    drive.at(120).probe()
    before = drive.state
    assert drive.settle(lost, outcome) == [Counted("late")]
    assert drive.renew(lost) == []
    assert drive.state == before


def test_a_lost_probes_success_does_not_close_the_reopened_circuit() -> None:
    drive, lost = probing()
    assert Counted("late") in drive.at(61).settle(lost, OK)
    assert (drive.name, drive.view.reason) == ("open", "probe_lapsed")


@pytest.mark.parametrize("first", [OK, bad(), IGNORED, ANSWERED, ABORTED, DENIED, busy()])
def test_a_probes_permit_is_one_shot(first: Outcome) -> None:
    drive, permit = probing(success_threshold=2)
    drive.settle(permit, first)
    before = drive.state
    for outcome in (OK, bad()):
        assert drive.settle(permit, outcome) == [Counted("late")]
    assert drive.renew(permit) == []
    assert drive.state == before


def test_a_permit_of_an_earlier_closed_period_is_late_in_the_next() -> None:
    drive = Drive(failure_threshold=1)
    old = drive.enter()
    drive.trip().at(30).settle(drive.probe())
    assert drive.name == "closed"
    assert drive.settle(old, bad()) == [Counted("late")]
    assert drive.name == "closed"
    assert drive.enter() != old


def test_a_probe_overtaken_by_a_command_is_late() -> None:
    for event in (ForceOpen("x"), Reset()):
        drive, permit = probing()
        drive.send(event)
        before = drive.state
        assert drive.settle(permit, bad()) == [Counted("late")]
        assert drive.state == before


def test_an_id_that_was_never_given_out_is_late() -> None:
    drive = opened()
    assert drive.settle(99, OK) == [Counted("late")]
    assert drive.name == "open"


def test_a_late_outcome_is_not_sampled_for_the_lease() -> None:
    drive = Drive()
    slow = drive.enter()
    drive.trip()
    drive.settle(slow, OK, duration=400.0)
    drive.at(30).probe()
    assert drive.view.retry_after == 30.0
