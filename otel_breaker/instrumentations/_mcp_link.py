"""What is known of one connection to an MCP server: whose it is, and how each request over it fared on the wire.

The SDK hides both the true exception and the HTTP status from `ClientSession.call_tool`, so the transport is watched.
A fault belongs to the call whose JSON-RPC id was on the request, not to whoever happens to be waiting on the session.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

from otel_breaker import _bindings, keys
from otel_breaker.telemetry.events import server_address

from ._mcp_names import digest, program

LIBRARY: Final = "mcp"
UNKNOWN: Final = "unknown"


class Exchange:
    """One request over HTTP, as far as it got.

    Attributes:
        error: what sending it raised.
        response: what came back.
    """

    __slots__ = ("error", "response")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.response: Any = None


class Call:
    """One logical call over a session: the requests that it sent.

    Attributes:
        link: the connection.
        session: whose they are.
        doomed: the connection was broken before this call began.
        charged: its result was charged to the tool.
        exchanges: how they fared, by JSON-RPC id; ``None`` while nothing has been seen of one.
    """

    __slots__ = ("charged", "doomed", "exchanges", "link", "session")

    def __init__(self, link: Link, session: Any) -> None:
        self.link = link
        self.session = session
        self.exchanges: dict[Any, Exchange | None] = {}
        self.doomed = link.broken
        self.charged = False

    def next_id(self) -> None:
        """What this session sends next is this call's: note the id that it will have."""
        dispatcher = getattr(self.session, "_dispatcher", None)
        following = self.session._request_id if dispatcher is None else getattr(dispatcher, "_next_id", 0) + 1
        self.exchanges[following] = None
        self.link.waiting[following] = self

    def over(self) -> None:
        """Forget its ids: what the wire still says about them is nobody's."""
        for request_id in self.exchanges:
            self.link.waiting.pop(request_id, None)


class Link:
    """One connection, from entering its transport until leaving it.

    Attributes:
        server: the server's name in circuits.
        scope: tells servers of one name apart: a fingerprint of the path, or of the command and its arguments.
        url: without query and user information, for ``excluded_urls``; ``None`` where there is none.
        kind: ``http``, ``sse``, ``stdio``, or ``memory`` where no transport of the SDK was seen.
        credential: fingerprint of what was last sent.
        waiting: calls by the id of their requests in flight.
        broken: a request could not be sent or its connection broke: the SDK ends the whole session then.
        refused: a request was answered with an HTTP error, which ends the session in SDK 1.x.
        closed: the program has left the transport.
        connecting: the frame of the connection attempt, until it is settled.
        plans: by tool, what `mcp` looked up.
        address: the host; empty where there is none.
    """

    def __init__(self, kind: str, server: str, scope: str = "", url: str | None = None) -> None:
        self.kind, self.server, self.scope, self.url = kind, server, scope, url
        self.credential: str | None = None
        self.waiting: dict[Any, Call] = {}
        self.broken = self.refused = self.closed = False
        self.connecting: Any = None
        self.plans: dict[str, Any] = {}
        self.address = server_address(server) if kind in ("http", "sse") else ""
        _bindings.bind(self)

    def release(self) -> None:
        """The registry was swapped or cleared: look circuits up anew."""
        self.plans = {}

    def offers(self) -> dict[str, tuple[str, ...]]:
        """What the answers of the tools called so far offer instead, by tool."""
        return {plan.name: plan.tool_site.alternatives for plan in list(self.plans.values())}

    def call_it(self, info: Any) -> None:
        """Without a transport, a server is called what it calls itself."""
        name = getattr(info, "name", None)
        if self.kind == "memory" and isinstance(name, str) and name:
            self.server = keys.display_safe(name)
            self.release()

    def saw(self, request_id: Any, exchange: Exchange) -> None:
        """A request has an answer, or has failed."""
        if exchange.error is not None:
            self.broken = self.broken or not _cancelled(exchange.error)
        elif exchange.response.status_code >= 300 and exchange.response.status_code != 404:
            self.refused = True
        call = self.waiting.get(request_id)
        if call is not None:
            call.exchanges[request_id] = exchange


def _cancelled(error: BaseException) -> bool:
    return not isinstance(error, Exception)


CALL: Final[ContextVar[Call | None]] = ContextVar("otel_breaker_mcp_call", default=None)
"""The call that runs in this task, or that is being judged."""

_links: Final[WeakKeyDictionary[Any, Link]] = WeakKeyDictionary()
"""Links by the stream that requests are written to; for a session without one of ours, by the session."""


def _anchor(stream: Any) -> Any:
    return getattr(stream, "_inner", stream)  # SDK 2.x: a thin wrapper that cannot be referenced weakly


def attach(stream: Any, link: Link) -> None:
    """From now on, what is written to this stream is this link's."""
    _links[_anchor(stream)] = link


def link_of_stream(stream: Any, url: str) -> Link:
    """The link of a transport's stream; a new one where the transport was entered before we were there."""
    found = _links.get(_anchor(stream))
    if found is None:
        found = for_url("http", url)
        attach(stream, found)
    return found


def link_of_session(session: Any) -> Link:
    """The link that this session speaks over."""
    dispatcher = getattr(session, "_dispatcher", None)
    stream = getattr(session if dispatcher is None else dispatcher, "_write_stream", None)
    found = None if stream is None else _links.get(_anchor(stream))
    found = found or _links.get(session)
    if found is None:
        found = _links[session] = Link("memory", UNKNOWN)
    if found.server is UNKNOWN:
        found.call_it(getattr(session, "server_info", None))
    return found


def for_url(kind: str, url: Any, headers: Any = None) -> Link:
    """The link to an HTTP endpoint. Of its path only a fingerprint is kept: gateways tell their servers apart by it.

    Args:
        kind: ``http`` or ``sse``.
        url: the endpoint.
        headers: those that will be sent, as far as they are known: they may hold the credential.
    """
    bare = str(url).partition("?")[0].partition("#")[0]
    scheme, _, rest = bare.partition("://")
    rest = rest.rpartition("@")[2]
    path = rest.partition("/")[2].strip("/")
    link = Link(kind, keys.dependency_of_url(bare) or UNKNOWN, digest(path) if path else "", f"{scheme}://{rest}")
    link.credential = keys.credential_of(headers or {}, str(url))
    return link


def for_program(parameters: Any) -> Link:
    """The link to a server process: named after its program, never after its other arguments."""
    command = str(getattr(parameters, "command", ""))
    args = [str(arg) for arg in getattr(parameters, "args", None) or ()]
    return Link("stdio", keys.display_safe(program(command, args)), digest("\0".join((command, *args))))
