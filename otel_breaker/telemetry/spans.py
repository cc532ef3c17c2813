"""Spans of our own, for calls that have no span context at all."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar, Token
from typing import Final

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from otel_breaker.outcomes import FAILURE

from . import events, names
from .events import Event

_HELD_MAX: Final = 8
_held: ContextVar[tuple[Event, ...]] = ContextVar("otel_breaker_held_events", default=())


def hold(event: Event) -> None:
    """Keep an event of this call for the span that the call gets later: a client's is made after the fact."""
    _held.set((*_held.get(), event)[-_HELD_MAX:])


def _take() -> tuple[Event, ...]:
    waiting = _held.get()
    if waiting:
        _held.set(())
    return waiting


class OwnSpan:
    """The span around one admitted call.

    A tool's is current while its body runs. A client's is made after the fact with its true times and never current,
    so that the spans of the official instrumentations keep their parents.

    Args:
        tracer: what makes it.
        outer: the context of the call; it holds no span.
        admitted: the event that began it.
        write_events: whether events go onto spans.
    """

    __slots__ = ("_admitted", "_before", "_inner", "_outer", "_span", "_token", "_tracer", "_write_events")

    def __init__(self, tracer: Tracer, outer: Context, admitted: Event, *, write_events: bool) -> None:
        self._tracer = tracer
        self._outer = outer
        self._admitted = admitted
        self._before = _take()
        self._write_events = write_events
        self._span: Span | None = None
        self._inner: Context | None = None
        self._token: Token[Context] | None = None

    def begin(self) -> None:
        """Make the span now, and current: for a tool's call."""
        self._span = self._make()
        self._inner = set_span_in_context(self._span, self._outer)
        self.enter()

    def enter(self) -> None:
        """Make it current (again)."""
        if self._inner is not None and self._token is None:
            self._token = attach(self._inner)

    def leave(self) -> None:
        """Take it out of the context, without the ERROR that the API logs where that is another context by now."""
        token, self._token = self._token, None
        if token is None:
            return
        reset = getattr(token, "var", None)
        if reset is None:  # a context implementation of the program's own
            detach(token)
            return
        try:
            reset.reset(token)
        except (RuntimeError, ValueError):
            if get_current() is self._inner:  # a copy of the context that we attached in
                attach(self._outer)

    def end(self, ended: int, outcome: str, reason: str | None, credential: str | None, probe: Event | None) -> None:
        """The call is over. ``probe``: the event that ends it if it was one."""
        self.leave()
        span = self._span or self._make()
        self._write(span, _take())
        if probe is not None:
            self._write(span, (probe,))
        attributes: events.Attributes = {names.OUTCOME: outcome}
        events.why(attributes, reason)
        if credential is not None:
            attributes[names.CREDENTIAL] = credential
        span.set_attributes(attributes)
        if outcome == FAILURE:
            span.set_status(Status(StatusCode.ERROR, reason))
        span.end(ended)

    def _make(self) -> Span:
        attributes = {key: value for key, value in self._admitted.attributes.items() if key != names.STATE}
        span = _start(self._tracer, self._outer, attributes, self._admitted.at)
        self._write(span, (*self._before, self._admitted))
        return span

    def _write(self, span: Span, happened: Iterable[Event]) -> None:
        if self._write_events:
            for event in happened:
                span.add_event(*event)


def refusal(tracer: Tracer, outer: Context, rejected: Event, merged: int, *, write_events: bool) -> None:
    """The one span for ``merged`` refusals of a circuit."""
    span = _start(tracer, outer, {**rejected.attributes, names.MERGED: merged}, rejected.at)
    if write_events:
        for event in (*_take(), rejected):
            span.add_event(*event)
    span.end()


def _start(tracer: Tracer, outer: Context, attributes: events.Attributes, at: int) -> Span:
    name = f"otel_breaker {attributes[names.NAME]}"
    return tracer.start_span(name, outer, SpanKind.INTERNAL, attributes, start_time=at)
