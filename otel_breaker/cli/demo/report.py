"""The end of the demo: the comparison, what the receiver received, the promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from otel_breaker.telemetry import names

from . import second_checks
from .checks import EVENTS, Check, Evidence
from .receiver import Receiver
from .screen import WIDTH, Screen, shortened
from .signals import Attributes, Point

Row = tuple[str, str, float, float]
"""What was counted, how to write it, without and with breakers."""


def rows(evidence: Evidence) -> list[Row]:
    """The first act's numbers."""
    without, guarded = evidence.plain, evidence.guarded
    return [
        ("requests on the wire", ",.0f", len(without.hits), len(guarded.hits)),
        ("seconds waited for tools", ",.1f", without.waited, guarded.waited),
        ("characters of failure text", ",.0f", without.failure_text, guarded.failure_text),
    ]


def rows_of_second(evidence: second_checks.Evidence) -> list[Row]:
    """The second act's numbers."""
    without, guarded = evidence.plain, evidence.guarded
    return [
        ("requests on the wire", ",.0f", without.requests, guarded.requests),
        ("starts of the MCP server", ",.0f", without.starts, guarded.starts),
        ("tool calls that the model asked for", ",.0f", len(without.calls), len(guarded.calls)),
        ("seconds waited while they were down", ",.1f", without.waited, guarded.waited),
        ("characters of failure text", ",.0f", without.failure_text, guarded.failure_text),
    ]


def comparison(screen: Screen, acts: Mapping[str, Sequence[Row]]) -> None:
    """Both runs of every act side by side."""
    table = [["", "without", "with", ""]]
    for title, counted in acts.items():
        table.append([title, "", "", ""])
        for what, form, without, guarded in counted:
            change = f"{(guarded - without) / without:+.0%}" if without else ""
            table.append([f"  {what}", format(without, form), format(guarded, form), change])
    screen.heading("Saved: counted at the servers, on the agent's clock and in the model's context")
    screen.table(table, right=(1, 2, 3))


def read(screen: Screen, evidence: second_checks.Evidence) -> None:
    """The model's next message, without and with breakers."""
    screen.line()
    screen.line("  The model's next message after it asked the dead MCP server for the last time")
    screen.wrapped(shortened(evidence.plain.read_last, WIDTH - 13), 13, "red", first="    without")
    screen.wrapped(evidence.guarded.read_last, 13, "yellow", first="    with")


def left_out(lacking: Sequence[str]) -> str:
    """The line about a second act that was not played."""
    return f"The second act was left out; not installed: {', '.join(lacking)}. Try: pip install 'otel-breaker[demo]'"


def document(acts: Mapping[str, tuple[Sequence[Row], Sequence[Check]]], lacking: Sequence[str]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "kept": all(check.kept for _, checked in acts.values() for check in checked),
        "acts": [
            {
                "name": title,
                "counted": [
                    {"what": what, "without": round(without, 3), "with": round(guarded, 3)}
                    for what, _, without, guarded in counted
                ],
                "promised": [{"promise": check.promise, "kept": check.kept, "seen": check.seen} for check in checked],
            }
            for title, (counted, checked) in acts.items()
        ],
        "not_installed": list(lacking),
    }


def received(screen: Screen, receiver: Receiver) -> None:
    """Every metric and event by its exact name, with the last value of each series that is not 0."""
    screen.heading(f"Received over OTLP from the first act, in {receiver.requests} requests")
    metrics: dict[str, str] = {}
    for point in receiver.points:
        if point.name.startswith(f"{names.SCOPE}."):
            metrics[point.name] = point.unit
    width, units = (max(map(len, texts), default=0) for texts in (metrics.keys(), metrics.values()))
    screen.line(f"  {'metric':<{width}}   {'unit':<{units}}   last values", "dim")
    for name, unit in sorted(metrics.items()):
        values = ", ".join(_values(receiver.series(name))) or "0"
        screen.wrapped(values, width + units + 8, first=f"  {name:<{width}}   {unit:<{units}}")
    screen.line()
    logs = Counter(log.event_name for log in receiver.logs)
    rows = [["event", "on spans", "as logs"]]
    for name in (*EVENTS, names.CREDENTIAL_REVOKED):
        rows.append([name, str(len(receiver.span_events(name))), str(logs[name])])
    screen.table(rows, right=(1, 2))
    merged = sum(int(span.attributes.get(names.MERGED, 0)) for span in receiver.spans)
    if merged:
        screen.line(f"  Refusals come as at most one span and one log a second: those above stand for {merged}.", "dim")


def promises(screen: Screen, title: str, checks: Iterable[Check]) -> int:
    """Every promise with ok or FAILED; the number of those that were not kept."""
    screen.heading(title)
    broken = 0
    for check in checks:
        broken += not check.kept
        verdict = screen.paint("    ok  ", "green") if check.kept else screen.paint("FAILED  ", "bold", "red")
        screen.line(f"{verdict}{check.promise}")
        screen.wrapped(check.seen, 8, "dim")
    return broken


def _values(series: list[Point]) -> list[str]:
    totals: dict[str, float] = {}
    for point in series:
        label = _label(point.attributes)
        totals[label] = totals.get(label, 0) + (point.count if point.kind == "histogram" else point.value)
    return [f"{label} {value:.10g}".strip() for label, value in totals.items() if value]


def _label(attributes: Attributes) -> str:
    """The attributes' values without the circuit's name, which is one and the same here."""
    if names.PREVIOUS_STATE in attributes:
        return f"{attributes[names.PREVIOUS_STATE]} -> {attributes[names.STATE]}"
    return " ".join(str(value) for key, value in sorted(attributes.items()) if key != names.NAME)
