"""The HTTP clients of the tests behind one face, so that one test runs on all of them, sync and async.

``CLIENTS["httpx_async_stream"].open(timeout=1)`` is a client that is used as the column of the matrix of that name is:
``caller.get(url)`` asks, raises for a bad status, reads the body and parses it, and says how far it came.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any


def is_a(error: object, kind: Any) -> bool:
    """``isinstance``, for classes that a type checker believes no class can combine."""
    return isinstance(error, kind)


@dataclass
class Result:
    """How far one use of a client came.

    Attributes:
        stage: where it ended: send, status, body, json; ``json`` without an error is the end.
        status: the status code, once known.
        error: what was raised, unchanged.
        data: the parsed body.
        response: the library's response.
    """

    stage: str = "send"
    status: int | None = None
    error: BaseException | None = None
    data: Any = None
    response: Any = None

    @property
    def error_name(self) -> str:
        """``module.Name`` of the error as a user writes it, or ``returns``."""
        if self.error is None:
            return "returns"
        return f"{type(self.error).__module__}.{type(self.error).__qualname__}"


class Caller:
    """One open client. `get` never raises; `raw` is the library's own client object."""

    def __init__(self, raw: Any, stream: bool, run: Any = None, timeout: float | None = None) -> None:
        self.raw = raw
        self._stream = stream
        self._run = run
        self._timeout = timeout

    def get(self, url: str, **options: Any) -> Result:
        """Use the client as a tool would."""
        result = Result()
        try:
            self._use(url, result, options)
        except Exception as error:
            result.error = error
        return result

    def _use(self, url: str, result: Result, options: dict[str, Any]) -> None:
        raise NotImplementedError


class _Requests(Caller):
    def _use(self, url: str, result: Result, options: dict[str, Any]) -> None:
        options.setdefault("timeout", self._timeout)
        if not self._stream:
            _finish(result, self.raw.get(url, **options))
            return
        with self.raw.get(url, stream=True, **options) as response:
            _start(result, response)
            body = b"".join(response.iter_content(8))
            result.stage = "json"
            result.data = json.loads(body)


class _Httpx(Caller):
    def _use(self, url: str, result: Result, options: dict[str, Any]) -> None:
        if not self._stream:
            _finish(result, self.raw.get(url, **options))
            return
        with self.raw.stream("GET", url, **options) as response:
            _start(result, response)
            body = b"".join(response.iter_bytes())
            result.stage = "json"
            result.data = json.loads(body)


class _AsyncHttpx(Caller):
    def _use(self, url: str, result: Result, options: dict[str, Any]) -> None:
        self._run(self._go(url, result, options), context=contextvars.copy_context())

    async def _go(self, url: str, result: Result, options: dict[str, Any]) -> None:
        if not self._stream:
            _finish(result, await self.raw.get(url, **options))
            return
        async with self.raw.stream("GET", url, **options) as response:
            _start(result, response)
            body = b"".join([piece async for piece in response.aiter_bytes()])
            result.stage = "json"
            result.data = json.loads(body)


def _start(result: Result, response: Any) -> None:
    result.response = response
    result.status, result.stage = response.status_code, "status"
    response.raise_for_status()
    result.stage = "body"


def _finish(result: Result, response: Any) -> None:
    _start(result, response)
    result.stage = "json"
    result.data = response.json()


@cache
def _trust() -> ssl.SSLContext:
    """One context for all: loading the certificates takes longer than most tests."""
    return ssl.create_default_context()


@dataclass(frozen=True)
class Client:
    """One way to use one library.

    Attributes:
        name: the column of the matrix.
        library: the module.
        is_async: the asynchronous client.
        stream: reads the body piece by piece.
    """

    name: str
    library: str
    is_async: bool = False
    stream: bool = False

    @property
    def module(self) -> Any:
        """The library."""
        return importlib.import_module(self.library)

    @property
    def base(self) -> type[BaseException]:
        """What its users catch, and what a refusal must be too."""
        found: type[BaseException] = (
            self.module.RequestException if self.library == "requests" else self.module.HTTPError
        )
        return found

    @contextmanager
    def open(self, *, timeout: float = 5.0, **options: Any) -> Iterator[Caller]:
        """A client, open; ``options`` are the library's own (httpx's only)."""
        if self.library == "requests":
            with self.module.Session() as session:
                session.trust_env = False
                yield _Requests(session, self.stream, timeout=timeout)
            return
        made = self.module.AsyncClient if self.is_async else self.module.Client
        raw = made(timeout=timeout, follow_redirects=True, trust_env=False, verify=_trust(), **options)
        if not self.is_async:
            with raw:
                yield _Httpx(raw, self.stream)
            return
        with asyncio.Runner() as runner:
            yield _AsyncHttpx(raw, self.stream, runner.run)
            runner.run(raw.aclose())


CLIENTS: dict[str, Client] = {
    client.name: client
    for client in (
        Client("requests", "requests"),
        Client("requests_stream", "requests", stream=True),
        *(
            Client(library + ("_async" if is_async else "") + ("_stream" if stream else ""), library, is_async, stream)
            for library in ("httpx", "httpx2")
            for is_async in (False, True)
            for stream in (False, True)
        ),
    )
}
"""By column of the matrix."""
