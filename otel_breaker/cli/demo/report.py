"""The end of the demo: the comparison, what the receiver received, the promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from otel_breaker.telemetry import names

from .checks import EVENTS, Check, Evidence
from .receiver import Receiver
from .screen import Screen
from .signals import Attributes, Point


def comparison(screen: Screen, evidence: Evidence) -> None:
    """Both runs side by side."""
    rows = [["", "without", "with", ""]]
    for what, form, without, guarded in (
        ("requests on the wire", ",.0f", len(evidence.plain.hits), len(evidence.guarded.hits)),
        ("seconds waited for tools", ",.1f", evidence.plain.waited, evidence.guarded.waited),
        ("characters of failure text", ",.0f", evidence.plain.failure_text, evidence.guarded.failure_text),
    ):
        change = f"{(guarded - without) / without:+.0%}" if without else ""
        rows.append([what, format(without, form), format(guarded, form), change])
    screen.heading("Counted: the vendor's requests, the agent's seconds, the text in the model's context")
    screen.table(rows, right=(1, 2, 3))


def received(screen: Screen, receiver: Receiver) -> None:
    """Every metric and event by its exact name, with the last value of each series that is not 0."""
    screen.heading(f"Received over OTLP in {receiver.requests} requests")
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


def promises(screen: Screen, checks: Iterable[Check]) -> int:
    """Every promise with ok or FAILED; the number of those that were not kept."""
    screen.heading("Promised")
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
