"""What can happen to a circuit (events) and what comes of it (effects): the two unions around ``step``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Acquire:
    """A call wants in. ``timeout``: the call's own, if it has one. ``health``: it is the configured health check."""

    timeout: float | None = None
    health: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    """A call is over.

    Attributes:
        id: the permit's; a stale one changes nothing.
        outcome: what it says.
        duration: seconds it took.
        draw: a random number 0..1 for the jitter, should the circuit open.
        pause: this is a quota circuit whose credential has worked before: a 401 pauses it.
        deadline: the call's own time limit, in place of the policy's, if it had one.
    """

    id: int
    outcome: Outcome
    duration: float = 0.0
    draw: float = 0.0
    pause: bool = False
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """A streaming call gave a sign of life."""

    id: int


@dataclass(frozen=True, slots=True)
class ForceOpen:
    """An operator refuses all calls, for ``seconds`` or until further notice."""

    text: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Disable:
    """An operator lets everything through uncounted."""


@dataclass(frozen=True, slots=True)
class Reset:
    """An operator closes the circuit and zeroes it."""


@dataclass(frozen=True, slots=True)
class Resume:
    """An operator ends a force, a disable or a pause."""


Event = Acquire | Settle | Renew | ForceOpen | Disable | Reset | Resume


@dataclass(frozen=True, slots=True)
class Admitted:
    """Let through, with this permit id."""

    id: int
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Not let through. ``decision`` is a value of otel_breaker.decision; ``retry_after`` is above 0."""

    decision: str
    retry_after: float


@dataclass(frozen=True, slots=True)
class Moved:
    """The circuit changed its state. ``reason``: a failure reason, or one of `MOVES`; ``at``: the true moment."""

    previous_state: str
    state: str
    reason: str
    failures: int
    cooldown: float
    at: float


@dataclass(frozen=True, slots=True)
class ProbeOver:
    """A probe ended. ``kind`` is an outcome kind, ``reason`` a failure reason or ``None``."""

    kind: str
    reason: str | None
    at: float


@dataclass(frozen=True, slots=True)
class Counted:
    """An outcome was taken in: the value of otel_breaker.outcome, and the reason if it was charged here."""

    outcome: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class EpisodeOver:
    """The circuit closed again after ``duration`` seconds."""

    duration: float


@dataclass(frozen=True, slots=True)
class Revoked:
    """A credential that had worked was answered 401."""


Effect = Admitted | Refused | Moved | ProbeOver | Counted | EpisodeOver | Revoked

SLOW_RATE: Final = "slow_rate"
COOLDOWN_ELAPSED: Final = "cooldown_elapsed"
PROBE_SUCCEEDED: Final = "probe_succeeded"
EXPIRED: Final = "expired"
MANUAL: Final = "manual"
PROBE_LAPSED: Final = "probe_lapsed"
MOVES: Final = (SLOW_RATE, COOLDOWN_ELAPSED, PROBE_SUCCEEDED, EXPIRED, MANUAL)
"""Transition reasons that are not failure reasons."""
