"""A sliding time window of outcomes, as an immutable value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BUCKETS: Final = 30
"""Pieces of a window. Outcomes age in steps of window / 30, so a share is never older than the window by more."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Outcomes of the last ``length`` seconds.

    Attributes:
        length: seconds.
        buckets: (slot, calls, failures, slow), oldest first, only slots that saw a call.
    """

    length: float
    buckets: tuple[tuple[int, int, int, int], ...] = ()

    def add(self, now: float, *, failed: bool, slow: bool) -> TimeWindow:
        """The window with one more call that ended ``now``."""
        slot = self._slot(now)
        kept = self._live(slot)
        calls = failures = slows = 0
        if kept and kept[-1][0] == slot:
            _, calls, failures, slows = kept[-1]
            kept = kept[:-1]
        return TimeWindow(self.length, (*kept, (slot, calls + 1, failures + failed, slows + slow)))

    def totals(self, now: float) -> tuple[int, int, int]:
        """(calls, failures, slow) that are still inside the window."""
        live = self._live(self._slot(now))
        return sum(b[1] for b in live), sum(b[2] for b in live), sum(b[3] for b in live)

    def _slot(self, now: float) -> int:
        return int(now * BUCKETS // self.length)

    def _live(self, slot: int) -> tuple[tuple[int, int, int, int], ...]:
        return tuple(b for b in self.buckets if b[0] > slot - BUCKETS)
