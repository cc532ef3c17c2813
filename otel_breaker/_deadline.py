"""The package's own deadline on an asynchronous call, where the policy enforces it."""

from __future__ import annotations

from typing import Any

from . import _settling
from ._frames import CIRCUIT, EVIDENCE, Evidence, Frame
from .outcomes import Outcome


def note(frame: Frame, outcome: Outcome) -> None:
    """Add evidence that was seen below without a frame of its own."""
    if frame[EVIDENCE] is None:
        frame[EVIDENCE] = Evidence()
    frame[EVIDENCE].note(outcome)


async def bounded(awaitable: Any, frame: Frame, timeout: float | None) -> Any:
    """Await, but not past the deadline (under asyncio; other event loops are not bounded).

    Raises:
        TimeoutError: at the deadline; the frame then counts ``deadline_exceeded``.
    """
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return await awaitable
    limit = asyncio.timeout(timeout or frame[CIRCUIT].policy.call_deadline)
    try:
        async with limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            note(frame, _settling.OVERDUE)
        raise
