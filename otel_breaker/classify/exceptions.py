"""Exceptions -> Outcome, by class name over the whole cause chain; entered only when a guarded call has failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from otel_breaker.outcomes import ABORTED, CANCELLED, FAILURE, IGNORED, SUCCESS, Outcome

from . import _names
from ._chain import class_names, leaves, text_of, walk
from ._names import Evidence, Rank
from ._provider import provider_outcome
from ._safe import say
from .codes import DENIALS
from .texts import text_outcome

_TOOL_ERROR: Final = Outcome(FAILURE, "tool_error")
_UNCLASSIFIED: Final = Outcome(FAILURE, "unclassified")

_WIRE: Final = frozenset(
    {
        "httpx.RemoteProtocolError",
        "httpcore.RemoteProtocolError",
        "h11.RemoteProtocolError",
        "urllib3.ProtocolError",
        "requests.ChunkedEncodingError",
        "niquests.ChunkedEncodingError",
        "aiohttp.ClientPayloadError",
        "aiohttp.TransferEncodingError",
    }
)
_CUT_OFF: Final = ("complete message body", "incomplete chunked read", "ended prematurely", "Not enough data")
_HUNG_UP: Final = ("Server disconnected", "ConnectionTerminated", "StreamReset")
_MCP: Final = frozenset({"mcp.McpError", "mcp.MCPError", "fastmcp.ToolError"})
_OPAQUE: Final = _MCP | {
    "langchain_core.ToolException",
    "httpx.ConnectError",
    "redis.ConnectionError",
    "psycopg.OperationalError",
    "psycopg2.OperationalError",
}
_CLOSED: Final = (
    "client has been closed",
    "Session is closed",
    "Connector is closed",
    "loop is closed",
    "closed channel",
    "client instance more than once",
    "client instance, once it has been closed",
)
_BAD_RESULT: Final = ("Invalid structured content", "did not return structured content")  # the MCP client's validation


def exception_outcome(
    exc: BaseException,
    *,
    stop: BaseException | None = None,
    seen: Outcome | None = None,
    tool: bool = False,
    called: bool = False,
    unclassified: Literal["failure", "neutral"] = "failure",
    wall: float | None = None,
) -> Outcome:
    """What the exception that ended a guarded call says about the dependency.

    The first category found anywhere in the cause chain decides: transport and TLS, malformed output, HTTP status or
    provider code, argument errors, permission errors, unclassified. Own saturation, misuse of a client, redirect loops,
    refusals by a circuit below, and cancellation are neutral or cancelled.

    Args:
        exc: the exception, or a group of them.
        stop: the exception that was already being handled when the guard was entered; the walk ends there.
        seen: outcome of the last attempt below, taken as the status where the exception shows none.
        tool: the guarded code is a tool's body; what nothing explains is then ``tool_error``, else ``unclassified``.
        called: a guarded call or attempt was made inside before. ValueError and TypeError are then no argument errors,
            and a failed validation is one of the output.
        unclassified: ``neutral`` to ignore what nothing explains.
        wall: now in epoch seconds, for Retry-After dates; the system clock if ``None``.

    Never raises: an exception that cannot be inspected is one that nothing explains, and that is logged once.
    """
    last = IGNORED if unclassified == "neutral" else _TOOL_ERROR if tool else _UNCLASSIFIED
    try:
        if (ended := _ended(exc)) is not None:
            return ended
        found = [e for link in walk(exc, stop) for e in _evidence(link, wall)]
        if seen is not None and seen.kind not in (SUCCESS, CANCELLED):
            found.append(Evidence(Rank.SEEN_ANSWER if seen.answered else Rank.SEEN, seen))
        found = [known for e in found if (known := _after_a_call(e) if called else e) is not None]
        return min(found, key=lambda e: e.rank).outcome if found else last
    except Exception:  # the caller's exception matters, not ours
        say("exception", "an exception of type %s cannot be classified", type(exc).__name__)
        return last


def _ended(exc: BaseException) -> Outcome | None:
    """For cancellation and the interpreter's own ways to leave a call; an error beside them in a group counts."""
    inner = leaves(exc)
    if any(isinstance(leaf, (KeyboardInterrupt, SystemExit, GeneratorExit)) for leaf in inner):
        return IGNORED
    if inner and all(not _names.CANCELLED.isdisjoint(class_names(type(leaf))) for leaf in inner):
        return ABORTED
    return None


def _after_a_call(evidence: Evidence) -> Evidence | None:
    if evidence.rank is Rank.ARGUMENT:
        return None
    return _names.MALFORMED if evidence.rank is Rank.VALIDATION else evidence


def _evidence(link: BaseException, wall: float | None) -> Iterator[Evidence]:
    """All that one exception says."""
    names, text = class_names(type(link)), text_of(link)
    by_text = _by_text(names, text)
    if by_text is not None:
        yield by_text
    elif (by_class := _by_class(names)) is not None:
        yield by_class
    if isinstance(link, OSError) and isinstance(link.errno, int) and link.errno in _names.BY_ERRNO:
        yield _names.BY_ERRNO[link.errno]
    if "asyncio.CancelledError" in names and _waited_for_connector(link):
        yield _names.LOCAL
    if (provided := provider_outcome(link, names, text, wall)) is not None:
        yield _ranked(provided, names)


def _ranked(outcome: Outcome, names: list[str]) -> Evidence:
    """Evidence from a text, status or code, at the rank of its reason."""
    other = Rank.STATUS if _MCP.isdisjoint(names) else Rank.RPC
    return Evidence(_names.BY_REASON.get(outcome.reason or "", other), outcome)


def _by_class(names: list[str]) -> Evidence | None:
    """The most derived class that the table knows."""
    for name in names:
        if (evidence := _names.BY_NAME.get(name)) is not None:
            return evidence
        own = name.rpartition(".")[2]
        if _names.TIMEOUT_NAME.search(own):
            return _names.TIMEOUT
        denial = own.lower().replace("_", "")
        if denial in DENIALS or denial.removesuffix("error").removesuffix("exception") in DENIALS:
            return _names.PERMISSION
    return None


def _by_text(names: list[str], text: str) -> Evidence | None:
    """Classes that mean several things, told apart by the library's own fixed words."""
    if not _WIRE.isdisjoint(names):
        if any(words in text for words in _HUNG_UP):
            return _names.RESET
        return _names.TRUNCATED if any(words in text for words in _CUT_OFF) else None
    if "urllib3.InvalidChunkLength" in names:
        return _names.TRUNCATED if "got length b''" in text else _names.MALFORMED
    if "urllib3.ResponseError" in names and "too many redirects" in text:
        return _names.LOCAL
    if any(words in text for words in _CLOSED) and names[0] in (
        "builtins.RuntimeError",
        "builtins.ValueError",
        "aiohttp.ClientConnectionError",
    ):
        return _names.LOCAL
    if names[0] == "builtins.RuntimeError" and any(words in text for words in _BAD_RESULT):
        return _names.MALFORMED
    if not _OPAQUE.isdisjoint(names) and (found := text_outcome(text)) is not None:
        return _ranked(found, names)
    return None


def _waited_for_connector(link: BaseException) -> bool:
    """Whether aiohttp cancelled this call while it waited for a free connection of its own pool."""
    deepest, frame = "", link.__traceback__
    while frame is not None:
        if frame.tb_frame.f_globals.get("__name__") == "aiohttp.connector":
            deepest = frame.tb_frame.f_code.co_name
        frame = frame.tb_next
    return deepest in ("connect", "_wait_for_available_connection")
