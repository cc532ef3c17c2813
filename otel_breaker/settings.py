"""Settings: keyword arguments, then `OTEL_BREAKER_*`, then the file of `OTEL_BREAKER_CONFIG`, then defaults.

A setting that is unknown or wrong is one `SettingsError` whose text is a single line: the key, where it came from and
what is allowed. The package then stays off and the program runs on.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any, Final

from pydantic import ValidationError

from . import _log
from . import _settings_sources as sources
from ._settings_errors import keys, one_line
from ._settings_model import Settings
from .errors import SettingsError
from .keys import set_fingerprint_key

__all__ = ["KNOWN", "OFF", "Settings", "SettingsError", "current", "forget", "load", "load_file", "report", "use"]

_ONLY_IN_FILE: Final = frozenset({"version", "classes", "circuits"})

OFF: Final = Settings(mode="off", enabled=False)
"""What stands in for settings that are invalid."""

KNOWN: Final = (*keys(Settings), "config")
_BY_ENVIRONMENT: Final = tuple(key for key in KNOWN if key not in _ONLY_IN_FILE)


def load(**kwargs: Any) -> Settings:
    """The settings that keyword arguments, environment and file make together.

    Raises:
        SettingsError: for an unknown key or a bad value.
    """
    return _validate(sources.merge(kwargs, os.environ, _BY_ENVIRONMENT))


def load_file(path: str) -> Settings:
    """The settings of one file alone.

    Raises:
        SettingsError: for a file that cannot be read, an unknown key or a bad value.
    """
    merged = sources.Merged()
    merged.add(sources.read_file(path, "file"), sources.file_origin(path))
    return _validate(merged)


def _validate(merged: sources.Merged) -> Settings:
    try:
        return Settings.model_validate(merged.values)
    except ValidationError as error:
        raise SettingsError(one_line(error, merged, Settings)) from None


_lock = threading.RLock()
_current: Settings | None = None
_reported: set[str] = set()


def current() -> Settings:
    """The settings of this process, loaded at first use. Invalid ones are reported once and switch everything off."""
    found = _current
    if found is not None:
        return found
    with _lock:
        if _current is None:
            try:
                use(load())
            except SettingsError as error:
                report(error)
                use(OFF)
        assert _current is not None
        return _current


def use(settings: Settings) -> None:
    """Make these the settings of the process, for circuits that are made from now on."""
    global _current
    _current = settings
    _log_to_stderr(settings.log_level)
    secret = settings.fingerprint_key
    set_fingerprint_key(secret.get_secret_value().encode() if secret is not None else None)


def forget() -> None:
    """Load anew at the next use, and report errors anew."""
    global _current
    _current = None
    _reported.clear()
    _log_to_stderr(None)


def report(error: SettingsError, consequence: str = "otel_breaker stays off") -> None:
    """Log that these settings are invalid: one ERROR line, once."""
    with _lock:
        if str(error) in _reported:
            return
        _reported.add(str(error))
    _log.logger.error("%s: %s", consequence, error)


class _Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:  # logging's own rule: a log line never stops the program
            self.handleError(record)


_stderr: Final = _Stderr()
_stderr.setFormatter(logging.Formatter("%(asctime)s %(levelname)s [%(name)s] %(message)s"))


def _log_to_stderr(level: str | None) -> None:
    """With a level, our lines show without any logging set up; without one, logging is the program's own matter."""
    if level is not None:
        _log.logger.setLevel(level.upper())
        _log.logger.addHandler(_stderr)
    elif _stderr in _log.logger.handlers:
        _log.logger.removeHandler(_stderr)
        _log.logger.setLevel(logging.NOTSET)


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
