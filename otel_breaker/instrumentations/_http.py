"""What the HTTP clients share: which circuit a request belongs to, what its answer means, how its body ended."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary

from otel_breaker import _guard, _log, errors, keys, settings
from otel_breaker._admission import QUIET
from otel_breaker._fingerprints import _HEADERS as CREDENTIAL_HEADERS
from otel_breaker._frames import CIRCUIT, CREDENTIAL, FRAME, TIMEOUT
from otel_breaker._registry import registry
from otel_breaker.circuit import Circuit
from otel_breaker.classify import response_outcome
from otel_breaker.outcomes import ANSWERED, OK, THROTTLED, UNAUTHORIZED, Outcome
from otel_breaker.telemetry import emit

EXPORTER: Final = "OTel-OTLP-Exporter-Python"
"""How the User-Agent of the OTLP exporters begins. Telemetry is never guarded: it must come back the moment it can."""

MALFORMED: Final = Outcome("failure", "malformed_output")
_REMEMBERED: Final = 64
_EXPORTER_RAW: Final = EXPORTER.encode()
_AGENT: Final = ("user-agent", b"user-agent")
_HARMLESS: Final = frozenset(
    spelled
    for name in ("Accept", "Accept-Encoding", "Connection", "Content-Length", "Content-Type", "Host", "traceparent")
    for spelled in (name, name.lower(), name.encode(), name.lower().encode())
)
"""What nearly every request has, as it is mostly spelled: passed over without a second look."""
_CREDENTIALS: Final = frozenset((*CREDENTIAL_HEADERS, *(name.encode() for name in CREDENTIAL_HEADERS)))


def scan(headers: Iterable[tuple[Any, Any]]) -> tuple[bool, bool]:
    """One look at the names of some headers, on the path of every call.

    Returns:
        Whether a telemetry exporter sends them, and whether one of them may hold a credential.
    """
    exporter = shown = False
    for name, value in headers:
        if name in _HARMLESS:
            continue
        lower = name.lower()
        if lower in _CREDENTIALS:
            shown = True
        elif lower in _AGENT:
            exporter = value is not None and value.startswith(EXPORTER if isinstance(value, str) else _EXPORTER_RAW)
    return exporter, shown


def circuit_for(dependency: str | None, url: Callable[[], str]) -> Circuit | None:
    """The circuit of a request, or ``None`` where we stay out of it.

    Args:
        dependency: from `keys.dependency`; empty for a URL without a host.
        url: gives the URL without query and user-info, for EXCLUDED_URLS.
    """
    if not dependency:
        return None
    chosen = settings.current()
    if (chosen.exclude or chosen.excluded_urls) and chosen.excluded(
        url() if chosen.excluded_urls else None, dependency
    ):
        return None
    circuits = registry()
    found = circuits._clients.get(dependency)
    if found is None and (FRAME.get() is QUIET or emit.suppressed(emit.current())):
        return None  # the guard would let it through, but a series would have been born
    return found or circuits.client(dependency)


def answered(circuit: Circuit, status: int, headers: Any) -> Outcome:
    """What a response means by its status and headers."""
    if 100 <= status < 400:
        return OK
    return response_outcome(status, headers, wall=circuit.clock.wall())


def verdict(frame: Any, response: Any) -> Outcome:
    """What the final response of a call means.

    A redirect may have led to another host. What that one says of credentials and rates is not about the credential
    that the called host was shown: both libraries take it off on the way.
    """
    circuit: Circuit = frame[CIRCUIT]
    outcome = answered(circuit, response.status_code, response.headers)
    about_credential = outcome.kind in (UNAUTHORIZED, THROTTLED)
    if about_credential and response.history and keys.dependency_of_url(str(response.url)) != circuit.key.dependency:
        frame[CREDENTIAL] = None
    return outcome


def wants_json(circuit: Circuit) -> bool:
    """Whether the configuration says that a 200 of this dependency is a JSON document."""
    chosen = settings.current()
    return bool(chosen.circuits) and chosen.resolve(None, circuit.key.dependency).validate == "json"


def is_json(content: bytes) -> bool:
    """Whether this body is a JSON document."""
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def refit(error: errors.CircuitOpenError, base: type[BaseException]) -> errors.CircuitOpenError:
    """The same refusal, with the same marks on it, as an exception of another library."""
    other = errors.fitted(errors.refusal(error.decision), base)(**error._facts)
    other.__dict__.update(error.__dict__)
    return other.with_traceback(error.__traceback__)


class Wallet:
    """The credential that each client object last put on the wire, by dependency.

    The outer hook often cannot see it: an auth flow adds it later. So the hook below learns it and the next call of
    that client is checked against it. Only fingerprints are held, and only as long as the client lives.

    Attributes:
        used: something was ever learnt.
    """

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[Any, dict[str, str | None]] = WeakKeyDictionary()
        self.used = False

    def learn(self, client: Any, dependency: str, credential: str | None) -> None:
        """Remember what this client sent."""
        self.used = True
        known = self._held.get(client)
        if known is None:
            known = self._held.setdefault(client, {})
        if len(known) >= _REMEMBERED and dependency not in known:
            known.pop(next(iter(known)))
        known[dependency] = credential

    def recall(self, client: Any, dependency: str) -> str | None:
        """What this client sent last, if anything is known."""
        known = self._held.get(client)
        return None if known is None else known.get(dependency)


def visible(headers: Any, url: str | None, auth: Any) -> str | None:
    """The credential that the arguments of a call show; a name and password, explicit or in the URL, win over a header.

    Both libraries make of them the Authorization header that goes out.
    """
    if isinstance(auth, tuple) and len(auth) == 2:
        return keys.credential_of({"Authorization": basic(*auth)}, None)
    if url is not None and "@" in url:
        named = keys.credential_of(None, url.partition("?")[0])
        if named is not None:
            return named
    return keys.credential_of(headers or {}, url)


def basic(name: Any, password: Any) -> str:
    """The Authorization header that both libraries make of a name and a password."""
    import base64

    both = b":".join(part if isinstance(part, bytes) else str(part).encode("utf-8") for part in (name, password))
    return "Basic " + base64.b64encode(both).decode("ascii")


class Body:
    """The rest of one call whose body is read later: tells the guard exactly once how it ended.

    Attributes:
        ended: it has been told.
        whole: nothing is left to come from the wire.
        decoding: the reader decodes it, so that it can still turn out to be undecodable.
        reading: reads under way; what the library does inside them is not the reader's doing.
    """

    __slots__ = ("__weakref__", "_frame", "decoding", "ended", "reading", "whole")

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.ended = False
        self.whole = False
        self.decoding = False
        self.reading = 0

    async def wait(self, piece: Awaitable[Any]) -> Any:
        """Await the next piece, but not past the deadline where the policy enforces it."""
        frame = self._frame
        if frame is not None and frame[CIRCUIT].policy.enforce_deadline:
            return await _guard.bounded(piece, frame, frame[TIMEOUT])
        return await piece

    def piece(self) -> None:
        """A piece has arrived: a sign of life."""
        if not self.ended:
            self._tell(_guard.renew)

    def complete(self) -> None:
        """All of it has been delivered and decoded."""
        self._end(_guard.finish, OK)

    def failed(self, error: BaseException) -> None:
        """Reading or decoding it raised this."""
        self._end(_guard.fail, error)

    def abandoned(self) -> None:
        """The reader lost interest. `whole` says that nothing was left to come."""
        self._end(_guard.finish, OK if self.whole else ANSWERED)

    def _end(self, how: Callable[..., Any], what: object) -> None:
        if not self.ended:
            self.ended = True
            self._tell(how, what)
            self._frame = None

    def _tell(self, how: Callable[..., Any], *what: object) -> None:
        try:
            how(self._frame, *what)
        except Exception as error:
            _log.fault("body", "the end of a streamed body could not be counted", error)
