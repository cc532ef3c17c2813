from __future__ import annotations

import functools
import inspect
import json
import re
import threading
from typing import Any

import pytest

import otel_breaker
from otel_breaker import CircuitOpenError, Policy
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, decisions, moves, of, outcomes, reasons

pytestmark = pytest.mark.usefixtures("breaker_registry")


def broken(**options: Any) -> Any:
    """A guarded tool that raises `Fault`, and counts how often its body ran on ``runs``."""

    def refund(charge: str = "ch_1") -> str:
        refund.runs += 1  # type: ignore[attr-defined]
        raise Fault(charge)

    refund.runs = 0  # type: ignore[attr-defined]
    guarded = otel_breaker.guard(**options)(refund)
    guarded.body = refund
    return guarded


def exhaust(tool: Any, times: int = 5) -> None:
    for _ in range(times):
        with pytest.raises(Fault):
            tool()


@pytest.mark.parametrize("decorate", [otel_breaker.guard, otel_breaker.guard(), otel_breaker.guard(tool="other")])
def test_bare_and_called_it_keeps_the_function_as_it_was(decorate: Any) -> None:
    def search(query: str, /, limit: int = 3, *, lang: str = "en") -> list[str]:
        """Look it up."""
        return [query, str(limit), lang]

    guarded = decorate(search)
    assert guarded("a", 2, lang="de") == ["a", "2", "de"]
    assert guarded.__name__ == "search"
    assert guarded.__doc__ == "Look it up."
    assert guarded.__wrapped__ is search
    assert inspect.signature(guarded) == inspect.signature(search)
    assert not inspect.iscoroutinefunction(guarded)


def test_the_result_is_the_same_object() -> None:
    made = object()
    assert otel_breaker.guard(lambda: made)() is made


def test_the_exception_is_the_same_object_and_unchanged() -> None:
    error = Fault("x")
    error.__cause__ = cause = KeyError("k")

    @otel_breaker.guard
    def tool() -> None:
        raise error

    with pytest.raises(Fault) as caught:
        tool()
    assert caught.value is error
    assert error.__cause__ is cause
    assert error.__context__ is None
    assert error.args == ("x",)


def test_the_fifth_failure_opens_and_the_sixth_call_gets_the_answer_without_running_the_body() -> None:
    tool = broken(tool="refund_charge", alternatives=["issue_refund_manually"])
    exhaust(tool, 4)
    assert of(tool).snapshot().state == "closed"
    exhaust(tool, 1)
    assert of(tool).snapshot().state == "open"
    assert tool() == {
        "status": "circuit_open",
        "tool": "refund_charge",
        "reason": "refund_charge failing (5 consecutive failures, last: tool error)",
        "retry_after_ms": 30000,
        "alternatives": ["issue_refund_manually"],
    }
    assert tool.body.runs == 5
    assert decisions(of(tool)) == {"admitted": 5, "circuit_open": 1}
    assert outcomes(of(tool)) == {"failure": 5}
    assert reasons(of(tool)) == {"tool_error": 5}
    assert moves(of(tool)) == {("closed", "open"): 1}


def test_a_success_in_between_zeroes_the_streak() -> None:
    failing = [True] * 4 + [False] + [True] * 4

    @otel_breaker.guard
    def tool() -> None:
        if failing.pop(0):
            raise Fault

    for expected in list(failing):
        if expected:
            with pytest.raises(Fault):
                tool()
        else:
            tool()
    assert of(tool).snapshot().state == "closed"
    assert of(tool).snapshot().failures == 4


def test_on_open_raise_raises_the_refusal() -> None:
    tool = broken(tool="t", on_open="raise")
    exhaust(tool)
    with pytest.raises(CircuitOpenError) as caught:
        tool()
    error = caught.value
    assert (error.key, error.tool, error.state, error.error_type) == ("t", "t", "open", "tool_error")
    assert error.retry_after == 30
    assert error.reason == "t failing (5 consecutive failures, last: tool error)"
    assert json.loads(str(error)) == error.answer()
    assert tool.body.runs == 5


def test_fallback_is_called_with_the_calls_arguments_in_place_of_the_answer() -> None:
    called: list[Any] = []

    def by_mail(*args: Any, **kwargs: Any) -> str:
        called.append((args, kwargs))
        return "mailed"

    tool = broken(fallback=by_mail)
    exhaust(tool)
    assert called == []
    assert tool("ch_2") == "mailed"
    assert tool(charge="ch_3") == "mailed"
    assert called == [(("ch_2",), {}), ((), {"charge": "ch_3"})]
    assert tool.body.runs == 5


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (Fault("x"), "failure", "tool_error"),
        (KeyError("x"), "failure", "tool_error"),
        (RuntimeError("x"), "failure", "tool_error"),
        (ConnectionRefusedError("x"), "failure", "connection_refused"),
        (ConnectionResetError("x"), "failure", "connection_reset"),
        (TimeoutError("x"), "failure", "timeout"),
        (json.JSONDecodeError("x", "", 0), "failure", "malformed_output"),
        (ValueError("x"), "neutral", None),
        (TypeError("x"), "neutral", None),
        (PermissionError("x"), "neutral", None),
        (KeyboardInterrupt(), "neutral", None),
        (SystemExit(1), "neutral", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_what_a_body_raises_counts_as_the_table_says(error: BaseException, outcome: str, reason: str | None) -> None:
    @otel_breaker.guard
    def tool() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        tool()
    assert caught.value is error
    assert outcomes(of(tool)) == {outcome: 1}
    assert reasons(of(tool)) == ({reason: 1} if reason else {})


def test_an_argument_error_after_a_guarded_call_is_the_tools_own() -> None:
    vendor = otel_breaker.Circuit("vendor")

    @otel_breaker.guard
    def tool() -> None:
        vendor.call(lambda: None)
        raise ValueError("could not read the answer")

    with pytest.raises(ValueError, match="could not read"):
        tool()
    assert outcomes(of(tool)) == {"failure": 1}
    assert reasons(of(tool)) == {"tool_error": 1}


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ({"error": "boom"}, "failure"),
        ({"error": {"message": "boom"}}, "failure"),
        ({"error": None, "data": 1}, "success"),
        ({"error": ""}, "success"),
        ({"error": "permission_denied"}, "neutral"),
        ({"error": "no", "code": "policy_denied"}, "neutral"),
        ({"error": "no", "approval_denied": True}, "neutral"),
        ({}, "success"),
        (None, "success"),
        ("error", "success"),
    ],
)
def test_a_result_dict_with_an_error_is_a_failure_unless_denied(result: Any, outcome: str) -> None:
    tool = otel_breaker.guard(lambda: result)
    assert tool() is result
    assert outcomes(of(tool)) == {outcome: 1}
    assert reasons(of(tool)) == ({"tool_error": 1} if outcome == "failure" else {})


def no(result: Any) -> bool:
    return False


def raising(result: Any) -> bool:
    raise KeyError(result)


@pytest.mark.parametrize("validate", [no, raising])
def test_a_rejected_result_counts_and_the_caller_still_gets_it(validate: Any) -> None:
    made = ["half a result"]
    tool = otel_breaker.guard(validate=validate)(lambda: made)
    for _ in range(5):
        assert tool() is made
    assert reasons(of(tool)) == {"rejected_output": 5}
    assert tool()["reason"] == "<lambda> answering with unusable output (5 consecutive failures, last: rejected output)"


@pytest.mark.parametrize("verdict", [None, True, 0, ""])
def test_only_false_or_an_exception_rejects(verdict: Any) -> None:
    tool = otel_breaker.guard(validate=lambda result: verdict)(lambda: 1)
    assert tool() == 1
    assert outcomes(of(tool)) == {"success": 1}


@pytest.mark.parametrize(
    ("told", "outcome", "reason"),
    [
        (None, "failure", "tool_error"),
        ("success", "success", None),
        ("neutral", "neutral", None),
        ("cancelled", "cancelled", None),
        ("throttled", "throttled", None),
        ("unauthorized", "unauthorized", None),
        ("failure", "failure", "unclassified"),
        ("overloaded", "failure", "overloaded"),
        ("dns_error", "failure", "dns_error"),
        ("quota_exhausted", "throttled", None),
    ],
)
def test_a_classifier_overrides_what_an_exception_means(told: str | None, outcome: str, reason: str | None) -> None:
    seen: list[Any] = []

    def classify(what: Any) -> str | None:
        seen.append(what)
        return told

    error = Fault()

    @otel_breaker.guard(classify=classify)
    def tool() -> None:
        raise error

    with pytest.raises(Fault):
        tool()
    assert seen == [error]
    assert outcomes(of(tool)) == {outcome: 1}
    assert reasons(of(tool)) == ({reason: 1} if reason else {})


def test_a_classifier_overrides_what_a_result_means() -> None:
    tool = otel_breaker.guard(classify=lambda what: "overloaded" if what == "busy" else None)(lambda word: word)
    assert tool("busy") == "busy"
    assert tool("fine") == "fine"
    assert outcomes(of(tool)) == {"success": 1, "failure": 1}
    assert reasons(of(tool)) == {"overloaded": 1}


def test_unclassified_neutral_is_a_setting_of_the_circuit() -> None:
    tool = broken(policy=Policy(unclassified="neutral"))
    exhaust(tool, 10)
    assert outcomes(of(tool)) == {"neutral": 10}
    assert of(tool).snapshot().state == "closed"


def test_a_timeout_is_told_with_the_seconds_it_took(manual_clock: ManualClock) -> None:
    @otel_breaker.guard(tool="t", dependency="api.stripe.com", policy=Policy(failure_threshold=1))
    def tool() -> None:
        manual_clock.advance(30)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        tool()
    answer = tool()
    assert answer["tool"] == "t"
    assert answer["reason"] == "api.stripe.com unreachable (1 failure, last: timeout after 30 s)"


def test_B31_one_failed_probe_reopens_and_no_round_lets_more_than_one_call_through(manual_clock: ManualClock) -> None:
    healthy = False

    @otel_breaker.guard(policy=Policy(failure_threshold=5, failure_rate=0.5, minimum_calls=20))
    def tool() -> str:
        if healthy:
            return "ok"
        raise Fault

    for _ in range(10):
        exhaust(tool, 5)
        assert of(tool).snapshot().state == "open"
        manual_clock.advance(30)
        exhaust(tool, 1)  # the probe
        assert of(tool).snapshot().state == "open"
        assert of(tool).snapshot().cooldown == 60
        assert tool()["status"] == "circuit_open"
        manual_clock.advance(60)
        healthy = True
        assert tool() == "ok"
        assert of(tool).snapshot().state == "closed"
        healthy = False
    assert decisions(of(tool)) == {"admitted": 50, "probe": 20, "circuit_open": 10}


def test_B32_every_round_opens_on_exactly_the_third_failure(manual_clock: ManualClock) -> None:
    healthy = False

    @otel_breaker.guard(policy="fast_api")
    def tool() -> str:
        if healthy:
            return "ok"
        raise Fault

    for number in range(1, 6):
        exhaust(tool, 2)
        assert of(tool).snapshot().state == "closed"
        exhaust(tool, 1)
        assert of(tool).snapshot().state == "open"
        assert of(tool).snapshot().failures == 3
        manual_clock.advance(30)
        healthy = True
        assert tool() == "ok"
        healthy = False
        assert moves(of(tool)) == {
            ("closed", "open"): number,
            ("open", "half_open"): number,
            ("half_open", "closed"): number,
        }


def test_B34_calls_run_at_the_same_time() -> None:
    together = threading.Barrier(20, timeout=10)
    tool = otel_breaker.guard(lambda: together.wait())
    arrived: list[int] = []
    threads = [threading.Thread(target=lambda: arrived.append(tool())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(arrived) == list(range(20))  # the barrier breaks unless all are inside at once
    assert outcomes(of(tool)) == {"success": 20}


def test_B34_fifty_threads_of_two_hundred_failures_are_counted_exactly() -> None:
    tool = broken(policy=Policy(failure_threshold=10_000))
    start = threading.Barrier(50)

    def work() -> None:
        start.wait()
        for _ in range(200):
            try:
                tool()
            except Fault:
                continue

    threads = [threading.Thread(target=work) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert of(tool).snapshot().state == "open"
    assert of(tool).snapshot().failures == 10_000
    assert outcomes(of(tool)) == {"failure": 10_000}
    assert moves(of(tool)) == {("closed", "open"): 1}


def test_a_method_gets_its_self() -> None:
    class Shop:
        name = "shop"

        @otel_breaker.guard
        def refund(self, charge: str) -> str:
            return f"{self.name} {charge}"

    assert Shop().refund("c") == "shop c"


def test_a_partial_and_a_callable_object_have_names() -> None:
    class Lookup:
        def __call__(self, key: str) -> str:
            return key.upper()

    def search(where: str, what: str) -> str:
        return where + what

    lookup = otel_breaker.guard(Lookup())
    there = otel_breaker.guard(functools.partial(search, "web:"))
    assert lookup("a") == "A"
    assert there("x") == "web:x"
    assert (of(lookup).name, of(there).name) == ("Lookup", "search")


class Looks:
    def __call__(self, key: str = "k") -> str:
        return key


@pytest.mark.parametrize(
    ("make", "name", "key"),
    [
        (lambda: functools.partial(fetch_plain, "k"), "fetch_plain", "fetch_plain"),
        (lambda: functools.partial(functools.partial(fetch_plain), "k"), "fetch_plain", "fetch_plain"),
        (lambda: lambda: "k", "<lambda>", r"<lambda>:\d+"),
        (lambda: Looks(), "Looks", "Looks"),
        (lambda: functools.partial(Looks(), "k"), "Looks", "Looks"),
        (lambda: Looks().__call__, "__call__", "Looks.__call__"),
        (lambda: len, "len", "len"),
    ],
)
def test_B39_whatever_can_be_called_has_one_name_however_often_it_is_made(
    make: Any, name: str, key: str, breaker_registry: Registry
) -> None:
    first, second = otel_breaker.guard(make()), otel_breaker.guard(make())
    (circuit,) = breaker_registry
    assert of(first) is of(second) is circuit
    assert (circuit.name, breaker_registry.get(name)) == (name, circuit)
    assert re.fullmatch(rf"[\w.<>]*{key}/{name}#tool", str(circuit.key))  # no address in it
    assert repr(circuit) == f"<Circuit {name} closed>"


def fetch_plain(key: str) -> str:
    return key


def test_a_tool_that_calls_itself_is_one_call() -> None:
    @otel_breaker.guard
    def countdown(left: int) -> int:
        if left == 0:
            raise Fault
        return int(countdown(left - 1))

    with pytest.raises(Fault):
        countdown(3)
    assert decisions(of(countdown)) == {"admitted": 1}
    assert outcomes(of(countdown)) == {"failure": 1}


def test_tools_of_one_factory_share_a_circuit_by_name() -> None:
    def make(name: str) -> Any:
        def body() -> None:
            raise Fault

        return otel_breaker.guard(tool=name)(body)

    mine, same, other = make("search"), make("search"), make("refund")
    assert of(mine) is of(same)
    assert of(mine) is not of(other)
    exhaust(mine, 3)
    exhaust(same, 2)
    assert mine()["status"] == "circuit_open"
    assert same()["status"] == "circuit_open"
    exhaust(other, 1)
    assert (of(mine).name, of(other).name) == ("search", "refund")


def test_same_name_in_another_place_is_another_circuit_of_that_name(breaker_registry: Registry) -> None:
    @otel_breaker.guard(tool="search")
    def one() -> None: ...

    @otel_breaker.guard(tool="search")
    def two() -> None: ...

    assert of(one) is not of(two)
    assert of(one).stats is of(two).stats
    assert breaker_registry.get("search") is of(two)


def test_a_guard_is_registered_from_its_decoration_on(breaker_registry: Registry) -> None:
    tool = broken(tool="early")
    assert [circuit.name for circuit in breaker_registry] == ["early"]
    assert breaker_registry.get("early") is of(tool)


def test_a_dependency_is_key_and_name(breaker_registry: Registry) -> None:
    one, two = broken(tool="refund", dependency="API.Stripe.com"), broken(tool="charge", dependency="api.stripe.com")
    assert of(one) is of(two)
    assert of(one).name == "api.stripe.com"
    assert len(breaker_registry) == 1
    exhaust(one, 3)
    exhaust(two, 2)
    assert (one()["tool"], two()["tool"]) == ("refund", "charge")


def test_two_tools_of_one_dependency_keep_their_own_alternatives() -> None:
    one = broken(tool="refund", dependency="api.stripe.com", alternatives=["refund_by_mail"])
    two = broken(tool="charge", dependency="api.stripe.com", alternatives=["invoice"])
    none = broken(tool="list", dependency="api.stripe.com")
    exhaust(one)
    assert one()["alternatives"] == ["refund_by_mail"]
    assert two()["alternatives"] == ["invoice"]
    assert one()["alternatives"] == ["refund_by_mail"]
    assert none()["alternatives"] == []


def test_configuration_maps_a_tool_to_a_dependency(configure: Any) -> None:
    configure(
        circuits=[
            {
                "match": {"tool": "refund_*"},
                "dependency": "api.stripe.com",
                "display_name": "payment vendor",
                "failure_threshold": 2,
                "cooldown": "2m",
                "alternatives": ["issue_refund_manually"],
            }
        ]
    )
    tool = broken(tool="refund_charge")
    exhaust(tool, 2)
    assert of(tool).name == "api.stripe.com"
    assert tool() == {
        "status": "circuit_open",
        "tool": "refund_charge",
        "reason": "payment vendor failing (2 consecutive failures, last: tool error)",
        "retry_after_ms": 120000,
        "alternatives": ["issue_refund_manually"],
    }


def test_on_open_may_come_from_configuration_and_the_guards_own_wins(configure: Any) -> None:
    configure(on_open="raise")
    configured, own = broken(tool="a"), broken(tool="b", on_open="answer")
    exhaust(configured)
    exhaust(own)
    with pytest.raises(CircuitOpenError):
        configured()
    assert own()["status"] == "circuit_open"


def test_a_guard_with_a_clock_of_its_own() -> None:
    clock = ManualClock()
    tool = broken(clock=clock)
    exhaust(tool)
    clock.advance(29.5)
    assert tool()["retry_after_ms"] == 1000
    clock.advance(0.5)
    exhaust(tool, 1)
    assert tool()["retry_after_ms"] == 60000


def test_the_cooldowns_are_30_s_1_min_5_min_15_min_15_min(manual_clock: ManualClock) -> None:
    tool = broken()
    exhaust(tool)
    for seconds in (30, 60, 300, 900, 900):
        assert of(tool).snapshot().cooldown == seconds
        assert tool()["retry_after_ms"] == seconds * 1000
        manual_clock.advance(seconds - 0.001)
        assert tool()["status"] == "circuit_open"
        manual_clock.advance(0.001)
        exhaust(tool, 1)
    assert tool.body.runs == 10
    assert of(tool).snapshot().failures == 10
