"""The three signals of the real SDK, in memory, in shapes that compare well."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_breaker.telemetry import events, metrics, providers

Series = dict[tuple[str, ...], float]


class Signals:
    """Providers of the test's own.

    Attributes:
        tracer: makes spans of the program under test.
        reader: collects on demand.
    """

    def __init__(self) -> None:
        self.traces = TracerProvider(shutdown_on_exit=False)
        self.logs = LoggerProvider(shutdown_on_exit=False)
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self._spans = InMemorySpanExporter()
        self._records: Any = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
        self.traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self.logs.add_log_record_processor(SimpleLogRecordProcessor(self._records))
        self.tracer = self.traces.get_tracer("program")

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand in for the global providers, which can be set only once a process."""
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", self.traces)
        monkeypatch.setattr(providers, "get_logger_provider", lambda: self.logs)
        monkeypatch.setattr(events, "get_logger_provider", lambda: self.logs)
        metrics.register(self.meters)

    def shutdown(self) -> None:
        metrics.unregister(self.meters)
        self.meters.shutdown()
        self.traces.shutdown()
        self.logs.shutdown()

    def forget(self) -> None:
        """Drop the spans and log records so far."""
        self._spans.clear()
        self._records.clear()

    # --- spans and logs -----------------------------------------------------------------------------------------------

    @property
    def spans(self) -> list[ReadableSpan]:
        """Finished spans, oldest first."""
        return list(self._spans.get_finished_spans())

    @property
    def plain_spans(self) -> list[dict[str, Any]]:
        """Finished spans without what differs from run to run."""
        return [plain(span) for span in self.spans]

    @property
    def plain_logs(self) -> list[tuple[str | None, str | None, dict[str, Any]]]:
        """(event name, severity, attributes) of every log record."""
        return [
            (one.log_record.event_name, one.log_record.severity_text, dict(one.log_record.attributes or {}))
            for one in self._records.get_finished_logs()
        ]

    @property
    def records(self) -> list[Any]:
        """Every log record as the SDK exports it."""
        return list(self._records.get_finished_logs())

    # --- metrics ------------------------------------------------------------------------------------------------------

    def collect(self) -> dict[str, Any]:
        """Metric by name, from our scope only."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            if scope.scope.name == "otel_breaker"
            for metric in scope.metrics
        }

    def series(self, name: str) -> Series:
        """Value by attribute values, in the order of the attributes' names."""
        return series(self.collect()[name])


def series(metric: Any) -> Series:
    """Value by attribute values, in the order of the attributes' names."""
    return {
        tuple(str(point.attributes[key]) for key in sorted(point.attributes)): point.value
        for point in metric.data.data_points
    }


def plain(span: ReadableSpan) -> dict[str, Any]:
    """A span as a dict that two runs have in common."""
    return {
        "name": span.name,
        "kind": span.kind.name,
        "root": span.parent is None,
        "status": span.status.status_code.name,
        "attributes": dict(span.attributes or {}),
        "events": [(event.name, dict(event.attributes or {})) for event in span.events],
    }
