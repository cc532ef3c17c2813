from __future__ import annotations

import asyncio
from typing import Any

import pytest

import otel_breaker
from otel_breaker import Circuit, CircuitOpenError, Transition
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, decisions, fail, moves, of, outcomes, trip

pytestmark = pytest.mark.usefixtures("breaker_registry")


def broken(**options: Any) -> Any:
    def tool() -> None:
        raise Fault

    return otel_breaker.guard(tool="t", **options)(tool)


def exhaust(tool: Any, times: int = 5) -> None:
    for _ in range(times):
        with pytest.raises(Fault):
            tool()


def test_enforce_is_the_default_and_refuses() -> None:
    tool = broken()
    exhaust(tool)
    assert tool()["status"] == "circuit_open"
    assert decisions(of(tool)) == {"admitted": 5, "circuit_open": 1}


def test_observe_lets_a_call_through_that_would_have_been_refused(configure: Any) -> None:
    configure(mode="observe")
    tool = broken()
    exhaust(tool, 8)
    assert of(tool).snapshot().state == "open"
    assert decisions(of(tool)) == {"admitted": 5, "would_reject": 3}
    assert outcomes(of(tool)) == {"failure": 5, "late": 3}
    assert moves(of(tool)) == {("closed", "open"): 1}


def test_observe_runs_the_machine_as_enforce_does(
    configure: Any, manual_clock: ManualClock, transitions: list[Transition]
) -> None:
    seen = []
    for mode in ("enforce", "observe"):
        configure(mode=mode)
        circuit = Circuit(mode)

        def try_(what: str, circuit: Circuit = circuit) -> None:
            try:
                permit = circuit.acquire()
            except CircuitOpenError:
                return
            getattr(permit, what)()

        shots = []
        for what in ("failure",) * 7 + ("tick", "failure", "success", "tick", "tick", "neutral", "success", "success"):
            if what == "tick":
                manual_clock.advance(30)
            else:
                try_(what)
            shot = circuit.snapshot()
            shots.append((shot.state, shot.failures, shot.retry_after, shot.cooldowns_elapsed))
        seen.append((shots, moves(circuit), [(t.previous_state, t.state, t.reason, t.failures) for t in transitions]))
        transitions.clear()
    assert seen[0] == seen[1]
    assert seen[0][0][-1] == ("closed", 0, 0, 0)
    assert decisions(circuit) == {"admitted": 6, "probe": 3, "would_reject": 3}


def test_observe_still_counts_cooldowns_for_the_page(configure: Any, manual_clock: ManualClock) -> None:
    configure(mode="observe")
    tool = broken()
    exhaust(tool)
    manual_clock.advance(90)
    assert of(tool).snapshot().cooldowns_elapsed == 2


def test_a_void_permit_is_late_however_it_is_settled(configure: Any) -> None:
    configure(mode="observe")
    circuit = trip(Circuit("c"))
    for how in ("success", "failure", "neutral", "throttled", "unauthorized"):
        permit = circuit.acquire()
        assert permit.probe is False
        getattr(permit, how)()
    assert outcomes(circuit) == {"failure": 5, "late": 5}
    assert decisions(circuit) == {"admitted": 5, "would_reject": 5}
    assert circuit.snapshot().state == "open"


def test_a_void_permit_moves_no_credentials_circuit_either(configure: Any) -> None:
    configure(mode="observe")
    circuit = Circuit("c", credential="acct-1")
    circuit.acquire().success()
    circuit.force_open("out of order")
    for _ in range(3):
        circuit.acquire().throttled()
    circuit.acquire().unauthorized()
    circuit.resume()
    assert circuit.stats.revoked == 0
    circuit.acquire().success()
    assert decisions(circuit) == {"admitted": 2, "would_reject": 4}


def test_observe_in_async_and_generators(configure: Any) -> None:
    configure(mode="observe")

    @otel_breaker.guard(dependency="vendor")
    async def tool() -> str:
        return "ran"

    @otel_breaker.guard(dependency="vendor")
    def stream() -> Any:
        yield "ran"

    trip(of(tool))
    assert asyncio.run(tool()) == "ran"
    assert list(stream()) == ["ran"]
    assert decisions(of(tool)) == {"admitted": 5, "would_reject": 2}
    assert outcomes(of(tool)) == {"failure": 5, "late": 2}


def test_observe_stops_no_attempts(configure: Any) -> None:
    configure(mode="observe")
    vendor = Circuit("vendor")
    ran: list[int] = []

    def retries() -> None:
        for _ in range(3):
            with pytest.raises(Fault):
                vendor.call(body)
        raise Fault

    def body() -> None:
        ran.append(1)
        raise Fault

    for _ in range(6):
        with pytest.raises(Fault):
            vendor.call(retries)
    assert len(ran) == 18


def test_off_passes_straight_through(configure: Any, breaker_registry: Registry) -> None:
    configure(mode="off")
    tool = broken()
    exhaust(tool, 20)
    assert decisions(of(tool)) == {}
    assert outcomes(of(tool)) == {}
    assert of(tool).snapshot().state == "closed"


def test_off_holds_for_every_way_by_hand(configure: Any) -> None:
    configure(mode="off")
    circuit = Circuit("c")
    fail(circuit, 20)
    for _ in range(20):
        with pytest.raises(Fault), circuit:
            raise Fault
        with pytest.raises(Fault):
            circuit.call(raise_fault)

    async def main() -> None:
        async def body() -> None:
            raise Fault

        with pytest.raises(Fault):
            await circuit.acall(body)
        with pytest.raises(Fault):
            async with circuit:
                raise Fault

    asyncio.run(main())
    assert circuit.acquire().probe is False
    assert circuit.snapshot().state == "closed"
    assert decisions(circuit) == {}
    assert outcomes(circuit) == {}


def raise_fault() -> None:
    raise Fault


@pytest.mark.parametrize("kind", ["sync", "async", "generator", "async generator"])
def test_a_tool_that_is_off_hands_on_what_its_vendor_raises(kind: str, configure: Any) -> None:
    """Straight through: not even a refusal from below is turned into an answer."""
    configure(circuits=[{"match": {"tool": "t"}, "mode": "off"}])
    vendor = trip(Circuit("vendor"))
    guard = otel_breaker.guard(tool="t", fallback=lambda: "answered")

    if kind == "sync":

        @guard
        def tool() -> Any:
            return vendor.call(int)

        run: Any = tool
    elif kind == "async":

        @guard
        async def coroutine() -> Any:
            return vendor.call(int)

        def run() -> Any:
            return asyncio.run(coroutine())

    elif kind == "generator":

        @guard
        def stream() -> Any:
            yield vendor.call(int)

        def run() -> Any:
            return list(stream())

    else:

        @guard
        async def async_stream() -> Any:
            yield vendor.call(int)

        def run() -> Any:
            async def main() -> Any:
                return [item async for item in async_stream()]

            return asyncio.run(main())

    with pytest.raises(CircuitOpenError):
        run()


def test_a_mode_for_one_dependency_only(configure: Any) -> None:
    configure(circuits=[{"match": {"dependency": "*.internal"}, "mode": "off"}])
    off, on = Circuit("db.internal"), Circuit("api.example")
    fail(off, 20)
    fail(on, 5)
    assert (off.snapshot().state, on.snapshot().state) == ("closed", "open")


def test_off_under_an_enforcing_tool_charges_the_tool(configure: Any) -> None:
    configure(circuits=[{"match": {"dependency": "vendor"}, "mode": "off"}])
    vendor = Circuit("vendor")

    @otel_breaker.guard
    def tool() -> None:
        vendor.call(raise_fault)

    with pytest.raises(Fault):
        tool()
    assert outcomes(of(tool)) == {"failure": 1}
