"""Names are a contract: this is the table of the documentation, once more, by hand."""

from __future__ import annotations

import re

from opentelemetry.sdk.metrics.export import Gauge, Histogram, Sum

from otel_breaker import Circuit, __version__
from otel_breaker.core.policy import Policy
from otel_breaker.telemetry import emit, names
from tests.telemetry.signals import Signals

COUNTER, UP_DOWN, GAUGE, HISTOGRAM = "counter", "up-down counter", "gauge", "histogram"

TABLE = {
    "otel_breaker.admissions": (COUNTER, "{call}", {"otel_breaker.name", "otel_breaker.decision"}),
    "otel_breaker.outcomes": (COUNTER, "{call}", {"otel_breaker.name", "otel_breaker.outcome"}),
    "otel_breaker.failures": (COUNTER, "{failure}", {"otel_breaker.name", "error.type"}),
    "otel_breaker.transitions": (
        COUNTER,
        "{transition}",
        {"otel_breaker.name", "otel_breaker.previous_state", "otel_breaker.state"},
    ),
    "otel_breaker.status": (UP_DOWN, "1", {"otel_breaker.name", "otel_breaker.state"}),
    "otel_breaker.cooldowns_elapsed": (GAUGE, "{cooldown}", {"otel_breaker.name"}),
    "otel_breaker.awaiting_probe": (UP_DOWN, "{circuit}", {"otel_breaker.name"}),
    "otel_breaker.cooldown.remaining": (GAUGE, "s", {"otel_breaker.name"}),
    "otel_breaker.open.elapsed": (GAUGE, "s", {"otel_breaker.name"}),
    "otel_breaker.open.duration": (HISTOGRAM, "s", {"otel_breaker.name"}),
    "otel_breaker.time_saved": (COUNTER, "s", {"otel_breaker.name"}),
    "otel_breaker.tools": (UP_DOWN, "{tool}", {"otel_breaker.name", "gen_ai.tool.name"}),
    "otel_breaker.credentials.revoked": (COUNTER, "{credential}", {"otel_breaker.name"}),
    "otel_breaker.credentials.paused": (UP_DOWN, "{credential}", {"otel_breaker.name"}),
    "otel_breaker.credentials.throttled": (UP_DOWN, "{credential}", {"otel_breaker.name"}),
    "otel_breaker.circuits": (UP_DOWN, "{circuit}", set()),
    "otel_breaker.store.errors": (COUNTER, "{error}", set()),
}


def kind_of(data: object) -> str:
    if isinstance(data, Sum):
        return COUNTER if data.is_monotonic else UP_DOWN
    return {Gauge: GAUGE, Histogram: HISTOGRAM}[type(data)]


def test_every_metric_has_its_instrument_unit_and_attributes(signals: Signals) -> None:
    circuit = Circuit("api.test", Policy(failure_threshold=1))
    circuit.stats.used_by("refund")
    circuit.acquire().failure("timeout")
    emit.on_episode_over(circuit, 30.0)

    found = {
        name: (kind_of(metric.data), metric.unit, {key for p in metric.data.data_points for key in p.attributes})
        for name, metric in signals.collect().items()
    }

    assert found == TABLE


def test_scope_carries_the_package_version(signals: Signals) -> None:
    Circuit("api.test")

    data = signals.reader.get_metrics_data()

    assert data is not None
    (scope,) = [scope.scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    assert (scope.name, scope.version, scope.schema_url or "") == ("otel_breaker", __version__, "")


def test_instruments_describe_themselves(signals: Signals) -> None:
    Circuit("api.test")

    assert all(metric.description.endswith(".") for metric in signals.collect().values())


def test_the_six_events() -> None:
    assert {
        names.CALL_ADMITTED,
        names.CALL_REJECTED,
        names.PROBE_STARTED,
        names.PROBE_FINISHED,
        names.STATE_CHANGED,
        names.CREDENTIAL_REVOKED,
    } == {
        "otel_breaker.call.admitted",
        "otel_breaker.call.rejected",
        "otel_breaker.probe.started",
        "otel_breaker.probe.finished",
        "otel_breaker.state.changed",
        "otel_breaker.credential.revoked",
    }


def test_no_name_breaks_the_naming_rules() -> None:
    """Lower case, dots and snake case, no unit or ``_total`` in a name."""
    every = [value for value in vars(names).values() if isinstance(value, str) and "." in value]
    every = [one for one in every if one.startswith(("otel_breaker.", "error.", "gen_ai.", "server."))] + list(TABLE)

    assert every
    for name in every:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*(\.[a-z]+(_[a-z]+)*)+", name), name
        assert not name.endswith(("_total", "_seconds")), name
