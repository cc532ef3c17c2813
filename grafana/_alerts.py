"""One table of alerts, and what it becomes: Prometheus rules, and Grafana rules for shops without an Alertmanager.

Query, comparison and threshold are kept apart, because Grafana takes the query in one node and the threshold in the
next: there the query then returns data while all is well. Prometheus reads recorded series; Grafana gets their queries
in full, so that it needs no rule file beside it. Why each number is what it is stands in docs/alerts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ._queries import (
    AWAITING,
    BY,
    COOLDOWNS,
    ELSEWHERE,
    FAILED_PROBES,
    FAILURES,
    IDENTITY,
    OPEN,
    OPEN_ELAPSED,
    OPENS,
    PAUSED,
    PRODUCTION,
    REPLICAS,
    STUCK,
    TOOLS,
    Record,
)
from ._yaml import Lines

GRAFANA_URL: Final = "http://localhost:3000"
RUNBOOKS: Final = "https://github.com/otel-breaker/otel-breaker/blob/main/docs/runbooks"
OVERVIEW_UID: Final = "otel-breaker-overview"
CIRCUIT_UID: Final = "otel-breaker-circuit"


class Recorded:
    """Names recorded series."""

    def __call__(self, record: Record, where: str = "") -> str:
        return record(where)

    def last(self, record: Record, window: str) -> str:
        return f"last_over_time({record.name}[{window}])"


class InFull(Recorded):
    """Writes the queries of recorded series out."""

    def __call__(self, record: Record, where: str = "") -> str:
        return record.query(where)

    def last(self, record: Record, window: str) -> str:
        return f"last_over_time(({record.query('')})[{window}:1m])"


Query = Callable[[Recorded, str], str]


@dataclass(frozen=True, slots=True)
class Alert:
    """One row of the table.

    Attributes:
        query: of (how to name a record, selector) -> PromQL; with comparison and threshold, the condition.
        over: the comparison; empty where any answer of the query is the condition.
        severities: one rule for each (severity, selector).
        grafana: the description there, whose templates cannot query; ``None`` leaves the alert out.
    """

    name: str
    why: str
    query: Query
    summary: str
    description: Lines
    grafana: Lines | None
    over: str = ">"
    threshold: float = 0
    wait: str = ""
    keep: str = ""
    severities: tuple[tuple[str, str], ...] = (("warning", ""),)
    dashboard: str = CIRCUIT_UID
    labels: dict[str, str] = field(default_factory=dict)
    more: dict[str, Lines] = field(default_factory=dict)

    @property
    def runbook(self) -> str:
        """Where its page is."""
        return f"{RUNBOOKS}/{self.name}.md"


BY_ENVIRONMENT: Final = (("critical", PRODUCTION), ("warning", ELSEWHERE))

# --- texts ------------------------------------------------------------------------------------------------------------

_WHO: Final = (
    'Circuit {{ $labels.otel_breaker_name }} of {{ or $labels.service_name "a service without a name" }}'
    "{{ with $labels.deployment_environment_name }} in {{ . }}{{ end }}"
)

# Prometheus' templates may query; `$circuit` selects the series of the alert's own circuit.
_SELECT: Final = (
    f"""{{{{- $circuit := printf "{{{",".join(f"{label}=%q" for label in IDENTITY)}}}\"""",
    f"{' '.join(f'$labels.{label}' for label in IDENTITY)} -}}}}",
)


def _ask(record: Record, condition: str = "") -> str:
    return f'query (printf "{record.name}%s{condition}" $circuit)'


_PAGE: Final = (
    *_SELECT,
    _WHO,
    "has not closed for {{ $value }} cooldowns",
    f"{{{{- with {_ask(OPEN_ELAPSED)} }}}} ({{{{ . | first | value | humanizeDuration }}}}){{{{ end }}}}",
    f"{{{{- with {_ask(STUCK)} }}}} in {{{{ . | first | value }}}}{{{{ end }}}}",
    f"{{{{- with {_ask(REPLICAS)} }}}} of {{{{ . | first | value }}}} replicas{{{{ end }}}}.",
    f"{{{{- with {_ask(FAILED_PROBES, ' > 0')} }}}}",
    "Probes are failing: {{ . | first | value }} in the last hour.",
    f"{{{{- with {_ask(AWAITING, ' > 0')} }}}} The next one waits for a call.{{{{ end }}}}",
    f"{{{{- else }}}}{{{{ with {_ask(AWAITING, ' > 0')} }}}}",
    "Nobody has called since the cooldown ended, so nothing has probed it: the next call will.",
    "{{- end }}{{ end }}",
    f'{{{{- with query (printf "topk(20, {TOOLS.name}%s > 0)" $circuit) }}}} Tools out:',
    '{{ range $i, $tool := . | sortByLabel "gen_ai_tool_name" }}{{ if $i }}, {{ end }}',
    "{{- $tool.Labels.gen_ai_tool_name }}{{ end }}.",
    "{{- end }}",
)
_REASON: Final = Lines(
    *_SELECT,
    f'{{{{- with query (printf "topk(1, {FAILURES.name}%s > 0)" $circuit) }}}}{{{{ with . | first }}}}',
    "{{- .Labels.error_type }}, {{ .Value }} times in the last hour{{ end }}",
    "{{- else }}no failure was charged in the last hour{{ end }}",
)

_MISSING: Final = Lines(
    _WHO,
    "was open when it was last seen, and nothing has reported it for 15 minutes.",
    "Nobody knows whether it is still open, and it cannot page.",
)
_ABSENT: Final = Lines(
    "No process has reported a circuit for 15 minutes: no agent runs, or what they send does not arrive.",
    "Until it does, no circuit can page.",
)

# --- the table --------------------------------------------------------------------------------------------------------

ALERTS: Final = (
    Alert(
        name="OtelBreakerOpenPastTwoCooldowns",
        why="The page. No `for:`: the count is made in the process, so a restart of Prometheus changes nothing.\n"
        "No `keep_firing_for:`: a circuit that has closed must be able to end the alert before a page is sent;\n"
        "gaps are bridged by the record.",
        query=lambda of, where: of(COOLDOWNS, where),
        over=">=",
        threshold=2,
        severities=BY_ENVIRONMENT,
        summary="Circuit breaker has stayed open past two cooldowns.",
        description=Lines(*_PAGE),
        grafana=Lines(
            _WHO,
            "has not closed for {{ $values.A.Value }} cooldowns.",
            "The dashboard says whether probes are failing or nobody has called, and which tools are out.",
        ),
        more={"reason": _REASON},
    ),
    Alert(
        name="OtelBreakerFleetOpenPastTwoCooldowns",
        why="Joins the page's incident and says that it is the dependency, not one replica.",
        query=lambda of, where: f"{of(STUCK, where)} / ({of(REPLICAS, where)} >= 2)",
        threshold=0.5,
        severities=BY_ENVIRONMENT,
        labels={"scope": "fleet"},
        summary="Most replicas hold this circuit open past two cooldowns.",
        description=Lines(
            _WHO,
            "has not closed for two cooldowns in {{ $value | humanizePercentage }} of the replicas:",
            "the dependency is away, not one replica.",
        ),
        grafana=None,  # there every alert's name is an incident of its own, and the page has fired
    ),
    Alert(
        name="OtelBreakerOpenLong",
        why="The backstop where cooldowns are long: an hour's Retry-After reaches two cooldowns only after hours.",
        query=lambda of, where: of(OPEN_ELAPSED, where),
        threshold=2700,
        summary="Circuit breaker has been open for more than 45 minutes.",
        description=Lines(_WHO, "has not closed for {{ $value | humanizeDuration }}."),
        grafana=Lines(_WHO, "has not closed for {{ $values.A.Value }} seconds."),
    ),
    Alert(
        name="OtelBreakerFlapping",
        why="Closes on a good probe and opens again at once: no cooldown is outlived, so nothing pages.",
        query=lambda of, where: of(OPENS, where),
        threshold=5,
        wait="5m",
        summary="Circuit breaker is flapping.",
        description=Lines(_WHO, 'opened {{ printf "%.0f" $value }} times in 15 minutes in one replica.'),
        grafana=Lines(_WHO, 'opened {{ printf "%.0f" $values.A.Value }} times in 15 minutes in one replica.'),
    ),
    Alert(
        name="OtelBreakerCredentialRevoked",
        why="`keep_firing_for`: a pause lapses after 15 minutes and begins anew at the next call's 401.",
        query=lambda of, where: of(PAUSED, where),
        keep="5m",
        summary="A credential that had worked is refused by its vendor.",
        description=Lines(
            _WHO + ": {{ $value }} credentials were answered 401 after they had worked.",
            "Calls with them are refused; other credentials go on.",
        ),
        grafana=Lines(
            _WHO + ": {{ $values.A.Value }} credentials were answered 401 after they had worked.",
            "Calls with them are refused; other credentials go on.",
        ),
    ),
    Alert(
        name="OtelBreakerTelemetryMissing",
        why="Only for a name that was open when last seen, so that batch jobs and scale-to-zero stay quiet.",
        query=lambda of, where: f"({of.last(OPEN, '1h')} > 0) unless on ({BY}) {of(REPLICAS)}",
        over="",
        wait="10m",
        summary="A circuit was open when its telemetry stopped.",
        description=_MISSING,
        grafana=_MISSING,
    ),
    Alert(
        name="OtelBreakerTelemetryAbsent",
        why="No agent at all reports a circuit: none runs, or the way to here is cut.",
        query=lambda of, where: "absent(otel_breaker_cooldowns_elapsed)",
        over="",
        wait="15m",
        dashboard=OVERVIEW_UID,
        summary="No circuit breaker telemetry at all.",
        description=_ABSENT,
        grafana=_ABSENT,
    ),
    Alert(
        name="OtelBreakerWatchdog",
        why="Always firing, for a dead man's switch: when the heartbeat stops, Prometheus or Alertmanager is gone.",
        query=lambda of, where: "vector(1)",
        over="",
        severities=(("none", ""),),
        dashboard=OVERVIEW_UID,
        summary="The way from rules to receivers works.",
        description=Lines("Always firing. It belongs to a dead man's switch, which warns when this stops arriving."),
        grafana=None,  # a watchdog inside Grafana would need a contact point that only the shop knows
    ),
)


def rules() -> Iterator[tuple[Alert, str, str]]:
    """Every rule: the alert, its severity, its selector."""
    for alert in ALERTS:
        for severity, where in alert.severities:
            yield alert, severity, where
