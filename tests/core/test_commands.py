from __future__ import annotations

from collections.abc import Callable

import pytest

from otel_breaker.core.events import (
    Admitted,
    Counted,
    Disable,
    EpisodeOver,
    Event,
    ForceOpen,
    ProbeOver,
    Refused,
    Reset,
    Resume,
)
from otel_breaker.outcomes import ABORTED, IGNORED, OK, Outcome
from tests.core.drive import DENIED, START, Drive, bad, busy, opened, probing

FOUR_BAD = 4


def four_failures() -> Drive:
    drive = Drive()
    drive.call(bad(), FOUR_BAD)
    return drive


def half() -> Drive:
    return probing()[0]


@pytest.mark.parametrize("make", [Drive, four_failures, opened, half])
def test_a_forced_circuit_refuses_and_never_pages(make: Callable[[], Drive]) -> None:
    drive = make()
    drive.send(ForceOpen("vendor migration"))
    for _ in range(3):
        assert drive.ask() == Refused("forced_open", 30.0)
    drive.at(100_000)
    view = drive.view
    assert (view.state, view.reason, view.retry_after) == ("forced_open", "vendor migration", 30.0)
    assert (view.cooldowns_elapsed, view.open_elapsed, view.awaiting_probe, view.failures) == (0, 0, False, 0)


def test_a_timed_force_says_what_is_left() -> None:
    drive = Drive()
    drive.send(ForceOpen("deploy", 600))
    assert drive.at(100).ask() == Refused("forced_open", 500.0)
    assert drive.view.retry_after == 500.0
    drive.at(600)
    assert drive.ask() == Admitted(drive.state.id)


def test_the_base_cooldown_is_the_policys() -> None:
    drive = Drive(cooldown=7.0)
    drive.send(ForceOpen("x"))
    assert drive.ask() == Refused("forced_open", 7.0)


def test_a_second_force_takes_the_place_of_the_first() -> None:
    drive = Drive()
    drive.send(ForceOpen("first", 10))
    drive.send(ForceOpen("second"))
    assert (drive.at(1000).name, drive.view.reason) == ("forced_open", "second")
    assert drive.moves == [("closed", "forced_open", "manual", 0.0)]


@pytest.mark.parametrize("outcome", [OK, bad(), IGNORED, ABORTED, DENIED, busy(100)], ids=lambda outcome: outcome.kind)
def test_a_disabled_circuit_admits_counts_and_never_charges(outcome: Outcome) -> None:
    drive = opened()
    drive.send(Disable())
    for _ in range(20):
        permit = drive.ask()
        assert permit == Admitted(drive.state.id)
        (counted,) = drive.settle(permit.id, outcome)
        assert isinstance(counted, Counted)
        assert counted.outcome == outcome.kind
    assert (drive.name, drive.view.failures, drive.moves[-1][:3]) == ("disabled", 0, ("open", "disabled", "manual"))


@pytest.mark.parametrize("make", [four_failures, opened, half])
def test_reset_closes_and_zeroes(make: Callable[[], Drive]) -> None:
    drive = make()
    drive.send(Reset())
    assert (drive.name, drive.view.failures, drive.elapsed) == ("closed", 0, 0)
    drive.call(bad(), 4)
    assert drive.name == "closed"
    drive.call(bad())
    assert (drive.name, drive.view.cooldown) == ("open", 30.0)


def test_reset_ends_a_run_of_throttles_and_empties_the_window() -> None:
    drive = Drive(failure_threshold=100, failure_rate=0.5, minimum_calls=4)
    drive.call(busy(100), 2)
    drive.call(bad(), 3)
    drive.send(Reset())
    drive.call(busy(100), 2)
    drive.call(bad(), 3)
    assert drive.name == "closed"


def test_reset_forgets_a_retry_after() -> None:
    drive = Drive()
    drive.call(busy(500))
    drive.send(Reset())
    assert drive.trip().view.cooldown == 30.0


@pytest.mark.parametrize("event", [ForceOpen("x"), Disable(), Reset()], ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("make", [opened, half], ids=["open", "half_open"])
def test_commands_end_the_episode_with_reason_manual(make: Callable[[], Drive], event: Event) -> None:
    drive = make()
    drive.at(45)
    drive.send(event)
    assert drive.moves[-1][2:] == ("manual", 45.0)
    assert drive.saw(EpisodeOver) == [EpisodeOver(45.0)]
    drive.send(Reset())
    drive.at(100).trip()
    assert drive.at(101).view.open_elapsed == 1.0


@pytest.mark.parametrize("event", [ForceOpen("x"), ForceOpen("x", 60), Disable()])
def test_resume_ends_a_force_or_a_disable(event: Event) -> None:
    drive = four_failures()
    drive.send(event)
    drive.at(5).send(Resume())
    assert (drive.name, drive.view.failures) == ("closed", 0)
    assert drive.moves[-1][1:] == ("closed", "manual", 5.0)


@pytest.mark.parametrize("make", [four_failures, opened, half])
def test_resume_does_nothing_where_there_is_nothing_to_end(make: Callable[[], Drive]) -> None:
    drive = make()
    before = drive.view
    assert drive.send(Resume()) == []
    assert drive.view == before


@pytest.mark.parametrize("event", [ForceOpen("x"), Disable(), Reset()], ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("make", [Drive, opened, half], ids=["closed", "open", "half_open"])
def test_every_command_takes_a_new_id(make: Callable[[], Drive], event: Event) -> None:
    drive = make()
    for _ in range(3):
        before = drive.state.id
        drive.send(event)
        assert drive.state.id > before


@pytest.mark.parametrize("event", [ForceOpen("x"), Disable(), Reset()], ids=lambda event: type(event).__name__)
def test_a_command_takes_the_verdict_out_of_a_running_probes_hands(event: Event) -> None:
    drive = half().at(40)
    drive.send(event)
    assert drive.saw(ProbeOver) == [ProbeOver("neutral", None, START + 40)]


def test_calls_that_were_out_when_a_command_came_count_as_late() -> None:
    drive = Drive(failure_threshold=1)
    permit = drive.enter()
    drive.send(Reset())
    assert drive.settle(permit, bad()) == [Counted("late")]
    permit = drive.enter()
    drive.send(Disable())
    assert drive.settle(permit, bad()) == [Counted("late")]
    permit = drive.enter()
    drive.send(Resume())
    assert drive.settle(permit, bad()) == [Counted("late")]
    assert drive.name == "closed"
