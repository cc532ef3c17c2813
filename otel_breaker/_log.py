"""The package's logger, and a way to say a thing only once. Standard library only."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

logger: Final = logging.getLogger("otel_breaker")

_LIMIT: Final = 512
_said: set[Hashable] = set()


def once(key: Hashable, message: str, *args: object) -> None:
    """Log ``message % args`` as a warning the first time ``key`` is seen in this process.

    The set of keys is bounded: beyond it new keys stay silent, so that an ever-changing key cannot flood a log or grow
    without end.
    """
    if key in _said or len(_said) >= _LIMIT:
        return
    _said.add(key)
    logger.warning(message, *args)


def fault(key: Hashable, message: str, error: BaseException) -> None:
    """Log once that something of ours, or a user's callback, failed: its type and place, not its text.

    The text may hold what must not be logged (a URL, a body); the traceback comes at DEBUG, without the exceptions
    before it: a callback is called while the upstream's error is being handled, and that is no part of this fault.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "unknown place"
    once(key, "%s (%s at %s); its traceback is logged at DEBUG", message, type(error).__name__, place)
    if logger.isEnabledFor(logging.DEBUG):
        import traceback

        logger.debug("%s\n%s", message, "".join(traceback.format_exception(error, chain=False)).rstrip())


def forget() -> None:
    """Let every message be said again (tests)."""
    _said.clear()
