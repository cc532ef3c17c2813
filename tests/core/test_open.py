from __future__ import annotations

import random

import pytest

from otel_breaker.core.events import Acquire, Admitted, Moved, Refused
from otel_breaker.outcomes import IGNORED
from tests.core.drive import START, Drive, bad, opened


@pytest.mark.parametrize(("moment", "left"), [(0, 30), (10, 20), (29.5, 0.5)])
def test_refuses_until_the_cooldown_is_over_and_says_what_is_left(moment: float, left: float) -> None:
    drive = opened().at(moment)
    assert drive.send(Acquire()) == [Refused("circuit_open", left)]
    assert (drive.view.retry_after, drive.view.state) == (left, "open")


def test_a_refusal_changes_nothing() -> None:
    drive = opened().at(10)
    before = drive.state
    for _ in range(100):
        drive.ask()
    assert drive.state == before
    assert drive.at(30).ask() == Admitted(drive.state.id, probe=True)


@pytest.mark.parametrize("late", [0, 0.25, 500])
def test_the_first_call_after_the_cooldown_is_the_probe(late: float) -> None:
    drive = opened().at(30 + late)
    effects = drive.send(Acquire())
    assert effects == [
        Moved("open", "half_open", "cooldown_elapsed", 5, 30.0, START + 30 + late),
        Admitted(drive.state.id, probe=True),
    ]


def test_awaiting_probe_is_an_open_circuit_whose_cooldown_is_over() -> None:
    drive = opened()
    assert not drive.at(29.9).view.awaiting_probe
    view = drive.at(30).view
    assert (view.state, view.awaiting_probe, view.retry_after) == ("open", True, 0)
    drive.probe()
    assert (drive.view.state, drive.view.awaiting_probe) == ("half_open", False)


def test_the_snapshot_of_an_open_circuit() -> None:
    view = opened().at(12).view
    assert (view.failures, view.cooldown, view.reason, view.open_elapsed) == (5, 30.0, "server_error", 12.0)


def test_only_the_health_check_probes_where_so_configured() -> None:
    drive = opened(probe_by="health_check").at(31)
    for _ in range(3):
        answer = drive.ask()
        assert isinstance(answer, Refused)
        assert answer == Refused("circuit_open", 59.0)
    view = drive.view
    assert (view.awaiting_probe, view.retry_after) == (True, 59.0)
    permit = drive.ask(health=True)
    assert permit == Admitted(drive.state.id, probe=True)
    drive.settle(permit.id)
    assert drive.name == "closed"
    assert drive.ask() == Admitted(drive.state.id, probe=False)


def test_a_health_check_does_not_probe_before_the_cooldown_is_over() -> None:
    assert opened(probe_by="health_check").at(29).ask(health=True) == Refused("circuit_open", 1.0)


def test_after_a_neutral_health_check_a_user_call_still_does_not_probe() -> None:
    drive = opened(probe_by="health_check").at(30)
    drive.settle(drive.enter(health=True), IGNORED)
    answer = drive.ask()
    assert isinstance(answer, Refused)
    assert answer.retry_after == drive.view.retry_after == 60.0
    assert drive.ask(health=True) == Admitted(drive.state.id, probe=True)


def test_B44_two_hundred_circuits_do_not_probe_at_one_instant_nor_before_a_retry_after() -> None:
    rng = random.Random(44)
    for retry_after, least in ((None, 30.0), (100.0, 100.0)):
        ends = []
        for _ in range(200):
            drive = Drive(failure_threshold=1, cooldown_jitter=0.5)
            drive.call(bad(retry_after=retry_after), draw=rng.random())
            ends.append(drive.view.retry_after)
        assert min(ends) >= least
        assert max(ends) <= least * 1.5
        if retry_after is None:
            assert len(set(ends)) > 190
            assert (min(ends) < 31.0, max(ends) > 44.0) == (True, True)
