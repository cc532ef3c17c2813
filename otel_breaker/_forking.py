"""A forked child: new locks, counters from zero, inherited verdicts, no call under way, and telemetry of its own.

A lock that another thread of the parent held is never released in the child; a counter that went on from the parent's
would be added up twice in a fleet.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _bindings, _threads

if TYPE_CHECKING:
    from ._registry import Registry


def watch(registry: Callable[[], Registry]) -> None:
    """Have the process-wide registry renewed in every child that is forked from here on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _renew(registry()))


def _renew(registry: Registry) -> None:
    _threads.MARKS = threading.RLock()
    frames: Any = sys.modules.get("otel_breaker._frames")
    if frames is not None:
        # A call that the parent was in the middle of is the parent's: what the child calls is no attempt of it.
        frames.FRAME.set(None)
    registry.renew()
    # Every guard looks its circuit up again at its next call, and that starts telemetry.
    _bindings.release()
