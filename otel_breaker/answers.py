"""What the model sees when a call is refused: one small structured answer in our own words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydantic import BaseModel

STATUSES: Final = ("circuit_open", "probe_in_flight", "credential_paused")

SLOW_RATE: Final = "slow_rate"

_PHRASES: Final = {
    "connection_refused": ("unreachable", "connection refused"),
    "connection_reset": ("unreachable", "connection reset"),
    "connection_error": ("unreachable", "connection error"),
    "dns_error": ("unreachable", "name not resolved"),
    "tls_error": ("unreachable", "TLS error"),
    "connect_timeout": ("unreachable", "connect timeout"),
    "read_timeout": ("unreachable", "timeout"),
    "timeout": ("unreachable", "timeout"),
    "deadline_exceeded": ("unreachable", "deadline exceeded"),
    "probe_lapsed": ("unreachable", "probe without an answer"),
    "server_error": ("failing", "server error"),
    "overloaded": ("overloaded", "overloaded"),
    "malformed_output": ("answering with unusable output", "malformed output"),
    "truncated_output": ("answering with unusable output", "truncated output"),
    "rejected_output": ("answering with unusable output", "rejected output"),
    "throttled": ("limiting our rate", "rate limit"),
    "quota_exhausted": ("out of quota for us", "quota exhausted"),
    "tool_error": ("failing", "tool error"),
    "unclassified": ("rejecting calls", "unexplained error"),
    SLOW_RATE: ("too slow", "slow calls"),
}
"""Reason code -> (what the dependency is, what happened last). One wording a reason."""

_TIMED: Final = frozenset({"connect_timeout", "read_timeout", "timeout", "deadline_exceeded"})


def reason_text(
    name: str,
    decision: str,
    reason: str | None = None,
    failures: int = 0,
    last_took: float | None = None,
    in_a_row: bool = True,
) -> str:
    """One sentence on why calls are refused.

    Args:
        name: how to call the dependency; ours or the operator's ``display_name``, never vendor text.
        decision: the refusal's decision.
        reason: code of the last failure.
        failures: charged failures.
        last_took: seconds that the last failure took; named for timeouts only.
        in_a_row: they came one after another; not so where a share of calls opens the circuit.
    """
    if decision == "forced_open":
        return f"{name} switched off by an operator"
    if decision == "credential_paused":
        return f"{name} no longer accepts this credential (401 after it had worked)"
    state, last = _PHRASES.get(reason or "", ("failing", "failure"))
    if reason in _TIMED and last_took is not None and last_took >= 1:
        last += f" after {last_took:.0f} s"
    count = "1 failure" if failures == 1 else f"{failures} {'consecutive ' if in_a_row else ''}failures"
    text = f"{name} {state} ({count}, last: {last})" if failures else f"{name} {state} (last: {last})"
    if reason == SLOW_RATE:
        text = f"{name} {state} ({failures} {last})"
    return f"{text}; one call is testing it now" if decision == "probe_in_flight" else text


def milliseconds(retry_after: float) -> int:
    """Whole seconds rounded up, in milliseconds; never 0 while refusing."""
    return max(1, math.ceil(retry_after - 1e-6)) * 1000


def answer(status: str, tool: str, reason: str, retry_after: float, alternatives: tuple[str, ...]) -> dict[str, Any]:
    """The answer as a plain dict; always these five fields."""
    return {
        "status": status,
        "tool": tool,
        "reason": reason,
        "retry_after_ms": milliseconds(retry_after),
        "alternatives": list(alternatives),
    }


def schema() -> type[BaseModel]:
    """The pydantic model of an answer, for frameworks that want a schema. Loads pydantic."""
    from typing import Literal

    from pydantic import BaseModel, ConfigDict, Field

    class Answer(BaseModel):
        """Why a call was refused, and when to try again."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        status: Literal["circuit_open", "probe_in_flight", "credential_paused"]
        tool: str
        reason: str
        retry_after_ms: int = Field(ge=1000, multiple_of=1000)
        alternatives: list[str]

    return Answer
