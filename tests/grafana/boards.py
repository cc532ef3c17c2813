"""The committed dashboards in the shapes that tests ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support import panels

BOARDS = panels.dashboards()
QUERIES = panels.every_query()


def each_panel() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, board in BOARDS.items():
        for panel in panels.panels(board):
            yield f"{name}: {panel['title']}", panel


PANELS = list(each_panel())
NAMES = [where for where, _ in PANELS]


def variables(board: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [one for one in board["templating"]["list"] if one["type"] == kind]


def units(panel: dict[str, Any]) -> set[str]:
    config = panel["fieldConfig"]
    overridden = {p["value"] for one in config["overrides"] for p in one["properties"] if p["id"] == "unit"}
    return {config["defaults"]["unit"], *overridden}
