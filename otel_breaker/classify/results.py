"""Results of tool bodies -> Outcome: many tools return their errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_breaker.outcomes import FAILURE, IGNORED, Outcome

from ._safe import say
from .codes import DENIALS, normalised

_TOOL_ERROR: Final = Outcome(FAILURE, "tool_error")


def result_outcome(result: Any) -> Outcome | None:
    """What the value returned by a tool says; ``None``: nothing, so the call is a success. For tool layers only.

    A mapping with a non-empty ``error`` is a failure, ``tool_error``, unless it carries a denial (``approval_denied``,
    ``permission_denied``, ``approval_error``, ``policy_denied``, ``guardrail_denied``) as a true key, as the value of
    ``error``, or as ``code``, there or within ``error``: then it is neutral. Never raises.
    """
    if not isinstance(result, Mapping):
        return None
    try:
        error = result.get("error")
        if not _says_something(error):
            return None
        return IGNORED if _denied(result, error) else _TOOL_ERROR
    except Exception:  # a mapping with ideas of its own; its result is handed on untouched
        say("result", "a tool result of type %s cannot be read", type(result).__name__)
        return None


def _says_something(error: Any) -> bool:
    try:
        return bool(error)
    except Exception:  # an array has no truth value, and is not empty for that
        return True


def _denied(result: Mapping[Any, Any], error: Any) -> bool:
    said = [error]
    for part in (result, error):
        if isinstance(part, Mapping):
            said.append(part.get("code"))
            said += [key for key, value in part.items() if _says_something(value)]
    return any(isinstance(word, str) and len(word) <= 64 and normalised(word) in DENIALS for word in said)
