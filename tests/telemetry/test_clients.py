"""Real clients at a real server: every admit, refusal, probe and transition, in every signal, the same for each client.

One script is played by each client, with a span of the program around it, without one, with traces off, and in a
process of its own through OTLP into a real receiver. Names, attributes and numbers are compared whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace

from otel_breaker import settings
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from otel_breaker.errors import CircuitOpenError
from tests.support.clients import CLIENTS, Caller, Client
from tests.support.faults import Script
from tests.support.otlp import Receiver
from tests.telemetry.signals import Signals
from tests.telemetry.test_providers import run

SCRIPT: tuple[int | float | None, ...] = (
    200, 503, 503,  # opens at the second failure
    None, None,  # refused
    30.0, 503,  # a failed probe
    None, 60.0, 404, 200,  # a neutral probe, then one that closes
    200,
)  # fmt: skip
"""What the server answers; seconds that pass; ``None``: a call that is refused and reaches no server."""

HITS = sum(isinstance(step, int) for step in SCRIPT)
REFUSED = SCRIPT.count(None)

Told = list[tuple[str, dict[str, Any]]]


def base(host: str) -> dict[str, Any]:
    return {"otel_breaker.name": host, "server.address": "127.0.0.1"}


def admit(host: str) -> tuple[str, dict[str, Any]]:
    return "otel_breaker.call.admitted", {
        **base(host),
        "otel_breaker.state": "closed",
        "otel_breaker.decision": "admitted",
    }


def reject(host: str, left: float) -> tuple[str, dict[str, Any]]:
    return "otel_breaker.call.rejected", {
        **base(host),
        "otel_breaker.state": "open",
        "otel_breaker.decision": "circuit_open",
        "otel_breaker.cooldown.remaining": left,
        "otel_breaker.reason": "server_error",
        "error.type": "server_error",
    }


def move(host: str, previous: str, state: str, reason: str, cooldown: float | None = None) -> Any:
    told = {
        **base(host),
        "otel_breaker.previous_state": previous,
        "otel_breaker.state": state,
        "otel_breaker.reason": reason,
    }
    if cooldown is not None:
        told |= {"otel_breaker.cooldown.remaining": cooldown, "error.type": reason}
    return "otel_breaker.state.changed", told


def began(host: str) -> tuple[str, dict[str, Any]]:
    return "otel_breaker.probe.started", {
        **base(host),
        "otel_breaker.state": "half_open",
        "otel_breaker.decision": "probe",
    }


def ended(host: str, outcome: str, state: str, reason: str | None = None) -> tuple[str, dict[str, Any]]:
    told = {**base(host), "otel_breaker.outcome": outcome, "otel_breaker.state": state}
    return "otel_breaker.probe.finished", told | (
        {"otel_breaker.reason": reason, "error.type": reason} if reason else {}
    )


def story(host: str) -> list[Told]:
    """The events of each call of the script, in order."""
    return [
        [admit(host)],
        [admit(host)],
        [admit(host), move(host, "closed", "open", "server_error", 30.0)],
        [reject(host, 30.0)],
        [reject(host, 30.0)],
        [
            move(host, "open", "half_open", "cooldown_elapsed"),
            began(host),
            move(host, "half_open", "open", "server_error", 60.0),
            ended(host, "failure", "open", "server_error"),
        ],
        [reject(host, 60.0)],
        [
            move(host, "open", "half_open", "cooldown_elapsed"),
            began(host),
            ended(host, "neutral", "half_open"),
        ],
        [
            began(host),
            move(host, "half_open", "closed", "probe_succeeded"),
            ended(host, "success", "closed"),
        ],
        [admit(host)],
    ]


def logged(host: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, severity, attributes) of the log records."""
    found = []
    for name, attributes in (event for call in story(host) for event in call):
        if name == "otel_breaker.state.changed":
            found.append((name, "WARN" if attributes["otel_breaker.state"] == "open" else "INFO", attributes))
    first, second = reject(host, 30.0), reject(host, 60.0)
    found.insert(1, (first[0], "WARN", {**first[1], "otel_breaker.merged": 1}))
    found.insert(4, (second[0], "WARN", {**second[1], "otel_breaker.merged": 2}))  # with the one before the cooldown
    return found


def own_spans(host: str) -> list[tuple[str, dict[str, Any], Told]]:
    """(status, attributes, events) of the spans of our own: one a call, one a second of refusals."""
    ends = {
        "success": ("UNSET", {"otel_breaker.outcome": "success"}),
        "neutral": ("UNSET", {"otel_breaker.outcome": "neutral"}),
        "failure": (
            "ERROR",
            {"otel_breaker.outcome": "failure", "otel_breaker.reason": "server_error", "error.type": "server_error"},
        ),
    }
    calls = [
        "success",
        "failure",
        "failure",
        "refused",
        "merged",
        "failure",
        "refused",
        "neutral",
        "success",
        "success",
    ]
    found, merged = [], 0
    for outcome, events in zip(calls, story(host), strict=True):
        if outcome == "merged":
            merged += 1
            continue
        if outcome == "refused":
            found.append(("UNSET", {**events[0][1], "otel_breaker.merged": merged + 1}, events))
            continue
        status, attributes = ends[outcome]
        decision = "probe" if any(name == "otel_breaker.probe.started" for name, _ in events) else "admitted"
        found.append((status, {**base(host), "otel_breaker.decision": decision, **attributes}, events))
    return found


def numbers(host: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Every series of the script's end that is not 0, attribute values in the order of the attributes' names."""
    return {
        "otel_breaker.admissions": {("admitted", host): 4, ("probe", host): 3, ("circuit_open", host): REFUSED},
        "otel_breaker.outcomes": {(host, "success"): 3, (host, "failure"): 3, (host, "neutral"): 1},
        "otel_breaker.failures": {("server_error", host): 3},
        "otel_breaker.transitions": {
            (host, "closed", "open"): 1,
            (host, "open", "half_open"): 2,
            (host, "half_open", "open"): 1,
            (host, "half_open", "closed"): 1,
        },
        "otel_breaker.status": {(host, "closed"): 1},
        "otel_breaker.circuits": {(): 1},
    }


def counted(signals: Signals) -> dict[str, dict[tuple[str, ...], float]]:
    """The same of what was collected; ``time_saved`` is real time and looked at elsewhere."""
    found = {}
    for name, metric in signals.collect().items():
        if name == "otel_breaker.open.duration":
            assert [(point.count, point.sum) for point in metric.data.data_points] == [(1, 90.0)]
        elif name != "otel_breaker.time_saved" and (kept := {k: v for k, v in signals.series(name).items() if v}):
            found[name] = kept
    return found


def play(caller: Caller, srv: Script, clock: ManualClock) -> None:
    for step in SCRIPT:
        if isinstance(step, float):
            clock.advance(step)
            continue
        if step is not None:
            srv.reply(step)
        result = caller.get(srv.url())
        assert isinstance(result.error, CircuitOpenError) == (step is None)
        assert result.status == step
    assert srv.hits == HITS


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


@pytest.fixture
def caller(client: Client, patched: Registry) -> Iterator[Caller]:
    """Each client, open and patched; two failures open a circuit."""
    settings.use(settings.load(failure_threshold=2))
    with client.open() as opened:
        yield opened


# --- one script, every client -----------------------------------------------------------------------------------------


def test_on_the_current_span_B06(caller: Caller, signals: Signals, srv: Script, manual_clock: ManualClock) -> None:
    with signals.tracer.start_as_current_span("agent"):
        play(caller, srv, manual_clock)
    (span,) = signals.plain_spans
    assert span["events"] == [event for call in story(srv.host) for event in call]
    assert (span["name"], span["attributes"]) == ("agent", {})
    assert signals.plain_logs == logged(srv.host)
    assert counted(signals) == numbers(srv.host)


def test_without_a_current_span(caller: Caller, signals: Signals, srv: Script, manual_clock: ManualClock) -> None:
    play(caller, srv, manual_clock)
    assert [(one["status"], one["attributes"], one["events"]) for one in signals.plain_spans] == own_spans(srv.host)
    assert {(one["name"], one["kind"], one["root"]) for one in signals.plain_spans} == {
        (f"otel_breaker {srv.host}", "INTERNAL", True)
    }
    assert signals.plain_logs == logged(srv.host)
    assert counted(signals) == numbers(srv.host)


def test_with_traces_off(
    caller: Caller, signals: Signals, srv: Script, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    play(caller, srv, manual_clock)
    assert signals.spans == []
    assert signals.plain_logs == logged(srv.host)
    assert counted(signals) == numbers(srv.host)


def test_a_tracer_provider_set_late_B79(
    caller: Caller, signals: Signals, srv: Script, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    caller.get(srv.url())
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", signals.traces)
    caller.get(srv.url())
    assert [one["events"] for one in signals.plain_spans] == [[admit(srv.host)]]
    with signals.tracer.start_as_current_span("agent"):
        caller.get(srv.url())
    assert signals.plain_spans[-1]["events"] == [admit(srv.host)]
    assert signals.series("otel_breaker.admissions")["admitted", srv.host] == 3


AGENT = """
from otel_breaker import _registry, instrument
from otel_breaker.core.clock import ManualClock
{own}
clock = ManualClock()
_registry.swap(_registry.Registry(clock=clock))
instrument(failure_threshold=2)
import {library} as library

def call():
    try:
        library.get("{url}")
    except Exception as error:
        assert "circuit_open" in str(error), error

def agent():
    for step in {script}:
        if isinstance(step, float):
            clock.advance(step)
        else:
            call()

{begin}
assert flush()
"""
OWN = """
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
"""
INSIDE = """
with trace.get_tracer("program").start_as_current_span("agent"):
    agent()
"""


@pytest.mark.parametrize("library", ["requests", "httpx", "httpx2"])
@pytest.mark.parametrize("current", [True, False], ids=["current span", "no span"])
def test_through_otlp_into_a_real_receiver(srv: Script, library: str, current: bool) -> None:
    for step in SCRIPT:
        if isinstance(step, int):
            srv.reply(step)
    with Receiver() as receiver:
        own, begin = (OWN, INSIDE) if current else ("", "agent()")
        code = AGENT.format(library=library, url=srv.url(), script=SCRIPT, own=own, begin=begin)
        run(code, receiver.environment())
    assert srv.hits == HITS
    spans = [one for one in receiver.spans if one.attributes.get("otel_breaker.name") != "refund"]
    told = [[(event.name, event.attributes) for event in one.events] for one in spans]
    if current:
        assert [one.name for one in spans] == ["agent"]
        assert told == [[event for call in story(srv.host) for event in call]]
    else:
        expected = own_spans(srv.host)
        assert [one.name for one in spans] == [f"otel_breaker {srv.host}"] * len(expected)
        assert [one.attributes for one in spans] == [attributes for _, attributes, _ in expected]
        assert told == [events for _, _, events in expected]
    assert [(one.event_name, one.severity, one.attributes) for one in receiver.logs] == logged(srv.host)
    for name, wanted in numbers(srv.host).items():
        if name != "otel_breaker.circuits":
            got = {
                tuple(str(point.attributes[key]) for key in sorted(point.attributes)): point.value
                for point in receiver.series(name)
                if point.value and point.attributes["otel_breaker.name"] == srv.host
            }
            assert got == wanted, name
    assert receiver.value("otel_breaker.open.duration", otel_breaker__name=srv.host) == 90.0


# --- cases ------------------------------------------------------------------------------------------------------------


def test_three_failures_are_three_and_the_fourth_opens_once_B01(
    client: Client, patched: Registry, signals: Signals, srv: Script
) -> None:
    settings.use(settings.load(failure_threshold=4))
    srv.reply(503, times=None)
    with client.open() as caller:
        for _ in range(3):
            caller.get(srv.url())
        assert signals.series("otel_breaker.failures") == {("server_error", srv.host): 3}
        assert signals.series("otel_breaker.status")[srv.host, "closed"] == 1
        assert sum(signals.series("otel_breaker.transitions").values()) == 0
        caller.get(srv.url())
        assert signals.series("otel_breaker.failures") == {("server_error", srv.host): 4}
        assert signals.series("otel_breaker.status")[srv.host, "open"] == 1
        assert {key: value for key, value in signals.series("otel_breaker.transitions").items() if value} == {
            (srv.host, "closed", "open"): 1
        }
    assert srv.hits == 4


def test_a_crowd_at_half_open_is_one_probe_event_and_99_refusals_B29(
    patched: Registry, signals: Signals, srv: Script, manual_clock: ManualClock
) -> None:
    settings.use(settings.load(failure_threshold=1))
    with CLIENTS["httpx"].open() as caller:
        srv.reply(503)
        caller.get(srv.url())
        manual_clock.advance(30)
        gate, told, lock = threading.Event(), list[Any](), threading.Lock()
        srv.reply(200, json={}, gate=gate)

        def work() -> None:
            with signals.tracer.start_as_current_span("one"):
                error = caller.get(srv.url()).error
            with lock:
                told.append(error)
                if len(told) == 99:
                    gate.set()

        threads = [threading.Thread(target=work) for _ in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert srv.hits == 2
    events = [
        (name, attributes.get("otel_breaker.decision"))
        for one in signals.plain_spans
        if one["name"] == "one"
        for name, attributes in one["events"]
    ]
    assert events.count(("otel_breaker.probe.started", "probe")) == 1
    assert events.count(("otel_breaker.probe.finished", None)) == 1
    assert events.count(("otel_breaker.call.rejected", "probe_in_flight")) == 99
    assert events.count(("otel_breaker.state.changed", None)) == 2
    assert len(events) == 103
    admissions = {key[0]: value for key, value in signals.series("otel_breaker.admissions").items() if value}
    assert admissions == {"admitted": 1, "probe": 1, "probe_in_flight": 99}


def test_observe_refuses_nobody_and_still_pages(
    client: Client, patched: Registry, signals: Signals, srv: Script, manual_clock: ManualClock
) -> None:
    settings.use(settings.load(mode="observe", failure_threshold=2))
    srv.reply(503, times=None)
    pages = []
    with client.open() as caller:
        for _ in range(5):
            assert caller.get(srv.url()).status == 503
        for seconds in (0, 30, 59, 1):
            manual_clock.advance(seconds)
            pages.append(signals.series("otel_breaker.cooldowns_elapsed")[srv.host,])
        assert signals.series("otel_breaker.awaiting_probe") == {(srv.host,): 1}
        with signals.tracer.start_as_current_span("agent"):
            assert caller.get(srv.url()).status == 503  # the probe
            assert caller.get(srv.url()).status == 503  # would have been refused
    assert pages == [0, 1, 1, 2]
    assert srv.hits == 7
    assert [name for name, _ in signals.plain_spans[-1]["events"]] == [
        "otel_breaker.state.changed",
        "otel_breaker.probe.started",
        "otel_breaker.state.changed",
        "otel_breaker.probe.finished",
        "otel_breaker.call.rejected",
    ]
    admissions = {key[0]: value for key, value in signals.series("otel_breaker.admissions").items() if value}
    assert admissions == {"admitted": 2, "probe": 1, "would_reject": 4}
    outcomes = {key[1]: value for key, value in signals.series("otel_breaker.outcomes").items() if value}
    assert outcomes == {"failure": 3, "late": 4}
    assert signals.series("otel_breaker.cooldowns_elapsed")[srv.host,] == 2


def test_no_secret_leaves_in_any_signal_B122(
    client: Client, caller: Caller, signals: Signals, srv: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0, "otel_breaker")
    query = "/S3CRET?api_key=S3CRET&X-Amz-Signature=S3CRET#S3CRET"
    url = srv.url(query).replace("://", "://hunter2:S3CRET@")
    headers = {"X-Api-Key": "S3CRET", "Cookie": "session=S3CRET"}
    steps: list[Callable[[], Any]] = [
        lambda: srv.reply(200),
        lambda: srv.reply(429, body="S3CRET"),
        lambda: srv.reply(401, body='{"error": {"code": "S3CRET"}}'),  # revoked
        lambda: None,  # refused as credential_paused
    ]
    errors = []
    for step in steps:
        step()
        errors.append(caller.get(url, headers=headers).error)
    with signals.tracer.start_as_current_span("agent"):
        for _ in range(2):
            srv.reply(503, body="S3CRET")
            caller.get(srv.url(query))
        errors.append(caller.get(srv.url(query)).error)
    refusals = [error for error in errors if isinstance(error, CircuitOpenError)]
    assert [refusal.decision for refusal in refusals] == ["credential_paused", "circuit_open"]
    told = [repr((str(refusal), refusal, refusal.__dict__, refusal.answer())) for refusal in refusals]
    told += [one.to_json() for one in signals.spans]
    told += [one.log_record.to_json() if hasattr(one.log_record, "to_json") else repr(one) for one in signals.records]
    told += [metric.to_json() for metric in signals.collect().values()]
    told += [record.getMessage() for record in caplog.records if record.name.startswith("otel_breaker")]
    assert len(told) > 20
    assert srv.host in "".join(told)
    assert "hunter2" not in "".join(told)
    assert "S3CRET" not in "".join(told)
