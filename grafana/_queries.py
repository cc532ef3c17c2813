"""Every PromQL query of the bundled rules and dashboards, over the names that the package exports.

A query is a function of ``where``: a selector without braces, such as ``service_name=~"$service"``. All of them group
by `IDENTITY`, so that replicas, pods and processes are no part of an alert's labels: one circuit name of one service is
one alert, however many replicas see it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

IDENTITY: Final = ("deployment_environment_name", "service_namespace", "service_name", "otel_breaker_name")
BY: Final = ", ".join(IDENTITY)

FRESH: Final = "5m"
"""How long a replica's last value stands after its last sample. It bridges a gap and a restart, with or without
staleness markers, and ends what a dead process left behind; a new sample counts at once."""

PRODUCTION: Final = 'deployment_environment_name=~"(?i:prod.*)?"'
ELSEWHERE: Final = 'deployment_environment_name!~"(?i:prod.*)?"'

Query = Callable[[str], str]


def select(metric: str, *where: str) -> str:
    """A vector selector; empty parts of ``where`` are left out."""
    parts = ",".join(part for part in where if part)
    return f"{metric}{{{parts}}}" if parts else metric


def fresh(metric: str, *where: str) -> str:
    """Each series' last value, unless it is older than `FRESH`."""
    return f"last_over_time({select(metric, *where)}[{FRESH}])"


def grown(by: str, selector: str, window: str) -> str:
    """What counters gained within ``window``, in whole numbers.

    Unlike ``increase()`` it sees the first increment of a series that is born above 0, as one for each reason is.
    """
    before = f"({selector} offset {window} or {selector} * 0)"
    return f"sum by ({by}) (clamp_min({selector} - {before}, 0))"


def cooldowns(where: str = "") -> str:
    """Cooldowns that the worst replica's circuit has outlived."""
    return f"max by ({BY}) ({fresh('otel_breaker_cooldowns_elapsed', where)})"


def replicas(where: str = "") -> str:
    """Replicas that report this name."""
    return f"count by ({BY}) ({fresh('otel_breaker_cooldowns_elapsed', where)})"


def stuck(where: str = "") -> str:
    """Replicas whose circuit has outlived two cooldowns."""
    return f"sum by ({BY}) ({fresh('otel_breaker_cooldowns_elapsed', where)} >= bool 2)"


def open_circuits(where: str = "") -> str:
    """Circuits that are open or half open; what an operator forced is not among them."""
    is_open = 'otel_breaker_state=~"open|half_open"'
    return f"sum by ({BY}) ({fresh('otel_breaker_status', where, is_open)})"


def awaiting(where: str = "") -> str:
    """Circuits whose cooldown is over and that nobody has called since."""
    return f"sum by ({BY}) ({fresh('otel_breaker_awaiting_probe', where)})"


def open_elapsed(where: str = "") -> str:
    """Seconds since the oldest episode of this name began."""
    return f"max by ({BY}) ({fresh('otel_breaker_open_elapsed_seconds', where)})"


def opens(where: str = "", window: str = "15m") -> str:
    """Episodes begun within ``window``, in the replica that began most: an outage seen by 20 replicas is one each."""
    began = 'otel_breaker_previous_state="closed",otel_breaker_state="open"'
    return f"max by ({BY}) (increase({select('otel_breaker_transitions_total', where, began)}[{window}]))"


def failed_probes(where: str = "", window: str = "1h") -> str:
    """Probes that failed within ``window``."""
    failed = 'otel_breaker_previous_state="half_open",otel_breaker_state="open"'
    return grown(BY, select("otel_breaker_transitions_total", where, failed), window)


def failures(where: str = "", window: str = "1h") -> str:
    """Failures charged within ``window``, by reason."""
    return grown(f"{BY}, error_type", select("otel_breaker_failures_total", where), window)


def paused(where: str = "") -> str:
    """Credentials refused because they were revoked."""
    return f"sum by ({BY}) ({fresh('otel_breaker_credentials_paused', where)})"


def tools(where: str = "") -> str:
    """The tools seen on a name, one series each."""
    return f"max by ({BY}, gen_ai_tool_name) ({fresh('otel_breaker_tools', where)})"


@dataclass(frozen=True, slots=True)
class Record:
    """A recording rule. The level ``tool`` is everything but the replica."""

    name: str
    query: Query

    def __call__(self, where: str = "") -> str:
        """The recorded series."""
        return select(self.name, where)


COOLDOWNS: Final = Record("tool:otel_breaker_cooldowns_elapsed:max", cooldowns)
REPLICAS: Final = Record("tool:otel_breaker_replicas:count", replicas)
STUCK: Final = Record("tool:otel_breaker_stuck_replicas:sum", stuck)
OPEN: Final = Record("tool:otel_breaker_open:sum", open_circuits)
AWAITING: Final = Record("tool:otel_breaker_awaiting_probe:sum", awaiting)
OPEN_ELAPSED: Final = Record("tool:otel_breaker_open_elapsed_seconds:max", open_elapsed)
OPENS: Final = Record("tool:otel_breaker_opens:increase15m", opens)
FAILED_PROBES: Final = Record("tool:otel_breaker_failed_probes:increase1h", failed_probes)
FAILURES: Final = Record("tool:otel_breaker_failures:increase1h", failures)
PAUSED: Final = Record("tool:otel_breaker_credentials_paused:sum", paused)
TOOLS: Final = Record("tool:otel_breaker_tools:max", tools)

RECORDS: Final = (
    COOLDOWNS,
    REPLICAS,
    STUCK,
    OPEN,
    AWAITING,
    OPEN_ELAPSED,
    OPENS,
    FAILED_PROBES,
    FAILURES,
    PAUSED,
    TOOLS,
)
