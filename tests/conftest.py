"""What every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_breaker import _log, _registry
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock

pytest_plugins = ["tests.support.skips"]


@pytest.fixture
def manual_clock() -> ManualClock:
    """The clock of `breaker_registry`, moved by hand."""
    return ManualClock()


@pytest.fixture
def breaker_registry(manual_clock: ManualClock) -> Iterator[Registry]:
    """A fresh process-wide registry on the manual clock."""
    fresh = Registry(clock=manual_clock)
    old = _registry.swap(fresh)
    try:
        yield fresh
    finally:
        _registry.swap(old)


@pytest.fixture(autouse=True)
def _say_again() -> None:
    """Let each test see the messages that are logged once a process."""
    _log.forget()
