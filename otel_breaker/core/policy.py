"""Policy: every number that decides when a circuit opens and how long it stays open."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

LEASE_CAP: Final = 900.0
"""Seconds; no probe is waited for longer than this, whatever its own timeout says (docs/how-it-decides.md, lease)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The numbers of one circuit. All times are seconds.

    Attributes:
        failure_threshold: consecutive charged failures that open the circuit.
        failure_rate: share of failures (0..1] within `window` that opens it; ``None`` is off.
        window: length of the sliding window for `failure_rate` and `slow_rate`.
        minimum_calls: calls the window must hold before a share means anything.
        slow_call: a call that took longer than this is slow; ``None`` is off.
        slow_rate: share of slow calls (0..1] within `window` that opens the circuit; ``None`` is off.
        cooldown: length of the first open period.
        cooldown_steps: factors of `cooldown` for the first, second, ... open period of one episode.
        cooldown_cap: the longest open period, before jitter; it bounds `cooldown` too.
        cooldown_jitter: 0..1; lengthens every open period of an episode by one draw from [0, cooldown_jitter].
        success_threshold: successful probes, one after another, that close the circuit.
        probe_by: ``call`` or ``health_check`` (then no user call is ever a probe).
        call_deadline: how long one call may take; the yardstick for leases and for Retry-After of a 429.
        enforce_deadline: end an asynchronous call at `call_deadline`.
        cancel_counts_after: a call cancelled from outside after this long without a sign of life is a failure.
        throttle_threshold: consecutive 429s, each asking for longer than `call_deadline`, that open the circuit.
        retry_after_cap: upper bound for a server's Retry-After.
        verdict_ttl: an untested verdict lapses this long after its cooldown;
            ``None`` means max(cooldown_cap, current cooldown) + 300.
        unclassified: what an exception that nothing explains counts as: ``failure`` or ``neutral``.
        on_unauthorized: ``pause`` refuses calls with a revoked credential, ``alert`` only reports it.
        pause: how long a revoked credential is refused before one call may try.

    Raises:
        ValueError: for a number outside its range; the message names the field and the allowed values.
    """

    failure_threshold: int = 5
    failure_rate: float | None = None
    window: float = 300.0
    minimum_calls: int = 20
    slow_call: float | None = None
    slow_rate: float | None = None
    cooldown: float = 30.0
    cooldown_steps: tuple[float, ...] = (1, 2, 10, 30)
    cooldown_cap: float = 900.0
    cooldown_jitter: float = 0.0
    success_threshold: int = 1
    probe_by: Literal["call", "health_check"] = "call"
    call_deadline: float = 30.0
    enforce_deadline: bool = False
    cancel_counts_after: float = 5.0
    throttle_threshold: int = 3
    retry_after_cap: float = 3600.0
    verdict_ttl: float | None = None
    unclassified: Literal["failure", "neutral"] = "failure"
    on_unauthorized: Literal["pause", "alert"] = "pause"
    pause: float = 900.0

    def __post_init__(self) -> None:
        given: object = self.cooldown_steps
        steps = tuple(given) if isinstance(given, Iterable) else ()
        object.__setattr__(self, "cooldown_steps", steps)
        for name in ("failure_threshold", "minimum_calls", "success_threshold", "throttle_threshold"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, not {value!r}")
        for name in ("window", "cooldown", "cooldown_cap", "call_deadline", "retry_after_cap", "pause"):
            _positive(name, getattr(self, name))
        for name in ("slow_call", "verdict_ttl"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        for name in ("failure_rate", "slow_rate"):
            if (share := getattr(self, name)) is not None and not (_number(share) and 0 < share <= 1):
                raise ValueError(f"{name} must be a share above 0 and at most 1, not {share!r}")
        if not (_number(self.cooldown_jitter) and 0 <= self.cooldown_jitter <= 1):
            raise ValueError(f"cooldown_jitter must be between 0 and 1, not {self.cooldown_jitter!r}")
        if not (_number(self.cancel_counts_after) and self.cancel_counts_after >= 0):
            raise ValueError(f"cancel_counts_after must be seconds >= 0, not {self.cancel_counts_after!r}")
        if not steps or not all(_number(s) and s > 0 for s in steps):
            raise ValueError(f"cooldown_steps must be factors > 0, not {given!r}")
        if (self.slow_call is None) != (self.slow_rate is None):
            raise ValueError("slow_call and slow_rate go together: set both or neither")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")

    @classmethod
    def named(cls, name: str, **overrides: Any) -> Policy:
        """The built-in class of that name: ``default``, ``fast_api``, ``slow_tool`` or ``code_executor``.

        Raises:
            ValueError: for an unknown name; the message lists the known ones.
        """
        try:
            return replace(NAMED[name], **overrides)
        except KeyError:
            raise ValueError(f"unknown policy class {name!r}; known: {', '.join(NAMED)}") from None

    @property
    def windowed(self) -> bool:
        """Whether calls are also judged by their share within `window`."""
        return self.failure_rate is not None or self.slow_rate is not None

    def ladder(self, step: int) -> float:
        """The open period at this step (0 is the first of an episode), capped, without jitter."""
        steps = self.cooldown_steps
        return min(self.cooldown * steps[min(step, len(steps) - 1)], self.cooldown_cap)

    def ttl(self, cooldown: float) -> float:
        """How long after the end of `cooldown` an untested verdict still stands."""
        return self.verdict_ttl if self.verdict_ttl is not None else max(self.cooldown_cap, cooldown) + 300.0

    def lease(self, timeout: float | None, longest: float) -> float:
        """How long a probe may be silent: the largest of deadline, own timeout and twice the longest success."""
        return min(max(self.call_deadline, timeout or 0.0, 2 * longest), LEASE_CAP)


_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "probe_by": ("call", "health_check"),
    "unclassified": ("failure", "neutral"),
    "on_unauthorized": ("pause", "alert"),
}

FIELDS: Final = tuple(f.name for f in fields(Policy))


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _positive(name: str, value: object) -> None:
    if not _number(value) or value <= 0:  # type: ignore[operator]
        raise ValueError(f"{name} must be seconds > 0, not {value!r}")


NAMED: Final[dict[str, Policy]] = {
    "default": Policy(),
    "fast_api": Policy(failure_threshold=3, cooldown=30.0),
    "slow_tool": Policy(failure_threshold=2, cooldown=120.0, call_deadline=300.0),
    "code_executor": Policy(failure_threshold=2, cooldown=60.0, call_deadline=300.0),
}
