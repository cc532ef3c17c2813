"""A dependency that fails when told to: a real HTTP server on loopback, standard library only."""

from __future__ import annotations

import contextlib
import json as jsonlib
import socket
import struct
import threading
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, BinaryIO, Final, NamedTuple, Self

from otel_breaker import keys

_NO_BODY: Final = (204, 304)
_PATIENCE: Final = 5.0
"""Seconds that `FakeDependency.close` waits for a thread whose connection it has closed."""


class Request(NamedTuple):
    """One request that arrived. Names of headers are in lower case; ``path`` has the query on it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class _Answer(NamedTuple):
    """``status`` 0: none at all, and the connection is reset; -1: none, and it stays open."""

    status: int
    retry_after: str | None = None


_HEALTHY: Final = _Answer(200)
_DROP: Final = _Answer(0)
_TIME_OUT: Final = _Answer(-1)


class FakeDependency:
    """A vendor on 127.0.0.1 that counts what really arrives on its socket.

    It serves from the moment it is made until `close`, or the end of its ``with`` block. How a request is answered is
    decided when it arrives; ``times`` says for how many, ``None`` until the next order.

    Args:
        json: what a healthy answer says; the attribute of that name may be changed later.
    """

    def __init__(self, json: Any = None) -> None:
        self.json: Any = {"ok": True} if json is None else json
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._answer, self._left = _HEALTHY, 0
        self._open: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._address: tuple[str, int] = self._listener.getsockname()
        self._accepting = threading.Thread(target=self._accept, name="otel-breaker-fake-dependency", daemon=True)
        self._accepting.start()

    # --- what the test asks -------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://{self._address[0]}:{self._address[1]}"

    @property
    def dependency(self) -> str:
        """The name of its circuit: host and port."""
        return keys.dependency(*self._address)

    @property
    def hits(self) -> int:
        """How many requests have arrived."""
        return len(self._requests)

    @property
    def requests(self) -> list[Request]:
        """The requests that have arrived, oldest first."""
        return list(self._requests)

    # --- what the test orders -----------------------------------------------------------------------------------------

    def fail(self, status: int = 503, retry_after: float | str | None = None, times: int | None = None) -> None:
        """Answer with this status.

        Args:
            status: 200 to 599.
            retry_after: a Retry-After header: seconds, or its text as it is.
            times: for how many requests; it is healthy again afterwards. ``None``: until the next order.

        Raises:
            ValueError: for another status, or ``times`` below 1.
        """
        if not 200 <= status <= 599:
            raise ValueError(f"status must be 200 to 599, not {status!r}")
        self._order(_Answer(status, None if retry_after is None else str(retry_after)), times)

    def time_out(self, times: int | None = None) -> None:
        """Take requests and never answer: the client's own timeout ends them, or `close`."""
        self._order(_TIME_OUT, times)

    def drop(self, times: int | None = None) -> None:
        """Take requests and reset the connection."""
        self._order(_DROP, times)

    def recover(self) -> None:
        """Be healthy: 200, with `json`."""
        self._order(_HEALTHY, None)

    def close(self) -> None:
        """Stop listening and end every connection. A second time does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            live = list(self._open.items())
        with contextlib.suppress(OSError):  # accept() does not notice on every system that its socket was closed
            socket.create_connection(self._address, timeout=_PATIENCE).close()
        self._accepting.join(_PATIENCE)
        self._listener.close()
        for connection, thread in live:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(_PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- the server ---------------------------------------------------------------------------------------------------

    def _order(self, answer: _Answer, times: int | None) -> None:
        if times is not None and times < 1:
            raise ValueError(f"times must be 1 or more, or None, not {times!r}")
        with self._lock:
            self._answer, self._left = answer, times or 0

    def _arrived(self, request: Request) -> _Answer:
        with self._lock:
            self._requests.append(request)
            answer = self._answer
            if self._left:
                self._left -= 1
                if not self._left:
                    self._answer = _HEALTHY
            return answer

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            thread = threading.Thread(target=self._serve, args=(connection,), name=self._accepting.name, daemon=True)
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._open[connection] = thread
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        # OSError: the client went away. ValueError: what it sent is not HTTP/1.1. Neither is the test's concern here.
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as stream:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (request := _read(connection, stream)) is not None:
                answer = self._arrived(request)
                if answer is _TIME_OUT:
                    stream.read(1)  # returns when the client has gone
                    break
                if answer is _DROP:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                connection.sendall(self._reply(answer, request))
                if request.headers.get("connection", "").lower() == "close":
                    break
        with self._lock:
            self._open.pop(connection, None)

    def _reply(self, answer: _Answer, request: Request) -> bytes:
        status, retry_after = answer
        told = self.json if answer is _HEALTHY else {"error": {"message": f"status {status} was ordered"}}
        body = b"" if status in _NO_BODY else jsonlib.dumps(told).encode()
        lines = [f"HTTP/1.1 {status} {_phrase(status)}"]
        if status not in _NO_BODY:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        if retry_after is not None:
            lines.append(f"Retry-After: {retry_after}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return head if request.method == "HEAD" else head + body


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # one that no standard knows, such as 599
        return "Ordered"


def _read(connection: socket.socket, stream: BinaryIO) -> Request | None:
    """The next request; ``None`` when the client has gone.

    Raises:
        ValueError: for something that is not HTTP/1.1.
    """
    first = stream.readline().decode("latin-1")
    if not first:
        return None
    method, path, _ = first.split()
    headers = {}
    while line := stream.readline().decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return Request(method, path, headers, stream.read(int(headers.get("content-length", 0))))
    body = b""
    while size := int(stream.readline().partition(b";")[0], 16):
        body += stream.read(size)
        stream.readline()
    while stream.readline().strip():  # trailers
        pass
    return Request(method, path, headers, body)
