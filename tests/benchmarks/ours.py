"""The items of this package: a guarded function in every state, in and out of spans, and what a circuit weighs."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from opentelemetry import context, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import otel_breaker
from otel_breaker import CircuitOpenError, Policy
from otel_breaker._registry import Registry
from otel_breaker.telemetry import names

from .measure import THREADS, Item, Loop, awaited_refusals, awaits, calls, refusals, threads
from .peers import Boom, coroutine, failing, plain

CIRCUITS = 10_000
CALLS_A_SPAN = 24
"""Below the number of call events that one span gets: all of them are written."""

_EVENT = {names.NAME: "tool", names.TOOL_NAME: "tool", names.STATE: "closed", names.DECISION: "admitted"}


def metrics_on() -> None:
    """A reader of metrics; no provider of spans."""
    metrics.set_meter_provider(MeterProvider(metric_readers=[InMemoryMetricReader()]))


def items(runner: asyncio.Runner) -> list[Item]:
    guard = otel_breaker.guard
    closed, closed_async = guard(tool="tool")(plain), guard(tool="tool_async")(coroutine)
    return [
        Item("closed: bare call", calls(plain)),
        Item("closed: guard", calls(closed)),
        Item("closed async: bare call", awaits(coroutine, runner)),
        Item("closed async: guard", awaits(closed_async, runner)),
        Item("open: bare raise", refusals(failing, Boom)),
        Item("open: guard, by raise", refusals(_opened(plain, "raise"), CircuitOpenError)),
        Item("open: guard, by answer", calls(_opened(plain, "answer"))),
        Item("open async: guard, by raise", awaited_refusals(_opened(coroutine, "raise"), CircuitOpenError, runner)),
        Item("open async: guard, by answer", awaits(_opened(coroutine, "answer"), runner)),
        Item("1 thread: guard", threads(closed, 1)),
        Item("8 threads: guard", threads(closed, THREADS)),
        *_span_items(closed),
    ]


def _opened(function: Any, on_open: Any) -> Any:
    kind = "async" if function is coroutine else "sync"
    guarded = otel_breaker.guard(
        tool=f"{kind}_{on_open}", on_open=on_open, policy=Policy(failure_threshold=1, cooldown=600)
    )(function)
    circuit = otel_breaker.registry().get(f"{kind}_{on_open}")
    assert circuit is not None
    circuit.acquire().failure("timeout")
    assert circuit.snapshot().state == "open"
    return guarded


def _span_items(closed: Any) -> list[Item]:
    provider = TracerProvider()
    tracer = provider.get_tracer("bench")

    def in_spans(one: Callable[[Any], Any]) -> Loop:
        """Time the calls, but not the spans around them."""

        def loop(n: int) -> float:
            spent = 0
            spans = max(1, n // CALLS_A_SPAN)
            turns = range(CALLS_A_SPAN)
            for _ in range(spans):
                span = tracer.start_span("agent")
                token = context.attach(trace.set_span_in_context(span))
                began = perf_counter_ns()
                for _ in turns:
                    one(span)
                spent += perf_counter_ns() - began
                context.detach(token)
                span.end()
            return spent / (spans * CALLS_A_SPAN)

        return loop

    def one_event(span: Any) -> None:
        span.add_event("otel_breaker.call.admitted", _EVENT)

    def own_span(_: Any) -> None:
        span = tracer.start_span("otel_breaker tool", attributes=_EVENT)
        span.add_event("otel_breaker.call.admitted", _EVENT)
        span.end()

    def provided(loop: Loop) -> Loop:
        """With a provider of spans; the API sets one only once, so this goes around it."""

        def inside(n: int) -> float:
            trace._TRACER_PROVIDER = provider
            try:
                return loop(n)
            finally:
                trace._TRACER_PROVIDER = None

        return inside

    return [
        Item("in a span: bare call", provided(in_spans(plain))),
        Item("in a span: add_event", provided(in_spans(one_event))),
        Item("in a span: guard", provided(in_spans(closed))),
        Item("no span yet: a span with one event", provided(calls(own_span))),
        Item("no span yet: guard", provided(calls(closed))),
    ]


def bytes_a_circuit(circuits: dict[str, Callable[[int], Any]]) -> dict[str, float]:
    """What tracemalloc finds for each of 10,000 circuits, all of them held at once."""
    registry = Registry(max_circuits=2 * CIRCUITS)
    makers = {
        "guard: circuits of clients": lambda number: registry.client(f"host{number}.example.com"),
        "guard: circuits by hand": lambda number: otel_breaker.Circuit(f"c{number}"),
        **circuits,
    }
    return {name: _weighed(make) for name, make in makers.items()}


def _weighed(make: Callable[[int], Any]) -> float:
    for number in range(300):
        make(number)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    held = [make(number) for number in range(1000, 1000 + CIRCUITS)]
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before - sys.getsizeof(held)) / CIRCUITS
