"""The six events: what they carry, and how they get onto spans and into the log signal."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

from opentelemetry._logs import Logger, LogRecord, SeverityNumber, get_logger_provider
from opentelemetry.trace import Span

from otel_breaker._frames import DONE, FRAME, SITE, UP
from otel_breaker.core.states import CLOSED, FORCED_OPEN, HALF_OPEN, OPEN
from otel_breaker.outcomes import REASONS

from . import names

if TYPE_CHECKING:
    from otel_breaker.circuit import Circuit

CALL_EVENTS_MAX: Final = 32
"""Admissions and refusals on one span. SDKs keep 128 events a span and drop the oldest: a transition must survive."""

MERGE_SECONDS: Final = 1.0
"""One log event, and one span of our own, for the refusals of a circuit in this time."""

_FAILURE_REASONS: Final = frozenset(REASONS)
_BY_CREDENTIAL: Final = ("throttled", "credential_paused")
_SEVERITY_TEXT: Final = {SeverityNumber.INFO: "INFO", SeverityNumber.WARN: "WARN"}

Attributes = dict[str, str | int | float]


class Event(NamedTuple):
    """One thing that happened, ready to be written. ``at`` is nanoseconds since the epoch."""

    name: str
    attributes: Attributes
    at: int


# --- what they carry --------------------------------------------------------------------------------------------------


def describe(circuit: Circuit, site: Any, credential: str | None) -> Attributes:
    """What every event of a call says: whose circuit, which tool, which server, which credential."""
    attributes: Attributes = {names.NAME: circuit.name}
    if site is not None:
        tool = site.tool or _tool_around()
        if tool:
            attributes[names.TOOL_NAME] = tool
        address = site.address
        if address is None and site.layer == "client" and circuit.key.scope != "hand":
            address = server_address(circuit.key.dependency)
        if address:
            attributes[names.SERVER_ADDRESS] = address
    if credential is None and circuit.role == "quota":
        credential = circuit.key.scope.rpartition("/")[2]
    if credential is not None:
        attributes[names.CREDENTIAL] = credential
    return attributes


def _tool_around() -> str | None:
    """The tool that a client's call is made for, if a guard is around it."""
    frame = FRAME.get()
    while frame:
        if frame[SITE].tool is not None and not frame[DONE]:
            tool: str = frame[SITE].tool
            return tool
        frame = frame[UP]
    return None


@functools.lru_cache(maxsize=1024)
def server_address(dependency: str) -> str:
    """The host part of a client's dependency; empty where there is none, as with ``mcp:<server>``."""
    if dependency.startswith("mcp:"):
        return ""
    if dependency.startswith("["):
        return dependency[1:].partition("]")[0]
    host, colon, port = dependency.rpartition(":")
    if not colon:
        return dependency
    return host if port.isdecimal() else ""


def why(attributes: Attributes, reason: str | None) -> None:
    """Add the reason code, and ``error.type`` where it is a failure's."""
    if reason is not None:
        attributes[names.REASON] = reason
        if reason in _FAILURE_REASONS:
            attributes[names.ERROR_TYPE] = reason


def admitted(circuit: Circuit, site: Any, probe: bool, credential: str | None) -> Event:
    """A call, or a probe, was let through."""
    attributes = describe(circuit, site, credential)
    if probe:
        attributes[names.STATE] = HALF_OPEN
        attributes[names.DECISION] = "probe"
        return Event(names.PROBE_STARTED, attributes, time.time_ns())
    attributes[names.STATE] = CLOSED if circuit.gate is not None else circuit.state
    attributes[names.DECISION] = "admitted"
    return Event(names.CALL_ADMITTED, attributes, time.time_ns())


def usual(circuit: Circuit, site: Any) -> Attributes:
    """What `admitted` says of a tool's call to a closed circuit without a credential: made once, read by each event."""
    known: tuple[str, Attributes] | None = site.usual
    if known is None or known[0] is not circuit.name:
        attributes: Attributes = {**describe(circuit, site, None), names.STATE: CLOSED, names.DECISION: "admitted"}
        known = site.usual = (circuit.name, attributes)
    return known[1]


def rejected(circuit: Circuit, site: Any, decision: str, retry_after: float, credential: str | None) -> Event:
    """A call was refused, or would have been in observe mode."""
    attributes = describe(circuit, site, credential)
    # The credential's own circuit decides before that of its dependency.
    quota = (circuit.quotas or {}).get(credential or "") if decision in _BY_CREDENTIAL else None
    seen = (quota or circuit).snapshot()
    attributes[names.STATE] = seen.state
    attributes[names.DECISION] = decision
    attributes[names.COOLDOWN_REMAINING] = retry_after if math.isfinite(retry_after) else 0.0
    # A forced circuit's snapshot holds the operator's own words; events carry only our vocabulary.
    why(attributes, "manual" if seen.state == FORCED_OPEN else seen.reason)
    return Event(names.CALL_REJECTED, attributes, time.time_ns())


def probe_finished(circuit: Circuit, site: Any, outcome: str, reason: str | None, credential: str | None) -> Event:
    """A probe is over."""
    attributes = describe(circuit, site, credential)
    attributes[names.OUTCOME] = outcome
    attributes[names.STATE] = circuit.state
    why(attributes, reason)
    return Event(names.PROBE_FINISHED, attributes, time.time_ns())


def state_changed(circuit: Circuit, moved: Any, site: Any, credential: str | None) -> Event:
    """The circuit moved, possibly a while ago: a lapse or an expiry is told when somebody next looks."""
    attributes = describe(circuit, site, credential)
    attributes[names.PREVIOUS_STATE] = moved.previous_state
    attributes[names.STATE] = moved.state
    if moved.state == OPEN:
        attributes[names.COOLDOWN_REMAINING] = moved.cooldown
    why(attributes, moved.reason)
    ago = max(0.0, circuit.clock.now() - moved.at)
    return Event(names.STATE_CHANGED, attributes, time.time_ns() - int(ago * 1e9))


def revoked(circuit: Circuit, site: Any, credential: str | None) -> Event:
    """A credential that had worked was answered 401."""
    attributes = describe(circuit, site, credential)
    attributes[names.STATE] = circuit.state
    return Event(names.CREDENTIAL_REVOKED, attributes, time.time_ns())


# --- onto spans -------------------------------------------------------------------------------------------------------


class SpanBudget:
    """Counts the call events of every live span."""

    def __init__(self) -> None:
        self._spans: WeakKeyDictionary[Span, list[int]] = WeakKeyDictionary()
        self._latest: tuple[Callable[[], Span | None], list[int]] = (lambda: None, [0])

    def add(self, span: Span, name: str, attributes: Attributes, at: int | None = None) -> None:
        """Write a call event, or count it as dropped once the span has had its share."""
        latest, seen = self._latest  # calls of one span mostly come together
        if latest() is not span:
            found = self._spans.get(span)
            seen = self._spans.setdefault(span, [0]) if found is None else found
            self._latest = (ref(span), seen)
        seen[0] += 1
        if seen[0] <= CALL_EVENTS_MAX:
            span.add_event(name, attributes, at)
        else:
            span.set_attribute(names.EVENTS_DROPPED, seen[0] - CALL_EVENTS_MAX)


# --- into the log signal ----------------------------------------------------------------------------------------------


def to_log(logger: Logger, event: Event, merged: int = 0) -> None:
    """Write a log event in the current context: WARN for what hurts, else INFO."""
    attributes: Mapping[str, Any] = event.attributes
    if merged:
        attributes = {**attributes, names.MERGED: merged}
    quiet = event.name == names.STATE_CHANGED and event.attributes[names.STATE] != OPEN
    severity = SeverityNumber.INFO if quiet else SeverityNumber.WARN
    logger.emit(
        LogRecord(
            timestamp=event.at,
            observed_timestamp=time.time_ns(),
            severity_number=severity,
            severity_text=_SEVERITY_TEXT[severity],
            body=_sentence(event.name, event.attributes),
            attributes=attributes,
            event_name=event.name,
        )
    )


def _sentence(name: str, attributes: Attributes) -> str:
    who, reason = attributes[names.NAME], attributes.get(names.REASON)
    because = f" ({reason})" if reason else ""
    if name == names.STATE_CHANGED:
        return f"{who}: {attributes[names.PREVIOUS_STATE]} -> {attributes[names.STATE]}{because}"
    if name == names.CREDENTIAL_REVOKED:
        return f"{who}: a credential that had worked was answered 401"
    return f"{who}: call rejected, {attributes[names.DECISION]}{because}"


class Bridge:
    """Whether the program copies log events onto spans itself, as the specification's event-to-span bridge does."""

    def __init__(self) -> None:
        self._processors: object = None
        self._found = False

    def installed(self) -> bool:
        """Cheap: looks again only when the list of processors has changed."""
        chain = getattr(get_logger_provider(), "_multi_log_record_processor", None)
        processors = getattr(chain, "_log_record_processors", ())
        if processors is not self._processors:
            self._processors = processors
            kinds = [type(one).__name__ for one in processors]
            self._found = any("EventToSpan" in kind or "SpanEventBridge" in kind for kind in kinds)
        return self._found
