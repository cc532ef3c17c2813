"""What every test shares, beside the fixtures of `otel_breaker.pytest_plugin`: pytest finds those by entry point."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.context import get_current

from otel_breaker import Transition, _log, settings
from otel_breaker._frames import FRAME
from otel_breaker._registry import Registry
from otel_breaker.telemetry import quick
from otel_breaker.testing import RecordingListener
from tests.support.faults import FaultServer, Script, fault_server

pytest_plugins = ["tests.support.skips"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background: its programs would ignore Ctrl-C, too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def configure() -> Iterator[Callable[..., None]]:
    """``configure(**settings)``: the settings of the process, for this test."""

    def use(**kwargs: Any) -> None:
        settings.use(settings.load(**kwargs))

    yield use
    settings.forget()


@pytest.fixture
def transitions(breaker_transitions: RecordingListener) -> list[Transition]:
    """Every transition from now on, as a listener is told of them."""
    return breaker_transitions.transitions


@pytest.fixture
def patched(breaker_registry: Registry) -> Iterator[Registry]:
    """The HTTP libraries, patched, over a fresh registry and default settings."""
    from otel_breaker.instrumentations import _patch

    for library in ("requests", "httpx", "httpx2"):
        importlib.import_module(library)
    settings.use(settings.load())
    _patch.enable()
    yield breaker_registry
    _patch.remove()
    settings.forget()


@pytest.fixture
def srv() -> Iterator[Script]:
    """A server with scripted replies."""
    with Script() as server:
        yield server


@pytest.fixture(scope="session")
def faults() -> Iterator[FaultServer]:
    """Every fault of the matrix."""
    with fault_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Each test begins outside every call, on the hot path, and leaves it so."""
    quick.detours.discard("credential")
    yield
    assert FRAME.get() is None
    assert not get_current()


@pytest.fixture(autouse=True)
def _say_again() -> None:
    """Let each test see the messages that are logged once a process."""
    _log.forget()
