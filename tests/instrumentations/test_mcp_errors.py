"""Every way in which an MCP call fails: which circuit is told what, and that the caller sees what it always saw.

Each row runs twice, without us and with us. What differs between the two lines of the SDK is data of the row.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from otel_breaker._registry import Registry
from otel_breaker.instrumentations import _patch
from tests.support.counts import names
from tests.support.mcp_client import (
    LINE,
    Opening,
    Seen,
    Session,
    once,
    open_client,
    open_http,
    open_memory,
    open_sse,
    open_stdio,
    seconds,
)
from tests.support.mcp_process import DeadCommand, HttpServer, Notes, StdioServer
from tests.support.mcp_told import told_of

SUM = {"a": 1, "b": 2}
SHORT = 0.5
"""Time-out of a call that is to time out."""
LONG = 15.0

NO_ERROR = '{"content": [{"text": "3", "type": "text"}], "isError": false'


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        fault: what the server does (see `mcp_server`); ``ok`` leaves the call to the tool.
        old, new: how what the caller sees begins, in SDK 1.x and 2.x; ``new`` is ``old`` where it is empty.
        server, tool: what is counted there.
        server_in_old, tool_in_old: what is counted in 1.x, where that differs.
        tool_name, arguments: the call.
        waits: the lines on which the caller waits for its whole time-out.
    """

    fault: str
    old: str
    new: str
    server: str
    tool: str
    server_in_old: str = ""
    tool_in_old: str = ""
    tool_name: str = "add"
    arguments: Mapping[str, Any] = field(default_factory=lambda: SUM)
    waits: tuple[int, ...] = ()

    @property
    def seen(self) -> str:
        return self.old if LINE == 1 else self.new or self.old

    @property
    def of_server(self) -> str:
        return (LINE == 1 and self.server_in_old) or self.server

    @property
    def of_tool(self) -> str:
        return (LINE == 1 and self.tool_in_old) or self.tool

    @property
    def timeout(self) -> float:
        return SHORT if LINE in self.waits else LONG


CANCELLED = "CancelledError: Cancelled via cancel scope"
HTTP_ERROR = "MCPError(-32603, None): Server returned an error response"
TIMED_OUT = ("McpError(408, None): Timed out while waiting", "MCPError(-32001, None): Request 'tools/call' timed out")


def status(
    code: int, server: str, option: str = "", old: str = CANCELLED, new: str = HTTP_ERROR, fault: str = ""
) -> Row:
    """An HTTP status in the place of an answer: 1.x tears the session down, 2.x hides which one it was."""
    return Row(fault or f"s{code}{option}", old, new, server, "neutral")


def malformed(fault: str, new: str, reason: str = "malformed_output", old: str = "") -> Row:
    """A body that is no answer: 1.x does not notice and waits on."""
    server_in_old = old and f"failure:{old}"
    return Row(fault, TIMED_OUT[0], new, f"failure:{reason}", "neutral", server_in_old=server_in_old, waits=(1,))


def said_no(tool: str, old: str, outcome: str, new: str = "", **arguments: Any) -> Row:
    """A result with ``isError``."""
    begin = '{"content": [{"text": "'
    return Row("ok", begin + old, begin + (new or old), "success", outcome, tool_name=tool, arguments=arguments)


def protocol(code: int, outcome: str) -> list[Row]:
    """A JSON-RPC error, from the wire and from the tool; a server of 1.x flattens the second to ``isError``."""
    text = '{"content": [{"text": "Error executing tool protoerr: proto '
    return [
        Row(f"rpc{code}", f"McpError({code}, None): no", f"MCPError({code}, None): no", "success", outcome),
        Row(
            "ok",
            f"{text}{code}",
            f"MCPError({code}, {{'retryAfter': 5}}): proto {code}",
            "success",
            outcome,
            tool_in_old="failure:unclassified",
            tool_name="protoerr",
            arguments={"code": code},
        ),
    ]


HTTP: dict[str, Row] = {
    "ok": Row("ok", NO_ERROR, "", "success", "success"),
    "tool raises": said_no(
        "boom",
        "Error executing tool boom: secret upstream detail",
        "failure:unclassified",
        'Error executing tool boom"',
    ),
    "tool says what it likes": said_no("toolerr", "Error executing tool toolerr: it did not", "failure:unclassified"),
    "tool says timed out": said_no(
        "toolerr", "Error executing tool toolerr: request timed out", "failure:timeout", text="request timed out"
    ),
    "tool says 503": said_no(
        "toolerr",
        "Error executing tool toolerr: 503 Server Error",
        "failure:server_error",
        text="503 Server Error: Service Unavailable for url",
    ),
    "tool says connection refused": said_no(
        "toolerr",
        "Error executing tool toolerr: connection",
        "failure:connection_refused",
        text="connection refused",
    ),
    "unknown tool": said_no("nosuch", "Unknown tool: nosuch", "neutral"),
    "bad arguments": said_no("add", "Error executing tool add: 2 validation errors", "neutral", a="x"),
    **{
        f"protocol error {code} {'from the tool' if row.fault == 'ok' else 'on the wire'}": row
        for code, outcome in (
            (-32601, "neutral"),
            (-32602, "neutral"),
            (-32603, "failure:server_error"),
            (-32050, "failure:unclassified"),
        )
        for row in protocol(code, outcome)
    },
    "400": status(400, "neutral"),
    "401": status(401, "unauthorized"),
    "403": status(403, "neutral"),
    "403 with a JSON-RPC error": status(403, "neutral", "_rpc", new="MCPError(-32003, {'retryAfter': 7}): no (403)"),
    "404": status(
        404,
        "neutral",
        old="McpError(32600, None): Session terminated",
        new="MCPError(-32600, None): Session terminated",
    ),
    "408": status(408, "failure:timeout"),
    "429": status(429, "throttled", "_ra7"),
    "429 with a JSON-RPC error": status(429, "throttled", "_rpc", new="MCPError(-32003, {'retryAfter': 7}): no (429)"),
    "500": status(500, "failure:server_error"),
    "502": status(502, "failure:server_error"),
    "503": status(503, "failure:server_error"),
    "503 with a Retry-After": status(503, "failure:server_error", "_ra7"),
    "504": status(504, "failure:server_error"),
    "529": status(529, "failure:overloaded"),
    "reset": Row("drop", CANCELLED, "", "failure:connection_reset", "neutral"),
    "SSE cut": malformed("cut", "MCPError(-32000, None): SSE stream ended without a response", "truncated_output"),
    "SSE cut and resumed": Row("resume", NO_ERROR, "", "success", "success"),
    "SSE without an answer": malformed(
        "empty", "MCPError(-32000, None): SSE stream ended without a response", "truncated_output"
    ),
    "SSE with junk": malformed("junk", "MCPError(-32700, None): Failed to parse SSE message", old="truncated_output"),
    "text/html": malformed("html", "MCPError(-32600, None): Unexpected content type: text/html"),
    "invalid JSON": malformed("badjson", "MCPError(-32700, None): Failed to parse JSON response"),
    "202": malformed("r202", "MCPError(-32600, None): server answered a request with 202 Accepted"),
    "redirect": Row(
        "redirect",
        CANCELLED,
        "MCPError(-32600, None): Redirect to http://localhost:1/login not followed",
        "neutral",
        "neutral",
    ),
    "wrong shape": Row(
        "badshape", "ValidationError: 1 validation error for CallToolResult", "", "success", "failure:malformed_output"
    ),
    "structured content violates the schema": Row(
        "badschema",
        "RuntimeError: Invalid structured content returned by tool add",
        "",
        "success",
        "failure:malformed_output",
    ),
    "structured content is missing": Row(
        "noschema",
        "RuntimeError: Tool add has an output schema but did not return structured content",
        "",
        "success",
        "failure:malformed_output",
    ),
    "no answer in time": Row("hang", *TIMED_OUT, "neutral", "failure:timeout", waits=(1, 2)),
    "a slow tool": Row(
        "ok", *TIMED_OUT, "neutral", "failure:timeout", tool_name="slow", arguments={"s": 3}, waits=(1, 2)
    ),
}


def twice(registry: Registry, row: Row, opened: Callable[[], Opening], server: Notes | None = None) -> Seen:
    """Run a row without us, then with us: the same is seen. What is seen, the second time."""

    def run() -> Seen:
        if server is not None:
            server.heal()
        order = (lambda: None) if server is None or row.fault == "ok" else lambda: server.fault(row.fault)
        return asyncio.run(once(opened(), row.tool_name, row.arguments, row.timeout, order))

    _patch.remove()
    plain = run()
    assert plain.call.startswith(row.seen)
    assert names(registry) == []
    _patch.enable()
    guarded = run()
    assert guarded == plain
    return guarded


def judged(registry: Registry, row: Row, name: str) -> None:
    """The server's circuit, the tool's and the connection's were told what they should be, and there is no other."""
    assert told_of(registry, name) == [row.of_server]
    assert told_of(registry, f"{name}/{row.tool_name}") == [row.of_tool]
    assert told_of(registry, f"{name}#connect") == ["success"]
    assert names(registry) == [name, f"{name}#connect", f"{name}/{row.tool_name}"]


@pytest.mark.parametrize("name", HTTP)
def test_streamable_http(name: str, mcp_patched: Registry, mcp_http: HttpServer) -> None:
    row = HTTP[name]
    twice(mcp_patched, row, lambda: open_http(mcp_http), mcp_http)
    judged(mcp_patched, row, mcp_http.name)
    assert mcp_http.hits == 2


@pytest.mark.parametrize("name", ["ok", "tool raises", "503", "reset", "invalid JSON", "no answer in time"])
def test_streamable_http_that_answers_in_json(name: str, mcp_patched: Registry, mcp_json: HttpServer) -> None:
    row = HTTP[name]
    twice(mcp_patched, row, lambda: open_http(mcp_json), mcp_json)
    judged(mcp_patched, row, mcp_json.name)


# Through `mcp.Client` 2.x speaks the newest protocol, without a session on the server.
CLIENT: dict[str, Row] = {
    **{name: HTTP[name] for name in ("ok", "tool raises", "unknown tool", "401", "429", "503", "reset", "SSE cut")},
    **{name: HTTP[name] for name in ("text/html", "invalid JSON", "202", "no answer in time")},
    "wrong shape": replace(HTTP["wrong shape"], new="ValidationError: 3 validation errors for union[CallToolResult"),
    "404": status(
        404, "neutral", old="McpError(32600, None): Session terminated", new="MCPError(-32601, None): Not Found"
    ),
}


@pytest.mark.parametrize("name", CLIENT)
def test_client(name: str, mcp_patched: Registry, mcp_http: HttpServer) -> None:
    row = CLIENT[name]
    twice(mcp_patched, row, lambda: open_client(mcp_http), mcp_http)
    judged(mcp_patched, row, mcp_http.name)


@pytest.mark.parametrize(
    ("fault", "server", "tool"),
    [
        ("s503", "failure:server_error", "neutral"),
        ("s401", "unauthorized", "neutral"),
        ("drop", "failure:connection_reset", "neutral"),
        ("html", "failure:malformed_output", "neutral"),
    ],
)
def test_a_fault_of_the_list_that_a_call_asks_for(
    fault: str, server: str, tool: str, mcp_patched: Registry, mcp_http: HttpServer
) -> None:
    """``call_tool`` fetches the tool's schema by itself, after the answer; that request is the call's as well."""
    mcp_http.fault(fault, on="tools/list")

    async def run() -> None:
        with contextlib.suppress(BaseException):
            async with open_http(mcp_http) as session:
                await session.call_tool("add", SUM, read_timeout_seconds=seconds(SHORT))

    # In 1.x the list has no time-out of the call's: a body that is no answer is waited for without end.
    if (LINE, fault) != (1, "html"):
        asyncio.run(run())
        assert told_of(mcp_patched, mcp_http.name) == [server]
        assert told_of(mcp_patched, f"{mcp_http.name}/add") == [tool]
        assert (mcp_http.hits, mcp_http.count("tools/list")) == (1, 1)


def test_a_server_that_exits_during_the_call(mcp_patched: Registry) -> None:
    row = Row("ok", TIMED_OUT[0], "MCPError(-32000, None): SSE stream ended without a response", "", "", waits=(1,))
    with HttpServer() as server:
        seen = asyncio.run(once(open_http(server), "die", {}, SHORT))
    assert seen.call.startswith(row.seen)
    assert told_of(mcp_patched, server.name) == ["failure:truncated_output"]
    assert told_of(mcp_patched, f"{server.name}/die") == ["neutral"]


def test_a_server_that_exits_before_it_answers(mcp_patched: Registry) -> None:
    with HttpServer("json") as server:
        seen = asyncio.run(once(open_http(server), "die", {}, LONG))
    assert seen.call == CANCELLED
    assert "RemoteProtocolError: Server disconnected without sending a response." in seen.left
    assert told_of(mcp_patched, server.name) == ["failure:connection_reset"]
    assert told_of(mcp_patched, f"{server.name}/die") == ["neutral"]


def test_a_server_that_has_gone(mcp_patched: Registry) -> None:
    """What the caller sees depends on how far the transport has got; what is counted does not."""
    with HttpServer() as server:
        seen = asyncio.run(once(open_http(server), "add", SUM, LONG, server.kill))
    assert seen.call.startswith((CANCELLED, "ClosedResourceError", "MCPError(-32000, None): Connection closed"))
    assert told_of(mcp_patched, server.name) == ["failure:connection_refused"]
    assert told_of(mcp_patched, f"{server.name}/add") == ["neutral"]


@pytest.mark.parametrize(("kind", "opened"), [("http", open_http), ("sse", open_sse)])
def test_refused_at_connect(kind: str, opened: Callable[[HttpServer], Opening], mcp_patched: Registry) -> None:
    with HttpServer(kind) as server:
        server.kill()
        _patch.remove()
        plain = asyncio.run(once(opened(server), "add", SUM))
        assert "ConnectError: All connection attempts failed" in plain.left
        _patch.enable()
        assert asyncio.run(once(opened(server), "add", SUM)) == plain
    assert told_of(mcp_patched, f"{server.name}#connect") == ["failure:connection_refused"]
    assert names(mcp_patched) == [f"{server.name}#connect"]


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("s401", "unauthorized"),
        ("s403", "neutral"),
        ("s429_ra60", "throttled"),
        ("s503", "failure:server_error"),
        ("drop", "failure:connection_reset"),
        ("exit", "failure:connection_reset"),
        ("rpc-32602", "neutral"),
    ],
)
def test_a_fault_at_connect(fault: str, outcome: str, mcp_patched: Registry) -> None:
    with HttpServer() as server:
        server.fault(fault, on="initialize")
        _patch.remove()
        plain = asyncio.run(once(open_http(server), "add", SUM))
        _patch.enable()
        if fault == "exit":
            server.wait()
            server.start()
        assert asyncio.run(once(open_http(server), "add", SUM)) == plain
        assert plain.left != ""
        assert (server.connects, server.hits) == (2, 0)
    assert told_of(mcp_patched, f"{server.name}#connect") == [outcome]
    assert names(mcp_patched) == [f"{server.name}#connect"]


# --- HTTP+SSE ---------------------------------------------------------------------------------------------------------

SSE: dict[str, Row] = {
    "ok": HTTP["ok"],
    "tool raises": HTTP["tool raises"],
    # No error reaches the caller: it waits for its whole time-out.
    "401": Row("s401", *TIMED_OUT, "unauthorized", "neutral", waits=(1, 2)),
    "403": Row("s403", *TIMED_OUT, "neutral", "neutral", waits=(1, 2)),
    "429": Row("s429_ra60", *TIMED_OUT, "throttled", "neutral", waits=(1, 2)),
    "503": Row("s503", *TIMED_OUT, "failure:server_error", "neutral", waits=(1, 2)),
    "reset": Row("drop", *TIMED_OUT, "failure:connection_reset", "neutral", waits=(1, 2)),
    "a slow tool": HTTP["a slow tool"],
}


@pytest.mark.parametrize("name", SSE)
def test_http_with_sse(name: str, mcp_patched: Registry, mcp_sse: HttpServer) -> None:
    row = SSE[name]
    twice(mcp_patched, row, lambda: open_sse(mcp_sse), mcp_sse)
    judged(mcp_patched, row, mcp_sse.name)


def test_http_with_sse_whose_post_hangs(mcp_patched: Registry, mcp_sse: HttpServer) -> None:
    """2.x waits another 5 s for its own notice of cancellation to be sent; we add nothing and blame the tool."""
    seen = asyncio.run(once(open_sse(mcp_sse), "add", SUM, SHORT, lambda: mcp_sse.fault("hang")))
    assert seen.call.startswith(TIMED_OUT[LINE - 1])
    assert told_of(mcp_patched, mcp_sse.name) == ["neutral"]
    assert told_of(mcp_patched, f"{mcp_sse.name}/add") == ["failure:timeout"]


def test_http_with_sse_whose_server_is_killed(mcp_patched: Registry) -> None:
    with HttpServer("sse") as server:
        seen = asyncio.run(once(open_sse(server), "die", {}, LONG))
    assert "(-32000, None): Connection closed" in seen.call
    assert told_of(mcp_patched, server.name) == ["failure:connection_reset"]
    assert told_of(mcp_patched, f"{server.name}/die") == ["neutral"]


# --- stdio ------------------------------------------------------------------------------------------------------------

CLOSED = Row(
    "ok",
    "McpError(-32000, None): Connection closed",
    "MCPError(-32000, None): Connection closed",
    "failure:connection_reset",
    "neutral",
    tool_name="die",
    arguments={},
)
STDIO: dict[str, Row] = {
    "ok": HTTP["ok"],
    "tool raises": HTTP["tool raises"],
    "unknown tool": HTTP["unknown tool"],
    "the server dies": CLOSED,
    "a slow tool": Row(
        "ok", *TIMED_OUT, "neutral", "failure:timeout", tool_name="slow", arguments={"s": 1}, waits=(1, 2)
    ),
}


@pytest.mark.parametrize("name", STDIO)
def test_stdio(name: str, mcp_patched: Registry, mcp_stdio: StdioServer) -> None:
    row = STDIO[name]
    twice(mcp_patched, row, lambda: open_stdio(mcp_stdio))
    judged(mcp_patched, row, mcp_stdio.name)
    assert (mcp_stdio.spawns, mcp_stdio.connects, mcp_stdio.hits) == (2, 2, 2)


def test_a_call_right_after_the_process_died(mcp_patched: Registry, mcp_stdio: StdioServer) -> None:
    """The client has not noticed yet. 1.x may tear the session down, as a cancel that is not the caller's."""
    seen = asyncio.run(once(open_stdio(mcp_stdio), "add", SUM, LONG, mcp_stdio.kill))
    assert seen.call.startswith((CANCELLED, "McpError(-32000", "MCPError(-32000", "ClosedResourceError"))
    (outcome,) = told_of(mcp_patched, mcp_stdio.name)
    assert outcome in ("failure:connection_reset", "failure:connection_error")
    assert told_of(mcp_patched, f"{mcp_stdio.name}/add") == ["neutral"]


def test_the_next_call_on_a_dead_pipe(mcp_patched: Registry, mcp_stdio: StdioServer) -> None:
    """Nothing can be sent any more: the server's fault, as often as it is tried."""
    raised: list[str] = []

    async def again(session: Session) -> None:
        try:
            await session.call_tool("add", SUM)
        except Exception as error:
            raised.append(type(error).__name__)

    asyncio.run(once(open_stdio(mcp_stdio), "die", {}, LONG, after=again))
    assert raised == [{1: "ClosedResourceError", 2: "MCPError"}[LINE]]
    assert told_of(mcp_patched, mcp_stdio.name)[0] == "failure:connection_reset"
    assert [outcome.partition(":")[0] for outcome in told_of(mcp_patched, mcp_stdio.name)] == ["failure", "failure"]
    assert told_of(mcp_patched, f"{mcp_stdio.name}/add") == ["neutral"]


def test_no_such_command(mcp_patched: Registry) -> None:
    with DeadCommand() as command:
        command.command = "/nonexistent/server"
        _patch.remove()
        plain = asyncio.run(once(open_stdio(command), "add", SUM))
        _patch.enable()
        assert plain.left == "FileNotFoundError: [Errno 2] No such file or directory: '/nonexistent/server'"
        assert asyncio.run(once(open_stdio(command), "add", SUM)) == plain
    assert told_of(mcp_patched, "mcp:server#connect") == ["failure:connection_error"]
    assert names(mcp_patched) == ["mcp:server#connect"]


def test_a_command_that_exits_at_once(mcp_patched: Registry) -> None:
    with DeadCommand() as command:
        seen = asyncio.run(once(open_stdio(command), "add", SUM))
        assert command.spawns == 1
    assert seen.call == ""
    assert "Connection closed" in seen.left or "BrokenResourceError" in seen.left
    (outcome,) = told_of(mcp_patched, "mcp:sh#connect")
    assert outcome in ("failure:connection_reset", "failure:connection_error")  # read first, or written first
    assert names(mcp_patched) == ["mcp:sh#connect"]


# --- in memory --------------------------------------------------------------------------------------------------------

MEMORY: dict[str, Row] = {
    **{name: HTTP[name] for name in ("tool raises", "tool says timed out", "unknown tool", "bad arguments")},
    "ok": HTTP["ok"],
    "a slow tool": HTTP["a slow tool"],
    "protocol error": HTTP["protocol error -32603 from the tool"],
}


@pytest.mark.parametrize("legacy", [False, True], ids=["direct", "streams"])
@pytest.mark.parametrize("name", MEMORY)
def test_in_memory(name: str, legacy: bool, mcp_patched: Registry) -> None:
    row = MEMORY[name]

    def run() -> Seen:
        return asyncio.run(once(open_memory(legacy=legacy), row.tool_name, row.arguments, row.timeout))

    _patch.remove()
    plain = run()
    _patch.enable()
    assert run() == plain
    assert told_of(mcp_patched, "mcp:faulty") == [row.of_server]
    assert told_of(mcp_patched, f"mcp:faulty/{row.tool_name}") == [row.of_tool]
