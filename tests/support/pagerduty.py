"""A stand-in for PagerDuty's Events API v2 on loopback: it validates as the real one does and keeps the incidents.

``with PagerDuty() as pager``, point Alertmanager's ``url`` at ``pager.url``, then
``pager.wait_for(lambda: pager.opened)``. On its own: ``python -m tests.support.pagerduty 18080`` prints what comes.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

PATH = "/v2/enqueue"
ACTIONS = ("trigger", "acknowledge", "resolve")
SEVERITIES = ("critical", "error", "warning", "info")
ROUTING_KEY = "R0000000000000000000000000000000"
BODY_MAX = 512 * 1024
SUMMARY_MAX = 1024
DEDUP_KEY_MAX = 255


@dataclass(frozen=True, slots=True)
class Event:
    """One request and what it was answered. ``at`` is `time.monotonic`."""

    at: float
    status: int
    body: dict[str, Any]
    errors: tuple[str, ...] = ()

    @property
    def action(self) -> str:
        """``trigger``, ``acknowledge`` or ``resolve``."""
        return str(self.body.get("event_action"))

    @property
    def dedup_key(self) -> str:
        """Which incident it is about."""
        return str(self.body.get("dedup_key"))

    @property
    def payload(self) -> dict[str, Any]:
        """Summary, source, severity and details."""
        found = self.body.get("payload")
        return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class Incident:
    """What a person would have been woken for: all accepted events of one dedup key from a trigger to its resolve."""

    dedup_key: str
    events: list[Event] = field(default_factory=list)
    resolved: bool = False

    @property
    def first(self) -> Event:
        """The trigger that opened it."""
        return self.events[0]

    @property
    def last(self) -> Event:
        """The newest event."""
        return self.events[-1]


class PagerDuty:
    """Listens on 127.0.0.1 from ``with`` to its end.

    Args:
        port: 0 picks a free one.
        routing_key: the one key that is known; others are answered 400, as is everything malformed.
        echo: called with each event: for a person who watches.
    """

    def __init__(
        self, port: int = 0, routing_key: str = ROUTING_KEY, echo: Callable[[Event], None] | None = None
    ) -> None:
        self.routing_key = routing_key
        self.echo = echo
        self.events: list[Event] = []
        self.incidents: list[Incident] = []
        self.strays: list[Event] = []
        self.heartbeats = 0
        self._answers: list[int] = []
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.pager = self
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> PagerDuty:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """For ``url`` in Alertmanager's ``pagerduty_configs``."""
        return f"http://127.0.0.1:{self.port}{PATH}"

    @property
    def heartbeat_url(self) -> str:
        """Takes any POST and counts it: for the receiver of the watchdog."""
        return f"http://127.0.0.1:{self.port}/heartbeat"

    @property
    def opened(self) -> list[Incident]:
        """Incidents that are open now."""
        return [one for one in self.incidents if not one.resolved]

    @property
    def refused(self) -> list[Event]:
        """What was not accepted."""
        return [event for event in self.events if event.status != 202]

    def answer_next(self, *statuses: int) -> None:
        """Answer the next requests so, whatever they say: 429 and 5xx are what PagerDuty does under load."""
        self._answers += statuses

    def wait_for(self, condition: Callable[[], Any], timeout: float = 30.0) -> bool:
        """Wait until ``condition()`` holds; looked at again whenever an event comes in."""
        until = time.monotonic() + timeout
        with self._changed:
            while not condition():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def beat(self) -> None:
        """The watchdog's heartbeat arrived."""
        with self._changed:
            self.heartbeats += 1
            self._changed.notify_all()

    def take(self, raw: bytes) -> tuple[int, dict[str, Any]]:
        """One request to `PATH`: its status and answer."""
        with self._changed:
            try:
                parsed = json.loads(raw)
            except ValueError:
                parsed = None
            body: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
            forced = self._answers.pop(0) if self._answers else None
            errors = () if forced else self._errors(raw, body)
            status = forced or (400 if errors else 202)
            if status == 202:
                body.setdefault("dedup_key", uuid.uuid4().hex)
            event = Event(time.monotonic(), status, body, errors)
            self.events.append(event)
            if status == 202:
                self._file(event)
            self._changed.notify_all()
        if self.echo is not None:
            self.echo(event)
        if status == 202:
            return 202, {"status": "success", "message": "Event processed", "dedup_key": event.dedup_key}
        if status == 429:
            return 429, {"status": "throttle exceeded", "message": "Requests for this service are arriving too quickly"}
        return status, {"status": "invalid event", "message": "Event object is invalid", "errors": list(errors)}

    def _file(self, event: Event) -> None:
        of_it = [one for one in self.opened if one.dedup_key == event.dedup_key]
        if not of_it and event.action != "trigger":
            self.strays.append(event)  # PagerDuty accepts it, and nothing happens
            return
        if not of_it:
            of_it = [Incident(event.dedup_key)]
            self.incidents += of_it
        of_it[0].events.append(event)
        of_it[0].resolved = event.action == "resolve"

    def _errors(self, raw: bytes, body: dict[str, Any]) -> tuple[str, ...]:
        found: list[str] = []
        if len(raw) > BODY_MAX:
            found.append("the event is larger than 512 KB")
        if body.get("routing_key") != self.routing_key:
            found.append("'routing_key' is missing or is not known")
        if body.get("event_action") not in ACTIONS:
            found.append(f"'event_action' is not one of {', '.join(ACTIONS)}")
        key = body.get("dedup_key")
        if key is None and body.get("event_action") in ("acknowledge", "resolve"):
            found.append("'dedup_key' is missing")
        if key is not None and not (isinstance(key, str) and 0 < len(key) <= DEDUP_KEY_MAX):
            found.append(f"'dedup_key' is not a text of 1 to {DEDUP_KEY_MAX} characters")
        if body.get("event_action") == "trigger":
            found += _payload_errors(body.get("payload"))
        return tuple(found)


def _payload_errors(payload: Any) -> list[str]:
    if not isinstance(payload, dict):
        return ["'payload' is missing"]
    found = [
        f"'payload.{name}' is missing or blank"
        for name in ("summary", "source")
        if not (isinstance(payload.get(name), str) and payload[name].strip())
    ]
    if len(str(payload.get("summary", ""))) > SUMMARY_MAX:
        found.append(f"'payload.summary' is longer than {SUMMARY_MAX} characters")
    if payload.get("severity") not in SEVERITIES:
        found.append(f"'payload.severity' is not one of {', '.join(SEVERITIES)}")
    return found


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    pager: PagerDuty

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        answer: dict[str, Any]
        if self.path == PATH:
            status, answer = self.server.pager.take(raw)
        elif self.path == "/heartbeat":
            self.server.pager.beat()
            status, answer = 200, {}
        else:
            status, answer = 404, {}
        out = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Silence."""


def line(event: Event) -> str:
    """An event for a person."""
    what = f"{event.action} {event.dedup_key[:12]} [{event.payload.get('severity')}] {event.payload.get('summary')}"
    return f"PagerDuty {event.status}: {what}" + "".join(f"\n  {error}" for error in event.errors)


def main(argv: list[str]) -> None:
    """Serve until interrupted."""
    with PagerDuty(int(argv[0]) if argv else 18080, echo=lambda event: print(line(event), flush=True)) as pager:
        print(f"events: {pager.url}, routing key: {pager.routing_key}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
