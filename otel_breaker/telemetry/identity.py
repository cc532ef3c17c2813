"""Whose series these are: the ``service.instance.id`` of a process, ours and that of the program's meter provider.

Two processes that push the same series with the same resource overwrite each other's numbers.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from opentelemetry import metrics as metrics_api

from otel_breaker import _log

ID: Final = "service.instance.id"

_SAME: Final = (
    "the program's meter provider has the service.instance.id of the parent process, so the numbers of both overwrite "
    "each other; make the provider after the fork (gunicorn: post_fork, Celery: worker_process_init), or take an "
    "opentelemetry-sdk that renews the id in a forked child"
)
_NONE: Final = (
    "the program's meter provider has no service.instance.id, so processes of one service overwrite each other's "
    "numbers; give each its own, in the Resource of the provider"
)

_forked = False
_parents: str | None = None


def worker() -> bool:
    """Whether a parent with the same environment made this process: an id from there would not be its own."""
    process: Any = sys.modules.get("multiprocessing.process")
    return _forked or (process is not None and process.parent_process() is not None)


def check() -> None:
    """Say once if the program's provider gives several processes the same identity."""
    told = _of(metrics_api.get_meter_provider())
    if told == "":
        _log.once(("identity", "none"), _NONE)
    elif told is not None and _forked and told == _parents:
        _log.once(("identity", "same"), _SAME)


def _of(provider: Any) -> str | None:
    """Its id, empty if it has none; ``None`` if that does not matter: it pushes nothing, or is not the SDK's."""
    export: Any = sys.modules.get("opentelemetry.sdk.metrics.export")
    config: Any = getattr(provider, "_sdk_config", None)
    if export is None or config is None:
        return None
    try:
        readers = getattr(config, "metric_readers", None) or provider._metric_readers  # the older place, and the newer
        if not any(isinstance(one, export.PeriodicExportingMetricReader) for one in readers):
            return None
        return str(config.resource.attributes.get(ID, ""))
    except AttributeError:  # another release
        return None


def _before_fork() -> None:
    global _parents
    _parents = _of(metrics_api.get_meter_provider())


def _after_fork_in_child() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
