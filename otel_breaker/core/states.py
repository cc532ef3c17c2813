"""The states: frozen data, no behaviour.

Every state owns exactly the data that means something in it. `Episode` is what Open and HalfOpen hand to each other.
All moments are readings of the circuit's clock, all lengths are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from .window import TimeWindow

CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half_open"
FORCED_OPEN: Final = "forced_open"
DISABLED: Final = "disabled"
STATES: Final = (CLOSED, OPEN, HALF_OPEN, FORCED_OPEN, DISABLED)

NEVER: Final = float("-inf")
FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class State:
    """What every state carries.

    Attributes:
        id: the fence; every transition, probe and command takes the next one, and only an outcome with it counts.
        hint: the moment until which a server's last Retry-After asks to wait; `NEVER` when there was none.
        longest: the longest success seen while closed, for the lease.
    """

    name: ClassVar[str] = ""
    id: int = 0
    hint: float = NEVER
    longest: float = 0.0


@dataclass(frozen=True, slots=True)
class Closed(State):
    """Counts.

    Attributes:
        failures: charged failures since the last success.
        throttles: length of the current run of long 429s.
        window: outcomes of the sliding window; ``None`` while no share is configured.
    """

    name: ClassVar[str] = CLOSED
    failures: int = 0
    throttles: int = 0
    window: TimeWindow | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """From leaving closed until closed again.

    Attributes:
        since: when it began.
        failures: charged failures, growing with each failed probe.
        reason: code of the last failure.
        cooldown: length of the current open period, jitter included.
        until: when that period ends.
        step: index on the ladder of the current period.
        draw: the episode's one jitter draw, 0..1.
        elapsed: cooldowns run out by the time of the last event.
        boundary: when the next cooldown runs out.
        rung: index on the ladder of the cooldown that would follow at `boundary` if nobody called.
        tested: when a probe last got an answer that proves nothing (a 4xx); `NEVER` if none since `until`.
        paused: the credential is revoked; refusals say ``credential_paused``.
    """

    since: float
    failures: int
    reason: str
    cooldown: float
    until: float
    step: int
    draw: float
    elapsed: int
    boundary: float
    rung: int
    tested: float = NEVER
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(State):
    """Refuses until the cooldown is over; after that the next call is the probe."""

    name: ClassVar[str] = OPEN
    episode: Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOpen(State):
    """Admits one probe at a time.

    Attributes:
        probing: a probe is out; else its slot is free and the next call takes it.
        started: when the current probe began, or when the last one gave its slot back.
        lease: how long it may be silent.
        lapses: when it counts as failed unless it gives a sign of life.
        successes: successful probes in a row so far.
    """

    name: ClassVar[str] = HALF_OPEN
    episode: Episode
    probing: bool = False
    started: float = NEVER
    lease: float = 0.0
    lapses: float = FOREVER
    successes: int = 0


@dataclass(frozen=True, slots=True)
class ForcedOpen(State):
    """Refuses because an operator said so; never pages.

    Attributes:
        text: the operator's words.
        until: when it ends by itself; `FOREVER` if never.
    """

    name: ClassVar[str] = FORCED_OPEN
    text: str = ""
    until: float = FOREVER


@dataclass(frozen=True, slots=True)
class Disabled(State):
    """Admits everything and charges nothing."""

    name: ClassVar[str] = DISABLED
