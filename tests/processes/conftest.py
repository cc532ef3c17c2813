from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.workers import Room, room


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not hasattr(os, "fork"):
        here = Path(__file__).parent
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="fork: this system has none; run on Linux or macOS"))


@pytest.fixture(name="room")
def _room(tmp_path: Path) -> Iterator[Room]:
    """A vendor that answers 503, a receiver, and a folder for programs."""
    with room(tmp_path) as made:
        yield made
