"""The plain integers of one metric name: written on the hot path, read by observable instruments.

``stats.n += 1`` with a constant or local on the right is one uninterrupted piece of bytecode under the GIL, so the hot
path needs no lock; every other change is made under the name's lock, also with such statements only. Where threads run
at once (`_threads.AT_ONCE`) the hot path is not taken: there every change is made under the lock.
"""

from __future__ import annotations

import threading
from typing import Final

DECISIONS: Final = (
    ("admitted", "admitted"),
    ("probe", "probe"),
    ("circuit_open", "circuit_open"),
    ("probe_in_flight", "probe_in_flight"),
    ("forced_open", "forced_open"),
    ("credential_paused", "credential_paused"),
    ("throttled", "throttled"),
    ("would_reject", "would_reject"),
)
"""(value of otel_breaker.decision, slot)."""

OUTCOMES: Final = (
    ("success", "success"),
    ("failure", "failure"),
    ("neutral", "neutral"),
    ("throttled", "was_throttled"),
    ("unauthorized", "unauthorized"),
    ("cancelled", "cancelled"),
    ("late", "late"),
)
"""(value of otel_breaker.outcome, slot)."""

BORN: Final = (("closed", "open"), ("open", "half_open"), ("half_open", "closed"), ("half_open", "open"))
"""The transitions whose series exist at 0 from the start."""

TOOLS_MAX: Final = 100
"""Tool names remembered for one metric name, so that a page can say what is out and memory stays bounded."""


class Stats:
    """Counters of one name. They outlive its circuits and never fall.

    Attributes are the slots of `DECISIONS` and `OUTCOMES`, and: ``failures`` by reason, ``transitions`` by
    (from, to), ``time_saved`` in seconds, ``revoked`` credentials, ``tools`` seen. ``lock`` guards every change that
    is not the hot path's; it is one that a finalizer or a signal handler may take again.
    """

    __slots__ = (
        "admitted", "cancelled", "circuit_open", "credential_paused", "failure", "failures", "forced_open", "late",
        "lock", "name", "neutral", "probe", "probe_in_flight", "revoked", "success", "throttled", "time_saved", "tools",
        "transitions", "unauthorized", "was_throttled", "would_reject",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures: dict[str, int] = {}
        self.tools: dict[str, int] = {}
        self.zero()

    def zero(self) -> None:
        """Start again at 0 and with a new lock, as a forked child does."""
        self.lock = threading.RLock()
        self.admitted = self.probe = self.circuit_open = self.probe_in_flight = self.forced_open = 0
        self.credential_paused = self.throttled = self.would_reject = 0
        self.success = self.failure = self.neutral = self.was_throttled = self.unauthorized = 0
        self.cancelled = self.late = self.revoked = 0
        self.time_saved = 0.0
        self.failures = dict.fromkeys(self.failures, 0)
        self.transitions: dict[tuple[str, str], int] = dict.fromkeys(BORN, 0)

    def decide(self, decision: str, saved: float = 0.0) -> None:
        """Count one admission by its decision, and for a refusal the seconds that it saved."""
        with self.lock:
            if saved:
                self.time_saved += saved
            if decision == "admitted":
                self.admitted += 1
            elif decision == "probe":
                self.probe += 1
            elif decision == "circuit_open":
                self.circuit_open += 1
            elif decision == "probe_in_flight":
                self.probe_in_flight += 1
            elif decision == "forced_open":
                self.forced_open += 1
            elif decision == "credential_paused":
                self.credential_paused += 1
            elif decision == "throttled":
                self.throttled += 1
            else:
                self.would_reject += 1

    def count(self, outcome: str, reason: str | None) -> None:
        """Count one outcome; a failure also by its reason."""
        with self.lock:
            if outcome == "success":
                self.success += 1
            elif outcome == "failure":
                self.failure += 1
            elif outcome == "throttled":
                self.was_throttled += 1
            elif outcome == "unauthorized":
                self.unauthorized += 1
            elif outcome == "cancelled":
                self.cancelled += 1
            elif outcome == "late":
                self.late += 1
            else:
                self.neutral += 1
            if outcome == "failure" and reason is not None:
                self.failures[reason] = self.failures.get(reason, 0) + 1

    def fail(self, reason: str) -> None:
        """Count a failure that is no call's outcome: a lapsed probe."""
        with self.lock:
            self.failures[reason] = self.failures.get(reason, 0) + 1

    def move(self, previous: str, state: str) -> None:
        """Count one transition."""
        with self.lock:
            pair = (previous, state)
            self.transitions[pair] = self.transitions.get(pair, 0) + 1

    def revoke(self) -> None:
        """Count one revoked credential."""
        with self.lock:
            self.revoked += 1

    def used_by(self, tool: str) -> None:
        """Remember a tool seen on this name."""
        with self.lock:
            if tool in self.tools or len(self.tools) < TOOLS_MAX:
                self.tools[tool] = 1
