"""Where time comes from. The machine never reads a clock: it is handed ``now``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

BOOT: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
"""The clock that goes on through suspend; ``None`` where the system has none."""

gettime: Final[Callable[[Any], float]] = getattr(time, "clock_gettime", lambda _: time.monotonic())
"""``gettime(BOOT)`` is what `SystemClock.now` returns, for a hot path that spares itself the partial."""


class Clock(Protocol):
    """Two readings, both in seconds."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds on a clock that never goes back; its origin means nothing."""
        ...

    @property
    def wall(self) -> Callable[[], float]:
        """Seconds since the Unix epoch; only for what leaves the process."""
        ...


class SystemClock:
    """Boot time where the system has it (it goes on through suspend), else the monotonic clock."""

    __slots__ = ()
    # staticmethod: Python 3.14 would bind a partial to the instance.
    now: Callable[[], float] = staticmethod(partial(gettime, BOOT) if BOOT is not None else time.monotonic)
    wall: Callable[[], float] = staticmethod(time.time)


class ManualClock:
    """A clock that a test moves by hand.

    Args:
        now: first reading of `now`, seconds.
        wall: first reading of `wall`, seconds since the epoch.
    """

    __slots__ = ("_now", "_wall")

    def __init__(self, now: float = 1_000.0, wall: float = 1_800_000_000.0) -> None:
        self._now = now
        self._wall = wall

    def now(self) -> float:
        """Seconds, moved only by `advance`."""
        return self._now

    def wall(self) -> float:
        """Seconds since the epoch, moved only by `advance`."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move both readings forward.

        Raises:
            ValueError: for a negative number of seconds.
        """
        if seconds < 0:
            raise ValueError(f"advance() takes seconds >= 0, not {seconds!r}")
        self._now += seconds
        self._wall += seconds


SYSTEM_CLOCK = SystemClock()
