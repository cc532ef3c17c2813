"""HTTP responses -> Outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from otel_breaker.outcomes import ANSWERED, FAILURE, NEUTRAL, OK, SUCCESS, THROTTLED, UNAUTHORIZED, Outcome

from ._headers import pick
from ._safe import say
from .codes import code_outcome
from .retry_after import retry_after

_UNCLASSIFIED: Final = Outcome(FAILURE, "unclassified")
_BY_STATUS: Final[dict[int, Outcome]] = {
    401: Outcome(UNAUTHORIZED),
    408: Outcome(FAILURE, "timeout"),
    429: Outcome(THROTTLED, "throttled"),
    529: Outcome(FAILURE, "overloaded"),
}
_SERVER_ERROR: Final = Outcome(FAILURE, "server_error")


def response_outcome(status: int, headers: Any = None, *, wall: float | None = None, code: Any = None) -> Outcome:
    """What an HTTP response says about the host that gave it.

    ======================  =======================================================
    status                  outcome
    ======================  =======================================================
    below 400               success
    401                     unauthorized
    408                     failure, ``timeout``
    429                     throttled, with the Retry-After if it names a time
    529                     failure, ``overloaded``
    other 5xx               failure, ``server_error``; 503 with the Retry-After
    403 of a rate limit     throttled (nothing remains of it, or a Retry-After)
    any other               neutral, answered
    ======================  =======================================================

    Args:
        status: the HTTP status, as an int.
        headers: the response headers, any mapping or pairs; read only for 403, 429, 503 and throttling codes.
        wall: now in epoch seconds, for Retry-After dates; the system clock if ``None``.
        code: the provider's error code, if known. A code in the table overrides the status, but a neutral one does not
            excuse a status that is worse, and a 4xx is never made a ``server_error``.

    Never raises: what cannot be read is a failure, ``unclassified``, and logged once.
    """
    try:
        if status < 400 and code is None:
            return OK if status >= 100 else _UNCLASSIFIED
        return _judge(int(status), headers, wall, code)
    except Exception:  # whatever was handed in
        say("response", "a response with a status of type %s cannot be read", type(status).__name__)
        return _UNCLASSIFIED


def _judge(status: int, headers: Any, wall: float | None, code: Any) -> Outcome:
    outcome = _of_status(status, headers, wall)
    coded = code_outcome(code)
    if coded is not None and _overrides(coded, outcome, status):
        outcome = coded
    if outcome.kind == THROTTLED or (status == 503 and outcome.kind == FAILURE):
        seconds = retry_after(headers, wall)
        return outcome if seconds is None else replace(outcome, retry_after=seconds)
    return outcome


def _of_status(status: int, headers: Any, wall: float | None) -> Outcome:
    if status < 400:
        return OK
    if status == 403 and headers is not None:
        # GitHub and kin throttle with 403; a plain 403 is a denial
        remaining = pick(headers, ("x-ratelimit-remaining",)).get("x-ratelimit-remaining", "")
        if remaining.strip() == "0" or retry_after(headers, wall) is not None:
            return _BY_STATUS[429]
    return _BY_STATUS.get(status) or (_SERVER_ERROR if 500 <= status <= 599 else ANSWERED)


def _overrides(coded: Outcome, outcome: Outcome, status: int) -> bool:
    if coded.kind == NEUTRAL:
        return outcome.kind in (SUCCESS, NEUTRAL)
    return not (coded.reason == "server_error" and 400 <= status < 500)
