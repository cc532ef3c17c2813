"""requests: `Session.request` is the call; urllib3's tries below it are its attempts.

The official instrumentor wraps `Session.send`, between the two. A prepared request that is handed to `Session.send`
directly is guarded at `HTTPAdapter.send`, each redirect hop on its own.
"""

from __future__ import annotations

from typing import Any

from otel_breaker import _guard, _log, errors, keys
from otel_breaker._frames import CIRCUIT, PENDING, Site

from . import _http, _urllib3_body

_LIBRARY = "requests"
_URL, _HEADERS, _AUTH, _TIMEOUT = 1, 4, 7, 8  # positions in the signature of Session.request
_wallet = _http.Wallet()


def session_request(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    """``Session.request``."""
    plan = _plan(session, args, kwargs)
    if plan is None:
        return wrapped(*args, **kwargs)
    return _guarded(_CALL, plan, wrapped, args, kwargs)


def adapter_send(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
    """``HTTPAdapter.send``: learns the credential below `Session.request`, guards a direct `Session.send`."""
    plan = _plan_send(adapter, args, kwargs)
    if plan is None:
        return wrapped(*args, **kwargs)
    return _guarded(_SEND, plan, wrapped, args, kwargs)


def urllib3_try(wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
    """``HTTPConnectionPool._make_request``: one try on the wire, watched only below requests."""
    frame = _guard.current_frame(_LIBRARY)
    if frame is None:
        return wrapped(*args, **kwargs)
    return _guard.call(_TRY, frame[CIRCUIT], wrapped, args, kwargs, of=frame)


def urllib3_sleep(wrapped: Any, retry: Any, args: Any, kwargs: Any) -> Any:
    """``Retry.sleep``: a try that will be refused is not worth waiting for."""
    frame = _guard.current_frame(_LIBRARY)
    if frame is not None:
        try:
            _guard.check(frame)
        except errors.CircuitOpenError as refusal:
            raise _http.refit(refusal, _fit_try()) from None
    return wrapped(*args, **kwargs)


def _guarded(site: Site, plan: tuple[Any, str | None, float | None], wrapped: Any, args: Any, kwargs: Any) -> Any:
    circuit, credential, timeout = plan
    try:
        return _guard.call(site, circuit, wrapped, args, kwargs, credential, timeout)
    except errors.CircuitOpenError as refusal:
        if not isinstance(refusal, _fit_try()):
            raise
        raise _http.refit(refusal, _fit()) from None  # a try was refused, in the form that urllib3 lets through


def _plan(session: Any, args: Any, kwargs: Any) -> tuple[Any, str | None, float | None] | None:
    """(circuit, credential, timeout), or ``None`` to stay out of it."""
    try:
        given = _argument(args, kwargs, _URL, "url")
        url = given.decode() if isinstance(given, bytes) else str(given)
        own = _argument(args, kwargs, _HEADERS, "headers")
        dependency = keys.dependency_of_url(url)
        headers = [*_pairs(session.headers), *_pairs(own)] if own else _pairs(session.headers)
        exporter, shown = _http.scan(headers)
        if exporter:
            return None
        circuit = _http.circuit_for(dependency, lambda: _bare(url, dependency))
        if circuit is None or dependency is None:
            return None
        auth = _argument(args, kwargs, _AUTH, "auth")
        credential = None  # that of another call's own auth= must not be taken for this one's
        if shown or auth or session.auth or "@" in url or "?" in url:
            credential = _http.visible(headers, url, auth or session.auth)
        if credential is None and auth is None and _wallet.used:
            credential = _wallet.recall(session.get_adapter(url), dependency)
        return circuit, credential, _seconds(_argument(args, kwargs, _TIMEOUT, "timeout"))
    except Exception as error:
        _log.fault(_LIBRARY, "requests: a call could not be guarded", error)
        return None


def _plan_send(adapter: Any, args: Any, kwargs: Any) -> tuple[Any, str | None, float | None] | None:
    """The same for a prepared request; ``None`` too below a call that is guarded already."""
    try:
        request = args[0] if args else kwargs["request"]
        dependency = keys.dependency_of_url(request.url)
        exporter, shown = _http.scan(_pairs(request.headers))
        credential = None
        if shown or "@" in request.url or "?" in request.url:
            credential = keys.credential_of(request.headers, request.url)
        if dependency is not None and (credential is not None or _wallet.used):
            _wallet.learn(adapter, dependency, credential)
        frame = _guard.current_frame(_LIBRARY)
        if frame is not None:
            if frame[CIRCUIT].key.dependency == dependency:  # a redirect elsewhere is another host's business
                _guard.learn(frame, credential)
            return None
        circuit = None if exporter else _http.circuit_for(dependency, lambda: _bare(request.url, dependency))
        return None if circuit is None else (circuit, credential, _seconds(_argument(args, kwargs, 2, "timeout")))
    except Exception as error:
        _log.fault(_LIBRARY, "requests: a call could not be guarded", error)
        return None


def _argument(args: Any, kwargs: Any, position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _pairs(headers: Any) -> Any:
    """The (name, value) pairs; of requests' own kind of dictionary in the way that costs least."""
    return list(headers.lower_items() if hasattr(headers, "lower_items") else headers.items())


def _bare(url: str, dependency: str | None) -> str:
    """The URL without user-info, query and fragment."""
    scheme, _, rest = url.partition("://")
    path = rest.partition("?")[0].partition("#")[0].partition("/")[2]
    return f"{scheme}://{dependency}/{path}"


def _seconds(timeout: Any) -> float | None:
    """How long one read may take: a number, (connect, read), or urllib3's Timeout."""
    if isinstance(timeout, tuple):
        timeout = timeout[-1]
    timeout = getattr(timeout, "read_timeout", timeout)
    return float(timeout) if isinstance(timeout, (int, float)) else None


def _judge(frame: Any, response: Any) -> Any:
    circuit = frame[CIRCUIT]
    outcome = _http.verdict(frame, response)
    if outcome.kind != "success":
        return outcome
    if not getattr(response, "_content_consumed", True):
        return PENDING if _urllib3_body.watch(response.raw, _http.Body(frame)) else outcome
    whole = response.status_code != 200 or not _http.wants_json(circuit) or _http.is_json(response.content)
    return outcome if whole else _http.MALFORMED


def _judge_try(frame: Any, response: Any) -> Any:
    return _http.answered(frame[CIRCUIT], response.status, response.headers)


def _fit() -> type[BaseException]:
    from requests.exceptions import RequestException

    return RequestException


def _fit_try() -> type[BaseException]:
    # RequestException is an OSError, which urllib3 retries and requests relabels.
    from urllib3.exceptions import HTTPError

    return HTTPError


_CALL = Site(_LIBRARY, fit=_fit, judge=_judge)
_SEND = Site(_LIBRARY, fit=_fit, judge=_judge)
_TRY = Site(_LIBRARY, fit=_fit_try, judge=_judge_try)
