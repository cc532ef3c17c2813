"""``OTEL_BREAKER_ENABLED=true`` at the start of an interpreter: nothing happens before there is something to guard.

Settings bring pydantic, which every short-lived child process would pay for. So the first library of the table to be
imported, or the first word of the program to `otel_breaker.activate`, switches the breakers on.
"""

from __future__ import annotations

import sys

from . import _endings
from ._importing import Finder
from ._startup import complain
from .instrumentations._table import TARGETS

_finder: Finder | None = None


def begin() -> None:
    """Wait for the first library, or go ahead at once if one is there already."""
    global _finder
    _endings.watch_early()
    modules = {target.module for target in TARGETS}
    _finder = Finder(modules, _arrived)
    present = sorted(modules & sys.modules.keys())
    if present:
        _arrived(present[0])
    else:
        _finder.install()


def cancel() -> bool:
    """Wait no longer. Returns whether we did."""
    global _finder
    waiting, _finder = _finder, None
    if waiting is None:
        return False
    waiting.remove()
    return True


def _arrived(module: str) -> None:
    """Also called for modules whose import had begun before the first one was through: nobody else patches those."""
    first = cancel()
    if first or "otel_breaker.activate" in sys.modules:
        try:
            from . import activate
        except ModuleNotFoundError as error:  # a dependency of ours is not installed here
            complain(error)
            return
        from .instrumentations import _patch

        if activate.activate(activate.ENVIRONMENT) if first else activate.active():
            _patch.apply(module)  # it is still being imported: what looks for imported modules passes it over
