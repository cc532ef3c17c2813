"""LangChain tools, sync and async, one script: the events, logs and numbers that a guarded function gives (B06)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.tools import StructuredTool
from opentelemetry import trace

from otel_breaker import settings
from otel_breaker.core.clock import ManualClock
from otel_breaker.instrumentations import _patch
from tests.support.langchain import Agent, caller
from tests.telemetry.signals import Signals
from tests.telemetry.test_tools import STORY, body, check_logs_and_numbers, play

WAYS = {"sync": (False, False), "async": (True, True), "sync tool, awaited": (False, True)}


@pytest.fixture(autouse=True)
def _on(fresh: Any) -> Iterator[None]:
    settings.use(settings.load(failure_threshold=2))
    _patch.enable()
    yield
    _patch.remove()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[bool, bool]:
    return WAYS[request.param]


def made(coroutine: bool, does: Callable[[str], Any] = body) -> Any:
    def tool(word: str) -> Any:
        return does(word)

    async def atool(word: str) -> Any:
        await asyncio.sleep(0)
        return does(word)

    wanted: Any = {"coroutine": atool} if coroutine else {"func": tool}
    return StructuredTool.from_function(**wanted, name="t", description="A tool.")


def runner(way: tuple[bool, bool]) -> Callable[[str], Any]:
    """What `play` runs: the answer is a dictionary there."""
    tool, call = made(way[0]), caller(way[1])

    def run(word: str) -> Any:
        result = call(tool, {"word": word})
        return json.loads(result) if result.startswith("{") else result

    return run


def test_on_the_current_span_B06(way: tuple[bool, bool], signals: Signals, clock: ManualClock) -> None:
    with signals.tracer.start_as_current_span("agent"):
        play(runner(way), clock)
    (span,) = signals.plain_spans
    assert span["events"] == [event for call in STORY for event in call]
    check_logs_and_numbers(signals)


def test_where_there_is_no_span_a_call_has_one_that_is_current_in_its_body(
    way: tuple[bool, bool], signals: Signals
) -> None:
    seen: list[Any] = []
    assert (
        caller(way[1])(made(way[0], lambda word: seen.append(trace.get_current_span()) or word), {"word": "x"}) == "x"
    )
    (span,) = signals.spans
    assert span.name == "otel_breaker t"
    assert [one.get_span_context().span_id for one in seen] == [span.get_span_context().span_id]


def test_a_refusal_in_an_agent_is_an_event_on_the_agents_span_that_names_the_tool(
    way: tuple[bool, bool], signals: Signals
) -> None:
    calls = [{"name": "t", "args": {"word": word}} for word in ("fault", "fault", "ok")]
    with signals.tracer.start_as_current_span("agent"):
        Agent([made(way[0])], calls, way[1], handle_tool_errors=True).ask()
    (span,) = signals.plain_spans
    name, told = span["events"][-1]
    assert name == "otel_breaker.call.rejected"
    assert (told["otel_breaker.name"], told["gen_ai.tool.name"]) == ("t", "t")
    assert signals.series("otel_breaker.tools") == {("t", "t"): 1}
    assert signals.series("otel_breaker.status")["t", "open"] == 1
