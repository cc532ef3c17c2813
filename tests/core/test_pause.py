from __future__ import annotations

import pytest

from otel_breaker.core.events import Admitted, Counted, Refused, Resume, Revoked
from otel_breaker.outcomes import ABORTED, IGNORED, OK, Outcome
from tests.core.drive import DENIED, Drive, bad, busy, probing


def paused(**fields: float) -> Drive:
    drive = Drive(**fields)
    drive.call(DENIED, pause=True)
    return drive


def test_a_401_on_a_credential_that_never_worked_is_counted_no_more() -> None:
    drive = Drive()
    assert drive.call(DENIED, 50) == [Counted("unauthorized")]
    assert (drive.name, drive.view.failures, drive.log.count(Revoked())) == ("closed", 0, 0)


def test_a_401_on_a_credential_that_worked_pauses_it() -> None:
    drive = Drive()
    effects = drive.call(DENIED, pause=True)
    assert Counted("unauthorized") in effects
    assert effects.count(Revoked()) == 1
    assert drive.ask() == Refused("credential_paused", 900.0)
    assert drive.at(899).ask() == Refused("credential_paused", 1.0)
    assert drive.at(900).ask() == Admitted(drive.state.id, probe=True)


def test_the_length_of_a_pause_is_a_setting() -> None:
    drive = paused(pause=60.0)
    assert drive.ask() == Refused("credential_paused", 60.0)
    drive.at(60).probe()


def test_only_a_401_pauses() -> None:
    drive = Drive()
    for outcome in (OK, bad(), IGNORED, ABORTED, busy(100)):
        drive.call(outcome, pause=True)
    assert (drive.name, drive.saw(Revoked)) == ("closed", [])


def test_in_alert_mode_it_is_only_reported() -> None:
    drive = Drive(on_unauthorized="alert")
    effects = drive.call(DENIED, pause=True)
    assert sorted(effects, key=repr) == [Counted("unauthorized"), Revoked()]
    assert (drive.name, drive.moves) == ("closed", [])
    assert drive.ask() == Admitted(drive.state.id)


def test_when_the_pause_lapses_one_call_may_try() -> None:
    drive = paused()
    permit = drive.at(900).probe()
    assert isinstance(drive.ask(), Refused)
    drive.settle(permit)
    assert drive.name == "closed"
    assert [drive.ask() for _ in range(2)] == [Admitted(drive.state.id)] * 2


def test_a_second_401_pauses_again() -> None:
    drive = paused()
    drive.at(900).settle(drive.probe(), DENIED, pause=True)
    assert drive.ask() == Refused("credential_paused", 900.0)
    drive.at(1800).probe()


def test_a_throttled_credential_that_is_revoked_as_well_is_reported() -> None:
    drive = Drive(throttle_threshold=1)
    drive.call(busy(100))
    effects = drive.at(100).settle(drive.probe(), DENIED, pause=True)
    assert effects.count(Revoked()) == 1
    assert drive.ask() == Refused("credential_paused", 900.0)
    assert drive.at(1000).settle(drive.probe(), DENIED, pause=True).count(Revoked()) == 0  # known by now


def test_in_alert_mode_a_probe_that_is_denied_is_only_reported() -> None:
    drive = Drive(throttle_threshold=1, on_unauthorized="alert")
    drive.call(busy(100))
    effects = drive.at(100).settle(drive.probe(), DENIED, pause=True)
    assert effects.count(Revoked()) == 1
    drive.probe()


def test_a_pause_within_an_episode_keeps_its_age_count_and_jitter() -> None:
    drive = Drive(throttle_threshold=1, cooldown_jitter=1.0, verdict_ttl=1e6)
    drive.call(busy(), draw=0.5)
    permit = drive.at(45).probe()
    drive.at(50).settle(permit, DENIED, pause=True, draw=0.9)
    assert (drive.elapsed, drive.view.open_elapsed) == (1, 50.0)
    drive.at(950).settle(drive.probe(), busy())
    assert (drive.elapsed, drive.view.cooldown) == (2, 45.0)


@pytest.mark.parametrize("moment", [0, 10, 899])
def test_resume_lets_one_call_try(moment: float) -> None:
    drive = paused().at(moment)
    before = drive.state.id
    assert drive.send(Resume()) == []
    assert drive.state.id > before
    permit = drive.probe()
    assert isinstance(drive.ask(), Refused)
    drive.settle(permit)
    assert drive.name == "closed"


@pytest.mark.parametrize(("outcome", "cooldown"), [(bad(), 30.0), (busy(100), 100.0)])
def test_a_try_that_fails_opens_the_circuit_in_the_ordinary_way(outcome: Outcome, cooldown: float) -> None:
    drive = paused().at(900)
    drive.settle(drive.probe(), outcome)
    assert drive.ask() == Refused("circuit_open", cooldown)


def test_a_resumed_try_that_is_denied_again_is_paused_again() -> None:
    drive = paused().at(10)
    drive.send(Resume())
    drive.settle(drive.probe(), DENIED, pause=True)
    assert drive.ask() == Refused("credential_paused", 900.0)


@pytest.mark.parametrize("outcome", [IGNORED, ABORTED])
def test_a_try_that_says_nothing_leaves_the_next_call_to_try(outcome: Outcome) -> None:
    drive = paused().at(900)
    drive.settle(drive.probe(), outcome)
    drive.settle(drive.probe())
    assert drive.name == "closed"


def test_a_401_on_a_probe_of_a_circuit_that_failed_changes_nothing_else() -> None:
    drive, permit = probing()
    before = drive.view
    drive.settle(permit, DENIED)
    after = drive.view
    assert (after.state, after.failures, after.cooldown) == ("half_open", before.failures, before.cooldown)
    assert drive.saw(Revoked) == []
    drive.probe()


def test_calls_that_were_out_when_the_pause_began_are_late() -> None:
    drive = Drive()
    out = drive.enter()
    drive.call(DENIED, pause=True)
    assert drive.settle(out, OK) == [Counted("late")]
    assert isinstance(drive.ask(), Refused)
