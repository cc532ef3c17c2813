"""What exception classes mean, by ``package.Class``; the order of `Rank` is the precedence over a whole cause chain."""

from __future__ import annotations

import errno
import re
from enum import IntEnum
from typing import Final, NamedTuple

from otel_breaker.outcomes import ANSWERED, FAILURE, IGNORED, THROTTLED, UNAUTHORIZED, Outcome


class Rank(IntEnum):
    """Strength of a piece of evidence; the lowest in the chain decides, the outermost among equals."""

    REFUSED_BY_US = 0
    DNS = 1
    REFUSED = 2
    RESET = 3
    TLS = 4
    UNREACHABLE = 5
    LOCAL = 6  # before time-outs: a pool's time-out is one by class
    READ_TIMEOUT = 7
    CONNECT_TIMEOUT = 8
    TIMEOUT = 9
    OUTPUT = 10
    OUTPUT_WRAPPER = 11  # says that the body was bad, not how
    STATUS = 12
    SEEN = 13
    LOST = 14  # "connection error" of a wrapper that lost its cause: the attempt below knows better
    SEEN_ANSWER = 15
    RPC = 16  # an MCP error: the client makes one of any HTTP status, which the attempt below saw
    ARGUMENT = 17
    VALIDATION = 18  # of arguments, or of the output once a call was made
    CONTROL = 19
    PERMISSION = 20


class Evidence(NamedTuple):
    """One thing that one exception of the chain says."""

    rank: Rank
    outcome: Outcome


def _failure(reason: str) -> Outcome:
    return Outcome(FAILURE, reason)


MALFORMED: Final = Evidence(Rank.OUTPUT, _failure("malformed_output"))
TRUNCATED: Final = Evidence(Rank.OUTPUT, _failure("truncated_output"))
RESET: Final = Evidence(Rank.RESET, _failure("connection_reset"))
LOCAL: Final = Evidence(Rank.LOCAL, IGNORED)
TIMEOUT: Final = Evidence(Rank.TIMEOUT, _failure("timeout"))
LOST: Final = Evidence(Rank.LOST, _failure("connection_error"))
ARGUMENT: Final = Evidence(Rank.ARGUMENT, IGNORED)
PERMISSION: Final = Evidence(Rank.PERMISSION, IGNORED)

_TABLE: Final = (
    (Evidence(Rank.REFUSED_BY_US, IGNORED), "otel_breaker.CircuitOpenError"),
    (
        Evidence(Rank.DNS, _failure("dns_error")),
        "socket.gaierror socket.herror urllib3.NameResolutionError aiohttp.ClientConnectorDNSError",
    ),
    (Evidence(Rank.REFUSED, _failure("connection_refused")), "builtins.ConnectionRefusedError"),
    (
        RESET,
        """builtins.ConnectionResetError builtins.BrokenPipeError builtins.ConnectionAbortedError
        http.RemoteDisconnected aiohttp.ServerDisconnectedError""",
    ),
    (
        Evidence(Rank.TLS, _failure("tls_error")),
        """ssl.SSLError urllib3.SSLError urllib3.CertificateError
        requests.SSLError niquests.SSLError aiohttp.ClientSSLError aiohttp.ServerFingerprintMismatch botocore.SSLError
        OpenSSL.Error elastic_transport.TlsError""",
    ),
    (
        LOCAL,
        """requests.TooManyRedirects niquests.TooManyRedirects httpx.TooManyRedirects aiohttp.TooManyRedirects
        httpx.PoolTimeout httpcore.PoolTimeout urllib3.EmptyPoolError urllib3.FullPoolError urllib3.ClosedPoolError
        sqlalchemy.TimeoutError psycopg_pool.PoolTimeout psycopg_pool.PoolClosed psycopg_pool.TooManyRequests
        redis.MaxConnectionsError
        httpx.InvalidURL httpx.UnsupportedProtocol httpx.LocalProtocolError httpx.StreamError httpx.CookieConflict
        httpcore.UnsupportedProtocol httpcore.LocalProtocolError h11.LocalProtocolError
        requests.MissingSchema requests.InvalidSchema requests.InvalidURL requests.InvalidHeader
        requests.StreamConsumedError niquests.MissingSchema niquests.InvalidSchema niquests.InvalidURL
        urllib3.LocationValueError urllib3.UnrewindableBodyError http.InvalidURL http.ImproperConnectionState
        aiohttp.InvalidURL aiohttp.NonHttpUrlClientError botocore.ParamValidationError botocore.NoCredentialsError
        botocore.PartialCredentialsError botocore.NoRegionError grpc.UsageError grpc.FutureCancelledError""",
    ),
    (
        Evidence(Rank.READ_TIMEOUT, _failure("read_timeout")),
        """httpx.ReadTimeout httpcore.ReadTimeout requests.ReadTimeout
        niquests.ReadTimeout urllib3.ReadTimeoutError aiohttp.SocketTimeoutError botocore.ReadTimeoutError""",
    ),
    (
        Evidence(Rank.CONNECT_TIMEOUT, _failure("connect_timeout")),
        """httpx.ConnectTimeout httpcore.ConnectTimeout
        requests.ConnectTimeout niquests.ConnectTimeout urllib3.ConnectTimeoutError aiohttp.ConnectionTimeoutError
        botocore.ConnectTimeoutError psycopg.ConnectionTimeout""",
    ),
    (TIMEOUT, "google.DeadlineExceeded pymongo.NetworkTimeout pymongo.ServerSelectionTimeoutError"),
    (
        TRUNCATED,
        """http.IncompleteRead urllib3.IncompleteRead botocore.IncompleteReadError aiohttp.ContentLengthError
        botocore.ResponseStreamingError asyncio.IncompleteReadError""",
    ),
    (
        MALFORMED,
        """json.JSONDecodeError simplejson.JSONDecodeError requests.JSONDecodeError niquests.JSONDecodeError
        builtins.UnicodeDecodeError zlib.error gzip.BadGzipFile _lzma.LZMAError brotli.error xml.ParseError
        xml.ExpatError http.BadStatusLine http.LineTooLong urllib3.InvalidChunkLength urllib3.DecodeError
        urllib3.InvalidHeader urllib3.ResponseNotChunked httpx.DecodingError requests.ContentDecodingError
        niquests.ContentDecodingError aiohttp.ContentTypeError aiohttp.BadHttpMessage aiohttp.HttpProcessingError
        botocore.ResponseParserError
        elastic_transport.SerializationError redis.InvalidResponse google.DecodeError msgspec.DecodeError
        openai.APIResponseValidationError anthropic.APIResponseValidationError""",
    ),
    (
        Evidence(Rank.OUTPUT_WRAPPER, _failure("truncated_output")),
        "requests.ChunkedEncodingError niquests.ChunkedEncodingError",
    ),
    (
        Evidence(Rank.OUTPUT_WRAPPER, _failure("malformed_output")),
        """httpx.RemoteProtocolError
        httpcore.RemoteProtocolError h11.RemoteProtocolError h2.ProtocolError aiohttp.ClientPayloadError""",
    ),
    (
        Evidence(Rank.STATUS, Outcome(UNAUTHORIZED)),
        "redis.AuthenticationError tavily.InvalidAPIKeyError github.BadCredentialsException",
    ),
    (Evidence(Rank.STATUS, Outcome(THROTTLED, "throttled")), "tavily.UsageLimitExceededError"),
    (Evidence(Rank.STATUS, _failure("overloaded")), "redis.BusyLoadingError redis.OutOfMemoryError"),
    (
        Evidence(Rank.STATUS, ANSWERED),
        "redis.AuthorizationError redis.NoPermissionError redis.ResponseError tavily.ForbiddenError",
    ),
    (
        Evidence(Rank.LOST, _failure("connection_reset")),
        """httpx.ReadError httpx.WriteError httpcore.ReadError
        httpcore.WriteError anyio.BrokenResourceError anyio.EndOfStream botocore.ConnectionClosedError
        websockets.ConnectionClosedError""",
    ),
    (
        LOST,
        """builtins.ConnectionError requests.ConnectionError niquests.ConnectionError httpx.TransportError
        httpcore.NetworkError httpcore.ProxyError urllib3.ProtocolError urllib3.NewConnectionError urllib3.ProxyError
        aiohttp.ClientConnectionError urllib.URLError openai.APIConnectionError anthropic.APIConnectionError
        stripe.APIConnectionError botocore.ConnectionError botocore.HTTPClientError redis.ConnectionError
        elastic_transport.ConnectionError google.TransportError anyio.ClosedResourceError""",
    ),
    (ARGUMENT, "builtins.ValueError builtins.TypeError"),
    (
        Evidence(Rank.VALIDATION, IGNORED),
        "pydantic_core.ValidationError pydantic.ValidationError jsonschema.ValidationError",
    ),
    (
        Evidence(Rank.CONTROL, IGNORED),
        """pydantic_ai.ModelRetry pydantic_ai.ToolRetryError pydantic_ai.CallDeferred
        pydantic_ai.ApprovalRequired langgraph.GraphBubbleUp agents.InputGuardrailTripwireTriggered
        agents.OutputGuardrailTripwireTriggered agents.ToolInputGuardrailTripwireTriggered
        agents.ToolOutputGuardrailTripwireTriggered agents.UserError agent_framework.MiddlewareFailure
        agent_framework.UserInputRequiredException""",
    ),
    (PERMISSION, "builtins.PermissionError"),
)
BY_NAME: Final[dict[str, Evidence]] = {name: evidence for evidence, names in _TABLE for name in names.split()}

BY_ERRNO: Final[dict[int, Evidence]] = {
    errno.ECONNREFUSED: BY_NAME["builtins.ConnectionRefusedError"],
    **dict.fromkeys((errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED), RESET),
    **dict.fromkeys(
        (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL),
        Evidence(Rank.UNREACHABLE, _failure("connection_error")),
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), LOCAL),  # our own file descriptors ran out
}

TIMEOUT_NAME: Final = re.compile(r"(?:(?<!Gateway)Timeout|TimedOut)(?:Error|Exception|Expired)?$")
"""Class names that mean a time-out whatever the library."""

CANCELLED: Final = frozenset({"asyncio.CancelledError", "concurrent.CancelledError", "trio.Cancelled"})

BY_REASON: Final[dict[str, Rank]] = {
    "dns_error": Rank.DNS,
    "connection_refused": Rank.REFUSED,
    "connection_reset": Rank.RESET,
    "tls_error": Rank.TLS,
    "timeout": Rank.TIMEOUT,
    "connection_error": Rank.LOST,
    "malformed_output": Rank.OUTPUT,
    "truncated_output": Rank.OUTPUT,
}
"""The rank of a reason that was read from the text of an opaque exception; others rank as a status."""
