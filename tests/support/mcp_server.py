"""An MCP server that fails in exact ways: the program. `mcp_process` starts it, gives it orders and reads its counts.

    python mcp_server.py http|json|sse DIRECTORY PORT
    python mcp_server.py stdio DIRECTORY

It is the SDK's own server (1.x or 2.x, whichever is installed) behind a shell that answers some requests in its place.
What to do stands in DIRECTORY/rules.json, what arrived in DIRECTORY/log; both outlive the process.

Where a rule fits a request (see `mcp_process.Notes.fault`), its ``mode`` is one of

    s<status>[_ra<seconds>]     that status, with a Retry-After; ``s<status>_rpc``: with a JSON-RPC error as its body
    rpc<code>                   200 with a JSON-RPC error of that code
    drop, cut, resume           reset without an answer; an SSE stream reset before the answer; one that can be resumed
    empty, junk                 an SSE stream that ends without an answer; one whose event is not JSON
    html, badjson, badshape     200 with a page; with half a document; with a result of another shape
    badschema, noschema         200 with structured content that violates the tool's schema; without any
    r202, redirect              202 to a request; 302 to another origin
    hang, hold                  no answer; an answer as soon as the test says so
    exit                        the process ends
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

try:
    from mcp import MCPError
    from mcp.server.mcpserver import MCPServer as Server
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # 1.x
    from mcp.server.fastmcp import FastMCP as Server  # type: ignore[no-redef]
    from mcp.server.fastmcp.exceptions import ToolError  # type: ignore[no-redef]

    MCPError = None  # type: ignore[assignment,misc]

HANG = 30.0
"""Seconds after which a request that is not to be answered is given up."""


class Orders:
    """What the test wants, and what the test will want to know."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self._log = os.open(self.directory / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._used: dict[str, int] = {}

    def note(self, *words: object) -> None:
        """One line of the log, whole even if several processes write."""
        os.write(self._log, (" ".join(str(word) for word in words) + "\n").encode())

    def arrived(self, message: dict[str, Any]) -> str:
        """Note one message; what to do with it (``ok``: nothing)."""
        method, params = message.get("method", "answer"), message.get("params") or {}
        tool, arguments = params.get("name", ""), params.get("arguments") or {}
        self.note(method, tool, arguments.get("mark", ""))
        for rule in self.rules():
            wanted = {"on": method, "tool": tool, "mark": arguments.get("mark")}
            if all(rule[name] in (None, value) for name, value in wanted.items()):
                used = self._used[rule["id"]] = self._used.get(rule["id"], 0) + 1
                if rule["times"] is None or used <= rule["times"]:
                    return str(rule["mode"])
        return "ok"

    def rules(self) -> list[dict[str, Any]]:
        """The orders of this moment."""
        try:
            found: list[dict[str, Any]] = json.loads((self.directory / "rules.json").read_text())
        except FileNotFoundError:
            return []
        return found

    async def released(self) -> None:
        """Until the test says so."""
        until = time.monotonic() + HANG
        while not (self.directory / "released").exists() and time.monotonic() < until:
            await asyncio.sleep(0.005)


def protocol_error(code: int) -> Exception:
    """What a tool raises to answer with a JSON-RPC error of that code."""
    if MCPError is not None:
        return MCPError(code, f"proto {code}", {"retryAfter": 5})
    from mcp.shared.exceptions import McpError
    from mcp.types import ErrorData

    return McpError(ErrorData(code=code, message=f"proto {code}", data={"retryAfter": 5}))


def make(orders: Orders | None = None, name: str = "faulty") -> Any:
    """The server with its tools."""
    server = Server(name)

    @server.tool()
    def add(a: int, b: int, mark: str = "") -> int:
        return a + b

    @server.tool()
    def boom() -> str:
        raise ValueError("secret upstream detail")

    @server.tool()
    def toolerr(text: str = "it did not work") -> str:
        raise ToolError(text)

    @server.tool()
    def protoerr(code: int) -> str:
        raise protocol_error(code)

    @server.tool()
    async def slow(s: float, mark: str = "") -> str:
        await asyncio.sleep(s)
        return "done"

    @server.tool()
    async def hold(mark: str = "") -> str:
        if orders is not None:
            await orders.released()
        return "done"

    @server.tool()
    def die() -> str:
        os._exit(3)

    return server


def stand_in(mode: str, request_id: object) -> tuple[int, bytes, str, dict[str, str]] | None:
    """The whole answer of a mode: status, body, content type, headers; ``None`` where it is not one answer."""

    def rpc(**content: object) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": request_id, **content}).encode()

    page, text, document, stream = "text/html", "text/plain", "application/json", "text/event-stream"
    if mode[:1] == "s" and mode[1:4].isdigit():
        status, option = int(mode[1:4]), mode[5:]
        headers = {"retry-after": option[2:]} if option.startswith("ra") else {}
        if status == 401:
            headers["www-authenticate"] = 'Bearer realm="x"'
        if option == "rpc":
            error = {"code": -32003, "message": f"no ({status})", "data": {"retryAfter": 7}}
            return status, rpc(error=error), document, headers
        return status, b"nope", text, headers
    if mode.startswith("rpc"):
        return 200, rpc(error={"code": int(mode[3:]), "message": "no", "data": None}), document, {}
    result = {"content": [], "resultType": "complete"}
    return {
        "empty": (200, b": hi\n\n", stream, {}),
        "junk": (200, b"event: message\ndata: {nope\n\n", stream, {}),
        "html": (200, b"<html>login</html>", page, {}),
        "badjson": (200, b"{nope", document, {}),
        "badshape": (200, rpc(result={"content": "not-a-list"}), document, {}),
        "badschema": (200, rpc(result=result | {"structuredContent": {"result": "NaN"}}), document, {}),
        "noschema": (200, rpc(result=result), document, {}),
        "r202": (202, b"", document, {}),
        "redirect": (302, b"", text, {"location": "http://localhost:1/login?secret=S3CRET"}),
    }.get(mode)


def shell(app: Any, orders: Orders, connections: Any) -> Any:
    """The ASGI application that answers in the place of ``app`` where a rule says so."""
    cut: list[object] = []

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        headers = scope.get("headers", ())
        if scope["type"] == "http" and scope["path"] == "/connections":
            await whole(send, 200, str(len(connections()) - 1).encode(), "text/plain", {})
        elif scope["type"] == "http" and (b"last-event-id", b"resume-1") in headers:
            result = {"content": [{"type": "text", "text": "3"}], "structuredContent": {"result": 3}}
            message = {"jsonrpc": "2.0", "id": cut.pop(), "result": result | {"resultType": "complete"}}
            event = f"event: message\ndata: {json.dumps(message)}\n\n"
            await whole(send, 200, event.encode(), "text/event-stream", {})
        elif scope["type"] == "http" and scope["method"] == "POST":
            await post(scope, receive, send)
        else:
            await app(scope, receive, send)

    async def post(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            piece = await receive()
            body, more = body + piece.get("body", b""), piece.get("more_body", False)
        read = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Any:
            return next(read, None) or await receive()

        message = json.loads(body)
        mode = orders.arrived(message)
        answer = stand_in(mode, message.get("id"))
        if mode == "hold":
            await orders.released()
        if mode in ("ok", "hold"):
            await app(scope, again, send)
        elif answer is not None:
            await whole(send, *answer)
        elif mode == "exit":
            os._exit(3)
        elif mode == "hang":
            await asyncio.wait_for(receive(), HANG)
        elif mode in ("cut", "resume"):
            await begin(send, 200, "text/event-stream", {})
            first = b"id: resume-1\nretry: 10\ndata: \n\n" if mode == "resume" else b": hi\n\n"
            cut.append(message.get("id"))
            await send({"type": "http.response.body", "body": first, "more_body": True})
            await asyncio.sleep(0.05)  # surely read
            send.__self__.transport.abort()
        else:
            assert mode == "drop", mode
            send.__self__.transport.abort()

    async def begin(send: Any, status: int, kind: str, headers: dict[str, str]) -> None:
        named = [(name.encode(), value.encode()) for name, value in {"content-type": kind, **headers}.items()]
        await send({"type": "http.response.start", "status": status, "headers": named})

    async def whole(send: Any, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        await begin(send, status, kind, headers)
        await send({"type": "http.response.body", "body": body})

    return asgi


def serve(kind: str, orders: Orders, port: int) -> None:
    """Serve HTTP until somebody ends the process."""
    import uvicorn

    server = make(orders)
    if kind == "sse":
        app = server.sse_app()
    elif kind == "http":
        app = server.streamable_http_app()
    elif MCPError is not None:
        app = server.streamable_http_app(json_response=True)
    else:
        server.settings.json_response = True
        app = server.streamable_http_app()
    config = uvicorn.Config(shell(app, orders, lambda: running.server_state.connections), log_level="critical")
    config.host, config.port = "127.0.0.1", port
    running = uvicorn.Server(config)
    running.run()


class Tee(io.TextIOWrapper):
    """Standard input that notes each message before the server reads it."""

    orders: Orders

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        line = super().readline(size)
        if line and self.orders.arrived(json.loads(line)) == "exit":
            os._exit(3)
        return line


def talk(orders: Orders) -> None:
    """Serve standard input and output."""
    import anyio
    from mcp.server.stdio import stdio_server

    server = make(orders)
    inner = server._lowlevel_server if MCPError is not None else server._mcp_server
    stdin = Tee(sys.stdin.buffer, encoding="utf-8")
    stdin.orders = orders

    async def run() -> None:
        async with stdio_server(anyio.wrap_file(stdin)) as (read, write):
            await inner.run(read, write, inner.create_initialization_options())

    anyio.run(run)


if __name__ == "__main__":
    orders = Orders(sys.argv[2])
    orders.note("spawn", os.getpid())
    if sys.argv[1] == "stdio":
        talk(orders)
    else:
        serve(sys.argv[1], orders, int(sys.argv[3]))
