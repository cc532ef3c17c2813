"""What the guard calls. Nothing here raises, blocks or changes a call; faults are logged once.

The guard reads the context once a call (`current`) and hands it on: it says whether to bypass (`suppressed`) and which
span to write on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from opentelemetry import context as otel_context
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context

from otel_breaker import _log
from otel_breaker.outcomes import FAILURE

from . import events, metrics, names, providers
from .events import Event

if TYPE_CHECKING:
    from otel_breaker.circuit import Circuit
    from otel_breaker.core.events import Moved

_SUPPRESS: Final[str] = getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
_SUPPRESS_PLAIN: Final = "suppress_instrumentation"

_F = TypeVar("_F", bound=Callable[..., Any])

current = get_current


class _State:
    """What was configured and what goes on in this process."""

    __slots__ = ("bridge", "budget", "log", "merged_logs", "merged_spans", "own", "span", "started")

    def __init__(self) -> None:
        self.started = False
        self.span = self.log = self.own = True
        self.reset()

    def reset(self) -> None:
        """Counts and locks afresh, as after a fork."""
        self.budget = events.SpanBudget()
        self.bridge = events.Bridge()
        self.merged_logs = events.Merge()
        self.merged_spans = events.Merge()


_state = _State()
_unwritten: ContextVar[tuple[Event, ...]] = ContextVar("otel_breaker_unwritten", default=())
"""Transitions of a call without a current span; the span of our own that the call gets later takes them."""


class _Handle:
    """An admitted call with a span of our own: there from the start for a tool, made at the end for a client."""

    __slots__ = ("events", "inner", "outer", "span", "started", "token", "tracer")

    def __init__(self, tracer: Tracer, outer: Context, admitted: Event) -> None:
        self.tracer = tracer
        self.outer = outer
        self.started = admitted.at
        self.events = [*_take(), admitted]
        self.span: Span | None = None
        self.inner: Context | None = None
        self.token: Token[Context] | None = None


def _never_raises(function: _F) -> _F:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - telemetry must not change a call
            _log.fault(("emit", function.__name__), "an event could not be written", error)
            return None

    guarded.__name__, guarded.__doc__ = function.__name__, function.__doc__
    return cast("_F", guarded)


# --- set up -----------------------------------------------------------------------------------------------------------


def start() -> None:
    """Get going at the first guarded call of a process; afterwards this costs one test."""
    if not _state.started:
        _state.started = True
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


def _after_fork_in_child() -> None:
    _state.reset()
    _state.started = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# --- the context ------------------------------------------------------------------------------------------------------


def suppressed(ctx: Context) -> bool:
    """Whether instrumentation is switched off here: an exporter at work, or the program's wish."""
    return bool(ctx) and bool(ctx.get(_SUPPRESS) or ctx.get(_SUPPRESS_PLAIN))


def own_spans() -> bool:
    """Whether a call without any span context gets a span of ours; a provider may appear late."""
    return _state.own and providers.tracer() is not None


def leave(handle: object) -> None:
    """Take a tool's span out of the context for as long as its generator is suspended."""
    if isinstance(handle, _Handle) and handle.token is not None:
        token, handle.token = handle.token, None
        _restore(token, handle)


def enter(handle: object) -> None:
    """Make a tool's span current again for the next step of its generator."""
    if isinstance(handle, _Handle) and handle.inner is not None and handle.token is None:
        handle.token = attach(handle.inner)


def _restore(token: Token[Context], handle: _Handle) -> None:
    """Detach without the ERROR that the API logs when the call ends in another context than it began in."""
    reset = getattr(getattr(token, "var", None), "reset", None)
    if reset is None:  # a context implementation of the program's own
        detach(token)
        return
    try:
        reset(token)
    except (RuntimeError, ValueError):
        if get_current() is handle.inner:  # a copy of the context that we attached in
            attach(handle.outer)


# --- calls ------------------------------------------------------------------------------------------------------------


@_never_raises
def on_admit(ctx: Context, circuit: Circuit, site: Any, probe: bool, credential: str | None = None) -> object | None:
    """A call goes ahead. Returns what `on_done` needs, or ``None`` if it need not be called (probes: always)."""
    span = get_current_span(ctx)
    if span.is_recording():
        if _state.span:
            event = events.admitted(circuit, site, probe, credential)
            if probe:
                span.add_event(event.name, event.attributes, event.at)
            else:
                _state.budget.add(span, event)
        return None
    if not _state.own or span.get_span_context().is_valid:
        return None
    tracer = providers.tracer()
    if tracer is None:
        return None
    event = events.admitted(circuit, site, probe, credential)
    handle = _Handle(tracer, ctx, event)
    if site is not None and site.layer == "tool":
        handle.span = _begin(handle, circuit, event)
        handle.inner = set_span_in_context(handle.span, ctx)
        handle.token = attach(handle.inner)
    return handle


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
    if not isinstance(handle, _Handle):
        span = get_current_span()
        if finished is not None and _state.span and span.is_recording():
            span.add_event(finished.name, finished.attributes, finished.at)
        return
    leave(handle)
    span = handle.span or _begin(handle, circuit, handle.events[-1])
    if not span.is_recording():
        return
    late = [*_take(), finished] if finished is not None else _take()
    _write(span, late)
    attributes: events.Attributes = {names.OUTCOME: outcome}
    events.why(attributes, reason)
    if credential is not None:
        attributes[names.CREDENTIAL] = credential
    span.set_attributes(attributes)
    if outcome == FAILURE:
        span.set_status(Status(StatusCode.ERROR, reason))
    span.end(ended)


def _begin(handle: _Handle, circuit: Circuit, admitted: Event) -> Span:
    attributes = {key: value for key, value in admitted.attributes.items() if key != names.STATE}
    span = handle.tracer.start_span(
        names.span_name(circuit.name), handle.outer, SpanKind.INTERNAL, attributes, start_time=handle.started
    )
    _write(span, handle.events)
    return span


def _write(span: Span, happened: list[Event]) -> None:
    if _state.span:
        for event in happened:
            span.add_event(event.name, event.attributes, event.at)


def _take() -> list[Event]:
    waiting = _unwritten.get()
    if waiting:
        _unwritten.set(())
    return list(waiting)


@_never_raises
def on_refuse(
    ctx: Context, circuit: Circuit, site: Any, decision: str, retry_after: float, credential: str | None = None
) -> None:
    """A call was refused (or would have been, in observe mode)."""
    span = get_current_span(ctx)
    recording = span.is_recording()
    logger = providers.logger() if _state.log else None
    merged = _state.merged_logs(circuit) if logger is not None else 0
    alone = not recording and _state.own and not span.get_span_context().is_valid
    tracer = providers.tracer() if alone else None
    spanned = _state.merged_spans(circuit) if tracer is not None else 0
    if not (merged or spanned or (recording and _state.span)):
        return
    event = events.rejected(circuit, site, decision, retry_after, credential)
    if logger is not None and merged:
        events.to_log(logger, event, merged)
    if recording and _state.span and not (merged and _state.bridge.installed()):
        _state.budget.add(span, event)
    if tracer is not None and spanned:
        attributes = {**event.attributes, names.MERGED: spanned}
        mine = tracer.start_span(names.span_name(circuit.name), ctx, SpanKind.INTERNAL, attributes, start_time=event.at)
        _write(mine, [*_take(), event])
        mine.end()


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
        span.add_event(event.name, event.attributes, event.at)
    elif site is not None and not span.get_span_context().is_valid and own_spans():
        _unwritten.set((*_unwritten.get(), event)[-8:])


flush = providers.flush
