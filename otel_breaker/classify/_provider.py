"""HTTP statuses, headers and provider codes that exceptions carry, wherever their library put them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from otel_breaker.outcomes import ANSWERED, NEUTRAL, Outcome

from ._chain import attribute
from .codes import code_outcome, sqlstate_outcome
from .responses import response_outcome
from .texts import text_outcome

_SPENT_RETRIES: Final = re.compile(r"too many (\d{3}) error responses")


def provider_outcome(exc: BaseException, names: list[str], text: str, wall: float | None) -> Outcome | None:
    """The outcome of the response or code that ``exc`` itself carries; ``None`` when it carries none.

    Args:
        exc: one exception of a chain.
        names: its class names.
        text: its message.
        wall: now in epoch seconds, for Retry-After dates.
    """
    if "grpc.RpcError" in names:
        return _rpc_outcome(exc, wall)
    if "urllib3.ResponseError" in names:  # a retry budget spent on statuses keeps them only as text
        spent = _SPENT_RETRIES.search(text)
        return response_outcome(int(spent[1])) if spent else None
    status, headers = _response(exc)
    known = next((code for code in _codes(exc) if code_outcome(code) is not None), None)
    if status is not None and status >= 300:
        # a redirect that ended in an exception is the caller's to solve, but the host answered
        return ANSWERED if status < 400 and known is None else response_outcome(status, headers, wall=wall, code=known)
    if known is not None:
        coded = response_outcome(200, headers, wall=wall, code=known)
        if coded.kind == NEUTRAL and _is_rpc_number(known):
            return text_outcome(text) or coded  # MCP uses one number for many troubles
        return coded
    return sqlstate_outcome(attribute(exc, "sqlstate") or attribute(exc, "pgcode"))


def _is_rpc_number(code: Any) -> bool:
    return isinstance(code, int) and abs(code) >= 32000


def _rpc_outcome(exc: BaseException, wall: float | None) -> Outcome | None:
    code = _called(exc, "code")
    name = attribute(code, "name")
    if name in ("UNAVAILABLE", "INTERNAL") and (found := text_outcome(_called(exc, "details"))) is not None:
        return found
    if name == "UNAVAILABLE":
        return response_outcome(503, _called(exc, "trailing_metadata"), wall=wall)
    return response_outcome(200, _called(exc, "trailing_metadata"), wall=wall, code=name) if name else None


def _called(exc: BaseException, name: str) -> Any:
    method = attribute(exc, name)
    try:
        return method() if callable(method) else None
    except Exception:  # a method of theirs
        return None


def _response(exc: BaseException) -> tuple[int | None, Any]:
    """The HTTP status that ``exc`` carries and the headers beside it."""
    response = attribute(exc, "response")
    if isinstance(response, dict):  # botocore
        meta = response.get("ResponseMetadata")
        meta = meta if isinstance(meta, dict) else {}
        return _status(meta.get("HTTPStatusCode"), 300), meta.get("HTTPHeaders")
    if response is not None:
        status = _status(attribute(response, "status_code"), 200)
        status = _status(attribute(response, "status"), 200) if status is None else status
        if status is not None:
            return status, attribute(response, "headers")
    for name in ("status_code", "http_status", "status", "code"):
        # below 300 such a number is anything; urllib's redirect loop is a 302 in `code`
        if (status := _status(attribute(exc, name), 300)) is not None:
            return status, attribute(exc, "headers") or attribute(attribute(exc, "meta"), "headers")
    return None, attribute(exc, "headers")


def _status(value: Any, least: int) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= 599:
        return int(value)
    return None


def _codes(exc: BaseException) -> Iterator[Any]:
    """Candidates for a provider's error code, the most specific first."""
    for name in ("code", "type", "status", "status_code"):  # openai, google-genai, redis 8
        if isinstance(value := attribute(exc, name), (str, int)):
            yield value
    yield attribute(attribute(exc, "error"), "code")  # mcp 1.x
    response = attribute(exc, "response")
    for body in (attribute(exc, "body"), attribute(exc, "details"), response, attribute(response, "data")):
        if isinstance(body, dict):
            yield from _codes_of(body)


def _codes_of(body: dict[Any, Any]) -> Iterator[Any]:
    error = body.get("error", body.get("Error"))
    if isinstance(error, dict):
        yield from (error.get(key) for key in ("code", "Code", "type", "status"))
    else:
        yield error  # slack
    yield from (body.get(key) for key in ("code", "type"))
