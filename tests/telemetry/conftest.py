from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_breaker import _log, settings
from otel_breaker._registry import Registry, registry, swap
from otel_breaker.core.clock import ManualClock
from otel_breaker.telemetry import emit
from tests.telemetry.signals import Signals


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def fresh(clock: ManualClock) -> Iterator[Registry]:
    """A registry, settings and telemetry state of the test's own."""
    old = swap(Registry(clock=clock))
    settings.use(settings.load())
    emit._state.reset()
    emit._state.started = True
    emit.configure()
    _log.forget()
    yield registry()
    swap(old)
    settings.forget()
    emit._state.reset()
    emit.configure()


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Signals]:
    """Real SDK providers that stand in for the program's global ones."""
    made = Signals()
    made.install(monkeypatch)
    yield made
    made.shutdown()
