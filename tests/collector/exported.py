"""What our instruments are called in Prometheus: recorded from real servers, and committed as docs/exported-names.md.

``python -m tests.collector.exported`` records it anew.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from otel_breaker.telemetry import names
from tests.support import stack
from tests.support.python import QUIET_OTEL, environment

PAGE = stack.ROOT / "docs/exported-names.md"
AGENT = Path(__file__).parent / "agent.py"
FROM, TO = "<!-- recorded -->\n", "<!-- /recorded -->\n"

RESOURCE = {
    "service.name": "planner",
    "service.namespace": "shop",
    "service.instance.id": "planner-1",
    "deployment.environment.name": "production",
}
COMMON = {"instance", "job", "otel_scope_name", "otel_scope_version", *(key.replace(".", "_") for key in RESOURCE)}
"""Labels of every series that came through the Collector."""

INSTRUMENTS = [value for value in vars(names).values() if isinstance(value, tuple) and isinstance(value[0], str)]


class Metric(NamedTuple):
    """One name in Prometheus: its labels, without those that every series has."""

    name: str
    labels: tuple[str, ...]


def resource() -> str:
    """For ``OTEL_RESOURCE_ATTRIBUTES``."""
    return ",".join(f"{key}={value}" for key, value in RESOURCE.items())


def agent(variables: Mapping[str, str], rounds: int = 1) -> str:
    """Run the agent; what it printed."""
    environ = environment(PYTHONPATH=str(stack.ROOT)) | dict(variables)
    command = [sys.executable, str(AGENT), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def through_the_collector(room: Path) -> tuple[list[Metric], set[str]]:
    """Names and labels after OTLP, Collector, remote write; and the labels that each series had."""
    with (
        stack.Prometheus(room, rules=False) as prometheus,
        stack.Collector(room, prometheus.write_url) as collector,
    ):
        agent(collector.environment(OTEL_RESOURCE_ATTRIBUTES=resource()))
        assert stack.wait_until(lambda: prometheus.series('{__name__=~"otel_breaker_.*"}'))
        series = prometheus.series('{__name__=~"otel_breaker_.*"}')
    common = set.intersection(*(set(one) for one in series)) - {"__name__"}
    return _metrics((one["__name__"], set(one) - {"__name__"} - common) for one in series), common


def through_the_exporter() -> list[Metric]:
    """Names and labels that the SDK's own Prometheus exporter serves."""
    text = agent({"PROMETHEUS_TEXT": "1", **QUIET_OTEL})
    lines = re.findall(r"(?m)^(otel_breaker_\w+)\{(.*)\} ", text)
    return _metrics((name, set(re.findall(r'(\w+)="', labels))) for name, labels in lines)


def _metrics(series: Iterable[tuple[str, set[str]]]) -> list[Metric]:
    found: dict[str, set[str]] = {}
    for name, labels in series:
        scope = {label for label in labels if label.startswith("otel_scope_")}
        found.setdefault(name, set()).update(labels - scope)
    return [Metric(name, tuple(sorted(labels))) for name, labels in sorted(found.items())]


def instrument_of(name: str) -> tuple[str, str]:
    """Which instrument a name comes from, and its unit: the longest that fits."""
    fitting = [(i[0], i[1]) for i in INSTRUMENTS if name.startswith(i[0].replace(".", "_"))]
    return max(fitting, key=lambda pair: len(pair[0]))


def render(collected: list[Metric], common: Iterable[str], exported: list[Metric]) -> str:
    """The recorded part of the page."""
    theirs = {metric.name: metric.labels for metric in exported}
    rows = [
        "| instrument | unit | name in Prometheus | its own labels | by the SDK's exporter |",
        "|---|---|---|---|---|",
    ]
    for metric in collected:
        instrument, unit = instrument_of(metric.name)
        same = "the same" if theirs.pop(metric.name, None) == metric.labels else "differs"
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{instrument}` | `{unit}` | `{metric.name}` | {labels} | {same} |")
    rows += [f"| | | | {', '.join(labels)} | only there: `{name}` |" for name, labels in theirs.items()]
    every = ", ".join(f"`{label}`" for label in sorted(common))
    return "\n".join([*rows, "", f"Through the Collector every series has also: {every}.", ""])


def committed() -> Mapping[str, frozenset[str]]:
    """The names of the page, each with all labels that it may have: what rules, dashboards and docs may use."""
    text = PAGE.read_text()
    common = re.findall(
        r"`(\w+)`", text.partition("Through the Collector every series has also:")[2].partition("\n")[0]
    )
    rows = re.findall(r"(?m)^\| `otel_breaker\.[\w.]+` \| `[^`]+` \| `(\w+)` \| (.*?) \|", text)
    return {name: frozenset(re.findall(r"`(\w+)`", labels)) | frozenset(common) for name, labels in rows}


def main() -> None:
    """Record."""
    with tempfile.TemporaryDirectory() as room:
        collected, common = through_the_collector(Path(room))
    text = PAGE.read_text()
    before, _, rest = text.partition(FROM)
    PAGE.write_text(f"{before}{FROM}{render(collected, common, through_the_exporter())}{TO}{rest.partition(TO)[2]}")


if __name__ == "__main__":
    main()
