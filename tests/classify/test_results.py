from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from otel_breaker.classify import result_outcome
from otel_breaker.outcomes import IGNORED, Outcome

TOOL_ERROR = Outcome("failure", "tool_error")
DENIALS = ["approval_denied", "permission_denied", "approval_error", "policy_denied", "guardrail_denied"]


@pytest.mark.parametrize(
    "result",
    [
        None,
        "",
        "error",
        "Error: 503",
        0,
        [],
        [{"error": "x"}],
        {},
        {"ok": 1},
        {"errors": "x"},
        {"Error": "x"},
        object(),
    ],
)
def test_other_results_say_nothing(result: Any) -> None:
    assert result_outcome(result) is None


@pytest.mark.parametrize("error", [None, "", 0, False, {}, [], ()])
def test_an_empty_error_says_nothing(error: Any) -> None:
    assert result_outcome({"error": error, "data": 1}) is None


class Untrue:
    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


@pytest.mark.parametrize(
    "error", ["boom", True, 1, ["x"], {"message": "boom"}, {"code": 7}, Untrue(), "no permission_denied, only words"]
)
def test_a_non_empty_error_is_a_tool_error(error: Any) -> None:
    assert result_outcome({"error": error}) == TOOL_ERROR
    assert result_outcome(MappingProxyType({"error": error})) == TOOL_ERROR


@pytest.mark.parametrize("denial", DENIALS)
def test_a_denial_is_neutral_as_key_value_or_code(denial: str) -> None:
    assert result_outcome({"error": "no", denial: True}) is IGNORED
    assert result_outcome({"error": "no", denial: "by policy 7"}) is IGNORED
    assert result_outcome({"error": denial}) is IGNORED
    assert result_outcome({"error": denial.upper()}) is IGNORED
    assert result_outcome({"error": "no", "code": denial}) is IGNORED
    assert result_outcome({"error": {"code": denial, "message": "no"}}) is IGNORED
    assert result_outcome({"error": {denial: True}}) is IGNORED


@pytest.mark.parametrize("denial", DENIALS)
def test_a_denial_that_is_denied_is_none(denial: str) -> None:
    assert result_outcome({"error": "boom", denial: False}) == TOOL_ERROR
    assert result_outcome({"error": "boom", denial: None}) == TOOL_ERROR
    assert result_outcome({denial: True}) is None


class Hostile(dict[str, Any]):
    def get(self, key: str, default: Any = None) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize("result", [Hostile(error="x"), {"error": "x", 7: 1, None: 2}, {"error": "x", "code": [1]}])
def test_no_result_is_weird_enough_to_raise(result: Any) -> None:
    assert result_outcome(result) in (None, TOOL_ERROR)
