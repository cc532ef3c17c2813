"""What a circuit looks like at one moment: a pure view that changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from . import episodes
from .events import MANUAL
from .machine import advance
from .policy import Policy
from .states import FOREVER, Closed, Disabled, ForcedOpen, HalfOpen, Open, State


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One circuit at one moment.

    Attributes:
        name: the circuit's metric name.
        state: ``closed``, ``open``, ``half_open``, ``forced_open`` or ``disabled``.
        failures: charged failures in a row; grows with each failed probe.
        cooldown: length of the current open period, seconds; 0 when there is none.
        retry_after: seconds until a call may be let through; 0 when one would be now.
        cooldowns_elapsed: cooldowns of this episode that have run out; 0 unless open or half-open.
        awaiting_probe: the cooldown is over and nobody has called since.
        reason: code of the last failure, the operator's words when forced, ``None`` when closed.
        open_elapsed: age of the episode, seconds; 0 when there is none.
    """

    name: str
    state: str
    failures: int = 0
    cooldown: float = 0.0
    retry_after: float = 0.0
    cooldowns_elapsed: int = 0
    awaiting_probe: bool = False
    reason: str | None = None
    open_elapsed: float = 0.0


def view(name: str, state: State, policy: Policy, now: float) -> Snapshot:
    """The snapshot of ``state`` as ``now`` makes it."""
    state, _ = advance(state, now, policy)
    match state:
        case Open() | HalfOpen():
            episode = state.episode
            if isinstance(state, Open) and now < episode.until:
                left = episode.until - now
            elif isinstance(state, HalfOpen) and state.probing:
                left = state.lapses - now
            else:  # the next call is the probe, unless only the health check may be one
                left = episodes.upcoming(episode, now, policy) if policy.probe_by == "health_check" else 0.0
            return Snapshot(
                name,
                state.name,
                failures=episode.failures,
                cooldown=episode.cooldown,
                retry_after=left,
                cooldowns_elapsed=episodes.elapsed(episode, policy, now),
                awaiting_probe=isinstance(state, Open) and now >= episode.until,
                reason=episode.reason,
                open_elapsed=now - episode.since,
            )
        case ForcedOpen():
            left = policy.cooldown if state.until == FOREVER else state.until - now
            return Snapshot(name, state.name, retry_after=left, reason=state.text or MANUAL)
        case Disabled():
            return Snapshot(name, state.name)
        case Closed():
            return Snapshot(name, state.name, failures=state.failures)
    raise AssertionError(f"not a state: {state!r}")
