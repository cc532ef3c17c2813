from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import otel_breaker
from otel_breaker import CircuitOpenError, Policy
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, decisions, of, outcomes, reasons, trip

pytestmark = pytest.mark.usefixtures("breaker_registry")


class Tool:
    """A guarded generator of either kind behind one face: it yields 0, 1, 2, ... and may fail before an item."""

    def __init__(self, kind: str, **options: Any) -> None:
        self.fail_at: int | None = None
        self.items = 4
        self.runs = 0
        self.closed = 0
        self.before: Callable[[int], Any] = lambda number: None

        def plain(start: int = 0) -> Iterator[int]:
            self.runs += 1
            try:
                for number in range(start, start + self.items):
                    self.before(number)
                    if number == self.fail_at:
                        raise Fault(number)
                    yield number
            finally:
                self.closed += 1

        async def asynchronous(start: int = 0) -> AsyncIterator[int]:
            for item in plain(start):
                await asyncio.sleep(0)
                yield item

        self.is_async = kind == "async"
        self.function: Any = asynchronous if self.is_async else plain
        self.guarded = otel_breaker.guard(tool="stream", **options)(self.function)
        self.circuit = of(self.guarded)

    def read(self, at_most: int = 100, *, each: Callable[[Any], Any] = lambda item: None) -> list[Any]:
        """Read it; stopping early closes it, as leaving a loop and dropping the generator does."""
        got: list[Any] = []
        if not self.is_async:
            stream = self.guarded()
            for item in stream:
                got.append(item)
                each(item)
                if len(got) >= at_most:
                    break
            stream.close()
            return got

        async def main() -> None:
            stream = self.guarded()
            async for item in stream:
                got.append(item)
                each(item)
                if len(got) >= at_most:
                    break
            await stream.aclose()

        asyncio.run(main())
        return got


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Callable[..., Tool]:
    """Makes a tool of either kind."""
    return lambda **options: Tool(request.param, **options)


def test_it_keeps_its_kind_name_and_signature(make: Any) -> None:
    tool = make()
    kind = inspect.isasyncgenfunction if tool.is_async else inspect.isgeneratorfunction
    assert kind(tool.guarded)
    assert tool.guarded.__name__ == tool.function.__name__
    assert inspect.signature(tool.guarded) == inspect.signature(tool.function)


def test_B38_fully_read_is_one_success(make: Any) -> None:
    tool = make()
    assert tool.read() == [0, 1, 2, 3]
    assert decisions(tool.circuit) == {"admitted": 1}
    assert outcomes(tool.circuit) == {"success": 1}


def test_B38_a_generator_that_yields_nothing_is_one_success(make: Any) -> None:
    tool = make()
    tool.items = 0
    assert tool.read() == []
    assert outcomes(tool.circuit) == {"success": 1}


@pytest.mark.parametrize("at", [0, 2])
def test_B38_raising_on_the_first_or_third_item_is_one_failure_when_it_raises(make: Any, at: int) -> None:
    tool = make()
    tool.fail_at = at
    got: list[Any] = []

    def each(item: Any) -> None:
        got.append(item)
        assert outcomes(tool.circuit) == {}

    with pytest.raises(Fault):
        tool.read(each=each)
    assert got == list(range(at))
    assert outcomes(tool.circuit) == {"failure": 1}
    assert reasons(tool.circuit) == {"tool_error": 1}


def test_B38_asks_for_admission_at_its_first_step_only(make: Any) -> None:
    tool = make()
    stream = tool.guarded()
    assert decisions(tool.circuit) == {}
    if tool.is_async:
        asyncio.run(stream.aclose())
    else:
        stream.close()
    assert decisions(tool.circuit) == {}
    assert outcomes(tool.circuit) == {}
    assert tool.runs == 0


def test_refused_it_yields_the_answer_once(make: Any) -> None:
    tool = make(policy=Policy(failure_threshold=2), alternatives=["ask"])
    tool.fail_at = 0
    for _ in range(2):
        with pytest.raises(Fault):
            tool.read()
    assert tool.read() == [
        {
            "status": "circuit_open",
            "tool": "stream",
            "reason": "stream failing (2 consecutive failures, last: tool error)",
            "retry_after_ms": 30000,
            "alternatives": ["ask"],
        }
    ]
    assert tool.runs == 2
    assert decisions(tool.circuit) == {"admitted": 2, "circuit_open": 1}


def test_one_made_while_closed_is_refused_if_it_opened_before_the_first_step(make: Any) -> None:
    tool = make()
    stream = tool.guarded()
    trip(tool.circuit)

    async def first() -> Any:
        return await anext(stream)

    item = asyncio.run(first()) if tool.is_async else next(stream)
    assert item["status"] == "circuit_open"
    assert tool.runs == 0


def test_on_open_raise_raises_at_the_first_step(make: Any) -> None:
    tool = make(on_open="raise")
    trip(tool.circuit)
    tool.guarded()  # not yet
    with pytest.raises(CircuitOpenError):
        tool.read()
    assert tool.runs == 0


def test_a_fallback_is_yielded_once(make: Any) -> None:
    tool = make(fallback=lambda *args: "from the cache")
    trip(tool.circuit)
    assert tool.read() == ["from the cache"]


def test_an_abandoned_stream_is_neutral_and_closes_its_body(make: Any) -> None:
    tool = make()
    assert tool.read(at_most=2) == [0, 1]
    assert outcomes(tool.circuit) == {"neutral": 1}
    assert tool.closed == 1


def test_an_open_circuit_does_not_cut_off_a_stream_that_runs(make: Any) -> None:
    tool = make()
    assert tool.read(each=lambda item: trip(tool.circuit) if item == 1 else None) == [0, 1, 2, 3]
    assert outcomes(tool.circuit) == {"failure": 5, "late": 1}
    assert tool.circuit.snapshot().state == "open"


def test_between_two_steps_no_frame_is_set(make: Any) -> None:
    """What the reader does between two items is its own logical call, even to the same circuit."""
    tool, inner = make(), make()
    inner.fail_at = 0

    def each(item: Any) -> None:
        with pytest.raises(Fault):
            next(inner.guarded())

    if tool.is_async:

        async def main() -> None:
            async for _ in tool.guarded():
                with pytest.raises(Fault):
                    await anext(inner.guarded())

        asyncio.run(main())
    else:
        tool.read(each=each)
    assert inner.circuit is tool.circuit
    assert decisions(tool.circuit) == {"admitted": 5}
    assert outcomes(tool.circuit) == {"success": 1, "failure": 4}


def test_calls_made_within_a_step_are_inside(make: Any) -> None:
    vendor = otel_breaker.Circuit("vendor")
    tool = make()

    def before(number: int) -> None:
        if number == 2:
            with vendor:
                raise ConnectionResetError

    tool.before = before
    with pytest.raises(ConnectionResetError):
        tool.read()
    assert outcomes(vendor) == {"failure": 1}
    assert outcomes(tool.circuit) == {"neutral": 1}


def test_a_refusal_from_below_is_yielded_as_the_answer_of_the_tool(make: Any) -> None:
    vendor = otel_breaker.Circuit("vendor")
    tool = make(alternatives=["ask"])
    tool.before = lambda number: trip(vendor) and vendor.call(int) if number == 2 else None
    got = tool.read()
    assert got[:2] == [0, 1]
    assert got[2:] == [
        {
            "status": "circuit_open",
            "tool": "stream",
            "reason": "vendor failing (5 consecutive failures, last: server error)",
            "retry_after_ms": 30000,
            "alternatives": ["ask"],
        }
    ]
    assert outcomes(tool.circuit) == {"neutral": 1}


def test_a_silent_streaming_probe_lapses(make: Any, manual_clock: ManualClock) -> None:
    tool = make()
    trip(tool.circuit)
    manual_clock.advance(30)

    def each(item: Any) -> None:
        if item == 0:
            assert tool.circuit.snapshot().state == "half_open"
            manual_clock.advance(30)
            assert tool.circuit.snapshot().state == "open"
            assert tool.circuit.snapshot().reason == "probe_lapsed"

    assert tool.read(each=each) == [0, 1, 2, 3]
    assert tool.circuit.snapshot().state == "open"
    assert tool.circuit.snapshot().cooldown == 60
    assert reasons(tool.circuit) == {"server_error": 5, "probe_lapsed": 1}
    assert outcomes(tool.circuit) == {"failure": 5, "late": 1}


def test_each_item_renews_the_lease_and_a_whole_lease_of_them_is_a_success(
    make: Any, manual_clock: ManualClock
) -> None:
    tool = make()
    tool.fail_at = 3
    trip(tool.circuit)
    manual_clock.advance(30)
    states: list[str] = []

    def each(item: Any) -> None:
        states.append(tool.circuit.snapshot().state)
        manual_clock.advance(20)

    with pytest.raises(Fault):
        tool.read(each=each)
    assert states == ["half_open", "half_open", "closed"]  # 0 s, 20 s, 40 s: longer than a lease of 30 s
    assert tool.circuit.snapshot().state == "closed"
    assert tool.circuit.snapshot().failures == 1  # the later abort is a new charge
    assert outcomes(tool.circuit) == {"success": 1, "failure": 6}
    assert decisions(tool.circuit) == {"admitted": 5, "probe": 1}


def test_a_streaming_probe_that_goes_on_well_after_its_lease_counts_once(make: Any, manual_clock: ManualClock) -> None:
    tool = make()
    trip(tool.circuit)
    manual_clock.advance(30)
    assert tool.read(each=lambda item: manual_clock.advance(20)) == [0, 1, 2, 3]
    assert tool.circuit.snapshot().state == "closed"
    assert outcomes(tool.circuit) == {"failure": 5, "success": 1}


def test_a_stream_whose_probe_is_void_proves_nothing_and_is_not_charged(make: Any, manual_clock: ManualClock) -> None:
    tool = make()
    tool.fail_at = 3
    trip(tool.circuit)
    manual_clock.advance(30)
    with pytest.raises(Fault):
        tool.read(each=lambda item: tool.circuit.reset())
    assert (tool.circuit.snapshot().state, tool.circuit.snapshot().failures) == ("closed", 0)
    assert outcomes(tool.circuit) == {"failure": 5, "late": 1}


def test_a_lapsed_stream_is_late_also_after_another_probe_closed_the_circuit(
    make: Any, manual_clock: ManualClock
) -> None:
    tool = make()
    tool.fail_at = 2
    trip(tool.circuit)
    manual_clock.advance(30)

    def each(item: int) -> None:
        if item == 0:
            manual_clock.advance(100)  # the lease, and the cooldown after it
            tool.circuit.acquire().success()
            assert tool.circuit.snapshot().state == "closed"

    with pytest.raises(Fault):
        tool.read(each=each)
    assert (tool.circuit.snapshot().state, tool.circuit.snapshot().failures) == ("closed", 0)
    assert outcomes(tool.circuit) == {"failure": 5, "success": 1, "late": 1}


def test_one_of_several_probes_that_streams_counts_once(make: Any, manual_clock: ManualClock) -> None:
    tool = make(policy=Policy(success_threshold=2))
    trip(tool.circuit)
    manual_clock.advance(30)
    assert tool.read(each=lambda item: manual_clock.advance(20)) == [0, 1, 2, 3]
    assert tool.circuit.snapshot().state == "half_open"
    assert outcomes(tool.circuit) == {"failure": 5, "success": 1}
    assert decisions(tool.circuit) == {"admitted": 5, "probe": 1}
    tool.circuit.acquire().success()
    assert tool.circuit.snapshot().state == "closed"


def test_a_proven_stream_counts_once_also_when_others_called_meanwhile(make: Any, manual_clock: ManualClock) -> None:
    tool = make()
    trip(tool.circuit)
    manual_clock.advance(30)

    def each(item: int) -> None:
        manual_clock.advance(20)
        if item == 3:
            assert tool.circuit.call(lambda: "fine") == "fine"

    tool.read(each=each)
    assert outcomes(tool.circuit) == {"failure": 5, "success": 2}


def test_an_abandoned_streaming_probe_gives_its_slot_back(make: Any, manual_clock: ManualClock) -> None:
    tool = make()
    trip(tool.circuit)
    manual_clock.advance(30)
    tool.read(at_most=1)
    assert tool.circuit.snapshot().state == "half_open"
    assert tool.read() == [0, 1, 2, 3]
    assert tool.circuit.snapshot().state == "closed"
    assert decisions(tool.circuit) == {"admitted": 5, "probe": 2}


def test_a_validator_or_classifier_hears_of_the_exception(make: Any) -> None:
    tool = make(classify=lambda what: "overloaded" if isinstance(what, Fault) else None)
    tool.fail_at = 1
    with pytest.raises(Fault):
        tool.read()
    assert reasons(tool.circuit) == {"overloaded": 1}


# --- what only one of the two kinds can do ----------------------------------------------------------------------------


def test_send_throw_and_return_value_pass_through() -> None:
    @otel_breaker.guard
    def echo() -> Any:
        got = []
        while True:
            try:
                value = yield len(got)
            except KeyError as error:
                value = error
            if value is None:
                return got
            got.append(value)

    stream = echo()
    assert next(stream) == 0
    assert stream.send("a") == 1
    error = KeyError("b")
    assert stream.throw(error) == 2
    with pytest.raises(StopIteration) as stop:
        next(stream)
    assert stop.value.value == ["a", error]
    assert outcomes(of(echo)) == {"success": 1}


def test_what_the_reader_throws_in_and_the_body_lets_out_is_judged() -> None:
    @otel_breaker.guard
    def body() -> Any:
        yield 1

    error = Fault()
    stream = body()
    next(stream)
    with pytest.raises(Fault) as caught:
        stream.throw(error)
    assert caught.value is error
    assert outcomes(of(body)) == {"failure": 1}


def test_asend_and_athrow_pass_through() -> None:
    @otel_breaker.guard
    async def echo() -> Any:
        got: list[Any] = []
        while len(got) < 2:
            try:
                got.append((yield len(got)))
            except KeyError as error:
                got.append(error)

    async def main() -> None:
        stream = echo()
        assert await anext(stream) == 0
        assert await stream.asend("a") == 1
        with pytest.raises(StopAsyncIteration):
            await stream.athrow(KeyError("b"))

    asyncio.run(main())
    assert outcomes(of(echo)) == {"success": 1}


def test_an_async_generator_cancelled_within_a_step(manual_clock: ManualClock) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        @otel_breaker.guard
        async def stream() -> AsyncIterator[int]:
            yield 1
            begun.set()
            await asyncio.Event().wait()

        async def read() -> None:
            async for _ in stream():
                manual_clock.advance(100)  # the reader's own time: the item was the last sign of life

        for seconds in (0.0, 5.0):
            begun.clear()
            task = asyncio.create_task(read())
            await begun.wait()
            manual_clock.advance(seconds)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert reasons(of(stream)) == {"deadline_exceeded": 1}
        assert outcomes(of(stream)) == {"cancelled": 1, "failure": 1}

    asyncio.run(main())


def test_an_enforced_deadline_bounds_each_wait_for_an_item() -> None:
    @otel_breaker.guard(policy=Policy(call_deadline=0.01, enforce_deadline=True))
    async def stream() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    async def main() -> None:
        items = stream()
        assert await anext(items) == 1
        with pytest.raises(TimeoutError):
            await anext(items)

    asyncio.run(main())
    assert reasons(of(stream)) == {"deadline_exceeded": 1}


def test_a_validator_is_not_asked_about_a_stream(breaker_registry: Registry) -> None:
    @otel_breaker.guard(tool="t", validate=lambda result: result is not None)
    async def stream() -> Any:
        yield 1

    async def run() -> list[int]:
        return [item async for item in stream()]

    assert asyncio.run(run()) == [1]
    circuit = breaker_registry.get("t")
    assert circuit is not None
    assert (circuit.stats.success, circuit.stats.failure) == (1, 0)


@pytest.mark.parametrize("mode", ["enforce", "off"])
def test_a_loop_that_ends_closes_an_abandoned_generator_once(mode: str, configure: Any) -> None:
    configure(mode=mode)
    closed: list[str] = []
    told: list[Any] = []

    @otel_breaker.guard
    async def tool() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.append("tool")

    async def main() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        stream = tool()
        await anext(stream)
        return stream

    kept = asyncio.run(main())
    assert (closed, told) == (["tool"], [])
    del kept


def test_mode_off_hands_on_what_is_sent_thrown_and_closed(configure: Any) -> None:
    configure(mode="off")
    seen: list[Any] = []

    @otel_breaker.guard
    async def tool() -> AsyncIterator[Any]:
        try:
            seen.append((yield 1))
            try:
                yield 2
            except Fault:
                yield 3
        finally:
            seen.append("closed")

    async def main() -> None:
        stream: Any = tool()
        assert await anext(stream) == 1
        assert await stream.asend("sent") == 2
        assert await stream.athrow(Fault()) == 3
        await stream.aclose()
        assert seen == ["sent", "closed"]

    asyncio.run(main())
