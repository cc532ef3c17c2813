from __future__ import annotations

import math
from typing import Any

import pytest

from otel_breaker.core.policy import FIELDS, NAMED, Policy

DEFAULTS = {
    "failure_threshold": 5,
    "failure_rate": None,
    "window": 300.0,
    "minimum_calls": 20,
    "slow_call": None,
    "slow_rate": None,
    "cooldown": 30.0,
    "cooldown_steps": (1, 2, 10, 30),
    "cooldown_cap": 900.0,
    "cooldown_jitter": 0.0,
    "success_threshold": 1,
    "probe_by": "call",
    "call_deadline": 30.0,
    "enforce_deadline": False,
    "cancel_counts_after": 5.0,
    "throttle_threshold": 3,
    "retry_after_cap": 3600.0,
    "verdict_ttl": None,
    "unclassified": "failure",
    "on_unauthorized": "pause",
    "pause": 900.0,
}
COUNTS = ["failure_threshold", "minimum_calls", "success_threshold", "throttle_threshold"]
LENGTHS = ["window", "cooldown", "cooldown_cap", "call_deadline", "retry_after_cap", "pause", "verdict_ttl"]
SHARES = ["failure_rate", "slow_rate"]
NOT_NUMBERS = [math.nan, math.inf, -math.inf, "5", True]

BAD: list[tuple[str, Any, str]] = [
    *((name, value, "whole number >= 1") for name in COUNTS for value in (0, -1, 1.5, True, "5", None)),
    *((name, value, "seconds > 0") for name in LENGTHS for value in (0, -1.0, *NOT_NUMBERS)),
    *((name, value, "above 0 and at most 1") for name in SHARES for value in (0, -0.1, 1.01, *NOT_NUMBERS)),
    *(("cooldown_jitter", value, "between 0 and 1") for value in (-0.1, 1.1, None, *NOT_NUMBERS)),
    *(("cancel_counts_after", value, ">= 0") for value in (-0.1, None, *NOT_NUMBERS)),
    *(
        ("cooldown_steps", value, "factors > 0")
        for value in ((), (1, 0), (-1,), (1, math.inf), ("a",), (True,), None, 2)
    ),
    ("probe_by", "nobody", "call, health_check"),
    ("unclassified", "success", "failure, neutral"),
    ("on_unauthorized", "ignore", "pause, alert"),
]
EDGES: list[tuple[str, Any]] = [
    *((name, 1) for name in COUNTS),
    *((name, 0.001) for name in LENGTHS),
    *((name, 0.001) for name in ("failure_rate",)),
    ("failure_rate", 1),
    ("cooldown_jitter", 0),
    ("cooldown_jitter", 1),
    ("cancel_counts_after", 0),
    ("cooldown_steps", (1,)),
    ("probe_by", "health_check"),
    ("unclassified", "neutral"),
    ("on_unauthorized", "alert"),
]


def test_the_defaults() -> None:
    policy = Policy()
    assert {name: getattr(policy, name) for name in FIELDS} == DEFAULTS


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
def test_a_bad_value_is_named_with_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} ") as caught:
        Policy(**{name: value})
    assert allowed in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(("name", "value"), EDGES)
def test_the_edges_are_allowed(name: str, value: Any) -> None:
    assert getattr(Policy(**{name: value}), name) == value


@pytest.mark.parametrize("fields", [{"slow_call": 1.0}, {"slow_rate": 0.5}])
def test_slow_call_and_slow_rate_go_together(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="slow_call and slow_rate go together"):
        Policy(**fields)  # type: ignore[arg-type]
    assert Policy(slow_call=1.0, slow_rate=1.0).windowed


@pytest.mark.parametrize(
    ("name", "failures", "cooldown", "deadline"),
    [
        ("default", 5, 30, 30),
        ("fast_api", 3, 30, 30),
        ("slow_tool", 2, 120, 300),
        ("code_executor", 2, 60, 300),
    ],
)
def test_the_named_classes(name: str, failures: int, cooldown: float, deadline: float) -> None:
    assert Policy.named(name) == Policy(failure_threshold=failures, cooldown=cooldown, call_deadline=deadline)
    assert Policy.named(name, failure_threshold=9).failure_threshold == 9
    assert Policy.named(name, failure_threshold=9).cooldown == cooldown


def test_an_unknown_class_is_named_with_the_known_ones() -> None:
    assert set(NAMED) == {"default", "fast_api", "slow_tool", "code_executor"}
    with pytest.raises(ValueError, match=r"fast_apis.*default, fast_api, slow_tool, code_executor"):
        Policy.named("fast_apis")


def test_a_list_of_steps_becomes_a_value_that_cannot_change() -> None:
    steps = [1, 3]
    policy = Policy(cooldown_steps=steps)  # type: ignore[arg-type]
    steps.append(99)
    assert policy == Policy(cooldown_steps=(1, 3))
    assert hash(policy) == hash(Policy(cooldown_steps=(1, 3)))


@pytest.mark.parametrize(
    ("fields", "cooldown", "ttl"),
    [
        ({}, 30, 1200),
        ({}, 945, 1245),
        ({}, 3600, 3900),
        ({"cooldown_cap": 60}, 30, 360),
        ({"verdict_ttl": 10}, 3600, 10),
    ],
)
def test_the_life_of_an_untested_verdict(fields: dict[str, Any], cooldown: float, ttl: float) -> None:
    assert Policy(**fields).ttl(cooldown) == ttl


@pytest.mark.parametrize(
    ("timeout", "longest", "lease"),
    [(None, 0, 30), (5, 1, 30), (45, 1, 45), (45, 30, 60), (None, 450, 900), (None, 451, 900), (901, 0, 900)],
)
def test_the_lease(timeout: float | None, longest: float, lease: float) -> None:
    assert Policy().lease(timeout, longest) == lease
