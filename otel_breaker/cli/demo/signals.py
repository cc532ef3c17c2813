"""What comes over OTLP, as plain records: data points, spans, log records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Attributes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """Who wrote it."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Point:
    """One data point. ``value`` is the number, or the sum of a histogram; ``count`` is 1 for numbers."""

    name: str
    unit: str
    kind: str
    monotonic: bool
    delta: bool
    attributes: Attributes
    value: float
    count: int
    at: int
    scope: Scope
    resource: Attributes


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """One event on a span."""

    name: str
    attributes: Attributes
    at: int


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span; ids are hex, ``parent_id`` is empty for a root."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    status: int
    attributes: Attributes
    events: tuple[SpanEvent, ...]
    scope: Scope
    resource: Attributes


@dataclass(frozen=True, slots=True)
class Log:
    """One log record."""

    event_name: str
    severity: str
    body: Any
    attributes: Attributes
    trace_id: str
    span_id: str
    at: int
    scope: Scope
    resource: Attributes


def _attributes(pairs: Iterable[Any]) -> Attributes:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return getattr(value, kind)


def _scope(scope: Any) -> Scope:
    return Scope(scope.name, scope.version)


def points(request: Any) -> Iterable[Point]:
    """The data points of an ExportMetricsServiceRequest."""
    for group in request.resource_metrics:
        resource = _attributes(group.resource.attributes)
        for scoped in group.scope_metrics:
            for metric in scoped.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                for point in data.data_points:
                    histogram = kind == "histogram"
                    yield Point(
                        name=metric.name,
                        unit=metric.unit,
                        kind=kind,
                        monotonic=bool(getattr(data, "is_monotonic", False)),
                        delta=getattr(data, "aggregation_temporality", 0) == 1,
                        attributes=_attributes(point.attributes),
                        value=point.sum if histogram else getattr(point, point.WhichOneof("value")),
                        count=point.count if histogram else 1,
                        at=point.time_unix_nano,
                        scope=_scope(scoped.scope),
                        resource=resource,
                    )


def spans(request: Any) -> Iterable[Span]:
    """The spans of an ExportTraceServiceRequest."""
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for scoped in group.scope_spans:
            for span in scoped.spans:
                yield Span(
                    name=span.name,
                    kind=span.kind,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    status=span.status.code,
                    attributes=_attributes(span.attributes),
                    events=tuple(
                        SpanEvent(event.name, _attributes(event.attributes), event.time_unix_nano)
                        for event in span.events
                    ),
                    scope=_scope(scoped.scope),
                    resource=resource,
                )


def logs(request: Any) -> Iterable[Log]:
    """The records of an ExportLogsServiceRequest."""
    for group in request.resource_logs:
        resource = _attributes(group.resource.attributes)
        for scoped in group.scope_logs:
            for record in scoped.log_records:
                yield Log(
                    event_name=record.event_name,
                    severity=record.severity_text,
                    body=_value(record.body),
                    attributes=_attributes(record.attributes),
                    trace_id=record.trace_id.hex(),
                    span_id=record.span_id.hex(),
                    at=record.time_unix_nano,
                    scope=_scope(scoped.scope),
                    resource=resource,
                )
