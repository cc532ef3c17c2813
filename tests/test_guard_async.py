from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest

import otel_breaker
from otel_breaker import CircuitOpenError, Policy
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, decisions, moves, of, outcomes, reasons

pytestmark = pytest.mark.usefixtures("breaker_registry")


def broken(**options: Any) -> Any:
    """A guarded coroutine function that raises `Fault`, and counts how often its body ran on ``body.runs``."""

    async def refund(charge: str = "ch_1") -> str:
        refund.runs += 1  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        raise Fault(charge)

    refund.runs = 0  # type: ignore[attr-defined]
    guarded = otel_breaker.guard(**options)(refund)
    guarded.body = refund
    return guarded


async def exhaust(tool: Any, times: int = 5) -> None:
    for _ in range(times):
        with pytest.raises(Fault):
            await tool()


def hanging(**options: Any) -> tuple[Any, asyncio.Event]:
    """A guarded coroutine function that never returns, and the event of its having begun."""
    begun = asyncio.Event()

    @otel_breaker.guard(**options)
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    return hang, begun


async def cancelled_after(seconds: float, tool: Any, begun: asyncio.Event, clock: ManualClock) -> None:
    """Start it, let the clock go on, cancel it; the cancellation must arrive."""
    begun.clear()
    task = asyncio.create_task(tool())
    await begun.wait()
    clock.advance(seconds)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


def test_it_stays_a_coroutine_function_with_its_name_and_signature() -> None:
    async def search(query: str, *, limit: int = 3) -> list[str]:
        """Look it up."""
        return [query] * limit

    guarded = otel_breaker.guard(search)
    assert inspect.iscoroutinefunction(guarded)
    assert (guarded.__name__, guarded.__doc__) == ("search", "Look it up.")
    assert inspect.signature(guarded) == inspect.signature(search)
    assert asyncio.run(guarded("a", limit=2)) == ["a", "a"]


def test_B38_nothing_counts_until_it_is_awaited() -> None:
    tool = broken()
    coroutine = tool()
    assert decisions(of(tool)) == {}
    assert outcomes(of(tool)) == {}
    with pytest.raises(Fault):
        asyncio.run(coroutine)
    assert outcomes(of(tool)) == {"failure": 1}


def test_the_exception_is_the_same_object() -> None:
    error = Fault()

    @otel_breaker.guard
    async def tool() -> None:
        raise error

    with pytest.raises(Fault) as caught:
        asyncio.run(tool())
    assert caught.value is error
    assert error.__context__ is None


def test_the_fifth_failure_opens_and_the_sixth_call_gets_the_answer_without_running_the_body() -> None:
    tool = broken(tool="refund_charge", alternatives=["issue_refund_manually"])

    async def main() -> Any:
        await exhaust(tool)
        return await tool()

    assert asyncio.run(main()) == {
        "status": "circuit_open",
        "tool": "refund_charge",
        "reason": "refund_charge failing (5 consecutive failures, last: tool error)",
        "retry_after_ms": 30000,
        "alternatives": ["issue_refund_manually"],
    }
    assert tool.body.runs == 5
    assert decisions(of(tool)) == {"admitted": 5, "circuit_open": 1}
    assert moves(of(tool)) == {("closed", "open"): 1}


def test_on_open_raise() -> None:
    tool = broken(on_open="raise")

    async def main() -> None:
        await exhaust(tool)
        with pytest.raises(CircuitOpenError):
            await tool()

    asyncio.run(main())


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_fallback_may_be_asynchronous(asynchronous: bool) -> None:
    async def later(charge: str) -> str:
        await asyncio.sleep(0)
        return f"mailed {charge}"

    tool = broken(fallback=later if asynchronous else lambda charge: f"mailed {charge}")

    async def main() -> Any:
        await exhaust(tool)
        return await tool("ch_2")

    assert asyncio.run(main()) == "mailed ch_2"


def test_a_partial_and_a_callable_object_are_seen_as_asynchronous() -> None:
    class Lookup:
        async def __call__(self, key: str) -> str:
            raise Fault(key)

    async def search(where: str, what: str) -> str:
        raise Fault(where + what)

    for tool in (otel_breaker.guard(Lookup()), otel_breaker.guard(functools.partial(search, "web:"))):
        with pytest.raises(Fault):
            asyncio.run(tool("x"))
        assert outcomes(of(tool)) == {"failure": 1}


def test_B34_tasks_run_at_the_same_time_and_are_counted_exactly() -> None:
    async def main() -> None:
        inside, everybody = 0, asyncio.Event()

        @otel_breaker.guard(policy=Policy(failure_threshold=100))
        async def tool() -> None:
            nonlocal inside
            inside += 1
            if inside == 100:
                everybody.set()
            await everybody.wait()
            raise Fault

        done = await asyncio.gather(*(tool() for _ in range(100)), return_exceptions=True)
        assert [type(one) for one in done] == [Fault] * 100
        assert outcomes(of(tool)) == {"failure": 100}
        assert of(tool).snapshot().state == "open"
        assert moves(of(tool)) == {("closed", "open"): 1}

    asyncio.run(main())


def test_B02_a_hanging_call_cancelled_from_outside_after_five_seconds_counts(manual_clock: ManualClock) -> None:
    async def main() -> None:
        tool, begun = hanging(tool="t", policy=Policy(failure_threshold=2))
        await cancelled_after(5, tool, begun, manual_clock)
        assert of(tool).snapshot().failures == 1
        await cancelled_after(5, tool, begun, manual_clock)
        assert of(tool).snapshot().state == "open"
        assert of(tool).snapshot().failures == 2
        assert reasons(of(tool)) == {"deadline_exceeded": 2}
        assert (await tool())["reason"] == ("t unreachable (2 consecutive failures, last: deadline exceeded after 5 s)")

    asyncio.run(main())


def test_B02_a_harness_that_waits_for_so_long_gets_its_own_timeout(manual_clock: ManualClock) -> None:
    @otel_breaker.guard(policy=Policy(failure_threshold=2))
    async def hang() -> None:
        manual_clock.advance(6)
        await asyncio.Event().wait()

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hang(), 0.01)

    asyncio.run(main())
    assert of(hang).snapshot().state == "open"
    assert reasons(of(hang)) == {"deadline_exceeded": 2}


def test_B02_a_call_cancelled_earlier_is_neutral(manual_clock: ManualClock) -> None:
    async def main() -> None:
        tool, begun = hanging(policy=Policy(failure_threshold=1))
        for _ in range(3):
            await cancelled_after(4.999, tool, begun, manual_clock)
        assert outcomes(of(tool)) == {"cancelled": 3}
        assert of(tool).snapshot().failures == 0
        assert of(tool).snapshot().state == "closed"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("policy", "seconds", "outcome"),
    [
        (Policy(cancel_counts_after=10), 9.9, "cancelled"),
        (Policy(cancel_counts_after=10), 10, "failure"),
        (Policy(call_deadline=2), 1.9, "cancelled"),
        (Policy(call_deadline=2), 2, "failure"),  # at most the call_deadline
    ],
)
def test_how_long_a_cancelled_call_is_neutral(
    policy: Policy, seconds: float, outcome: str, manual_clock: ManualClock
) -> None:
    async def main() -> None:
        tool, begun = hanging(policy=policy)
        await cancelled_after(seconds, tool, begun, manual_clock)
        assert outcomes(of(tool)) == {outcome: 1}

    asyncio.run(main())


def test_a_deadline_is_a_yardstick_unless_enforced(manual_clock: ManualClock) -> None:
    @otel_breaker.guard(policy=Policy(call_deadline=1))
    async def slow() -> str:
        manual_clock.advance(100)
        return "late but fine"

    assert asyncio.run(slow()) == "late but fine"
    assert outcomes(of(slow)) == {"success": 1}


def test_B02_an_enforced_deadline_ends_the_call_and_counts() -> None:
    async def main() -> None:
        tool, _ = hanging(policy=Policy(failure_threshold=2, call_deadline=0.01, enforce_deadline=True))
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await tool()
        assert of(tool).snapshot().state == "open"
        assert reasons(of(tool)) == {"deadline_exceeded": 2}
        assert (await tool())["status"] == "circuit_open"

    asyncio.run(main())


def test_a_timeout_of_the_bodys_own_within_an_enforced_deadline_is_a_timeout() -> None:
    @otel_breaker.guard(policy=Policy(call_deadline=60, enforce_deadline=True))
    async def tool() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        asyncio.run(tool())
    assert reasons(of(tool)) == {"timeout": 1}


def test_cancelling_one_of_many_leaves_the_others_alone(manual_clock: ManualClock) -> None:
    async def main() -> None:
        go = asyncio.Event()

        @otel_breaker.guard
        async def tool() -> str:
            await go.wait()
            return "ok"

        tasks = [asyncio.create_task(tool()) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        go.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [one for one in done if one == "ok"] == ["ok"] * 4
        assert isinstance(done[2], asyncio.CancelledError)
        assert outcomes(of(tool)) == {"success": 4, "cancelled": 1}

    asyncio.run(main())


def test_a_method_and_a_validator() -> None:
    class Shop:
        @otel_breaker.guard(validate=lambda result: result != "bad")
        async def refund(self, charge: str) -> str:
            return charge

    async def main() -> None:
        assert await Shop().refund("good") == "good"
        assert await Shop().refund("bad") == "bad"

    asyncio.run(main())
    assert outcomes(of(Shop.refund)) == {"success": 1, "failure": 1}
    assert reasons(of(Shop.refund)) == {"rejected_output": 1}


def test_B38_a_plain_function_that_returns_a_coroutine_is_judged_when_that_ends(breaker_registry: Registry) -> None:
    async def search(query: str) -> str:
        if query == "down":
            raise ConnectionRefusedError
        return query

    tool = otel_breaker.guard(tool="t", policy=Policy(failure_threshold=2))(lambda query: search(query))
    by_hand = otel_breaker.Circuit("hand", Policy(failure_threshold=2))

    async def run() -> Any:
        assert await tool("up") == "up"
        assert await by_hand.call(search, "up") == "up"
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                await tool("down")
            with pytest.raises(ConnectionRefusedError):
                await by_hand.call(search, "down")
        return tool("up")

    assert asyncio.run(run())["status"] == "circuit_open"
    for name in ("t", "hand"):
        circuit = breaker_registry.get(name)
        assert circuit is not None
        assert (circuit.state, circuit.stats.success, circuit.stats.failure) == ("open", 1, 2)
