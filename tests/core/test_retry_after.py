from __future__ import annotations

import math

import pytest

from otel_breaker.core.events import Resume
from otel_breaker.outcomes import OK, Outcome
from tests.core.drive import DENIED, Drive, bad, busy, probing

UNUSABLE = [None, 0.0, -0.0, -1.0, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize(
    ("asked", "cooldown"),
    [
        (0.001, 1.0),
        (0.5, 1.0),
        (1.0, 1.0),
        (1.5, 1.5),
        (7.0, 7.0),
        (120.0, 120.0),
        (1800.0, 1800.0),
        (3600.0, 3600.0),
        (3601.0, 3600.0),
        (86_400.0, 3600.0),
        (1e308, 3600.0),
    ],
)
def test_B111_B114_it_stands_in_for_the_step_within_floor_and_cap(asked: float, cooldown: float) -> None:
    drive = Drive()
    drive.call(bad(), 4)
    drive.call(bad(retry_after=asked))
    assert (drive.name, drive.view.cooldown, drive.view.retry_after) == ("open", cooldown, cooldown)


@pytest.mark.parametrize("asked", UNUSABLE)
def test_B112_an_unusable_value_names_no_time_and_the_step_applies(asked: float | None) -> None:
    drive = Drive().trip(bad(retry_after=asked))
    assert (drive.view.cooldown, drive.view.retry_after) == (30.0, 30.0)
    drive.at(30).settle(drive.probe(), bad(retry_after=asked))
    assert drive.view.cooldown == 60.0


def test_the_cap_is_a_setting() -> None:
    assert Drive(retry_after_cap=50).trip(bad(retry_after=120)).view.cooldown == 50.0


@pytest.mark.parametrize("asked", UNUSABLE)
def test_an_unusable_value_does_not_erase_an_earlier_one(asked: float | None) -> None:
    drive = Drive()
    drive.call(bad(retry_after=120))
    drive.call(bad(retry_after=asked), 4)
    assert drive.view.cooldown == 120.0


@pytest.mark.parametrize(
    ("first", "second", "cooldown"), [(120, 10, 10), (10, 120, 120), (120, 0.5, 1), (9999, 40, 40)]
)
def test_the_last_one_seen_wins(first: float, second: float, cooldown: float) -> None:
    drive = Drive()
    drive.call(bad(retry_after=first))
    drive.call(bad(retry_after=second))
    drive.call(bad(), 3)
    assert drive.view.cooldown == cooldown


@pytest.mark.parametrize(("opens_at", "cooldown"), [(0, 120), (20, 100), (119, 1), (119.75, 1), (120, 30), (500, 30)])
def test_it_holds_as_long_as_its_moment_lies_ahead(opens_at: float, cooldown: float) -> None:
    drive = Drive()
    drive.call(bad(retry_after=120), 4)
    drive.at(opens_at).call(bad())
    assert drive.view.cooldown == cooldown


def test_a_success_does_not_erase_it() -> None:
    drive = Drive()
    drive.call(busy(retry_after=100))
    drive.call(OK)
    assert drive.at(10).trip().view.cooldown == 90.0


def test_nor_does_a_closing() -> None:
    drive = Drive()
    drive.call(busy(retry_after=20))
    drive.call(DENIED, pause=True)
    drive.send(Resume())
    drive.at(5).settle(drive.probe(), OK)
    assert drive.name == "closed"
    assert drive.trip().view.cooldown == 15.0


def test_one_beyond_the_cap_is_over_at_the_cap() -> None:
    drive = Drive().trip(bad(retry_after=86_400))
    drive.at(3600).settle(drive.probe(), bad())
    assert drive.view.cooldown == 60.0


@pytest.mark.parametrize(
    ("outcome", "cooldown"),
    [(bad(retry_after=7), 7.0), (busy(7), 7.0), (busy(2000), 2000.0), (busy(7, credential="fp"), 7.0)],
)
def test_a_failed_probes_sets_the_reopening(outcome: Outcome, cooldown: float) -> None:
    drive, permit = probing()
    drive.at(32).settle(permit, outcome)
    assert (drive.view.cooldown, drive.view.retry_after) == (cooldown, cooldown)


def test_what_is_left_of_the_openings_sets_the_reopening_too() -> None:
    drive = Drive().trip(bad(retry_after=100))
    assert drive.view.cooldown == 100.0
    drive.at(100).settle(drive.probe(), bad())
    assert drive.view.cooldown == 60.0


def test_the_ladder_goes_on_where_it_stood_in_for_a_step() -> None:
    drive = Drive().trip(bad(retry_after=7))
    cooldowns, moment = [drive.view.cooldown], 7.0
    for retry_after in (None, 5, None, None):
        drive.at(moment).settle(drive.probe(), bad(retry_after=retry_after))
        cooldowns.append(drive.view.cooldown)
        moment += cooldowns[-1]
    assert cooldowns == [7.0, 60.0, 5.0, 900.0, 900.0]


def test_it_may_lie_beyond_the_cap_of_the_ladder() -> None:
    assert Drive(cooldown_cap=60).trip(bad(retry_after=500)).view.cooldown == 500.0


@pytest.mark.parametrize(
    ("asked", "deadline", "counts"),
    [
        (None, None, True),
        (0.0, None, True),
        (math.inf, None, True),
        (1.0, None, False),
        (30.0, None, False),
        (30.5, None, True),
        (100.0, None, True),
        (100.0, 120.0, False),
        (120.0, 120.0, False),
        (10.0, 5.0, True),
        (5.0, 5.0, False),
    ],
)
def test_a_short_429_is_noted_and_counts_towards_nothing(
    asked: float | None, deadline: float | None, counts: bool
) -> None:
    drive = Drive()
    drive.call(busy(asked), 3, deadline=deadline)
    assert drive.name == ("open" if counts else "closed")


def test_a_short_429_still_sets_the_next_opening() -> None:
    drive = Drive()
    drive.call(busy(20))
    assert drive.at(5).trip().view.cooldown == 15.0


def test_the_policys_deadline_is_the_yardstick_too() -> None:
    drive = Drive(call_deadline=300)
    drive.call(busy(300), 10)
    assert drive.name == "closed"
    drive.call(busy(301), 3)
    assert drive.view.cooldown == 301.0


def test_a_late_answers_is_not_heard() -> None:
    drive = Drive()
    slow = drive.enter()
    drive.trip()
    drive.at(5).settle(slow, bad(retry_after=2000))
    drive.at(30).settle(drive.probe(), bad())
    assert drive.view.cooldown == 60.0
