"""Bad input: one clear message, the program runs on, and the user's own exception is the same object."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import otel_breaker
from otel_breaker import Circuit, Policy, _guard
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, fail, moves, of, outcomes, reasons, trip

pytestmark = pytest.mark.usefixtures("breaker_registry")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def boom(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a secret of the callback")


# --- callbacks that raise ---------------------------------------------------------------------------------------------


def test_B36_a_listener_that_raises_hides_no_error_and_stops_no_transition(caplog: pytest.LogCaptureFixture) -> None:
    error = Fault()
    heard: list[str] = []

    @otel_breaker.guard(policy=Policy(failure_threshold=1))
    def tool() -> None:
        raise error

    removes = [otel_breaker.add_listener(boom), otel_breaker.add_listener(lambda t: heard.append(t.state))]
    try:
        with pytest.raises(Fault) as caught:
            tool()
        assert caught.value is error
        assert error.__context__ is None
        assert of(tool).snapshot().state == "open"
        assert moves(of(tool)) == {("closed", "open"): 1}
        of(tool).reset()
    finally:
        for remove in removes:
            remove()
    assert heard == ["open", "closed"]
    assert len(warnings(caplog)) == 1
    assert warnings(caplog)[0].startswith("a transition listener raised; the circuit goes on (RuntimeError at ")
    assert "secret" not in caplog.text


def test_B122_the_debug_traceback_of_a_callback_does_not_tell_the_upstreams_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "otel_breaker")

    @otel_breaker.guard(policy=Policy(failure_threshold=1))
    def tool(url: str) -> None:
        raise Fault(url)

    remove = otel_breaker.add_listener(boom)
    try:
        with pytest.raises(Fault):
            tool("https://user:S3CRET@vendor.example")
    finally:
        remove()
    assert "RuntimeError: a secret of the callback" in caplog.text
    assert "S3CRET" not in caplog.text


@pytest.mark.parametrize("told", ["raises", 42, "no such kind", object()])
def test_a_classifier_that_raises_or_tells_nonsense_is_passed_over(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    error = Fault()

    @otel_breaker.guard(classify=boom if told == "raises" else lambda what: told)
    def tool(fails: bool) -> str:
        if fails:
            raise error
        return "fine"

    for _ in range(2):
        with pytest.raises(Fault) as caught:
            tool(True)
        assert caught.value is error
        assert error.__context__ is None
        assert tool(False) == "fine"
    assert outcomes(of(tool)) == {"failure": 2, "success": 2}
    assert reasons(of(tool)) == {"tool_error": 2}
    assert len(warnings(caplog)) == 1
    assert warnings(caplog)[0].startswith("a classifier r")
    assert "secret" not in caplog.text


def test_a_validator_that_raises_rejects_and_the_caller_gets_the_result() -> None:
    tool = otel_breaker.guard(validate=boom)(lambda: "result")
    assert tool() == "result"
    assert reasons(of(tool)) == {"rejected_output": 1}


@pytest.mark.parametrize("kind", ["sync", "async", "generator", "async generator"])
def test_a_fallback_that_raises_raises_to_the_caller_as_the_same_object(kind: str) -> None:
    error = Fault("the substitute is broken too")

    def fallback() -> Any:
        raise error

    def raise_out(run: Any) -> None:
        for _ in range(2):
            with pytest.raises(Fault) as caught:
                run()
            assert caught.value is error

    guard = otel_breaker.guard(tool="t", fallback=fallback)
    if kind == "sync":
        plain = guard(lambda: None)
        trip(of(plain))
        raise_out(plain)
        circuit = of(plain)
    elif kind == "async":

        @guard
        async def coroutine() -> None: ...

        circuit = trip(of(coroutine))
        raise_out(lambda: asyncio.run(coroutine()))
    elif kind == "generator":

        @guard
        def stream() -> Any:
            yield

        circuit = trip(of(stream))
        raise_out(lambda: list(stream()))
    else:

        @guard
        async def async_stream() -> Any:
            yield

        async def read() -> Any:
            return [item async for item in async_stream()]

        circuit = trip(of(async_stream))
        raise_out(lambda: asyncio.run(read()))
    assert circuit.snapshot().state == "open"
    assert circuit.snapshot().failures == 5
    assert outcomes(circuit) == {"failure": 5}


def test_a_clock_that_raises_lets_the_call_through_unguarded(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        now = wall = staticmethod(boom)

    circuit = Circuit("c", clock=Broken())  # type: ignore[arg-type]
    error = Fault()

    def body() -> None:
        raise error

    for _ in range(3):
        assert circuit.call(lambda: "ran") == "ran"
        with pytest.raises(Fault) as caught:
            circuit.call(body)
        assert caught.value is error
    assert warnings(caplog)[0].startswith("a guard failed; the call goes on unguarded (RuntimeError at ")


class Hostile(Exception):
    """Answers every question with an exception."""

    def __str__(self) -> str:
        raise RuntimeError

    def __getattr__(self, name: str) -> Any:
        raise (AttributeError if name.startswith("__") else RuntimeError)(name)


def test_an_exception_that_cannot_be_inspected_is_the_same_object_and_counts() -> None:
    error = Hostile()

    @otel_breaker.guard
    def tool() -> None:
        raise error

    for _ in range(5):
        with pytest.raises(Hostile) as caught:
            tool()
        assert caught.value is error
    assert tool()["status"] == "circuit_open"


def test_a_judge_that_raises_leaves_the_result_alone_and_gives_the_probes_slot_back(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The judges of instrumentations read foreign objects: a property of a response may raise."""
    circuit = trip(Circuit("c"))
    manual_clock.advance(30)
    site = _guard.Site("library", judge=boom)
    for _ in range(2):
        assert _guard.call(site, circuit, lambda: "result", (), {}) == "result"
    assert circuit.snapshot().state == "half_open"
    assert circuit.snapshot().retry_after == 0
    assert warnings(caplog)[0].startswith("settling a call failed; its result is unaffected (RuntimeError at ")


class Unreadable(dict):  # type: ignore[type-arg]
    def get(self, *args: Any) -> Any:
        raise RuntimeError


class Untrue:
    def __bool__(self) -> bool:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("result", [Unreadable(error=1), Untrue()])
def test_a_result_that_cannot_be_inspected_is_handed_on(result: Any) -> None:
    @otel_breaker.guard(validate=lambda one: one)
    def tool() -> Any:
        return result

    assert tool() is result
    assert outcomes(of(tool)) == {"success": 1}


# --- options and settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"tol": "x"},
            TypeError,
            "guard() has no option 'tol'; known: tool, dependency, credential, policy, on_open, alternatives, "
            "fallback, validate, classify, clock",
        ),
        ({"on_open": "explode"}, ValueError, "on_open must be 'answer' or 'raise', not 'explode'"),
        ({"alternatives": "other"}, TypeError, "alternatives must be a list of tool names, not one string"),
        ({"policy": 5}, TypeError, "policy must be a Policy or the name of a class, not int"),
    ],
)
def test_a_bad_option_is_one_clear_message_at_the_decoration(options: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind) as caught:

        @otel_breaker.guard(**options)
        def tool() -> None: ...

    assert str(caught.value) == message


@pytest.mark.parametrize("make", [lambda name: Circuit("c", name), lambda name: otel_breaker.guard(policy=name)(int)])
def test_an_unknown_class_is_named_with_the_known_ones(make: Any) -> None:
    with pytest.raises(ValueError, match=r"^unknown class 'fast'; known: default, fast_api, slow_tool, code_executor$"):
        make("fast")


def test_a_negative_cooldown_is_named_with_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"^cooldown must be seconds > 0, not -1$"):
        Policy(cooldown=-1)


@pytest.mark.parametrize("what", [5, "name", None])
def test_only_what_can_be_called_can_be_guarded(what: Any) -> None:
    with pytest.raises(TypeError, match=f"^guard\\(\\) takes a function, not {type(what).__name__}$"):
        otel_breaker.guard()(what)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OTEL_BREAKER_COOLDOWN", "-1", "OTEL_BREAKER_COOLDOWN: "),
        ("OTEL_BREAKER_COOLDOWNS", "30", "OTEL_BREAKER_COOLDOWNS: "),
        ("OTEL_BREAKER_MODE", "strict", "OTEL_BREAKER_MODE: "),
        ("OTEL_BREAKER_CONFIG", "/nowhere/otel-breaker.yaml", "OTEL_BREAKER_CONFIG: "),
    ],
)
def test_bad_settings_are_one_error_line_and_the_tools_run_on_unguarded(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from otel_breaker import settings

    monkeypatch.setenv(variable, value)
    settings.forget()
    try:
        error = Fault()

        @otel_breaker.guard
        def tool() -> None:
            raise error

        for _ in range(10):
            with pytest.raises(Fault) as caught:
                tool()
            assert caught.value is error
        assert Circuit("c").call(int, "7") == 7
        told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(told) == 1
        assert told[0].startswith(f"otel_breaker stays off: {message}")
        assert "\n" not in told[0]
    finally:
        settings.forget()


def test_names_are_made_safe_to_print() -> None:
    circuit = Circuit("https://user:secret@host.example/path?token=secret\nnext")
    assert "secret" not in circuit.name
    assert circuit.name.isprintable()
    assert len(Circuit("x" * 1000).name) == 128
    assert Circuit("").name == "unknown"
    fail(circuit)


# --- what is not a function -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["validate", "classify", "fallback"])
def test_a_callback_that_cannot_be_called_is_refused_where_it_is_written(option: str) -> None:
    with pytest.raises(TypeError, match=f"^{option} must be a function, not dict$"):
        otel_breaker.guard(**{option: {"type": "object"}})


def test_a_listener_that_cannot_be_called_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"^a listener must be a function, not str$"):
        otel_breaker.add_listener("print")  # type: ignore[arg-type]
