"""Who holds a circuit and must look it up again when the registry is swapped or cleared."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakSet

_bound: Final[WeakSet[Any]] = WeakSet()


def bind(holder: Any) -> None:
    """Have ``holder.release()`` called, while it lives, whenever its circuit must be looked up again."""
    _bound.add(holder)


def held() -> list[Any]:
    """Every guard that lives."""
    return list(_bound)


def release() -> None:
    """Make every guard look its circuit up again."""
    for holder in held():
        holder.release()
