"""What the guard calls. Nothing here raises, blocks or changes a call; faults are logged once.

The guard reads the context once a call (`current`) and hands it on: it says whether to bypass (`suppressed`) and which
span to write on.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from opentelemetry import context as otel_context
from opentelemetry.context import Context, get_current
from opentelemetry.trace import get_current_span

from otel_breaker import _fork_gate, _log

from . import events, metrics, names, providers, quick, spans
from .events import Event
from .spans import OwnSpan

if TYPE_CHECKING:
    from otel_breaker.circuit import Circuit
    from otel_breaker.core.events import Moved

_SUPPRESS: Final[str] = getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
_SUPPRESS_PLAIN: Final = "suppress_instrumentation"

_P = ParamSpec("_P")
_R = TypeVar("_R")

current = get_current
flush = providers.flush


class _State:
    """What was configured and what goes on in this process."""

    __slots__ = ("bridge", "budget", "log", "own", "span", "started")

    def __init__(self) -> None:
        self.span = self.log = self.own = True
        self.reset()

    def reset(self) -> None:
        """Begin afresh, as a forked child does."""
        self.started = False
        self.budget = events.SpanBudget()
        self.bridge = events.Bridge()


_state = _State()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _state.reset())


def _never_raises(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # telemetry must not change a call
            _log.fault(("emit", function.__name__), "an event could not be written", error)
            return None

    return guarded


# --- set up -----------------------------------------------------------------------------------------------------------


def start() -> None:
    """Get going at the first guarded call of a process; afterwards this costs one test."""
    if not _state.started:
        _state.started = True
        with _fork_gate.held_back():
            _start()


@_never_raises
def _start() -> None:
    from otel_breaker.settings import current as settings

    configure(settings().events, settings().spans)
    metrics.register()
    providers.start()


def configure(events: str = "both", spans: str = "auto") -> None:
    """Where events go (``span``, ``log``, ``both``, ``none``) and whether we make spans (``auto``, ``never``)."""
    _state.span = events in ("span", "both")
    _state.log = events in ("log", "both")
    _state.own = spans == "auto"


# --- the context ------------------------------------------------------------------------------------------------------


def suppressed(ctx: Context) -> bool:
    """Whether instrumentation is switched off here: an exporter at work, or the program's wish."""
    return bool(ctx) and bool(ctx.get(_SUPPRESS) or ctx.get(_SUPPRESS_PLAIN))


def own_spans() -> bool:
    """Whether a call without any span context gets a span of ours; a provider may appear late."""
    return _state.own and providers.tracer() is not None


@_never_raises
def leave(handle: object) -> None:
    """Take a tool's span out of the context for as long as its generator is suspended."""
    if isinstance(handle, OwnSpan):
        handle.leave()


@_never_raises
def enter(handle: object) -> None:
    """Make a tool's span current again for the next step of its generator."""
    if isinstance(handle, OwnSpan):
        handle.enter()


# --- calls ------------------------------------------------------------------------------------------------------------


def on_span(ctx: Context, circuit: Circuit, site: Any) -> bool:
    """Write the event of a closed circuit's call, if that is all there is to do. ``False``: it must go the long way."""
    try:
        span: Any = ctx.get(quick.span_key or "")
        if span is None or ctx.get(_SUPPRESS) or ctx.get(_SUPPRESS_PLAIN):
            return False
        if not span.is_recording():
            return bool(span.get_span_context().is_valid)
        if _state.span:
            _state.budget.add(span, names.CALL_ADMITTED, events.usual(circuit, site))
        return True
    except Exception as error:
        _log.fault(("emit", "on_span"), "an event could not be written", error)
        return True


def on_admit(ctx: Context, circuit: Circuit, site: Any, probe: bool, credential: str | None = None) -> object | None:
    """A call goes ahead. Returns what `on_done` needs; ``None`` if only a probe's end need be told."""
    try:
        span = get_current_span(ctx)
        if span.is_recording():
            if _state.span:
                event = events.admitted(circuit, site, probe, credential)
                if probe:
                    span.add_event(*event)
                else:
                    _state.budget.add(span, *event)
            return None
        if not _state.own or span.get_span_context().is_valid:
            return None
        tracer = providers.tracer()
        if tracer is None:
            return None
        handle = OwnSpan(tracer, ctx, events.admitted(circuit, site, probe, credential), write_events=_state.span)
        if site is not None and site.layer == "tool":
            handle.begin()
        return handle
    except Exception as error:
        _log.fault(("emit", "on_admit"), "an event could not be written", error)
        return None


@_never_raises
def on_done(
    handle: object,
    circuit: Circuit,
    site: Any,
    outcome: str,
    reason: str | None,
    probe: bool,
    credential: str | None = None,
) -> None:
    """A call is over: called for every handle, and for every probe."""
    ended = time.time_ns()
    finished = events.probe_finished(circuit, site, outcome, reason, credential) if probe else None
    if isinstance(handle, OwnSpan):
        handle.end(ended, outcome, reason, credential, finished)
    elif finished is not None and _state.span:
        span = get_current_span()
        if span.is_recording():
            span.add_event(*finished)


@_never_raises
def on_refuse(
    ctx: Context, circuit: Circuit, site: Any, decision: str, retry_after: float, credential: str | None = None
) -> None:
    """A call was refused (or would have been, in observe mode)."""
    span = get_current_span(ctx)
    recording = span.is_recording()
    merged = circuit.tell()
    if not (merged or (recording and _state.span)):
        return
    event = events.rejected(circuit, site, decision, retry_after, credential)
    logger = providers.logger() if merged and _state.log else None
    if logger is not None:
        events.to_log(logger, event, merged)
    if recording:
        if _state.span and not (logger is not None and _state.bridge.installed()):
            _state.budget.add(span, *event)
    elif merged and _state.own and not span.get_span_context().is_valid:
        tracer = providers.tracer()
        if tracer is not None:
            spans.refusal(tracer, ctx, event, merged, write_events=_state.span)


# --- circuits ---------------------------------------------------------------------------------------------------------


@_never_raises
def on_moved(circuit: Circuit, moved: Moved, site: Any = None, credential: str | None = None) -> None:
    """A circuit changed its state."""
    _publish(events.state_changed(circuit, moved, site, credential), site)


@_never_raises
def on_revoked(circuit: Circuit, site: Any = None, credential: str | None = None) -> None:
    """A credential that had worked was answered 401."""
    _publish(events.revoked(circuit, site, credential), site)


@_never_raises
def on_episode_over(circuit: Circuit, seconds: float) -> None:
    """A circuit closed again after ``seconds``."""
    metrics.episode_over(circuit.stats.name, seconds)


def _publish(event: Event, site: Any) -> None:
    ctx = get_current()
    if site is not None and suppressed(ctx):
        return
    logger = providers.logger() if _state.log else None
    if logger is not None:
        events.to_log(logger, event)
    if not _state.span or (logger is not None and _state.bridge.installed()):
        return
    span = get_current_span(ctx)
    if span.is_recording():
        span.add_event(*event)
    elif site is not None and not span.get_span_context().is_valid and own_spans():
        spans.hold(event)
