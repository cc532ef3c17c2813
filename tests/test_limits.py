"""A loop that does not stop: 20,000 refusals cost a handful of log lines, events and records, and no memory.

Time stands by hand: 1/1024 s a call, so that the 20,000 take 19.5 s whatever the machine does.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import socket
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

import otel_breaker
from otel_breaker import Circuit, CircuitOpenError, Policy
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from otel_breaker.telemetry import emit, names
from tests.telemetry.signals import Signals

CALLS = 20_000
STEP = 1 / 1024
SECONDS = 20
"""Beginnings of a second among the calls: so many refusals are told."""

TRACED = 4_000
"""Refusals of which every allocation is traced, which takes six times as long."""

GROWTH_MAX = 20_000
"""Bytes that those may leave behind: 5 a refusal, where one object kept for each would be 50 and more."""

Refuse = Callable[[int], None]
"""Makes so many calls, all of which are refused."""


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Signals]:
    """Real SDK providers in the place of the program's."""
    emit._state.reset()
    emit._state.started = True
    emit.configure()
    made = Signals()
    made.install(monkeypatch)
    yield made
    made.shutdown()
    emit._state.reset()


@pytest.fixture
def dead() -> Iterator[str]:
    """A URL whose port is ours, and at which nobody listens."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/"


class Broken(Exception):
    pass


def guard_sync(clock: ManualClock, url: str) -> Refuse:
    @otel_breaker.guard(tool="t", policy=Policy(failure_threshold=1, cooldown=3600))
    def tool() -> str:
        raise Broken

    with pytest.raises(Broken):
        tool()

    def refuse(times: int) -> None:
        for _ in range(times):
            clock.advance(STEP)
            assert tool()["status"] == "circuit_open"

    return refuse


def guard_async(clock: ManualClock, url: str) -> Refuse:
    @otel_breaker.guard(tool="t", on_open="raise", policy=Policy(failure_threshold=1, cooldown=3600))
    async def tool() -> str:
        raise Broken

    with pytest.raises(Broken):
        asyncio.run(tool())

    async def refusals(times: int) -> None:
        for _ in range(times):
            clock.advance(STEP)
            try:
                await tool()
            except CircuitOpenError:
                continue
            raise AssertionError("not refused")

    return lambda times: asyncio.run(refusals(times))


def client(library: str) -> Callable[[ManualClock, str], Refuse]:
    def make(clock: ManualClock, url: str) -> Refuse:
        module = importlib.import_module(library)
        opened = (module.Session if library == "requests" else module.Client)()
        for _ in range(5):
            with pytest.raises(Exception, match="refused"):
                opened.get(url)

        def refuse(times: int) -> None:
            for _ in range(times):
                clock.advance(STEP)
                try:
                    opened.get(url)
                except CircuitOpenError:
                    continue
                raise AssertionError("not refused")

        return refuse

    return make


def httpx_async(clock: ManualClock, url: str) -> Refuse:
    import httpx

    async def failures() -> None:
        async with httpx.AsyncClient() as opened:
            for _ in range(5):
                with pytest.raises(httpx.ConnectError):
                    await opened.get(url)

    async def refusals(times: int) -> None:
        async with httpx.AsyncClient() as opened:
            for _ in range(times):
                clock.advance(STEP)
                try:
                    await opened.get(url)
                except CircuitOpenError:
                    continue
                raise AssertionError("not refused")

    asyncio.run(failures())
    return lambda times: asyncio.run(refusals(times))


LOOPS: dict[str, Callable[[ManualClock, str], Refuse]] = {
    "guard": guard_sync,
    "guard, async": guard_async,
    "requests": client("requests"),
    "httpx": client("httpx"),
    "httpx, async": httpx_async,
    "httpx2": client("httpx2"),
}


@pytest.fixture(params=LOOPS)
def refuse(
    request: pytest.FixtureRequest, patched: Registry, manual_clock: ManualClock, dead: str, signals: Signals
) -> Refuse:
    """An open circuit, and calls to it. Its cooldown is longer than all of them take."""
    otel_breaker.settings.use(otel_breaker.settings.load(cooldown=3600, cooldown_cap=3600))
    made = LOOPS[request.param](manual_clock, dead)
    signals.forget()
    return made


@pytest.mark.parametrize("around", ["nothing", "a recording span"])
def test_a_tight_loop_of_refusals_says_little(
    refuse: Refuse, around: str, signals: Signals, patched: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    if around == "nothing":
        refuse(CALLS)
    else:
        with signals.tracer.start_as_current_span("agent"):
            refuse(CALLS)

    (stats,) = patched.names()
    assert stats.circuit_open == CALLS
    assert [one.getMessage() for one in caplog.records if one.name.startswith(("otel_breaker", "opentelemetry"))] == []

    told = [attributes for name, _, attributes in signals.plain_logs if name == names.CALL_REJECTED]
    assert len(signals.plain_logs) == len(told) == SECONDS
    assert sum(one[names.MERGED] for one in told) == (SECONDS - 1) * 1024 + 1  # the rest waits for its next second

    if around == "nothing":
        assert [span.name for span in signals.spans] == [f"otel_breaker {stats.name}"] * SECONDS
        assert [len(span.events) for span in signals.spans] == [1] * SECONDS
    else:
        (span,) = signals.spans
        assert Counter(event.name for event in span.events) == {names.CALL_REJECTED: 32}
        assert span.attributes is not None
        assert span.attributes[names.EVENTS_DROPPED] == CALLS - 32


def test_a_tight_loop_of_refusals_leaves_nothing_behind(refuse: Refuse, signals: Signals) -> None:
    refuse(1_000)  # caches are full from here on
    signals.forget()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        refuse(TRACED)
        signals.forget()  # what was told is the exporter's, and bounded as above
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < GROWTH_MAX


@pytest.mark.parametrize("scope", ["dependency", "instance"])
def test_five_thousand_short_lived_owners_have_bounded_names_series_and_circuits(
    scope: str, breaker_registry: Registry, configure: Callable[..., None], signals: Signals
) -> None:
    """An agent that makes its tools anew, each with a name of its own, for every conversation."""
    configure(scope=scope, max_circuits=100)
    for number in range(5_000):

        def tool() -> str:
            return "ok"

        assert otel_breaker.guard(tool=f"search {number}")(tool)() == "ok"
    gc.collect()

    assert len(breaker_registry) == (100 if scope == "dependency" else 0)
    assert len(breaker_registry.names()) == 201
    found = signals.collect()
    assert sum(point.value for point in found["otel_breaker.admissions"].data.data_points) == 5_000
    series = {name: len(metric.data.data_points) for name, metric in found.items()}
    assert series == {
        "otel_breaker.admissions": 201 * 8,
        "otel_breaker.outcomes": 201 * 7,
        "otel_breaker.transitions": 201 * 4,
        "otel_breaker.status": 201 * 5,
        "otel_breaker.tools": 300,  # one for each of 200 names, 100 for `_other`
        "otel_breaker.circuits": 1,
        "otel_breaker.store.errors": 1,
    } | dict.fromkeys(
        [
            "otel_breaker.cooldowns_elapsed",
            "otel_breaker.awaiting_probe",
            "otel_breaker.cooldown.remaining",
            "otel_breaker.open.elapsed",
            "otel_breaker.time_saved",
            "otel_breaker.credentials.revoked",
            "otel_breaker.credentials.paused",
            "otel_breaker.credentials.throttled",
        ],
        201,
    )


def test_five_thousand_circuits_by_hand_are_gone_with_their_owners(breaker_registry: Registry) -> None:
    for number in range(5_000):
        Circuit(f"agent {number}").acquire().success()
    gc.collect()
    assert len(breaker_registry) == 0
    assert len(breaker_registry.names()) == 201
    assert sum(stats.success for stats in breaker_registry.names()) == 5_000
