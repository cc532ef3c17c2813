"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """Columns side by side, as wide as their widest cell; the last one is left as it is."""
    cells = [[str(cell) for cell in row] for row in ([heads, *rows] if heads else rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )
