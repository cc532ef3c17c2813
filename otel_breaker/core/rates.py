"""The optional thresholds by share: failure rate and slow calls within the window."""

from __future__ import annotations

from ..outcomes import FAILURE
from .events import SLOW_RATE, Settle
from .policy import Policy
from .window import TimeWindow


def seen(window: TimeWindow | None, event: Settle, policy: Policy, now: float) -> TimeWindow | None:
    """The window with this call in it; ``None`` stays ``None`` (no share is configured)."""
    if window is None:
        return None
    slow = policy.slow_call is not None and event.duration > policy.slow_call
    return window.add(now, failed=event.outcome.kind == FAILURE, slow=slow)


def tripped(window: TimeWindow, event: Settle, policy: Policy, now: float) -> tuple[int, str] | None:
    """(how many, reason) when this call brought a share to its threshold, else ``None``."""
    calls, failures, slow = window.totals(now)
    if calls < policy.minimum_calls:
        return None
    if event.outcome.kind == FAILURE and policy.failure_rate is not None and failures / calls >= policy.failure_rate:
        return failures, event.outcome.reason or "unclassified"
    if policy.slow_rate is not None and slow / calls >= policy.slow_rate:
        return slow, SLOW_RATE
    return None
