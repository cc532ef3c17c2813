from __future__ import annotations

from itertools import pairwise

import pytest

from otel_breaker.core.events import (
    Acquire,
    Admitted,
    Counted,
    EpisodeOver,
    Moved,
    ProbeOver,
    Refused,
)
from otel_breaker.outcomes import ABORTED, ANSWERED, IGNORED, OK, REASONS, Outcome
from tests.core.drive import DENIED, START, Drive, bad, busy, opened, probing

GIVES_BACK = [IGNORED, ANSWERED, ABORTED, DENIED]


def test_B29_one_probe_whoever_else_arrives() -> None:
    drive = opened().at(30)
    answers = [drive.ask() for _ in range(100)]
    assert [a for a in answers if isinstance(a, Admitted)] == [Admitted(drive.state.id, probe=True)]
    assert answers[1:] == [Refused("probe_in_flight", 30.0)] * 99


def test_probe_in_flight_says_what_is_left_of_the_lease() -> None:
    drive, _ = probing()
    assert drive.at(42).ask() == Refused("probe_in_flight", 18.0)
    assert (drive.view.state, drive.view.retry_after) == ("half_open", 18.0)


def test_a_successful_probe_closes_and_lets_the_next_calls_straight_through() -> None:
    drive, permit = probing()
    assert drive.at(32).settle(permit, OK) == [
        Counted("success"),
        ProbeOver("success", None, START + 32),
        Moved("half_open", "closed", "probe_succeeded", 5, 30.0, START + 32),
        EpisodeOver(32.0),
    ]
    assert [drive.ask() for _ in range(3)] == [Admitted(drive.state.id)] * 3


def test_a_successful_probe_resets_counters_and_ladder() -> None:
    drive, permit = probing()
    drive.settle(permit, bad())
    drive.at(90).settle(drive.probe(), OK)
    assert (drive.view.failures, drive.elapsed) == (0, 0)
    drive.call(busy(100), 2)
    assert drive.name == "closed"
    drive.trip()
    assert (drive.view.cooldown, drive.view.failures) == (100.0, 5)


@pytest.mark.parametrize("reason", [r for r in REASONS if r not in ("throttled", "quota_exhausted")])
def test_B43_a_probe_that_fails_in_any_way_reopens(reason: str) -> None:
    drive, permit = probing()
    assert drive.at(31).settle(permit, bad(reason)) == [
        Counted("failure", reason),
        ProbeOver("failure", reason, START + 31),
        Moved("half_open", "open", reason, 6, 60.0, START + 31),
    ]
    assert (drive.name, drive.view.reason, drive.view.retry_after) == ("open", reason, 60.0)


@pytest.mark.parametrize("retry_after", [None, 5.0, 500.0])
@pytest.mark.parametrize("credential", [None, "fp"])
def test_a_throttled_probe_reopens_whatever_it_asks_for(retry_after: float | None, credential: str | None) -> None:
    drive, permit = probing()
    drive.settle(permit, busy(retry_after, credential))
    assert (drive.name, drive.view.reason, drive.view.failures) == ("open", "throttled", 6)
    assert drive.view.cooldown == (retry_after or 60.0)


def test_B31_one_failed_probe_is_enough_whatever_the_closed_thresholds_say() -> None:
    drive = Drive(failure_threshold=5, failure_rate=0.5, minimum_calls=100, cooldown_steps=(1,)).trip()
    for round_ in range(10):
        drive.at(30 * (round_ + 1))
        permit, second = drive.probe(), drive.ask()
        assert isinstance(second, Refused)
        drive.settle(permit, bad())
        assert (drive.name, drive.view.retry_after) == ("open", 30.0)


def test_B31_alternating_probes_let_one_call_through_a_round() -> None:
    drive = opened(success_threshold=2, cooldown_steps=(1,))
    moment = 0.0
    for _ in range(10):
        moment += 30
        drive.at(moment).settle(drive.probe(), OK)
        assert drive.name == "half_open"
        drive.settle(drive.probe(), bad())
        assert drive.name == "open"


@pytest.mark.parametrize("outcome", GIVES_BACK)
def test_B25_B27_a_probe_that_says_nothing_gives_its_slot_back(outcome: Outcome) -> None:
    drive, permit = probing()
    for _ in range(10):
        assert drive.settle(permit, outcome) == [
            Counted(outcome.kind),
            ProbeOver(outcome.kind, None, START + 30),
        ]
        assert (drive.name, drive.view.failures, drive.view.retry_after) == ("half_open", 5, 0)
        before, permit = permit, drive.probe()
        assert permit > before
    drive.settle(permit, OK)
    assert drive.name == "closed"
    assert [m[:3] for m in drive.moves] == [
        ("closed", "open", "server_error"),
        ("open", "half_open", "cooldown_elapsed"),
        ("half_open", "closed", "probe_succeeded"),
    ]


def test_several_successes_are_needed_where_so_configured() -> None:
    drive, permit = probing(success_threshold=3)
    for _ in range(2):
        assert drive.settle(permit, OK) == [Counted("success"), ProbeOver("success", None, START + 30)]
        assert drive.name == "half_open"
        permit = drive.probe()
    drive.settle(permit, OK)
    assert drive.name == "closed"


@pytest.mark.parametrize("outcome", GIVES_BACK)
def test_a_neutral_probe_keeps_the_run_of_successes(outcome: Outcome) -> None:
    drive, permit = probing(success_threshold=2)
    drive.settle(permit, OK)
    drive.settle(drive.probe(), outcome)
    drive.settle(drive.probe(), OK)
    assert drive.name == "closed"


def test_a_failed_probe_zeroes_the_run_of_successes() -> None:
    drive, permit = probing(success_threshold=2)
    drive.settle(permit, OK)
    drive.settle(drive.probe(), bad())
    drive.at(90).settle(drive.probe(), OK)
    assert drive.name == "half_open"
    drive.settle(drive.probe(), OK)
    assert drive.name == "closed"


@pytest.mark.parametrize(
    ("fields", "timeout", "longest", "lease"),
    [
        ({}, None, 0.0, 30.0),
        ({}, 10.0, 0.0, 30.0),
        ({}, 120.0, 0.0, 120.0),
        ({}, None, 14.0, 30.0),
        ({}, None, 40.0, 80.0),
        ({}, 79.0, 40.0, 80.0),
        ({}, 100_000.0, 0.0, 900.0),
        ({}, None, 3600.0, 900.0),
        ({"call_deadline": 5000.0}, None, 0.0, 900.0),
        ({"call_deadline": 7.0}, None, 3.0, 7.0),
    ],
)
def test_the_lease_is_the_longest_of_deadline_timeout_and_twice_the_longest_success(
    fields: dict[str, float], timeout: float | None, longest: float, lease: float
) -> None:
    drive = Drive(**fields)
    drive.call(OK, duration=longest)
    drive.call(OK, duration=longest / 2)
    drive.trip(duration=10_000.0)
    drive.at(30).probe(timeout)
    assert drive.ask() == Refused("probe_in_flight", lease)


def test_the_longest_success_is_one_of_the_closed_periods_not_a_probes() -> None:
    drive = Drive()
    drive.call(OK, duration=40.0)
    drive.trip().at(30).settle(drive.probe(), OK, duration=100.0)
    drive.trip().at(60).probe()
    assert drive.ask() == Refused("probe_in_flight", 80.0)


def test_a_silent_probe_has_failed_as_from_its_lapse() -> None:
    drive, _ = probing()
    assert drive.at(59.5).name == "half_open"
    drive.at(70)
    assert (drive.name, drive.view.reason, drive.view.failures) == ("open", "probe_lapsed", 6)
    assert (drive.view.cooldown, drive.view.retry_after) == (60.0, 50.0)
    effects = drive.send(Acquire())
    assert effects == [
        ProbeOver("failure", "probe_lapsed", START + 60),
        Moved("half_open", "open", "probe_lapsed", 6, 60.0, START + 60),
        Refused("circuit_open", 50.0),
    ]


def test_a_lapsed_probes_successor_may_be_the_very_call_that_finds_it() -> None:
    drive, lost = probing()
    drive.at(120)
    successor = drive.probe()
    assert successor > lost
    assert drive.moves[-2:] == [
        ("half_open", "open", "probe_lapsed", 60.0),
        ("open", "half_open", "cooldown_elapsed", 120.0),
    ]


def test_each_sign_of_life_renews_the_lease() -> None:
    drive, permit = probing(call_deadline=10.0)
    drive.at(39).renew(permit)
    assert drive.at(42).view.retry_after == 7.0
    assert drive.at(48.5).name == "half_open"
    assert drive.at(49.5).name == "open"


def test_a_stale_sign_of_life_renews_nothing() -> None:
    drive, permit = probing()
    drive.at(40).renew(permit - 1)
    assert drive.view.retry_after == 20.0


def test_a_stream_that_has_delivered_for_a_lease_settles_as_a_success() -> None:
    drive, permit = probing()
    for moment in (40, 50, 59):
        assert drive.at(moment).renew(permit) == []
    effects = drive.at(60.5).renew(permit)
    assert ProbeOver("success", None, START + 60.5) in effects
    assert (drive.name, drive.moves[-1]) == ("closed", ("half_open", "closed", "probe_succeeded", 60.5))


def test_a_stream_that_breaks_before_it_has_delivered_for_a_lease_is_a_failed_probe() -> None:
    drive, permit = probing()
    drive.at(50).renew(permit)
    drive.at(55).settle(permit, bad("truncated_output"))
    assert (drive.name, drive.view.reason) == ("open", "truncated_output")


def test_signs_of_life_of_a_closed_circuits_calls_change_nothing() -> None:
    drive = Drive()
    permit = drive.enter()
    before = drive.state
    assert drive.at(500).renew(permit) == []
    assert drive.state == before


def test_B81_the_state_is_the_real_one_after_every_step() -> None:
    drive = Drive()
    seen = [drive.name]
    for moment, act in (
        (0, lambda: drive.trip()),
        (30, lambda: drive.probe()),
        (31, lambda: drive.settle(drive.state.id, bad())),
        (91, lambda: drive.probe()),
        (92, lambda: drive.settle(drive.state.id, OK)),
    ):
        drive.at(moment)
        act()
        seen.append(drive.name)
    assert seen == ["closed", "open", "half_open", "open", "half_open", "closed"]
    assert [m[:2] for m in drive.moves] == list(pairwise(seen))
