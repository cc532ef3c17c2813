"""The machine: ``step(state, event, policy, now) -> (state, effects)`` and ``advance``, both pure.

    closed --(threshold)--> open --(cooldown over, a call comes)--> half_open --(probe succeeds)--> closed
                             ^                                          |
                             +--------------(probe fails, lapses)-------+
    open, half_open --(nobody tested it for verdict_ttl)--> closed;   any --(operator)--> forced_open, disabled

Time moves a state only here, from the ``now`` that is handed in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..outcomes import FAILURE, LATE, SUCCESS, THROTTLED, UNAUTHORIZED, Outcome
from . import episodes, moves, rates
from .events import (
    COOLDOWN_ELAPSED,
    EXPIRED,
    MANUAL,
    PROBE_LAPSED,
    PROBE_SUCCEEDED,
    Acquire,
    Admitted,
    Counted,
    Disable,
    Effect,
    Event,
    ForceOpen,
    Moved,
    ProbeOver,
    Refused,
    Renew,
    Reset,
    Resume,
    Revoked,
    Settle,
)
from .policy import Policy
from .states import (
    CLOSED,
    DISABLED,
    FORCED_OPEN,
    FOREVER,
    HALF_OPEN,
    NEVER,
    OPEN,
    Closed,
    Disabled,
    ForcedOpen,
    HalfOpen,
    Open,
    State,
)

LEGAL: Final[frozenset[tuple[str, str]]] = frozenset(
    {
        (CLOSED, OPEN),
        (CLOSED, FORCED_OPEN),
        (CLOSED, DISABLED),
        (OPEN, CLOSED),
        (OPEN, HALF_OPEN),
        (OPEN, FORCED_OPEN),
        (OPEN, DISABLED),
        (HALF_OPEN, CLOSED),
        (HALF_OPEN, OPEN),
        (HALF_OPEN, FORCED_OPEN),
        (HALF_OPEN, DISABLED),
        (FORCED_OPEN, CLOSED),
        (FORCED_OPEN, DISABLED),
        (DISABLED, CLOSED),
        (DISABLED, FORCED_OPEN),
    }
)
"""Every legal (from, to); nothing else ever happens."""

Step = tuple[State, tuple[Effect, ...]]


def advance(state: State, now: float, policy: Policy) -> Step:
    """What time alone did until ``now``: a silent probe lapses, an untested verdict expires, a timed force ends.

    Loops until nothing more happens, so hours of silence come out in order, each with its true moment.
    """
    effects: list[Effect] = []
    while True:
        if isinstance(state, HalfOpen) and state.probing and now >= state.lapses:
            at = state.lapses
            effects.append(ProbeOver(FAILURE, PROBE_LAPSED, at))
            state = moves.reopen(state, PROBE_LAPSED, at, policy, effects)
        elif isinstance(state, (Open, HalfOpen)) and not (isinstance(state, HalfOpen) and state.probing):
            at = episodes.expires(state.episode, policy)
            if isinstance(state, HalfOpen):  # not while its last probe was still out
                at = max(at, state.started)
            if now < at:
                return state, tuple(effects)
            state = moves.close(state, EXPIRED, at, policy, effects)
        elif isinstance(state, ForcedOpen) and now >= state.until:
            state = moves.close(state, MANUAL, state.until, policy, effects)
        else:
            return state, tuple(effects)


def step(state: State, event: Event, policy: Policy, now: float) -> Step:
    """Take in one event at ``now``. Returns the new state and what must be told, oldest first."""
    state, before = advance(state, now, policy)
    effects = list(before)
    match event:
        case Acquire():
            state = _acquire(state, event, policy, now, effects)
        case Settle():
            state = _settle(state, event, policy, now, effects)
        case Renew():
            state = _renew(state, event, policy, now, effects)
        case ForceOpen():
            until = FOREVER if event.seconds is None else now + event.seconds
            forced = ForcedOpen(id=state.id + 1, hint=state.hint, longest=state.longest, text=event.text, until=until)
            state = moves.command(state, forced, now, effects)
        case Disable():
            state = moves.command(
                state, Disabled(id=state.id + 1, hint=state.hint, longest=state.longest), now, effects
            )
        case Reset():
            state = moves.command(state, replace(moves.fresh(policy, state), hint=NEVER), now, effects)
        case Resume():
            state = moves.resume(state, policy, now, effects)
    return state, tuple(effects)


# --- one call ---------------------------------------------------------------------------------------------------------


def _acquire(state: State, event: Acquire, policy: Policy, now: float, effects: list[Effect]) -> State:
    if isinstance(state, (Closed, Disabled)):
        effects.append(Admitted(state.id))
        return state
    if isinstance(state, ForcedOpen):
        left = state.until - now if state.until < FOREVER else policy.cooldown
        effects.append(Refused(FORCED_OPEN, left))
        return state
    assert isinstance(state, (Open, HalfOpen))
    episode = state.episode
    if isinstance(state, Open) and now < episode.until:
        effects.append(Refused("credential_paused" if episode.paused else "circuit_open", episode.until - now))
        return state
    if isinstance(state, HalfOpen) and state.probing:
        effects.append(Refused("probe_in_flight", state.lapses - now))
        return state
    if policy.probe_by == "health_check" and not event.health:
        effects.append(Refused("circuit_open", episodes.upcoming(episode, now, policy)))
        return state
    lease = policy.lease(event.timeout, state.longest)
    if isinstance(state, Open):
        effects.append(Moved(OPEN, HALF_OPEN, COOLDOWN_ELAPSED, episode.failures, episode.cooldown, now))
    effects.append(Admitted(state.id + 1, probe=True))
    return HalfOpen(
        id=state.id + 1,
        hint=state.hint,
        longest=state.longest,
        episode=episode,
        probing=True,
        started=now,
        lease=lease,
        lapses=now + lease,
        successes=state.successes if isinstance(state, HalfOpen) else 0,
    )


def _settle(state: State, event: Settle, policy: Policy, now: float, effects: list[Effect]) -> State:
    if event.id != state.id or not isinstance(state, (Closed, HalfOpen, Disabled)):
        effects.append(Counted(LATE))
        return state
    outcome = event.outcome
    if isinstance(state, Disabled):
        effects.append(Counted(outcome.kind))
        return state
    hint = episodes.hint(outcome, policy, now)
    if hint is not None and not (isinstance(state, Closed) and _foreign_throttle(outcome)):
        state = replace(state, hint=hint)
    if isinstance(state, HalfOpen):
        return _settle_probe(state, event, policy, now, effects)
    assert isinstance(state, Closed)
    return _settle_closed(state, event, policy, now, effects)


def _settle_closed(state: Closed, event: Settle, policy: Policy, now: float, effects: list[Effect]) -> State:
    outcome = event.outcome
    charged = outcome.kind == FAILURE
    effects.append(Counted(outcome.kind, outcome.reason if charged or outcome.kind == THROTTLED else None))
    if outcome.kind == UNAUTHORIZED:
        if event.pause:
            effects.append(Revoked())
            if policy.on_unauthorized == "pause":
                return moves.pause(state, event.draw, policy, now, effects)
        return state
    if outcome.kind == THROTTLED:
        return _settle_throttle(state, event, policy, now, effects)
    if outcome.kind not in (SUCCESS, FAILURE):
        return state
    state = replace(
        state,
        failures=state.failures + 1 if charged else 0,
        throttles=state.throttles if charged else 0,
        longest=state.longest if charged else max(state.longest, event.duration),
        window=rates.seen(state.window, event, policy, now),
    )
    if charged and state.failures >= policy.failure_threshold:
        return moves.trip(state, state.failures, outcome.reason or "unclassified", event.draw, policy, now, effects)
    if state.window is not None and (trip := rates.tripped(state.window, event, policy, now)) is not None:
        return moves.trip(state, *trip, event.draw, policy, now, effects)
    return state


def _settle_throttle(state: Closed, event: Settle, policy: Policy, now: float, effects: list[Effect]) -> State:
    outcome = event.outcome
    if _foreign_throttle(outcome):
        return state
    if outcome.retry_after is not None and 0 < outcome.retry_after <= (event.deadline or policy.call_deadline):
        return replace(state, throttles=0)
    state = replace(state, throttles=state.throttles + 1)
    if state.throttles < policy.throttle_threshold:
        return state
    return moves.trip(state, state.throttles, outcome.reason or THROTTLED, event.draw, policy, now, effects)


def _foreign_throttle(outcome: Outcome) -> bool:
    """A 429 with a known credential: that credential's quota circuit hears of it, a closed availability circuit not."""
    return outcome.kind == THROTTLED and outcome.credential is not None


def _settle_probe(state: HalfOpen, event: Settle, policy: Policy, now: float, effects: list[Effect]) -> State:
    outcome = event.outcome
    failed = outcome.kind in (FAILURE, THROTTLED)
    reason = (outcome.reason or ("unclassified" if outcome.kind == FAILURE else THROTTLED)) if failed else None
    effects.append(Counted(outcome.kind, reason))
    effects.append(ProbeOver(outcome.kind, reason, now))
    if reason is not None:
        return moves.reopen(state, reason, now, policy, effects)
    if outcome.kind == SUCCESS:
        if state.successes + 1 >= policy.success_threshold:
            return moves.close(state, PROBE_SUCCEEDED, now, policy, effects)
        return moves.free(state, state.successes + 1, replace(state.episode, tested=now), now)
    if outcome.kind == UNAUTHORIZED and event.pause:
        if not state.episode.paused:  # it was throttled; that it is revoked as well is news
            effects.append(Revoked())
        if policy.on_unauthorized == "pause":
            return moves.pause(state, event.draw, policy, now, effects)
    if outcome.answered:
        return moves.free(state, state.successes, episodes.answered(state.episode, policy, now), now)
    return moves.free(state, state.successes, state.episode, now)


def _renew(state: State, event: Renew, policy: Policy, now: float, effects: list[Effect]) -> State:
    if not isinstance(state, HalfOpen) or not state.probing or event.id != state.id:
        return state
    if now - state.started < state.lease:
        return replace(state, lapses=now + state.lease)
    # Delivering for a whole lease without a fault is proof enough; a later abort is a new charge.
    return _settle_probe(state, Settle(state.id, Outcome(SUCCESS)), policy, now, effects)
