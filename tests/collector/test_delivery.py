"""What arrives behind the real Collector: whole, in running totals, labelled, scrubbed, after everybody's restart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otel_breaker.telemetry import names
from tests.collector.exported import agent, resource
from tests.support import stack
from tests.support.otlp import Receiver

ROUND = {
    'otel_breaker_transitions_total{otel_breaker_previous_state="closed",otel_breaker_state="open"}': 1,
    'otel_breaker_transitions_total{otel_breaker_previous_state="half_open",otel_breaker_state="closed"}': 1,
    'otel_breaker_admissions_total{otel_breaker_decision="admitted"}': 5,
    'otel_breaker_admissions_total{otel_breaker_decision="probe"}': 1,
    'otel_breaker_admissions_total{otel_breaker_decision="circuit_open"}': 1,
    'otel_breaker_failures_total{error_type="timeout"}': 5,
    "otel_breaker_open_duration_seconds_count": 1,
    "otel_breaker_open_duration_seconds_sum": 31,
}
"""What one round of the agent adds."""

NO_METRICS = {"OTEL_METRICS_EXPORTER": "none"}
"""For tests without a Prometheus: until it gives up, the exporter to one that is away holds the Collector's end up."""


@pytest.fixture(autouse=True)
def _tools() -> None:
    stack.need(stack.COLLECTOR, stack.PROMETHEUS)


@pytest.fixture
def backend() -> Iterator[Receiver]:
    """Where the Collector sends traces and logs."""
    with Receiver() as receiver:
        yield receiver


def totals(prometheus: stack.Prometheus) -> dict[str, float]:
    return {query: sum(sample.value for sample in prometheus.query(query)) for query in ROUND}


def times(rounds: int) -> dict[str, float]:
    return {query: rounds * value for query, value in ROUND.items()}


# --- metrics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_totals_are_exact_whatever_the_program_exports(temporality: str, protocol: str, tmp_path: Path) -> None:
    with (
        stack.Prometheus(tmp_path, rules=False) as prometheus,
        stack.Collector(tmp_path, prometheus.write_url) as collector,
    ):
        endpoint = collector.grpc_endpoint if protocol == "grpc" else collector.endpoint
        variables = collector.environment(
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=temporality,
        )
        agent(variables, rounds=3)

        assert stack.wait_until(lambda: totals(prometheus) == times(3)), totals(prometheus)


def test_without_that_processor_deltas_would_be_lost(tmp_path: Path) -> None:
    processors = {"service": {"pipelines": {"metrics": {"processors": ["memory_limiter", "transform/labels"]}}}}
    with (
        stack.Prometheus(tmp_path, rules=False) as prometheus,
        stack.Collector(tmp_path, prometheus.write_url, more=processors) as collector,
    ):
        agent(collector.environment(OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE="delta"), rounds=3)

        assert stack.wait_until(lambda: prometheus.query("otel_breaker_status"))
        assert prometheus.query("otel_breaker_admissions_total") == []


@pytest.mark.parametrize(
    ("attributes", "labels"),
    [
        (resource(), ("planner", "shop", "planner-1", "production")),
        ("service.name=a,service.instance.id=1,deployment.environment=staging", ("a", None, "1", "staging")),
        (
            "service.name=a,service.instance.id=1,deployment.environment=old,deployment.environment.name=new",
            ("a", None, "1", "new"),
        ),
        ("service.name=a,service.instance.id=1", ("a", None, "1", None)),
    ],
)
def test_service_and_environment_are_labels(attributes: str, labels: tuple[str | None, ...], tmp_path: Path) -> None:
    with (
        stack.Prometheus(tmp_path, rules=False) as prometheus,
        stack.Collector(tmp_path, prometheus.write_url) as collector,
    ):
        agent(collector.environment(OTEL_RESOURCE_ATTRIBUTES=attributes))
        assert stack.wait_until(lambda: prometheus.series("otel_breaker_status"))

        keys = ("service_name", "service_namespace", "service_instance_id", "deployment_environment_name")
        assert {tuple(one.get(key) for key in keys) for one in prometheus.series('{__name__=~"otel_breaker_.+"}')} == {
            labels
        }


def test_metrics_wait_for_prometheus(tmp_path: Path) -> None:
    with (
        stack.Prometheus(tmp_path, rules=False) as prometheus,
        stack.Collector(tmp_path, prometheus.write_url) as collector,
    ):
        prometheus.stop()
        agent(collector.environment(), rounds=2)
        prometheus.start()

        assert stack.wait_until(lambda: totals(prometheus) == times(2)), totals(prometheus)


def test_a_batch_that_comes_late_is_taken(tmp_path: Path) -> None:
    """The out-of-order window: what was retried arrives behind newer samples, and is not refused."""
    with (
        stack.Prometheus(tmp_path, rules=False) as prometheus,
        stack.Collector(tmp_path, prometheus.write_url, name="first") as first,
        stack.Collector(tmp_path, prometheus.write_url, name="second") as second,
    ):
        prometheus.stop()
        agent(first.environment(OTEL_RESOURCE_ATTRIBUTES=resource()), rounds=1)
        first_process, first.process = first.process, None
        assert first_process is not None
        first_process.send_signal(19)  # stopped before Prometheus is back
        prometheus.start()
        agent(second.environment(OTEL_RESOURCE_ATTRIBUTES=resource()), rounds=2)
        assert stack.wait_until(lambda: totals(prometheus) == times(2))
        first_process.send_signal(18)
        first.process = first_process

        query = 'count_over_time(otel_breaker_cooldowns_elapsed{service_name="planner"}[5m])'
        assert stack.wait_until(lambda: [one.value for one in prometheus.query(query)] == [5]), prometheus.query(query)
        assert totals(prometheus) == times(2)
        assert "Permanent error" not in first.log.read_text()


def test_the_collector_tells_about_itself(tmp_path: Path) -> None:
    with stack.Stack(tmp_path) as whole:
        agent(whole.environment())
        accepted = 'otelcol_receiver_accepted_metric_points{job="otelcol"}'

        assert stack.wait_until(lambda: [s for s in whole.prometheus.query(accepted) if s.value > 0])
        assert whole.prometheus.query("up") == [stack.Sample(whole.prometheus.query("up")[0].labels, 1)]


# --- traces and logs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_traces_and_logs_outlive_the_collector(end: str, tmp_path: Path, backend: Receiver) -> None:
    backend.down()
    collector = stack.Collector(tmp_path, onward=backend.endpoint)
    with collector:
        agent(collector.environment(OTEL_SERVICE_NAME="planner", **NO_METRICS), rounds=2)
        agent(collector.environment(OTEL_SERVICE_NAME="worker", **NO_METRICS), rounds=1)
        getattr(collector, end)()
        assert (backend.spans, backend.logs) == ([], [])
        backend.up()
        collector.start()

        # Of a round: five failures, one refusal, one probe; opened, refused, half open, closed.
        assert backend.wait_for(lambda: len(backend.spans) >= 21 and len(backend.logs) >= 12)

    assert len({span.span_id for span in backend.spans}) == len(backend.spans) == 21
    assert len(backend.logs) == 12
    assert {span.resource["service.name"] for span in backend.spans} == {"planner", "worker"}


SECRET = "sk-live-0123456789abcdef"


def test_B_planted_secrets_do_not_pass(tmp_path: Path, backend: Receiver) -> None:
    planted: dict[str, Any] = {
        "otel_breaker.name": "api.vendor.test",
        "otel_breaker.state": "open",
        "gen_ai.tool.name": f"Bearer {SECRET}",
        "error.type": "x" * 1000,
        "authorization": f"Bearer {SECRET}",
        "gen_ai.tool.call.arguments": f'{{"key": "{SECRET}"}}',
        "otel_breaker.arguments": SECRET,
    }
    with (
        stack.Prometheus(tmp_path, rules=False) as prometheus,
        stack.Collector(tmp_path, prometheus.write_url, backend.endpoint) as collector,
    ):
        where = Resource.create({"service.name": "leaky"})
        spans, logs = TracerProvider(resource=where), LoggerProvider(resource=where)
        spans.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.endpoint}/v1/traces")))
        logs.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(f"{collector.endpoint}/v1/logs")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{collector.endpoint}/v1/metrics"))
        meters = MeterProvider([reader], where)

        with spans.get_tracer("app").start_as_current_span("chat", attributes={"of.the": "app"}) as span:
            span.add_event(names.STATE_CHANGED, planted)
            span.add_event("the.app", {"its": "own"})
        logs.get_logger("otel_breaker").emit(LogRecord(event_name=names.STATE_CHANGED, attributes=planted))
        logs.get_logger("app").emit(LogRecord(event_name="the.app", body="its own", attributes={"its": "own"}))
        meters.get_meter("otel_breaker").create_gauge("otel_breaker.cooldowns_elapsed").set(1, planted)
        meters.get_meter("app").create_gauge("app.load").set(1, {"its": "own"})
        for provider in (meters, spans, logs):
            provider.shutdown()
        assert backend.wait_for(lambda: backend.spans and len(backend.logs) == 2)
        assert stack.wait_until(lambda: len(prometheus.series('{service_name="leaky"}')) == 1)
        assert stack.wait_until(lambda: prometheus.series("app_load"))
        series = prometheus.series('{__name__=~".+"}')

    kept = {
        "otel_breaker.name": "api.vendor.test",
        "otel_breaker.state": "open",
        "gen_ai.tool.name": "Bearer ****",
        "error.type": "x" * 256,
    }
    (seen,) = backend.spans
    assert [(event.name, event.attributes) for event in seen.events] == [
        (names.STATE_CHANGED, kept),
        ("the.app", {"its": "own"}),
    ]
    assert seen.attributes == {"of.the": "app"}
    assert {log.event_name: log.attributes for log in backend.logs} == {
        names.STATE_CHANGED: kept,
        "the.app": {"its": "own"},
    }
    assert SECRET.encode() not in backend.raw
    assert SECRET not in repr(series)
    (ours,) = [one for one in series if one["__name__"] == "otel_breaker_cooldowns_elapsed"]
    assert {key for key in ours if "otel_scope" not in key} == {
        "__name__", "instance", "job", "service_name", "service_instance_id",
        "error_type", "gen_ai_tool_name", "otel_breaker_name", "otel_breaker_state",
    }  # fmt: skip


def test_what_the_library_writes_passes_whole(tmp_path: Path, backend: Receiver) -> None:
    """Sent there directly and through the Collector: the same events with the same attributes."""
    with Receiver() as direct, stack.Collector(tmp_path, onward=backend.endpoint) as collector:
        agent(direct.environment(**NO_METRICS), rounds=2)
        agent(collector.environment(**NO_METRICS), rounds=2)
        assert backend.wait_for(lambda: len(backend.spans) >= 14 and len(backend.logs) >= 8)

    def said(receiver: Receiver) -> list[Any]:
        events = [event for span in receiver.spans for event in span.events]
        found = [(event.name, event.attributes) for event in events]
        found += [(log.event_name, {**log.attributes, "body": log.body}) for log in receiver.logs]
        return sorted(found, key=repr)

    assert said(backend) == said(direct)
    assert len(said(direct)) > 20


# --- fragments --------------------------------------------------------------------------------------------------------


def test_tail_sampling_keeps_what_a_breaker_did(tmp_path: Path, backend: Receiver) -> None:
    """Nothing else: admissions alone are no reason."""
    with stack.Collector(
        tmp_path,
        onward=backend.endpoint,
        fragments=["tail-sampling"],
        more={"processors": {"tail_sampling": {"decision_wait": "1s"}}},
        variables={"TRACES_PERCENT": "0"},
    ) as collector:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.endpoint}/v1/traces")))
        tracer = provider.get_tracer("app")
        for event in (
            names.CALL_ADMITTED,
            names.CALL_REJECTED,
            names.PROBE_STARTED,
            names.STATE_CHANGED,
            "other",
            None,
        ):
            with tracer.start_as_current_span(f"chat {event}"), tracer.start_as_current_span("tool") as span:
                if event is not None:
                    span.add_event(event, {names.NAME: "api.vendor.test"})
        provider.shutdown()
        assert backend.wait_for(lambda: len(backend.spans) >= 6)
        assert stack.wait_until(
            lambda: collector.own_metrics_of("otelcol_processor_tail_sampling_count_traces_sampled")
        )

    assert sorted(span.name for span in backend.spans if span.name != "tool") == [
        f"chat {names.CALL_REJECTED}", f"chat {names.PROBE_STARTED}", f"chat {names.STATE_CHANGED}",
    ]  # fmt: skip


def test_traces_alone_are_counted_under_names_of_their_own(tmp_path: Path) -> None:
    with (
        stack.Prometheus(tmp_path, rules=False) as prometheus,
        stack.Collector(tmp_path, prometheus.write_url, fragments=["traces-only"]) as collector,
    ):
        only_traces = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
        agent(collector.environment(OTEL_RESOURCE_ATTRIBUTES=resource(), **only_traces), rounds=3)

        def counted() -> dict[tuple[str | None, ...], float]:
            keys = ("__name__", "otel_breaker_previous_state", "otel_breaker_state", "otel_breaker_decision")
            found = prometheus.query('{__name__=~"otel_breaker_.*",otel_breaker_name="api.vendor.test"}')
            return {tuple(sample.labels.get(key) for key in keys): sample.value for sample in found}

        transitions, rejections = "otel_breaker_event_transitions_total", "otel_breaker_event_rejections_total"
        expected = {
            (transitions, "closed", "open", None): 3,
            (transitions, "open", "half_open", None): 3,
            (transitions, "half_open", "closed", None): 3,
            (rejections, None, None, "circuit_open"): 3,
        }
        assert stack.wait_until(lambda: counted() == expected), counted()
        (labels,) = {(s["service_name"], s["deployment_environment_name"]) for s in prometheus.series(transitions)}
        assert labels == ("planner", "production")


def test_metrics_over_otlp_have_the_same_labels_and_outlive_the_collector(tmp_path: Path, backend: Receiver) -> None:
    """As far as the wire: Prometheus 3 itself is not run here."""
    backend.down()
    collector = stack.Collector(
        tmp_path, fragments=["prometheus3-otlp"], variables={"PROMETHEUS_OTLP_URL": f"{backend.endpoint}/v1/metrics"}
    )
    with collector:
        agent(collector.environment(OTEL_RESOURCE_ATTRIBUTES=resource()), rounds=2)
        collector.kill()
        backend.up()
        collector.start()

        def probes() -> list[float]:
            return sorted(point.value for point in backend.points if point.attributes.get(names.DECISION) == "probe")

        # One export after each round and one at the end. What was being sent when it was killed is sent last.
        assert backend.wait_for(lambda: probes() == [1, 2, 2], 30), probes()

    (point,) = backend.series("otel_breaker.cooldowns_elapsed")
    assert point.attributes == {
        "otel_breaker.name": "api.vendor.test",
        "service.name": "planner",
        "service.namespace": "shop",
        "service.instance.id": "planner-1",
        "deployment.environment.name": "production",
    }


def test_the_direct_route_sends_failed_probes_and_nothing_else(tmp_path: Path, backend: Receiver) -> None:
    """With another exporter in place of the one that is not to be had here."""
    import yaml

    fragment = yaml.safe_load((stack.CONFIG / "fragments/alertmanager-direct.yaml").read_text())
    labels = fragment["exporters"].pop("alertmanager")["event_labels"]
    fragment["service"]["pipelines"]["logs/alerts"]["exporters"] = ["otlp_http/logs"]
    fragment["service"]["pipelines"]["logs"] = {
        "receivers": ["otlp"], "processors": ["memory_limiter"], "exporters": ["debug"],
    }  # fmt: skip
    fragment["exporters"] = {"debug": {}}
    with stack.Collector(tmp_path, onward=backend.endpoint, more=fragment) as collector:
        agent(collector.environment(OTEL_RESOURCE_ATTRIBUTES=resource(), STAY_OPEN="1", **NO_METRICS), rounds=2)
        assert backend.wait_for(lambda: backend.logs)
        assert backend.wait_for(lambda: len(backend.spans) >= 14)

    (notice,) = backend.logs
    assert notice.attributes == {
        "alertname": "OtelBreakerProbeFailed",
        "severity": "info",
        "summary": "A probe failed, the circuit breaker stays open.",
        "reason": "timeout",
        "otel_breaker_name": "api.vendor.test",
        "service_name": "planner",
        "service_namespace": "shop",
        "deployment_environment_name": "production",
    }
    assert set(labels) < set(notice.attributes)
    assert all(re.fullmatch(r"[a-z_]+", key) for key in notice.attributes)


def test_debug_shows_breaker_events_and_nothing_else(tmp_path: Path) -> None:
    with stack.Collector(tmp_path, fragments=["debug"]) as collector:
        agent(collector.environment())
        assert stack.wait_until(lambda: "EventName: otel_breaker.state.changed" in collector.log.read_text())
        assert stack.wait_until(lambda: "Name: otel_breaker.cooldowns_elapsed" in collector.log.read_text())
        collector.kill()


# --- the whole --------------------------------------------------------------------------------------------------------


def test_a_page_opens_and_resolves(tmp_path: Path) -> None:
    with stack.Stack(tmp_path) as whole:
        agent(whole.environment(OTEL_RESOURCE_ATTRIBUTES=resource(), STAY_OPEN="1"), rounds=1)
        assert whole.pager.wait_for(lambda: whole.pager.opened, 60)
        agent(whole.environment(OTEL_RESOURCE_ATTRIBUTES=resource()), rounds=1)
        assert whole.pager.wait_for(lambda: not whole.pager.opened, 60)

    (incident,) = whole.pager.incidents
    assert incident.first.payload["severity"] == "critical"
    assert incident.first.payload["component"] == "api.vendor.test"
    assert (whole.pager.refused, whole.pager.strays) == ([], [])
