"""Who holds a circuit and must look it up again when the registry is swapped or cleared.

A holder has ``release()``, and ``offers()``: the alternatives of the tools that it guards, by tool.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakSet

_bound: Final[WeakSet[Any]] = WeakSet()


def bind(holder: Any) -> None:
    """Have ``holder.release()`` called, while it lives, whenever its circuit must be looked up again."""
    _bound.add(holder)


def held() -> list[Any]:
    """Every holder that lives."""
    while True:
        try:
            return list(_bound)
        except RuntimeError:  # another thread has bound one meanwhile
            continue


def release() -> None:
    """Make every holder look its circuit up again."""
    for holder in held():
        holder.release()
