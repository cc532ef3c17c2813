"""Providers of our own, against a real receiver, in processes of their own: global state is the matter here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_breaker import __version__
from tests.support.otlp import Receiver

ROOT = Path(__file__).resolve().parents[2]

PREAMBLE = """
import os, signal, sys, threading, time
from opentelemetry import metrics, trace
from opentelemetry._logs import get_logger_provider, set_logger_provider
from otel_breaker import Circuit, Policy, flush, guard, registry
from otel_breaker.telemetry import emit, providers

policy = Policy(failure_threshold=1)

@guard
def refund(amount):
    return amount
"""


def launch(code: str, env: dict[str, str]) -> subprocess.Popen[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(code)],
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str, env: dict[str, str], status: int = 0) -> str:
    process = launch(code, env)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert "Traceback" not in err, err
    return out


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


# --- export -----------------------------------------------------------------------------------------------------------


def test_all_three_signals_leave_through_providers_that_are_not_global(receiver: Receiver) -> None:
    out = run(
        """
        circuit = Circuit("api.test", policy)
        circuit.acquire().failure("timeout")
        assert refund(5) == 5
        print(type(trace.get_tracer_provider()).__name__, type(metrics.get_meter_provider()).__name__,
              type(get_logger_provider()).__name__)
        """,
        receiver.environment(OTEL_SERVICE_NAME="agent"),
    )

    assert out.split() == ["ProxyTracerProvider", "_ProxyMeterProvider", "ProxyLoggerProvider"]
    assert receiver.value("otel_breaker.status", otel_breaker__name="api.test", otel_breaker__state="open") == 1
    assert (
        receiver.value("otel_breaker.admissions", otel_breaker__name="refund", otel_breaker__decision="admitted") == 1
    )
    assert [span.name for span in receiver.spans] == ["otel_breaker api.test", "otel_breaker refund"]
    assert [log.event_name for log in receiver.logs] == ["otel_breaker.state.changed"]
    everything: list[Any] = [*receiver.points, *receiver.spans, *receiver.logs]
    assert {(one.scope.name, one.scope.version) for one in everything} == {("otel_breaker", __version__)}
    assert {one.resource["service.name"] for one in everything} == {"agent"}
    (instance,) = {one.resource["service.instance.id"] for one in everything}
    assert instance


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, set()),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}, {"metrics"}),
        ({"OTEL_METRICS_EXPORTER": "none"}, {"spans", "logs"}),
        ({"OTEL_BREAKER_EVENTS": "none", "OTEL_BREAKER_SPANS": "never"}, {"metrics"}),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, {"metrics", "spans", "logs"}),
    ],
)
def test_the_usual_variables_decide(receiver: Receiver, more: dict[str, str], expected: set[str]) -> None:
    run("""Circuit("api.test", policy).acquire().failure("timeout")""", receiver.environment(**more))

    found = {"metrics": receiver.points, "spans": receiver.spans, "logs": receiver.logs}
    assert {name for name, got in found.items() if got} == expected


def test_without_an_endpoint_there_is_nothing(receiver: Receiver) -> None:
    out = run(
        """
        Circuit("api.test", policy).acquire().failure("timeout")
        print(providers._state.mine, threading.active_count(), "opentelemetry.sdk" in sys.modules)
        """,
        {},
    )

    assert out.strip() == "{} 1 False"


def test_an_endpoint_of_one_signal_exports_that_signal(receiver: Receiver) -> None:
    run(
        """Circuit("api.test", policy).acquire().failure("timeout")""",
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{receiver.endpoint}/v1/metrics",
         "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"},
    )  # fmt: skip

    assert (bool(receiver.points), receiver.spans, receiver.logs) == (True, [], [])


def test_console_exporters(receiver: Receiver) -> None:
    names = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")
    out = run("""refund(1); Circuit("api.test", policy).force_open("x")""", dict.fromkeys(names, "console"))

    for part in ('"name": "otel_breaker refund"', '"name": "otel_breaker.admissions"', "otel_breaker.state.changed"):
        assert part in out


def test_an_exporter_that_is_not_installed_is_said_once() -> None:
    process = launch("""refund(1); refund(2)""", {"OTEL_METRICS_EXPORTER": "nonesuch"})
    _, err = process.communicate(timeout=60)

    assert (process.returncode, err.strip()) == (0, "no metrics exporter named 'nonesuch' is installed")


def test_metrics_leave_at_their_interval_and_resume_when_the_collector_is_back() -> None:
    receiver = Receiver()
    process = launch(
        """
        circuit = Circuit("api.test", policy)
        circuit.acquire().failure("timeout")
        print("ready", flush=True)
        sys.stdin.read()
        """,
        receiver.environment(
            OTEL_METRIC_EXPORT_INTERVAL="100", OTEL_EXPORTER_OTLP_TIMEOUT="1", OTEL_TRACES_EXPORTER="none"
        ),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with receiver:
            assert receiver.wait_for(lambda: receiver.value("otel_breaker.cooldowns_elapsed") == 0)
            # No circuit for the collector's own address, although it was down.
            names = {point.attributes["otel_breaker.name"] for point in receiver.points if point.attributes}
            assert names == {"api.test", "refund"}
    finally:
        process.kill()
        process.communicate()


def test_delta_temporality_is_the_exporters_business(receiver: Receiver) -> None:
    run(
        """
        circuit = Circuit("api.test")
        for _ in range(2):
            circuit.acquire().success()
            assert flush()
        """,
        receiver.environment(OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE="delta"),
    )

    got = [
        point.value for point in receiver.points
        if point.name == "otel_breaker.admissions"
        and point.attributes == {"otel_breaker.name": "api.test", "otel_breaker.decision": "admitted"}
    ]  # fmt: skip
    assert got[:2] == [1, 1]
    assert {p.delta for p in receiver.points if p.name == "otel_breaker.admissions"} == {True}


def test_our_own_traffic_runs_suppressed(receiver: Receiver) -> None:
    out = run(
        """
        import requests
        real, seen = requests.Session.request, []
        def spy(*args, **kwargs):
            seen.append(emit.suppressed(emit.current()))
            return real(*args, **kwargs)
        requests.Session.request = spy
        Circuit("api.test", policy).acquire().failure("timeout")
        assert flush()
        print(set(seen), [stats.name for stats in registry().names()])
        """,
        receiver.environment(),
    )

    assert out.strip() == "{True} ['refund', 'api.test']"


# --- the program's own providers --------------------------------------------------------------------------------------

OWN = """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

spans, logs, reader = InMemorySpanExporter(), InMemoryLogRecordExporter(), InMemoryMetricReader()

def set_own():
    traces, records = TracerProvider(), LoggerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    records.add_log_record_processor(SimpleLogRecordProcessor(logs))
    trace.set_tracer_provider(traces)
    set_logger_provider(records)
    metrics.set_meter_provider(MeterProvider([reader]))

def points(name, **attributes):
    return {
        point.attributes["otel_breaker.name"]: point.value
        for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics
        for metric in scope.metrics if metric.name == f"otel_breaker.{name}"
        for point in metric.data.data_points
        if all(point.attributes[f"otel_breaker.{key}"] == value for key, value in attributes.items())
    }

def admitted():
    return points("admissions", decision="admitted")
"""


@pytest.mark.parametrize("exporting", [False, True])
def test_providers_set_late_get_everything_B79(receiver: Receiver, exporting: bool) -> None:
    """One call, then the program sets its providers, then more calls."""
    out = run(
        OWN
        + textwrap.dedent("""
        refund(1)
        set_own()
        refund(2)
        held = Circuit("api.test", policy)
        held.acquire().failure("timeout")
        assert flush()
        deadline = time.monotonic() + 20
        while providers._state.thread and providers._state.thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        print(admitted(), points("status", state="open"))
        print([span.name for span in spans.get_finished_spans()])
        print([log.log_record.event_name for log in logs.get_finished_logs()])
        print(providers._state.mine)
        """),
        receiver.environment() if exporting else {},
    )

    assert out.splitlines() == [
        "{'refund': 2, 'api.test': 1} {'refund': 0, 'api.test': 1}",
        "['otel_breaker refund', 'otel_breaker api.test']",
        "['otel_breaker.state.changed']",
        "{}",
    ]
    # What was ours was flushed when it was dropped, and nothing went out twice afterwards.
    assert [span.name for span in receiver.spans] == (["otel_breaker refund"] if exporting else [])
    assert receiver.logs == []


def test_providers_set_before_leave_nothing_to_us(receiver: Receiver) -> None:
    out = run(
        OWN + "set_own(); refund(1); print(admitted(), providers._state.mine, threading.active_count())",
        receiver.environment(),
    )

    assert out.strip() == "{'refund': 1} {} 1"
    assert receiver.requests == 0


def test_instruments_are_created_once_whatever_the_order() -> None:
    """A second creation is ignored by the SDK with its callbacks, and logged."""
    process = launch(
        OWN
        + textwrap.dedent("""
        from otel_breaker.telemetry import metrics as ours
        refund(1)
        set_own()
        ours.register(); ours.register(metrics.get_meter_provider()); emit.start()
        refund(2)
        print(admitted())
        """),
        {},
    )
    out, err = process.communicate(timeout=60)

    assert (out.strip(), err) == ("{'refund': 2}", "")


# --- the end of the process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("kind", ["dead", "silent"])
def test_an_unreachable_collector_holds_up_neither_calls_nor_the_end_B76(silent: str, kind: str, protocol: str) -> None:
    """95 % of calls under 5 ms more, exit within 5 s."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = silent if kind == "silent" else f"http://127.0.0.1:{taken.getsockname()[1]}"
        process = launch(
            """
            refund(0)
            error = KeyError("mine")

            @guard
            def broken():
                raise error

            for _ in range(5):
                try:
                    broken()
                except KeyError as caught:
                    assert caught is error and error.__context__ is None
            assert broken()["status"] == "circuit_open"
            times = []
            for number in range(200):
                began = time.perf_counter()
                refund(number)
                times.append(time.perf_counter() - began)
            print(sorted(times)[190], flush=True)
            """,
            {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
             "OTEL_METRIC_EXPORT_INTERVAL": "50"},
        )  # fmt: skip
        assert process.stdout is not None
        slowest = float(process.stdout.readline())
        began = time.monotonic()
        process.communicate(timeout=60)
        took = time.monotonic() - began

    assert process.returncode == 0
    assert slowest < 0.005
    assert took < 5


def test_sigterm_flushes_and_still_ends_the_process(receiver: Receiver) -> None:
    process = launch(
        """
        first = threading.Thread(target=refund, args=(1,))  # the first call is not the main thread's
        first.start()
        first.join()
        refund(2)
        print("ready", flush=True)
        while True:
            time.sleep(1)
        """,
        receiver.environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    process.communicate(timeout=10)

    assert process.returncode == -signal.SIGTERM
    assert receiver.value("otel_breaker.admissions", otel_breaker__decision="admitted") == 2
    assert [span.name for span in receiver.spans] == ["otel_breaker refund"] * 2


def test_a_handler_of_the_programs_own_is_left_alone(receiver: Receiver) -> None:
    out = run(
        """
        def mine(number, frame): print("mine", flush=True)
        signal.signal(signal.SIGTERM, mine)
        refund(1)
        assert signal.getsignal(signal.SIGTERM) is mine
        os.kill(os.getpid(), signal.SIGTERM)
        """,
        receiver.environment(),
    )

    assert out.strip() == "mine"


# --- fork -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system; run the suite on Linux")
def test_forked_children_report_for_themselves(receiver: Receiver) -> None:
    run(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        circuit = registry().client("api.test")
        for _ in range(3):
            circuit.acquire().success()
        assert flush()
        for number in range(2):
            child = os.fork()
            if not child:
                circuit.acquire().success()
                circuit.acquire().success()
                os._exit(0 if flush() else 3)
            assert os.waitpid(child, 0)[1] == 0
        circuit.acquire().success()
        """,
        receiver.environment(OTEL_RESOURCE_ATTRIBUTES="service.instance.id=told"),
    )

    def writers(items: list[Any]) -> dict[str, int]:
        found: dict[str, int] = {}
        for item in items:
            found[item.resource["service.instance.id"]] = found.get(item.resource["service.instance.id"], 0) + 1
        return found

    spans = writers(receiver.spans)
    assert spans.pop("told") == 4
    assert list(spans.values()) == [2, 2]
    assert set(writers(receiver.points)) == {"told", *spans}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system; run the suite on Linux")
def test_a_child_that_makes_no_call_exports_nothing(receiver: Receiver) -> None:
    run(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        refund(1)
        assert flush()
        child = os.fork()
        if not child:
            time.sleep(0.3)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
        receiver.environment(OTEL_METRIC_EXPORT_INTERVAL="60000"),
    )

    assert len({point.resource["service.instance.id"] for point in receiver.points}) == 1
    assert len(receiver.spans) == 1


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_nothing_of_a_url_but_its_host_leaves(receiver: Receiver) -> None:
    run(
        """
        from otel_breaker import _guard
        from otel_breaker._frames import Site
        from otel_breaker.keys import dependency_of_url

        url = "https://user:pw@host.test/p?api_key=S3CRET&X-Amz-Signature=S3CRET#S3CRET"
        circuit = registry().client(dependency_of_url(url))
        circuit.policy = policy
        def fail():
            raise ConnectionError(f"cannot reach {url}")
        for body in (dict, fail, dict):
            try:
                _guard.call(Site("test"), circuit, body, (), {})
            except Exception:
                pass
        """,
        receiver.environment(),
    )

    assert b"host.test" in receiver.raw
    assert b"S3CRET" not in receiver.raw
    assert b"pw@" not in receiver.raw
    assert b"api_key" not in receiver.raw
