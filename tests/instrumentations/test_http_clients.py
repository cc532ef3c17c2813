"""What holds for requests, httpx and httpx2 alike, sync and async, streamed or not."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import importlib
import logging
import pickle
import threading
import time
from typing import Any

import pytest

import otel_breaker
from otel_breaker import Policy, settings
from otel_breaker.errors import CircuitOpenError, ProbeInFlightError
from otel_breaker.instrumentations import _patch
from otel_breaker.keys import dependency_of_url
from tests.support.clients import Caller, Client
from tests.support.counts import admitted, names, outcomes, reasons
from tests.support.faults import FaultServer, Script, free_port
from tests.support.otlp import Receiver


def fail_until_open(caller: Caller, srv: Script, registry: Any) -> Any:
    """Five bad answers; the circuit, open."""
    srv.reply(503, times=5)
    for _ in range(5):
        caller.get(srv.url())
    circuit = registry.get(srv.host)
    assert circuit.snapshot().state == "open"
    return circuit


def test_the_call_after_the_threshold_makes_no_request(
    client: Client, caller: Caller, patched: Any, srv: Script
) -> None:
    fail_until_open(caller, srv, patched)
    began = time.perf_counter()
    result = caller.get(srv.url())
    took = time.perf_counter() - began
    assert srv.hits == 5
    assert isinstance(result.error, CircuitOpenError)
    assert isinstance(result.error, client.base)
    assert took < 0.05
    assert 0 < result.error.retry_after <= 30
    assert result.error.__cause__ is None


def test_a_refusal_is_not_one_of_the_errors_that_are_retried(
    client: Client, caller: Caller, patched: Any, srv: Script
) -> None:
    fail_until_open(caller, srv, patched)
    error = caller.get(srv.url()).error
    retryable = ("ConnectionError", "Timeout") if client.library == "requests" else ("RequestError",)
    assert not any(isinstance(error, getattr(client.module, name)) for name in retryable)


def test_a_refusal_survives_pickling(caller: Caller, patched: Any, srv: Script) -> None:
    fail_until_open(caller, srv, patched)
    error = caller.get(srv.url()).error
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_it_heals(caller: Caller, patched: Any, manual_clock: Any, srv: Script) -> None:
    circuit = fail_until_open(caller, srv, patched)
    manual_clock.advance(30.1)
    assert caller.get(srv.url()).data == {"ok": True}
    assert circuit.snapshot().state == "closed"
    assert caller.get(srv.url()).data == {"ok": True}
    assert srv.hits == 7


def test_the_cooldowns_are_30_s_1_min_5_min_15_min_15_min(
    caller: Caller, patched: Any, manual_clock: Any, srv: Script
) -> None:
    fail_until_open(caller, srv, patched)
    srv.reply(503, times=None)
    for number, seconds in enumerate((30, 60, 300, 900, 900)):
        refused = caller.get(srv.url()).error
        assert isinstance(refused, CircuitOpenError)
        assert refused.retry_after == seconds
        manual_clock.advance(seconds - 0.001)
        assert isinstance(caller.get(srv.url()).error, CircuitOpenError)
        assert srv.hits == 5 + number
        manual_clock.advance(0.001)
        assert caller.get(srv.url()).status == 503  # the probe
        assert srv.hits == 6 + number


def test_a_dead_host_opens_and_is_refused(client: Client, caller: Caller, patched: Any) -> None:
    url = f"http://127.0.0.1:{free_port()}/"
    errors = [caller.get(url).error for _ in range(7)]
    assert [isinstance(error, CircuitOpenError) for error in errors] == [False] * 5 + [True] * 2
    assert reasons(patched) == {"connection_refused": 5}


def test_each_call_is_counted_once_B01(caller: Caller, patched: Any, srv: Script) -> None:
    srv.reply(503, times=None)
    for _ in range(3):
        caller.get(srv.url())
    assert outcomes(patched) == {"failure": 3}
    assert patched.get(srv.host).snapshot().failures == 3


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 425])
def test_client_errors_do_not_open_B116(caller: Caller, patched: Any, srv: Script, status: int) -> None:
    srv.reply(status, times=None)
    for _ in range(50):
        caller.get(srv.url())
    assert patched.get(srv.host).snapshot().state == "closed"
    assert outcomes(patched) == {"neutral": 50}


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504, 529])
def test_server_errors_open_B116(caller: Caller, patched: Any, srv: Script, status: int) -> None:
    srv.reply(status, times=None)
    for _ in range(6):
        caller.get(srv.url())
    assert srv.hits == 5
    assert patched.get(srv.host).snapshot().state == "open"


def test_a_classifier_of_the_users_overrides_the_table_B116(caller: Caller, patched: Any, srv: Script) -> None:
    def classify(what: Any) -> str | None:
        status = getattr(getattr(what, "response", None), "status_code", None)
        return {404: "server_error", 503: "neutral"}.get(status or 0)

    @otel_breaker.guard(dependency=srv.host, on_open="raise", policy=Policy(failure_threshold=3), classify=classify)
    def tool(status: int) -> Any:
        srv.reply(status)
        error = caller.get(srv.url()).error
        assert error is not None
        raise error

    for status in (503, 503, 503, 503, 404, 404, 404):
        with pytest.raises(Exception, match=str(status)):
            tool(status)
    assert outcomes(patched) == {"neutral": 4, "failure": 3}
    with pytest.raises(CircuitOpenError):
        tool(200)
    assert srv.hits == 7


def test_redirects_are_one_call_B58(caller: Caller, patched: Any, srv: Script) -> None:
    for hop in range(3):
        srv.reply(302, path=f"/{hop}", headers={"Location": f"/{hop + 1}"})
    assert caller.get(srv.url("/0")).data == {"ok": True}
    assert srv.hits == 4
    assert outcomes(patched) == {"success": 1}
    assert admitted(patched) == 1


def test_a_redirect_to_a_dead_host_counts_on_the_host_that_was_called(
    caller: Caller, patched: Any, srv: Script
) -> None:
    srv.reply(fault="redirect_dead")
    assert caller.get(srv.url()).error is not None
    assert names(patched) == [srv.host]
    assert reasons(patched) == {"connection_refused": 1}


def test_a_probe_may_follow_redirects(caller: Caller, patched: Any, manual_clock: Any, srv: Script) -> None:
    circuit = fail_until_open(caller, srv, patched)
    manual_clock.advance(30.1)
    srv.reply(302, path="/0", headers={"Location": "/1"})
    assert caller.get(srv.url("/0")).data == {"ok": True}
    assert circuit.snapshot().state == "closed"


def test_one_circuit_a_host_whatever_the_path_B74(caller: Caller, patched: Any, srv: Script) -> None:
    for number in range(50):
        caller.get(srv.url(f"/things/{number}?id={number}&key=k{number}"))
    assert names(patched) == [srv.host]
    assert admitted(patched) == 50


def test_five_parallel_callers_at_half_open_make_one_request(
    client: Client, patched: Any, manual_clock: Any, srv: Script
) -> None:
    settings.use(settings.load(failure_threshold=1))
    srv.reply(503)
    with client.open() as caller:
        caller.get(srv.url())
    manual_clock.advance(30)
    gate, start, lock = threading.Event(), threading.Barrier(5, timeout=10), threading.Lock()
    srv.reply(200, json={"ok": True}, gate=gate)
    told: list[Any] = []

    def work() -> None:
        with client.open() as caller:
            start.wait()
            result = caller.get(srv.url())
        with lock:
            told.append(result)
            if len(told) == 4:
                gate.set()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert srv.hits == 2
    refused = [result.error for result in told if result.error is not None]
    assert [result.data for result in told if result.error is None] == [{"ok": True}]
    assert [isinstance(error, ProbeInFlightError) and isinstance(error, client.base) for error in refused] == [True] * 4
    assert [error.answer()["status"] for error in refused] == ["probe_in_flight"] * 4
    assert patched.get(srv.host).snapshot().state == "closed"
    stats = patched.get(srv.host).stats
    assert (stats.admitted, stats.probe, stats.probe_in_flight) == (1, 1, 4)


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_five_tasks_of_one_client_at_half_open_make_one_request(
    patched: Any, manual_clock: Any, srv: Script, library: str
) -> None:
    module = importlib.import_module(library)
    settings.use(settings.load(failure_threshold=1))
    srv.reply(503)
    module.get(srv.url())
    manual_clock.advance(30)
    gate = threading.Event()
    srv.reply(200, gate=gate)
    told: list[Any] = []

    async def one(client: Any) -> None:
        try:
            told.append((await client.get(srv.url())).status_code)
        except ProbeInFlightError as error:
            told.append(error.answer()["status"])
        if len(told) == 4:
            gate.set()

    async def main() -> None:
        async with module.AsyncClient() as client:
            await asyncio.gather(*(one(client) for _ in range(5)))

    asyncio.run(main())
    assert told == ["probe_in_flight"] * 4 + [200]
    assert srv.hits == 2


def test_neutral_probes_give_the_slot_back_B27(caller: Caller, patched: Any, manual_clock: Any, srv: Script) -> None:
    settings.use(settings.load(failure_threshold=2, cooldown=5))
    srv.reply(503, times=2)
    for _ in range(2):
        caller.get(srv.url())
    manual_clock.advance(5)
    for status in (404, 401):
        srv.reply(status)
        assert caller.get(srv.url()).status == status
        assert patched.get(srv.host).snapshot().state == "half_open"
    assert caller.get(srv.url()).status == 200
    assert patched.get(srv.host).snapshot().state == "closed"
    assert srv.hits == 5


@pytest.mark.parametrize("fault", ["refused", "dns", "tls_selfsigned", "rst_before_headers", "truncated"])
def test_no_probe_that_failed_on_the_wire_closes_B43(
    caller: Caller, patched: Any, manual_clock: Any, faults: FaultServer, fault: str
) -> None:
    url = faults.url(fault, "probe")
    circuit = patched.client(dependency_of_url(url))
    for _ in range(5):
        circuit.acquire().failure("timeout")
    manual_clock.advance(30)
    error = caller.get(url).error
    assert error is not None
    assert not isinstance(error, CircuitOpenError)
    shot = circuit.snapshot()
    assert (shot.state, shot.failures, shot.cooldown, circuit.stats.probe) == ("open", 6, 60.0, 1)


def test_twenty_threads_are_at_the_server_at_once_B34(client: Client, patched: Any, srv: Script) -> None:
    """Nobody is answered before all are there: a call that waited for another would break the barrier."""
    together: Any = threading.Barrier(20, timeout=10)
    srv.reply(200, json={"ok": True}, gate=together, times=None)
    told: list[Any] = []

    def work() -> None:
        with client.open() as caller:
            told.append(caller.get(srv.url()).data)

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [{"ok": True}] * 20
    assert srv.hits == 20
    assert outcomes(patched) == {"success": 20}


def test_many_calls_of_many_clients_are_counted_once_each_B48(client: Client, patched: Any, srv: Script) -> None:
    _patch.enable()  # a second time
    for _ in range(10):
        with client.open() as caller:
            caller.get(srv.url())
    with client.open() as caller:
        for _ in range(10):
            caller.get(srv.url())
    assert srv.hits == 20
    assert admitted(patched) == 20
    assert outcomes(patched) == {"success": 20}


def test_excluded_hosts_are_left_alone(caller: Caller, patched: Any, srv: Script) -> None:
    settings.use(settings.load(exclude=[srv.host]))
    caller.get(srv.url())
    assert names(patched) == []


def test_exporters_are_never_guarded_B66(caller: Caller, patched: Any, srv: Script) -> None:
    srv.reply(503, times=None)
    for _ in range(10):
        caller.get(srv.url(), headers={"User-Agent": "OTel-OTLP-Exporter-Python/1.45.2"})
    assert srv.hits == 10
    assert names(patched) == []


def test_real_exporters_are_never_guarded_B66(patched: Any, srv: Script) -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    class Direct(OTLPSpanExporter):
        """Exports as a program that calls `export` by itself does: nothing suppresses it."""

        def export(self, *args: Any, **kwargs: Any) -> Any:
            return contextvars.Context().run(super().export, *args, **kwargs)

    srv.default.status = 400  # not worth a retry
    for exporter in (OTLPSpanExporter, Direct):
        for processor in (SimpleSpanProcessor, BatchSpanProcessor):
            provider = TracerProvider()
            provider.add_span_processor(processor(exporter(endpoint=srv.url("/v1/traces"))))
            for _ in range(3):
                provider.get_tracer("test").start_span("span").end()
                provider.force_flush()
            provider.shutdown()
    assert srv.hits == 12
    assert names(patched) == []


def test_exporters_resume_at_once_when_the_collector_is_back_B66(patched: Any) -> None:
    """Metrics and traces, one at a time and in batches, to a port that is dead for a while."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    from otel_breaker.telemetry import metrics

    receiver = Receiver()
    traces = TracerProvider(shutdown_on_exit=False)
    for processor in (SimpleSpanProcessor, BatchSpanProcessor):
        traces.add_span_processor(processor(OTLPSpanExporter(endpoint=f"{receiver.endpoint}/v1/traces", timeout=0.05)))
    exporter = OTLPMetricExporter(endpoint=f"{receiver.endpoint}/v1/metrics", timeout=0.05)
    meters = MeterProvider([PeriodicExportingMetricReader(exporter, 1e9)], shutdown_on_exit=False)
    metrics.register(meters)
    try:
        for _ in range(7):  # more than would open a circuit
            traces.get_tracer("test").start_span("while down").end()
            traces.force_flush()
            meters.force_flush()
        assert names(patched) == []
        with receiver:
            exporter._timeout = 5
            traces.get_tracer("test").start_span("back").end()
            traces.force_flush()
            meters.force_flush()
    finally:
        metrics.unregister(meters)
        traces.shutdown()
        meters.shutdown()
    assert names(patched) == []
    assert [span.name for span in receiver.spans].count("back") == 2  # one of each processor
    assert receiver.value("otel_breaker.circuits") == 0
    assert receiver.value("otel_breaker.admissions") is None  # exporting is no call, down or up


def test_suppressed_calls_are_not_guarded(caller: Caller, patched: Any, srv: Script) -> None:
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    with suppress_instrumentation():
        caller.get(srv.url())
    assert names(patched) == []


def test_switched_off_it_calls_straight_through(caller: Caller, patched: Any, srv: Script) -> None:
    _patch.remove()
    assert caller.get(srv.url()).data == {"ok": True}
    assert names(patched) == []


def test_observe_counts_and_lets_through(client: Client, patched: Any, srv: Script) -> None:
    settings.use(settings.load(mode="observe"))
    srv.reply(503, times=5)
    with client.open() as caller:
        results = [caller.get(srv.url()) for _ in range(7)]
    assert srv.hits == 7
    assert results[-1].data == {"ok": True}
    assert patched.get(srv.host).stats.would_reject == 2


# --- 429, 401, credentials --------------------------------------------------------------------------------------------


def test_a_429_pauses_only_its_own_credential(client: Client, caller: Caller, patched: Any, srv: Script) -> None:
    srv.reply(429, headers={"Retry-After": "120"}, times=3)
    for _ in range(3):
        caller.get(srv.url(), headers={"Authorization": "Bearer one"})
    refused = caller.get(srv.url(), headers={"Authorization": "Bearer one"})
    other = caller.get(srv.url(), headers={"Authorization": "Bearer two"})
    assert srv.hits == 4
    assert isinstance(refused.error, CircuitOpenError)
    assert isinstance(refused.error, client.base)
    assert other.data == {"ok": True}


@pytest.mark.parametrize("how", ["header", "auth", "url", "url beside keys"])
def test_a_credential_that_worked_and_is_refused_is_revoked(
    client: Client, caller: Caller, patched: Any, srv: Script, how: str
) -> None:
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "header": (srv.url(), {"headers": {"Authorization": "Bearer one"}}),
        "auth": (srv.url(), {"auth": ("u", "p")}),
        "url": (srv.url().replace("://", "://u:p@"), {}),
        "url beside keys": (
            srv.url("/?api_key=k").replace("://", "://u:p@"),
            {"headers": {"X-Api-Key": "k", "Cookie": "session=s"}},
        ),
    }
    url, options = ways[how]
    assert caller.get(url, **options).status == 200
    srv.reply(401)
    assert caller.get(url, **options).status == 401
    refused = caller.get(url, **options)
    assert srv.hits == 2
    assert isinstance(refused.error, CircuitOpenError)
    assert refused.error.decision == "credential_paused"


def test_a_redirect_to_a_signed_url_elsewhere_is_not_the_credential_of_the_call(
    caller: Caller, patched: Any, srv: Script
) -> None:
    """What worked, and is revoked later, is the credential that the called host was shown."""
    mine = {"headers": {"Authorization": "Bearer one"}}
    with Script() as storage:
        srv.reply(302, headers={"Location": storage.url("/object?sig=signed")})
        assert caller.get(srv.url(), **mine).status == 200
        assert (srv.hits, storage.hits) == (1, 1)
    srv.reply(401)
    assert caller.get(srv.url(), **mine).status == 401
    refused = caller.get(srv.url(), **mine).error
    assert isinstance(refused, CircuitOpenError)
    assert refused.decision == "credential_paused"
    assert srv.hits == 2
    assert names(patched) == [srv.host]


def test_a_401_of_another_host_after_a_redirect_revokes_nothing(caller: Caller, patched: Any, srv: Script) -> None:
    mine = {"headers": {"Authorization": "Bearer one"}}
    assert caller.get(srv.url(), **mine).status == 200
    with Script() as storage:
        srv.reply(302, headers={"Location": storage.url()})
        storage.reply(401)
        assert caller.get(srv.url(), **mine).status == 401
    assert caller.get(srv.url(), **mine).status == 200
    (stats,) = patched.names()
    assert (stats.unauthorized, stats.revoked, stats.credential_paused) == (1, 0, 0)


def test_no_secret_is_kept_B122(caller: Caller, patched: Any, srv: Script, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "otel_breaker")
    url = srv.url("/p?api_key=S3CRET&X-Amz-Signature=S3CRET").replace("://", "://user:hunter2@")
    caller.get(url)
    srv.reply(503, times=None)
    errors = [caller.get(url).error for _ in range(7)]
    refusal = errors[-1]
    assert isinstance(refusal, CircuitOpenError)
    told = " ".join([str(refusal), repr(refusal), repr(refusal.__dict__), *names(patched), *caplog.messages])
    told += " ".join(repr(circuit.key) for circuit in patched)
    assert "S3CRET" not in told
    assert "hunter2" not in told


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["reset", "abort"])
def test_streams_that_break_half_way_open_it_B40(caller: Caller, patched: Any, srv: Script, fault: str) -> None:
    settings.use(settings.load(failure_threshold=3))
    srv.reply(chunks=[b"data: a\n\n", b"data: b\n\n"], fault=fault, times=None)
    results = [caller.get(srv.url()) for _ in range(4)]
    assert srv.hits == 3
    assert outcomes(patched) == {"failure": 3}
    assert patched.get(srv.host).snapshot().state == "open"
    assert isinstance(results[3].error, CircuitOpenError)
    assert not isinstance(results[2].error, CircuitOpenError)


@pytest.mark.parametrize("reader", ["iter_lines", "iter_content", "raw.stream"])
def test_a_stream_of_requests_that_breaks_raises_what_it_always_did_B40(patched: Any, srv: Script, reader: str) -> None:
    import requests

    settings.use(settings.load(failure_threshold=3))
    srv.reply(chunks=[b"data: a\n\n", b"data: b\n\n"], fault="reset", times=None)

    def read() -> tuple[list[bytes], list[str]]:
        got, error = list[bytes](), None
        with requests.get(srv.url(), stream=True) as response:
            pieces = {
                "iter_lines": response.iter_lines,
                "iter_content": lambda: response.iter_content(None),
                "raw.stream": response.raw.stream,
            }[reader]()
            try:
                got.extend(pieces)
            except Exception as caught:
                error = caught
        chain = []
        while error is not None:
            chain.append(type(error).__qualname__)
            error = error.__cause__ or error.__context__  # type: ignore[assignment]
        return got, chain

    _patch.remove()
    plain = read()
    _patch.enable()
    assert plain[1] != []
    assert [read() for _ in range(3)] == [plain] * 3
    assert outcomes(patched) == {"failure": 3}
    with pytest.raises(CircuitOpenError):
        requests.get(srv.url(), stream=True)
    assert srv.hits == 4


@pytest.mark.parametrize("library", ["requests", "httpx", "httpx2"])
def test_a_long_stream_takes_no_memory(patched: Any, srv: Script, library: str) -> None:
    import tracemalloc

    module = importlib.import_module(library)
    srv.reply(chunks=[b"x" * 65536] * 200)
    tracemalloc.start()
    try:
        if library == "requests":
            with module.get(srv.url(), stream=True) as response:
                size = sum(len(piece) for piece in response.iter_content(65536))
        else:
            with module.stream("GET", srv.url()) as response:
                size = sum(len(piece) for piece in response.iter_bytes())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == 200 * 65536
    assert peak < 4_000_000
    assert outcomes(patched) == {"success": 1}


def test_validate_json_counts_a_body_that_is_none(client: Client, patched: Any, faults: FaultServer) -> None:
    settings.use(settings.load(circuits=[{"match": {"dependency": "*"}, "validate": "json"}]))
    with client.open() as caller:
        result = caller.get(faults.url("htmlok", "validated"))
    assert result.status == 200
    assert outcomes(patched) == ({"success": 1} if client.stream else {"failure": 1})
    assert reasons(patched) == ({} if client.stream else {"malformed_output": 1})


def test_nothing_of_a_finished_call_is_kept(caller: Caller, patched: Any, srv: Script) -> None:
    import weakref

    response = caller.get(srv.url()).response
    gone = weakref.ref(response)
    del response
    gc.collect()
    assert gone() is None


# --- our own faults ---------------------------------------------------------------------------------------------------


def test_a_fault_of_ours_calls_through_once(
    caller: Caller, patched: Any, srv: Script, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from otel_breaker import _log
    from otel_breaker.instrumentations import _http

    def broken(*_: Any) -> Any:
        raise RuntimeError("ours")

    _log.forget()
    monkeypatch.setattr(_http, "circuit_for", broken)
    for _ in range(3):
        assert caller.get(srv.url()).data == {"ok": True}
    assert srv.hits == 3
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_judge_that_fails_leaves_the_answer_alone(
    caller: Caller, patched: Any, srv: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    from otel_breaker.instrumentations import _http

    def broken(*_: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr(_http, "answered", broken)
    assert caller.get(srv.url()).data == {"ok": True}
    assert srv.hits == 1
