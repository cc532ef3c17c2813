"""The arithmetic of one episode: ladder, Retry-After, jitter, and cooldowns run out by the clock."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from ..outcomes import Outcome
from .policy import Policy
from .states import NEVER, Episode

RETRY_AFTER_FLOOR: Final = 1.0
"""Seconds; a server's wish below this is rounded up to it, so that no reopening is instant (docs/how-it-decides.md)."""


def hint(outcome: Outcome, policy: Policy, now: float) -> float | None:
    """The moment until which this outcome's Retry-After asks to wait; ``None`` when it names no time."""
    seconds = outcome.retry_after
    if seconds is None or not (seconds > 0 and math.isfinite(seconds)):
        return None
    return now + min(max(seconds, RETRY_AFTER_FLOOR), policy.retry_after_cap)


def begin(failures: int, reason: str, draw: float, until_hint: float, policy: Policy, now: float) -> Episode:
    """A new episode that opens ``now``."""
    cooldown = _cooldown(0, draw, until_hint, policy, now)
    return Episode(
        since=now,
        failures=failures,
        reason=reason,
        cooldown=cooldown,
        until=now + cooldown,
        step=0,
        draw=draw,
        elapsed=0,
        boundary=now + cooldown,
        rung=1,
    )


def again(episode: Episode, reason: str, until_hint: float, policy: Policy, at: float) -> Episode:
    """The episode after a probe that failed ``at``: one step further on the ladder, the next boundary moved there."""
    elapsed, _, _ = _boundary(episode, policy, at)
    step = episode.step + 1
    cooldown = _cooldown(step, episode.draw, until_hint, policy, at)
    return replace(
        episode,
        failures=episode.failures + 1,
        reason=reason,
        cooldown=cooldown,
        until=at + cooldown,
        step=step,
        elapsed=elapsed,
        boundary=at + cooldown,
        rung=step + 1,
        tested=NEVER,
        paused=False,
    )


def answered(episode: Episode, policy: Policy, at: float) -> Episode:
    """The host answered a probe ``at`` without proving anything: the next boundary is a whole cooldown away."""
    elapsed, boundary, rung = _boundary(episode, policy, at)
    return replace(episode, elapsed=elapsed, boundary=max(boundary, at + episode.cooldown), rung=rung, tested=at)


def elapsed(episode: Episode, policy: Policy, now: float) -> int:
    """Cooldowns of this episode that have run out by ``now``; an idle circuit counts on along the ladder."""
    return _boundary(episode, policy, now)[0]


def expires(episode: Episode, policy: Policy) -> float:
    """The moment at which a verdict that nobody tests says nothing any more."""
    return max(episode.until, episode.tested) + policy.ttl(episode.cooldown)


def upcoming(episode: Episode, now: float, policy: Policy) -> float:
    """Seconds until the next cooldown of an idle episode runs out; above 0."""
    return _boundary(episode, policy, now)[1] - now


def _boundary(episode: Episode, policy: Policy, now: float) -> tuple[int, float, int]:
    """(cooldowns run out, when the next one does, the rung after that) at ``now``."""
    count, boundary, rung = episode.elapsed, episode.boundary, episode.rung
    last = len(policy.cooldown_steps) - 1
    while boundary <= now:
        length = _stretched(policy.ladder(rung), episode.draw, policy)
        if rung >= last:  # the ladder is flat from here on: no need to walk it
            more = int((now - boundary) // length)
            count, boundary = count + more, boundary + more * length
        count, boundary, rung = count + 1, boundary + length, rung + 1
    return count, boundary, rung


def _cooldown(step: int, draw: float, until_hint: float, policy: Policy, now: float) -> float:
    left = until_hint - now
    length = min(max(left, RETRY_AFTER_FLOOR), policy.retry_after_cap) if left > 0 else policy.ladder(step)
    return _stretched(length, draw, policy)


def _stretched(length: float, draw: float, policy: Policy) -> float:
    return length * (1.0 + policy.cooldown_jitter * draw)
