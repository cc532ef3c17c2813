"""What the table of alerts becomes: Prometheus' rule file and Grafana's provisioning files."""

from __future__ import annotations

import re
from typing import Any, Final

from ._alerts import ALERTS, CIRCUIT_UID, GRAFANA_URL, OVERVIEW_UID, Alert, InFull, Recorded, rules
from ._queries import IDENTITY, RECORDS
from ._yaml import Anchored, Commented, Lines, dump, wrapped

GROUP: Final = "otel-breaker"
INTERVAL: Final = "15s"
RECEIVER: Final = "otel-breaker-pagerduty"

_GENERATED: Final = "Written by `python -m grafana.build` from the table in grafana/_alerts.py; a test fails on drift."


def _dashboard(alert: Alert, base: str, value: str) -> str:
    """Where the alert's dashboard is; ``value`` is how a template writes a label."""
    if alert.dashboard == OVERVIEW_UID:
        return f"{base}/d/{OVERVIEW_UID}"
    variables = zip(("environment", "namespace", "service", "circuit"), IDENTITY, strict=True)
    return f"{base}/d/{CIRCUIT_UID}?{'&'.join(f'var-{name}={value % label}' for name, label in variables)}"


def prometheus(grafana_url: str = GRAFANA_URL) -> str:
    """collector-config/prometheus/otel-breaker.rules.yml."""
    of = Recorded()
    found: list[dict[str, Any]] = [{"record": record.name, "expr": wrapped(record.query(""))} for record in RECORDS]
    for alert in ALERTS:
        annotations: dict[str, Any] = {
            "summary": alert.summary,
            "description": alert.description,
            **alert.more,
            "runbook_url": alert.runbook,
            "dashboard_url": _dashboard(alert, grafana_url, "{{ $labels.%s | urlquery }}"),
        }
        if len(alert.severities) > 1:
            annotations = Anchored(alert.name, annotations)
        for severity, where in alert.severities:
            rule = {
                "alert": alert.name,
                "expr": wrapped(_condition(alert, of, where)),
                **({"for": alert.wait} if alert.wait else {}),
                **({"keep_firing_for": alert.keep} if alert.keep else {}),
                "labels": {"severity": severity, **alert.labels},
                "annotations": annotations,
            }
            found.append(Commented(_why(alert, severity), rule))
    return dump(
        {"groups": [{"name": GROUP, "interval": INTERVAL, "rules": found}]},
        f"{_GENERATED}\nOne group: its rules run in this order, so the alerts see what was recorded a moment before.\n"
        f"Dashboards are looked for at {grafana_url}; put your Grafana's address there.",
    )


def _why(alert: Alert, severity: str) -> str:
    return alert.why if severity == alert.severities[0][0] else "The same outside production."


def _condition(alert: Alert, of: Recorded, where: str) -> str:
    query = alert.query(of, where)
    return f"{query} {alert.over} {alert.threshold:g}" if alert.over else query


# --- Grafana ----------------------------------------------------------------------------------------------------------


_WITH: Final = "{{ with $labels.%s }}{{ . | urlquery }}{{ end }}"
"""Grafana prints a label that is not there as an error text."""


def grafana_rules(grafana_url: str = GRAFANA_URL) -> str:
    """grafana/alerting/rules.yaml."""
    of = InFull()
    found = [
        _grafana_rule(alert, severity, where, of, grafana_url) for alert, severity, where in rules() if alert.grafana
    ]
    group = {"orgId": 1, "name": GROUP, "folder": GROUP, "interval": INTERVAL, "rules": found}
    return dump(
        {"apiVersion": 1, "groups": [group]},
        f"{_GENERATED}\nFor shops without an Alertmanager; beside one, every page would come twice. "
        "Grafana 12 or newer.\n"
        "Needs OTEL_BREAKER_PROMETHEUS_UID, the uid of the Prometheus datasource, in Grafana's environment.\n"
        "An empty answer means that all is well (noDataState: OK; two rules of their own watch for silence), and an\n"
        "error of the datasource changes nothing (execErrState: KeepLast): neither can page.",
    )


def _grafana_rule(alert: Alert, severity: str, where: str, of: Recorded, grafana_url: str) -> Commented:
    second = severity != alert.severities[0][0]
    uid = "otel-breaker" + re.sub("([A-Z])", r"-\1", alert.name.removeprefix("OtelBreaker")).lower()
    # ">= n" of whole numbers is "> n - 1", which every release knows.
    limit = alert.threshold - (1 if alert.over == ">=" else 0)
    query: dict[str, Any] = {
        "refId": "A",
        "relativeTimeRange": {"from": 600, "to": 0},
        "datasourceUid": "${OTEL_BREAKER_PROMETHEUS_UID}",
        "model": {
            "refId": "A",
            "expr": wrapped(alert.query(of, where)),
            "instant": True,
            "range": False,
            "editorMode": "code",
            "intervalMs": 1000,
            "maxDataPoints": 43200,
        },
    }
    condition: dict[str, Any] = {
        "refId": "C",
        "relativeTimeRange": {"from": 0, "to": 0},
        "datasourceUid": "__expr__",
        "model": {
            "refId": "C",
            "type": "threshold",
            "expression": "A",
            "datasource": {"type": "__expr__", "uid": "__expr__"},
            "conditions": [
                {
                    "type": "query",
                    "evaluator": {"type": "gt", "params": [limit]},
                    "operator": {"type": "and"},
                    "query": {"params": ["C"]},
                    "reducer": {"type": "last", "params": []},
                }
            ],
        },
    }
    return Commented(
        _why(alert, severity),
        {
            "uid": uid + ("-2" if second else ""),
            "title": alert.name + (" outside production" if second else ""),
            "condition": "C",
            "data": [query, condition],
            "noDataState": "OK",
            "execErrState": "KeepLast",
            "for": alert.wait or "0s",
            **({"keepFiringFor": alert.keep} if alert.keep else {}),
            "labels": {"severity": severity, **alert.labels},
            "annotations": {
                "summary": alert.summary,
                "description": alert.grafana,
                "runbook_url": alert.runbook,
                "dashboard_url": _dashboard(alert, grafana_url, _WITH),
            },
            "notification_settings": {
                "receiver": RECEIVER,
                "group_by": ["grafana_folder", "alertname", *IDENTITY],
                "group_wait": "30s",
                "group_interval": "1m",
                "repeat_interval": "4h",
            },
            "isPaused": False,
        },
    )


def contact_points() -> str:
    """grafana/alerting/contact-points.yaml."""
    settings = {
        "integrationKey": "$PAGERDUTY_ROUTING_KEY",
        "severity": "{{ .CommonLabels.severity }}",
        "class": "circuit_breaker",
        "component": "{{ .CommonLabels.otel_breaker_name }}",
        "group": "{{ .CommonLabels.service_namespace }}",
        "source": "otel-breaker",
        "client": "otel-breaker",
        # No variables of the template's own: Grafana would take $name for one of its environment's.
        "summary": Lines(
            "{{ if .CommonLabels.otel_breaker_name }}{{ .CommonLabels.otel_breaker_name }}",
            "({{ .CommonLabels.service_name }}): {{ end }}{{ .CommonAnnotations.summary }}",
        ),
    }
    receiver = {"uid": RECEIVER, "type": "pagerduty", "disableResolveMessage": False, "settings": settings}
    point = {"orgId": 1, "name": RECEIVER, "receivers": [receiver]}
    return dump(
        {"apiVersion": 1, "contactPoints": [point]},
        f"{_GENERATED}\nNeeds PAGERDUTY_ROUTING_KEY, an Events API v2 key, in Grafana's environment.\n"
        "The rules name this contact point themselves, so no notification policy is touched.",
    )


def policies() -> str:
    """grafana/alerting/examples/policies.yaml."""
    route = {
        "receiver": RECEIVER,
        "object_matchers": [["alertname", "=~", "OtelBreaker.+"]],
        "group_by": ["grafana_folder", *IDENTITY],
        "group_wait": "30s",
        "group_interval": "1m",
        "repeat_interval": "4h",
    }
    tree = {
        "orgId": 1,
        "receiver": "grafana-default-email",
        "group_by": ["grafana_folder", "alertname"],
        "routes": [route],
    }
    return dump(
        {"apiVersion": 1, "policies": [tree]},
        f"{_GENERATED}\nAn EXAMPLE, not needed: provisioning a policy tree replaces an organisation's whole tree.\n"
        "Take the one route into yours (and notification_settings out of the rules) to have one incident for all\n"
        "alerts of a circuit.",
    )


def outputs(grafana_url: str = GRAFANA_URL) -> dict[str, str]:
    """What this module writes."""
    return {
        "collector-config/prometheus/otel-breaker.rules.yml": prometheus(grafana_url),
        "grafana/alerting/rules.yaml": grafana_rules(grafana_url),
        "grafana/alerting/contact-points.yaml": contact_points(),
        "grafana/alerting/examples/policies.yaml": policies(),
    }
