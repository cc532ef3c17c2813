"""The names of the Python API are a contract."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import typing
from typing import Any

import pytest

import otel_breaker
from otel_breaker import _decorator
from otel_breaker._byhand import Permit
from otel_breaker._registry import Registry

NAMES = {
    "BreakerError", "Circuit", "CircuitOpenError", "CredentialPausedError", "Policy", "ProbeInFlightError",
    "SettingsError", "Snapshot", "Transition", "__version__", "add_listener", "credential", "flush", "guard",
    "instrument", "registry", "tool_status", "tool_status_block", "uninstrument",
}  # fmt: skip


def parameters(function: Any) -> dict[str, Any]:
    """Name and default of each parameter."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
    }


REQUIRED = inspect.Parameter.empty


def test_the_names_at_the_top() -> None:
    assert set(otel_breaker.__all__) == NAMES
    assert set(dir(otel_breaker)) == NAMES
    for name in NAMES:
        assert getattr(otel_breaker, name) is getattr(otel_breaker, name)
    with pytest.raises(AttributeError, match=r"^module 'otel_breaker' has no attribute 'Guard'$"):
        otel_breaker.Guard  # noqa: B018


def test_every_name_says_what_it_is() -> None:
    for name in NAMES - {"__version__"}:
        assert getattr(otel_breaker, name).__doc__, name
    assert otel_breaker.__version__.count(".") >= 2


def test_importing_loads_no_third_party_module_and_no_part_of_the_package() -> None:
    told = subprocess.run(
        [sys.executable, "-S", "-c", "import sys; sys.path[:0] = ['.']; import otel_breaker; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert {name for name in told if name.startswith("otel_breaker")} == {"otel_breaker", "otel_breaker._version"}
    third = {name.partition(".")[0] for name in told} - set(sys.stdlib_module_names) - {"otel_breaker", "__main__"}
    assert third == set()


def test_guard() -> None:
    _, called = typing.get_overloads(otel_breaker.guard)
    options = {
        "tool": None, "dependency": None, "credential": None, "policy": None, "on_open": None, "alternatives": (),
        "fallback": None, "validate": None, "classify": None, "clock": None,
    }  # fmt: skip
    assert parameters(called) == options
    assert options == _decorator._DEFAULTS
    assert all(
        parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in inspect.signature(called).parameters.values()
    )


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("__init__", {"name": REQUIRED, "policy": None, "clock": None, "credential": None}),
        ("call", {"function": REQUIRED, "args": REQUIRED, "kwargs": REQUIRED}),
        ("acall", {"function": REQUIRED, "args": REQUIRED, "kwargs": REQUIRED}),
        ("acquire", {}),
        ("snapshot", {}),
        ("force_open", {"reason": REQUIRED, "seconds": None}),
        ("disable", {}),
        ("resume", {}),
        ("reset", {}),
        ("__enter__", {}),
        ("__aenter__", {}),
    ],
)
def test_circuit(method: str, expected: dict[str, Any]) -> None:
    assert parameters(getattr(otel_breaker.Circuit, method)) == expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("success", {}),
        ("failure", {"reason": "unclassified", "retry_after": None}),
        ("neutral", {}),
        ("throttled", {"retry_after": None}),
        ("unauthorized", {}),
    ],
)
def test_permit(method: str, expected: dict[str, Any]) -> None:
    assert parameters(getattr(Permit, method)) == expected


def test_acall_and_async_with_are_asynchronous() -> None:
    circuit = otel_breaker.Circuit
    assert inspect.iscoroutinefunction(circuit.acall)
    assert inspect.iscoroutinefunction(circuit.__aenter__)
    assert inspect.iscoroutinefunction(circuit.__aexit__)


def test_snapshot_fields() -> None:
    fields = list(otel_breaker.Snapshot.__dataclass_fields__)
    assert fields[:8] == [
        "name", "state", "failures", "cooldown", "retry_after", "cooldowns_elapsed", "awaiting_probe", "reason",
    ]  # fmt: skip
    assert otel_breaker.Snapshot.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_transition_fields() -> None:
    assert list(otel_breaker.Transition.__dataclass_fields__) == [
        "name", "previous_state", "state", "reason", "failures", "cooldown", "at",
    ]  # fmt: skip


def test_registry(breaker_registry: Registry) -> None:
    assert parameters(otel_breaker.registry) == {}
    assert otel_breaker.registry() is breaker_registry
    for method, expected in (("get", {"name": REQUIRED}), ("snapshot", {}), ("reset", {}), ("clear", {})):
        assert parameters(getattr(Registry, method)) == expected
    circuit = otel_breaker.Circuit("c")
    assert list(breaker_registry) == [circuit]
    assert [type(shot) for shot in breaker_registry.snapshot()] == [otel_breaker.Snapshot]


def test_the_rest() -> None:
    assert list(parameters(otel_breaker.instrument)) == ["settings"]
    assert parameters(otel_breaker.uninstrument) == {}
    assert list(parameters(otel_breaker.add_listener)) == ["listener"]
    assert parameters(otel_breaker.tool_status) == {}
    assert parameters(otel_breaker.tool_status_block) == {}
    assert list(parameters(otel_breaker.credential)) == ["account"]
    assert all(default is not REQUIRED for default in parameters(otel_breaker.flush).values())


def test_errors() -> None:
    bases = {
        "SettingsError": "BreakerError",
        "CircuitOpenError": "BreakerError",
        "ProbeInFlightError": "CircuitOpenError",
        "CredentialPausedError": "CircuitOpenError",
        "BreakerError": "Exception",
    }
    for name, base in bases.items():
        assert getattr(otel_breaker, name).__base__.__name__ == base


def test_a_policy_and_a_class_name_wherever_a_policy_is_taken(breaker_registry: Registry, configure: Any) -> None:
    configure(classes={"vendor": {"failure_threshold": 7}})
    for name, threshold in (("fast_api", 3), ("slow_tool", 2), ("code_executor", 2), ("default", 5), ("vendor", 7)):
        assert otel_breaker.Circuit("c", name).policy.failure_threshold == threshold

        @otel_breaker.guard(tool=name, policy=name)
        def tool() -> None: ...

        made = breaker_registry.get(name)
        assert made is not None
        assert made.policy.failure_threshold == threshold
    assert otel_breaker.Policy.named("fast_api").failure_threshold == 3


def test_the_eight_lines_of_a_user(breaker_registry: Registry) -> None:
    @otel_breaker.guard(dependency="api.stripe.com", alternatives=["issue_refund_manually"])
    def refund_charge(charge: str) -> dict[str, Any]:
        raise ConnectionError

    for _ in range(5):
        with pytest.raises(ConnectionError):
            refund_charge("ch_1")
    assert refund_charge("ch_1") == {
        "status": "circuit_open",
        "tool": "refund_charge",
        "reason": "api.stripe.com unreachable (5 consecutive failures, last: connection error)",
        "retry_after_ms": 30000,
        "alternatives": ["issue_refund_manually"],
    }


def test_flush_says_nothing_and_never_raises(breaker_registry: Registry) -> None:
    otel_breaker.flush()


def test_by_hand_in_every_form(breaker_registry: Registry) -> None:
    circuit = otel_breaker.Circuit("c", policy=otel_breaker.Policy(failure_threshold=2), credential="acct-1")

    async def main() -> None:
        async def body(number: int) -> int:
            return number

        assert await circuit.acall(body, 3) == 3
        async with circuit:
            pass

    assert circuit.call(int, "7") == 7
    with circuit:
        pass
    asyncio.run(main())
    circuit.acquire().success()
    assert circuit.stats.success == 5
