"""What the breakers promise for the second act, looked up in what the servers counted and the receiver received."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from otel_breaker.telemetry import names

from .checks import Check
from .driver import KEY
from .receiver import Receiver
from .second_act import ASSISTANT, TRIES, WAREHOUSE, Exchange, Second

FIELDS: Final = ["status", "tool", "reason", "retry_after_ms", "alternatives"]
"""Of the structured answer."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What both runs of the second act left behind.

    Attributes:
        plain: the run without breakers.
        guarded: the run with them.
        receiver: what the guarded run sent.
    """

    plain: Second
    guarded: Second
    receiver: Receiver

    def refused(self) -> list[Exchange]:
        """Turns in which every call of the model was refused."""
        return [one for one in self.guarded.exchanges if all(call.answer for call in one.calls)]

    def charged(self) -> dict[str, int]:
        """Failures by circuit."""
        counted: dict[str, int] = {}
        for point in self.receiver.series(names.FAILURES[0]):
            name = str(point.attributes[names.NAME])
            counted[name] = counted.get(name, 0) + int(point.value)
        return counted


def checks(evidence: Evidence) -> Iterator[Check]:
    """Every promise in order."""
    for check in _CHECKS:
        yield check(evidence)


def _ran(e: Evidence) -> Check:
    done = e.plain.exit_status == e.guarded.exit_status == 0 and len(e.plain.exchanges) == len(e.guarded.exchanges)
    unaware = all(b"breaker" not in text.read_bytes() for text in (ASSISTANT, WAREHOUSE))
    return Check(
        "one and the same LangGraph agent, which knows nothing of breakers, ran to its end twice",
        done and unaware,
        f"{len(e.plain.exchanges)} and {len(e.guarded.exchanges)} answers to the user, exit status "
        f"{e.plain.exit_status} and {e.guarded.exit_status}",
    )


def _killed(e: Evidence) -> Check:
    def came_back(run: Second) -> bool:
        stock = [one for one in run.exchanges if one.tool == "stock"]
        return run.pids[0] == run.killed != run.pids[-1] and stock[-1].reached.calls == 1

    last = e.guarded.exchanges[-2:]
    return Check(
        "the killed MCP server was started again by the first call after the cooldown",
        came_back(e.plain) and came_back(e.guarded) and [one.said for one in last] == [*_said(e.plain)][-2:],
        f"process {e.guarded.killed} was killed, {e.guarded.pids[-1]} answered at last",
    )


def _sends_nothing(e: Evidence) -> Check:
    refused = e.refused()
    reached = sum((one.reached.requests + one.reached.starts + one.reached.calls) for one in refused)
    return Check(
        "a refused tool call sends no request and starts no process",
        {one.tool for one in refused} == {"stock", "payment"} and reached == 0,
        f"{len(refused)} turns were refused as a whole; {reached} requests, starts and calls in them",
    )


def _told(e: Evidence) -> Check:
    answers = [(call.tool, call.answer) for call in e.guarded.calls if call.answer]
    whole = all([*answer] == FIELDS and answer["tool"] == tool for tool, answer in answers)
    return Check(
        "the model's next message holds the structured answer, with the name of its own tool",
        bool(answers) and whole,
        f"{len(answers)} answers with {', '.join(FIELDS)}",
    )


def _stops(e: Evidence) -> Check:
    refused = e.refused()
    asked = {len(one.calls) for one in refused}
    return Check(
        "the model that is told so does not ask again",
        asked == {1},
        f"tool calls in a refused turn: {', '.join(map(str, sorted(asked))) or 'none'}; after errors: {TRIES}",
    )


def _charged_once(e: Evidence) -> Check:
    failed = sum(call.failed and not call.answer for call in e.guarded.calls)
    charged = e.charged()
    shown = ", ".join(f"{name} {count}" for name, count in sorted(charged.items()) if count)
    return Check(
        "each failure is charged once, to the server that caused it, and not to the tool",
        0 < failed == sum(charged.values()) and not charged.get("stock") and not charged.get("payment"),
        f"{failed} failed calls; charged: {shown or 'nothing'}",
    )


def _closed(e: Evidence) -> Check:
    closed, others = 0, 0
    for point in e.receiver.series(names.STATUS[0]):
        if point.attributes[names.STATE] == "closed":
            closed += int(point.value)
        else:
            others += int(point.value)
    opened = sum(
        int(point.value)
        for point in e.receiver.series(names.TRANSITIONS[0])
        if (point.attributes[names.PREVIOUS_STATE], point.attributes[names.STATE]) == ("closed", "open")
    )
    return Check(
        "two circuits opened, and every circuit is closed at the end",
        opened == 2 and closed > 0 and others == 0,
        f"{opened} openings; {closed} closed circuits, {others} others",
    )


def _fewer(what: str, measure: Callable[[Second], float], form: str) -> Callable[[Evidence], Check]:
    def check(e: Evidence) -> Check:
        without, guarded = measure(e.plain), measure(e.guarded)
        return Check(f"fewer {what}", guarded < without, f"{without:{form}} without, {guarded:{form}} with")

    return check


def _silent(e: Evidence) -> Check:
    quiet = e.guarded.complaints == e.plain.complaints
    lines = [len(run.complaints.splitlines()) for run in (e.plain, e.guarded)]
    kept = quiet and bool(e.receiver.raw) and KEY.encode() not in e.receiver.raw
    return Check(
        "the agent's stderr is as it was, and its key is in nothing that was sent",
        kept,
        f"{lines[0]} lines without, {lines[1]} with; {len(e.receiver.raw):,} bytes read",
    )


def _said(run: Second) -> Iterator[str]:
    return (one.said for one in run.exchanges)


_CHECKS: Final[tuple[Callable[[Evidence], Check], ...]] = (
    _ran,
    _killed,
    _sends_nothing,
    _told,
    _stops,
    _charged_once,
    _closed,
    _fewer("starts of the MCP server", lambda run: run.starts, ",.0f"),
    _fewer("requests at the vendor", lambda run: run.requests, ",.0f"),
    _fewer("seconds waited while they were down", lambda run: run.waited, ".1f"),
    _fewer("characters of failure text", lambda run: run.failure_text, ",.0f"),
    _silent,
)
