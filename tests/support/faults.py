"""Real servers on 127.0.0.1 that fail in exact ways, and one that follows a script.

Raw sockets and one thread a connection, so that a reset, a truncated body or a stall is exactly that.

`FaultServer` serves every fault of the matrix: ``faults.url("truncated", cell="mine")`` is a URL that answers in that
way, ``faults.hits["mine"]`` counts the requests that reached it. `Script` is the ``srv`` of most tests: replies are
queued with `Script.reply`, `Script.hits` counts the requests, `Script.requests` remembers them.
"""

from __future__ import annotations

import collections
import contextlib
import email.utils
import json as jsonlib
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PHRASES = {200: "OK", 302: "Found", 401: "Unauthorized", 429: "Too Many Requests", 500: "Internal Server Error"}
OK_BODY = jsonlib.dumps(
    {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
"""A complete OpenAI chat completion: plain clients take it for any JSON document."""
STALL_LIMIT = 8.0
"""Seconds after which a stalled reply gives up waiting for its client to go away."""


@dataclass(frozen=True)
class Request:
    """One request that reached a server."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


class Connection:
    """One accepted connection, with the ways to answer on it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def read(self) -> Request | None:
        """The next request, or ``None`` when the client has gone."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.sock.recv(65536)
            if not piece:
                return None
            data += piece
        head, body = data.split(b"\r\n\r\n", 1)
        first, *lines = head.decode("latin1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("expect", "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int(headers.get("content-length") or 0)
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        while len(body) < length or (chunked and not body.endswith(b"0\r\n\r\n")):
            piece = self.sock.recv(65536)
            if not piece:
                return None
            body += piece
        return Request(method, target, headers, body)

    def send(self, data: bytes) -> None:
        """Write these bytes."""
        self.sock.sendall(data)

    def head(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Write the status line and these headers, with what follows them, in one piece."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.send(f"HTTP/1.1 {status} {PHRASES.get(status, 'X')}\r\n{lines}\r\n".encode() + body)

    def answer(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None, length: int | None = None
    ) -> None:
        """A whole reply; ``length`` overrides the Content-Length it declares."""
        declared = {"Content-Type": "application/json", "Content-Length": str(len(body) if length is None else length)}
        for name, value in (headers or {}).items():
            declared = {known: kept for known, kept in declared.items() if known.lower() != name.lower()}
            declared[name] = value
        self.head(status, declared, body)

    def chunk(self, data: bytes) -> None:
        """One chunk of a chunked body; empty ends it."""
        self.send(b"%x\r\n" % len(data) + data + b"\r\n")

    def reset(self) -> None:
        """Close with a RST."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def stall(self) -> None:
        """Send nothing more until the client goes away."""
        self.sock.settimeout(STALL_LIMIT)
        with contextlib.suppress(OSError):
            self.sock.recv(1)


class _Server:
    """Listening sockets, one thread each, and one thread a connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._stopped = threading.Event()
        self.connections: collections.Counter[str] = collections.Counter()
        """Connections accepted, by listener."""

    def listen(
        self,
        name: str,
        handler: Callable[[Connection], None],
        *,
        tls: ssl.SSLContext | None = None,
        address: Any = ("127.0.0.1", 0),
        family: int = socket.AF_INET,
    ) -> Any:
        """Serve ``handler`` and return the address."""
        listener = socket.socket(family)
        if family == socket.AF_INET:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        self._listeners.append(listener)
        stopped = self._stopped

        def accept() -> None:
            while not stopped.is_set():
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                with self._lock:
                    self.connections[name] += 1
                    self._open.add(sock)
                sock.settimeout(20)
                if family == socket.AF_INET:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(handler, sock, tls), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return listener.getsockname()

    def _serve(self, handler: Callable[[Connection], None], sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        plain = sock
        try:
            if tls is not None:
                sock = tls.wrap_socket(sock, server_side=True)
            handler(Connection(sock))
        except (OSError, ValueError):
            pass  # the client went away, or did not speak TLS: both are what the test asked for
        finally:
            with self._lock:
                self._open.discard(plain)
            sock.close()

    @property
    def open(self) -> list[socket.socket]:
        """Connections that are open now."""
        with self._lock:
            return list(self._open)

    def close(self) -> None:
        """Stop listening and drop every connection."""
        self._stopped.set()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accept() that another thread sits in
            listener.close()
        self._listeners.clear()
        with self._lock:
            live = list(self._open)
            self._open.clear()
        for sock in live:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def serve_fault(conn: Connection, fault: str, request: Request, dead: str, number: int) -> bool:
    """Answer ``request`` with this fault.

    Args:
        conn: where to answer.
        fault: a name of the matrix, or ``s<status>`` with an optional ``_<option>`` (see `_status`).
        request: what was asked.
        dead: a URL nobody listens on, for ``redirect_dead``.
        number: how many requests this cell has had, with this one.

    Returns:
        Whether the connection can take another request.
    """
    if fault[:1] == "s" and fault[1:4].isdigit():
        _status(conn, int(fault[1:4]), fault[5:], number)
        return True
    whole = _WHOLE.get(fault)
    if whole is not None:
        conn.answer(*whole)
        return True
    if fault == "redirect_loop":
        conn.answer(302, headers={"Location": request.target})
        return True
    if fault == "redirect_dead":
        conn.answer(302, headers={"Location": dead})
        return True
    _BROKEN[fault](conn)
    return False


def _status(conn: Connection, status: int, option: str, number: int) -> None:
    """``ra<n>``, ``radate``, ``rams``, ``rajunk``: a Retry-After; ``then<n>``: n times, then 200; ``html``: a page."""
    headers: dict[str, str] = {}
    body = jsonlib.dumps({"error": {"message": f"fault {status}", "type": "fault_error", "code": "fault"}}).encode()
    if option.startswith("then") and number > int(option[4:]):
        status, body = 200, OK_BODY
    elif option == "radate":
        headers["Retry-After"] = email.utils.formatdate(time.time() + 2, usegmt=True)
    elif option == "rams":
        headers |= {"retry-after-ms": "250", "Retry-After": "30"}
    elif option == "rajunk":
        headers["Retry-After"] = "soon"
    elif option.startswith("ra"):
        headers["Retry-After"] = option[2:]
    elif option == "html":
        headers["Content-Type"], body = "text/html", b"<html>err</html>"
    conn.answer(status, body, headers)


def _after(conn: Connection, data: bytes, end: Callable[[], None]) -> None:
    """Send, wait until the client has surely read it, then end."""
    conn.send(data)
    time.sleep(0.05)
    end()


def _short(conn: Connection, size: int, end: Callable[[], None]) -> None:
    """A 200 that promises the whole document and delivers ``size`` bytes of it."""
    conn.answer(200, OK_BODY[:size], length=len(OK_BODY))
    time.sleep(0.05)
    end()


def _nothing() -> None:
    """Let the connection close by itself (FIN)."""


_CHUNKED = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n'
_HTML = {"Content-Type": "text/html"}
_WHOLE: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "ok": (200, OK_BODY, {}),
    "brokenjson": (200, b'{"choices": [{"ind', {}),
    "emptybody": (200, b"", {}),
    "htmlok": (200, b"<html>login</html>", _HTML),
    "wrongshape": (200, b"[1, 2]", {}),
    "badgzip": (200, b"not gzip at all", {"Content-Encoding": "gzip"}),
}
_BROKEN: dict[str, Callable[[Connection], None]] = {
    "close_before_headers": lambda c: _nothing(),
    "rst_before_headers": lambda c: c.reset(),
    "read_timeout": lambda c: c.stall(),
    "body_stall": lambda c: _short(c, 20, c.stall),
    "rst_after_headers": lambda c: _short(c, 20, c.reset),
    "rst_after_headers_nobody": lambda c: _short(c, 0, c.reset),
    "truncated": lambda c: _short(c, 20, _nothing),
    "chunked_abort": lambda c: _after(c, _CHUNKED, _nothing),
    "chunked_rst": lambda c: _after(c, _CHUNKED, c.reset),
    "chunked_badsize": lambda c: _after(c, _CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n", _nothing),
    "badstatus": lambda c: _after(c, b"garbage not http\r\n\r\n", _nothing),
    "badheader": lambda c: _after(c, b"HTTP/1.1 200 OK\r\nX y z no colon\r\nContent-Length: 2\r\n\r\n{}", _nothing),
}
_TLS_FAULTS: dict[str, Callable[[Connection], None]] = {
    "tls_reset": lambda c: c.reset(),
    "tls_eof": lambda c: _nothing(),
    "tls_alert": lambda c: _after(c, b"\x15\x03\x03\x00\x02\x02\x28", _nothing),
    "plain_on_tls": lambda c: _after(c, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", _nothing),
}


class FaultServer(_Server):
    """Every fault of the matrix, each at its own URL.

    Attributes:
        ports: by listener: http, https (a CA that clients do not know), https_badhost (a certificate for another
            name), tls_reset, tls_eof, tls_alert, plain_on_tls, accept_rst, refused, backlog (never accepts).
        hits: requests by cell.
        headers: the last request's headers by cell.
        ca_pem: path of the CA certificate.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ports: dict[str, int] = {}
        self.hits: collections.Counter[str] = collections.Counter()
        self.headers: dict[str, Mapping[str, str]] = {}
        self.ca_pem = ""
        self._held: list[socket.socket] = []

    def start(self) -> FaultServer:
        """Listen on every port."""
        import trustme  # a development dependency, only needed for the certificates

        authority = trustme.CA()
        self.ca_pem = str(Path(tempfile.mkdtemp()) / "ca.pem")
        authority.cert_pem.write_to_path(self.ca_pem)

        def context(*names: str) -> ssl.SSLContext:
            made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert(*names).configure_cert(made)
            return made

        def hello(fault: Callable[[Connection], None]) -> Callable[[Connection], None]:
            def handler(conn: Connection) -> None:
                conn.sock.recv(4096)
                fault(conn)

            return handler

        for name, handler, tls in (
            ("http", self._http, None),
            ("https", self._http, context("127.0.0.1", "localhost")),
            ("https_badhost", self._http, context("other.example")),
            ("accept_rst", Connection.reset, None),
            *((name, hello(fault), None) for name, fault in _TLS_FAULTS.items()),
        ):
            self.ports[name] = self.listen(name, handler, tls=tls)[1]
        self.ports["refused"] = free_port()
        backlog = socket.socket()
        backlog.bind(("127.0.0.1", 0))
        backlog.listen(0)
        self.ports["backlog"] = backlog.getsockname()[1]
        self._held.append(backlog)
        for _ in range(6):  # fill the queue: the next SYN is dropped, and a connect times out
            filler = socket.socket()
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(("127.0.0.1", self.ports["backlog"]))
            self._held.append(filler)
        return self

    def _http(self, conn: Connection) -> None:
        dead = f"http://127.0.0.1:{self.ports['refused']}/x"
        while (request := conn.read()) is not None:
            parts = request.path.strip("/").split("/")
            fault, cell = parts[1:3] if len(parts) >= 3 and parts[0] == "f" else ("ok", "none")
            with self._lock:
                self.hits[cell] += 1
                number = self.hits[cell]
                self.headers[cell] = request.headers
            if not serve_fault(conn, fault, request, dead, number):
                return

    def url(self, fault: str, cell: str = "cell") -> str:
        """A URL that fails in this way; its requests are counted under ``cell``."""
        if fault == "dns":
            return f"http://name.invalid:8080/f/ok/{cell}"
        port = {"connect_timeout": "backlog", "rst_on_accept": "accept_rst", "refused": "refused"}.get(fault)
        if port is not None:
            return f"http://127.0.0.1:{self.ports[port]}/f/ok/{cell}"
        secure = {"tls_selfsigned": "https", "tls_badhost": "https_badhost"}.get(fault, fault)
        if secure in self.ports and secure != "http":
            return f"https://127.0.0.1:{self.ports[secure]}/f/ok/{cell}"
        return f"http://127.0.0.1:{self.ports['http']}/f/{fault}/{cell}"

    def close(self) -> None:
        """Stop every listener."""
        super().close()
        for held in self._held:
            held.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Reply:
    """One scripted answer, given ``left`` times (``None``: for ever)."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: tuple[bytes, ...] | None = None
    fault: str | None = None
    delay: float = 0.0
    pause: float = 0.0
    gate: threading.Event | None = None
    left: int | None = 1


class Script(_Server):
    """A server that answers what the test queued: first for the path, then for any path, then `default`.

    ``with Script() as srv: srv.reply(503, times=3); client.get(srv.url()); assert srv.hits == 1``
    """

    def __init__(self, *, unix: str | None = None) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.default: Reply = Reply(200, b'{"ok": true}', left=None)
        self._queues: collections.defaultdict[str | None, list[Reply]] = collections.defaultdict(list)
        self._unix = unix
        self._address: Any = ("127.0.0.1", 0)
        self.start()

    def start(self) -> None:
        """Listen, again on the same address after `stop`."""
        self._stopped = threading.Event()
        family = socket.AF_UNIX if self._unix else socket.AF_INET
        self._address = self.listen("http", self._http, address=self._unix or self._address, family=family)

    def stop(self) -> None:
        """Refuse connections until `start`; open ones are dropped."""
        self.close()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def hits(self) -> int:
        """Requests that reached the server."""
        return len(self.requests)

    def hits_of(self, path: str) -> int:
        """Requests for this path."""
        return sum(request.path == path for request in self.requests)

    @property
    def host(self) -> str:
        """``127.0.0.1:port``: the dependency's name."""
        return f"127.0.0.1:{self._address[1]}"

    def url(self, path: str = "/") -> str:
        """The address of a path."""
        return f"http://{self.host}{path}"

    def reply(
        self,
        status: int = 200,
        body: bytes | str = b"",
        *,
        path: str | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        chunks: Iterable[bytes] | None = None,
        fault: str | None = None,
        delay: float = 0.0,
        pause: float = 0.0,
        gate: threading.Event | None = None,
        times: int | None = 1,
    ) -> None:
        """Queue an answer.

        Args:
            status: the status code.
            body: the body; ``json`` is one in its place.
            path: only for this path; ``None``: for any.
            json: a document to send as the body.
            headers: in addition to, or in place of, Content-Type and Content-Length.
            chunks: a chunked body, piece by piece. With ``fault`` in {abort, reset, stall}, it then ends that way.
            fault: a fault of the matrix in place of an answer.
            delay: seconds before the answer.
            pause: seconds between two chunks.
            gate: wait for this event before the answer.
            times: how often; ``None`` is for ever.
        """
        raw = jsonlib.dumps(json).encode() if json is not None else body.encode() if isinstance(body, str) else body
        pieces = None if chunks is None else tuple(chunks)
        made = Reply(status, raw, headers or {}, pieces, fault, delay, pause, gate, times)
        with self._lock:
            self._queues[path].append(made)

    def forget(self) -> None:
        """Drop what is queued and what was counted."""
        with self._lock:
            self._queues.clear()
            self.requests.clear()

    def _next(self, request: Request) -> tuple[Reply, int]:
        with self._lock:
            self.requests.append(request)
            for queue in (self._queues[request.path], self._queues[None]):
                if queue:
                    first = queue[0]
                    if first.left is not None:
                        first.left -= 1
                        if first.left <= 0:
                            queue.pop(0)
                    return first, len(self.requests)
            return self.default, len(self.requests)

    def _http(self, conn: Connection) -> None:
        while (request := conn.read()) is not None:
            reply, number = self._next(request)
            if reply.gate is not None:
                reply.gate.wait(STALL_LIMIT)
            time.sleep(reply.delay)
            if reply.chunks is not None:
                if not self._chunked(conn, reply):
                    return
            elif reply.fault is not None:
                if not serve_fault(conn, reply.fault, request, f"http://127.0.0.1:{free_port()}/x", number):
                    return
            else:
                conn.answer(reply.status, reply.body, reply.headers)

    def _chunked(self, conn: Connection, reply: Reply) -> bool:
        conn.head(reply.status, {"Content-Type": "text/event-stream", **reply.headers, "Transfer-Encoding": "chunked"})
        for number, piece in enumerate(reply.chunks or ()):
            time.sleep(reply.pause if number else 0.0)
            conn.chunk(piece)
        if reply.fault is None:
            conn.chunk(b"")
            return True
        time.sleep(0.05)  # let the client read what it was sent: a RST would take it away
        {"abort": _nothing, "reset": conn.reset, "stall": conn.stall}[reply.fault]()
        return False


@contextlib.contextmanager
def fault_server() -> Iterator[FaultServer]:
    """A running `FaultServer`."""
    server = FaultServer().start()
    try:
        yield server
    finally:
        server.close()
