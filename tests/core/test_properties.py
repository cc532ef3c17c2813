"""The machine against a plain model (`model`), step by step, under whatever hypothesis thinks up.

A run is the same every time: 10^5 steps, and a failure prints the blob that repeats it. To look further afield:
``pytest tests/core/test_properties.py --hypothesis-profile=explore`` (other seeds each time, ten times as many).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from otel_breaker.core.events import (
    Acquire,
    Admitted,
    Counted,
    Disable,
    Effect,
    EpisodeOver,
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
from otel_breaker.core.machine import LEGAL, step
from otel_breaker.core.moves import fresh
from otel_breaker.core.policy import Policy
from otel_breaker.core.states import State
from otel_breaker.core.views import view
from otel_breaker.outcomes import ABORTED, ANSWERED, IGNORED, OK, Outcome
from tests.core.conftest import EXAMPLES
from tests.core.drive import DENIED, START, bad, busy
from tests.core.model import Model, Word

STEPS = 100_000
EIGHTH = 0.125  # every moment and length is a multiple of it, so that both sides' sums are exact

POLICIES = [
    Policy(),
    Policy(failure_threshold=2, success_threshold=3, cooldown_jitter=1.0),
    Policy(failure_threshold=4, failure_rate=0.5, minimum_calls=3, window=60.0, throttle_threshold=2),
    Policy(slow_call=1.0, slow_rate=0.5, minimum_calls=2, window=15.0, cooldown_cap=45.0, verdict_ttl=20.0),
    Policy(failure_threshold=1, probe_by="health_check", call_deadline=5.0, retry_after_cap=100.0),
    Policy(failure_threshold=2, on_unauthorized="alert", cooldown=2.0, cooldown_steps=(1, 4), success_threshold=2),
    Policy(failure_threshold=1, pause=5.0, cooldown=8.0, cooldown_jitter=0.5, throttle_threshold=1),
]
GOOD = [OK, OK, OK]
BAD = [bad(), bad("timeout"), bad(retry_after=40.0), bad(retry_after=0.5), Outcome("failure")]
LIMITED = [busy(), busy(5.0), busy(5000.0), busy(60.0, "fp"), busy(0.0), Outcome("throttled")]
OTHERS = [IGNORED, ANSWERED, ABORTED, DENIED]
OUTCOMES = st.sampled_from([*GOOD, *BAD, *LIMITED, *OTHERS])
PROBED = st.sampled_from([*GOOD, *OTHERS, bad(), busy(60.0)])
MIXED = st.sampled_from([OK, busy(5000.0), busy(5000.0), busy(), busy(5.0), bad(), IGNORED])
DURATIONS = st.sampled_from([EIGHTH, 2.0, 90.0, 600.0])
DRAWS = st.sampled_from([0.0, 0.5, 1.0])
TIMEOUTS = st.sampled_from([None, None, 5.0, 200.0, 2000.0])
WAITS = st.sampled_from([0.0, EIGHTH, 1.0, 4.0, 10.0, 31.0, 100.0, 400.0, 1000.0, 20_000.0])

taken = [0]
moved: set[tuple[str, str]] = set()


def words(effects: tuple[Effect, ...]) -> list[Word]:
    """Effects in the model's words."""
    said: list[Word] = []
    for effect in effects:
        match effect:
            case Admitted(fence, probe):
                said.append(("admitted", fence, probe))
            case Refused(decision, retry_after):
                said.append(("refused", decision, retry_after))
            case Moved(before, after, reason, failures, cooldown, at):
                moved.add((before, after))
                said.append(("moved", before, after, reason, failures, cooldown, at))
            case ProbeOver(kind, reason, at):
                said.append(("probe_over", kind, reason, at))
            case Counted(outcome, reason):
                said.append(("counted", outcome, reason))
            case EpisodeOver(duration):
                said.append(("episode_over", duration))
            case Revoked():
                said.append(("revoked",))
    return said


class Sides(RuleBasedStateMachine):
    """The machine on one side, the model on the other; the same events at the same moments."""

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: Policy) -> None:
        self.policy = policy
        self.now = START
        self.state: State = fresh(policy)
        self.model = Model(policy)
        self.out: list[int] = []  # permits of calls that have not ended
        self.admitted = self.counted = 0

    def send(self, event: Event) -> None:
        taken[0] += 1
        before = self.state
        self.state, effects = step(before, event, self.policy, self.now)
        said, self.model.said = self.model.said, []
        assert words(effects) == said
        assert self.state.id == self.model.fence >= before.id
        for word in said:
            if word[0] == "admitted":
                self.out.append(word[1])
                self.admitted += 1
            elif word[0] == "counted":
                self.counted += 1

    # --- time ---------------------------------------------------------------------------------------------------------

    @rule(seconds=WAITS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.state.name != "closed")
    @rule(nudge=st.sampled_from([-EIGHTH, 0.0, 0.0, EIGHTH]), which=st.booleans())
    def wait_for_the_edge(self, nudge: float, which: bool) -> None:
        """To the end of a cooldown, a lease, a verdict or a force; just before it, or just after."""
        due = self.model._due()
        edge = self.model.until if which or due is None else due[0]
        if self.now <= edge + nudge < START * 1e6:
            self.now = edge + nudge

    # --- calls --------------------------------------------------------------------------------------------------------

    @rule(timeout=TIMEOUTS, health=st.booleans())
    def acquire(self, timeout: float | None, health: bool) -> None:
        self.model.acquire(self.now, timeout, health)
        self.send(Acquire(timeout, health))

    @precondition(lambda self: self.out)
    @rule(pick=st.integers(0, 7), outcome=OUTCOMES, duration=DURATIONS, draw=DRAWS, extra=st.integers(0, 5))
    def settle(self, pick: int, outcome: Outcome, duration: float, draw: float, extra: int) -> None:
        permit = self.out.pop(-1 - pick % len(self.out))
        self.end(permit, outcome, duration, draw, extra)

    def end(self, permit: int, outcome: Outcome, duration: float, draw: float, extra: int) -> None:
        worked, deadline = extra in (1, 2), 50.0 if extra == 3 else None
        self.model.settle(self.now, permit, outcome, duration, draw, worked, deadline)
        self.send(Settle(permit, outcome, duration, draw, worked, deadline))

    @rule(outcome=st.sampled_from([*BAD, busy(5000.0), OK, DENIED]), times=st.integers(1, 5), draw=DRAWS)
    def calls(self, outcome: Outcome, times: int, draw: float) -> None:
        """Whole calls, one after another, as far as they are let through."""
        for _ in range(times):
            self.acquire(timeout=None, health=True)
            if self.out:
                self.settle(0, outcome, EIGHTH, draw, 1)

    @precondition(lambda self: self.model.state == "closed")
    @rule(first=MIXED, second=MIXED, third=MIXED, fourth=MIXED)
    def mixture(self, first: Outcome, second: Outcome, third: Outcome, fourth: Outcome) -> None:
        """Calls that end differently, one after another."""
        for outcome in (first, second, third, fourth):
            self.acquire(timeout=None, health=False)
            if self.out:
                self.settle(0, outcome, EIGHTH, 0.0, 0)

    @precondition(lambda self: self.model.state in ("open", "half_open"))
    @rule(first=PROBED, second=PROBED, third=PROBED, draw=DRAWS)
    def probes(self, first: Outcome, second: Outcome, third: Outcome, draw: float) -> None:
        """Probes, one after another, each as soon as it may be."""
        for outcome in (first, second, third):
            if self.model.state == "open":
                self.now = max(self.now, self.model.until)
            self.acquire(timeout=None, health=True)
            self.both_look_the_same()
            if self.out:
                self.settle(0, outcome, EIGHTH, draw, 1)

    @precondition(lambda self: self.model.state in ("open", "half_open"))
    @rule(nudge=st.sampled_from([-EIGHTH, 0.0]), timeout=TIMEOUTS)
    def silent_probe(self, nudge: float, timeout: float | None) -> None:
        """To the end of a probe's lease, or just before it."""
        if self.model.state == "open":
            self.now = max(self.now, self.model.until)
        self.acquire(timeout=timeout, health=True)
        if self.model.probing:
            self.now = max(self.now, self.model.lapses + nudge)

    @precondition(lambda self: self.out)
    @rule(pick=st.integers(0, 3))
    def renew(self, pick: int) -> None:
        permit = self.out[-1 - pick % len(self.out)]
        self.model.renew(self.now, permit)
        self.send(Renew(permit))

    @precondition(lambda self: self.model.probing and self.out)
    @rule(pieces=st.integers(1, 4))
    def stream(self, pieces: int) -> None:
        """Pieces of a probe's body, each just within the lease."""
        for _ in range(pieces):
            self.now += self.model.lease - EIGHTH
            self.renew(0)

    # --- commands -----------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([None, 5.0, 500.0]))
    def force_open(self, seconds: float | None) -> None:
        self.model.force_open(self.now, "by hand", seconds)
        self.send(ForceOpen("by hand", seconds))

    @rule()
    def disable(self) -> None:
        self.model.disable(self.now)
        self.send(Disable())

    @rule()
    def reset(self) -> None:
        self.model.reset(self.now)
        self.send(Reset())

    @rule(twice=st.booleans())
    def resume(self, twice: bool) -> None:
        for _ in range(1 + twice):
            self.model.resume(self.now)
            self.send(Resume())

    @precondition(lambda self: self.model.state == "half_open")
    @rule(which=st.integers(0, 3))
    def command_while_half_open(self, which: int) -> None:
        (self.disable, self.reset, lambda: self.force_open(5.0), lambda: self.resume(False))[which]()

    # --- always -------------------------------------------------------------------------------------------------------

    @invariant()
    def both_look_the_same(self) -> None:
        shown = view("svc", self.state, self.policy, self.now)
        seen = (
            shown.state, shown.failures, shown.cooldown, shown.retry_after, shown.cooldowns_elapsed,
            shown.awaiting_probe, shown.reason, shown.open_elapsed,
        )  # fmt: skip
        assert seen == self.model.look(self.now)
        assert shown.retry_after >= 0

    @invariant()
    def every_call_is_counted_once(self) -> None:
        """But for a stream that has proven itself: it is counted then, and late at its end."""
        assert self.admitted <= self.counted + len(self.out)


@pytest.mark.timeout(400)
def test_a_hundred_thousand_steps_as_the_model_says(pytestconfig: pytest.Config) -> None:
    taken[0] = 0
    moved.clear()
    chosen: Any = settings.get_profile(pytestconfig.getoption("--hypothesis-profile") or "ci")
    checks = [HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Sides,
        settings=settings(chosen, stateful_step_count=60, deadline=None, database=None, suppress_health_check=checks),
    )
    print(f"{taken[0]} steps")
    if chosen.max_examples >= EXAMPLES:
        assert taken[0] >= STEPS
        assert moved == LEGAL
