"""What the OpenTelemetry variables ask for, built as providers of ours. Loaded only where they ask for something."""

from __future__ import annotations

import atexit
import math
import uuid
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final
from urllib.parse import urlsplit

from otel_breaker import _log

from .identity import ID
from .wanted import Signal, variable

INTERVAL: Final = 15.0
"""Seconds between two exports of metrics; a page must not wait for the SDK's 60."""


def from_file() -> bool:
    """Whether a declarative configuration decides; the SDK's own threads then do the work, also after a fork."""
    return bool(variable("OTEL_CONFIG_FILE"))


def interval() -> float:
    """Seconds between two exports of metrics; without end where the file's own reader does that."""
    if from_file():
        return math.inf
    try:
        chosen = float(variable("OTEL_METRIC_EXPORT_INTERVAL")) / 1000
    except ValueError:
        return INTERVAL
    return chosen if 0 < chosen < math.inf else INTERVAL


def build(signals: list[Signal], fresh_id: bool) -> dict[Signal, Any]:
    """Providers for ``signals``; one that cannot be built is left out and reported once.

    Args:
        signals: what is wanted and has no global provider.
        fresh_id: this is a worker, whose series must not be taken for its parent's.
    """
    from opentelemetry.sdk.resources import Resource

    own_id = Resource({ID: str(uuid.uuid4())})
    resource = Resource.create()
    if fresh_id or ID not in resource.attributes:
        resource = resource.merge(own_id)
    built: dict[Signal, Any] = {}
    for signal in signals:
        try:
            provider = _described(signal, own_id) if from_file() else _BUILDERS[signal](_exporters(signal), resource)
        except Exception as error:  # the program goes on without this signal
            _log.fault(("exporter", signal), f"{signal} of the circuit breakers cannot be exported", error)
            continue
        if provider is not None:
            built[signal] = provider
    return built


# --- by environment variables -----------------------------------------------------------------------------------------


def _exporters(signal: Signal) -> list[Any]:
    chosen = [name.strip() for name in (variable(f"OTEL_{signal.upper()}_EXPORTER") or "otlp").split(",")]
    made = []
    for name in chosen:
        entry = f"otlp_proto_{_protocol(signal)}" if name == "otlp" else name
        found = tuple(entry_points(group=f"opentelemetry_{signal}_exporter", name=entry))
        if not found:
            _log.once(("exporter", signal, entry), "no %s exporter named %r is installed", signal, entry)
            continue
        kind = found[0].load()
        if hasattr(kind, "collect"):  # a reader that serves a port: the program's own provider will want that port
            _log.once(("exporter", signal, entry), "%s needs the program's own meter provider", entry)
            continue
        made.append(kind())
    return made


def _protocol(signal: Signal) -> str:
    """``http`` or ``grpc``: as told, else as the port says, else as the SDK would choose."""
    told = variable(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or variable("OTEL_EXPORTER_OTLP_PROTOCOL")
    if told:
        return "grpc" if told == "grpc" else "http"
    endpoint = variable(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT") or variable("OTEL_EXPORTER_OTLP_ENDPOINT")
    try:
        port = urlsplit(endpoint).port
    except ValueError:
        port = None
    if port == 4318 or not entry_points(group=f"opentelemetry_{signal}_exporter", name="otlp_proto_grpc"):
        return "http"
    return "grpc"


def _traces(exporters: list[Any], resource: Any) -> Any:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if not exporters:
        return None
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _metrics(exporters: list[Any], resource: Any) -> Any:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    if not exporters:
        return None
    # No thread of the reader's own: ours asks it, so that a fork leaves no second reporter behind.
    readers = [PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf) for exporter in exporters]
    return MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)


def _logs(exporters: list[Any], resource: Any) -> Any:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    if not exporters:
        return None
    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    return provider


_BUILDERS: Final[dict[Signal, Callable[[list[Any], Any], Any]]] = {
    "traces": _traces, "metrics": _metrics, "logs": _logs,
}  # fmt: skip

# --- by declarative configuration -------------------------------------------------------------------------------------


def _described(signal: Signal, own_id: Any) -> Any:
    """The provider that the file describes. Its section may be missing: then there is none."""
    try:
        from importlib import import_module

        configuration = import_module("opentelemetry.configuration")
        resources = import_module("opentelemetry.configuration._resource")
        kind = {"traces": "tracer", "metrics": "meter", "logs": "logger"}[signal]
        module = import_module(f"opentelemetry.configuration._{kind}_provider")
    except ImportError:
        _log.once("configuration", "OTEL_CONFIG_FILE is set but opentelemetry-configuration is not installed")
        return None
    model = configuration.load_config_file(variable("OTEL_CONFIG_FILE"))
    section = getattr(model, f"{kind}_provider")
    if model.disabled or section is None:
        return None
    resource = own_id.merge(resources.create_resource(model.resource))
    provider = getattr(module, f"create_{kind}_provider")(section, resource)
    atexit.unregister(provider.shutdown)  # it waits for the exporter; ours are flushed within a bound of our own
    return provider
