"""The OTLP/HTTP receiver of `otel-breaker demo`: what really left the exporter, decoded."""

from otel_breaker.cli.demo.receiver import Receiver
from otel_breaker.cli.demo.signals import Log, Point, Scope, Span, SpanEvent

__all__ = ["Log", "Point", "Receiver", "Scope", "Span", "SpanEvent"]
