"""How a frame is settled: who is blamed, which circuits hear of it, and what telemetry is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ._frames import (
    ALIVE,
    CIRCUIT,
    CREDENTIAL,
    DONE,
    EVIDENCE,
    HANDLED,
    INNER,
    MARK,
    MARKED,
    OF,
    PERMIT,
    PROBE,
    QUOTA,
    SITE,
    SPAN,
    STARTED,
    TIMEOUT,
    UP,
    Evidence,
    Frame,
    Site,
    charged,
    live,
    mark,
    marked,
    refused,
)
from ._log import fault
from .circuit import VOID, Circuit
from .classify import exception_outcome, walk
from .core.events import Admitted, Refused
from .core.states import Closed
from .errors import CircuitOpenError
from .outcomes import CANCELLED, FAILURE, IGNORED, OK, SUCCESS, THROTTLED, UNAUTHORIZED, Outcome
from .telemetry import emit

OVERDUE: Final = Outcome(FAILURE, "deadline_exceeded")
WORKED_MAX: Final = 1000
"""Credentials of one dependency remembered as having worked; the oldest are forgotten first."""

PROVEN: Final = None
"""In a frame's probe slot: its success is counted already; only a later fault is news."""

Held = tuple[Circuit, int, bool]


def admit(
    circuit: Circuit, credential: str | None, timeout: float | None, site: Site
) -> tuple[Admitted | Refused, Held | None]:
    """Ask the credential's quota circuit first, then the availability circuit.

    Returns:
        The verdict, and the quota permit that was taken (or the quota circuit that refused).
    """
    held: Held | None = None
    quota = circuit.quotas.get(credential) if credential is not None and circuit.quotas is not None else None
    if quota is not None:
        verdict = quota.admit(timeout, site, credential)
        if isinstance(verdict, Refused):
            decision = "throttled" if verdict.decision == "circuit_open" else verdict.decision
            return Refused(decision, verdict.retry_after), (quota, VOID, False)
        held = (quota, verdict.id, verdict.probe)
    verdict = circuit.admit(timeout, site, credential)
    if isinstance(verdict, Refused) and held is not None:
        if held[2]:
            held[0].settle(held[1], IGNORED)
        held = None
    return verdict, held


def fail(frame: Frame, error: BaseException) -> None:
    """Find out what an exception says about this frame's dependency, and settle it."""
    if frame[PERMIT] is None:
        return
    circuit: Circuit = frame[CIRCUIT]
    evidence: Evidence | None = frame[EVIDENCE]
    errors = walk(error, frame[HANDLED])
    blamed = marked(errors, frame)
    if blamed is not None and blamed != circuit.key:
        settle(frame, _beside(frame, error), blamed=True)
    elif blamed is not None:  # our own attempt layer stopped the call: what its attempts came to is the verdict
        settle(frame, evidence.last if evidence is not None and evidence.failed and evidence.last else IGNORED)
    elif frame[INNER] in ("charged", "refused"):
        settle(frame, _beside(frame, error), blamed=True)
    else:
        outcome = _explained(frame, error, evidence)
        if charged(outcome) and frame[OF] is None:
            mark(error, circuit)
        settle(frame, outcome)


def _beside(frame: Frame, error: BaseException) -> Outcome:
    """What a call came to for which somebody further in was blamed: nothing, unless its own layer knows it was well."""
    site: Site = frame[SITE]
    return OK if site.explain is not None and _told(site, frame, error) is OK else IGNORED


def _told(site: Site, frame: Frame, error: BaseException) -> Outcome | None:
    try:
        return site.explain(frame, error) if site.explain is not None else None
    except Exception as own:
        fault(("classify", id(site)), "a classifier raised; the built-in rules decide", own)
        return None


def _explained(frame: Frame, error: BaseException, evidence: Evidence | None) -> Outcome:
    site: Site = frame[SITE]
    circuit: Circuit = frame[CIRCUIT]
    if evidence is not None and evidence.last is OVERDUE:
        return OVERDUE
    if (told := _told(site, frame, error)) is not None:
        return told
    outcome = exception_outcome(
        error,
        stop=frame[HANDLED],
        seen=evidence.last if evidence is not None else None,
        tool=site.body,
        called=frame[INNER] is not None or (evidence is not None and evidence.attempts > 0),
        unclassified=circuit.policy.unclassified,
        wall=circuit.clock.wall(),
    )
    if outcome.kind == CANCELLED:
        policy = circuit.policy
        patience = min(policy.cancel_counts_after, frame[TIMEOUT] or policy.call_deadline)
        if circuit.clock.now() - frame[ALIVE] >= patience:
            return OVERDUE
    return outcome


def settle(frame: Frame, outcome: Outcome, *, blamed: bool = False) -> None:
    """Settle once.

    Args:
        frame: the call.
        outcome: what it came to.
        blamed: somebody further in was charged or refused for it already.
    """
    permit = frame[PERMIT]
    if permit is None:
        return
    frame[PERMIT] = None
    frame[DONE] = True
    if frame[OF] is not None:
        evidence: Evidence = frame[OF][EVIDENCE]
        evidence.running -= 1
        evidence.note(outcome)
        if blamed and (up := live(frame[UP])) is not None:
            up[INNER] = "charged"
        return
    up = live(frame[UP])
    circuit: Circuit = frame[CIRCUIT]
    if frame[PROBE] is PROVEN and not charged(outcome):
        return
    if up is not None:
        up[INNER] = "charged" if blamed or charged(outcome) else "ok"
    duration = circuit.clock.now() - frame[STARTED]
    credential = frame[CREDENTIAL]
    if permit == VOID:
        circuit.stats.count("late", None)
        counted = "late"
    else:
        if credential is not None:
            if outcome.kind == THROTTLED:
                outcome = replace(outcome, credential=credential)
            _settle_quota(circuit, frame, outcome, credential, duration)
        counted = circuit.settle(permit, outcome, duration, deadline=frame[TIMEOUT], site=frame[SITE])
    if frame[SPAN] is not None or frame[PROBE]:
        probe = frame[PROBE] and counted != "late"
        emit.on_done(frame[SPAN], circuit, frame[SITE], counted, outcome.reason, probe, credential)


def _settle_quota(circuit: Circuit, frame: Frame, outcome: Outcome, credential: str, duration: float) -> None:
    held: Held | None = frame[QUOTA]
    kind = outcome.kind
    if kind in (THROTTLED, UNAUTHORIZED):
        quota = circuit.heir(credential)
        worked = circuit.worked is not None and credential in circuit.worked
        quota.settle(
            _fence(quota, held),
            replace(outcome, credential=None),
            duration,
            pause=worked,
            deadline=frame[TIMEOUT],
            site=frame[SITE],
        )
        if worked and kind == UNAUTHORIZED and circuit.policy.on_unauthorized == "alert" and circuit.worked:
            circuit.worked.pop(credential, None)  # reported; it is news again only after it has worked again
        return
    if kind == SUCCESS:
        remember(circuit, credential)
        found = circuit.quotas.get(credential) if circuit.quotas is not None else None
        if found is not None:
            found.settle(_fence(found, held), OK, duration, site=frame[SITE])
    elif held is not None and held[2]:
        held[0].settle(held[1], IGNORED, duration)


def closed_quota(circuit: Circuit, credential: str | None) -> Held | None:
    """The permit of a credential's circuit that is closed."""
    quota = circuit.quotas.get(credential) if credential is not None and circuit.quotas is not None else None
    return (quota, _fence(quota, None), False) if quota is not None else None


def _fence(quota: Circuit, held: Held | None) -> int:
    """The permit to settle a credential's circuit with: the one taken; without one, that of its closed period."""
    if held is not None and held[0] is quota:
        return held[1]
    state = quota._state
    return state.id if isinstance(state, Closed) else VOID


def remember(circuit: Circuit, credential: str) -> None:
    """This credential has worked, so that a later 401 means it was revoked."""
    worked = circuit.worked
    if worked is None:
        worked = circuit.worked = {}
    if credential not in worked:
        if len(worked) >= WORKED_MAX:
            worked.pop(next(iter(worked)), None)
        worked[credential] = None


def renew(root: Frame) -> None:
    """A probe's stream gave a sign of life; after a whole lease of them it has succeeded, and is no probe any more."""
    circuit: Circuit = root[CIRCUIT]
    permit = root[PERMIT]
    held: Held | None = root[QUOTA]
    if held is not None:
        held[0].renew(held[1])
    if circuit.renew(permit):
        # A later abort is a new charge, under the id of the period that began now.
        root[PERMIT], root[PROBE], root[QUOTA] = permit + 1, PROVEN, None
        emit.on_done(root[SPAN], circuit, root[SITE], SUCCESS, None, True, root[CREDENTIAL])
        root[SPAN] = None


def refusal_behind(error: BaseException, frame: Frame) -> CircuitOpenError | None:
    """The refusal in the chain of ``error`` that was raised since ``frame`` was entered: what a tool answers with."""
    if not isinstance(error, Exception):
        return None
    circuit: Circuit = frame[CIRCUIT]
    for one in walk(error, frame[HANDLED]):
        if isinstance(one, CircuitOpenError) and getattr(one, MARKED, (0,))[0] > frame[MARK]:
            if one.key != circuit.name:
                return one
            # Our own attempt layer stopped the body's further tries: what holds now is the state after this failure.
            now = circuit.snapshot()
            decision = {"forced_open": "forced_open", "half_open": "probe_in_flight"}.get(now.state, "circuit_open")
            return refused(circuit, frame[SITE], decision, now.retry_after) if now.retry_after > 0 else one
    return None
