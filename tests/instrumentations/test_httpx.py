"""What httpx and httpx2 have beyond requests: auth flows, transports, mounts, unix sockets, decoders."""

from __future__ import annotations

import asyncio
import copy
import gc
import importlib
import inspect
import pickle
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_breaker import settings
from otel_breaker.errors import CircuitOpenError
from otel_breaker.instrumentations import _patch
from tests.support.counts import admitted, names, outcomes, reasons
from tests.support.faults import Script
from tests.support.mcp_process import wait_until
from tests.support.unawaited import none_dropped


@pytest.fixture(params=["httpx", "httpx2"])
def lib(request: pytest.FixtureRequest) -> Any:
    """Each of the two packages."""
    return importlib.import_module(request.param)


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """Runs coroutines."""
    with asyncio.Runner() as runner:
        yield runner


def test_a_transports_exception_reaches_the_caller_as_it_is(patched: Any, lib: Any) -> None:
    error = lib.ReadTimeout("mine")

    def handler(request: Any) -> Any:
        raise error

    with lib.Client(transport=lib.MockTransport(handler)) as client, pytest.raises(lib.ReadTimeout) as caught:
        client.get("http://backend/")
    assert caught.value is error
    assert error.__cause__ is None
    assert reasons(patched) == {"read_timeout": 1}


def test_mounts_and_shared_transports_are_guarded_once_B51(patched: Any, lib: Any) -> None:
    calls: list[str] = []

    def handler(request: Any) -> Any:
        calls.append(str(request.url))
        return lib.Response(503)

    transport = lib.MockTransport(handler)
    mounted = lib.Client(mounts={"https://api.test": transport})
    shared = [lib.Client(transport=transport) for _ in range(2)]
    for client in (mounted, *shared, mounted, mounted):
        client.get("https://api.test/x")
    assert admitted(patched) == 5
    for client in (mounted, *shared):
        with pytest.raises(CircuitOpenError):
            client.get("https://api.test/x")
        client.close()
    assert len(calls) == 5
    assert names(patched) == ["api.test"]


def test_mounts_of_an_async_client_are_guarded_once_B51(patched: Any, lib: Any, loop: asyncio.Runner) -> None:
    calls: list[str] = []

    def handler(request: Any) -> Any:
        calls.append(str(request.url))
        return lib.Response(503)

    async def main() -> None:
        async with lib.AsyncClient(mounts={"https://api.test": lib.MockTransport(handler)}) as client:
            for _ in range(5):
                await client.get("https://api.test/x")
            with pytest.raises(CircuitOpenError):
                await client.get("https://api.test/x")

    loop.run(main())
    assert len(calls) == 5
    assert admitted(patched) == 5
    assert names(patched) == ["api.test"]


@pytest.mark.parametrize(("seconds", "counted"), [(4.999, {"cancelled": 2}), (5, {"failure": 2})])
def test_a_harness_that_cancels_a_hanging_call_B02(
    patched: Any, manual_clock: Any, lib: Any, srv: Script, loop: asyncio.Runner, seconds: float, counted: Any
) -> None:
    settings.use(settings.load(failure_threshold=2))
    srv.reply(fault="read_timeout", times=2)

    async def main() -> None:
        async with lib.AsyncClient(timeout=None) as client:
            for number in (1, 2):
                task = asyncio.create_task(client.get(srv.url()))
                while srv.hits < number:
                    await asyncio.sleep(0)
                manual_clock.advance(seconds)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert task.cancelled()

    loop.run(main())
    assert outcomes(patched) == counted
    shot = patched.get(srv.host).snapshot()
    assert (shot.state, shot.failures) == (("open", 2) if seconds == 5 else ("closed", 0))


def test_an_enforced_deadline_ends_a_hanging_call_B02(
    patched: Any, lib: Any, srv: Script, loop: asyncio.Runner
) -> None:
    settings.use(settings.load(failure_threshold=2, call_deadline=0.05, enforce_deadline=True))
    srv.reply(fault="read_timeout", times=2)

    async def main() -> None:
        async with lib.AsyncClient(timeout=None) as client:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await client.get(srv.url())
            with pytest.raises(CircuitOpenError):
                await client.get(srv.url())

    loop.run(main())
    assert srv.hits == 2
    assert reasons(patched) == {"deadline_exceeded": 2}


@pytest.mark.parametrize("how", ["get", "stream"])
def test_100_refusals_leave_nothing_behind_B33(patched: Any, lib: Any, srv: Script, how: str) -> None:
    async def ask(client: Any) -> None:
        if how == "get":
            await client.get(srv.url())
            return
        async with client.stream("GET", srv.url()):
            raise AssertionError("refused, it must not be entered")

    async def refused(client: Any) -> None:
        with pytest.raises(CircuitOpenError) as caught:
            await ask(client)
        assert isinstance(caught.value, lib.HTTPError)

    async def run() -> None:
        async with lib.AsyncClient(trust_env=False) as client:
            srv.reply(503, times=5)
            for _ in range(5):
                await client.get(srv.url())
            for _ in range(100):
                await refused(client)
            await asyncio.gather(*(refused(client) for _ in range(100)))
            gc.collect()
            assert len(srv.open) == 1  # the one that the five shared
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with none_dropped():
        asyncio.run(run())
        gc.collect()
    assert (srv.hits, srv.connections["http"]) == (5, 1)
    wait_until(lambda: not srv.open, "the end of the connection")


def test_a_pool_timeout_is_neutral_B121(patched: Any, lib: Any, srv: Script) -> None:
    limits = lib.Limits(max_connections=1)
    timeout = lib.Timeout(5, pool=0.05)
    with lib.Client(limits=limits, timeout=timeout) as client, client.stream("GET", srv.url()):
        with pytest.raises(lib.PoolTimeout):
            client.get(srv.url())
        assert outcomes(patched) == {"neutral": 1}


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://host/x", "http://"])
def test_what_is_no_url_of_http_fails_as_it_always_did(patched: Any, lib: Any, url: str) -> None:
    with pytest.raises((lib.UnsupportedProtocol, lib.LocalProtocolError)) as caught:
        lib.get(url)
    assert not isinstance(caught.value, CircuitOpenError)
    assert not outcomes(patched).get("failure")


def test_a_closed_client_is_nobodys_failure(patched: Any, lib: Any, srv: Script) -> None:
    client = lib.Client()
    client.close()
    with pytest.raises(RuntimeError):
        client.get(srv.url())
    assert outcomes(patched) == {"neutral": 1}


def test_a_unix_socket_is_the_dependency(patched: Any, lib: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with Script(unix=path) as server, lib.Client(transport=lib.HTTPTransport(uds=path)) as client:
        assert client.get("http://docker/x").json() == {"ok": True}
        assert server.hits == 1
    assert names(patched) == [f"unix:{path}"]


# --- auth flows -------------------------------------------------------------------------------------------------------


def refreshing(lib: Any) -> Any:
    """An auth flow that fetches a new token when the old one is refused."""

    class Refresh(lib.Auth):  # type: ignore[misc]
        def auth_flow(self, request: Any) -> Any:
            request.headers["Authorization"] = "Bearer old"
            response = yield request
            if response.status_code == 401:
                request.headers["Authorization"] = "Bearer new"
                yield request

    return Refresh()


def test_a_refreshed_token_is_one_success(patched: Any, lib: Any, srv: Script) -> None:
    srv.reply(401)
    with lib.Client(auth=refreshing(lib)) as client:
        assert client.get(srv.url()).status_code == 200
    assert srv.hits == 2
    assert outcomes(patched) == {"success": 1}
    assert admitted(patched) == 1


def test_a_probe_may_refresh_its_token(patched: Any, manual_clock: Any, lib: Any, srv: Script) -> None:
    settings.use(settings.load(failure_threshold=1))
    srv.reply(503)
    srv.reply(401)
    with lib.Client(auth=refreshing(lib)) as client:
        client.get(srv.url())
        manual_clock.advance(30.1)
        assert client.get(srv.url()).status_code == 200
    assert patched.get(srv.host).snapshot().state == "closed"


def test_a_client_remembers_the_credential_that_its_auth_flow_sent(patched: Any, lib: Any, srv: Script) -> None:
    class Token(lib.Auth):  # type: ignore[misc]
        def auth_flow(self, request: Any) -> Any:
            request.headers["Authorization"] = "Bearer hidden"
            yield request

    with lib.Client(auth=Token()) as client:
        client.get(srv.url())
        srv.reply(401)
        client.get(srv.url())
        with pytest.raises(CircuitOpenError) as caught:
            client.get(srv.url())
        assert caught.value.decision == "credential_paused"
        assert lib.get(srv.url()).status_code == 200  # without that credential
    assert srv.hits == 3


def test_the_credential_of_one_call_is_not_taken_for_anothers(patched: Any, lib: Any, srv: Script) -> None:
    class Token(lib.Auth):  # type: ignore[misc]
        def __init__(self, token: str) -> None:
            self.token = token

        def auth_flow(self, request: Any) -> Any:
            request.headers["Authorization"] = f"Bearer {self.token}"
            yield request

    with lib.Client() as client:
        client.get(srv.url(), auth=Token("a"))
        srv.reply(401)
        client.get(srv.url(), auth=Token("a"))  # revoked
        assert client.get(srv.url(), auth=Token("b")).status_code == 200
        assert client.get(srv.url(), auth=None).status_code == 200
    assert srv.hits == 4


def test_a_redirect_to_a_dead_host_counts_on_the_one_that_was_called(patched: Any, lib: Any, srv: Script) -> None:
    srv.reply(fault="redirect_dead")
    with lib.Client(follow_redirects=True) as client, pytest.raises(lib.ConnectError):
        client.get(srv.url())
    assert names(patched) == [srv.host]
    assert reasons(patched) == {"connection_refused": 1}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_probe_that_failed_is_not_followed_by_another_hop(
    patched: Any, manual_clock: Any, lib: Any, srv: Script, loop: asyncio.Runner, is_async: bool
) -> None:
    class Stubborn(lib.Auth):  # type: ignore[misc]
        def auth_flow(self, request: Any) -> Any:
            for _ in range(4):
                response = yield request
                if response.status_code < 500:
                    return

    async def asynchronously(**options: Any) -> None:
        async with lib.AsyncClient() as client:
            await client.get(srv.url(), **options)

    def get(**options: Any) -> None:
        if is_async:
            loop.run(asynchronously(**options))
            return
        with lib.Client() as client:
            client.get(srv.url(), **options)

    settings.use(settings.load(failure_threshold=1))
    srv.reply(503, times=None)
    get()
    manual_clock.advance(30.1)
    with pytest.raises(CircuitOpenError) as caught:
        get(auth=Stubborn())
    assert isinstance(caught.value, lib.HTTPError)
    assert srv.hits == 2
    assert reasons(patched) == {"server_error": 2}


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_settles_at_its_end(patched: Any, lib: Any, srv: Script) -> None:
    srv.reply(chunks=[b"a", b"b"], pause=0.05)
    with lib.Client() as client, client.stream("GET", srv.url()) as response:
        assert isinstance(response.stream, lib.SyncByteStream)
        pieces = response.iter_raw()
        assert next(pieces) == b"a"
        assert outcomes(patched) == {}
        assert list(pieces) == [b"b"]
        assert outcomes(patched) == {"success": 1}
    assert response.elapsed.total_seconds() > 0


def test_a_stream_that_is_left_early_is_neutral(patched: Any, lib: Any, srv: Script) -> None:
    srv.reply(body=b"x" * 200_000, times=None)
    with lib.Client() as client:
        with client.stream("GET", srv.url()) as response:
            next(response.iter_raw(10))
        assert outcomes(patched) == {"neutral": 1}
        with client.stream("GET", srv.url()):
            pass
    assert outcomes(patched) == {"neutral": 2}


@pytest.mark.parametrize("reply", [(204, {}), (304, {}), (200, {"Content-Length": "0"})])
def test_a_stream_without_a_body_is_a_success_at_once(
    patched: Any, lib: Any, srv: Script, reply: tuple[int, dict[str, str]]
) -> None:
    status, headers = reply
    srv.reply(status, headers=headers)
    with lib.Client() as client, client.stream("GET", srv.url()):
        assert outcomes(patched) == {"success": 1}


def test_a_stream_that_nobody_reads_is_neutral(patched: Any, lib: Any, srv: Script) -> None:
    srv.reply(body=b"x" * 200_000)
    with lib.Client() as client:
        response = client.send(client.build_request("GET", srv.url()), stream=True)
        assert outcomes(patched) == {}
        del response
        gc.collect()
        assert outcomes(patched) == {"neutral": 1}


def test_an_async_stream_that_is_cancelled_says_nothing(
    patched: Any, lib: Any, srv: Script, loop: asyncio.Runner
) -> None:
    srv.reply(chunks=[b"a"], fault="stall")

    async def read() -> None:
        async with lib.AsyncClient() as client, client.stream("GET", srv.url()) as response:
            async for _ in response.aiter_raw():
                asyncio.current_task().cancel()  # type: ignore[union-attr]

    with pytest.raises(asyncio.CancelledError):
        loop.run(read())
    assert outcomes(patched) == {"cancelled": 1}


def test_an_enforced_deadline_ends_the_wait_for_a_piece(
    patched: Any, lib: Any, srv: Script, loop: asyncio.Runner
) -> None:
    settings.use(settings.load(call_deadline=0.2, enforce_deadline=True))
    srv.reply(chunks=[b"a"], fault="stall")

    async def read() -> None:
        async with lib.AsyncClient(timeout=None) as client, client.stream("GET", srv.url()) as response:
            async for _ in response.aiter_raw():
                pass

    with pytest.raises(TimeoutError):
        loop.run(read())
    assert reasons(patched) == {"deadline_exceeded": 1}


@pytest.mark.parametrize("whole", [True, False])
def test_compressed_streams(patched: Any, lib: Any, srv: Script, loop: asyncio.Runner, whole: bool) -> None:
    packer = zlib.compressobj(wbits=31)
    body = packer.compress(b"x" * 1000) + packer.flush()
    srv.reply(body=body if whole else b"\x1f\x8b" + b"no gzip at all", headers={"Content-Encoding": "gzip"}, times=None)
    decoded = []

    async def read() -> None:
        async with lib.AsyncClient() as client, client.stream("GET", srv.url()) as response:
            decoded.append(b"".join([piece async for piece in response.aiter_bytes()]))

    def both() -> None:
        with lib.Client() as client, client.stream("GET", srv.url()) as response:
            decoded.append(b"".join(response.iter_bytes()))

    if whole:
        both()
        loop.run(read())
        assert decoded == [b"x" * 1000] * 2
        assert outcomes(patched) == {"success": 2}
        return
    with pytest.raises(lib.DecodingError):
        both()
    with pytest.raises(lib.DecodingError):
        loop.run(read())
    assert reasons(patched) == {"malformed_output": 2}


def test_a_compressed_stream_that_is_read_raw(patched: Any, lib: Any, srv: Script) -> None:
    srv.reply(body=b"no gzip at all", headers={"Content-Encoding": "gzip"})
    with lib.Client() as client, client.stream("GET", srv.url()) as response:
        assert b"".join(response.iter_raw()) == b"no gzip at all"
    assert outcomes(patched) == {"success": 1}


def test_a_streaming_probe_that_delivers_for_a_whole_lease_has_succeeded(
    patched: Any, manual_clock: Any, lib: Any, srv: Script
) -> None:
    settings.use(settings.load(failure_threshold=1, call_deadline=10))
    srv.reply(503)
    srv.reply(chunks=[b"x"] * 8, fault="reset")
    with lib.Client(timeout=5) as client:
        client.get(srv.url())
        manual_clock.advance(30.1)
        with client.stream("GET", srv.url()) as response:
            pieces = response.iter_raw(1)
            for _ in range(8):
                next(pieces)
                manual_clock.advance(4)
            assert patched.get(srv.host).snapshot().state == "closed"
            with pytest.raises(lib.ReadError):
                next(pieces)
    assert patched.get(srv.host).snapshot().state == "open"


# --- it looks the same ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", ["Client", "AsyncClient"])
def test_send_looks_like_the_plain_one_B56(patched: Any, lib: Any, owner: str) -> None:
    def looks() -> list[Any]:
        method = getattr(lib, owner).send
        return [
            inspect.signature(method),
            inspect.iscoroutinefunction(method),
            inspect.isgeneratorfunction(method),
            inspect.isfunction(method),
            isinstance(method, types.FunctionType),
            method.__module__,
            method.__qualname__,
            method.__doc__,
        ]

    after = looks()
    _patch.remove()
    assert looks() == after
    assert after[1] == (owner == "AsyncClient")


def test_methods_copy_and_pickle_B54(patched: Any, lib: Any) -> None:
    assert pickle.loads(pickle.dumps(lib.Client.send)).__qualname__ == "Client.send"
    assert copy.deepcopy(lib.Client.send).__qualname__ == "Client.send"


def test_a_version_without_the_private_hop_is_guarded_all_the_same(
    patched: Any, lib: Any, srv: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    _patch.remove()
    hop = lib.Client._send_single_request
    monkeypatch.delattr(lib.Client, "_send_single_request")
    _patch.enable()
    missing = {row.library: row.missing for row in _patch.report()}
    assert "Client._send_single_request" in missing[lib.__name__]
    monkeypatch.setattr(lib.Client, "_send_single_request", hop, raising=False)
    lib.get(srv.url())
    assert outcomes(patched) == {"success": 1}
