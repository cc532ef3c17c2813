"""Writes for people: columns, wrapping, and colour where a terminal wants it."""

from __future__ import annotations

import os
import textwrap
import threading
from collections.abc import Sequence
from typing import Final, TextIO

WIDTH: Final = 100
"""Columns of every line."""

_COLOURS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Screen:
    """A stream of lines for people.

    Args:
        stream: where to.
        held: keep the lines back until `show`.
    """

    def __init__(self, stream: TextIO, *, held: bool = False) -> None:
        self._stream = stream
        self._held: list[str] | None = [] if held else None
        self._lock = threading.Lock()
        self._colour = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def paint(self, text: str, *styles: str) -> str:
        """The text in these styles, or as it is where there is no colour."""
        if not (self._colour and styles):
            return text
        return f"\x1b[{';'.join(_COLOURS[style] for style in styles)}m{text}\x1b[0m"

    def line(self, text: str = "", *styles: str) -> None:
        """One line, at once."""
        line = self.paint(text, *styles) if text else ""
        with self._lock:
            if self._held is None:
                print(line, file=self._stream, flush=True)
            else:
                self._held.append(line)

    def show(self) -> None:
        """Print what was kept back, and from now on every line at once."""
        with self._lock:
            for line in self._held or ():
                print(line, file=self._stream, flush=True)
            self._held = None

    def heading(self, text: str) -> None:
        """The start of a part."""
        self.line()
        self.line(text, "bold")
        self.line("-" * min(len(text), WIDTH), "dim")

    def wrapped(self, text: str, indent: int, *styles: str, first: str = "") -> None:
        """A text over as many lines as it needs, hanging at ``indent``; ``first`` stands before its first line."""
        lines = textwrap.wrap(text, WIDTH - indent, break_long_words=True, break_on_hyphens=False) or [""]
        self.line(f"{first:<{indent}}" + self.paint(lines[0], *styles))
        for line in lines[1:]:
            self.line(" " * indent + self.paint(line, *styles))

    def table(self, rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        """Rows in columns, the first one as their names; the columns ``right`` are aligned to the right."""
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for number, row in enumerate(rows):
            cells = [
                f"{cell:>{width}}" if column in right else f"{cell:<{width}}"
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.line(f"  {'   '.join(cells)}".rstrip(), *(("dim",) if number == 0 else ()))


def shortened(text: str, width: int) -> str:
    """The text on one line of at most ``width`` characters; where something is left out, it says how long it was."""
    flat = " ".join(text.split())
    if len(flat) <= width:
        return flat
    tail = f" ... ({len(text):,} characters)"
    return flat[: width - len(tail)].rstrip() + tail
