"""The one idempotent entry: the start-up files, the instrumentor's entry point and `instrument()` all end here.

`OTEL_BREAKER_ENABLED=false` wins over everything. Twice by any two ways patches once.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

from . import _endings, _log, _waiting, settings
from ._importing import Finder
from ._settings_values import flag
from ._startup import VARIABLE, bystander
from .instrumentations import _patch
from .instrumentations._table import TARGETS

if TYPE_CHECKING:
    from ._instrumentor import BreakerInstrumentor as BreakerInstrumentor

ENVIRONMENT: Final = "OTEL_BREAKER_ENABLED=true"
AUTOMATIC: Final = "opentelemetry-instrument"
BY_HAND: Final = "instrument()"

_OTEL_DISABLED: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"

_lock = threading.RLock()
_active = False
_configured = False
"""Whether `instrument()` or keyword arguments have had their say."""
_invalid = False
"""Whether given settings were wrong: a later call without settings must not switch on the defaults instead."""
_finder: Final = Finder({target.module for target in TARGETS}, _patch.apply)


def activate(source: str, **kwargs: Any) -> bool:
    """Switch the breakers on.

    Args:
        source: `ENVIRONMENT`, `AUTOMATIC` or `BY_HAND`.
        kwargs: settings; they go before environment and file.

    Returns:
        Whether the breakers are on now. Invalid settings are one ERROR line and leave them as they were.
    """
    try:
        with _lock:
            if _waiting.cancel() and not _refused(ENVIRONMENT):
                _start(ENVIRONMENT, {})
            if reason := _refused(source):
                _log.logger.debug("otel_breaker stays off: %s", reason)
                return False
            return _extend(source, kwargs) if _active else _start(source, kwargs)
    except Exception as error:
        _log.fault(("activate", source), "otel_breaker could not be switched on", error)
        return False


def deactivate() -> None:
    """Switch the breakers off: wrappers pass straight through, and come off where nobody has wrapped them since."""
    global _active, _configured, _invalid
    with _lock:
        _waiting.cancel()
        _finder.remove()
        _patch.remove()
        _active = _configured = _invalid = False


def instrument(**settings: Any) -> bool:
    """Switch the breakers on from inside the program: every library of the table is guarded, also if already imported.

    Args:
        settings: as in the settings file, in lower case; they go before environment and file.

    Returns:
        Whether the breakers are on. ``OTEL_BREAKER_ENABLED=false`` and invalid settings, which are one ERROR line,
        leave them off; a second call changes nothing and warns once.
    """
    return activate(BY_HAND, **settings)


def uninstrument() -> None:
    """Switch the breakers off. Guards and circuits made by hand go on."""
    deactivate()


def active() -> bool:
    """Whether the breakers are on."""
    return _active


def off_by_environment(source: str = AUTOMATIC) -> str | None:
    """Which variable keeps the breakers off for this way of switching on; ``None`` if none does."""
    try:
        if not flag(os.environ.get(VARIABLE, "").strip() or True):
            return f"{VARIABLE} is false"
    except ValueError:
        pass  # an error like that of any other setting, reported with them
    disabled = {name.strip() for name in os.environ.get(_OTEL_DISABLED, "").split(",")}
    if source != BY_HAND and disabled & {"otel_breaker", "*"}:
        return f"{_OTEL_DISABLED} names it"
    return None


def _refused(source: str) -> str | None:
    """Why this way must not switch the breakers on; ``None`` if it may."""
    if reason := off_by_environment(source):
        return reason
    return "this process is a tool of its own" if source != BY_HAND and bystander() else None


def _start(source: str, kwargs: dict[str, Any]) -> bool:
    global _active, _configured, _invalid
    if _invalid and not kwargs:
        return False
    try:
        loaded = settings.load(**kwargs)
    except settings.SettingsError as error:
        _invalid = True
        settings.report(error)
        settings.use(settings.OFF)
        return False
    _invalid = False
    settings.use(loaded)
    if loaded.enabled is False:
        return False
    _configured = source == BY_HAND or bool(kwargs)
    _active = True
    _finder.install()
    _patch.enable()
    if source == BY_HAND:
        _endings.watch_early()
    _log.logger.info("%s", _announcement(loaded, source))
    return True


def _extend(source: str, kwargs: dict[str, Any]) -> bool:
    """Already on: settings of the first call that brings some still count, anything after that is a mistake."""
    global _configured
    if source != BY_HAND and not kwargs:
        return True
    if _configured:
        _log.once("activate twice", "otel_breaker is already on: this call changes nothing; uninstrument() comes first")
        return True
    if kwargs:
        before = _wanted(settings.current())
        try:
            settings.use(settings.load(**kwargs))
        except settings.SettingsError as error:
            settings.report(error, "otel_breaker keeps its earlier settings")
            return True
        if _wanted(settings.current()) != before:
            _patch.remove()
            _patch.enable()
    _configured = True
    return True


def _wanted(chosen: settings.Settings) -> list[str]:
    return list(dict.fromkeys(row.library for row in TARGETS if chosen.wants(row.library)))


def _announcement(loaded: settings.Settings, source: str) -> str:
    libraries = ", ".join(_wanted(loaded)) or "no library"
    done = {
        "enforce": "breakers enforce: calls to a dependency that is down are refused",
        "observe": "breakers observe: nothing is refused, what would be refused is counted",
        "off": "breakers are in mode off: calls pass straight through",
    }[loaded.mode]
    return f"otel_breaker: {done} (guarded: {libraries}; switched on by {source}; {VARIABLE}=false switches it off)"


def __getattr__(name: str) -> Any:
    # The instrumentor's base class is heavy; only OpenTelemetry's own loader, which has it already, asks for it.
    if name == "BreakerInstrumentor":
        from ._instrumentor import BreakerInstrumentor

        return BreakerInstrumentor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # Another thread may hold the lock at the moment of the fork; patches and state are inherited as they are.
    os.register_at_fork(after_in_child=_renew_lock)
