"""What `Circuit` offers for use by hand: call, acall, with, acquire."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from . import _guard, _settling
from ._frames import FRAME, PERMIT, PROBE, UP, Frame, Site, live
from .circuit import Circuit
from .outcomes import FAILURE, IGNORED, OK, REASONS, THROTTLED, UNAUTHORIZED, Outcome

SITE: Final = Site("")

Entered = tuple[Circuit, Frame | None]

_open: ContextVar[tuple[Entered, ...]] = ContextVar("otel_breaker_with", default=())


class Permit:
    """Leave to make one call. Settle it once, by one of its methods; a second time counts as ``late``.

    Attributes:
        probe: this call is the one that tests the dependency.
    """

    __slots__ = ("_circuit", "_frame", "probe")

    def __init__(self, circuit: Circuit, frame: Frame | None) -> None:
        self._circuit = circuit
        self._frame = frame
        self.probe = bool(frame is not None and frame[PROBE])

    def success(self) -> None:
        """It worked."""
        self._settle(OK)

    def failure(self, reason: str = "unclassified", retry_after: float | None = None) -> None:
        """The dependency is at fault.

        Args:
            reason: one of `otel_breaker.outcomes.REASONS`.
            retry_after: seconds that the server asked to wait.

        Raises:
            ValueError: for an unknown reason; the message lists the known ones.
        """
        if reason not in REASONS:
            raise ValueError(f"unknown reason {reason!r}; known: {', '.join(REASONS)}")
        self._settle(Outcome(FAILURE, reason, retry_after))

    def neutral(self) -> None:
        """It says nothing about the dependency."""
        self._settle(IGNORED)

    def throttled(self, retry_after: float | None = None) -> None:
        """The dependency limits our rate; ``retry_after`` in seconds if it named a time."""
        self._settle(Outcome(THROTTLED, "throttled", retry_after))

    def unauthorized(self) -> None:
        """The dependency no longer accepts the credential."""
        self._settle(Outcome(UNAUTHORIZED))

    def _settle(self, outcome: Outcome) -> None:
        frame = self._frame
        if frame is None:
            return
        if frame[PERMIT] is None:
            self._circuit.stats.count("late", None)
            return
        _settling.settle(frame, outcome)


def call(circuit: Circuit, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Circuit.call`."""
    return _guard.call(SITE, circuit, function, args, kwargs)


async def acall(circuit: Circuit, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Circuit.acall`."""
    return await _guard.acall(SITE, circuit, function, args, kwargs)


def acquire(circuit: Circuit) -> Permit:
    """`Circuit.acquire`."""
    return Permit(circuit, _guard.begin(SITE, circuit))


def push(circuit: Circuit) -> None:
    """Enter ``with circuit``."""
    frame = _guard.begin(SITE, circuit)
    if frame is not None:
        FRAME.set(frame)
    _open.set((*_open.get(), (circuit, frame)))


def pop(circuit: Circuit, error: BaseException | None) -> None:
    """Leave ``with circuit``."""
    held = _open.get()
    at = max((i for i, (entered, _) in enumerate(held) if entered is circuit), default=None)
    if at is None:
        return
    frame = held[at][1]
    _open.set(held[:at] + held[at + 1 :])
    if frame is None:
        return
    if FRAME.get() is frame:  # else an inner block goes on, or this is another context: that keeps its own frame
        FRAME.set(live(frame[UP]))
    if error is None:
        _guard.done(frame, None)
    else:
        _guard.fail(frame, error)
