"""Read header collections of any library: mappings or pairs, any case, text or bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def plain(value: Any) -> str:
    """``value`` as an exact `str` (bytes as Latin-1, the wire's own encoding); raises TypeError for anything else."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("latin-1")
    raise TypeError(f"not text: {type(value).__name__}")


def pairs(headers: Any) -> Iterable[tuple[Any, Any]]:
    """The (name, value) pairs of a mapping or of a sequence of pairs; nothing for ``None``."""
    if headers is None:
        return ()
    items = getattr(headers, "items", None)
    found: Iterable[tuple[Any, Any]] = items() if callable(items) else headers
    return found


def pick(headers: Any, names: Iterable[str]) -> dict[str, str]:
    """The values of those ``names`` (lower case) that are present; a repeated header is joined with ``", "``."""
    wanted = frozenset(names)
    found: dict[str, str] = {}
    for key, value in pairs(headers):
        try:
            name = plain(key).lower()
            if name in wanted:
                text = plain(value)
                found[name] = f"{found[name]}, {text}" if name in found else text
        except TypeError:  # a header that is no text is not ours to read
            continue
    return found
