"""Events on spans and in the log signal, and the spans of our own: exact names, attributes and numbers."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk._logs import LogRecordProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_breaker import Circuit, CircuitOpenError, Policy, _guard, registry
from otel_breaker._frames import Site
from otel_breaker.core.clock import ManualClock
from otel_breaker.outcomes import OK, THROTTLED, UNAUTHORIZED, Outcome
from otel_breaker.telemetry import emit, events
from tests.telemetry.signals import Signals

POLICY = Policy(failure_threshold=1, cooldown=30)
CLIENT = Site("test", judge=lambda frame, result: result if isinstance(result, Outcome) else None)
TOOL = Site("", layer="tool", tool="refund", body=True)
BASE = {"otel_breaker.name": "api.test:8443", "server.address": "api.test"}


@pytest.fixture
def circuit(clock: ManualClock) -> Circuit:
    made = registry().client("api.test:8443")
    made.policy = POLICY
    return made


def call(circuit: Circuit, result: Any = OK, site: Site = CLIENT, credential: str | None = None) -> Any:
    def body() -> Any:
        if isinstance(result, BaseException):
            raise result
        return result

    return _guard.call(site, circuit, body, (), {}, credential)


def broken(circuit: Circuit, site: Site = CLIENT) -> None:
    with pytest.raises(ConnectionRefusedError):
        call(circuit, ConnectionRefusedError(), site)


def refused(circuit: Circuit, site: Site = CLIENT, credential: str | None = None) -> None:
    with pytest.raises(CircuitOpenError):
        call(circuit, site=site, credential=credential)


def changed(previous: str, state: str, reason: str, **more: Any) -> dict[str, Any]:
    found = {
        **BASE,
        "otel_breaker.previous_state": previous,
        "otel_breaker.state": state,
        "otel_breaker.reason": reason,
    }
    return {**found, **{key.replace("__", "."): value for key, value in more.items()}}


TRIPPED = changed(
    "closed", "open", "connection_refused", error__type="connection_refused", otel_breaker__cooldown__remaining=30.0
)
ADMITTED = ("otel_breaker.call.admitted", {**BASE, "otel_breaker.state": "closed", "otel_breaker.decision": "admitted"})
REJECTED = {
    **BASE,
    "otel_breaker.state": "open",
    "otel_breaker.decision": "circuit_open",
    "otel_breaker.cooldown.remaining": 30.0,
    "otel_breaker.reason": "connection_refused",
    "error.type": "connection_refused",
}

# --- on the program's span --------------------------------------------------------------------------------------------


def test_an_episode_on_the_current_span(signals: Signals, circuit: Circuit, clock: ManualClock) -> None:
    with signals.tracer.start_as_current_span("agent"):
        call(circuit)
        broken(circuit)
        refused(circuit)
        clock.advance(30)
        call(circuit)

    probing = {**BASE, "otel_breaker.state": "half_open", "otel_breaker.decision": "probe"}
    assert signals.plain_spans == [
        {
            "name": "agent",
            "kind": "INTERNAL",
            "root": True,
            "status": "UNSET",
            "attributes": {},
            "events": [
                ADMITTED,
                ADMITTED,
                ("otel_breaker.state.changed", TRIPPED),
                ("otel_breaker.call.rejected", REJECTED),
                ("otel_breaker.state.changed", changed("open", "half_open", "cooldown_elapsed")),
                ("otel_breaker.probe.started", probing),
                ("otel_breaker.state.changed", changed("half_open", "closed", "probe_succeeded")),
                (
                    "otel_breaker.probe.finished",
                    {**BASE, "otel_breaker.outcome": "success", "otel_breaker.state": "closed"},
                ),
            ],
        }
    ]


def test_a_failed_probe_says_why(signals: Signals, circuit: Circuit, clock: ManualClock) -> None:
    broken(circuit)
    clock.advance(30)
    with signals.tracer.start_as_current_span("agent"):
        broken(circuit)

    ((name, attributes),) = signals.plain_spans[-1]["events"][-1:]
    assert (name, attributes) == (
        "otel_breaker.probe.finished",
        {
            **BASE,
            "otel_breaker.outcome": "failure",
            "otel_breaker.state": "open",
            "otel_breaker.reason": "connection_refused",
            "error.type": "connection_refused",
        },
    )


def test_at_most_32_call_events_a_span_but_every_transition(
    signals: Signals, circuit: Circuit, clock: ManualClock
) -> None:
    with signals.tracer.start_as_current_span("agent"):
        for _ in range(40):
            call(circuit)
        broken(circuit)
        for _ in range(100):
            refused(circuit)
        clock.advance(30)
        call(circuit)

    (span,) = signals.plain_spans
    names = [name for name, _ in span["events"]]
    assert names.count("otel_breaker.call.admitted") == 32
    assert "otel_breaker.call.rejected" not in names
    assert names.count("otel_breaker.state.changed") == 3
    assert names[-3:] == ["otel_breaker.probe.started", "otel_breaker.state.changed", "otel_breaker.probe.finished"]
    assert span["attributes"] == {"otel_breaker.events.dropped": 40 + 1 + 100 - 32}


def test_every_span_has_a_share_of_its_own(signals: Signals, circuit: Circuit) -> None:
    for _ in range(2):
        with signals.tracer.start_as_current_span("agent"):
            for _ in range(33):
                call(circuit)

    assert [len(span["events"]) for span in signals.plain_spans] == [32, 32]
    assert [span["attributes"] for span in signals.plain_spans] == [{"otel_breaker.events.dropped": 1}] * 2


def test_a_clients_call_inside_a_tool_names_the_tool(signals: Signals, circuit: Circuit) -> None:
    tool = Circuit("refund")
    with signals.tracer.start_as_current_span("agent"):
        _guard.call(TOOL, tool, lambda: call(circuit), (), {})

    assert [attributes for _, attributes in signals.plain_spans[0]["events"]] == [
        {
            "otel_breaker.name": "refund",
            "gen_ai.tool.name": "refund",
            "otel_breaker.state": "closed",
            "otel_breaker.decision": "admitted",
        },
        {**ADMITTED[1], "gen_ai.tool.name": "refund"},
    ]


def test_observe_mode_says_what_it_would_have_done(signals: Signals, circuit: Circuit) -> None:
    circuit.mode = "observe"
    circuit.refresh()
    broken(circuit)
    with signals.tracer.start_as_current_span("agent"):
        call(circuit)

    assert signals.plain_spans[-1]["events"] == [
        ("otel_breaker.call.rejected", {**REJECTED, "otel_breaker.decision": "would_reject"})
    ]


def test_a_forced_circuit_does_not_publish_the_operators_words(signals: Signals, circuit: Circuit) -> None:
    circuit.force_open("see https://wiki.internal/?token=S3CRET", 60)
    with signals.tracer.start_as_current_span("agent"):
        refused(circuit)

    assert signals.plain_spans[-1]["events"] == [
        (
            "otel_breaker.call.rejected",
            {
                **BASE,
                "otel_breaker.state": "forced_open",
                "otel_breaker.decision": "forced_open",
                "otel_breaker.cooldown.remaining": 60.0,
                "otel_breaker.reason": "manual",
            },
        )
    ]
    assert "S3CRET" not in repr([signals.plain_spans, signals.plain_logs])


def test_credentials_have_events_of_their_own(signals: Signals, circuit: Circuit) -> None:
    call(circuit, credential="f00d")
    with signals.tracer.start_as_current_span("agent"):
        call(circuit, Outcome(UNAUTHORIZED), credential="f00d")
        refused(circuit, credential="f00d")

    seen = dict(signals.plain_spans[-1]["events"])
    assert seen["otel_breaker.credential.revoked"] == {
        **BASE,
        "otel_breaker.credential": "f00d",
        "otel_breaker.state": "open",
    }
    assert seen["otel_breaker.call.rejected"] == {
        **BASE,
        "otel_breaker.credential": "f00d",
        "otel_breaker.state": "open",
        "otel_breaker.decision": "credential_paused",
        "otel_breaker.cooldown.remaining": circuit.policy.pause,
        "otel_breaker.reason": "unauthorized",
    }  # fmt: skip
    assert ("otel_breaker.credential.revoked", "WARN") in [entry[:2] for entry in signals.plain_logs]


# --- in the log signal ------------------------------------------------------------------------------------------------


def test_logs_get_transitions_and_rejections_in_the_context_of_the_call(
    signals: Signals, circuit: Circuit, clock: ManualClock
) -> None:
    with signals.tracer.start_as_current_span("agent") as span:
        call(circuit)
        broken(circuit)
        refused(circuit)
        clock.advance(30)
        call(circuit)

    assert signals.plain_logs == [
        ("otel_breaker.state.changed", "WARN", TRIPPED),
        ("otel_breaker.call.rejected", "WARN", {**REJECTED, "otel_breaker.merged": 1}),
        ("otel_breaker.state.changed", "INFO", changed("open", "half_open", "cooldown_elapsed")),
        ("otel_breaker.state.changed", "INFO", changed("half_open", "closed", "probe_succeeded")),
    ]
    assert {record.log_record.trace_id for record in signals.records} == {span.get_span_context().trace_id}
    assert [record.log_record.body for record in signals.records][:2] == [
        "api.test:8443: closed -> open (connection_refused)",
        "api.test:8443: call rejected, circuit_open (connection_refused)",
    ]
    assert {record.instrumentation_scope.name for record in signals.records} == {"otel_breaker"}


def test_rejections_are_logged_once_a_second_and_circuit(
    signals: Signals, circuit: Circuit, clock: ManualClock
) -> None:
    other = registry().client("other.test")
    other.policy = POLICY
    for one in (circuit, other):
        broken(one)
    for _ in range(5):  # five rejections every half second
        for _ in range(5):
            refused(circuit)
        clock.advance(0.5)
    refused(other)

    logged = [
        (attributes["otel_breaker.name"], attributes["otel_breaker.merged"])
        for name, _, attributes in signals.plain_logs
        if name == "otel_breaker.call.rejected"
    ]
    assert logged == [("api.test:8443", 1), ("api.test:8443", 10), ("api.test:8443", 10), ("other.test", 1)]


def test_a_lapse_is_told_with_its_true_time(signals: Signals, circuit: Circuit, clock: ManualClock) -> None:
    broken(circuit)
    clock.advance(30)
    _guard.begin(CLIENT, circuit)  # a probe that is never heard of again
    clock.advance(50)  # its lease of 30 s ran out 20 s ago
    refused(circuit)

    records = [one.log_record for one in signals.records if one.log_record.event_name == "otel_breaker.state.changed"]
    lapse = records[-1]
    assert lapse.attributes["otel_breaker.reason"] == "probe_lapsed"
    assert (lapse.observed_timestamp - lapse.timestamp) / 1e9 == pytest.approx(20, abs=1)


# --- which of the two -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chosen", "on_span", "in_log"), [
    ("both", 3, 2), ("span", 3, 0), ("log", 0, 2), ("none", 0, 0),
])  # fmt: skip
def test_events_setting(signals: Signals, circuit: Circuit, chosen: str, on_span: int, in_log: int) -> None:
    emit.configure(chosen)
    with signals.tracer.start_as_current_span("agent"):
        broken(circuit)
        refused(circuit)

    assert (len(signals.plain_spans[0]["events"]), len(signals.plain_logs)) == (on_span, in_log)


class EventToSpanEventBridge(LogRecordProcessor):
    """What the specification describes: a log event becomes an event of the current span."""

    def on_emit(self, log_record: Any) -> None:
        record = log_record.log_record
        trace.get_current_span().add_event(record.event_name, dict(record.attributes))

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


def test_an_event_to_span_bridge_doubles_nothing(signals: Signals, circuit: Circuit) -> None:
    signals.logs.add_log_record_processor(EventToSpanEventBridge())
    with signals.tracer.start_as_current_span("agent"):
        broken(circuit)
        for _ in range(3):
            refused(circuit)

    names = [name for name, _ in signals.plain_spans[0]["events"]]
    assert names == [
        "otel_breaker.call.admitted",
        "otel_breaker.state.changed",
        "otel_breaker.call.rejected",  # from the bridge; the next two were not logged, so they are written directly
        "otel_breaker.call.rejected",
        "otel_breaker.call.rejected",
    ]


# --- spans of our own -------------------------------------------------------------------------------------------------


def test_a_tools_own_span_is_current_while_it_runs(signals: Signals) -> None:
    tool = Circuit("refund")

    def body() -> str:
        with signals.tracer.start_as_current_span("inside"):
            return "done"

    assert _guard.call(TOOL, tool, body, (), {}) == "done"
    inside, own = signals.spans
    assert inside.parent is not None
    assert own.context is not None
    assert inside.parent.span_id == own.context.span_id
    assert trace.get_current_span() is trace.INVALID_SPAN
    base = {"otel_breaker.name": "refund", "gen_ai.tool.name": "refund", "otel_breaker.decision": "admitted"}
    assert signals.plain_spans[1] == {
        "name": "otel_breaker refund",
        "kind": "INTERNAL",
        "root": True,
        "status": "UNSET",
        "attributes": {**base, "otel_breaker.outcome": "success"},
        "events": [("otel_breaker.call.admitted", {**base, "otel_breaker.state": "closed"})],
    }


def test_a_clients_own_span_is_made_after_the_fact_and_never_current(signals: Signals, circuit: Circuit) -> None:
    def body() -> None:
        with signals.tracer.start_as_current_span("GET"):
            raise ConnectionRefusedError

    with pytest.raises(ConnectionRefusedError):
        _guard.call(CLIENT, circuit, body, (), {})

    official, own = signals.spans
    assert official.parent is None
    assert own.start_time is not None
    assert own.end_time is not None
    assert official.start_time is not None
    assert official.end_time is not None
    assert own.start_time <= official.start_time
    assert own.end_time >= official.end_time
    assert signals.plain_spans[1] == {
        "name": "otel_breaker api.test:8443",
        "kind": "INTERNAL",
        "root": True,
        "status": "ERROR",
        "attributes": {
            **BASE,
            "otel_breaker.decision": "admitted",
            "otel_breaker.outcome": "failure",
            "otel_breaker.reason": "connection_refused",
            "error.type": "connection_refused",
        },
        "events": [ADMITTED, ("otel_breaker.state.changed", TRIPPED)],
    }


def test_a_probes_own_span_tells_the_whole_probe(signals: Signals, circuit: Circuit, clock: ManualClock) -> None:
    broken(circuit)
    clock.advance(30)
    call(circuit)

    span = signals.plain_spans[-1]
    assert span["attributes"] == {**BASE, "otel_breaker.decision": "probe", "otel_breaker.outcome": "success"}
    assert [name for name, _ in span["events"]] == [
        "otel_breaker.state.changed",
        "otel_breaker.probe.started",
        "otel_breaker.state.changed",
        "otel_breaker.probe.finished",
    ]


def test_refusals_get_one_own_span_a_second_and_circuit(signals: Signals, circuit: Circuit, clock: ManualClock) -> None:
    broken(circuit)
    for _ in range(2):
        for _ in range(7):
            refused(circuit)
        clock.advance(1)
    refused(circuit)

    spans = signals.plain_spans[1:]
    assert [span["attributes"]["otel_breaker.merged"] for span in spans] == [1, 7, 7]
    assert spans[0] == {
        "name": "otel_breaker api.test:8443",
        "kind": "INTERNAL",
        "root": True,
        "status": "UNSET",
        "attributes": {**REJECTED, "otel_breaker.merged": 1},
        "events": [("otel_breaker.call.rejected", REJECTED)],
    }


def test_no_span_of_ours_where_there_is_a_span_context(signals: Signals, circuit: Circuit) -> None:
    unsampled = trace.NonRecordingSpan(
        trace.SpanContext(trace_id=1, span_id=2, is_remote=False, trace_flags=trace.TraceFlags(0))
    )
    with trace.use_span(unsampled):
        broken(circuit)
        refused(circuit)
        call(Circuit("refund"), site=TOOL)

    assert signals.spans == []
    assert len(signals.plain_logs) == 2


def test_spans_never(signals: Signals, circuit: Circuit) -> None:
    emit.configure(spans="never")
    broken(circuit)
    refused(circuit)

    assert signals.spans == []
    with signals.tracer.start_as_current_span("agent"):
        refused(circuit)
    assert len(signals.plain_spans[0]["events"]) == 1


def test_an_own_span_that_is_not_sampled_costs_nothing_more(signals: Signals, circuit: Circuit) -> None:
    signals.traces.sampler = ALWAYS_OFF
    call(Circuit("refund"), site=TOOL)
    call(circuit)

    assert signals.spans == []
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_call_that_ends_in_another_context_logs_no_error(signals: Signals, caplog: pytest.LogCaptureFixture) -> None:
    circuit = Circuit("refund")
    ctx = otel_context.get_current()

    elsewhere = contextvars.copy_context()
    handle = elsewhere.run(emit.on_admit, ctx, circuit, TOOL, False)
    emit.on_done(handle, circuit, TOOL, "success", None, False)
    assert trace.get_current_span() is trace.INVALID_SPAN

    handle = emit.on_admit(ctx, circuit, TOOL, False)
    copied = contextvars.copy_context()
    copied.run(emit.on_done, handle, circuit, TOOL, "success", None, False)
    assert copied.run(trace.get_current_span) is trace.INVALID_SPAN
    emit.on_done(handle, circuit, TOOL, "success", None, False)
    otel_context.attach(ctx)

    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_suspended_generator_does_not_leave_its_span_behind(signals: Signals) -> None:
    circuit = Circuit("refund")
    ctx = otel_context.get_current()
    handle = emit.on_admit(ctx, circuit, TOOL, False)
    own = trace.get_current_span()

    emit.leave(handle)
    assert trace.get_current_span() is trace.INVALID_SPAN
    emit.enter(handle)
    assert trace.get_current_span() is own
    emit.on_done(handle, circuit, TOOL, "success", None, False)
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_tasks_have_own_spans_apart(signals: Signals) -> None:
    circuit = Circuit("refund")

    async def body() -> int:
        await asyncio.sleep(0)
        return trace.get_current_span().get_span_context().span_id

    async def main() -> list[int]:
        return list(await asyncio.gather(*(_guard.acall(TOOL, circuit, body, (), {}) for _ in range(5))))

    found = asyncio.run(main())
    assert len(set(found)) == 5
    assert {span.context.span_id for span in signals.spans if span.context} == set(found)
    assert all(span.parent is None for span in signals.spans)


# --- quiet ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [otel_context._SUPPRESS_INSTRUMENTATION_KEY, "suppress_instrumentation"])
def test_suppressed_calls_pass_unseen(signals: Signals, circuit: Circuit, key: str) -> None:
    token = otel_context.attach(otel_context.set_value(key, True))
    try:
        for _ in range(3):
            broken(circuit)
    finally:
        otel_context.detach(token)

    assert circuit.snapshot().state == "closed"
    assert (signals.spans, signals.plain_logs) == ([], [])
    assert sum(signals.series("otel_breaker.admissions").values()) == 0


def test_suppressing_http_only_does_not_switch_us_off(signals: Signals, circuit: Circuit) -> None:
    """The official requests wrapper does that around every call."""
    token = otel_context.attach(otel_context.set_value(otel_context._SUPPRESS_HTTP_INSTRUMENTATION_KEY, True))
    try:
        broken(circuit)
    finally:
        otel_context.detach(token)

    assert circuit.snapshot().state == "open"


def test_a_command_is_logged_also_where_instrumentation_is_suppressed(signals: Signals, circuit: Circuit) -> None:
    token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
    try:
        circuit.force_open("maintenance")
    finally:
        otel_context.detach(token)

    assert signals.plain_logs == [
        (
            "otel_breaker.state.changed",
            "INFO",
            {
                "otel_breaker.name": "api.test:8443",
                "otel_breaker.previous_state": "closed",
                "otel_breaker.state": "forced_open",
                "otel_breaker.reason": "manual",
            },
        )
    ]


def test_a_fault_of_ours_changes_no_call(
    signals: Signals, circuit: Circuit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(*args: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(events, "describe", explode)
    with signals.tracer.start_as_current_span("agent"):
        for _ in range(3):
            assert call(circuit, "result") == "result"
        broken(circuit)
        refused(circuit)

    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 3  # once for each place: on_admit, on_moved, on_refuse
    assert not any("injected" in message for message in told)


def test_throttles_open_only_the_credentials_circuit(signals: Signals, circuit: Circuit) -> None:
    with signals.tracer.start_as_current_span("agent"):
        for _ in range(3):
            call(circuit, Outcome(THROTTLED, "throttled", 120.0), credential="f00d")
        refused(circuit, credential="f00d")

    changes = [attributes for name, _, attributes in signals.plain_logs if name == "otel_breaker.state.changed"]
    assert changes == [
        {
            **changed("closed", "open", "throttled", error__type="throttled"),
            "otel_breaker.cooldown.remaining": 120.0,
            "otel_breaker.credential": "f00d",
        }
    ]
    rejected = signals.plain_spans[0]["events"][-1][1]
    assert (rejected["otel_breaker.decision"], rejected["otel_breaker.reason"]) == ("throttled", "throttled")
