"""Fixtures and a marker for pytest, found by its entry point. ``-p no:otel_breaker`` keeps them out.

Every pytest run where the package is installed imports this module. So it brings nothing in but pytest, and nothing is
switched on until a test asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

if TYPE_CHECKING:
    from .testing import FakeDependency, ManualClock, RecordingListener, Registry

_MARKER: Final = "otel_breaker"
_ENABLED: Final = "breaker_enabled"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", f"{_MARKER}(**settings): switch the circuit breakers on for this test, with these settings"
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """The marker alone is enough: one that had no effect without a fixture would be a trap."""
    names = getattr(item, "fixturenames", None)
    if names is not None and _ENABLED not in names and item.get_closest_marker(_MARKER) is not None:
        # A new list: the variants of a parametrized test share the old one, and not all need carry the marker.
        item.fixturenames = [_ENABLED, *names]  # type: ignore[attr-defined]


@pytest.fixture
def breaker_registry() -> Iterator[Registry]:
    """A fresh process-wide registry for this test, on a clock that the test moves (`manual_clock`)."""
    from .testing import fresh_registry

    with fresh_registry() as fresh:
        yield fresh


@pytest.fixture
def manual_clock(breaker_registry: Registry) -> ManualClock:
    """The clock of `breaker_registry`: ``advance(seconds)`` moves it, nothing else does."""
    return cast("ManualClock", breaker_registry.clock)


@pytest.fixture
def fake_dependency() -> Iterator[FakeDependency]:
    """A real HTTP server on loopback that counts requests and fails when told to."""
    from .testing import FakeDependency

    with FakeDependency() as fake:
        yield fake


@pytest.fixture
def breaker_transitions(breaker_registry: Registry) -> Iterator[RecordingListener]:
    """Every transition of this test's circuits: ``moves``, ``transitions``."""
    from .testing import RecordingListener

    with RecordingListener() as listener:
        yield listener


@pytest.fixture
def breaker_enabled(request: pytest.FixtureRequest, breaker_registry: Registry) -> Iterator[Registry]:
    """The breakers are on for this test, with the settings of its ``otel_breaker`` markers, over `breaker_registry`."""
    from .errors import SettingsError
    from .testing import instrumented

    with ExitStack() as until_the_end:
        try:
            until_the_end.enter_context(instrumented(**_settings(request.node)))
        except (SettingsError, RuntimeError) as error:
            pytest.fail(f"{_ENABLED}: {error}", pytrace=False)
        yield breaker_registry


def _settings(node: pytest.Item) -> dict[str, Any]:
    """What the markers of module, class and test say together; the nearest wins."""
    chosen: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers(_MARKER))):
        if marker.args:
            pytest.fail(f"the marker {_MARKER} takes settings by name, such as failure_threshold=2", pytrace=False)
        chosen |= marker.kwargs
    return chosen
