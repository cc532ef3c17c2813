"""The generated files are what the table says, and the table says only what the package exports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grafana import _yaml, build
from otel_breaker.core.states import STATES
from tests.telemetry.test_names import COUNTER, HISTOGRAM, TABLE

from .rulefiles import (
    ALERTMANAGER,
    GRAFANA,
    IDENTITY,
    ROOT,
    RULES,
    RULES_TEST,
    RUNBOOKS,
    alerts,
    grafana_rules,
    load,
    records,
    rules,
)

# --- drift ------------------------------------------------------------------------------------------------------------


def test_the_committed_files_are_the_generated_ones() -> None:
    for path, text in build.render().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path}: python -m grafana.build"


def test_nothing_else_lies_where_grafana_looks_for_rules() -> None:
    found = {str(path.relative_to(ROOT)) for path in GRAFANA.rglob("*") if path.is_file()}
    assert found == {path for path in build.render() if path.startswith("grafana/alerting/")}


def test_check_writes_nothing_and_fails_on_drift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    assert build.main(["--check"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0
    (tmp_path / "grafana/alerting/rules.yaml").write_text("apiVersion: 1\n")
    capsys.readouterr()
    assert build.main(["--check"]) == 1
    assert capsys.readouterr().out == "grafana/alerting/rules.yaml\n"


def test_links_lead_to_the_grafana_that_was_asked_for() -> None:
    for path, text in build.render("https://grafana.example.com").items():
        assert "localhost" not in text, path
    assert (
        "https://grafana.example.com/d/otel-breaker-circuit?"
        in build.render("https://grafana.example.com")["grafana/alerting/rules.yaml"]
    )


def test_the_writer_writes_what_a_yaml_reader_reads_back() -> None:
    shared = _yaml.Anchored("one", {"text": "it's: #1"})
    value = {
        "words": ["yes", "null", "12", "1e3", "a b", "x: y", "{{ .a }}", "", "*", "-"],
        "numbers": [1, 0.5, True, None],
        "lines": _yaml.Lines("first 'line'", "{{- second }}", "third: #"),
        "list": [{"a": 1, "b": {"c": []}}, _yaml.Commented("why", {"d": shared}), {"e": shared}],
    }
    text = _yaml.dump(value, "Head")
    assert text.startswith("# Head\nwords:")
    assert "\n  # why\n" in text
    assert text.count("it''s") == 1
    import yaml

    assert yaml.safe_load(text) == value


# --- form: as mixins do it --------------------------------------------------------------------------------------------

NAMES = [
    "OtelBreakerOpenPastTwoCooldowns",
    "OtelBreakerFleetOpenPastTwoCooldowns",
    "OtelBreakerOpenLong",
    "OtelBreakerFlapping",
    "OtelBreakerCredentialRevoked",
    "OtelBreakerTelemetryMissing",
    "OtelBreakerTelemetryAbsent",
    "OtelBreakerWatchdog",
]


def test_one_group_records_first() -> None:
    [group] = load(RULES)["groups"]
    assert (group["name"], group["interval"]) == ("otel-breaker", "15s")
    kinds = ["record" if "record" in rule else "alert" for rule in group["rules"]]
    assert kinds == sorted(kinds, reverse=True)
    assert all(re.fullmatch(r"tool:otel_breaker_[a-z_]+:[a-z]+[0-9]*[mh]?", name) for name in records())


def test_the_alerts_and_their_severities() -> None:
    found: dict[str, list[str]] = {}
    for rule in alerts():
        found.setdefault(rule["alert"], []).append(rule["labels"]["severity"])
    assert list(found) == NAMES
    assert found.pop("OtelBreakerWatchdog") == ["none"]
    assert {name for name, severities in found.items() if severities == ["critical", "warning"]} == set(NAMES[:2])
    assert {name for name, severities in found.items() if severities == ["warning"]} == set(NAMES[2:-1])


@pytest.mark.parametrize("rule", [*alerts(), *grafana_rules()], ids=lambda rule: rule.get("alert") or rule["uid"])
def test_every_alert_has_a_static_summary_a_description_a_runbook_and_a_dashboard(rule: dict[str, Any]) -> None:
    texts = rule["annotations"]
    assert re.fullmatch(r"[A-Z][^{}]*\.", texts["summary"])
    assert texts["description"]
    name = rule.get("alert") or rule["title"].removesuffix(" outside production")
    assert texts["runbook_url"].endswith(f"/docs/runbooks/{name}.md")
    assert re.match(r"http://localhost:3000/d/otel-breaker-(circuit\?var-|overview$)", texts["dashboard_url"])
    assert not any("{{" in label for label in rule["labels"].values()), "a label that changes is another alert"


def test_the_page_has_neither_a_wait_nor_a_hold() -> None:
    for rule in alerts():
        if rule["labels"]["severity"] == "critical":
            assert "for" not in rule
            assert "keep_firing_for" not in rule


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(NAMES)


SECTIONS = [
    "What it means",
    "What the model is told meanwhile",
    "How to look",
    "How to force",
    "How to silence",
    "When it resolves",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_answers_the_same_six_questions(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS


# --- names: only what is exported (B72) -------------------------------------------------------------------------------


def exported() -> dict[str, set[str]]:
    """Metric -> labels, as the Collector and Prometheus name them."""
    found: dict[str, set[str]] = {}
    for name, (kind, unit, attributes) in TABLE.items():
        base = name.replace(".", "_") + ("_seconds" if unit == "s" else "") + ("_total" if kind == COUNTER else "")
        labels = {attribute.replace(".", "_") for attribute in attributes}
        for metric in [f"{base}_{part}" for part in ("bucket", "sum", "count")] if kind == HISTOGRAM else [base]:
            found[metric] = labels | ({"le"} if metric.endswith("_bucket") else set())
    return found


METRICS = exported()
RESOURCE = {"deployment_environment_name", "service_namespace", "service_name", "service_instance_id"}
LABELS = RESOURCE.union(*METRICS.values())
_WORDS = """
by on unless and or offset bool absent vector count max min sum increase last_over_time clamp_min topk
"""
PROMQL = set(_WORDS.split())


def test_these_are_the_names_that_were_recorded_in_prometheus_B72() -> None:
    text = (ROOT / "docs/exported-names.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `otel_breaker[^|]*\|[^|]*\| `(\w+)` \|([^|]*)\|", text, re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == METRICS
    through = re.search("Through the Collector every series has also: (.+)", text)
    assert through
    assert set(re.findall(r"`(\w+)`", through[1])) >= RESOURCE


def identifiers(expression: str) -> set[str]:
    """Every name in an expression, without texts, durations and numbers."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
    return set(re.findall(r"(?<![\w:])[A-Za-z_][\w:]*", re.sub(r"\[[^\]]*\]|\b\d+[smhd]\b", "", bare)))


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
        for text in rule.get("annotations", {}).values():
            for query in re.findall(r'query \(printf "([^"]+)" ', text):
                yield rule["alert"], query.replace("%s", "")
    for rule in grafana_rules():
        yield rule["title"], rule["data"][0]["model"]["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_an_expression_uses_only_exported_names_and_labels_B72(where: str, expression: str) -> None:
    names = identifiers(expression) - PROMQL
    assert names <= METRICS.keys() | LABELS | records().keys(), names
    for metric, selector in re.findall(r"(?<![\w:])(otel_breaker_\w+)\{([^}]*)\}", expression):
        asked = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', "", selector)))
        assert asked <= METRICS[metric] | RESOURCE, f"{metric}: {asked}"
    for states in re.findall(r'otel_breaker_(?:previous_)?state=~?"([^"]*)"', expression):
        assert set(states.split("|")) <= set(STATES)


def test_templates_use_only_exported_labels_B72() -> None:
    for rule in [*alerts(), *grafana_rules()]:
        for text in rule["annotations"].values():
            used = set(re.findall(r"(?:\$labels|\.Labels)\.(\w+)", text))
            assert used <= LABELS, used
    template = (ALERTMANAGER.parent / "otel-breaker.tmpl").read_text() + ALERTMANAGER.read_text()
    used = set(re.findall(r"(?:GroupLabels|CommonLabels|\.Labels)\.(\w+)", template))
    assert used <= LABELS | {"severity", "scope", "alertname"}, used


def test_the_stories_of_the_test_file_use_only_exported_series_B72() -> None:
    for test in load(RULES_TEST)["tests"]:
        for series in test["input_series"]:
            metric, selector = re.fullmatch(r"(\w+)\{(.*)\}", series["series"]).groups()  # type: ignore[union-attr]
            labels = set(re.findall(r"(\w+)=", re.sub(r'"(?:[^"\\]|\\.)*"', "", selector)))
            assert labels <= METRICS[metric] | RESOURCE | {"instance", "pod"}, series


@pytest.mark.parametrize("page", ["docs/alerts.md", *(f"docs/runbooks/{name}.md" for name in NAMES)])
def test_the_documentation_names_only_what_is_exported_B72(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for word in set(re.findall(r"(?<![\w:.-])(?:tool:)?otel_breaker_[a-z_:0-9]+\w", text)):
        assert word in METRICS.keys() | LABELS | records().keys(), word
    for name in set(re.findall(r"\bOtelBreaker[A-Z]\w+", text)):
        assert name in NAMES, name


# --- Grafana's files --------------------------------------------------------------------------------------------------


def test_grafanas_uids_and_titles_are_its_own_and_fit() -> None:
    uids = [rule["uid"] for rule in grafana_rules()]
    assert len(set(uids)) == len(uids)
    assert all(re.fullmatch(r"[a-z0-9-]{8,40}", uid) for uid in uids)
    titles = [rule["title"] for rule in grafana_rules()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("rule", grafana_rules(), ids=lambda rule: rule["uid"])
def test_a_grafana_rule_names_no_datasource_and_treats_silence_and_errors_as_nothing_B94(rule: dict[str, Any]) -> None:
    query, threshold = rule["data"]
    assert query["datasourceUid"] == "${OTEL_BREAKER_PROMETHEUS_UID}"
    assert threshold["datasourceUid"] == "__expr__"
    assert "datasource" not in query["model"]
    assert (rule["noDataState"], rule["execErrState"]) == ("OK", "KeepLast")
    assert rule["condition"] == threshold["refId"]
    assert threshold["model"]["expression"] == query["refId"]
    assert query["model"]["instant"] is True
    assert rule["isPaused"] is False


@pytest.mark.parametrize("rule", grafana_rules(), ids=lambda rule: rule["uid"])
def test_a_grafana_rule_notifies_its_contact_point_by_circuit(rule: dict[str, Any]) -> None:
    [point] = load(GRAFANA / "contact-points.yaml")["contactPoints"]
    settings = rule["notification_settings"]
    assert settings["receiver"] == point["name"]
    assert settings["group_by"] == ["grafana_folder", "alertname", *IDENTITY]
    here = load(ALERTMANAGER)["route"]
    timings = ("group_wait", "group_interval", "repeat_interval")
    assert [settings[key] for key in timings] == [here[key] for key in timings]


def test_grafana_expands_no_more_than_the_two_variables() -> None:
    """It replaces $NAME and ${NAME} in every value but annotations and the query's model, silently by nothing."""
    values: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if key not in ("annotations", "model"):
                    walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        else:
            values.append(str(value))

    for name in ("rules.yaml", "contact-points.yaml", "examples/policies.yaml"):
        walk(load(GRAFANA / name))
    assert {value for value in values if "$" in value} == {"${OTEL_BREAKER_PROMETHEUS_UID}", "$PAGERDUTY_ROUTING_KEY"}
    for rule in grafana_rules():
        assert not any(re.search(r"\$\{", text) for text in rule["annotations"].values())


def test_grafanas_contact_point_sends_what_pagerduty_needs_B90() -> None:
    [point] = load(GRAFANA / "contact-points.yaml")["contactPoints"]
    [receiver] = point["receivers"]
    assert receiver["type"] == "pagerduty"
    assert receiver["disableResolveMessage"] is False
    settings = receiver["settings"]
    assert settings["integrationKey"] == "$PAGERDUTY_ROUTING_KEY"
    assert settings["source"] == "otel-breaker"
    assert settings["severity"] == "{{ .CommonLabels.severity }}"
    assert {rule["labels"]["severity"] for rule in grafana_rules()} == {"critical", "warning"}


def test_no_policy_tree_is_provisioned_by_mounting_the_folder() -> None:
    """It would replace the whole tree of the organisation."""
    assert not any("policies" in load(path) for path in GRAFANA.glob("*.yaml"))
