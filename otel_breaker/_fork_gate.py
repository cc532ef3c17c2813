"""A fork waits for what must not be cut in two: the imports of our first call in another thread.

The lock of a module that another thread was importing stays locked in the child for good: its first guarded call would
wait for ever (`_forking` does what the child itself has to do).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE: Final = 10.0
"""Seconds that a fork waits at most. The imports of a first call take a fraction of one."""

cut = False
"""Whether this process was forked in the middle of such an import: it must not try to import the same again."""

_lock = threading.RLock()
_held = threading.local()


@contextmanager
def held_back() -> Iterator[None]:
    """Forks of other threads wait until this is over: it imports what is not ours."""
    with _lock:
        yield


def _before() -> None:
    _held.lock = _lock if _lock.acquire(timeout=PATIENCE) else None


def _in_parent() -> None:
    lock, _held.lock = getattr(_held, "lock", None), None
    if lock is not None:
        lock.release()


def _in_child() -> None:
    global cut, _lock, _held
    cut = cut or getattr(_held, "lock", None) is None
    _lock, _held = threading.RLock(), threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
