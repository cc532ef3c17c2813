"""Providers of our own, for programs that set none although their environment names a place to export to.

Never global: when the program sets its own later, ours is flushed and dropped. One daemon thread asks for the metrics
and does all waiting, so that neither a call nor the end of the process depends on a collector that is down.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import metrics as metrics_api
from opentelemetry import trace
from opentelemetry._logs import Logger, get_logger_provider
from opentelemetry.trace import ProxyTracerProvider, Tracer

from otel_breaker import _endings, _fork_gate, _log
from otel_breaker._version import __version__

from . import exporters, identity, metrics, names, quick
from .wanted import SIGNALS, Signal, wanted

EXIT_SECONDS: Final = 2.0
"""How long the end of the process waits for the last export: all signals, and all ways of ending, together."""

_ENDING: Final = 10.0
"""Seconds after which an end that did not come is forgotten, and the next one has its whole time again."""

_CHECK_SECONDS: Final = 5.0
"""How often the thread looks whether the program has set providers of its own."""

_SUPPRESS: Final[str] = getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")

_Done = queue.SimpleQueue[bool]


class _State:
    """Our providers in this process, and the tracer and logger last handed out."""

    __slots__ = ("interval", "logger", "mine", "over_by", "requests", "started", "thread", "tracer", "watch_due")

    def __init__(self) -> None:
        self.started = False
        self.mine: dict[Signal, Any] = {}
        self.interval = exporters.INTERVAL
        # A SimpleQueue may be put into from a signal handler that interrupted another put.
        self.requests: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self.tracer: tuple[Any, Tracer] | None = None
        self.logger: tuple[Any, Logger] | None = None
        self.watch_due = False
        self.over_by = -math.inf


_state = _State()


def start() -> None:
    """Build what the environment asks for and the program has not set up. Sending is left to threads."""
    state = _state
    if state.started:
        return
    state.started = True
    trace.get_tracer_provider()  # one that OTEL_PYTHON_TRACER_PROVIDER names is there from now on
    missing: list[Signal] = [one for one in SIGNALS if wanted(one) and not _is_set(one) and one not in state.mine]
    if missing and _fork_gate.cut:
        _log.once("cut", "forked in the middle of another thread's first call: this process exports nothing itself")
    elif missing:
        state.mine = {**state.mine, **exporters.build(missing, identity.worker())}
        _tell_the_hot_path(state)
    identity.check()
    if identity.worker():
        _endings.at_end_of_worker(_finish_worker)
    if not state.mine:
        _endings.unwatch()
        return
    if "metrics" in state.mine:
        metrics.register(state.mine["metrics"])
    state.interval = exporters.interval()
    state.thread = threading.Thread(target=_run, args=(state,), name="otel-breaker-export", daemon=True)
    state.thread.start()
    _endings.at_exit(finish)
    state.watch_due = not _endings.watch()


def _tell_the_hot_path(state: _State) -> None:
    (quick.detours.add if "traces" in state.mine else quick.detours.discard)("spans")


def _is_set(signal_name: Signal) -> bool:
    return not _is_proxy(_global(signal_name))


def _global(signal_name: Signal) -> Any:
    if signal_name == "traces":
        return trace.get_tracer_provider()
    return metrics_api.get_meter_provider() if signal_name == "metrics" else get_logger_provider()


def _is_proxy(provider: Any) -> bool:
    return type(provider).__name__.lstrip("_") in ("ProxyTracerProvider", "ProxyMeterProvider", "ProxyLoggerProvider")


# --- what events are written with -------------------------------------------------------------------------------------


def tracer() -> Tracer | None:
    """The program's tracer, else ours, else ``None``. Cheap, and right also when the program sets its provider late."""
    state = _state
    if state.watch_due:
        state.watch_due = not _endings.watch()
    provider: Any = trace.get_tracer_provider()
    if type(provider) is ProxyTracerProvider:
        provider = state.mine.get("traces")
        if provider is None:
            return None
    known = state.tracer
    if known is None or known[0] is not provider:
        known = state.tracer = (provider, provider.get_tracer(names.SCOPE, __version__))
    return known[1]


def logger() -> Logger | None:
    """The program's logger of events, else ours, else ``None``."""
    state = _state
    provider: Any = get_logger_provider()
    if _is_proxy(provider):
        provider = state.mine.get("logs")
        if provider is None:
            return None
    known = state.logger
    if known is None or known[0] is not provider:
        known = state.logger = (provider, provider.get_logger(names.SCOPE, __version__))
    return known[1]


# --- sending ----------------------------------------------------------------------------------------------------------


def _run(state: _State) -> None:
    """The thread: metrics at their interval, everything on request, and an end once nothing of ours is left."""
    otel_context.attach(otel_context.set_value(_SUPPRESS, True))
    due = time.monotonic() + state.interval
    while state.mine:
        try:
            done = state.requests.get(timeout=max(0.0, min(_CHECK_SECONDS, due - time.monotonic())))
        except queue.Empty:
            done = None
        _drop_superseded(state)
        if done is not None:
            _export(*state.mine.values())
            done.put(True)
        elif time.monotonic() >= due:
            due = time.monotonic() + state.interval
            if "metrics" in state.mine:
                _export(state.mine["metrics"])


def _drop_superseded(state: _State) -> None:
    for one in [one for one in state.mine if _is_set(one)]:
        provider = state.mine.pop(one)
        _tell_the_hot_path(state)
        metrics.unregister(provider)
        _export(provider)
        try:
            provider.shutdown()
        except Exception as error:  # it is gone either way
            _log.fault(("shutdown", one), f"our own provider of {one} did not shut down cleanly", error)


def _export(*providers: Any) -> None:
    for provider in providers:
        try:
            provider.force_flush()
        except Exception as error:  # the exporter says what is wrong; the next turn tries again
            _log.logger.debug("export failed", exc_info=error)


def flush(timeout: float = 10.0) -> bool:
    """Export all that is waiting, through our providers and the program's, within ``timeout`` seconds.

    Returns:
        Whether everything was handed to the exporters in time.
    """
    until = time.monotonic() + timeout
    complete = True
    for one in SIGNALS:
        force_flush = getattr(_global(one), "force_flush", None)
        if force_flush is not None:
            try:
                complete &= force_flush(max(1, int((until - time.monotonic()) * 1000))) is not False
            except Exception as error:  # a provider of the program's
                _log.logger.debug("flush failed", exc_info=error)
                complete = False
    return _flush_mine(max(0.0, until - time.monotonic())) and complete


def _flush_mine(timeout: float) -> bool:
    state = _state
    if not state.mine or state.thread is None or not state.thread.is_alive():
        return True
    done: _Done = queue.SimpleQueue()
    state.requests.put(done)
    try:
        return done.get(timeout=timeout)
    except queue.Empty:
        return False


# --- the end of the process -------------------------------------------------------------------------------------------


def waiting() -> bool:
    """Whether providers of ours may have something to export."""
    return bool(_state.mine)


def finish() -> None:
    """The process is about to end: export what is waiting."""
    _flush_mine(_time_left())


def _finish_worker() -> None:
    """`finish` where `atexit` does not run, on which the program's own providers rely: theirs is flushed as well."""
    if any(_is_set(one) for one in SIGNALS):
        seconds = _time_left()
        thread = threading.Thread(target=flush, args=(seconds,), name="otel-breaker-flush", daemon=True)
        thread.start()
        thread.join(seconds)
    else:
        finish()


def _time_left() -> float:
    state, now = _state, time.monotonic()
    if now > state.over_by + _ENDING:
        state.over_by = now + EXIT_SECONDS
    return max(0.0, state.over_by - now)


# --- fork -------------------------------------------------------------------------------------------------------------


def _after_fork_in_child() -> None:
    """Leave the parent's providers alone; the child builds its own at its next guarded call."""
    global _state
    inherited, _state = _state.mine, _State()
    if exporters.from_file():  # these have threads of their own, which the SDK starts again and gives a new identity
        _state.mine = inherited
        return
    _tell_the_hot_path(_state)
    for provider in inherited.values():
        metrics.unregister(provider)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
