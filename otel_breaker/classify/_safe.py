"""Complaints that cannot hurt: classification runs on every failed call and must neither raise nor flood a log."""

from __future__ import annotations

from otel_breaker._log import once


def say(topic: str, message: str, *args: object) -> None:
    """Log ``message`` as a warning, once per process and topic. Never raises."""
    try:
        once(("classify", topic), message, *args)
    except Exception:  # a log filter of the program's must not break the guarded call
        return


def printable(value: str, limit: int = 40) -> str:
    """``value`` as it may stand in a log line: printable ASCII characters only, at most ``limit`` of them."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in value[:limit])
