from __future__ import annotations

from typing import Any

import pytest

from otel_breaker.core.policy import Policy
from tests.core.drive import Drive, bad


def climb(policy: Policy, draws: list[float]) -> list[float]:
    """The cooldowns of one episode in which every probe fails at once; one jitter draw for each failure."""
    drive = Drive(policy)
    drive.trip(draw=draws[0])
    moment, lengths = 0.0, [drive.view.cooldown]
    for draw in draws[1:]:
        moment += lengths[-1]
        drive.at(moment + 0.25).settle(drive.probe(), bad(), draw=draw)
        moment += 0.25
        lengths.append(drive.view.cooldown)
    return [round(length, 6) for length in lengths]


@pytest.mark.parametrize(
    ("fields", "lengths"),
    [
        ({}, [30, 60, 300, 900, 900, 900]),
        ({"cooldown_cap": 200}, [30, 60, 200, 200, 200]),
        ({"cooldown_cap": 10}, [10, 10]),
        ({"cooldown": 60, "cooldown_steps": (1,)}, [60, 60, 60]),
        ({"cooldown": 10, "cooldown_steps": (0.5, 3)}, [5, 30, 30]),
        ({"cooldown": 120}, [120, 240, 900, 900]),
    ],
)
def test_each_failed_probe_goes_one_step_on_up_to_the_cap(fields: dict[str, Any], lengths: list[float]) -> None:
    assert climb(Policy(**fields), [0.0] * len(lengths)) == lengths


@pytest.mark.parametrize(
    ("jitter", "draw", "lengths"),
    [
        (0.0, 1.0, [30, 60, 300, 900, 900]),
        (0.1, 0.0, [30, 60, 300, 900, 900]),
        (0.1, 0.5, [31.5, 63, 315, 945, 945]),
        (0.1, 1.0, [33, 66, 330, 990, 990]),
        (1.0, 1.0, [60, 120, 600, 1800, 1800]),
    ],
)
def test_B44_jitter_only_lengthens_and_beyond_the_cap_too(jitter: float, draw: float, lengths: list[float]) -> None:
    assert climb(Policy(cooldown_jitter=jitter), [draw] * 5) == lengths


def test_jitter_is_drawn_once_an_episode() -> None:
    assert climb(Policy(cooldown_jitter=0.1), [0.5, 0.0, 1.0, 0.2]) == [31.5, 63, 315, 945]


def test_the_next_episode_draws_again_and_starts_at_the_foot() -> None:
    drive = Drive(cooldown_jitter=0.1)
    drive.trip(draw=0.5)
    drive.at(31.5).settle(drive.probe(), bad())
    drive.at(31.5 + 63).settle(drive.probe())
    drive.trip(draw=1.0)
    assert drive.view.cooldown == pytest.approx(33)


def test_a_lapsed_probe_goes_one_step_on_as_well() -> None:
    drive = Drive().trip().at(30)
    drive.probe()
    drive.at(60 + 60).probe()
    assert drive.view.cooldown == 60.0
    assert drive.at(150).view.cooldown == 300.0
    assert drive.view.retry_after == 300.0
