"""Circuit: the only lock. It feeds the pure machine and hands its effects on after the lock is released."""

from __future__ import annotations

import functools
import random
import threading
from typing import Any, Final

from . import _effects
from ._handy import ByHand
from ._threads import AT_ONCE
from .core import machine, moves
from .core.clock import SYSTEM_CLOCK, Clock
from .core.events import (
    PROBE_LAPSED,
    Acquire,
    Admitted,
    Counted,
    Effect,
    Event,
    Moved,
    ProbeOver,
    Refused,
    Renew,
    Revoked,
    Settle,
)
from .core.policy import Policy
from .core.states import NEVER, Closed, HalfOpen, Open, State
from .core.views import Snapshot, view
from .keys import CircuitKey
from .outcomes import FAILURE, Outcome
from .stats import Stats

VOID: Final = -1
"""The id of a permit that changes nothing: a call that only observe mode let through."""

SAMPLE_EVERY: Final = 0.1
"""Seconds between two looks at how long a success takes (DESIGN section 4, lease)."""


TELL_EVERY: Final = 1.0
"""Seconds between two refusals of one circuit that become a log event and a span of their own (DESIGN section 8)."""


class Circuit(ByHand):
    """The breaker of one dependency. Threads and tasks share it freely.

    Args:
        name: what it is called in metrics, events and answers.
        policy: the numbers, or the name of a class; ``None`` takes the configured ones.
        clock: where time comes from; ``None`` is the system's.
        credential: default credential for calls made through this object; only a fingerprint of it is kept.

    A circuit made by hand is in `registry` and in the metrics from the start.
    """

    __slots__ = (
        "__weakref__", "_credential", "_lock", "_state", "alternatives", "busy", "clock", "cost", "display_name",
        "gate", "key", "last_took", "mode", "name", "now", "parent", "policy", "quotas", "role", "sample_at", "split",
        "stats", "told_at", "untold", "worked",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        policy: Policy | str | None = None,
        *,
        clock: Clock | None = None,
        credential: str | None = None,
    ) -> None:
        from ._registry import registry

        registry().adopt(self, name, policy, clock, credential)

    def _build(
        self, name: str, key: CircuitKey, policy: Policy, mode: str, clock: Clock | None, stats: Stats, first: State
    ) -> None:
        self.name = name
        self.key = key
        self.policy = policy
        self.mode = mode
        self.role = key.role
        self.clock: Clock = clock or SYSTEM_CLOCK
        self.now = self.clock.now
        self.stats = stats
        self.display_name: str | None = None
        self.alternatives: tuple[str, ...] = ()
        self.parent: Circuit | None = None
        self.split = False
        self.quotas: dict[str, Circuit] | None = None
        self.worked: dict[str, None] | None = None
        self.sample_at = 0.0
        self.told_at = NEVER
        self.untold = 0
        self.cost = 0.0
        self.last_took = 0.0
        self._credential: str | None = None
        self._lock = threading.Lock()
        self._state = first
        self._refresh()

    # --- one call -----------------------------------------------------------------------------------------------------

    def admit(
        self, timeout: float | None = None, site: Any = None, credential: str | None = None
    ) -> Admitted | Refused:
        """Ask to be let through. Counts nothing; `decide` does, once the caller knows what it makes of the answer."""
        now = self.now()
        state = self._state
        if type(state) is Open and now < state.episode.until:  # the common refusal takes no lock and no step
            left = state.episode.until - now
            return Refused("credential_paused" if state.episode.paused else "circuit_open", left)
        for effect in reversed(self._commit(Acquire(timeout), site, credential)):
            if isinstance(effect, (Admitted, Refused)):
                return effect
        raise AssertionError("an acquire without an answer")

    def settle(
        self,
        permit: int,
        outcome: Outcome,
        duration: float = 0.0,
        *,
        pause: bool = False,
        deadline: float | None = None,
        site: Any = None,
    ) -> str:
        """Take in what a call came to. Returns the value it was counted as (``late`` if the permit is not current)."""
        draw = random.random() if self.policy.cooldown_jitter else 0.0
        if outcome.kind == FAILURE:
            self.last_took = duration
            self.cost = duration if not self.cost else (self.cost + duration) / 2
        effects = self._commit(Settle(permit, outcome, duration, draw, pause, deadline), site, outcome.credential)
        return next((effect.outcome for effect in effects if isinstance(effect, Counted)), "late")

    def renew(self, permit: int) -> bool:
        """A streaming call gave a sign of life. Whether that was a probe's success: it goes on under the next id."""
        return self.gate is None and any(isinstance(effect, Counted) for effect in self._commit(Renew(permit)))

    def decide(self, decision: str) -> None:
        """Count one admission by its decision, and for a refusal the wait that it saved."""
        self.stats.decide(decision, 0.0 if decision in ("admitted", "probe", "would_reject") else self.cost)

    def tell(self) -> int:
        """How many refusals the one to be told now stands for; 0 if it is held back (one a `TELL_EVERY` is told)."""
        now = self.now()
        if AT_ONCE:
            with self.stats.lock:
                return self._tell(now)
        return self._tell(now)

    def _tell(self, now: float) -> int:
        if now < self.told_at:
            self.untold += 1
            return 0
        self.told_at, stands_for, self.untold = now + TELL_EVERY, self.untold + 1, 0
        return stands_for

    @property
    def current(self) -> int:
        """The fence id as it stands; for a charge that has no permit of its own."""
        return self._state.id

    # --- looking ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The circuit as this moment makes it; changes nothing."""
        return view(self.name, self._state, self.policy, self.now())

    @property
    def state(self) -> str:
        """The state's name as this moment makes it."""
        return self.snapshot().state

    def __repr__(self) -> str:
        return f"<Circuit {self.name} {self.state}>"

    # --- inside -------------------------------------------------------------------------------------------------------

    def _commit(self, event: Event, site: Any = None, credential: str | None = None) -> tuple[Effect, ...]:
        with self._lock:
            before = self._state
            self._state, effects = machine.step(before, event, self.policy, self.now())
            if self._state is not before:
                self._refresh()
            for effect in effects:
                self._count(effect)
        told = tuple(e for e in effects if not isinstance(e, (Admitted, Refused, Counted)))
        if told:
            if self.parent is not None:
                self.parent.refresh()
            # A quota circuit's events have its dependency's name; the credential tells them apart.
            _effects.publish(self, told, site, self.key.scope if self.role == "quota" else credential)
        return effects

    def _count(self, effect: Effect) -> None:
        if isinstance(effect, Revoked):
            self.stats.revoke()
        elif self.role == "quota":  # quota circuits feed only admissions and the credentials' metrics
            return
        elif isinstance(effect, Counted):
            self.stats.count(effect.outcome, effect.reason)
        elif isinstance(effect, Moved):
            self.stats.move(effect.previous_state, effect.state)
        elif isinstance(effect, ProbeOver) and effect.reason == PROBE_LAPSED:
            self.stats.fail(PROBE_LAPSED)

    def refresh(self) -> None:
        """A credential's circuit moved: look again at what the hot path reads."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        """Set the two attributes that the hot path reads. Under the lock, lest an older look overwrites a newer one.

        ``gate`` is the permit id while closed, unpaused and enforcing, else ``None``: the whole admission test.
        ``busy`` says that a success changes something, so that it must go through the machine.
        """
        state = self._state
        quotas = self.quotas
        clear = quotas is None or all(type(quota._state) is Closed for quota in list(quotas.values()))
        if isinstance(state, Closed):
            self.busy = bool(state.failures or state.throttles or state.window is not None or quotas)
            self.gate: int | None = state.id if clear and self.mode == "enforce" else None
        else:
            self.busy, self.gate = True, None

    def inherit(self) -> None:
        """In a forked child: whoever held the lock is not here, nor is the probe, so its slot is free."""
        self._lock = threading.Lock()
        state, now = self._state, self.now()
        if type(state) is HalfOpen and state.probing and now < state.lapses:
            self._state = moves.free(state, state.successes, state.episode, now)
        for quota in (self.quotas or {}).values():
            quota.inherit()

    def heir(self, fingerprint: str) -> Circuit:
        """This credential's quota circuit, made at its first 429 or 401."""
        from . import _quotas

        return _quotas.heir(self, fingerprint)

    def share(self, fingerprint: str) -> Circuit:
        """This credential's own availability circuit, where ``scope: credential`` splits the dependency."""
        from ._registry import registry

        return registry().scoped(self, fingerprint)


@functools.lru_cache(256)
def first_state(policy: Policy) -> State:
    """The closed state that new circuits of this policy start with."""
    return moves.fresh(policy)
