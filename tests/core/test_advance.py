from __future__ import annotations

import pytest

from otel_breaker.core.events import Admitted, Effect, EpisodeOver, ForceOpen, Moved, ProbeOver
from otel_breaker.core.machine import advance
from otel_breaker.core.views import view
from otel_breaker.outcomes import ABORTED, ANSWERED, IGNORED, OK, Outcome
from tests.core.drive import DENIED, START, Drive, bad, opened, probing


def test_hours_of_silence_lapse_reopen_and_expire_in_order_with_their_true_times() -> None:
    drive, _ = probing()
    state, effects = advance(drive.state, START + 36_000, drive.policy)
    assert state.name == "closed"
    assert list(effects) == [
        ProbeOver("failure", "probe_lapsed", START + 60),
        Moved("half_open", "open", "probe_lapsed", 6, 60.0, START + 60),
        Moved("open", "closed", "expired", 6, 60.0, START + 120 + 1200),
        EpisodeOver(1320.0),
    ]


def test_one_long_jump_equals_many_short_ones() -> None:
    drive, _ = probing()
    long, long_effects = advance(drive.state, START + 3000, drive.policy)
    short, short_effects = drive.state, list[Effect]()
    for second in range(30, 3001):
        short, effects = advance(short, START + second, drive.policy)
        short_effects += effects
    assert (short, short_effects) == (long, list(long_effects))


@pytest.mark.parametrize("make", [Drive, opened, lambda: probing()[0]])
def test_advance_is_stable_at_its_own_result(make: type[Drive]) -> None:
    drive = make()
    for moment in (0, 31, 61, 130, 1230, 1330, 99_999):
        once, _ = advance(drive.state, START + 30 + moment, drive.policy)
        again, effects = advance(once, START + 30 + moment, drive.policy)
        assert (again, list(effects)) == (once, [])


def test_reading_never_changes_anything() -> None:
    looked, blind = opened(), opened()
    for moment in range(0, 1000, 7):
        first, second = looked.at(moment).view, looked.view
        assert first == second
    assert looked.state == blind.state
    assert looked.at(1000).ask() == blind.at(1000).ask()
    assert (looked.state, looked.log) == (blind.state, blind.log)


def test_a_snapshot_is_the_state_as_now_makes_it() -> None:
    drive, _ = probing()
    state = drive.state
    seen = [view("svc", state, drive.policy, START + t) for t in (59, 61, 121, 1319, 1321)]
    assert [(v.state, v.awaiting_probe) for v in seen] == [
        ("half_open", False),
        ("open", False),
        ("open", True),
        ("open", True),
        ("closed", False),
    ]
    assert drive.state is state


@pytest.mark.parametrize(
    ("fields", "retry_after", "expires"),
    [
        ({}, None, 30 + 1200),
        ({}, 3600, 3600 + 3900),
        ({"cooldown_cap": 60}, None, 30 + 360),
        ({"verdict_ttl": 10}, None, 40),
        ({"verdict_ttl": 10}, 100, 110),
    ],
)
def test_an_untested_verdict_expires(fields: dict[str, float], retry_after: float | None, expires: float) -> None:
    drive = Drive(**fields).trip(bad(retry_after=retry_after))
    assert drive.at(expires - 0.1).name == "open"
    assert drive.at(expires).name == "closed"
    drive.at(expires + 5)
    assert drive.ask() == Admitted(drive.state.id, probe=False)
    assert drive.moves[-1] == ("open", "closed", "expired", expires)
    assert drive.saw(EpisodeOver) == [EpisodeOver(expires)]


def test_the_ttl_runs_anew_after_each_failed_probe() -> None:
    drive = opened().at(1000)
    drive.settle(drive.probe(), bad())
    assert drive.at(1000 + 60 + 1199).name == "open"
    assert drive.at(1000 + 60 + 1200).name == "closed"


def test_the_ttl_runs_from_an_answered_probe() -> None:
    drive = opened().at(500)
    drive.settle(drive.probe(), ANSWERED)
    assert drive.at(1699.9).name == "half_open"
    assert drive.at(1700).name == "closed"
    drive.ask()
    assert drive.moves[-1] == ("half_open", "closed", "expired", 1700.0)


def test_the_ttl_runs_from_a_success_that_was_not_enough() -> None:
    drive = opened(success_threshold=2).at(500)
    drive.settle(drive.probe(), OK)
    assert drive.at(1699.9).name == "half_open"
    assert drive.at(1700).name == "closed"


@pytest.mark.parametrize("outcome", [IGNORED, ABORTED, DENIED])
def test_a_probe_that_says_nothing_does_not_prolong_the_verdict(outcome: Outcome) -> None:
    drive = opened().at(500)
    drive.settle(drive.probe(), outcome)
    assert drive.at(1229.9).name == "half_open"
    assert drive.at(1230).name == "closed"


def test_a_verdict_does_not_expire_under_a_running_probe() -> None:
    drive = opened().at(1200)
    permit = drive.probe(timeout=300)
    assert drive.at(1240).name == "half_open"
    drive.settle(permit, IGNORED)
    assert drive.name == "closed"
    drive.at(1300).ask()
    assert drive.moves[-1] == ("half_open", "closed", "expired", 1240.0)
    assert drive.saw(EpisodeOver) == [EpisodeOver(1240.0)]


def test_a_timed_force_ends_at_its_moment() -> None:
    drive = opened()
    drive.send(ForceOpen("deploy", 60))
    assert drive.at(59.9).name == "forced_open"
    assert drive.at(60).name == "closed"
    drive.at(500).ask()
    assert drive.moves[-1] == ("forced_open", "closed", "manual", 60.0)


def test_an_open_force_never_ends() -> None:
    drive = Drive()
    drive.send(ForceOpen("deploy"))
    assert drive.at(10_000_000).name == "forced_open"


def test_time_alone_does_nothing_to_a_closed_circuit() -> None:
    drive = Drive()
    drive.call(bad(), 4)
    assert advance(drive.state, START + 1e9, drive.policy)[0] is drive.state


def test_a_clock_that_stands_still_or_steps_back_breaks_nothing() -> None:
    drive = opened()
    before = view("svc", drive.state, drive.policy, START - 5)
    assert (before.state, before.cooldowns_elapsed) == ("open", 0)
    assert before.open_elapsed <= 0
