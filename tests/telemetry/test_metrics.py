"""Numbers: born at 0, equal to the circuit's true state, never falling, bounded, and readable whatever breaks."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_breaker
from otel_breaker import Circuit, CircuitOpenError, Policy, _guard, registry
from otel_breaker._frames import Site
from otel_breaker._registry import Registry, swap
from otel_breaker.core.clock import ManualClock
from otel_breaker.outcomes import OK, THROTTLED, UNAUTHORIZED, Outcome
from otel_breaker.stats import BORN
from otel_breaker.telemetry import metrics
from tests.support.circuits import trip
from tests.telemetry.signals import Series, Signals, series

STATES = ("closed", "open", "half_open", "forced_open", "disabled")
CLIENT = Site("test")


def refused(circuit: Circuit) -> CircuitOpenError:
    with pytest.raises(CircuitOpenError) as caught:
        circuit.acquire()
    return caught.value


def of(signals: Signals, name: str) -> Series:
    return signals.series(f"otel_breaker.{name}")


# --- from the start ---------------------------------------------------------------------------------------------------


def test_every_series_of_a_name_is_at_zero_from_registration_B83(signals: Signals) -> None:
    registry().client("api.test")

    found = signals.collect()

    assert {name: series(metric) for name, metric in found.items()} == {
        "otel_breaker.admissions": {
            (decision, "api.test"): 0
            for decision in (
                "admitted", "probe", "circuit_open", "probe_in_flight", "forced_open", "credential_paused",
                "throttled", "would_reject",
            )
        },
        "otel_breaker.outcomes": {
            ("api.test", outcome): 0
            for outcome in ("success", "failure", "neutral", "throttled", "unauthorized", "cancelled", "late")
        },
        "otel_breaker.transitions": {
            ("api.test", "closed", "open"): 0,
            ("api.test", "open", "half_open"): 0,
            ("api.test", "half_open", "closed"): 0,
            ("api.test", "half_open", "open"): 0,
        },
        "otel_breaker.status": {("api.test", state): int(state == "closed") for state in STATES},
        "otel_breaker.cooldowns_elapsed": {("api.test",): 0},
        "otel_breaker.awaiting_probe": {("api.test",): 0},
        "otel_breaker.cooldown.remaining": {("api.test",): 0},
        "otel_breaker.open.elapsed": {("api.test",): 0},
        "otel_breaker.time_saved": {("api.test",): 0},
        "otel_breaker.credentials.revoked": {("api.test",): 0},
        "otel_breaker.credentials.paused": {("api.test",): 0},
        "otel_breaker.credentials.throttled": {("api.test",): 0},
        "otel_breaker.circuits": {(): 1},
        "otel_breaker.store.errors": {(): 0},
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["guard", "by hand"])
def test_at_the_first_admit_every_event_is_there_at_zero_B83(signals: Signals, kind: str) -> None:
    """A counter that is born at 1 shows no increase: the first refusal or transition would page nobody."""
    first = otel_breaker.guard(tool="t")(str) if kind == "guard" else lambda: Circuit("t").call(str)
    first()
    found = {name: series(metric) for name, metric in signals.collect().items()}
    not_zero = {
        (name, key): value
        for name in ("admissions", "outcomes", "transitions", "time_saved", "credentials.revoked")
        for key, value in found[f"otel_breaker.{name}"].items()
        if value
    }
    assert not_zero == {("admissions", ("admitted", "t")): 1, ("outcomes", ("t", "success")): 1}
    assert len(found["otel_breaker.admissions"]) == 8
    assert len(found["otel_breaker.transitions"]) == 4


def test_nothing_is_reported_before_there_is_a_circuit(signals: Signals) -> None:
    assert {name: series(metric) for name, metric in signals.collect().items()} == {
        "otel_breaker.circuits": {(): 0},
        "otel_breaker.store.errors": {(): 0},
    }


# --- through an episode -----------------------------------------------------------------------------------------------


def test_status_and_transitions_equal_the_state_at_every_step_B81(signals: Signals, clock: ManualClock) -> None:
    circuit = Circuit("api.test", Policy(failure_threshold=1, cooldown=60))
    moves = dict.fromkeys(BORN, 0)

    def expect(state: str, *moved: tuple[str, str]) -> None:
        for pair in moved:
            moves[pair] += 1
        assert circuit.snapshot().state == state
        assert of(signals, "status") == {("api.test", one): int(one == state) for one in STATES}
        assert of(signals, "transitions") == {("api.test", *pair): count for pair, count in moves.items()}

    expect("closed")
    circuit.acquire().failure("timeout")
    expect("open", ("closed", "open"))
    clock.advance(60)
    probe = circuit.acquire()
    expect("half_open", ("open", "half_open"))
    probe.failure("timeout")
    expect("open", ("half_open", "open"))
    clock.advance(120)
    probe = circuit.acquire()
    expect("half_open", ("open", "half_open"))
    probe.success()
    expect("closed", ("half_open", "closed"))


def test_gauges_follow_an_idle_open_circuit(signals: Signals, clock: ManualClock) -> None:
    circuit = Circuit("api.test", Policy(failure_threshold=1, cooldown=30))
    circuit.acquire().failure("timeout")
    names = ("cooldown.remaining", "open.elapsed", "cooldowns_elapsed", "awaiting_probe")
    seen = []
    for step in (0, 10, 20, 60):
        clock.advance(step)
        seen.append([of(signals, name)["api.test",] for name in names])

    assert seen == [[30, 0, 0, 0], [20, 10, 0, 0], [0, 30, 1, 1], [0, 90, 2, 1]]

    circuit.reset()
    assert [of(signals, name)["api.test",] for name in names] == [0, 0, 0, 0]


def test_calls_are_counted_by_decision_outcome_and_reason(signals: Signals, clock: ManualClock) -> None:
    circuit = Circuit("api.test", Policy(failure_threshold=2, cooldown=30))
    circuit.acquire().success()
    for reason in ("timeout", "server_error"):
        permit = circuit.acquire()
        clock.advance(4)
        permit.failure(reason)
    for _ in range(3):
        refused(circuit)
    clock.advance(30)
    probe = circuit.acquire()
    refused(circuit)
    probe.neutral()
    circuit.force_open("maintenance")
    refused(circuit)

    admissions = {key[0]: value for key, value in of(signals, "admissions").items() if value}
    outcomes = {key[1]: value for key, value in of(signals, "outcomes").items() if value}
    assert admissions == {"admitted": 3, "circuit_open": 3, "probe": 1, "probe_in_flight": 1, "forced_open": 1}
    assert outcomes == {"success": 1, "failure": 2, "neutral": 1}
    assert of(signals, "failures") == {("timeout", "api.test"): 1, ("server_error", "api.test"): 1}
    assert of(signals, "time_saved") == {("api.test",): pytest.approx(5 * 4)}


def test_length_of_a_finished_episode(signals: Signals, clock: ManualClock) -> None:
    circuit = Circuit("api.test", Policy(failure_threshold=1, cooldown=30))
    circuit.acquire().failure("timeout")
    clock.advance(45)
    circuit.acquire().success()

    (point,) = signals.collect()["otel_breaker.open.duration"].data.data_points
    assert (dict(point.attributes), point.count, point.sum) == ({"otel_breaker.name": "api.test"}, 1, 45)
    assert {30.0, 60.0, 300.0, 900.0} <= set(point.explicit_bounds)


def test_several_circuits_of_one_name_are_added_up(signals: Signals, clock: ManualClock) -> None:
    policy = Policy(failure_threshold=1, cooldown=30)
    first, second, third = (Circuit("api.test", policy) for _ in range(3))
    first.acquire().failure("timeout")
    clock.advance(20)
    second.acquire().failure("timeout")

    assert third.snapshot().state == "closed"
    assert of(signals, "status") == {("api.test", state): {"open": 2, "closed": 1}.get(state, 0) for state in STATES}
    assert of(signals, "open.elapsed") == {("api.test",): 20}
    assert of(signals, "cooldown.remaining") == {("api.test",): 30}
    assert of(signals, "circuits") == {(): 3}


def test_tools_seen_on_a_name(signals: Signals) -> None:
    circuit = registry().client("api.test")
    for tool in ("refund", "charge"):
        _guard.call(Site("", layer="tool", tool=tool), circuit, dict, (), {})

    assert of(signals, "tools") == {("refund", "api.test"): 1, ("charge", "api.test"): 1}


# --- credentials ------------------------------------------------------------------------------------------------------


def answer(circuit: Circuit, outcome: Outcome, credential: str) -> None:
    _guard.call(Site("test", judge=lambda frame, result: result), circuit, lambda: outcome, (), {}, credential)


def test_a_throttled_credential_shows_in_its_own_metric_only(signals: Signals, clock: ManualClock) -> None:
    circuit = registry().client("api.test")
    for _ in range(3):
        answer(circuit, Outcome(THROTTLED, "throttled", 120.0), "tenant-a")
    with pytest.raises(CircuitOpenError):
        answer(circuit, OK, "tenant-a")
    answer(circuit, OK, "tenant-b")

    assert of(signals, "credentials.throttled") == {("api.test",): 1}
    assert of(signals, "credentials.paused") == {("api.test",): 0}
    assert of(signals, "status")["api.test", "closed"] == 1
    assert of(signals, "cooldowns_elapsed") == {("api.test",): 0}
    assert sum(of(signals, "transitions").values()) == 0
    assert of(signals, "admissions")["throttled", "api.test"] == 1
    assert of(signals, "circuits") == {(): 1}

    clock.advance(120)
    assert of(signals, "credentials.throttled") == {("api.test",): 0}


def test_a_revoked_credential_is_counted_and_paused(signals: Signals, clock: ManualClock) -> None:
    circuit = registry().client("api.test")
    answer(circuit, OK, "tenant-a")
    answer(circuit, Outcome(UNAUTHORIZED), "tenant-a")

    assert of(signals, "credentials.revoked") == {("api.test",): 1}
    assert of(signals, "credentials.paused") == {("api.test",): 1}
    assert of(signals, "credentials.throttled") == {("api.test",): 0}
    assert of(signals, "open.elapsed") == {("api.test",): 0}

    clock.advance(circuit.policy.pause)
    assert of(signals, "credentials.paused") == {("api.test",): 0}
    assert of(signals, "credentials.revoked") == {("api.test",): 1}


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_names_beyond_the_cap_share_one_series(signals: Signals) -> None:
    circuits = [Circuit(f"host-{number}.test") for number in range(500)]
    for circuit in circuits:
        circuit.acquire().success()

    admitted = {key[1]: value for key, value in of(signals, "admissions").items() if key[0] == "admitted"}
    assert len(admitted) == 201
    assert admitted["_other"] == 300
    assert sum(admitted.values()) == 500
    assert of(signals, "status")["_other", "closed"] == 300


def test_every_number_of_a_name_beyond_the_cap_is_counted_once_under_other_B74(
    signals: Signals, clock: ManualClock
) -> None:
    names = 5
    old = swap(Registry(clock=clock, max_names=2))
    try:
        circuits = [Circuit(f"host-{number}.test", Policy(failure_threshold=1)) for number in range(names)]
        for number, circuit in enumerate(circuits):
            circuit.acquire().success()
            circuit.acquire().failure("timeout" if number % 2 else "dns_error")
            refused(circuit)
        clock.advance(90)
        for circuit in circuits[3:]:
            circuit.acquire().success()
        elapsed, awaiting = of(signals, "cooldowns_elapsed"), of(signals, "awaiting_probe")
        found = {
            name: {key: value for key, value in of(signals, name).items() if "_other" in key and value}
            for name in ("admissions", "outcomes", "failures", "transitions", "status")
        }
        (duration,) = [
            point
            for point in signals.collect()["otel_breaker.open.duration"].data.data_points
            if point.attributes["otel_breaker.name"] == "_other"
        ]
        series = {name: len(of(signals, name)) for name in found}
        Circuit("host-99.test").acquire().failure("timeout")
        assert {name: len(of(signals, name)) for name in found} == series
        with signals.tracer.start_as_current_span("agent"):
            circuits[2].acquire().success()
    finally:
        swap(old)
    assert found == {
        "admissions": {("admitted", "_other"): 6, ("circuit_open", "_other"): 3, ("probe", "_other"): 2},
        "outcomes": {("_other", "success"): 5, ("_other", "failure"): 3},
        "failures": {("dns_error", "_other"): 2, ("timeout", "_other"): 1},
        "transitions": {
            ("_other", "closed", "open"): 3,
            ("_other", "open", "half_open"): 2,
            ("_other", "half_open", "closed"): 2,
        },
        "status": {("_other", "closed"): 2, ("_other", "open"): 1},
    }
    assert elapsed == {("host-0.test",): 2, ("host-1.test",): 2, ("_other",): 2}
    assert awaiting == {("host-0.test",): 1, ("host-1.test",): 1, ("_other",): 1}
    assert (duration.count, duration.sum) == (2, 180.0)
    # An event is no series: it says whose circuit it was.
    told = [attributes["otel_breaker.name"] for _, attributes in signals.plain_spans[-1]["events"]]
    assert told == ["host-2.test"] * 4  # half-open, probe, closed, and its end


@pytest.mark.parametrize(("metric", "most"), [("failures", 1_819), ("transitions", 1_823), ("tools", 1_801)])
def test_series_beyond_the_limit_fold_and_never_fall(signals: Signals, metric: str, most: int) -> None:
    """The sum over all series stays right, and each of them only grows, however many there come to be."""
    stats = [registry().stats(f"host-{number}.test") for number in range(200)]
    reasons = [f"reason_{number}" for number in range(19)]
    before: Series = {}
    for round_ in range(1, 4):
        for one in stats:
            for number, reason in enumerate(reasons[: 5 * round_ + 4]):
                if metric == "failures":
                    one.fail(reason)
                elif metric == "transitions":
                    one.move(f"a{number % 4}", f"b{number // 4}")
                else:
                    one.used_by(reason)
        now = of(signals, metric)
        assert len(now) <= most
        assert all(now[key] >= value for key, value in before.items())
        before = now

    own = {
        "failures": lambda one: one.failures,
        "transitions": lambda one: one.transitions,
        "tools": lambda one: one.tools,
    }
    written = sum(sum(own[metric](one).values()) for one in stats)
    assert sum(before.values()) == written
    assert any(key[0] == "_other" or key[-1] == "_other" or "_other" in key for key in before)
    assert not any("overflow" in str(key) for key in before)


def test_numbers_outlive_their_circuits(signals: Signals) -> None:
    circuit = registry().client("api.test")
    _guard.call(CLIENT, circuit, dict, (), {})
    registry().clear()

    assert of(signals, "admissions")["admitted", "api.test"] == 1
    assert of(signals, "status") == {("api.test", state): 0 for state in STATES}
    assert of(signals, "circuits") == {(): 0}


# --- whatever breaks --------------------------------------------------------------------------------------------------


class Broken:
    """A circuit whose snapshot raises."""

    def __init__(self, like: Circuit) -> None:
        self.stats, self.quotas = like.stats, None

    def snapshot(self) -> Any:
        raise RuntimeError("injected")


class WithBroken(Registry):
    def __iter__(self) -> Iterator[Any]:
        healthy = list(super().__iter__())
        return iter([Broken(healthy[0]), *healthy])


def test_one_unreadable_circuit_hides_no_other_B78(
    signals: Signals, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    old = swap(WithBroken(clock=clock))
    try:
        circuit = Circuit("api.test", Policy(failure_threshold=1))
        circuit.acquire().failure("timeout")
        status = [of(signals, "status") for _ in range(3)]
    finally:
        swap(old)

    assert status == [{("api.test", state): int(state == "open") for state in STATES}] * 3
    warnings = [record for record in caplog.records if record.name == "otel_breaker"]
    assert ["could not be read" in record.getMessage() for record in warnings if record.levelname == "WARNING"] == [
        True
    ]
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_collecting_touches_no_socket_and_no_file_B78(signals: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    registry().client("api.test")

    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("I/O in a metric callback")

    for name in ("connect", "connect_ex", "sendto", "send"):
        monkeypatch.setattr(socket.socket, name, forbidden, raising=False)
    monkeypatch.setattr("builtins.open", forbidden)

    assert of(signals, "circuits") == {(): 1}


def test_a_collection_looks_once_at_each_circuit_and_asks_the_store_nothing_B78(
    signals: Signals, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: what a collection costs is one look at each circuit, also of those that are open."""
    looks: list[str] = []
    snapshot = Circuit.snapshot
    monkeypatch.setattr(Circuit, "snapshot", lambda self: looks.append(self.name) or snapshot(self))
    circuits = [registry().client(f"api{number}.test") for number in range(150)]
    for circuit in circuits[:50]:
        trip(circuit)
    looks.clear()
    clock.advance(100)  # nobody has called since, and still the state is told

    status = of(signals, "status")

    assert sorted(looks) == sorted(circuit.name for circuit in circuits)
    assert sum(count for (_, state), count in status.items() if state == "open") == 50
    assert sum(count for (_, state), count in status.items() if state == "closed") == 100


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_number_never_leaves(signals: Signals, value: float) -> None:
    circuit = registry().client("api.test")
    circuit.stats.time_saved = value

    assert of(signals, "time_saved") == {("api.test",): 0}


# --- providers --------------------------------------------------------------------------------------------------------


def test_a_provider_is_registered_once(signals: Signals, caplog: pytest.LogCaptureFixture) -> None:
    registry().client("api.test")
    for _ in range(3):
        metrics.register(signals.meters)

    assert of(signals, "circuits") == {(): 1}
    assert not caplog.records


def test_an_explicit_provider_beside_the_first_reports_the_same_B79(signals: Signals) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    circuit = registry().client("api.test")
    circuit.acquire().success()
    metrics.register(provider)
    try:
        data = reader.get_metrics_data()
    finally:
        metrics.unregister(provider)
        provider.shutdown()

    assert data is not None
    found = {metric.name: series(metric) for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert found == {name: series(metric) for name, metric in signals.collect().items()}
    assert found["otel_breaker.admissions"]["admitted", "api.test"] == 1


def test_a_pass_over_the_circuits_serves_one_collection(signals: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 circuits are looked at once a collection, not once an instrument; and each collection looks anew."""
    registry().client("api.test")
    passes = []
    real = metrics._Collector._look

    def look(self: Any) -> Any:
        passes.append(1)
        return real(self)

    monkeypatch.setattr(metrics._Collector, "_look", look)
    for _ in range(3):
        signals.collect()

    assert len(passes) == 3
