"""Three hours of a fleet with outages, in seconds, as Prometheus has them after the Collector.

The package is the real one: guarded functions, its state machine, its instruments, the SDK. Only the vendors and the
clock are made up. Every process of the fleet plays its three hours under a clock of its own, is collected every 15 s,
and the samples become blocks of Prometheus' database. Names follow docs/exported-names.md, which is recorded from the
real Collector.

    python -m tests.support.history FOLDER     writes the blocks
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, Sum

import otel_breaker
from otel_breaker.telemetry import metrics
from otel_breaker.testing import ManualClock, fresh_registry
from tests.support import stack

HOURS: Final = 3.0
EVERY: Final = 15.0
MARKER: Final = "otel_breaker_history"
"""A series that only this history has: whoever asks the wrong Prometheus does not find it."""

MINUTES: Final = 60.0


class Failed(Exception):
    """A vendor's failure, by our own vocabulary."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True)
class Outage:
    """From ``start`` to ``end``, minutes before now: calls take ``seconds`` and fail for one of ``kinds``."""

    start: float
    end: float
    kinds: tuple[str, ...]
    seconds: float
    share: float = 1.0


@dataclass(frozen=True)
class Vendor:
    """A dependency and its outages."""

    name: str
    tools: tuple[str, ...]
    latency: float
    outages: tuple[Outage, ...] = ()
    credential: str | None = None


@dataclass(frozen=True)
class Process:
    """One process of the fleet.

    Attributes:
        alive: from and to, minutes before now.
        pause: seconds between two calls, on average.
        commands: (minutes before now, what, circuit), by an operator.
    """

    service: str
    environment: str | None
    vendors: tuple[Vendor, ...]
    alive: tuple[float, float] = (HOURS * 60, 0)
    pause: float = 4.0
    commands: tuple[tuple[float, str, str], ...] = ()
    namespace: str | None = "support"


PAYMENT_DOWN: Final = Outage(74, 41, ("connect_timeout", "connect_timeout", "server_error"), 8)
STRIPE: Final = Vendor("api.stripe.com", ("refund_charge", "find_charge"), 0.4, (PAYMENT_DOWN,))
CRM: Final = Vendor(
    "mcp:crm", ("lookup_customer", "note_customer"), 0.2,
    (Outage(56, 55, ("connection_reset",), 0.2), Outage(33, -1, ("connection_refused", "connect_timeout"), 3)),
)  # fmt: skip
ORDERS: Final = Vendor("orders.internal", ("find_order",), 0.1, (Outage(127, 121, ("server_error",), 0.3, 0.4),))
MODEL: Final = Vendor("api.openai.com", ("answer",), 1.5, (Outage(96, 92, ("throttled",), 0.2),), "key-of-research")
SEARCH: Final = Vendor(
    "mcp:search", ("web_search",), 0.8,
    tuple(Outage(160 - 3 * n, 158.4 - 3 * n, ("read_timeout", "malformed_output"), 5) for n in range(7)),
)  # fmt: skip
LEGACY: Final = Vendor("billing-legacy.internal", ("issue_refund_manually",), 0.9)
REPORTS: Final = Vendor("warehouse.internal", ("run_report",), 2.0)
MAIL: Final = Vendor("api.mail.example", ("send_mail",), 0.3, (Outage(26, -1, ("unauthorized",), 0.2),), "key-of-mail")

FORCED: Final = ((55.0, "force_open", LEGACY.name), (31.0, "resume", LEGACY.name))
REFUNDS: Final = (STRIPE, CRM, ORDERS, LEGACY)

FLEET: Final = (
    *(Process("refund-agent", "production", REFUNDS, commands=FORCED) for _ in range(3)),
    Process("refund-agent", "production", REFUNDS, alive=(180, 66), commands=FORCED),
    Process("refund-agent", "production", REFUNDS, alive=(65, 0), commands=FORCED),
    *(Process("research-agent", "production", (MODEL, SEARCH, MAIL), namespace=None) for _ in range(2)),
    Process("refund-agent", "staging", (STRIPE, ORDERS), pause=15),
    Process("nightly-report", "production", (REPORTS,), alive=(170, 118), namespace=None),
)
SMALL: Final = (FLEET[0], FLEET[5], FLEET[8])
"""Enough for every panel."""


@dataclass
class History:
    """What was played: lines of the OpenMetrics format by metric, because a metric's lines must stand together."""

    now: float
    lines: dict[str, list[str]] = field(default_factory=dict)

    def text(self) -> Iterator[str]:
        """The file."""
        for name in sorted(self.lines):
            yield from self.lines[name]
        yield "# EOF\n"


def play(processes: tuple[Process, ...] = FLEET, now: float | None = None, seed: int = 7) -> History:
    """All processes' lives, up to ``now``."""
    history = History(time.time() if now is None else now)
    for number, process in enumerate(processes):
        _live(process, history, random.Random(f"{seed}-{number}"))
    first = history.now - HOURS * 60 * MINUTES
    history.lines[MARKER] = [
        f"{MARKER} 1 {first + at * EVERY:.3f}\n" for at in range(int(HOURS * 60 * MINUTES / EVERY) + 1)
    ]
    return history


def _live(process: Process, history: History, dice: random.Random) -> None:
    begin = history.now - process.alive[0] * MINUTES
    end = history.now - process.alive[1] * MINUTES
    clock = ManualClock(wall=begin)
    reader = InMemoryMetricReader()
    labels = {
        "deployment_environment_name": process.environment,
        "service_namespace": process.namespace,
        "service_name": process.service,
        "service_instance_id": str(uuid.UUID(int=dice.getrandbits(128), version=4)),
    }
    with fresh_registry(clock) as registry:
        provider = MeterProvider([reader], shutdown_on_exit=False)
        metrics.register(provider)
        try:
            calls = [call for vendor in process.vendors for call in _tools(vendor, clock, history.now, dice)]
            due, commands = begin, list(process.commands)
            while True:
                while clock.wall() >= due:
                    _collect(reader, labels, clock.wall(), history)
                    due += EVERY
                if clock.wall() >= end:
                    return
                while commands and clock.wall() >= history.now - commands[0][0] * MINUTES:
                    _, what, name = commands.pop(0)
                    circuit = registry.get(name)
                    if circuit is not None:
                        circuit.force_open("migration") if what == "force_open" else circuit.resume()
                dice.choice(calls)()
                clock.advance(min(dice.expovariate(1 / process.pause), max(0.001, due - clock.wall())))
        finally:
            metrics.unregister(provider)
            provider.shutdown()


def _tools(vendor: Vendor, clock: ManualClock, now: float, dice: random.Random) -> Iterator[Callable[[], Any]]:
    """Guarded functions that take time on the clock and fail while their vendor is down."""

    def body() -> str:
        before = (now - clock.wall()) / MINUTES
        for outage in vendor.outages:
            if outage.start >= before > outage.end and dice.random() < outage.share:
                clock.advance(outage.seconds * dice.uniform(0.8, 1.2))
                raise Failed(dice.choice(outage.kinds))
        clock.advance(vendor.latency * dice.uniform(0.5, 2))
        return "done"

    for tool in vendor.tools:
        options = {"tool": tool, "dependency": vendor.name, "classify": _classify}
        guarded = otel_breaker.guard(**options, **({"credential": vendor.credential} if vendor.credential else {}))(
            _named(body, tool)
        )

        def call(guarded: Callable[[], Any] = guarded) -> None:
            with contextlib.suppress(Failed):
                guarded()

        yield call


def _named(body: Callable[[], str], name: str) -> Callable[[], str]:
    def function() -> str:
        return body()

    function.__name__ = function.__qualname__ = name
    return function


def _classify(what: Any) -> str | None:
    return what.kind if isinstance(what, Failed) else None


# --- as Prometheus has it ---------------------------------------------------------------------------------------------


def _collect(reader: InMemoryMetricReader, process: Mapping[str, str | None], at: float, history: History) -> None:
    data = reader.get_metrics_data()
    for metric in (
        metric
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ):
        counter = isinstance(metric.data, Sum) and metric.data.is_monotonic
        name = (
            metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "") + ("_total" if counter else "")
        )
        for point in metric.data.data_points:
            own = {key.replace(".", "_"): str(value) for key, value in (point.attributes or {}).items()}
            for suffix, more, value in _values(point):
                line = _line(name + suffix, {**process, **own, **more}, value, at)
                history.lines.setdefault(name + suffix, []).append(line)


def _values(point: Any) -> Iterator[tuple[str, dict[str, str], float]]:
    if not isinstance(point, HistogramDataPoint):
        yield "", {}, point.value
        return
    below = 0
    for bound, count in zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True):
        below += count
        yield "_bucket", {"le": "+Inf" if bound == float("inf") else f"{bound:g}"}, below
    yield "_sum", {}, point.sum
    yield "_count", {}, point.count


def _line(name: str, labels: Mapping[str, str | None], value: float, at: float) -> str:
    text = ",".join(f'{key}="{value}"' for key, value in labels.items() if value is not None)
    return f"{name}{{{text}}} {value:g} {at:.3f}\n" if value % 1 == 0 else f"{name}{{{text}}} {value} {at:.3f}\n"


def write(history: History, folder: Path) -> None:
    """Blocks of Prometheus' database in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder.parent / f"{folder.name}.om"
    with text.open("w") as file:
        file.writelines(history.text())
    try:
        subprocess.run(
            [stack.tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", "-q", str(text), str(folder)],
            check=True, capture_output=True, timeout=300,
        )  # fmt: skip
    finally:
        text.unlink()


if __name__ == "__main__":
    write(play(), Path(sys.argv[1]))
