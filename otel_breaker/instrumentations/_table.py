"""The one table of everything we patch. A library is a few rows here and one small module with its wrappers.

The attributes are ones that the official OpenTelemetry instrumentors leave alone, so that neither the order of the two
nor their ``uninstrument()`` moves us (docs/libraries/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Target:
    """One attribute to wrap.

    Attributes:
        library: the name in ``instrumentations`` and in ``doctor``.
        module: the module whose import is waited for.
        attribute: path inside the module, ``Class.method``; or ``other.module:Class.method``, which that import brings.
        wrapper: ``module:function`` of ours, a wrapt wrapper ``(wrapped, instance, args, kwargs)``.
        distribution: whose version is checked.
        versions: the first version that is supported, and the first that is not.
        optional: a private attribute: where it is missing, only retries and redirects inside a call go unwatched.
        only: the releases that have this attribute, where not all supported ones do; in others the row is passed over.
    """

    library: str
    module: str
    attribute: str
    wrapper: str
    distribution: str
    versions: tuple[str, str]
    optional: bool = False
    only: tuple[str, str] | None = None


def _rows(
    library: str, versions: tuple[str, str], *rows: tuple[str, str, str, bool], distribution: str | None = None
) -> tuple[Target, ...]:
    """The rows of one library: module, attribute, our function, optional."""
    ours = f"otel_breaker.instrumentations.{library}"
    return tuple(
        Target(library, module, attribute, f"{ours}:{function}", distribution or library, versions, optional)
        for module, attribute, function, optional in rows
    )


def _httpx(library: str, versions: tuple[str, str]) -> tuple[Target, ...]:
    """The rows of httpx and of httpx2, which have the same two layers, each sync and async."""
    return _rows(
        library,
        versions,
        (library, "Client.send", "client_send", False),
        (library, "AsyncClient.send", "async_client_send", False),
        (library, "Client._send_single_request", "client_hop", True),
        (library, "AsyncClient._send_single_request", "async_client_hop", True),
    )


def _mcp() -> tuple[Target, ...]:
    """The rows of mcp. A function that other modules of it took by name is a row for each of them."""
    versions, old, new = ("1.22", "3"), ("1", "2"), ("2", "3")

    def row(module: str, attribute: str, function: str, only: Any = None, optional: bool = False) -> Target:
        wrapper = f"otel_breaker.instrumentations.mcp:{function}"
        return Target("mcp", f"mcp{module}", attribute, wrapper, "mcp", versions, optional, only)

    transport = ".client.streamable_http"
    return (
        row(".client.session", "ClientSession.call_tool", "call_tool"),
        row(".client.session", "ClientSession.send_request", "send_request", optional=True),
        row(".client.session", "ClientSession.initialize", "initialize"),
        row(".client.session", "ClientSession.send_discover", "discover", new, optional=True),
        row(transport, "StreamableHTTPTransport.post_writer", "post_writer", optional=True),
        row(transport, "StreamableHTTPTransport.handle_get_stream", "quietly", optional=True),
        row(transport, "StreamableHTTPTransport.terminate_session", "quietly", optional=True),
        row(transport, "streamable_http_client", "connect_http", ("1.24", "3")),
        row(transport, "streamablehttp_client", "connect_http", old),
        row(".client.websocket", "websocket_client", "connect_http", old),
        row(".client.sse", "sse_client", "connect_sse"),
        row(".client.stdio", "stdio_client", "connect_stdio"),
        row("", "stdio_client", "connect_stdio"),
        row(".client.client", "stdio_client", "connect_stdio", new),
        row(".client.client", "streamable_http_client", "connect_http", new),
        row(".client.session_group", "sse_client", "connect_sse"),
        row(".client.session_group", "streamable_http_client", "connect_http", ("1.24", "3")),
        row(".client.session_group", "streamablehttp_client", "connect_http", ("1", "1.24")),
    )


TARGETS: Final[tuple[Target, ...]] = (
    *_rows(
        "requests",
        ("2.20", "3"),
        ("requests.sessions", "Session.request", "session_request", False),
        ("requests.adapters", "HTTPAdapter.send", "adapter_send", False),
        # urllib3 is only watched below requests: where nobody imports requests, it is left alone.
        ("requests.adapters", "urllib3.connectionpool:HTTPConnectionPool._make_request", "urllib3_try", True),
        ("requests.adapters", "urllib3.util.retry:Retry.sleep", "urllib3_sleep", True),
    ),
    *_httpx("httpx", ("0.23", "1")),
    *_httpx("httpx2", ("2.0", "3")),
    *_mcp(),
    *_rows(
        "langchain",
        ("0.3", "2"),
        ("langchain_core.tools.base", "BaseTool.run", "run", False),
        ("langchain_core.tools.base", "BaseTool.arun", "arun", False),
        ("langchain_core.tools.base", "_handle_tool_error", "handled", True),
        ("langchain_core.tools.base", "_handle_validation_error", "handled", True),
        distribution="langchain-core",
    ),
)
