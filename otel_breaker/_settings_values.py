"""How single settings are read: durations, numbers, words, lists, booleans.

Everything arrives in one of three shapes: text from the environment, YAML values from the file, Python values from
keyword arguments. Each reader takes all three and raises ``ValueError`` with the allowed values in its message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

DURATION_FORMS: Final = "seconds as a number, or a number with ms, s, m or h such as 500ms, 30s, 5m, 1h"

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|h)?", re.ASCII | re.IGNORECASE)
_FLAGS: Final = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}
_SHOWN: Final = 40


def show(value: object) -> str:
    """A value for an error message: short, one line, and nothing of what may hold a password."""
    text = ascii(value) if not isinstance(value, str) else repr(value)
    if "@" in text:
        return "a value that is not shown"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def duration(value: object) -> float:
    """Seconds from ``30``, ``"30"``, ``"30s"``, ``"500ms"``, ``"5m"`` or ``"1h"``."""
    if isinstance(value, str):
        if found := _DURATION.fullmatch(value.strip()):
            return float(found[1]) * _UNITS[(found[2] or "s").lower()]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"{show(value)} is not a duration; allowed: {DURATION_FORMS}")


def number(value: object) -> float:
    """A number from a number or its text."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    raise ValueError(f"{show(value)} is not a number")


def whole(value: object) -> int:
    """A whole number from a whole number or its text."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]+", value.strip(), re.ASCII):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{show(value)} is not a whole number")


def flag(value: object) -> bool:
    """A boolean from a boolean or from one of the usual words."""
    if isinstance(value, bool):
        return value
    found = _FLAGS.get(str(value).strip().lower())
    if found is None:
        raise ValueError(f"{show(value)} is not a boolean; allowed: true, false")
    return found


def word(value: object) -> object:
    """A word of a closed list, in lower case. YAML reads a bare ``off`` as false; it is the word here."""
    if value is False:
        return "off"
    return value.strip().lower() if isinstance(value, str) else value


def words(value: object) -> object:
    """A list from a list or from comma-separated text; empty items are dropped."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise ValueError(f"{show(value)} is not a list; allowed: comma-separated text or a list")
    if bad := [item for item in value if not isinstance(item, str)]:
        raise ValueError(f"{show(bad[0])} is not text")
    return tuple(stripped for item in value if (stripped := item.strip()))


def numbers(value: object) -> tuple[float, ...]:
    """A list of numbers from a list, from comma-separated text, or from one number."""
    if isinstance(value, str):
        value = [item for item in value.split(",") if item.strip()]
    elif not isinstance(value, (list, tuple)):
        value = [value]
    return tuple(number(item) for item in value)


def optional(read: Callable[[Any], object]) -> Callable[[object], object]:
    """The same reader, where ``none`` and ``off`` stand for "not set"."""

    def reader(value: object) -> object:
        off = value is None or value is False or (isinstance(value, str) and value.strip().lower() in ("none", "off"))
        return None if off else read(value)

    return reader


def name(value: object) -> str:
    """The name of a dependency or a tool: text, never a URL, since names appear in metrics and answers."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{show(value)} is not a name")
    if "://" in value or "@" in value:
        raise ValueError(
            "a value that is not shown is not a name; allowed: host, host:port or any name without :// and @"
        )
    return value.strip()


def level(value: object) -> object:
    """A log level's name in lower case."""
    found = word(value)
    return "warning" if found == "warn" else found


def pattern(value: str) -> str:
    """A regular expression that compiles."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{show(value)} is not a regular expression: {error}") from None
    return value
