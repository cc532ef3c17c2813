"""The moves between states: each builds the next state with a new fence id and says so in an effect."""

from __future__ import annotations

from dataclasses import replace

from ..outcomes import NEUTRAL, UNAUTHORIZED
from . import episodes
from .events import MANUAL, Effect, EpisodeOver, Moved, ProbeOver
from .policy import Policy
from .states import CLOSED, HALF_OPEN, OPEN, Closed, Disabled, Episode, ForcedOpen, HalfOpen, Open, State
from .window import TimeWindow


def fresh(policy: Policy, state: State | None = None) -> Closed:
    """A closed circuit with everything at zero. From ``state`` it keeps the fence, the hint and the longest success."""
    window = TimeWindow(policy.window) if policy.windowed else None
    if state is None:
        return Closed(window=window)
    return Closed(id=state.id + 1, hint=state.hint, longest=state.longest, window=window)


def trip(
    state: Closed, failures: int, reason: str, draw: float, policy: Policy, now: float, effects: list[Effect]
) -> Open:
    """Closed -> open; starts an episode."""
    episode = episodes.begin(failures, reason, draw, state.hint, policy, now)
    effects.append(Moved(CLOSED, OPEN, reason, failures, episode.cooldown, now))
    return Open(id=state.id + 1, hint=state.hint, longest=state.longest, episode=episode)


def reopen(state: HalfOpen, reason: str, at: float, policy: Policy, effects: list[Effect]) -> Open:
    """Half-open -> open; one step further on the ladder. ``at`` may lie in the past (a lapse)."""
    episode = episodes.again(state.episode, reason, state.hint, policy, at)
    effects.append(Moved(HALF_OPEN, OPEN, reason, episode.failures, episode.cooldown, at))
    return Open(id=state.id + 1, hint=state.hint, longest=state.longest, episode=episode)


def pause(state: Closed | HalfOpen, draw: float, policy: Policy, now: float, effects: list[Effect]) -> Open:
    """Refuse a revoked credential for ``policy.pause`` seconds."""
    failures, since, elapsed = 0, now, 0
    if isinstance(state, HalfOpen):  # the episode goes on: its age, its count and its one draw with it
        failures, since, draw = state.episode.failures, state.episode.since, state.episode.draw
        elapsed = episodes.elapsed(state.episode, policy, now)
    episode = Episode(
        since=since,
        failures=failures,
        reason=UNAUTHORIZED,
        cooldown=policy.pause,
        until=now + policy.pause,
        step=-1,  # a throttle after the pause starts at the foot of the ladder
        draw=draw,
        elapsed=elapsed,
        boundary=now + policy.pause,
        rung=0,
        paused=True,
    )
    effects.append(Moved(state.name, OPEN, UNAUTHORIZED, failures, policy.pause, now))
    return Open(id=state.id + 1, hint=state.hint, longest=state.longest, episode=episode)


def close(state: Open | HalfOpen | ForcedOpen, reason: str, at: float, policy: Policy, effects: list[Effect]) -> Closed:
    """Back to closed with everything at zero. ``at`` may lie in the past (an expiry)."""
    failures, cooldown = (0, 0.0) if isinstance(state, ForcedOpen) else (state.episode.failures, state.episode.cooldown)
    effects.append(Moved(state.name, CLOSED, reason, failures, cooldown, at))
    if not isinstance(state, ForcedOpen):
        effects.append(EpisodeOver(at - state.episode.since))
    return fresh(policy, state)


def free(state: HalfOpen, successes: int, episode: Episode, now: float) -> HalfOpen:
    """Give the probe's slot back without a verdict."""
    return HalfOpen(
        id=state.id + 1, hint=state.hint, longest=state.longest, episode=episode, started=now, successes=successes
    )


def command(state: State, target: State, now: float, effects: list[Effect]) -> State:
    """An operator's word: to ``target`` from wherever the circuit is; an episode ends with it."""
    if isinstance(state, HalfOpen) and state.probing:
        effects.append(ProbeOver(NEUTRAL, None, now))
    if state.name != target.name:
        failures = state.failures if isinstance(state, Closed) else 0
        cooldown = 0.0
        if isinstance(state, (Open, HalfOpen)):
            failures, cooldown = state.episode.failures, state.episode.cooldown
        effects.append(Moved(state.name, target.name, MANUAL, failures, cooldown, now))
    if isinstance(state, (Open, HalfOpen)):
        effects.append(EpisodeOver(now - state.episode.since))
    return target


def resume(state: State, policy: Policy, now: float, effects: list[Effect]) -> State:
    """End a force or a disable: closed. End a pause: one call may try. Nothing to end: nothing happens."""
    if isinstance(state, (ForcedOpen, Disabled)):
        return command(state, fresh(policy, state), now, effects)
    if isinstance(state, Open) and state.episode.paused:
        return replace(state, id=state.id + 1, episode=replace(state.episode, until=min(now, state.episode.until)))
    return state
