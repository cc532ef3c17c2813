"""How long a server asked to wait: ``retry-after-ms``, ``Retry-After`` in seconds or as an HTTP-date."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from email.utils import parsedate_tz
from typing import Any, Final

from ._headers import pick
from ._safe import printable, say

_MILLISECONDS: Final = ("retry-after-ms", "x-ms-retry-after-ms", "grpc-retry-pushback-ms")
_REMAINING: Final = "x-ratelimit-remaining"
_RESETS: Final = ("x-ratelimit-reset", "ratelimit-reset")
_NAMES: Final = (*_MILLISECONDS, "retry-after", _REMAINING, *_RESETS)
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LONGEST: Final = 1e12
"""Seconds; stands for any larger number, so that what leaves this module is finite. The policy's cap is far below."""
_EPOCH: Final = 1e9
"""A rate-limit reset above this is a point in time (epoch seconds), not a delay."""


def retry_after(headers: Any, wall: float | None = None) -> float | None:
    """The seconds that these response headers ask to wait, greater than 0, finite and not yet capped.

    The first usable of ``retry-after-ms``, ``x-ms-retry-after-ms`` and ``grpc-retry-pushback-ms`` (milliseconds) wins,
    then ``retry-after`` (seconds, also ``0.5``, or any of the three HTTP-date forms; a date without zone is UTC), then
    the reset of a rate limit of which nothing remains. Zero, negative, past and unreadable values name no time:
    ``None``, and one warning per process. Never raises.

    Args:
        headers: a mapping or (name, value) pairs, any case, text or bytes.
        wall: now, in epoch seconds, for dates; the system clock if ``None``.
    """
    try:
        found = pick(headers, _NAMES)
        if not found:
            return None
        return _asked(found, time.time() if wall is None else wall)
    except Exception:  # whatever was handed in
        say("retry-after", "invalid retry-after: the response headers cannot be read")
        return None


def _asked(found: dict[str, str], wall: float) -> float | None:
    for name in _MILLISECONDS:
        if name in found and (seconds := _usable(name, found[name], _number(found[name], 1e-3))) is not None:
            return seconds
    if "retry-after" in found:
        value = found["retry-after"]
        seconds = _number(value)
        return _usable("retry-after", value, _until(value, wall) if seconds is None else seconds)
    if found.get(_REMAINING, "").strip() == "0":
        for name in _RESETS:
            if (seconds := _number(found.get(name, ""))) is not None:
                return _usable(name, found[name], seconds - wall if seconds > _EPOCH else seconds)
    return None


def _usable(name: str, value: str, seconds: float | None) -> float | None:
    if seconds is not None and seconds > 0:
        return seconds
    say(
        "retry-after",
        "invalid retry-after: %s %r names no time, the configured cooldown applies",
        name,
        printable(value),
    )
    return None


def _number(value: str, unit: float = 1.0) -> float | None:
    """Plain decimal digits only: no sign, exponent, hex, list, ``inf`` or digits of other scripts."""
    text = value.strip(" \t")
    return min(float(text) * unit, _LONGEST) if _NUMBER.fullmatch(text) else None


def _until(value: str, wall: float) -> float | None:
    """Seconds from ``wall`` to an HTTP-date (IMF-fixdate, RFC 850, asctime); ``None`` when it is none."""
    if not value.isascii():
        return None
    parts = parsedate_tz(value)
    if parts is None or ":" not in value:
        return None
    try:
        moment = datetime(*parts[:6], tzinfo=UTC).timestamp() - (parts[9] or 0)
        return min(moment - wall, _LONGEST)
    except (ValueError, OverflowError):  # day 99, year 10 ** 12
        return None
