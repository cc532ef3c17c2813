from __future__ import annotations

import pytest

from otel_breaker.core.events import Moved
from otel_breaker.core.window import BUCKETS, TimeWindow
from otel_breaker.outcomes import IGNORED, OK
from tests.core.drive import Drive, bad

RATE = {"failure_threshold": 1000, "failure_rate": 0.5, "minimum_calls": 10}
SLOW = {"failure_threshold": 1000, "slow_call": 2.0, "slow_rate": 0.5, "minimum_calls": 4}


def test_a_window_counts_calls_failures_and_slow_calls() -> None:
    window = TimeWindow(300.0)
    for failed, slow in ((False, False), (True, False), (False, True), (True, True)):
        window = window.add(1000.0, failed=failed, slow=slow)
    assert window.totals(1000.0) == (4, 2, 2)
    assert len(window.buckets) == 1


def test_a_window_forgets_what_is_older_than_its_length() -> None:
    window = TimeWindow(300.0).add(1000.0, failed=True, slow=False).add(1200.0, failed=False, slow=False)
    assert window.totals(1285.0) == (2, 1, 0)
    assert window.totals(1300.0 + 300 / BUCKETS) == (1, 0, 0)
    assert window.totals(1500.0 + 300 / BUCKETS) == (0, 0, 0)


def test_a_call_within_the_window_is_never_dropped_early_by_more_than_a_bucket() -> None:
    window = TimeWindow(300.0).add(1000.0, failed=True, slow=False)
    for age in range(290):
        assert window.totals(1000.0 + age) == (1, 1, 0)


def test_a_window_stays_small_however_many_calls_it_sees() -> None:
    window = TimeWindow(30.0)
    for second in range(10_000):
        window = window.add(second * 0.5, failed=True, slow=False)
    assert len(window.buckets) <= BUCKETS


@pytest.mark.parametrize(("good", "failed", "state"), [(5, 5, "open"), (6, 5, "closed"), (4, 5, "closed")])
def test_opens_at_the_share_once_there_are_enough_calls(good: int, failed: int, state: str) -> None:
    drive = Drive(**RATE)
    drive.call(OK, good)
    drive.call(bad("timeout"), failed)
    assert drive.name == state


def test_the_opening_by_share_names_the_failure() -> None:
    drive = Drive(**RATE)
    for _ in range(5):
        drive.call(OK)
        drive.call(bad("timeout"))
    assert drive.moves == [("closed", "open", "timeout", 0.0)]


def test_only_a_failure_opens_by_the_failure_share() -> None:
    drive = Drive(**RATE)
    drive.call(bad(), 9)
    drive.call(OK)
    assert drive.name == "closed"
    drive.call(bad("timeout"))
    assert drive.moves == [("closed", "open", "timeout", 0.0)]


def test_old_failures_age_out_of_the_share() -> None:
    drive = Drive(**RATE)
    drive.call(bad(), 5)
    drive.call(OK, 4)
    drive.at(311).call(OK, 4)
    drive.call(bad())
    assert drive.name == "closed"
    drive.call(OK)
    drive.call(bad(), 4)
    assert drive.name == "open"


def test_neutral_calls_do_not_thin_the_share() -> None:
    drive = Drive(**RATE)
    drive.call(OK, 5)
    drive.call(IGNORED, 50)
    drive.call(bad(), 5)
    assert drive.name == "open"


def test_consecutive_failures_open_beside_the_share() -> None:
    drive = Drive(failure_threshold=2, failure_rate=0.9, minimum_calls=100)
    drive.call(OK, 50)
    drive.call(bad(), 2)
    assert drive.name == "open"


@pytest.mark.parametrize(("duration", "state"), [(1.9, "closed"), (2.0, "closed"), (2.1, "open")])
def test_slow_calls_open_at_their_share(duration: float, state: str) -> None:
    drive = Drive(**SLOW)
    for _ in range(2):
        drive.call(OK, duration=0.1)
        drive.call(OK, duration=duration)
    assert drive.name == state
    assert [m[2] for m in drive.moves] == ["slow_rate"] * (state == "open")


def test_slow_calls_need_the_minimum_too() -> None:
    drive = Drive(**SLOW)
    drive.call(OK, 3, duration=5.0)
    assert drive.name == "closed"
    drive.call(OK, duration=5.0)
    assert drive.name == "open"
    assert drive.saw(Moved)[0].reason == "slow_rate"


def test_no_share_is_judged_by_default() -> None:
    drive = Drive()
    for _ in range(100):
        drive.call(OK, duration=1000.0)
        drive.call(bad())
    assert drive.name == "closed"


def test_a_recovery_empties_the_window() -> None:
    drive = Drive(**RATE)
    drive.call(bad(), 10)
    drive.at(30).settle(drive.probe())
    drive.call(bad(), 9)
    assert drive.name == "closed"
    drive.call(bad())
    assert drive.name == "open"
