"""What a reader finds when it collects: every series from the first call on, whatever is busy or broken meanwhile."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
import requests
from langchain_core.tools import StructuredTool
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

import otel_breaker
from otel_breaker import Circuit, Policy, registry, settings
from otel_breaker.core.clock import ManualClock
from otel_breaker.instrumentations import _patch
from otel_breaker.outcomes import Outcome
from otel_breaker.telemetry import metrics
from tests.support import mcp_client
from tests.support.circuits import trip
from tests.support.faults import Script
from tests.support.mcp_process import HttpServer, wait_until
from tests.telemetry.signals import Series, Signals, series

PATIENCE = 20.0
"""Seconds that a collection may take; it takes milliseconds."""
STATES = ("closed", "open", "half_open", "forced_open", "disabled")
DECISIONS = (
    "admitted", "probe", "circuit_open", "probe_in_flight", "forced_open", "credential_paused", "throttled",
    "would_reject",
)  # fmt: skip
OUTCOMES = ("success", "failure", "neutral", "throttled", "unauthorized", "cancelled", "late")
MOVES = (("closed", "open"), ("open", "half_open"), ("half_open", "closed"), ("half_open", "open"))


# --- B78: whatever is busy or broken ----------------------------------------------------------------------------------


class Door:
    """Notes what one thread asks of the operating system, by the interpreter's own audit events."""

    HEARD = ("open", "os.", "socket.", "subprocess.", "sqlite3.", "urllib.", "http.", "time.sleep", "import", "exec")

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.thread: int | None = None
        sys.addaudithook(self._hear)  # for good: there is no way to take one out

    def _hear(self, event: str, args: Any) -> None:
        if self.thread == threading.get_ident() and event.startswith(self.HEARD):
            self.heard.append(event)

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        self.heard, self.thread = [], threading.get_ident()
        try:
            yield self.heard
        finally:
            self.thread = None


DOOR = Door()


def test_the_door_is_watched() -> None:
    with DOOR.watched() as heard:
        open("/dev/null").close()
        time.sleep(0)
    assert heard[0] == "open"


def every_kind(clock: ManualClock) -> list[Circuit]:
    """A circuit in each state, one with a throttled and one with a revoked credential."""
    made = [Circuit(name, Policy(failure_threshold=1)) for name in ("closed", "open", "half_open", "forced", "off")]
    trip(made[2])
    clock.advance(30)
    made[2].acquire()
    trip(made[1])
    made[3].force_open("maintenance")
    made[4].disable()
    throttled = registry().client("api.test")
    for _ in range(3):
        throttled.heir("tenant").acquire().throttled(120)
    return [*made, throttled]


def test_collecting_does_no_io_B78(signals: Signals, clock: ManualClock) -> None:
    every_kind(clock)
    signals.collect()
    with DOOR.watched() as heard:
        data = signals.reader.get_metrics_data()
    assert data is not None
    assert heard == []


@contextmanager
def held(*locks: Any) -> Iterator[None]:
    """Another thread has taken these locks and keeps them."""
    taken, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            taken.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(PATIENCE)
    try:
        yield
    finally:
        leave.set()
        thread.join()


def in_time(collect: Callable[[], Any]) -> Any:
    """What it returns, if it returns."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(collect()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "collecting waits for a lock"
    return found[0]


def test_collecting_waits_for_no_circuit_that_is_busy_B78(signals: Signals, clock: ManualClock) -> None:
    circuits = every_kind(clock)
    circuits += list((circuits[-1].quotas or {}).values())
    assert len(circuits) == 7
    before = {name: series(metric) for name, metric in signals.collect().items()}
    with held(*(circuit._lock for circuit in circuits), *{id(c.stats): c.stats.lock for c in circuits}.values()):
        found = in_time(signals.collect)
    assert {name: series(metric) for name, metric in found.items()} == before
    assert before["otel_breaker.status"]["half_open", "half_open"] == 1
    assert before["otel_breaker.credentials.throttled"]["api.test",] == 1


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``broken(name)``: the snapshot of that circuit raises from now on; an empty name heals it."""
    names = [""]
    real = Circuit.snapshot

    def snapshot(circuit: Circuit) -> Any:
        if circuit.name == names[0]:
            raise RuntimeError("injected")
        return real(circuit)

    monkeypatch.setattr(Circuit, "snapshot", snapshot)
    return lambda name: names.__setitem__(0, name)


@pytest.mark.parametrize("bad", [0, 1, 2], ids=["first", "between", "last"])
def test_a_circuit_that_cannot_be_read_hides_no_other_B78(
    bad: int, signals: Signals, broken: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    circuits = [trip(Circuit(f"host-{number}.test")) for number in range(3)]
    before = {name: series(metric) for name, metric in signals.collect().items()}
    broken(circuits[bad].name)
    for _ in range(3):
        found = {name: series(metric) for name, metric in signals.collect().items()}
        for name, told in before.items():
            assert {k: v for k, v in found[name].items() if circuits[bad].name not in k} == {
                k: v for k, v in told.items() if circuits[bad].name not in k
            }
        # What was counted is known all the same; what it is like right now is not.
        assert found["otel_breaker.transitions"] == before["otel_breaker.transitions"]
        assert sum(v for k, v in found["otel_breaker.status"].items() if circuits[bad].name in k) == 0
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].startswith("a circuit could not be read for metrics (RuntimeError at ")
    broken("")
    assert {name: series(metric) for name, metric in signals.collect().items()} == before


class Exported(MetricExporter):
    """Remembers what a reader's thread exports."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Series] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        for resource in metrics_data.resource_metrics:
            for scope in resource.scope_metrics:
                self.told += [series(metric) for metric in scope.metrics if metric.name == "otel_breaker.status"]
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None: ...

    def next(self) -> Series:
        """What is exported from now on: the second one, whose collection began after this call."""
        seen = len(self.told)
        wait_until(lambda: len(self.told) >= seen + 2, "an export")
        return self.told[-1]


def test_a_readers_thread_survives_all_of_it_B78(broken: Callable[[str], None], monkeypatch: Any) -> None:
    circuit, other = trip(Circuit("bad.test")), Circuit("good.test")
    exporter = Exported()
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=5)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics.register(provider)
    good = {("good.test", state): int(state == "closed") for state in STATES}
    bad = {("bad.test", state): int(state == "open") for state in STATES}
    try:
        assert exporter.next() == good | bad
        broken("bad.test")
        assert exporter.next() == good | dict.fromkeys(bad, 0)
        broken("")
        with held(circuit._lock, other._lock):
            assert exporter.next() == good | bad
        failed: list[str] = []

        def gauges(collector: Any, instrument: str) -> Any:
            failed.append(instrument)
            raise RuntimeError("injected")

        with monkeypatch.context() as patch:  # not one circuit, but all callbacks that look at them
            patch.setattr(metrics._Collector, "gauges", gauges)
            wait_until(lambda: failed.count("otel_breaker.status") >= 3, "three collections")
        assert exporter.next() == good | bad
        assert reader._daemon_thread is not None
        assert reader._daemon_thread.is_alive()
    finally:
        metrics.unregister(provider)
        provider.shutdown()


def test_one_callback_that_fails_empties_only_its_own_instrument_B78(
    signals: Signals, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry().client("api.test")
    before = {name: series(metric) for name, metric in signals.collect().items()}
    with monkeypatch.context() as patch:
        patch.setattr(metrics, "_status", lambda collector: 1 / 0)
        found = {name: series(metric) for name, metric in signals.collect().items()}
    assert found == {name: told for name, told in before.items() if name != "otel_breaker.status"}
    assert [record.name for record in caplog.records] == ["otel_breaker"]  # the SDK has met no exception


# --- B83: from the first admission on ---------------------------------------------------------------------------------


@pytest.fixture
def patched_all(fresh: Any) -> Iterator[None]:
    """All libraries, patched."""
    mcp_client.modules()
    settings.use(settings.load())
    _patch.enable()
    yield
    _patch.remove()


@contextmanager
def stopped(call: Callable[[], Any]) -> Iterator[None]:
    """While another thread makes this call; it ends by what is done inside."""
    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def by_guard(collect: Callable[[], Any]) -> dict[str, tuple[str, ...]]:
    @otel_breaker.guard(tool="search")
    def search() -> None:
        collect()

    search()
    return {"search": ("search",)}


def by_langchain(collect: Callable[[], Any]) -> dict[str, tuple[str, ...]]:
    def search() -> str:
        collect()
        return "found"

    StructuredTool.from_function(search, description="Search.").invoke({})
    return {"search": ("search",)}


def by_client(ask: Callable[[str], Any]) -> Callable[[Callable[[], Any]], dict[str, tuple[str, ...]]]:
    def run(collect: Callable[[], Any]) -> dict[str, tuple[str, ...]]:
        with Script() as srv:
            gate = threading.Event()
            srv.reply(200, gate=gate)
            with stopped(lambda: ask(srv.url())):
                wait_until(lambda: srv.hits, "the request")
                collect()
                gate.set()
            return {srv.host: ()}

    return run


async def ask_async(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(url)


def by_mcp(collect: Callable[[], Any]) -> dict[str, tuple[str, ...]]:
    with HttpServer() as server:

        async def call() -> None:
            async with mcp_client.open_http(server) as session:
                await session.call_tool("hold", {})

        with stopped(lambda: asyncio.run(call())):
            server.arrived("tools/call", "hold")
            collect()
            server.release()
        return {server.name: (), f"{server.name}#connect": (), f"{server.name}/hold": ("hold",)}


WAYS: dict[str, Callable[[Callable[[], Any]], dict[str, tuple[str, ...]]]] = {
    "guard": by_guard,
    "requests": by_client(lambda url: requests.get(url, timeout=PATIENCE)),
    "httpx": by_client(lambda url: httpx.get(url, timeout=PATIENCE, trust_env=False)),
    "httpx, async": by_client(lambda url: asyncio.run(ask_async(url))),
    "MCP": by_mcp,
    "LangChain": by_langchain,
}


def of_circuit(name: str) -> dict[str, Series]:
    """Every series of a name that has admitted one call and seen nothing else."""
    each = (
        "cooldowns_elapsed", "awaiting_probe", "cooldown.remaining", "open.elapsed", "time_saved",
        "credentials.revoked", "credentials.paused", "credentials.throttled",
    )  # fmt: skip
    return {
        "admissions": {(decision, name): int(decision == "admitted") for decision in DECISIONS},
        "outcomes": {(name, outcome): 0 for outcome in OUTCOMES},
        "transitions": {(name, *move): 0 for move in MOVES},
        "status": {(name, state): int(state == "closed") for state in STATES},
        **{one: {(name,): 0} for one in each},
    }


@pytest.mark.parametrize("way", WAYS)
def test_at_the_first_admission_of_a_name_every_counter_of_it_is_there_at_zero_B83(
    way: str, signals: Signals, patched_all: None
) -> None:
    """Collected while the first call is under way: a counter that is born at 1 would hide what it counts first."""
    found: dict[str, Series] = {}

    def collect() -> None:
        found.update({name.removeprefix("otel_breaker."): series(metric) for name, metric in signals.collect().items()})

    tools = WAYS[way](collect)
    expected: dict[str, Series] = {"circuits": {(): len(tools)}, "store.errors": {(): 0}}
    for name in tools:
        for metric, told in of_circuit(name).items():
            expected[metric] = expected.get(metric, {}) | told
    for name in tools:
        if name.endswith("#connect"):  # that call is over: the session stands
            expected["outcomes"][name, "success"] = 1
    assert {metric: told for metric, told in found.items() if metric != "tools"} == expected


def test_a_guards_series_are_there_before_its_first_call_B83(signals: Signals) -> None:
    otel_breaker.guard(tool="search")(dict)
    expected = of_circuit("search")
    expected["admissions"]["admitted", "search"] = 0
    found = {name.removeprefix("otel_breaker."): series(metric) for name, metric in signals.collect().items()}
    assert found == expected | {
        "circuits": {(): 1},
        "store.errors": {(): 0},
        "tools": {("search", "search"): 1},
    }


def test_a_reason_is_born_when_it_is_first_seen_and_the_outcome_was_there_B83(signals: Signals) -> None:
    """``failures`` by reason has no series beforehand; a rule that must see the first one asks for the outcomes."""
    circuit = registry().client("api.test")
    assert "otel_breaker.failures" not in signals.collect()
    assert signals.series("otel_breaker.outcomes")["api.test", "failure"] == 0
    circuit.settle(circuit.current, Outcome("failure", "timeout"))
    assert signals.series("otel_breaker.failures") == {("timeout", "api.test"): 1}
    assert signals.series("otel_breaker.outcomes")["api.test", "failure"] == 1
