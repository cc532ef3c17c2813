"""What fires when: promtool over the committed rules, and over what Grafana is given."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from .rulefiles import RULES, RULES_TEST, alerts, grafana_rules, load, records, run


def test_promtool_accepts_the_rules() -> None:
    found = run("promtool", "check", "rules", RULES)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{len(alerts()) + len(records())} rules found" in found.stdout


def test_the_matrix_of_outages_fires_and_stays_quiet_as_written_B71_B83_B84_B86_B87() -> None:
    found = run("promtool", "test", "rules", RULES_TEST)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("committed", "broken"),
    [
        ('"(?i:prod.*)?"} >= 2', '"(?i:prod.*)?"} >= 3'),
        ("labels:\n          severity: critical", "keep_firing_for: 2m\n        labels:\n          severity: critical"),
        ("last_over_time(otel_breaker_cooldowns_elapsed[5m])", "otel_breaker_cooldowns_elapsed"),
    ],
    ids=["three cooldowns", "a held page", "no bridge over a gap"],
)
def test_the_matrix_notices_a_broken_rule(tmp_path: Path, committed: str, broken: str) -> None:
    text = RULES.read_text()
    assert committed in text
    (tmp_path / RULES.name).write_text(text.replace(committed, broken))
    stories = load(RULES_TEST)
    (tmp_path / RULES_TEST.name).write_text(yaml.safe_dump({**stories, "tests": stories["tests"][:10]}))
    found = run("promtool", "test", "rules", tmp_path / RULES_TEST.name)
    assert found.returncode == 1
    assert "FAILED" in found.stdout + found.stderr


# --- Grafana's rules through the same stories -------------------------------------------------------------------------

OUTSIDE = " outside production"
NOT_IN_GRAFANA = {"OtelBreakerFleetOpenPastTwoCooldowns", "OtelBreakerWatchdog"}


def as_prometheus(rule: dict[str, Any]) -> dict[str, Any]:
    """The Prometheus rule that says what a Grafana rule says."""
    query, threshold = rule["data"]
    [condition] = threshold["model"]["conditions"]
    assert condition["evaluator"]["type"] == "gt"
    [limit] = condition["evaluator"]["params"]
    return {
        "alert": rule["title"].removesuffix(OUTSIDE),
        "expr": f"({query['model']['expr']}) > {limit}",
        "for": rule["for"],
        **({"keep_firing_for": rule["keepFiringFor"]} if "keepFiringFor" in rule else {}),
        "labels": rule["labels"],
    }


def told_by_alerts_alone(test: dict[str, Any]) -> dict[str, Any]:
    """A story without texts and recorded series, and without the alerts that Grafana does not have."""
    expected = [
        {
            **one,
            "exp_samples": [
                sample
                for sample in one["exp_samples"]
                if not any(f'alertname="{name}"' in sample["labels"] for name in NOT_IN_GRAFANA)
            ],
        }
        for one in test.get("promql_expr_test", ())
        if "tool:" not in one["expr"]
    ]
    return {**{key: value for key, value in test.items() if key != "alert_rule_test"}, "promql_expr_test": expected}


def test_grafanas_rules_fire_in_the_same_stories(tmp_path: Path) -> None:
    group = {"name": "grafana", "interval": "15s", "rules": [as_prometheus(rule) for rule in grafana_rules()]}
    (tmp_path / "grafana.yml").write_text(yaml.safe_dump({"groups": [group]}))
    stories = load(RULES_TEST)
    tests = [told_by_alerts_alone(test) for test in stories["tests"]]
    assert sum(len(test["promql_expr_test"]) for test in tests) > 50
    (tmp_path / "test.yml").write_text(yaml.safe_dump({**stories, "rule_files": ["grafana.yml"], "tests": tests}))
    found = run("promtool", "test", "rules", tmp_path / "test.yml")
    assert found.returncode == 0, found.stdout + found.stderr


def test_grafana_has_every_alert_but_two_with_the_same_labels_and_waits() -> None:
    def plain(rule: dict[str, Any]) -> tuple[Any, ...]:
        return (rule["alert"], rule.get("for", "0s"), rule.get("keep_firing_for"), rule["labels"])

    here = [plain(rule) for rule in alerts() if rule["alert"] not in NOT_IN_GRAFANA]
    assert [plain(as_prometheus(rule)) for rule in grafana_rules()] == here


def test_grafanas_queries_need_no_recorded_series() -> None:
    for rule in grafana_rules():
        assert not re.search("tool:", rule["data"][0]["model"]["expr"]), rule["title"]
