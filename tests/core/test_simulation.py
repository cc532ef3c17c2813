from __future__ import annotations

import math
import random
from dataclasses import asdict
from typing import Any

import pytest

from otel_breaker.core.events import (
    Acquire,
    Admitted,
    Disable,
    EpisodeOver,
    Event,
    ForceOpen,
    Moved,
    ProbeOver,
    Refused,
    Renew,
    Reset,
    Resume,
    Settle,
)
from otel_breaker.core.machine import LEGAL, advance, step
from otel_breaker.core.moves import fresh
from otel_breaker.core.policy import LEASE_CAP, Policy
from otel_breaker.core.states import Disabled, ForcedOpen, HalfOpen, State
from otel_breaker.core.views import view
from otel_breaker.outcomes import ABORTED, ANSWERED, IGNORED, OK
from tests.core.drive import DENIED, START, bad, busy

OUTCOMES = [OK, OK, bad(), bad("timeout"), bad(retry_after=40), bad(retry_after=math.inf), IGNORED, ANSWERED, ABORTED]
OUTCOMES += [DENIED, busy(), busy(5), busy(5000), busy(60, "fp")]
COMMANDS: list[Event] = [ForceOpen("x"), ForceOpen("x", 50.0), Disable(), Reset(), Resume(), Resume()]
WAITS = [0.0, 0.1, 1.0, 10.0, 31.0, 100.0, 1000.0, 20_000.0]

POLICIES = [
    {},
    {"failure_threshold": 1, "cooldown_jitter": 1.0, "success_threshold": 3},
    {"failure_rate": 0.5, "minimum_calls": 3, "window": 60.0, "throttle_threshold": 1, "retry_after_cap": 100.0},
    {"slow_call": 1.0, "slow_rate": 0.5, "minimum_calls": 2, "cooldown_cap": 45.0, "verdict_ttl": 20.0},
    {"probe_by": "health_check", "failure_threshold": 2, "call_deadline": 5.0},
    {"on_unauthorized": "alert", "cooldown": 0.01, "cooldown_steps": (1,), "failure_threshold": 1},
    {"pause": 5.0, "failure_threshold": 2},
]


def finite(value: Any) -> None:
    if isinstance(value, float):
        assert math.isfinite(value)


def admitted_in_time(state: State, policy: Policy, now: float) -> None:
    """From here on, silence alone leads to a call that is let through: no state is a dead end."""
    if isinstance(state, ForcedOpen) and math.isinf(state.until):
        return
    longest = max(policy.cooldown_cap, policy.retry_after_cap, policy.pause) * 2
    wait = max(longest, state.until - now if isinstance(state, ForcedOpen) else 0.0)
    _, effects = step(state, Acquire(health=True), policy, now + wait + LEASE_CAP)
    assert isinstance(effects[-1], Admitted)


def an_event(rng: random.Random, permits: list[int], state: State) -> Event:
    roll = rng.random()
    if isinstance(state, ForcedOpen | Disabled) and roll < 0.2:
        return rng.choice(COMMANDS)
    if roll < 0.40 or not permits:
        return Acquire(rng.choice([None, None, 5.0, 200.0]), health=rng.random() < 0.3)
    if roll < 0.88:
        permit = permits.pop(rng.randrange(len(permits))) if rng.random() < 0.9 else state.id - 1
        draw, pause = rng.random(), rng.random() < 0.2
        return Settle(permit, rng.choice(OUTCOMES), rng.choice([0.01, 2.0, 90.0]), draw, pause)
    if roll < 0.93:
        return Renew(rng.choice(permits))
    return rng.choice(COMMANDS)


@pytest.mark.parametrize("fields", POLICIES, ids=[str(n) for n in range(len(POLICIES))])
def test_ten_thousand_random_steps_break_no_rule(fields: dict[str, Any]) -> None:
    policy, rng, now = Policy(**fields), random.Random(f"otel-breaker {fields}"), START
    state: State = fresh(policy)
    permits: list[int] = []
    name, probes, peak, started, seen, last = state.name, 0, 0, None, set(), START
    for _ in range(10_000):
        now += rng.choice(WAITS[: rng.randint(1, len(WAITS))])
        shown = view("svc", state, policy, now)
        ready, _ = advance(state, now, policy)
        before, event = state, an_event(rng, permits[-20:], state)
        permits = permits[-20:]
        if isinstance(event, Settle) and event.id in permits:
            permits.remove(event.id)
        state, effects = step(state, event, policy, now)

        assert (shown.state, shown.cooldowns_elapsed >= 0) == (ready.name, True)
        assert state.id >= before.id
        for effect in effects:
            for value in asdict(effect).values():
                finite(value)
            if isinstance(effect, Moved | ProbeOver):
                assert last <= effect.at <= now
                last = effect.at
            match effect:
                case Moved():
                    assert (effect.previous_state, effect.state) in LEGAL
                    assert effect.previous_state == name
                    assert before.id < state.id
                    name = effect.state
                    seen.add((effect.previous_state, effect.state))
                    if effect.previous_state == "half_open":
                        probes = 0
                    if effect.state == "open" and effect.previous_state == "closed":
                        peak, started = 0, effect.at
                    if effect.state not in ("open", "half_open"):
                        peak, started = 0, None
                case Admitted(permit, probe):
                    permits.append(permit)
                    probes += probe
                    assert permit == state.id
                    assert probe == isinstance(state, HalfOpen)
                    assert not probe or permit > before.id
                case Refused():
                    assert effect.retry_after > 0
                    assert effect.decision in {"circuit_open", "probe_in_flight", "forced_open", "credential_paused"}
                case ProbeOver():
                    probes = 0
                case EpisodeOver():
                    assert effect.duration >= 0
        assert name == state.name
        assert probes == (isinstance(state, HalfOpen) and state.probing)

        after = view("svc", state, policy, now)
        for value in asdict(after).values():
            finite(value)
        assert after.retry_after >= 0
        if started is None or after.state == "closed":  # expired while its probe was out
            assert (after.cooldowns_elapsed, after.open_elapsed) == (0, 0)
        else:
            assert after.cooldowns_elapsed >= peak
            assert after.open_elapsed == now - started
            peak = after.cooldowns_elapsed
        if not isinstance(state, Disabled):
            admitted_in_time(state, policy, now)
    assert seen >= {("closed", "open"), ("open", "half_open"), ("half_open", "open"), ("half_open", "closed")}
