from __future__ import annotations

import pytest

from otel_breaker.core.events import Disable, ForceOpen
from otel_breaker.outcomes import ABORTED, ANSWERED, IGNORED, OK, Outcome
from tests.core.drive import DENIED, Drive, bad, opened, probing

LONG_LIFE = {"verdict_ttl": 1e6}


def steps(drive: Drive, table: list[tuple[float, int]]) -> None:
    for moment, count in table:
        assert (moment, drive.at(moment).elapsed) == (moment, count)


def test_an_idle_circuit_counts_on_along_the_ladder() -> None:
    steps(
        opened(**LONG_LIFE),
        [(0, 0), (29.9, 0), (30, 1), (89.9, 1), (90, 2), (389.9, 2), (390, 3), (1289.9, 3), (1290, 4), (2190, 5)],
    )


def test_an_idle_circuit_counts_the_same_whether_it_is_looked_at_or_called_into() -> None:
    drive = opened(**LONG_LIFE)
    for moment in (1, 10, 29):
        drive.at(moment).ask()
    steps(drive, [(30, 1), (90, 2), (390, 3)])
    assert opened(**LONG_LIFE).at(390).elapsed == 3


def test_a_failed_probe_moves_the_next_boundary_to_its_end_plus_the_new_cooldown() -> None:
    drive, permit = probing()
    drive.at(32).settle(permit, bad())
    steps(drive, [(32, 1), (90, 1), (91.9, 1), (92, 2), (391.9, 2), (392, 3)])


def test_a_late_probe_that_fails_does_the_same() -> None:
    drive = opened().at(100)
    permit = drive.probe()
    drive.at(101).settle(permit, bad())
    steps(drive, [(101, 2), (160.9, 2), (161, 3), (460.9, 3), (461, 4)])


def test_counting_goes_on_while_a_probe_runs() -> None:
    drive = opened().at(30)
    permit = drive.probe(timeout=900)
    steps(drive, [(30, 1), (89.9, 1), (90, 2), (390, 3)])
    drive.at(400).settle(permit, bad())
    steps(drive, [(400, 3), (459.9, 3), (460, 4)])


def test_a_lapsed_probe_counts_from_its_lapse() -> None:
    drive, _ = probing()
    steps(drive, [(60, 1), (119.9, 1), (120, 2), (419.9, 2), (420, 3)])


@pytest.mark.parametrize("outcome", [IGNORED, ABORTED, DENIED])
def test_a_probe_that_says_nothing_moves_no_boundary(outcome: Outcome) -> None:
    drive = opened().at(30)
    permit = drive.probe(timeout=900)
    drive.at(80).settle(permit, outcome)
    steps(drive, [(80, 1), (89.9, 1), (90, 2), (390, 3)])


@pytest.mark.parametrize(("answered_at", "boundary"), [(31, 90), (60, 90), (75, 105), (85, 115)])
def test_an_answered_probe_puts_the_next_boundary_off_by_one_cooldown_at_most(
    answered_at: float, boundary: float
) -> None:
    drive = opened().at(30)
    permit = drive.probe(timeout=900)
    drive.at(answered_at).settle(permit, ANSWERED)
    steps(drive, [(answered_at, 1), (boundary - 0.1, 1), (boundary, 2)])


def test_probes_that_are_answered_again_and_again_never_page() -> None:
    drive = opened()
    for moment in range(30, 3000, 20):
        drive.at(moment).settle(drive.probe(), ANSWERED)
        assert drive.elapsed == 1


def test_a_retry_after_counts_as_its_own_length() -> None:
    drive = Drive().trip(bad(retry_after=200))
    steps(drive, [(30, 0), (199.9, 0), (200, 1), (259.9, 1), (260, 2), (559.9, 2), (560, 3)])


def test_a_retry_after_on_a_probe_counts_as_its_own_length() -> None:
    drive, permit = probing()
    drive.settle(permit, bad(retry_after=7))
    steps(drive, [(30, 1), (36.9, 1), (37, 2), (336.9, 2), (337, 3)])


def test_jitter_lengthens_the_idle_ladder_too() -> None:
    drive = Drive(cooldown_jitter=1.0).trip(draw=0.5)
    steps(drive, [(44.9, 0), (45, 1), (134.9, 1), (135, 2), (585, 3)])


def test_a_partial_recovery_does_not_stop_the_counting() -> None:
    drive, permit = probing(success_threshold=2)
    drive.settle(permit, OK)
    steps(drive, [(30, 1), (90, 2)])
    drive.settle(drive.probe(), OK)
    assert drive.elapsed == 0


@pytest.mark.parametrize("duration", [0.0, 2.0, 10.0])
def test_idle_and_probed_circuits_page_at_the_same_age_up_to_the_probes_duration(duration: float) -> None:
    probed, idle = opened(**LONG_LIFE), opened(**LONG_LIFE)
    moment, ages = 0.0, []
    for count in range(1, 6):
        moment += probed.view.cooldown
        assert probed.at(moment - 0.1).elapsed == count - 1
        assert probed.at(moment).elapsed == count
        ages.append(moment)
        permit = probed.probe()
        moment += duration
        probed.at(moment).settle(permit, bad())
    for count, age in enumerate(ages, 1):
        boundary = age - (count - 1) * duration
        assert idle.at(boundary - 0.1).elapsed == count - 1
        assert idle.at(boundary).elapsed == count


def test_zero_when_closed_forced_or_disabled() -> None:
    drive = opened().at(100)
    assert drive.elapsed == 2
    drive.send(ForceOpen("x"))
    assert (drive.elapsed, drive.at(1000).elapsed) == (0, 0)
    drive.send(Disable())
    assert (drive.elapsed, drive.at(2000).elapsed) == (0, 0)
    assert (Drive().elapsed, Drive().at(5000).elapsed) == (0, 0)
    drive, permit = probing()
    drive.settle(permit)
    assert (drive.elapsed, drive.at(1000).elapsed) == (0, 0)


def test_B84_ten_minutes_of_failing_probes_are_one_episode_and_one_page() -> None:
    drive = opened(cooldown=60.0, cooldown_steps=(1,))
    permit, paging = None, []
    for moment in range(1, 601):
        drive.at(moment)
        if permit is not None:
            drive.settle(permit, bad())
            permit = None
        if drive.view.awaiting_probe:
            permit = drive.probe()
        assert drive.view.open_elapsed == moment
        paging.append(drive.elapsed >= 2)
    assert paging.index(True) + 1 == 121
    assert all(paging[120:])
