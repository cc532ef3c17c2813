"""Whether threads run at once here. Standard library only.

Under the GIL ``stats.n += 1`` is one piece, and the hot path relies on it. A free-threaded build loses counts that way:
there every call takes the long way, and every count is made under its name's lock (docs/contributing/threads.md).
"""

from __future__ import annotations

import sys
import threading

AT_ONCE: bool = "free-threading build" in sys.version
"""Chosen by the build: one that has switched the GIL on again counts correctly too. Read by others at their import."""

MARKS = threading.RLock()
"""Guards the number of charges of this process; a forked child gets a new one."""


def next_of(cell: list[int]) -> int:
    """Count one up, and say what that came to."""
    with MARKS:
        cell[0] += 1
        return cell[0]
