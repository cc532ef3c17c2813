"""The two dashboards: all circuits, and one circuit. Written as classic JSON, which every release of Grafana takes."""

from __future__ import annotations

import json
from typing import Any, Final

from . import _charts as charts
from . import _queries as queries
from . import _theme as theme
from ._alerts import CIRCUIT_UID, OVERVIEW_UID
from ._panels import (
    PROMETHEUS,
    Json,
    bars,
    column,
    lanes,
    place,
    query,
    row,
    series,
    stat,
    steps,
    table,
    traces,
)
from ._theme import AMBER, BLUE, GREY, PINK, RED

SERVICES: Final = 'deployment_environment_name=~"$environment",service_namespace=~"$namespace",service_name=~"$service"'
WHERE: Final = f'{SERVICES},otel_breaker_name=~"$circuit"'
WHO: Final = "{{otel_breaker_name}} - {{service_name}} {{deployment_environment_name}}"
REPLICA: Final = "{{service_name}} …{{replica}}"
TAG: Final = "otel-breaker"

_IDENTITY: Final = tuple(zip(("environment", "namespace", "service", "circuit"), queries.IDENTITY, strict=True))
_COLUMNS: Final = {
    "otel_breaker_name": "Circuit",
    "service_name": "Service",
    "service_namespace": "Namespace",
    "deployment_environment_name": "Environment",
}


def _link(value: str) -> Json:
    """To the dashboard of one circuit; ``value`` is how a link writes a label. One that is not there is empty."""
    chosen = "&".join(f"var-{name}={value % label}" for name, label in _IDENTITY)
    sources = "${prometheus_datasource:queryparam}"
    url = f"/d/{CIRCUIT_UID}?{chosen}&{sources}&${{__url_time_range}}"
    return {"title": "This circuit", "url": url, "targetBlank": False}


FROM_SERIES: Final = _link("${__field.labels.%s:percentencode}")
FROM_ROW: Final = {
    **FROM_SERIES,
    "url": _link("${__data.fields.%s:percentencode}")["url"]
    .replace("otel_breaker_name", "Circuit")
    .replace("service_namespace", "Namespace")
    .replace("service_name", "Service")
    .replace("deployment_environment_name", "Environment"),
}


# --- all circuits -----------------------------------------------------------------------------------------------------


def _now() -> list[Json]:
    alarm = steps(BLUE, (1, RED))
    return row(
        100,
        "Now",
        [
            stat(
                1, "Open now",
                "Circuits that are open or half open in at least one replica. 0 is normal. "
                "'no telemetry' is not 0: nothing reports.",
                query(charts.open_names(WHERE), now=True), unit="none", thresholds=alarm, decimals=0, solid=True,
            ),
            stat(
                2, "Past two cooldowns",
                "Circuits that have not closed for two cooldowns: each of them pages. 0 is normal.",
                query(charts.past_the_line(WHERE), now=True), unit="none", thresholds=alarm, decimals=0, solid=True,
            ),
            stat(
                3, "Refused",
                "Calls a second that breakers refuse. Each got an answer at once instead of a time-out.",
                query(charts.refused(WHERE)), unit="cps", thresholds=steps(BLUE, (0.0001, AMBER)),
                decimals=2,
            ),
            stat(
                4, "Waiting spared",
                "Waiting for dead dependencies that refusals spared in this time range, "
                "by what the last failures cost. An estimate.",
                query(charts.waiting_spared(WHERE), now=True), unit="s", thresholds=steps(BLUE), decimals=1,
            ),
            stat(
                5, "Credentials refused",
                "Credentials whose calls are refused now: revoked (401 after they had worked) or throttled (429). "
                "Others go on.",
                query(charts.refused_credentials(WHERE), now=True), unit="none", thresholds=steps(BLUE, (1, AMBER)),
                decimals=0,
            ),
            stat(
                6, "Held by hand",
                "Circuits that an operator forced open or disabled. They never page, and stay so until resumed.",
                query(charts.held(WHERE), now=True), unit="none", thresholds=steps(BLUE, (1, PINK)), decimals=0,
            ),
            stat(
                7, "Processes reporting",
                "Processes whose circuits were seen within the last five minutes. "
                "If there is none, all other numbers mean nothing.",
                query(charts.processes(WHERE), now=True), unit="none", thresholds=steps(RED, (1, BLUE)), decimals=0,
            ),
            stat(
                8, "Gone silent",
                "Circuits that reported in this time range and have not for five minutes. "
                "Ended jobs are among them; nobody knows their state.",
                query(charts.silent(WHERE), now=True), unit="none", thresholds=steps(BLUE, (1, AMBER)), decimals=0,
            ),
            lanes(
                9, "State by circuit",
                "The worst state among the replicas. A gap means no telemetry, not closed. "
                "A short opening is drawn for at least one reporting window (about a minute). "
                "A click leads to the circuit.",
                query(charts.state_over_time(WHERE), WHO), mappings=theme.STATES, size=(24, 10), links=[FROM_SERIES],
            ),
        ],
    )  # fmt: skip


def _worst_first() -> list[Json]:
    asked = [
        charts.state(WHERE), queries.open_elapsed(WHERE), queries.cooldowns(WHERE), queries.awaiting(WHERE),
        charts.open_in(WHERE), queries.replicas(WHERE), charts.refused(WHERE, queries.BY), charts.failed_calls(WHERE),
        charts.age(WHERE),
    ]  # fmt: skip
    shown = ("State", "Open for", "Cooldowns", "Probe", "Open in", "Replicas", "Refused", "Failed calls", "Last seen")
    values = [(f"Value #{chr(ord('A') + number)}", title) for number, title in enumerate(shown)]
    labels = list(_COLUMNS.items())
    awaiting = {"type": "range", "options": {"from": 1, "to": 1e9, "result": {"text": "waits for a call", "index": 1}}}
    none = [theme.words((0, "-", "text"))]
    fill = {"type": "color-background", "mode": "basic"}
    text = {"type": "color-text"}
    overrides: list[Json] = [
        column("Circuit", 220, links=[FROM_ROW]),
        column("State", 100, mappings=theme.STATES, custom_cellOptions=fill, custom_align="left"),
        column("Service", 150),
        column("Open for", 95, noValue="-", unit="s", decimals=0, mappings=none),
        column(
            "Cooldowns", 95, noValue="-", decimals=0, custom_cellOptions=text, mappings=none,
            thresholds={"mode": "absolute", "steps": steps("text", (1, AMBER), (2, RED))},
        ),
        column("Probe", 120, noValue="-", mappings=[*none, awaiting], custom_align="left"),
        column("Open in", 75, noValue="-", decimals=0, mappings=none),
        column("Replicas", 80, noValue="-", decimals=0),
        column("Refused", 90, noValue="-", unit="cps", decimals=2, mappings=none),
        column("Failed calls", 100, noValue="-", decimals=0, mappings=none),
        column("Last seen", 90, unit="s", decimals=0),
        column("Environment", 110),
        column("Namespace", 100),
    ]  # fmt: skip
    return row(
        101,
        "Circuits",
        [
            table(
                10, "Circuits, worst first",
                "Longest open on top. Cooldowns: run out with the circuit not closed; 2 pages. "
                "Probe 'waits for a call': the cooldown is over and nobody has called since, so nothing has tried. "
                "Open in: replicas that hold it open. Failed calls: in this time range. "
                "'no telemetry': it reported in this time range and does not any more.",
                [query(expr, now=True, table=True) for expr in asked],
                size=(24, 12), columns=[labels[0], values[0], *labels[1:], *values[1:]],
                worst="Open for", overrides=overrides,
            ),
        ],
    )  # fmt: skip


def _calls(first: int) -> list[Json]:
    return [
        series(
            first, "Calls by outcome",
            "Calls a second. Refused ones sent nothing. Neutral: says nothing about the dependency, such as a 404. "
            "Late: the answer came after the circuit had moved on.",
            [
                query(charts.outcomes(WHERE), "{{otel_breaker_outcome}}"),
                query(charts.refused(WHERE), "refused"),
            ],
            unit="cps", size=(12, 8), colors=theme.OUTCOME, stacked=True, legend=("max", "lastNotNull"), aside=True,
        ),
        series(
            first + 1, "Refusals and probes",
            "Calls a second that were not simply let through. Probes are single calls let through after a cooldown. "
            "would_reject: observe mode, the call went through.",
            [query(charts.decisions(WHERE), "{{otel_breaker_decision}}")],
            unit="cps", size=(12, 8), colors=theme.DECISION, stacked=True, aside=True,
        ),
    ]  # fmt: skip


def _overview() -> list[Json]:
    quiet = "nothing was past a cooldown in this time range, or nothing reports: see Processes reporting"
    outage = [
        series(
            13, "Cooldowns elapsed, and the line that pages",
            "Cooldowns that ran out with the circuit not closed. At 2 (dashed) it pages. "
            "Circuits that outlived none in this time range are left out.",
            [query(charts.cooldowns_over_time(WHERE), WHO)],
            unit="none", size=(12, 9), stairs=True, decimals=0, line=True, empty=quiet, links=[FROM_SERIES],
            legend=("max",),
        ),
        series(
            14, "Calls that would be hanging",
            "Seconds of waiting spared a second, by service: how many calls would be waiting for a dead dependency "
            "at this moment. An estimate, by what the last failures cost.",
            [query(charts.calls_not_waiting(WHERE), "{{service_name}}")],
            unit="none", size=(12, 9), stacked=True, decimals=1, legend=("max",),
        ),
    ]  # fmt: skip
    why = [
        series(
            15, "Why: failures by reason",
            "Failures charged to circuits, by reason, within each window. What opens a circuit stands here first.",
            [query(charts.reasons(WHERE), "{{error_type}}")],
            unit="none", size=(12, 9), colors=theme.REASON, bars=True, stacked=True, decimals=0, aside=True,
            legend=("max",),
            empty="no failure was charged in this time range, or nothing reports: see Processes reporting",
        ),
        series(
            16, "Openings",
            "Circuits that left closed, within each window and over all replicas. "
            "Many in a row from one circuit: it is flapping.",
            [query(charts.openings(WHERE), WHO)],
            unit="none", size=(12, 9), bars=True, stacked=True, decimals=0, legend=("max",), links=[FROM_SERIES],
        ),
    ]  # fmt: skip
    telemetry = [
        series(
            17, "Processes reporting, by service",
            "Processes whose circuits are seen. A fall without a deployment is lost telemetry.",
            [query(charts.processes_over_time(WHERE), "{{service_name}}")],
            unit="none", size=(8, 7), stairs=True, decimals=0, legend=(),
        ),
        series(
            18, "Credentials over time",
            "Revoked: answered 401 after they had worked, in this window. Paused and throttled: refused meanwhile.",
            [
                query(charts.credentials("paused", WHERE), "paused"),
                query(charts.credentials("throttled", WHERE), "throttled"),
                query(charts.revocations(WHERE), "revoked"),
            ],
            unit="none", size=(8, 7), colors=theme.CREDENTIALS, stairs=True, decimals=0, legend=(),
        ),
        series(
            19, "Circuits held, and store errors",
            "Circuits in the registries of all processes, with those of credentials and unused ones. "
            "Store errors a second: the shared store is away, circuits go on by local state.",
            [
                query(charts.registered(SERVICES), "{{service_name}}"),
                query(charts.store_errors(SERVICES), "{{service_name}} store errors/s"),
            ],
            unit="none", size=(8, 7), stairs=True, legend=(),
        ),
    ]  # fmt: skip
    return place(
        [
            *_now(),
            *_worst_first(),
            *row(102, "Calls", _calls(11)),
            *row(103, "Outages", outage),
            *row(104, "Why", why),
            *row(105, "Telemetry and credentials", telemetry),
        ]
    )


# --- one circuit ------------------------------------------------------------------------------------------------------


def _circuit_now() -> list[Json]:
    waits = [
        theme.words((0, "no", BLUE)),
        {"type": "range", "options": {"from": 1, "to": 1e9, "result": {"text": "yes", "color": AMBER, "index": 1}}},
    ]
    return row(
        200,
        "Now",
        [
            stat(
                1, "State",
                "The worst state among the replicas. 'no telemetry': nothing has reported it for five minutes.",
                query(charts.worst_state(WHERE), now=True), unit="none", thresholds=steps(BLUE),
                mappings=theme.STATES, solid=True, text_size=32,
            ),
            stat(
                2, "Open for",
                "Since the oldest episode of any replica began. An episode ends when the circuit closes; "
                "a failed probe does not end it.",
                query(f"max({queries.open_elapsed(WHERE)})", now=True), unit="s", thresholds=steps(BLUE, (1, RED)),
            ),
            stat(
                3, "Cooldowns elapsed",
                "Cooldowns that ran out with the circuit not closed, in the worst replica. 2 pages.",
                query(f"max({queries.cooldowns(WHERE)})", now=True), unit="none", decimals=0,
                thresholds=steps(BLUE, (1, AMBER), (2, RED)),
            ),
            stat(
                4, "Next probe in",
                "What is left of the longest cooldown. 0 while open: the next call probes.",
                query(f"max({queries.fresh('otel_breaker_cooldown_remaining_seconds', WHERE)})", now=True), unit="s",
                decimals=0, thresholds=steps(BLUE, (1, AMBER)),
            ),
            stat(
                5, "Waits for a call",
                "yes: a cooldown is over and nobody has called since, so nothing has tried whether it works again. "
                "Open for long and no: probes are failing.",
                query(f"sum({queries.awaiting(WHERE)})", now=True), unit="none", thresholds=steps(BLUE),
                mappings=waits,
            ),
            stat(
                6, "Replicas open",
                "Replicas that hold it open. All of them: the dependency is away. "
                "One of many: look at that replica's network first.",
                query(charts.open_in(WHERE, ""), now=True), unit="none", decimals=0,
                thresholds=steps(BLUE, (1, RED)),
            ),
            stat(
                7, "Replicas reporting",
                "Replicas seen within the last five minutes.",
                query(f"sum({queries.replicas(WHERE)})", now=True), unit="none", decimals=0,
                thresholds=steps(RED, (1, BLUE)),
            ),
            stat(
                8, "Waiting spared",
                "Waiting that refusals spared in this time range, by what the last failures cost. An estimate.",
                query(charts.waiting_spared(WHERE), now=True), unit="s", decimals=1, thresholds=steps(BLUE),
            ),
            lanes(
                9, "State by replica",
                "A lane for each replica, by the end of its service.instance.id. A gap means no telemetry, not closed.",
                query(
                    charts.replica(charts.state_over_time(WHERE, "service_name, service_instance_id")), REPLICA
                ),
                mappings=theme.STATES, size=(24, 8),
            ),
        ],
    )  # fmt: skip


def _circuit() -> list[Json]:
    probes = [
        series(
            10, "Cooldowns elapsed, and the line that pages",
            "Of each replica. At 2 (dashed) it pages. It never falls within an episode.",
            [query(charts.by_replica("otel_breaker_cooldowns_elapsed", WHERE), REPLICA)],
            unit="none", size=(8, 8), stairs=True, decimals=0, line=True, legend=(),
        ),
        series(
            11, "Time to the next probe",
            "What is left of the cooldown, of each replica. The ladder is 30 s, 1 min, 5 min, 15 min unless set "
            "otherwise, or what Retry-After asked for.",
            [query(charts.by_replica("otel_breaker_cooldown_remaining_seconds", WHERE), REPLICA)],
            unit="s", size=(8, 8), legend=(),
        ),
        series(
            12, "Probes",
            "Probes that left the circuit open, and those that closed it, within each window and over all replicas. "
            "One that is neither was neutral.",
            [
                query(charts.probes_failed(WHERE), "failed"),
                query(charts.probes_closed(WHERE), "closed the circuit"),
            ],
            unit="none", size=(8, 8), colors=theme.PROBES, bars=True, stacked=True, decimals=0, legend=(),
        ),
    ]  # fmt: skip
    why = [
        series(
            15, "Why: failures by reason",
            "Failures charged to this circuit, by reason, within each window.",
            [query(charts.reasons(WHERE), "{{error_type}}")],
            unit="none", size=(12, 8), colors=theme.REASON, bars=True, stacked=True, decimals=0, aside=True,
            legend=("max",),
            empty="no failure was charged in this time range, or nothing reports: see Replicas reporting",
        ),
        bars(
            16, "Failures in this time range",
            "How often each reason was charged.",
            [query(charts.reasons(WHERE, charts.RANGE), "{{error_type}}", now=True)],
            unit="none", size=(6, 8), color=RED,
            empty="no failure was charged in this time range, or nothing reports: see Replicas reporting",
        ),
        table(
            17, "Tools that need it",
            "Tools whose calls went through this circuit: what is out while it is open.",
            [query(queries.tools(WHERE), now=True, table=True)],
            size=(6, 8), columns=[("gen_ai_tool_name", "Tool"), ("service_name", "Service")],
            hidden=["Value", "deployment_environment_name", "service_namespace", "otel_breaker_name"],
            empty="no tool was seen on this circuit",
        ),
    ]  # fmt: skip
    more = [
        bars(
            18, "Finished episodes, by length",
            "How often, in this time range and over all replicas, the circuit closed again after being away that long.",
            [
                query(charts.episodes(0, 60, WHERE), "up to 1 min", now=True),
                query(charts.episodes(60, 300, WHERE), "1 to 5 min", now=True),
                query(charts.episodes(300, 900, WHERE), "5 to 15 min", now=True),
                query(charts.episodes(900, None, WHERE), "over 15 min", now=True),
            ],
            unit="none", size=(12, 8), color=BLUE, empty="no episode ended in this time range",
        ),
        series(
            19, "Credentials over time",
            "Revoked: answered 401 after they had worked, in this window. Paused and throttled: refused meanwhile.",
            [
                query(charts.credentials("paused", WHERE), "paused"),
                query(charts.credentials("throttled", WHERE), "throttled"),
                query(charts.revocations(WHERE), "revoked"),
            ],
            unit="none", size=(12, 8), colors=theme.CREDENTIALS, stairs=True, decimals=0, legend=(),
        ),
    ]  # fmt: skip
    return place(
        [
            *_circuit_now(),
            *row(201, "Cooldowns and probes", probes),
            *row(202, "Calls", _calls(13)),
            *row(203, "Why, and what is out", why),
            *row(204, "Episodes and credentials", more),
            *row(205, "Traces (needs Tempo)", _traces(), collapsed=True),
        ]
    )


def _traces() -> list[Json]:
    # Tempo's data source puts the chosen values in as `a|b`, so they are compared as regular expressions.
    circuit = 'resource.service.name =~ "$service" && event.otel_breaker.name =~ "$circuit"'
    return [
        traces(
            20, "Traces of refused calls",
            "Traces with a call that was refused, or in observe mode would have been.",
            f'{{ {circuit} && event:name = "otel_breaker.call.rejected" }}', size=(12, 9),
        ),
        traces(
            21, "Traces in which the circuit moved",
            "Traces with a change of state: the calls that opened it, and the probes.",
            f'{{ {circuit} && event:name = "otel_breaker.state.changed" }}', size=(12, 9),
        ),
    ]  # fmt: skip


# --- what is around the panels ----------------------------------------------------------------------------------------


def _source(name: str, kind: str, label: str) -> Json:
    return {
        "name": name, "type": "datasource", "label": label, "query": kind, "regex": "", "hide": 0, "refresh": 1,
        "multi": False, "includeAll": False, "options": [], "current": {}, "skipUrlSync": False,
    }  # fmt: skip


def _variables(one_circuit: bool) -> list[Json]:
    found = [_source("prometheus_datasource", "prometheus", "Prometheus data source")]
    chosen: list[str] = []
    for name, label in _IDENTITY:
        selector = ",".join(chosen)
        values = f"label_values({queries.select('otel_breaker_status', selector)}, {label})"
        single = one_circuit and name == "circuit"
        found.append(
            {
                "name": name, "type": "query", "label": name.capitalize(), "datasource": PROMETHEUS,
                "definition": values, "query": {"qryType": 1, "query": values, "refId": f"variable-{name}"},
                "regex": "", "refresh": 2, "sort": 1, "hide": 0, "skipUrlSync": False, "options": [],
                "multi": not single, "includeAll": not single, "allowCustomValue": True,
                # Not `.+`: a label that no program has set is not there, and still must be found.
                **({"current": {}} if single else {"allValue": ".*", "current": {"text": "All", "value": "$__all"}}),
            }
        )  # fmt: skip
        chosen.append(f'{label}=~"${name}"')
    if one_circuit:
        found.append(_source("tempo_datasource", "tempo", "Tempo data source"))
    return found


def _annotation(name: str, expr: str, title: str, text: str, color: str, tags: str = "") -> Json:
    return {
        "name": name, "enable": True, "hide": False, "iconColor": color, "datasource": PROMETHEUS, "expr": expr,
        "step": "60s", "titleFormat": title, "textFormat": text, "tagKeys": tags, "useValueForTime": False,
    }  # fmt: skip


_BUILT_IN: Final[Json] = {
    "builtIn": 1, "name": "Annotations & Alerts", "type": "dashboard", "enable": True, "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)", "datasource": {"type": "grafana", "uid": "-- Grafana --"},
}  # fmt: skip


def _dashboard(
    uid: str, title: str, description: str, panels: list[Json], annotations: list[Json], one: bool, since: str
) -> Json:
    return {
        "annotations": {"list": [_BUILT_IN, *annotations]},
        "description": description,
        "editable": False,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "id": None,
        "links": [
            {
                "title": "Circuit breakers", "type": "dashboards", "tags": [TAG], "asDropdown": False,
                "includeVars": True, "keepTime": True, "targetBlank": False, "icon": "external link", "tooltip": "",
                "url": "",
            },
        ],
        "panels": panels,
        "refresh": "30s",
        "schemaVersion": 42,
        "tags": [TAG, "circuit-breaker", "genai"],
        "templating": {"list": _variables(one)},
        "time": {"from": since, "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": title,
        "uid": uid,
        "weekStart": "",
    }  # fmt: skip


def overview() -> Json:
    """Every circuit of every service."""
    opened = f"{charts.openings(WHERE)} > 0"
    return _dashboard(
        OVERVIEW_UID,
        "Circuit breakers: overview",
        "Which circuits are open, since when, why, and what it costs.",
        _overview(),
        [
            _annotation(
                "Opened", opened, "{{otel_breaker_name}} opened", "in {{service_name}}", RED,
                "service_name,otel_breaker_name",
            ),
        ],
        one=False,
        since="now-3h",
    )  # fmt: skip


def circuit() -> Json:
    """One circuit."""
    by = "otel_breaker_name"
    past = f"max by (service_name, {by}) ({queries.fresh('otel_breaker_cooldowns_elapsed', WHERE)}) >= 2"
    opened = f"{charts.openings(WHERE, 'service_name')} > 0"
    closed = f"{charts.probes_closed(WHERE, 'service_name')} > 0"
    return _dashboard(
        CIRCUIT_UID,
        "Circuit breakers: one circuit",
        "One circuit in all its replicas: its state, its probes, why it opened, and which tools it takes away.",
        _circuit(),
        [
            _annotation(
                "Past two cooldowns", past, "{{otel_breaker_name}} past two cooldowns", "pages: {{service_name}}", GREY
            ),
            _annotation("Opened", opened, "opened", "in {{service_name}}", RED),
            _annotation("Closed", closed, "closed by a probe", "in {{service_name}}", BLUE),
        ],
        one=True,
        since="now-1h",
    )  # fmt: skip


def outputs(grafana_url: str = "") -> dict[str, str]:
    """What this module writes; its links are relative, so that Grafana's address is none of its business."""
    found: dict[str, Any] = {"overview": overview(), "circuit": circuit()}
    return {
        f"grafana/dashboards/{name}.json": json.dumps(board, indent=2, ensure_ascii=False) + "\n"
        for name, board in found.items()
    }
