"""What a test changes in the process, and puts back: the registry, and whether the breakers are on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from otel_breaker import _log, _registry, activate, keys, settings
from otel_breaker._registry import Registry
from otel_breaker.circuit import Circuit
from otel_breaker.core.clock import Clock, ManualClock
from otel_breaker.instrumentations import _patch
from otel_breaker.telemetry import emit


@contextlib.contextmanager
def fresh_registry(clock: Clock | None = None) -> Iterator[Registry]:
    """A process-wide registry without circuits; the one from before comes back at the end, as it was.

    Guards look their circuit up anew, also those of modules that were imported long ago. What is logged once a process
    is logged again.

    Args:
        clock: the clock of its circuits; ``None`` makes a `ManualClock`, which is then the registry's ``clock``.
    """
    fresh = Registry(clock=ManualClock() if clock is None else clock)
    said = set(_log._said)
    _log.forget()
    before = _registry.swap(fresh)
    try:
        yield fresh
    finally:
        _registry.swap(before)
        _log._said.update(said)


@contextlib.contextmanager
def instrumented(**chosen: Any) -> Iterator[None]:
    """The breakers, switched on with these settings as `otel_breaker.instrument` does it; then all is as before.

    If they were on, they are on again afterwards, with the settings they had. Circuits that exist keep their policy:
    put `fresh_registry` around it.

    Raises:
        SettingsError: for an unknown setting or a bad value.
        RuntimeError: if the environment or ``enabled=False`` keeps the breakers off: a test would pass without them.
    """
    loaded = settings.load(**chosen)
    reason = activate.off_by_environment(activate.BY_HAND)
    if reason is None and loaded.enabled is False:
        reason = "enabled is false"
    if reason is not None:
        raise RuntimeError(f"the breakers cannot be switched on: {reason}")
    put_back = _remember()
    activate.deactivate()
    try:
        if not activate.instrument(**chosen):
            raise RuntimeError("the breakers could not be switched on: the log of otel_breaker says why")
        emit.start()
        emit.configure(loaded.events, loaded.spans)
        yield
    finally:
        activate.deactivate()
        put_back()


def _remember() -> Callable[[], None]:
    """A function that brings back the settings and the activation of this moment."""
    with activate._lock:
        active, configured, invalid = activate._active, activate._configured, activate._invalid
        before = settings._current

    def put_back() -> None:
        with activate._lock:
            if before is None:
                settings.forget()
                keys.set_fingerprint_key(None)
            else:
                settings.use(before)
            activate._invalid = invalid
            if active:
                # Not by instrument(): its arguments are gone, and what they made of the settings is at hand.
                activate._active, activate._configured = True, configured
                activate._finder.install()
                _patch.enable()
        with contextlib.suppress(settings.SettingsError):
            plain = before or settings.load()
            emit.configure(plain.events, plain.spans)

    return put_back


def circuit_of(what: Callable[..., Any] | str) -> Circuit:
    """The circuit of a guarded function, or of a dependency by its name; made if nobody has called it yet.

    A fresh registry is empty until the first call, so a test that begins with ``force_open`` needs this.

    Raises:
        TypeError: for a function without ``@guard``.
    """
    if isinstance(what, str):
        registry = _registry.registry()
        return registry.get(what) or registry.client(keys.display_safe(what).lower())
    binding = getattr(what, "__otel_breaker__", None)
    if binding is None:
        raise TypeError(f"{keys.tool_name(what)} is not guarded: put @otel_breaker.guard on it, or give a name")
    found: Circuit = binding.circuit or binding.bind()
    return found
