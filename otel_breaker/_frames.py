"""Frames: who is inside whom, and who is charged.

A frame is one guarded call while it runs, and its permit: one list, because a list literal is the cheapest thing that
can hold them (docs/performance.md). `FRAME` holds the innermost one of this thread or task. Three rules live here:

- A frame inside another one of the same circuit is only an *attempt* of it: it is judged and noted as evidence, never
  charged, and refused where the outer call must not try again.
- One upstream failure is charged once, to the innermost guarded dependency that saw it: whoever is outside and fails
  because of it is neutral.
- A finished frame counts as none (a task may outlive the call that started it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final

from . import _threads
from .circuit import VOID, Circuit
from .classify._chain import attribute
from .core.events import SLOW_RATE
from .core.views import Snapshot
from .errors import CircuitOpenError, fitted, refusal
from .keys import CircuitKey
from .outcomes import FAILURE, REASONS, THROTTLED, UNAUTHORIZED, Outcome

Frame = list[Any]

CIRCUIT: Final = 0  # Circuit
PERMIT: Final = 1  # int | None: the fence id, VOID, or None once settled
STARTED: Final = 2  # float: the circuit's clock
UP: Final = 3  # Frame | None: the enclosing frame
MARK: Final = 4  # int: charges made anywhere before this frame was entered
INNER: Final = 5  # None | str: what the last inner call of another circuit came to: "ok", "charged", "refused"
DONE: Final = 6  # bool
EVIDENCE: Final = 7  # Evidence | None: the attempts seen below
PROBE: Final = 8  # bool
QUOTA: Final = 9  # (Circuit, permit id, probe) | None
SITE: Final = 10  # Site
CREDENTIAL: Final = 11  # str | None: fingerprint
HANDLED: Final = 12  # BaseException | None: what was already being handled at entry
OF: Final = 13  # Frame | None: for an attempt, the frame it is an attempt of
SPAN: Final = 14  # telemetry's handle | None
ALIVE: Final = 15  # float: the last sign of life
TIMEOUT: Final = 16  # float | None: the call's own time limit

FRAME: ContextVar[Frame | None] = ContextVar("otel_breaker_frame", default=None)

charges: Final = [0]
"""One cell: charges and refusals made so far in this process. A mark is newer than a frame if its number is larger."""

MARKED: Final = "_otel_breaker_mark"
"""Attribute on an exception that was charged or refused: (number, circuit key)."""


class Evidence:
    """What the attempts below one frame came to.

    Attributes:
        running: attempts under way.
        attempts: attempts finished.
        failed: the last one failed or was throttled.
        last: its outcome.
    """

    __slots__ = ("attempts", "failed", "last", "running")

    def __init__(self) -> None:
        self.running = 0
        self.attempts = 0
        self.failed = False
        self.last: Outcome | None = None

    def note(self, outcome: Outcome) -> None:
        """One more attempt is over."""
        self.attempts += 1
        self.last = outcome
        self.failed = outcome.kind in (FAILURE, THROTTLED)


class Site:
    """The static facts of one wrapped callable.

    Args:
        library: which instrumentation it belongs to; ``""`` for a function guarded by hand.
        layer: ``client`` or ``tool``; decides the own span and the reading of unexplained errors.
        tool: the tool's name as the model knows it.
        fit: returns the exception class that a refusal must also be, or ``None``.
        judge: (frame, result) -> Outcome, ``None`` for a success, or `PENDING` if the body is still to come.
        body: it is a tool's body, whatever its layer: unexplained errors are its own, swallowed ones count.
        explain: (frame, exception) -> Outcome, or ``None`` where the built-in rules shall decide.
        timed: an enforced deadline ends its calls; not so where a guard of the same call further in sees to that.

    Attributes:
        alternatives: tools that its answer offers instead.
        address: the host that is called, where the circuit's name does not tell it.
        usual: telemetry's: (circuit name, attributes) of the event that most calls of a guarded function give.
    """

    __slots__ = (
        "address", "alternatives", "body", "explain", "fit", "judge", "layer", "library", "timed", "tool", "usual",
    )  # fmt: skip

    def __init__(
        self,
        library: str,
        *,
        layer: str = "client",
        tool: str | None = None,
        fit: Callable[[], type[BaseException] | None] | None = None,
        judge: Callable[[Frame, Any], Any] | None = None,
        body: bool = False,
        explain: Callable[[Frame, BaseException], Outcome | None] | None = None,
        timed: bool = True,
    ) -> None:
        self.library = library
        self.layer = layer
        self.tool = tool
        self.fit = fit
        self.judge = judge
        self.body = body
        self.explain = explain
        self.timed = timed
        self.alternatives: tuple[str, ...] = ()
        self.address: str | None = None
        self.usual: tuple[str, dict[str, Any]] | None = None


PENDING: Final = object()
"""Returned by a judge: the outcome will come through `otel_breaker._guard.finish` or ``fail``."""


def live(frame: Frame | None) -> Frame | None:
    """The innermost frame from here outwards that is still running."""
    while frame is not None and frame[DONE]:
        frame = frame[UP]
    return frame


def owner_of(frame: Frame) -> Frame:
    """The frame that holds the permit."""
    while frame[OF] is not None:
        frame = frame[OF]
    return frame


def enclosing(circuit: Circuit, frame: Frame | None) -> Frame | None:
    """The nearest live frame of the same circuit: what a new call to it is an attempt of."""
    frame = live(frame)
    while frame is not None:
        if frame[CIRCUIT] is circuit:
            return frame
        frame = live(frame[UP])
    return None


def of_library(library: str, frame: Frame | None) -> Frame | None:
    """The nearest live frame that this library's own hooks pushed."""
    frame = live(frame)
    while frame is not None:
        if frame[SITE].library == library:
            return frame
        frame = live(frame[UP])
    return None


def denial(frame: Frame) -> tuple[str, float] | None:
    """(decision, seconds) if the call of this frame must not make a further attempt, else ``None``."""
    root = owner_of(frame)
    circuit: Circuit = root[CIRCUIT]
    permit = root[PERMIT]
    if permit == VOID or circuit.gate == permit or circuit.mode != "enforce":
        return None
    evidence = frame[EVIDENCE]
    if root[PROBE] and circuit.current == permit:
        if evidence is None or not (evidence.running or evidence.failed):
            return None
        return "probe_in_flight", circuit.snapshot().retry_after
    snapshot = circuit.snapshot()
    if circuit.current == permit or snapshot.state in ("closed", "disabled"):
        return None
    if snapshot.state == "forced_open":
        return "forced_open", snapshot.retry_after
    return ("probe_in_flight" if snapshot.state == "half_open" else "circuit_open"), snapshot.retry_after


def refused(
    circuit: Circuit, site: Site, decision: str, retry_after: float, tool: Site | None = None
) -> CircuitOpenError:
    """The refusal to raise, marked, in the form that the library's handlers catch."""
    plain = refusal(decision)
    base = site.fit() if site.fit is not None else None
    cls = fitted(plain, base) if base is not None else plain
    tool = tool or site
    # A tool's own alternatives hold for it alone; those of a circuit below stand in where it has none.
    offers = tool.alternatives if tool is site and site.body else tool.alternatives or circuit.alternatives
    error = cls(**facts(circuit, circuit.snapshot(), decision, retry_after, tool.tool, offers))
    mark(error, circuit)
    return error


def facts(
    circuit: Circuit, snapshot: Snapshot, decision: str, retry_after: float, tool: str | None, offers: tuple[str, ...]
) -> dict[str, Any]:
    """What a refusal carries."""
    return {
        "key": circuit.name,
        "tool": tool,
        "state": snapshot.state,
        "decision": decision,
        "error_type": snapshot.reason if snapshot.reason in REASONS else None,
        "slow": snapshot.reason == SLOW_RATE,
        "failures": snapshot.failures,
        "retry_after": max(retry_after, 0.001),
        "alternatives": offers,
        "display_name": circuit.display_name,
        "last_took": circuit.last_took,
        "in_a_row": circuit.policy.failure_rate is None,
    }


def mark(error: BaseException, circuit: Circuit) -> None:
    """Remember on the exception that it was charged or refused, and by which circuit."""
    number = _threads.next_of(charges)
    try:
        setattr(error, MARKED, (number, circuit.key))
    except Exception:  # an exception without room for attributes: the frame's last inner call still tells
        return


def marked(errors: Iterable[BaseException], frame: Frame) -> CircuitKey | None:
    """The circuit that charged or refused one of these since the frame was entered, or ``None``."""
    for error in errors:
        found: tuple[int, CircuitKey] | None = attribute(error, MARKED)
        if found is not None and found[0] > frame[MARK]:
            return found[1]
    return None


def charged(outcome: Outcome) -> bool:
    """Whether this outcome blames somebody, so that nobody outside must be blamed again."""
    return outcome.kind in (FAILURE, THROTTLED, UNAUTHORIZED)
