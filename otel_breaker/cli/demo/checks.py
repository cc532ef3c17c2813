"""What the breakers promise, each looked up in what the vendor counted and what the receiver received."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from otel_breaker.telemetry import names

from .driver import AGENT, KEY, Run
from .live import PAGE_AT
from .receiver import Receiver
from .vendor import RETRY_AFTER, Hit

METRICS: Final = (names.ADMISSIONS[0], names.OUTCOMES[0], names.FAILURES[0], names.TRANSITIONS[0], names.STATUS[0])
"""Metrics that must have come."""
EVENTS: Final = (
    names.CALL_ADMITTED,
    names.CALL_REJECTED,
    names.PROBE_STARTED,
    names.PROBE_FINISHED,
    names.STATE_CHANGED,
)
"""Span events that must have come."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, whether it was kept, and the numbers that say so."""

    promise: str
    kept: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What both runs left behind.

    Attributes:
        plain: the run without breakers.
        guarded: the run with them.
        receiver: what the guarded run sent.
    """

    plain: Run
    guarded: Run
    receiver: Receiver

    def counted(self, metric: str, **attributes: str) -> int:
        """The last value of a metric of the vendor's circuit; 0 where there is none."""
        return int(self.receiver.value(metric, otel_breaker__name=self.guarded.vendor, **attributes) or 0)

    def decided(self, decision: str) -> int:
        """Calls with this decision."""
        return self.counted(names.ADMISSIONS[0], otel_breaker__decision=decision)

    def moves(self) -> list[tuple[str, str, float]]:
        """Previous state, state and time of every transition."""
        found = [
            (str(event.attributes[names.PREVIOUS_STATE]), str(event.attributes[names.STATE]), event.at / 1e9)
            for event in self.receiver.span_events(names.STATE_CHANGED)
        ]
        return sorted(found, key=lambda move: move[2])

    def probes(self) -> list[tuple[float, float]]:
        """Start and end of every probe."""
        starts, ends = (
            sorted(event.at / 1e9 for event in self.receiver.span_events(name))
            for name in (names.PROBE_STARTED, names.PROBE_FINISHED)
        )
        return list(zip(starts, ends, strict=False))

    def episode(self) -> tuple[float, float] | None:
        """When the circuit opened first and closed last."""
        opened = [at for previous, state, at in self.moves() if (previous, state) == ("closed", "open")]
        closed = [at for _, state, at in self.moves() if state == "closed"]
        return (opened[0], closed[-1]) if opened and closed and closed[-1] > opened[0] else None


def checks(evidence: Evidence) -> Iterator[Check]:
    """Every promise in order."""
    for check in _CHECKS:
        yield check(evidence)


def _ran(e: Evidence) -> Check:
    done = e.plain.exit_status == e.guarded.exit_status == 0
    unaware = b"breaker" not in AGENT.read_bytes()
    kept = done and unaware and len(e.plain.steps) == len(e.guarded.steps)
    return Check(
        "one and the same program, which knows nothing of breakers, ran to its end twice",
        kept,
        f"{len(e.plain.steps)} and {len(e.guarded.steps)} tool calls, exit status {e.plain.exit_status} and "
        f"{e.guarded.exit_status}",
    )


def _opened(e: Evidence) -> Check:
    opened = e.counted(names.TRANSITIONS[0], otel_breaker__previous_state="closed", otel_breaker__state="open")
    episode = e.episode()
    failures = sum(hit.status != 200 for hit in e.guarded.hits if episode and hit.at <= episode[0])
    return Check("the circuit opened", opened >= 1, f"after {failures} failed requests")


def _refusals(e: Evidence) -> Check:
    refused = e.decided("circuit_open") + e.decided("probe_in_flight")
    let_through = e.decided("admitted") + e.decided("probe")
    sent = len(e.guarded.hits)
    return Check(
        "a refused call sends nothing",
        refused > 0 and sent == let_through,
        f"{refused} refused; {let_through} let through, {sent} requests at the vendor",
    )


def _probes(e: Evidence) -> Check:
    episode, probes = e.episode(), e.probes()
    within = [hit for hit in e.guarded.hits if episode and episode[0] < hit.at <= episode[1]]
    each = [sum(start <= hit.at <= end for hit in within) for start, end in probes]
    return Check(
        "while it is not closed, probes alone reach the vendor, with one request each",
        bool(probes) and len(probes) == e.decided("probe") == len(within) and set(each) == {1},
        f"{len(probes)} probes, {len(within)} requests",
    )


def _cooldowns(e: Evidence) -> Check:
    most = max((p.value for p in e.receiver.points if p.name == names.COOLDOWNS_ELAPSED[0]), default=0)
    return Check(f"{names.COOLDOWNS_ELAPSED[0]} reached {PAGE_AT}, the page's limit", most >= PAGE_AT, f"{most:.0f}")


def _retry_after(e: Evidence) -> Check:
    def gaps(hits: list[Hit]) -> list[float]:
        return [after.at - hit.at for hit, after in itertools.pairwise(hits) if hit.status == 429]

    waits, without = gaps(e.guarded.hits), gaps(e.plain.hits)
    return Check(
        f"after a 429 with Retry-After: {RETRY_AFTER} nothing is sent for that long",
        bool(waits) and min(waits) >= RETRY_AFTER,
        f"next request after {min(waits, default=0):.1f} s; without, after {min(without, default=0):.1f} s",
    )


def _closed(e: Evidence) -> Check:
    moves = e.moves()
    closed = e.counted(names.STATUS[0], otel_breaker__state="closed")
    answered = bool(e.guarded.steps) and e.guarded.steps[-1].told == e.plain.steps[-1].told
    return Check(
        "the circuit closed again, and the last call got the vendor's answer as without breakers",
        bool(moves) and moves[-1][1] == "closed" and closed == 1 and answered,
        f"last transition: {' -> '.join(moves[-1][:2])}" if moves else "no transition",
    )


def _fewer(what: str, measure: Callable[[Run], float], form: str) -> Callable[[Evidence], Check]:
    def check(e: Evidence) -> Check:
        without, guarded = measure(e.plain), measure(e.guarded)
        seen = f"{without:{form}} without, {guarded:{form}} with"
        return Check(f"fewer {what}", guarded < without, seen)

    return check


def _received(e: Evidence) -> Check:
    got = {p.name for p in e.receiver.points}
    missing = [name for name in METRICS if name not in got]
    missing += [name for name in EVENTS if not e.receiver.span_events(name)]
    seen = f"missing: {', '.join(missing)}" if missing else f"{len(METRICS)} metrics, {len(EVENTS)} span events"
    return Check("the receiver got every metric and span event that matters here", not missing, seen)


def _own_traffic(e: Evidence) -> Check:
    circuits = sorted({str(p.attributes[names.NAME]) for p in e.receiver.series(names.STATUS[0])})
    return Check(
        "the vendor alone has a circuit: what the exporter sends is left alone",
        circuits == [e.guarded.vendor],
        f"circuits: {', '.join(circuits) or 'none'}",
    )


def _silent(e: Evidence) -> Check:
    lines = len(e.guarded.complaints.splitlines())
    return Check(
        "the agent's stderr is as it was",
        e.guarded.complaints == e.plain.complaints,
        f"{len(e.plain.complaints.splitlines())} lines without, {lines} with",
    )


def _secret(e: Evidence) -> Check:
    raw = e.receiver.raw
    return Check("the agent's key is nowhere in it", bool(raw) and KEY.encode() not in raw, f"{len(raw):,} bytes read")


_CHECKS: Final[tuple[Callable[[Evidence], Check], ...]] = (
    _ran,
    _opened,
    _refusals,
    _probes,
    _cooldowns,
    _retry_after,
    _closed,
    _fewer("requests on the wire", lambda run: len(run.hits), ",.0f"),
    _fewer("seconds waited", lambda run: run.waited, ".1f"),
    _fewer("characters of failure text", lambda run: run.failure_text, ",.0f"),
    _received,
    _own_traffic,
    _secret,
    _silent,
)
