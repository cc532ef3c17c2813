"""One script of outcomes: sync and async functions, generators and clients give equal transitions and counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import otel_breaker
from otel_breaker import Circuit, CircuitOpenError, Policy, Transition
from otel_breaker._registry import Registry, swap
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, decisions, moves, of, outcomes, reasons
from tests.support.clients import CLIENTS, Client
from tests.support.faults import Script

SCRIPT: tuple[str | float, ...] = (
    "ok", "fault", "ok", "fault", "bad argument", "fault", "reset", "bad result", "timeout",  # opens on the fifth
    "refused", 10.0, "refused", 20.0, "fault",  # a failed probe
    "refused", 60.0, "bad argument", "denied", "ok",  # two neutral probes, then one that closes
    "ok", "throttled", "throttled", "ok", "throttled", "throttled", "throttled",  # opens by throttles
    "refused", 30.0, "throttled", 60.0, "ok",
    "unauthorized", "interrupt", "cancelled", "fault", "fault", "error dict", "fault", "reset", "refused",
    30.0 + 900.0 + 300.0, "ok",  # expired
)  # fmt: skip

ERRORS: dict[str, Callable[[], BaseException]] = {
    "fault": Fault,
    "bad argument": ValueError,
    "denied": PermissionError,
    "reset": ConnectionResetError,
    "timeout": TimeoutError,
    "interrupt": KeyboardInterrupt,
    "cancelled": asyncio.CancelledError,
    "refused": AssertionError,  # must not be reached
}


def perform(what: str) -> Any:
    """What the body does at one word of the script; ``word:`` is what the classifier makes of the result."""
    if what in ERRORS:
        raise ERRORS[what]()
    if what == "error dict":
        return {"error": "boom"}
    return what


def classify(what: Any) -> str | None:
    return what if what in ("throttled", "unauthorized") else None


OPTIONS: dict[str, Any] = {"tool": "t", "validate": lambda result: result != "bad result", "classify": classify}


def by_sync(registry: Registry) -> tuple[Circuit, Callable[[str], Any]]:
    @otel_breaker.guard(**OPTIONS)
    def tool(what: str) -> Any:
        return perform(what)

    return of(tool), tool


def by_async(registry: Registry) -> tuple[Circuit, Callable[[str], Any]]:
    @otel_breaker.guard(**OPTIONS)
    async def tool(what: str) -> Any:
        await asyncio.sleep(0)
        return perform(what)

    async def one(what: str) -> Any:
        return await tool(what)

    return of(tool), lambda what: drive(one(what))


def by_generator(registry: Registry) -> tuple[Circuit, Callable[[str], Any]]:
    @otel_breaker.guard(**OPTIONS)
    def tool(what: str) -> Iterator[Any]:
        yield "an item"
        return perform(what)

    def run(what: str) -> Any:
        stream = tool(what)
        first = next(stream)
        if isinstance(first, dict):
            assert list(stream) == []
            return first
        with pytest.raises(StopIteration) as stop:
            next(stream)
        return stop.value.value

    return of(tool), run


def by_call(registry: Registry) -> tuple[Circuit, Callable[[str], Any]]:
    return by_hand(lambda circuit: circuit.call)


def by_acall(registry: Registry) -> tuple[Circuit, Callable[[str], Any]]:
    async def acall(circuit: Circuit, what: str) -> Any:
        async def body() -> Any:
            await asyncio.sleep(0)
            return perform(what)

        return await circuit.acall(body)

    return by_hand(lambda circuit: lambda perform, what: drive(acall(circuit, what)))


def by_with(registry: Registry) -> tuple[Circuit, Callable[[str], Any]]:
    def enter(circuit: Circuit) -> Any:
        def run(function: Any, what: str) -> Any:
            with circuit:
                return function(what)

        return run

    return by_hand(enter)


def by_hand(way: Callable[[Circuit], Any]) -> tuple[Circuit, Callable[[str], Any]]:
    circuit = Circuit("t")
    return circuit, lambda what: way(circuit)(perform, what)


def drive(coroutine: Any) -> Any:
    """Run it without a loop of its own: an interrupt then leaves as it would leave a sync call."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value


def play(make: Any, script: tuple[str | float, ...]) -> dict[str, Any]:
    """Everything that can be observed of one run."""
    clock = ManualClock()
    old = swap(Registry(clock=clock))
    told: list[Transition] = []
    remove = otel_breaker.add_listener(told.append)
    seen: list[Any] = []
    try:
        circuit, run = make(otel_breaker.registry())
        for what in script:
            if isinstance(what, float):
                clock.advance(what)
                continue
            try:
                got = run(what)
                seen.append((what, got["status"] if isinstance(got, dict) and "status" in got else got))
            except BaseException as error:
                seen.append((what, type(error).__name__))
            seen.append(circuit.snapshot())
    finally:
        remove()
        swap(old)
    return {
        "seen": seen,
        "transitions": told,
        "decisions": decisions(circuit),
        "outcomes": outcomes(circuit),
        "reasons": reasons(circuit),
        "moves": moves(circuit),
        "time_saved": circuit.stats.time_saved,
        "revoked": circuit.stats.revoked,
    }


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """What a guarded sync function does."""
    return play(by_sync, SCRIPT)


def test_the_script_does_what_it_says(reference: dict[str, Any]) -> None:
    refused = [got for what, got in reference["seen"][::2] if what == "refused"]
    assert refused == ["circuit_open"] * 5
    assert reference["decisions"] == {"admitted": 25, "probe": 6, "circuit_open": 5}
    assert reference["outcomes"] == {
        "success": 7,
        "failure": 12,
        "neutral": 4,
        "throttled": 6,
        "unauthorized": 1,
        "cancelled": 1,
    }
    assert reference["reasons"] == {
        "tool_error": 8,
        "connection_reset": 2,
        "rejected_output": 1,
        "timeout": 1,
    }
    assert [(t.previous_state, t.state, t.reason) for t in reference["transitions"]] == [
        ("closed", "open", "timeout"),
        ("open", "half_open", "cooldown_elapsed"),
        ("half_open", "open", "tool_error"),
        ("open", "half_open", "cooldown_elapsed"),
        ("half_open", "closed", "probe_succeeded"),
        ("closed", "open", "throttled"),
        ("open", "half_open", "cooldown_elapsed"),
        ("half_open", "open", "throttled"),
        ("open", "half_open", "cooldown_elapsed"),
        ("half_open", "closed", "probe_succeeded"),
        ("closed", "open", "connection_reset"),
        ("open", "closed", "expired"),
    ]


@pytest.mark.parametrize("make", [by_async, by_generator])
def test_every_kind_of_tool_gives_the_same_B06(make: Any, reference: dict[str, Any]) -> None:
    assert play(make, SCRIPT) == reference


PLAIN = ("ok", "fault", "ok", "fault", "fault", "reset", "bad argument", "timeout", "fault", "refused", 30.0, "fault",
         "refused", 60.0, "denied", "interrupt", "cancelled", "ok", "ok")  # fmt: skip


@pytest.mark.parametrize("make", [by_acall, by_with])
def test_every_way_by_hand_gives_the_same_B06(make: Any) -> None:
    expected = play(by_call, PLAIN)
    assert expected["decisions"] == {"admitted": 10, "probe": 5, "circuit_open": 2}
    assert play(make, PLAIN) == expected


def test_async_generators_give_the_same_for_what_they_can_say_B06(reference: dict[str, Any]) -> None:
    """They return nothing, so the script leaves out what only a result can say."""

    def tool_of(registry: Registry) -> tuple[Circuit, Callable[[str], Any]]:
        @otel_breaker.guard(tool="t", policy=Policy())
        async def tool(what: str) -> AsyncIterator[Any]:
            await asyncio.sleep(0)
            yield "an item"
            perform(what)

        async def one(what: str) -> Any:
            got = [item async for item in tool(what)]
            return got[-1] if isinstance(got[-1], dict) else what

        return of(tool), lambda what: drive(one(what))

    def plain_of(registry: Registry) -> tuple[Circuit, Callable[[str], Any]]:
        @otel_breaker.guard(tool="t", policy=Policy())
        def tool(what: str) -> Any:
            return perform(what)

        return of(tool), tool

    assert play(tool_of, PLAIN) == play(plain_of, PLAIN)


# --- HTTP clients -----------------------------------------------------------------------------------------------------

ANSWERS: tuple[int | float | None, ...] = (
    200, 503, 503, 404, 500, 503, 529,  # opens on the fifth failure; a 404 leaves the run as it is
    None, 10.0, None, 20.0, 503,  # a failed probe
    None, 60.0, 404, 403, 200,  # two neutral probes, then one that closes
    200, 429, 429, 200, 429, 429, 429,  # opens by throttles
    None, 30.0, 200, 503, 503,
)  # fmt: skip
"""What the server answers; seconds that pass; ``None``: a call that is refused and reaches no server."""


def ask(client: Client, srv: Script, registry: Registry, clock: ManualClock) -> dict[str, Any]:
    """Everything that can be observed of one run, the gauges of each moment among it; names of ports left out."""
    told: list[Transition] = []
    remove = otel_breaker.add_listener(told.append)
    seen: list[Any] = []
    began = clock.now()
    try:
        with client.open() as caller:
            for answer in ANSWERS:
                if isinstance(answer, float):
                    clock.advance(answer)
                    continue
                if answer is not None:
                    srv.reply(answer)
                result = caller.get(srv.url())
                assert isinstance(result.error, CircuitOpenError) == (answer is None)
                circuit = registry.get(srv.host)
                assert circuit is not None
                seen.append((result.status, replace(circuit.snapshot(), name="host")))
    finally:
        remove()
    assert srv.hits == sum(isinstance(answer, int) for answer in ANSWERS)
    assert circuit is not None
    return {
        "seen": seen,
        "transitions": [(t.previous_state, t.state, t.reason, t.failures, t.cooldown, t.at - began) for t in told],
        "decisions": decisions(circuit),
        "outcomes": outcomes(circuit),
        "reasons": reasons(circuit),
        "moves": moves(circuit),
    }


@pytest.fixture
def by_requests(patched: Registry, manual_clock: ManualClock) -> dict[str, Any]:
    """What a plain sync client does."""
    with Script() as srv:
        return ask(CLIENTS["requests"], srv, patched, manual_clock)


@pytest.mark.parametrize("name", CLIENTS)
def test_every_http_client_gives_the_same_B06(
    name: str, patched: Registry, manual_clock: ManualClock, srv: Script, by_requests: dict[str, Any]
) -> None:
    assert by_requests["decisions"] == {"admitted": 16, "probe": 5, "circuit_open": 4}
    assert by_requests["outcomes"] == {"success": 5, "failure": 8, "neutral": 3, "throttled": 5}
    assert by_requests["reasons"] == {"server_error": 7, "overloaded": 1}
    assert by_requests["moves"] == {
        ("closed", "open"): 2,
        ("open", "half_open"): 3,
        ("half_open", "open"): 1,
        ("half_open", "closed"): 2,
    }
    assert ask(CLIENTS[name], srv, patched, manual_clock) == by_requests
