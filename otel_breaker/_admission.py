"""Admission: is this call ours, is it an attempt of one that runs already, and may it go ahead?"""

from __future__ import annotations

import sys
from typing import Any, Final

from . import _settling
from ._frames import (
    CIRCUIT,
    CREDENTIAL,
    EVIDENCE,
    FRAME,
    INNER,
    OF,
    PERMIT,
    SITE,
    SPAN,
    UP,
    Evidence,
    Frame,
    Site,
    charges,
    denial,
    enclosing,
    live,
    owner_of,
    refused,
)
from ._log import fault
from ._threads import AT_ONCE
from .circuit import VOID, Circuit
from .core.events import Refused
from .errors import CircuitOpenError
from .telemetry import emit, providers, quick

QUIET: Final[Frame] = []
"""In `FRAME`: what runs inside is our own traffic and bypasses every guard."""


def begin(
    site: Site,
    circuit: Circuit,
    credential: str | None = None,
    timeout: float | None = None,
    of: Frame | None = None,
) -> Frame | None:
    """Ask for admission and build the frame; the caller pushes it.

    Args:
        site: what is being called.
        circuit: the availability circuit of the dependency.
        credential: fingerprint, if it is known already.
        timeout: the call's own time limit, seconds.
        of: the running call of the same library that this is a try or redirect of.

    Returns:
        The frame, or ``None`` when the call is none of ours and must go straight through.

    Raises:
        CircuitOpenError: if the call is refused.
    """
    try:
        context = quick.current()
        parent = FRAME.get()
        if parent is QUIET or circuit.mode == "off" or (context and emit.suppressed(context)):
            return None
        if parent is not None:
            parent = live(parent)
            inside = of or enclosing(circuit, parent)
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
    if not emit._state.started:
        emit.start()
    if credential is None:
        credential = circuit._credential
    if circuit.split and credential is not None:
        circuit = circuit.share(credential)
    permit: int | None = circuit.gate
    probe, quota = False, None
    tool = site if parent is None else tool_site(site, parent)
    if tool is not None and tool.tool is not None and tool.tool not in circuit.stats.tools:
        circuit.stats.used_by(tool.tool)
    if permit is not None:
        if AT_ONCE:
            circuit.stats.decide("admitted")
        else:
            circuit.stats.admitted += 1
        if circuit.quotas is not None:
            quota = _settling.closed_quota(circuit, credential)
    else:
        verdict, quota = _settling.admit(circuit, credential, timeout, site)
        if isinstance(verdict, Refused):
            decision, blamed = verdict.decision, quota[0] if quota is not None else circuit
            if circuit.mode == "enforce":
                circuit.decide(decision)
                refuse(site, blamed, parent, context, decision, verdict.retry_after, credential, tool)
            circuit.decide("would_reject")
            emit.on_refuse(context, circuit, site, "would_reject", verdict.retry_after, credential)
            permit, quota = VOID, None
        else:
            permit, probe = verdict.id, verdict.probe or (quota is not None and quota[2])
            circuit.decide("probe" if probe else "admitted")
    now = circuit.now()
    frame: Frame = [
        circuit, permit, now, parent, charges[0], None, False, None, probe, quota, site, credential, sys.exception(),
        None, None, now, timeout,
    ]  # fmt: skip
    traced = context or ((quick.tracing._TRACER_PROVIDER is not None or providers._state.mine) and emit.own_spans())
    if traced and permit != VOID:
        frame[SPAN] = emit.on_admit(context, circuit, site, probe, credential)
    return frame


def _attempt(site: Site, inside: Frame, parent: Frame | None, context: Any, timeout: float | None) -> Frame:
    root = inside if inside[OF] is None else owner_of(inside)
    circuit: Circuit = root[CIRCUIT]
    evidence = inside[EVIDENCE]
    if evidence is None:
        evidence = inside[EVIDENCE] = Evidence()
    if circuit.gate != root[PERMIT] and (denied := denial(inside)) is not None:
        circuit.decide(denied[0])
        refuse(site, circuit, None, context, *denied, root[CREDENTIAL], tool_site(site, parent))
    evidence.running += 1
    now = circuit.now()
    return [
        circuit, root[PERMIT], now, parent, charges[0], None, False, None, False, None, site, None, sys.exception(),
        inside, None, now, timeout,
    ]  # fmt: skip


def refuse(
    site: Site,
    circuit: Circuit,
    parent: Frame | None,
    context: Any,
    decision: str,
    retry_after: float,
    credential: str | None,
    tool: Site | None,
) -> None:
    if parent is not None:
        parent[INNER] = "refused"
    emit.on_refuse(context, circuit.parent or circuit, site, decision, retry_after, credential)
    raise refused(circuit, site, decision, retry_after, tool)


def tool_site(site: Site, parent: Frame | None) -> Site | None:
    """The tool this call is made for: itself, or the nearest tool around it."""
    if site.tool is not None:
        return site
    while parent is not None:
        around: Site = parent[SITE]
        if around.tool is not None:
            return around
        parent = live(parent[UP])
    return None
