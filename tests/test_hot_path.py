"""The short way that a guarded function takes while its circuit is closed, or open: the same rules as the long one."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest

import otel_breaker
from otel_breaker import Circuit, CircuitOpenError, Policy
from otel_breaker._frames import FRAME
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, decisions, moves, of, outcomes, reasons, trip

pytestmark = pytest.mark.usefixtures("breaker_registry")


def warm(**options: Any) -> Any:
    """A guarded function that returns its argument, or what calling it returns; its next successes are short ones."""

    def tool(what: Any = "ok") -> Any:
        return what() if callable(what) else what

    guarded = otel_breaker.guard(tool="t", **options)(tool)
    assert guarded() == "ok"
    return guarded


def raise_fault() -> None:
    raise Fault


def test_successes_are_counted_and_leave_no_frame() -> None:
    tool = warm()
    for number in range(100):
        assert tool(number) == number
        assert FRAME.get() is None
    assert decisions(of(tool)) == {"admitted": 101}
    assert outcomes(of(tool)) == {"success": 101}


def test_how_long_a_success_takes_is_learnt_from_calls_not_from_their_attempts(manual_clock: ManualClock) -> None:
    tool = warm()
    manual_clock.advance(1)
    tool(lambda: (manual_clock.advance(20), tool("attempt")))
    assert of(tool)._state.longest == 20


def test_a_success_zeroes_the_streak() -> None:
    tool = warm()
    for _ in range(3):
        for _ in range(4):
            with pytest.raises(Fault):
                tool(raise_fault)
        assert of(tool).snapshot().failures == 4
        tool()
        assert of(tool).snapshot().failures == 0


def test_a_success_counts_in_the_window() -> None:
    tool = warm(policy=Policy(failure_rate=0.5, minimum_calls=4, failure_threshold=100))
    for _ in range(3):
        tool()
    for _ in range(3):
        with pytest.raises(Fault):
            tool(raise_fault)
    assert of(tool).snapshot().state == "closed"
    with pytest.raises(Fault):
        tool(raise_fault)
    assert of(tool).snapshot().state == "open"
    assert moves(of(tool)) == {("closed", "open"): 1}


def test_a_success_ends_a_run_of_throttles() -> None:
    tool = warm(classify=lambda what: "throttled" if what == "429" else None)
    for what in ("429", "429", "ok", "429", "429"):
        tool(what)
    assert of(tool).snapshot().state == "closed"
    tool("429")
    assert of(tool).snapshot().state == "open"


def test_a_success_from_before_an_opening_is_late_also_when_it_has_closed_again(manual_clock: ManualClock) -> None:
    tool = warm()
    circuit = of(tool)

    def body() -> str:
        contextvars.Context().run(trip, circuit)
        manual_clock.advance(30)
        contextvars.Context().run(lambda: circuit.acquire().success())
        return "slow"

    assert tool(body) == "slow"
    assert circuit.snapshot().state == "closed"
    assert outcomes(circuit) == {"success": 2, "failure": 5, "late": 1}


def test_a_success_while_open_is_late() -> None:
    tool = warm()
    circuit = of(tool)
    assert tool(lambda: contextvars.Context().run(trip, circuit)) is circuit
    assert circuit.snapshot().state == "open"
    assert outcomes(circuit) == {"success": 1, "failure": 5, "late": 1}


@pytest.mark.parametrize(
    "options",
    [{"validate": lambda result: result != "bad"}, {"classify": lambda what: {"bad": "rejected_output"}.get(what)}],
)
def test_the_users_judgement_is_asked_every_time(options: Any) -> None:
    tool = warm(**options)
    for _ in range(3):
        tool("fine")
        tool("bad")
    assert outcomes(of(tool)) == {"success": 4, "failure": 3}
    assert reasons(of(tool)) == {"rejected_output": 3}


def test_an_error_dict_is_a_failure_every_time() -> None:
    tool = warm()
    for _ in range(5):
        tool({"error": "boom"})
    assert reasons(of(tool)) == {"tool_error": 5}
    assert of(tool).snapshot().state == "open"


def test_a_context_that_outlives_the_call_is_not_inside_it() -> None:
    tool = warm()
    context = tool(contextvars.copy_context)
    with pytest.raises(Fault):
        context.run(tool, raise_fault)
    assert decisions(of(tool)) == {"admitted": 3}
    assert outcomes(of(tool)) == {"success": 2, "failure": 1}


def test_a_call_within_is_an_attempt() -> None:
    tool = warm()
    assert tool(lambda: tool(lambda: tool("deep"))) == "deep"
    assert decisions(of(tool)) == {"admitted": 2}
    assert outcomes(of(tool)) == {"success": 2}


def test_what_was_being_handled_before_is_not_its_doing() -> None:
    tool = warm()
    try:
        raise ConnectionResetError
    except ConnectionResetError:
        with pytest.raises(Fault):
            tool(raise_fault)
    assert reasons(of(tool)) == {"tool_error": 1}


def test_a_guards_own_credential_is_known() -> None:
    tool = warm(credential="acct-1", on_open="raise", classify=lambda what: what if what == "unauthorized" else None)
    tool("unauthorized")
    with pytest.raises(CircuitOpenError) as refused:
        tool()
    assert refused.value.decision == "credential_paused"


def test_refusals_are_counted_and_the_wait_that_they_saved(manual_clock: ManualClock) -> None:
    tool = warm()
    for _ in range(5):
        with pytest.raises(Fault):
            tool(lambda: (manual_clock.advance(20), raise_fault()))
    answers = [tool() for _ in range(10)]
    assert answers == [answers[0]] * 10
    assert answers[0]["retry_after_ms"] == 30000
    assert decisions(of(tool)) == {"admitted": 6, "circuit_open": 10}
    assert of(tool).stats.time_saved == 200


def test_what_a_refusal_saves_is_estimated_from_the_last_failures_not_the_very_last(manual_clock: ManualClock) -> None:
    circuit = Circuit("c", Policy(failure_threshold=2))
    for seconds in (10, 20):
        permit = circuit.acquire()
        manual_clock.advance(seconds)
        permit.failure("timeout")
    with pytest.raises(CircuitOpenError):
        circuit.acquire()
    assert 10 < circuit.stats.time_saved < 20


def test_refusals_follow_the_clock_the_state_and_the_operator(manual_clock: ManualClock) -> None:
    tool = warm(policy=Policy(cooldown=2))
    trip(of(tool), "dns_error")
    assert [tool()["retry_after_ms"] for _ in range(3)] == [2000] * 3
    manual_clock.advance(1)
    assert [tool()["retry_after_ms"] for _ in range(3)] == [1000] * 3
    manual_clock.advance(1)
    with pytest.raises(Fault):
        tool(raise_fault)
    for _ in range(3):
        assert tool()["reason"] == "t failing (6 consecutive failures, last: tool error)"
    of(tool).force_open("x")
    for _ in range(3):
        assert tool()["reason"] == "t switched off by an operator"
    of(tool).resume()
    assert tool() == "ok"


def test_refusals_by_raise_are_each_their_own(manual_clock: ManualClock) -> None:
    tool = warm(on_open="raise")
    trip(of(tool))
    caught = []
    for _ in range(4):
        with pytest.raises(CircuitOpenError) as refused:
            tool()
        caught.append(refused.value)
        manual_clock.advance(0.25)
    assert len(set(map(id, caught))) == 4
    assert [error.retry_after for error in caught] == [30, 29.75, 29.5, 29.25]
    assert {(error.key, error.tool, error.state, error.decision) for error in caught} == {
        ("t", "t", "open", "circuit_open")
    }


def test_observe_and_off_take_no_short_way_to_a_refusal(configure: Any) -> None:
    for mode, told in (("observe", {"admitted": 6, "would_reject": 5}), ("off", {})):
        configure(mode=mode)
        tool = otel_breaker.guard(tool=mode)(lambda: "ran")
        tool()
        trip(of(tool)) if mode == "observe" else of(tool).force_open("x")
        assert [tool() for _ in range(5)] == ["ran"] * 5
        assert decisions(of(tool)) == told


def test_a_refusal_within_another_tool_is_that_tools_answer() -> None:
    inner = warm(on_open="raise")
    trip(of(inner))
    outer = otel_breaker.guard(tool="outer")(lambda: inner())
    for _ in range(3):
        assert outer()["tool"] == "outer"
    assert outcomes(of(outer)) == {"neutral": 3}


def test_two_clocks_do_not_mix() -> None:
    clock = ManualClock()
    tool = warm(clock=clock)
    clock.advance(1000)
    tool()
    assert outcomes(of(tool)) == {"success": 2}
    assert Circuit("other").snapshot().state == "closed"
