from __future__ import annotations

import json
import pickle
from typing import Any

import httpx
import pytest
import requests

import otel_breaker
from otel_breaker import BreakerError, Circuit, CircuitOpenError, CredentialPausedError, Policy, ProbeInFlightError
from otel_breaker import answers as wording
from otel_breaker.core.clock import ManualClock
from otel_breaker.errors import fitted
from otel_breaker.outcomes import REASONS
from tests.support.circuits import Fault, fail, of, trip

pytestmark = pytest.mark.usefixtures("breaker_registry")

FIELDS = ["status", "tool", "reason", "retry_after_ms", "alternatives"]

WORDS = {
    "connection_refused": "v unreachable (5 consecutive failures, last: connection refused)",
    "connection_reset": "v unreachable (5 consecutive failures, last: connection reset)",
    "connection_error": "v unreachable (5 consecutive failures, last: connection error)",
    "dns_error": "v unreachable (5 consecutive failures, last: name not resolved)",
    "tls_error": "v unreachable (5 consecutive failures, last: TLS error)",
    "connect_timeout": "v unreachable (5 consecutive failures, last: connect timeout after 30 s)",
    "read_timeout": "v unreachable (5 consecutive failures, last: timeout after 30 s)",
    "timeout": "v unreachable (5 consecutive failures, last: timeout after 30 s)",
    "deadline_exceeded": "v unreachable (5 consecutive failures, last: deadline exceeded after 30 s)",
    "server_error": "v failing (5 consecutive failures, last: server error)",
    "overloaded": "v overloaded (5 consecutive failures, last: overloaded)",
    "malformed_output": "v answering with unusable output (5 consecutive failures, last: malformed output)",
    "truncated_output": "v answering with unusable output (5 consecutive failures, last: truncated output)",
    "rejected_output": "v answering with unusable output (5 consecutive failures, last: rejected output)",
    "throttled": "v limiting our rate (5 consecutive failures, last: rate limit)",
    "quota_exhausted": "v out of quota for us (5 consecutive failures, last: quota exhausted)",
    "tool_error": "v failing (5 consecutive failures, last: tool error)",
    "probe_lapsed": "v unreachable (5 consecutive failures, last: probe without an answer)",
    "unclassified": "v rejecting calls (5 consecutive failures, last: unexplained error)",
}


def refusal_of(circuit: Circuit) -> CircuitOpenError:
    with pytest.raises(CircuitOpenError) as caught:
        circuit.acquire()
    return caught.value


def test_every_reason_has_a_wording() -> None:
    assert list(WORDS) == list(REASONS)


@pytest.mark.parametrize("reason", REASONS)
def test_the_wording_of_each_reason(reason: str, manual_clock: ManualClock) -> None:
    circuit = Circuit("v")
    for _ in range(5):
        permit = circuit.acquire()
        manual_clock.advance(30)
        permit.failure(reason)
    assert refusal_of(circuit).reason == WORDS[reason]
    assert refusal_of(circuit).error_type == reason
    assert refusal_of(circuit).answer()["reason"] == WORDS[reason]


def test_seconds_are_named_only_for_timeouts_of_at_least_one(manual_clock: ManualClock) -> None:
    circuit = Circuit("v", Policy(failure_threshold=1))
    permit = circuit.acquire()
    manual_clock.advance(0.4)
    permit.failure("timeout")
    assert refusal_of(circuit).reason == "v unreachable (1 failure, last: timeout)"


def test_slow_calls_have_their_own_wording(manual_clock: ManualClock) -> None:
    circuit = Circuit("v", Policy(slow_call=1, slow_rate=0.5, minimum_calls=2))
    for _ in range(2):
        circuit.call(manual_clock.advance, 2)
    assert circuit.snapshot().reason == "slow_rate"
    assert refusal_of(circuit).reason == "v too slow (2 slow calls)"
    assert refusal_of(circuit).error_type is None
    copy = pickle.loads(pickle.dumps(refusal_of(circuit)))
    assert copy.reason == "v too slow (2 slow calls)"
    manual_clock.advance(30)
    circuit.acquire()
    assert refusal_of(circuit).reason == "v too slow (2 slow calls); one call is testing it now"


def test_the_answer_always_has_these_five_fields_in_this_order(manual_clock: ManualClock) -> None:
    tool = otel_breaker.guard(tool="t")(lambda: None)
    trip(of(tool))
    open_ = tool()
    manual_clock.advance(30)
    of(tool).acquire()
    probing = tool()
    of(tool).force_open("x")
    forced = tool()
    for answer in (open_, probing, forced):
        assert list(answer) == FIELDS
        assert answer["alternatives"] == []
    assert [answer["status"] for answer in (open_, probing, forced)] == [
        "circuit_open", "probe_in_flight", "circuit_open",
    ]  # fmt: skip
    assert probing["reason"] == "t failing (5 consecutive failures, last: server error); one call is testing it now"
    assert forced["reason"] == "t switched off by an operator"


def test_each_answer_is_a_new_one() -> None:
    """A harness may write into what it got."""
    tool = otel_breaker.guard(tool="t", alternatives=["a"])(lambda: None)
    trip(of(tool))
    for _ in range(3):
        answer = tool()
        assert answer["alternatives"] == ["a"]
        answer["alternatives"].append("b")
        answer["status"] = "changed"


@pytest.mark.parametrize(
    ("passed", "told"),
    [(0, 30000), (0.001, 30000), (0.999, 30000), (1, 29000), (28.5, 2000), (29, 1000), (29.001, 1000), (29.999, 1000)],
)
def test_retry_after_ms_is_whole_seconds_rounded_up_and_never_0(
    passed: float, told: int, manual_clock: ManualClock
) -> None:
    tool = otel_breaker.guard(tool="t")(lambda: None)
    trip(of(tool))
    manual_clock.advance(passed)
    assert [tool()["retry_after_ms"] for _ in range(2)] == [told] * 2


def test_retry_after_of_a_probe_is_what_is_left_of_its_lease(manual_clock: ManualClock) -> None:
    tool = otel_breaker.guard(tool="t")(lambda: None)
    trip(of(tool))
    manual_clock.advance(30)
    of(tool).acquire()
    manual_clock.advance(17)
    assert tool()["retry_after_ms"] == 13000


def test_nothing_of_the_upstreams_words_is_told() -> None:
    @otel_breaker.guard(tool="t", on_open="raise")
    def tool() -> None:
        raise ConnectionRefusedError("secret of the vendor")

    for _ in range(5):
        with pytest.raises(ConnectionRefusedError):
            tool()
    for _ in range(2):
        with pytest.raises(CircuitOpenError) as caught:
            tool()
        assert "secret" not in str(caught.value) + repr(caught.value) + str(caught.value.answer())


def test_str_is_the_answer_as_one_line_of_json() -> None:
    circuit = trip(Circuit("größe \n {odd}"))
    text = str(refusal_of(circuit))
    assert "\n" not in text
    assert list(json.loads(text)) == FIELDS
    assert json.loads(text) == refusal_of(circuit).answer()
    assert "größe" in text


def raised_by(kind: str, clock: ManualClock) -> CircuitOpenError:
    """A refusal of each kind, as it is really raised."""
    circuit = Circuit("vendor", credential="acct-1")
    if kind == "paused":
        circuit.acquire().success()
        circuit.acquire().unauthorized()
        return refusal_of(circuit)
    if kind.startswith("guard"):

        @otel_breaker.guard(tool="t", on_open="raise", alternatives=["a"])
        def tool() -> None: ...

        trip(of(tool))
        for _ in range(int(kind[-1])):
            with pytest.raises(CircuitOpenError) as caught:
                tool()
        return caught.value
    trip(circuit, "timeout")
    if kind == "probing":
        clock.advance(30)
        circuit.acquire()
    elif kind == "forced":
        circuit.force_open("x")
    return refusal_of(circuit)


@pytest.mark.parametrize("kind", ["open", "probing", "forced", "paused", "guard, call 1", "guard, call 2"])
def test_a_refusal_survives_pickling(kind: str, manual_clock: ManualClock) -> None:
    error = raised_by(kind, manual_clock)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, CircuitOpenError)
    assert type(copy).__name__ == type(error).__name__
    assert (str(copy), copy.answer(), copy.reason) == (str(error), error.answer(), error.reason)
    for name in ("key", "tool", "state", "decision", "error_type", "retry_after", "alternatives"):
        assert getattr(copy, name) == getattr(error, name)


def test_what_a_guards_refusal_says_does_not_change_after_it_was_raised(manual_clock: ManualClock) -> None:
    error = raised_by("guard, call 2", manual_clock)
    manual_clock.advance(1000)
    assert error.retry_after == 30
    assert error.state == "open"
    assert error.alternatives == ("a",)
    assert not hasattr(error, "nonsense")


def test_the_exception_tree() -> None:
    assert ProbeInFlightError.__mro__[1:4] == (CircuitOpenError, BreakerError, Exception)
    assert CredentialPausedError.__mro__[1:4] == (CircuitOpenError, BreakerError, Exception)
    assert issubclass(otel_breaker.SettingsError, BreakerError)
    assert not issubclass(otel_breaker.SettingsError, CircuitOpenError)


@pytest.mark.parametrize("cls", [CircuitOpenError, ProbeInFlightError, CredentialPausedError])
@pytest.mark.parametrize("base", [httpx.HTTPError, requests.RequestException, OSError, KeyError])
def test_a_fitted_class_is_both_and_pickles_as_the_plain_one(cls: type, base: type) -> None:
    both = fitted(cls, base)
    assert fitted(cls, base) is both
    assert both.__name__ == cls.__name__
    error = both(key="api", tool="t", retry_after=2.5, failures=1, error_type="timeout", alternatives=("a",))
    assert isinstance(error, cls)
    assert isinstance(error, base)
    expected = {
        "status": cls.status,  # type: ignore[attr-defined]
        "tool": "t",
        "reason": "api unreachable (1 failure, last: timeout)",
        "retry_after_ms": 3000,
        "alternatives": ["a"],
    }
    assert error.answer() == expected
    assert json.loads(str(error)) == expected
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert copy.answer() == expected


def test_an_answer_for_another_tool() -> None:
    assert refusal_of(trip(Circuit("v"))).answer("refund_charge")["tool"] == "refund_charge"


def test_the_schema_takes_every_answer_and_nothing_else() -> None:
    model = wording.schema()
    answer = refusal_of(trip(Circuit("v"))).answer()
    assert model.model_validate(answer).model_dump() == answer
    for wrong in (
        {**answer, "retry_after_ms": 0},
        {**answer, "retry_after_ms": 1500},
        {**answer, "status": "ok"},
        {**answer, "extra": 1},
        {name: answer[name] for name in FIELDS[:-1]},
    ):
        with pytest.raises(ValueError, match="validation error"):
            model.model_validate(wrong)


# --- interrupts are not answered --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async", "generator", "async generator"])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_a_refusal_is_handled_goes_through(kind: str, interrupt: type[BaseException]) -> None:
    """The refusal is in its context, but it is not because of it."""
    import asyncio

    vendor = trip(Circuit("vendor"))

    def body() -> Any:
        try:
            vendor.call(int)
        except CircuitOpenError:
            raise interrupt from None

    async def main() -> Any:
        if kind == "async":

            @otel_breaker.guard
            async def coroutine() -> Any:
                return body()

            return await coroutine()

        @otel_breaker.guard
        async def stream() -> Any:
            yield body()

        return [item async for item in stream()]

    def run() -> Any:
        if kind == "sync":
            return otel_breaker.guard(body)()
        if kind == "generator":

            @otel_breaker.guard
            def stream() -> Any:
                yield body()

            return list(stream())
        return asyncio.run(main())

    with pytest.raises(interrupt):
        run()


def test_an_operators_command_during_a_retry_loop_is_told_as_such() -> None:
    import contextvars

    @otel_breaker.guard(tool="t")
    def tool() -> Any:
        with pytest.raises(Fault):
            circuit.call(raise_fault)
        contextvars.Context().run(circuit.force_open, "x")
        return circuit.call(raise_fault)

    circuit = of(tool)
    assert tool()["reason"] == "t switched off by an operator"
    fail(Circuit("elsewhere"))


def raise_fault() -> None:
    raise Fault
