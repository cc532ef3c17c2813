"""The payment vendor of the demo: a real HTTP server on loopback that fails on cue and counts every request."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final, Literal

Behaviour = Literal["answers", "breaks", "gives up", "hangs up", "resets", "stalls", "limits"]
RETRY_AFTER: Final = 3
"""Seconds that a rate-limited client is asked to stay away."""
GIVES_UP: Final = 0.4
"""Seconds that the vendor's gateway waits for a dead machine behind it before it says so."""
STALL: Final = 5.0
"""Seconds after which a stalled request is given up; the agent's own timeout is far shorter."""

_ERROR_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>payments.example | 502: Bad gateway</title>
<style>
 body {margin: 0; font-family: system-ui, sans-serif; color: #313131; background: #f4f4f4}
 .wrap {max-width: 46rem; margin: 4rem auto; padding: 2rem; background: #fff; border-radius: .5rem}
 .hops {display: flex; gap: 2rem} .hop {flex: 1; text-align: center} .bad {color: #bd2426} .good {color: #2f855a}
</style></head>
<body><div class="wrap">
<h1>Bad gateway <small>Error code 502</small></h1>
<div class="hops"><div class="hop good">You<br>Working</div><div class="hop good">Edge<br>Working</div>
<div class="hop bad">payments.example<br>Error</div></div>
<h2>What happened?</h2><p>The web server reported a bad gateway error.</p>
<h2>What can I do?</h2><p>Please try again in a few minutes.</p>
<p><small>Ray 8f2c41d09b7e, please include it when you contact support.</small></p>
</div></body></html>
"""
_LIMITED: Final = json.dumps({"error": {"type": "rate_limit_error", "message": "Too many requests for this key."}})


@dataclass(frozen=True, slots=True)
class Hit:
    """One request that reached the vendor.

    Attributes:
        at: when, in seconds since the epoch.
        status: the HTTP status that it got; 0 for none.
    """

    at: float
    status: int


class Vendor:
    """Serves on a free port of 127.0.0.1 from `start` to `stop`, or in a with block.

    `behaviour` decides what the next request meets.
    """

    def __init__(self) -> None:
        self.behaviour: Behaviour = "answers"
        self._hits: list[Hit] = []
        self._lock = threading.Lock()
        vendor = self

        class Handler(_Handler):
            owner = vendor

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="vendor", daemon=True)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to serve; stalled requests are left to end with their clients."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Vendor:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def count(self, status: int) -> None:
        """Note one request."""
        with self._lock:
            self._hits.append(Hit(time.time(), status))

    def hits(self) -> list[Hit]:
        """Every request so far."""
        with self._lock:
            return list(self._hits)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class _Handler(socketserver.StreamRequestHandler):
    """One connection, which is one request: the vendor never keeps a connection alive."""

    owner: Vendor

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            if self._read():
                self._answer(self.owner.behaviour)

    def _read(self) -> bool:
        """Read a whole request; whether there was one."""
        if not self.rfile.readline():
            return False
        length = 0
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        self.rfile.read(length)
        return True

    def _answer(self, behaviour: Behaviour) -> None:
        if behaviour == "answers":
            self._reply(200, "OK", json.dumps({"id": "re_1042", "status": "succeeded", "amount": 4200}))
        elif behaviour in ("breaks", "gives up"):
            if behaviour == "gives up":
                time.sleep(GIVES_UP)
            self._reply(502, "Bad Gateway", _ERROR_PAGE, kind="text/html")
        elif behaviour == "limits":
            self._reply(429, "Too Many Requests", _LIMITED, f"Retry-After: {RETRY_AFTER}\r\n")
        else:
            self.owner.count(0)
            if behaviour == "resets":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                socket.close(self.connection.detach())
            elif behaviour == "stalls":
                self.connection.settimeout(STALL)
                self.connection.recv(1)

    def _reply(self, status: int, phrase: str, body: str, headers: str = "", kind: str = "application/json") -> None:
        self.owner.count(status)
        data = body.encode()
        head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{headers}"
        self.wfile.write(f"{head}Connection: close\r\n\r\n".encode() + data)
