"""The guard: begin, done, fail. Sync and async calls are two thin shells over these three.

`begin` decides and pushes a frame, `done` and `fail` judge and settle it. Our own faults are caught and logged once, and
the call goes on; the user's exception leaves as the same object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from . import _settling
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
    Evidence,
    Frame,
    Site,
    charges,
    denial,
    enclosing,
    live,
    of_library,
    owner_of,
    refused,
)
from ._log import fault
from .circuit import SAMPLE_EVERY, VOID, Circuit
from .core.events import Refused
from .errors import CircuitOpenError
from .outcomes import IGNORED, OK, Outcome
from .telemetry import emit

QUIET: Final[Frame] = []
"""In `FRAME`: what runs inside is our own traffic and bypasses every guard."""


def begin(
    site: Site,
    circuit: Circuit,
    credential: str | None = None,
    timeout: float | None = None,
    hop: bool = False,
) -> Frame | None:
    """Ask for admission and build the frame; the caller pushes it.

    Args:
        site: what is being called.
        circuit: the availability circuit of the dependency.
        credential: fingerprint, if it is known already.
        timeout: the call's own time limit, seconds.
        hop: one try or redirect inside a call of the same library, if such a call is running.

    Returns:
        The frame, or ``None`` when the call is none of ours and must go straight through.

    Raises:
        CircuitOpenError: if the call is refused.
    """
    try:
        context = emit.current()
        parent = FRAME.get()
        if parent is QUIET or circuit.mode == "off" or (context and emit.suppressed(context)):
            return None
        parent = live(parent)
        if parent is not None:
            inside = of_library(site.library, parent) if hop else enclosing(circuit, parent)
            if inside is not None:
                return _attempt(site, inside, parent, context, timeout)
        return _admit(site, circuit, parent, context, credential, timeout)
    except CircuitOpenError:
        raise
    except Exception as error:
        fault("begin", "a guard failed; the call goes on unguarded", error)
        return None


def _admit(
    site: Site, circuit: Circuit, parent: Frame | None, context: Any, credential: str | None, timeout: float | None
) -> Frame:
    emit.start()
    if credential is None:
        credential = circuit._credential
    if circuit.split and credential is not None:
        circuit = circuit.share(credential)
    permit: int | None = circuit.gate
    probe, quota = False, None
    tool = tool_name(site, parent)
    if tool is not None and tool not in circuit.stats.tools:
        circuit.stats.used_by(tool)
    if permit is not None:
        circuit.stats.admitted += 1
    else:
        verdict, quota = _settling.admit(circuit, credential, timeout, site)
        if isinstance(verdict, Refused):
            decision, blamed = verdict.decision, quota[0] if quota is not None else circuit
            if circuit.mode == "enforce":
                circuit.decide(decision)
                _refuse(site, blamed, parent, context, decision, verdict.retry_after, credential, tool)
            circuit.decide("would_reject")
            emit.on_refuse(context, circuit, site, "would_reject", verdict.retry_after, credential)
            permit, quota = VOID, None
        else:
            permit, probe = verdict.id, verdict.probe or (quota is not None and quota[2])
            circuit.decide("probe" if probe else "admitted")
    now = circuit.clock.now()
    frame: Frame = [
        circuit, permit, now, parent, charges[0], None, False, None, probe, quota, site, credential, sys.exception(),
        None, None, now, timeout,
    ]  # fmt: skip
    if permit != VOID and (context or emit.own_spans()):
        frame[SPAN] = emit.on_admit(context, circuit, site, probe, credential)
    return frame


def _attempt(site: Site, inside: Frame, parent: Frame, context: Any, timeout: float | None) -> Frame:
    root = owner_of(inside)
    circuit: Circuit = root[CIRCUIT]
    evidence = inside[EVIDENCE]
    if evidence is None:
        evidence = inside[EVIDENCE] = Evidence()
    denied = denial(inside)
    if denied is not None:
        evidence.refused = True
        circuit.decide(denied[0])
        _refuse(site, circuit, None, context, *denied, root[CREDENTIAL], tool_name(site, parent))
    evidence.running += 1
    now = circuit.clock.now()
    return [
        circuit, root[PERMIT], now, parent, charges[0], None, False, None, False, None, site, None, sys.exception(),
        inside, None, now, timeout,
    ]  # fmt: skip


def _refuse(
    site: Site,
    circuit: Circuit,
    parent: Frame | None,
    context: Any,
    decision: str,
    retry_after: float,
    credential: str | None,
    tool: str | None,
) -> None:
    if parent is not None:
        parent[INNER] = "refused"
    emit.on_refuse(context, circuit.parent or circuit, site, decision, retry_after, credential)
    raise refused(circuit, site, decision, retry_after, tool)


def tool_name(site: Site, parent: Frame | None) -> str | None:
    """The tool this call is made for: its own, or that of the nearest tool around it."""
    if site.tool is not None:
        return site.tool
    while parent is not None:
        if parent[SITE].tool is not None:
            name: str = parent[SITE].tool
            return name
        parent = live(parent[UP])
    return None


def done(frame: Frame, result: Any) -> None:
    """Judge a result that was returned and settle, unless its body is still to come. Never raises."""
    try:
        site: Site = frame[SITE]
        outcome = site.judge(frame, result) if site.judge is not None else None
        if outcome is PENDING:
            frame[DONE] = True
            return
        if outcome is None and site.body and frame[EVIDENCE] is not None and frame[EVIDENCE].failed:
            outcome = frame[EVIDENCE].last  # the tool swallowed its dependency's failure
        circuit: Circuit = frame[CIRCUIT]
        if outcome is None or outcome is OK:
            if (
                frame[OF] is None
                and frame[SPAN] is None
                and frame[CREDENTIAL] is None
                and circuit.gate == frame[PERMIT]
                and not circuit.busy
                and frame[STARTED] < circuit.sample_at
            ):
                frame[DONE] = True
                frame[PERMIT] = None
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


def fail(frame: Frame, error: BaseException) -> None:
    """Judge an exception and settle. Never raises."""
    try:
        _settling.fail(frame, error)
    except Exception as own:
        fault("fail", "settling a failed call failed; its exception is unaffected", own)


def finish(frame: Frame, outcome: Outcome | None = None) -> None:
    """Settle a call whose body ended (``None``: completely and well). A second time it changes nothing. Never raises."""
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


def note(frame: Frame, outcome: Outcome) -> None:
    """Add evidence that was seen below without a frame of its own."""
    if frame[EVIDENCE] is None:
        frame[EVIDENCE] = Evidence()
    frame[EVIDENCE].note(outcome)


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
        frame[EVIDENCE] = frame[EVIDENCE] or Evidence()
        frame[EVIDENCE].refused = True
        root[CIRCUIT].decide(denied[0])
        _refuse(frame[SITE], root[CIRCUIT], None, emit.current(), *denied, root[CREDENTIAL], None)


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
    hop: bool = False,
) -> Any:
    """Run ``wrapped`` through the guard. See `begin` for the arguments."""
    frame = begin(site, circuit, credential, timeout, hop)
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
    hop: bool = False,
) -> Any:
    """`call` for a function that returns an awaitable; ends it at the deadline where the policy enforces that."""
    frame = begin(site, circuit, credential, timeout, hop)
    if frame is None:
        return await wrapped(*args, **kwargs)
    token = FRAME.set(frame)
    try:
        if circuit.policy.enforce_deadline and frame[OF] is None:
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


async def bounded(awaitable: Any, frame: Frame, timeout: float | None) -> Any:
    """Await, but not past the deadline (under asyncio; other event loops are not bounded).

    Raises:
        TimeoutError: at the deadline; the frame then counts ``deadline_exceeded``.
    """
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return await awaitable
    limit = asyncio.timeout(timeout or frame[CIRCUIT].policy.call_deadline)
    try:
        async with limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            note(frame, replace(_settling.OVERDUE))
        raise
