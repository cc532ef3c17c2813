"""The guard: begin, done, fail. Sync and async calls are two thin shells over these three.

`begin` decides, `done` and `fail` judge and settle. Our own faults are caught and logged once, and the call goes on;
the user's exception leaves as the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CoroutineType
from typing import Any

from . import _settling
from ._admission import QUIET, begin, refuse
from ._deadline import bounded, note
from ._frames import (
    ALIVE,
    CIRCUIT,
    CREDENTIAL,
    DONE,
    EVIDENCE,
    FRAME,
    INNER,
    OF,
    PENDING,
    PERMIT,
    PROBE,
    SITE,
    SPAN,
    STARTED,
    UP,
    Frame,
    Site,
    charged,
    denial,
    of_library,
    owner_of,
)
from ._log import fault
from ._threads import AT_ONCE
from .circuit import SAMPLE_EVERY, Circuit
from .outcomes import IGNORED, OK, Outcome
from .telemetry import emit

__all__ = [
    "PENDING", "Frame", "Site", "abandon", "acall", "begin", "bounded", "call", "check", "current_frame", "done",
    "fail", "finish", "later", "learn", "note", "quiet", "renew",
]  # fmt: skip


def done(frame: Frame, result: Any) -> None:
    """Judge a result that was returned and settle, unless its body is still to come. Never raises."""
    try:
        site: Site = frame[SITE]
        outcome = site.judge(frame, result) if site.judge is not None else None
        if outcome is PENDING:
            frame[DONE] = True
            return
        if site.body and frame[INNER] in ("charged", "refused") and outcome is not None and charged(outcome):
            _settling.settle(frame, IGNORED, blamed=True)  # a failure that the tool swallowed comes back as its result
            return
        if outcome is None and site.body and frame[EVIDENCE] is not None and frame[EVIDENCE].failed:
            outcome = frame[EVIDENCE].last  # the tool swallowed its dependency's failure
        circuit: Circuit = frame[CIRCUIT]
        if outcome is None or outcome is OK:
            if frame[OF] is not None:
                _settling.settle(frame, OK)
                return
            if (
                frame[SPAN] is None
                and frame[CREDENTIAL] is None
                and frame[PROBE] is not _settling.PROVEN
                and circuit.gate == frame[PERMIT]
                and not circuit.busy
                and frame[STARTED] < circuit.sample_at
            ):
                frame[DONE] = True
                frame[PERMIT] = None
                if AT_ONCE:
                    circuit.stats.count("success", None)
                else:
                    circuit.stats.success += 1
                if frame[UP] is not None:
                    frame[UP][INNER] = "ok"
                return
            if frame[STARTED] >= circuit.sample_at:
                circuit.sample_at = frame[STARTED] + SAMPLE_EVERY
            outcome = OK
        _settling.settle(frame, outcome)
    except Exception as error:
        fault("done", "settling a call failed; its result is unaffected", error)
        finish(frame, IGNORED)  # a probe's slot must not stay taken


def fail(frame: Frame, error: BaseException) -> None:
    """Judge an exception and settle. Never raises."""
    try:
        _settling.fail(frame, error)
    except Exception as own:
        fault("fail", "settling a failed call failed; its exception is unaffected", own)
        finish(frame, IGNORED)


def finish(frame: Frame, outcome: Outcome | None = None) -> None:
    """Settle a call whose body ended (``None``: completely and well); a second time changes nothing. Never raises."""
    try:
        if frame[PERMIT] is not None:
            _settling.settle(frame, outcome or OK)
    except Exception as error:
        fault("finish", "settling a stream failed; its reader is unaffected", error)


def abandon(frame: Frame) -> None:
    """Settle a stream that its reader gave up: it says nothing."""
    finish(frame, IGNORED)


def renew(frame: Frame) -> None:
    """A piece of the body arrived: the call is alive. A probe that has delivered for a whole lease has succeeded."""
    try:
        root = owner_of(frame)
        circuit: Circuit = root[CIRCUIT]
        root[ALIVE] = frame[ALIVE] = circuit.clock.now()
        if root[PROBE] and root[PERMIT] is not None:
            _settling.renew(root)
    except Exception as error:
        fault("renew", "renewing a stream's lease failed; its reader is unaffected", error)


def learn(frame: Frame, credential: str | None) -> None:
    """The attempt layer saw the credential that really goes over the wire."""
    if credential is not None:
        owner_of(frame)[CREDENTIAL] = credential


def check(frame: Frame) -> None:
    """Raise the refusal if the call of this frame must not make a further attempt (before a library's retry sleep).

    Raises:
        CircuitOpenError: in the form that the frame's site fits.
    """
    denied = denial(frame)
    if denied is not None:
        root = owner_of(frame)
        root[CIRCUIT].decide(denied[0])
        refuse(frame[SITE], root[CIRCUIT], None, emit.current(), *denied, root[CREDENTIAL], None)


def current_frame(library: str) -> Frame | None:
    """The nearest running call of this library in this thread or task."""
    frame = FRAME.get()
    return None if frame is QUIET else of_library(library, frame)


@contextmanager
def quiet() -> Iterator[None]:
    """What runs inside is our own traffic: no guard sees it."""
    token = FRAME.set(QUIET)
    try:
        yield
    finally:
        FRAME.reset(token)


def call(
    site: Site,
    circuit: Circuit,
    wrapped: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    credential: str | None = None,
    timeout: float | None = None,
    of: Frame | None = None,
) -> Any:
    """Run ``wrapped`` through the guard. See `begin` for the arguments."""
    frame = begin(site, circuit, credential, timeout, of)
    if frame is None:
        return wrapped(*args, **kwargs)
    token = FRAME.set(frame)
    try:
        result = wrapped(*args, **kwargs)
    except BaseException as error:
        FRAME.reset(token)
        fail(frame, error)
        raise
    FRAME.reset(token)
    if type(result) is CoroutineType:
        frame[DONE] = True
        return later(frame, result)
    done(frame, result)
    return result


async def later(frame: Frame, coroutine: Any) -> Any:
    """Drive what a plain function returned in place of a result, inside its frame; the call ends with it."""
    frame[DONE] = False
    token = FRAME.set(frame)
    try:
        result = await coroutine
    except BaseException as error:
        FRAME.reset(token)
        fail(frame, error)
        raise
    FRAME.reset(token)
    done(frame, result)
    return result


async def acall(
    site: Site,
    circuit: Circuit,
    wrapped: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    credential: str | None = None,
    timeout: float | None = None,
    of: Frame | None = None,
) -> Any:
    """`call` for a function that returns an awaitable; ends it at the deadline where the policy enforces that."""
    frame = begin(site, circuit, credential, timeout, of)
    if frame is None:
        return await wrapped(*args, **kwargs)
    token = FRAME.set(frame)
    try:
        if circuit.policy.enforce_deadline and site.timed and frame[OF] is None:
            result = await bounded(wrapped(*args, **kwargs), frame, timeout)
        else:
            result = await wrapped(*args, **kwargs)
    except BaseException as error:
        FRAME.reset(token)
        fail(frame, error)
        raise
    FRAME.reset(token)
    done(frame, result)
    return result
