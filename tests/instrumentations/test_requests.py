"""What only requests has: adapter retries, prepared requests, sub-classes, raw bodies."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import requests
import urllib3
from requests.adapters import BaseAdapter, HTTPAdapter

from otel_breaker import settings
from otel_breaker.errors import CircuitOpenError, ProbeInFlightError
from otel_breaker.instrumentations import _patch
from tests.support.clients import is_a
from tests.support.counts import admitted, outcomes, reasons
from tests.support.faults import Script


@contextmanager
def retrying(total: int, *, retry: type[urllib3.Retry] = urllib3.Retry, **options: Any) -> Iterator[requests.Session]:
    """A session whose adapter retries 503."""
    with requests.Session() as session:
        session.trust_env = False
        policy = retry(total=total, status_forcelist=[503], **options)
        session.mount("http://", HTTPAdapter(max_retries=policy))
        yield session


# --- retries ----------------------------------------------------------------------------------------------------------


def test_an_exhausted_retry_budget_counts_once_B23_B58(patched: Any, srv: Script) -> None:
    srv.reply(503, times=None)
    with retrying(2) as session:
        for _ in range(4):
            with pytest.raises(requests.exceptions.RetryError):
                session.get(srv.url())
    assert srv.hits == 12
    assert outcomes(patched) == {"failure": 4}
    assert reasons(patched) == {"server_error": 4}
    assert patched.get(srv.host).snapshot().failures == 4


def test_a_retry_that_succeeds_is_a_success(patched: Any, srv: Script) -> None:
    srv.reply(503, times=2)
    with retrying(2) as session:
        assert session.get(srv.url()).status_code == 200
    assert srv.hits == 3
    assert outcomes(patched) == {"success": 1}


def test_a_running_retry_loop_stops_once_it_is_open(patched: Any, srv: Script) -> None:
    class Opening(urllib3.Retry):
        """Opens the circuit between two tries, as other calls would."""

        def increment(self, *args: Any, **kwargs: Any) -> Any:
            patched.get(srv.host).force_open("test")
            return super().increment(*args, **kwargs)

        def get_backoff_time(self) -> float:
            raise AssertionError("the wait before a refused try was paid")

    srv.reply(503, times=None)
    with retrying(5, retry=Opening, backoff_factor=10) as session, pytest.raises(CircuitOpenError) as caught:
        session.get(srv.url())
    assert srv.hits == 1
    assert is_a(caught.value, requests.RequestException)
    assert not is_a(caught.value, requests.ConnectionError)
    assert caught.value.decision == "forced_open"


def test_a_probe_is_one_try(patched: Any, manual_clock: Any, srv: Script) -> None:
    settings.use(settings.load(failure_threshold=1))
    srv.reply(503, times=None)
    requests.get(srv.url())
    manual_clock.advance(30.1)
    with retrying(3, backoff_factor=10) as session, pytest.raises(ProbeInFlightError) as caught:
        session.get(srv.url())
    assert isinstance(caught.value, requests.RequestException)
    assert srv.hits == 2
    assert patched.get(srv.host).snapshot().state == "open"
    assert reasons(patched) == {"server_error": 2}


def test_urllib3_alone_is_left_alone(patched: Any, srv: Script) -> None:
    srv.reply(503, times=None)
    with urllib3.PoolManager() as pool:
        for _ in range(7):
            pool.request("GET", srv.url(), retries=False)
    assert srv.hits == 7
    assert list(patched) == []


# --- prepared requests, sub-classes, adapters -------------------------------------------------------------------------


def prepared(session: requests.Session, url: str) -> requests.PreparedRequest:
    return session.prepare_request(requests.Request("GET", url))


def test_a_prepared_request_is_guarded_once_B58(patched: Any, srv: Script) -> None:
    with requests.Session() as session:
        assert session.send(prepared(session, srv.url())).json() == {"ok": True}
        assert outcomes(patched) == {"success": 1}
        srv.reply(503, times=5)
        for _ in range(5):
            session.send(prepared(session, srv.url()))
        with pytest.raises(CircuitOpenError) as caught:
            session.send(prepared(session, srv.url()))
    assert isinstance(caught.value, requests.RequestException)
    assert srv.hits == 6


def test_the_body_of_a_prepared_request_counts(patched: Any, srv: Script) -> None:
    srv.reply(fault="truncated")
    with requests.Session() as session, pytest.raises(requests.exceptions.ChunkedEncodingError):
        session.send(prepared(session, srv.url()))
    assert reasons(patched) == {"truncated_output": 1}


class OwnRequest(requests.Session):
    """Overrides `request`, and calls the original."""

    def request(self, method: str, url: str, **kwargs: Any) -> requests.Response:  # type: ignore[override]
        return super().request(method, url, **kwargs)


class OwnSend(requests.Session):
    """Overrides `send`."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        return super().send(request, **kwargs)


class NoSuper(requests.Session):
    """Overrides `request` and never calls the original."""

    def request(self, method: str, url: str, **kwargs: Any) -> requests.Response:  # type: ignore[override]
        return self.send(self.prepare_request(requests.Request(method, url)))


class OwnAdapter(HTTPAdapter):
    """Overrides `send` of the adapter."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        return super().send(request, *args, **kwargs)


def with_own_adapter() -> requests.Session:
    session = requests.Session()
    session.mount("http://", OwnAdapter())
    return session


@pytest.mark.parametrize("make", [requests.Session, OwnRequest, OwnSend, NoSuper, with_own_adapter])
def test_every_kind_of_session_is_guarded_once_B65(
    patched: Any, srv: Script, make: Callable[[], requests.Session]
) -> None:
    _patch.remove()
    with make() as session:  # made before the patch
        _patch.enable()
        session.get(srv.url())
        assert admitted(patched) == 1
        assert outcomes(patched) == {"success": 1}
        srv.reply(503, times=5)
        for _ in range(5):
            session.get(srv.url())
        with pytest.raises(CircuitOpenError):
            session.get(srv.url())
    assert srv.hits == 6


@contextmanager
def raising(error: Exception) -> Iterator[requests.Session]:
    """A session whose own kind of adapter raises this."""

    class Broken(BaseAdapter):
        def send(self, *args: Any, **kwargs: Any) -> requests.Response:
            raise error

        def close(self) -> None:
            """Nothing to close."""

    with requests.Session() as session:
        session.mount("mock://", Broken())
        yield session


def test_an_adapter_that_is_no_httpadapter_is_guarded(patched: Any) -> None:
    error = requests.ConnectionError("mine")
    with raising(error) as session:
        for _ in range(5):
            with pytest.raises(requests.ConnectionError) as caught:
                session.get("mock://backend/x")
            assert caught.value is error
        with pytest.raises(CircuitOpenError):
            session.get("mock://backend/x")


def test_names_imported_before_the_patch_are_guarded_B46(srv: Script) -> None:
    code = f"""
from requests import get, Session
from httpx import get as hget
from httpx2 import get as h2get
from otel_breaker.instrumentations import _patch
from otel_breaker._registry import registry
_patch.enable()
get({srv.url()!r}); Session().get({srv.url()!r}); hget({srv.url()!r}); h2get({srv.url()!r})
print(sum(stats.success for stats in registry().names()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["4"]


# --- it looks the same ------------------------------------------------------------------------------------------------

WRAPPED = [(requests.Session, "request"), (HTTPAdapter, "send"), (urllib3.Retry, "sleep")]


@pytest.mark.parametrize(("owner", "name"), WRAPPED)
def test_a_wrapped_method_looks_like_the_plain_one_B56(patched: Any, owner: Any, name: str) -> None:
    def looks() -> list[Any]:
        method = getattr(owner, name)
        return [
            inspect.signature(method),
            inspect.iscoroutinefunction(method),
            inspect.isgeneratorfunction(method),
            inspect.isasyncgenfunction(method),
            inspect.isfunction(method),
            callable(method),
            isinstance(method, types.FunctionType),
            method.__module__,
            method.__qualname__,
            method.__name__,
            method.__doc__,
        ]

    after = looks()
    _patch.remove()
    assert looks() == after


def test_sessions_and_methods_copy_and_pickle_B54(patched: Any, srv: Script) -> None:
    with requests.Session() as session:
        for thing in (session, session.get, session.request, requests.Session.request, HTTPAdapter.send):
            pickle.loads(pickle.dumps(thing))
            copy.deepcopy(thing)
            copy.copy(thing)
        again = pickle.loads(pickle.dumps(session.request))
        assert again("GET", srv.url()).json() == {"ok": True}
        copied: Any = copy.deepcopy(session.request)
        assert copied("GET", srv.url()).json() == {"ok": True}
        again.__self__.close()
        copied.__self__.close()
    assert admitted(patched) == 2


def test_remove_restores_the_very_functions(patched: Any) -> None:
    patched_now = [vars(owner)[name] for owner, name in WRAPPED]
    _patch.remove()
    plain = [vars(owner)[name] for owner, name in WRAPPED]
    assert all(type(function) is types.FunctionType for function in plain)
    assert [wrapper.__wrapped__ for wrapper in patched_now] == plain


# --- credentials that only the adapter sees ---------------------------------------------------------------------------


class Token(requests.auth.AuthBase):
    """Adds a token when the request is prepared."""

    def __init__(self, token: str) -> None:
        self.token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self.token}"
        return request


def test_a_session_remembers_the_credential_that_its_auth_sent(patched: Any, srv: Script) -> None:
    with requests.Session() as session:
        session.auth = Token("hidden")
        session.get(srv.url())
        srv.reply(401)
        session.get(srv.url())
        with pytest.raises(CircuitOpenError) as caught:
            session.get(srv.url())
        assert caught.value.decision == "credential_paused"
        assert session.get(srv.url(), auth=Token("another")).status_code == 200
    assert srv.hits == 3


# --- bodies that are read later ---------------------------------------------------------------------------------------

READERS: dict[str, Callable[[requests.Response], Any]] = {
    "content": lambda r: r.content,
    "json": lambda r: r.json(),
    "iter_content": lambda r: b"".join(r.iter_content(3)),
    "iter_content whole": lambda r: b"".join(r.iter_content(None)),
    "iter_lines": lambda r: list(r.iter_lines()),
    "iteration": lambda r: b"".join(r),
    "raw.read": lambda r: r.raw.read(),
    "raw.read pieces": lambda r: b"".join(iter(lambda: r.raw.read(3), b"")),
    "raw.read exact": lambda r: r.raw.read(int(r.headers.get("Content-Length") or 12)),
    "raw.read1": lambda r: b"".join(iter(lambda: r.raw.read1(3), b"")),
    "raw.stream": lambda r: b"".join(r.raw.stream(3)),
    "raw.data": lambda r: r.raw.data,
    "raw iteration": lambda r: b"".join(r.raw),
    "raw.readinto": lambda r: [r.raw.readinto(bytearray(5)) for _ in range(10)],
}


@pytest.mark.parametrize("reader", READERS)
def test_a_body_that_is_read_in_any_way_is_a_success(patched: Any, srv: Script, reader: str) -> None:
    with requests.get(srv.url(), stream=True) as response:
        assert outcomes(patched) == {}
        READERS[reader](response)
        assert outcomes(patched) == {"success": 1}
    assert outcomes(patched) == {"success": 1}


@pytest.mark.parametrize("reader", READERS)
def test_a_body_that_breaks_is_a_failure_for_every_reader(patched: Any, srv: Script, reader: str) -> None:
    srv.reply(fault="rst_after_headers")
    with requests.get(srv.url(), stream=True) as response, pytest.raises(Exception) as caught:  # noqa: PT011
        READERS[reader](response)
    assert not isinstance(caught.value, CircuitOpenError)
    assert reasons(patched) == {"connection_reset": 1}


def test_chunked_bodies_too(patched: Any, srv: Script) -> None:
    srv.reply(chunks=[b"ab", b"cd"], times=None)
    for read in (
        lambda r: list(r.raw.read_chunked()),
        lambda r: list(r.iter_lines()),
        lambda r: r.raw.read(),
        lambda r: list(r.raw.stream()),
    ):
        with requests.get(srv.url(), stream=True) as response:
            read(response)
    assert outcomes(patched) == {"success": 4}


def test_a_body_that_is_closed_early_is_neutral(patched: Any, srv: Script) -> None:
    srv.reply(body=b"x" * 100_000, times=None)
    with requests.get(srv.url(), stream=True) as response:
        next(response.iter_content(10))
    assert outcomes(patched) == {"neutral": 1}
    response = requests.get(srv.url(), stream=True)
    response.close()
    assert outcomes(patched) == {"neutral": 2}


def test_a_body_that_nobody_reads_is_neutral_and_lets_go_at_once(patched: Any, srv: Script) -> None:
    srv.reply(body=b"x" * 100_000)
    gc.disable()
    try:
        response = requests.get(srv.url(), stream=True)
        raw_type = type(response.raw)
        del response
        assert outcomes(patched) == {"neutral": 1}  # by reference counting alone: we add no cycle
    finally:
        gc.enable()
    assert raw_type.__name__ == "HTTPResponse"
    assert issubclass(raw_type, urllib3.HTTPResponse)


def test_the_first_piece_is_not_held_back(patched: Any, srv: Script) -> None:
    srv.reply(chunks=[b"first", b"second"], pause=0.5)
    with requests.get(srv.url(), stream=True) as response:
        assert next(response.iter_content(None)) == b"first"
        assert response.elapsed.total_seconds() < 0.4


def test_a_streaming_probe_that_delivers_for_a_whole_lease_has_succeeded(
    patched: Any, manual_clock: Any, srv: Script
) -> None:
    settings.use(settings.load(failure_threshold=1, call_deadline=10))
    srv.reply(503)
    srv.reply(chunks=[b"x"] * 8, fault="reset")
    requests.get(srv.url())
    manual_clock.advance(30.1)
    states = []
    with requests.get(srv.url(), stream=True, timeout=5) as response:
        pieces = response.iter_content(1)
        for _ in range(8):
            next(pieces)
            manual_clock.advance(4)
            states.append(patched.get(srv.host).snapshot().state)
        with pytest.raises(requests.RequestException):
            next(pieces)
    assert states == ["half_open"] * 3 + ["closed"] * 5
    assert patched.get(srv.host).snapshot().state == "open"  # the later abort is a new charge


def test_a_reply_without_a_body_settles_at_the_headers(patched: Any, srv: Script) -> None:
    srv.reply(204)
    with requests.get(srv.url(), stream=True):
        assert outcomes(patched) == {"success": 1}


def test_a_bad_status_settles_at_the_headers(patched: Any, srv: Script) -> None:
    srv.reply(503)
    with requests.get(srv.url(), stream=True):
        assert reasons(patched) == {"server_error": 1}


# --- odds and ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "http://[::1", 5])
def test_what_is_no_url_fails_as_it_always_did(patched: Any, url: Any) -> None:
    _patch.remove()
    with pytest.raises(Exception) as plain:  # noqa: PT011
        requests.get(url)
    _patch.enable()
    with pytest.raises(type(plain.value)) as ours:
        requests.get(url)
    assert str(ours.value) == str(plain.value)
    assert not outcomes(patched).get("failure")


def test_the_url_may_be_bytes(patched: Any, srv: Script) -> None:
    assert requests.get(srv.url().encode()).json() == {"ok": True}
    assert outcomes(patched) == {"success": 1}


def test_a_refusal_of_another_library_passes_through_unchanged(patched: Any, srv: Script) -> None:
    import httpx

    patched.client("127.0.0.1:1").force_open("test")

    def hook(response: requests.Response, *args: Any, **kwargs: Any) -> None:
        response.close()
        httpx.get("http://127.0.0.1:1/")

    with pytest.raises(httpx.HTTPError) as caught:
        requests.get(srv.url(), hooks={"response": hook})
    assert is_a(caught.value, CircuitOpenError)
    assert not is_a(caught.value, requests.RequestException)


def test_a_pool_of_ones_own_that_is_full_is_neutral_B121(patched: Any) -> None:
    with urllib3.HTTPConnectionPool("backend") as pool:
        error = requests.ConnectionError(urllib3.exceptions.EmptyPoolError(pool, "Pool is full"))

    with raising(error) as session, pytest.raises(requests.ConnectionError) as caught:
        session.get("mock://backend/x")
    assert caught.value is error
    assert outcomes(patched) == {"neutral": 1}
