"""Guarded tools of every kind, one script: the same events, logs and numbers, compared whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace

import otel_breaker
from otel_breaker import Policy
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, of
from tests.telemetry.signals import Signals

SCRIPT: tuple[str | float, ...] = (
    "ok", "fault", "fault",  # opens at the second failure
    "refused", 30.0, "fault",  # a failed probe
    60.0, "bad argument", "ok",  # a neutral probe, then one that closes
    "ok",
)  # fmt: skip
BASE = {"otel_breaker.name": "t", "gen_ai.tool.name": "t"}
ERRORS: dict[str, type[Exception]] = {"fault": Fault, "bad argument": ValueError}


def body(word: str) -> str:
    if word in ERRORS:
        raise ERRORS[word]
    return word


def sync() -> tuple[Any, Callable[[str], Any]]:
    guarded = otel_breaker.guard(tool="t", policy=Policy(failure_threshold=2))(body)
    return guarded, guarded


def coroutine() -> tuple[Any, Callable[[str], Any]]:
    @otel_breaker.guard(tool="t", policy=Policy(failure_threshold=2))
    async def tool(word: str) -> str:
        await asyncio.sleep(0)
        return body(word)

    return tool, lambda word: asyncio.run(tool(word))


def generator() -> tuple[Any, Callable[[str], Any]]:
    @otel_breaker.guard(tool="t", policy=Policy(failure_threshold=2))
    def tool(word: str) -> Iterator[str]:
        yield body(word)

    return tool, lambda word: list(tool(word)).pop()


def async_generator() -> tuple[Any, Callable[[str], Any]]:
    @otel_breaker.guard(tool="t", policy=Policy(failure_threshold=2))
    async def tool(word: str) -> AsyncIterator[str]:
        await asyncio.sleep(0)
        yield body(word)

    async def read(word: str) -> Any:
        return [item async for item in tool(word)].pop()

    return tool, lambda word: asyncio.run(read(word))


@pytest.fixture(params=[sync, coroutine, generator, async_generator])
def tool(request: pytest.FixtureRequest) -> tuple[Any, Callable[[str], Any]]:
    made: tuple[Any, Callable[[str], Any]] = request.param()
    return made


def play(run: Callable[[str], Any], clock: ManualClock) -> None:
    for word in SCRIPT:
        if isinstance(word, float):
            clock.advance(word)
        elif word in ERRORS:
            with pytest.raises(ERRORS[word]):
                run(word)
        elif word == "refused":
            assert run("never reached")["status"] == "circuit_open"
        else:
            assert run(word) == word


ADMIT = ("otel_breaker.call.admitted", {**BASE, "otel_breaker.state": "closed", "otel_breaker.decision": "admitted"})
BEGAN = ("otel_breaker.probe.started", {**BASE, "otel_breaker.state": "half_open", "otel_breaker.decision": "probe"})
REJECT = (
    "otel_breaker.call.rejected",
    {
        **BASE,
        "otel_breaker.state": "open",
        "otel_breaker.decision": "circuit_open",
        "otel_breaker.cooldown.remaining": 30.0,
        "otel_breaker.reason": "tool_error",
        "error.type": "tool_error",
    },
)


def move(previous: str, state: str, reason: str, **more: Any) -> tuple[str, dict[str, Any]]:
    told = {"otel_breaker.previous_state": previous, "otel_breaker.state": state, "otel_breaker.reason": reason}
    if "cooldown" in more:
        told |= {"otel_breaker.cooldown.remaining": more["cooldown"], "error.type": reason}
    return "otel_breaker.state.changed", {**BASE, **told}


def ended(outcome: str, state: str, **more: Any) -> tuple[str, dict[str, Any]]:
    told = {"otel_breaker.outcome": outcome, "otel_breaker.state": state}
    if "reason" in more:
        told |= {"otel_breaker.reason": more["reason"], "error.type": more["reason"]}
    return "otel_breaker.probe.finished", {**BASE, **told}


STORY = [
    [ADMIT],
    [ADMIT],
    [ADMIT, move("closed", "open", "tool_error", cooldown=30.0)],
    [REJECT],
    [
        move("open", "half_open", "cooldown_elapsed"),
        BEGAN,
        move("half_open", "open", "tool_error", cooldown=60.0),
        ended("failure", "open", reason="tool_error"),
    ],
    [move("open", "half_open", "cooldown_elapsed"), BEGAN, ended("neutral", "half_open")],
    [BEGAN, move("half_open", "closed", "probe_succeeded"), ended("success", "closed")],
    [ADMIT],
]
LOGGED = [
    ("WARN", STORY[2][1]),
    ("WARN", (REJECT[0], {**REJECT[1], "otel_breaker.merged": 1})),
    ("INFO", STORY[4][0]),
    ("WARN", STORY[4][2]),
    ("INFO", STORY[5][0]),
    ("INFO", STORY[6][1]),
]


def check_logs_and_numbers(signals: Signals) -> None:
    assert [(severity, (name, told)) for name, severity, told in signals.plain_logs] == LOGGED
    kept = {
        name.removeprefix("otel_breaker."): {key: value for key, value in signals.series(name).items() if value}
        for name in signals.collect()
        if name not in ("otel_breaker.open.duration", "otel_breaker.time_saved")
    }
    assert {name: series for name, series in kept.items() if series} == {
        "admissions": {("admitted", "t"): 4, ("probe", "t"): 3, ("circuit_open", "t"): 1},
        "outcomes": {("t", "success"): 3, ("t", "failure"): 3, ("t", "neutral"): 1},
        "failures": {("tool_error", "t"): 3},
        "transitions": {
            ("t", "closed", "open"): 1,
            ("t", "open", "half_open"): 2,
            ("t", "half_open", "open"): 1,
            ("t", "half_open", "closed"): 1,
        },
        "status": {("t", "closed"): 1},
        "tools": {("t", "t"): 1},
        "circuits": {(): 1},
    }
    assert [(p.count, p.sum) for p in signals.collect()["otel_breaker.open.duration"].data.data_points] == [(1, 90.0)]


def test_on_the_current_span(tool: Any, signals: Signals, clock: ManualClock) -> None:
    with signals.tracer.start_as_current_span("agent"):
        play(tool[1], clock)
    (span,) = signals.plain_spans
    assert span["events"] == [event for call in STORY for event in call]
    check_logs_and_numbers(signals)


def test_without_a_current_span(tool: Any, signals: Signals, clock: ManualClock) -> None:
    play(tool[1], clock)
    assert [one["events"] for one in signals.plain_spans] == STORY
    assert {(one["name"], one["kind"], one["root"]) for one in signals.plain_spans} == {
        ("otel_breaker t", "INTERNAL", True)
    }
    failed = {"otel_breaker.outcome": "failure", "otel_breaker.reason": "tool_error", "error.type": "tool_error"}
    admitted, probe = {**BASE, "otel_breaker.decision": "admitted"}, {**BASE, "otel_breaker.decision": "probe"}
    assert [(one["status"], one["attributes"]) for one in signals.plain_spans] == [
        ("UNSET", {**admitted, "otel_breaker.outcome": "success"}),
        ("ERROR", {**admitted, **failed}),
        ("ERROR", {**admitted, **failed}),
        ("UNSET", {**REJECT[1], "otel_breaker.merged": 1}),
        ("ERROR", {**probe, **failed}),
        ("UNSET", {**probe, "otel_breaker.outcome": "neutral"}),
        ("UNSET", {**probe, "otel_breaker.outcome": "success"}),
        ("UNSET", {**admitted, "otel_breaker.outcome": "success"}),
    ]
    check_logs_and_numbers(signals)


def test_with_traces_off(tool: Any, signals: Signals, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    play(tool[1], clock)
    assert signals.spans == []
    check_logs_and_numbers(signals)


def test_a_listener_that_raises_leaves_the_gauge_right_B36(tool: Any, signals: Signals, clock: ManualClock) -> None:
    guarded, run = tool
    remove = otel_breaker.add_listener(lambda transition: 1 / 0)
    try:
        for word in SCRIPT:
            if isinstance(word, float):
                clock.advance(word)
                continue
            with contextlib.suppress(Fault, ValueError):
                run(word)
            status = {key[1]: value for key, value in signals.series("otel_breaker.status").items() if value}
            assert status == {of(guarded).snapshot().state: 1}
    finally:
        remove()
    check_logs_and_numbers(signals)
