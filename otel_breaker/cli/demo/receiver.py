"""An OTLP/HTTP receiver in this process: what really left the exporter, decoded. It can be taken down and up again.

Start one with ``with Receiver() as receiver``, point ``OTEL_EXPORTER_OTLP_ENDPOINT`` at ``receiver.endpoint``, then
``receiver.wait_for(lambda: receiver.value("otel_breaker.circuits") == 1)``.
"""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from . import signals
from .signals import Attributes, Log, Point, Span, SpanEvent


@dataclass(slots=True)
class _Inbox:
    points: list[Point] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    requests: int = 0


class Receiver:
    """Listens on 127.0.0.1 from `up` (or ``with``) to `down`, on the same port each time, and keeps what it got.

    Args:
        port: 0 picks a free one.
        delay: seconds to wait before each answer: a collector that hangs.
    """

    def __init__(self, port: int = 0, delay: float = 0.0) -> None:
        self.port = port
        self.delay = delay
        self._inbox = _Inbox()
        self._changed = threading.Condition()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        if port == 0:
            self.up()
            self.down()

    # --- life ---------------------------------------------------------------------------------------------------------

    def up(self) -> Receiver:
        """Listen."""
        if self._server is None:
            self._server = _Server(("127.0.0.1", self.port), _Handler)
            self._server.receiver = self
            self.port = self._server.server_address[1]
            self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
            self._thread.start()
        return self

    def down(self) -> None:
        """Stop listening: connections to the port are refused from now on. What was received stays."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def __enter__(self) -> Receiver:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def endpoint(self) -> str:
        """For ``OTEL_EXPORTER_OTLP_ENDPOINT``."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self, **more: str) -> dict[str, str]:
        """Variables that send everything here over HTTP."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            **more,
        }

    # --- what came ----------------------------------------------------------------------------------------------------

    @property
    def points(self) -> list[Point]:
        """Every data point, oldest first."""
        return list(self._inbox.points)

    @property
    def spans(self) -> list[Span]:
        """Every span."""
        return list(self._inbox.spans)

    @property
    def logs(self) -> list[Log]:
        """Every log record."""
        return list(self._inbox.logs)

    @property
    def requests(self) -> int:
        """Requests answered."""
        return self._inbox.requests

    @property
    def raw(self) -> bytes:
        """All decompressed bodies, to search for what must not be there."""
        return b"\n".join(self._inbox.bodies)

    def series(self, name: str) -> list[Point]:
        """The newest point of every series (resource and attributes) of a metric."""
        newest = {(_key(p.resource), _key(p.attributes)): p for p in self.points if p.name == name}
        return list(newest.values())

    def value(self, name: str, /, **attributes: Any) -> float | None:
        """The newest value of the series with these attributes, summed over resources; ``None`` if there is none.

        Dots are written as double underscores: ``value("otel_breaker.status", otel_breaker__state="open")``.
        """
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        found = [p.value for p in self.series(name) if wanted.items() <= p.attributes.items()]
        return sum(found) if found else None

    def events(self, name: str) -> list[Log]:
        """Log events of that name."""
        return [log for log in self.logs if log.event_name == name]

    def span_events(self, name: str) -> list[SpanEvent]:
        """Span events of that name, over all spans."""
        return [event for span in self.spans for event in span.events if event.name == name]

    def clear(self) -> None:
        """Forget what came."""
        with self._changed:
            self._inbox = _Inbox()

    def wait_for(self, condition: Callable[[], Any], timeout: float = 10.0) -> bool:
        """Wait until ``condition()`` holds; looked at again whenever something comes in."""
        until = time.monotonic() + timeout
        with self._changed:
            while not condition():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def take(self, path: str, body: bytes) -> None:
        """Decode one request."""
        with self._changed:
            self._inbox.requests += 1
            self._inbox.bodies.append(body)
            if path.endswith("/v1/metrics"):
                self._inbox.points += signals.points(ExportMetricsServiceRequest.FromString(body))
            elif path.endswith("/v1/traces"):
                self._inbox.spans += signals.spans(ExportTraceServiceRequest.FromString(body))
            elif path.endswith("/v1/logs"):
                self._inbox.logs += signals.logs(ExportLogsServiceRequest.FromString(body))
            self._changed.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    receiver: Receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    responses_of: ClassVar[dict[str, Any]] = {
        "/v1/metrics": ExportMetricsServiceResponse,
        "/v1/traces": ExportTraceServiceResponse,
        "/v1/logs": ExportLogsServiceResponse,
    }
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        encoding = self.headers.get("content-encoding", "")
        if encoding == "gzip":
            body = gzip.decompress(body)
        elif encoding == "deflate":
            body = zlib.decompress(body)
        receiver = self.server.receiver
        if receiver.delay:
            time.sleep(receiver.delay)
        kind = self.responses_of.get(self.path)
        answer = b"" if kind is None else kind().SerializeToString()
        if kind is not None:
            receiver.take(self.path, body)
        self.send_response(200 if kind is not None else 404)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        # One request a connection: taken down, the port must refuse, not answer on what is still open.
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(answer)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Silence."""


def _key(attributes: Attributes) -> str:
    return repr(sorted(attributes.items()))
