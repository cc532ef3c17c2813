"""The rules of grafana/dashboard-linter that apply, as tests; and what else makes a dashboard usable.

Ported: template-datasource, template-label-promql, template-on-time-change-reload, panel-datasource,
panel-title-description, panel-units, panel-no-targets, target-promql (in test_queries.py), target-rate-interval,
target-counter-agg, uneditable-dashboard.

Not ported: template-job, template-instance, target-job and target-instance (services are told apart by `service_name`
and `service_instance_id`: a `job` exists only where the Collector made one); target-logql and target-logql-auto (no
query for Loki); those for the v2 schema (these are classic files).
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from otel_breaker.telemetry import names
from tests.alerts.test_generated import IDENTITY, LABELS, METRICS, identifiers
from tests.grafana.boards import BOARDS, NAMES, PANELS, QUERIES, units, variables
from tests.support import panels

boards = pytest.mark.parametrize("name", BOARDS)
every_panel = pytest.mark.parametrize(("where", "panel"), PANELS, ids=NAMES)
every_query = pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)

PROMETHEUS = {"type": "prometheus", "uid": "${prometheus_datasource}"}
TEMPO = {"type": "tempo", "uid": "${tempo_datasource}"}


# --- the linter's -----------------------------------------------------------------------------------------------------


@boards
def test_template_datasource(name: str) -> None:
    found = {one["name"]: (one["query"], one["label"]) for one in variables(BOARDS[name], "datasource")}
    expected = {"prometheus_datasource": ("prometheus", "Prometheus data source")}
    if name == "circuit":
        expected["tempo_datasource"] = ("tempo", "Tempo data source")
    assert found == expected


@boards
def test_template_label_promql(name: str) -> None:
    for one in variables(BOARDS[name], "query"):
        assert re.fullmatch(r"label_values\(otel_breaker_status(\{.*\})?, \w+\)", one["query"]["query"])
        assert one["definition"] == one["query"]["query"]


@boards
def test_template_on_time_change_reload(name: str) -> None:
    assert {one["refresh"] for one in variables(BOARDS[name], "query")} == {2}


@every_panel
def test_panel_datasource(where: str, panel: dict[str, Any]) -> None:
    expected = TEMPO if "Traces" in panel["title"] else PROMETHEUS
    assert panel["datasource"] == expected
    assert [target["datasource"] for target in panel["targets"]] == [expected] * len(panel["targets"])


@every_panel
def test_panel_title_description(where: str, panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert re.fullmatch(r"[A-Za-z'][^\n]*\.", panel["description"])
    assert len(panel["description"]) > 20


@every_panel
def test_panel_units(where: str, panel: dict[str, Any]) -> None:
    assert units(panel) <= {"none", "s", "cps"}


@every_panel
def test_panel_no_targets(where: str, panel: dict[str, Any]) -> None:
    assert panel["targets"]
    assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGHI"[: len(panel["targets"])])


@every_query
def test_target_rate_interval(query: panels.Asked) -> None:
    """What is drawn over time looks back over `$__rate_interval`; only the present has windows of its own."""
    bare = re.sub(r'"[^"]*"', "", query.expr)
    windows = set(re.findall(r"\[([^\]]+)\]|offset (\S+?)[),\s]", bare + " "))
    found = {one or other for one, other in windows}
    if query.label:
        assert found == set()
    elif query.instant:
        assert found <= {"5m", "$__range", "$__range:1m", "$__rate_interval"}
    else:
        allowed = {"$__rate_interval", "$__range"} if "line that pages" in query.where else {"$__rate_interval"}
        assert found <= (allowed | {"5m"} if "annotation Past" in query.where else allowed)
        assert found
    assert "$__interval" not in query.expr


@every_query
def test_target_counter_agg(query: panels.Asked) -> None:
    """A counter is in `rate` or `increase`, or its own past is taken from it, which gives whole numbers."""
    counters = re.findall(r"(\w+\()?(otel_breaker_\w+_(?:total|bucket))(\{[^}]*\})?(\[)?", query.expr)
    for function, name, selector, window in counters:
        if window:
            assert function in ("rate(", "increase("), query.expr
        else:
            assert f"{name}{selector} offset $" in query.expr, query.expr


@boards
def test_uneditable_dashboard(name: str) -> None:
    assert BOARDS[name]["editable"] is False


# --- names (B72) ------------------------------------------------------------------------------------------------------

_WORDS = """
by on and or offset bool max min sum count increase rate last_over_time max_over_time clamp_min time timestamp
label_replace __rate_interval __range
"""


@every_query
def test_only_names_that_are_exported_B72(query: panels.Asked) -> None:
    unknown = identifiers(query.expr) - set(METRICS) - LABELS - set(_WORDS.split())
    assert unknown == set()
    chosen = set(re.findall(r'"\$(\w+)"', query.expr))
    assert chosen <= {"environment", "namespace", "service", "circuit"}


@every_panel
def test_legends_use_labels_that_the_query_keeps(where: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        for label in re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")):
            grouped = re.findall(r" by \(([^)]*)\)", target["expr"])
            kept = set(re.split(r",\s*", grouped[0])) if grouped else set()
            assert label in kept | ({"replica"} if "label_replace" in target["expr"] else set())


def test_traceql_uses_names_of_ours() -> None:
    asked = [target["query"] for _, panel in PANELS for target in panel["targets"] if "query" in target]
    assert len(asked) == 2
    events = {found for text in asked for found in re.findall(r'event:name = "([^"]+)"', text)}
    assert events == {names.CALL_REJECTED, names.STATE_CHANGED}
    for text in asked:
        assert f"event.{names.NAME} =~" in text
        assert text.count("{") == text.count("}") == 1


# --- importable in three ways -----------------------------------------------------------------------------------------


@boards
def test_nothing_needs_an_import_wizard(name: str) -> None:
    board = BOARDS[name]
    assert "__inputs" not in board
    assert board["id"] is None
    assert "version" not in board
    assert re.fullmatch(r"[a-z-]{8,40}", board["uid"])
    assert board["schemaVersion"] == 42


@boards
def test_no_datasource_is_hard_coded(name: str) -> None:
    def uids(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["uid"]} if set(value) == {"type", "uid"} else set()
            return own.union(*map(uids, value.values()))
        return set().union(*map(uids, value)) if isinstance(value, list) else set()

    assert uids(BOARDS[name]) <= {PROMETHEUS["uid"], TEMPO["uid"], "-- Grafana --"}


# --- variables and links ----------------------------------------------------------------------------------------------


@boards
def test_variables_are_those_that_alerts_link_to_and_each_narrows_the_next(name: str) -> None:
    found = variables(BOARDS[name], "query")
    assert [one["name"] for one in found] == ["environment", "namespace", "service", "circuit"]
    for place, (one, label) in enumerate(zip(found, IDENTITY, strict=True)):
        assert one["query"]["query"].endswith(f", {label})")
        chosen = re.findall(r'(\w+)=~"\$(\w+)"', one["query"]["query"])
        assert chosen == [(IDENTITY[n], found[n]["name"]) for n in range(place)]
        if one["multi"]:
            # A label that nobody set is not there: `.+` would hide those circuits.
            assert (one["includeAll"], one["allValue"]) == (True, ".*")
        else:
            assert (name, one["name"], one["includeAll"]) == ("circuit", "circuit", False)


def test_links_from_the_overview_choose_the_circuit_by_all_that_identifies_it() -> None:
    links = []
    for where, panel in PANELS:
        config = panel["fieldConfig"]
        links += [(where, link) for link in config["defaults"].get("links", ())]
        links += [
            (where, link)
            for one in config["overrides"]
            for p in one["properties"]
            if p["id"] == "links"
            for link in p["value"]
        ]
    assert [where for where, _ in links] == [
        "overview: State by circuit",
        "overview: Circuits, worst first",
        "overview: Cooldowns elapsed, and the line that pages",
        "overview: Openings",
    ]
    titles = dict(zip(IDENTITY, ("Environment", "Namespace", "Service", "Circuit"), strict=True))
    for where, link in links:
        path, _, query = link["url"].partition("?")
        assert path == "/d/otel-breaker-circuit"
        value = "__data.fields.%s" if "worst first" in where else "__field.labels.%s"
        fields = [titles[label] if "worst first" in where else label for label in IDENTITY]
        chosen = zip(("environment", "namespace", "service", "circuit"), fields, strict=True)
        assert query.split("&") == [
            *(f"var-{name}=${{{value % field}:percentencode}}" for name, field in chosen),
            "${prometheus_datasource:queryparam}",
            "${__url_time_range}",
        ]


def test_series_that_link_carry_the_whole_identity() -> None:
    for where, panel in PANELS:
        if panel["fieldConfig"]["defaults"].get("links"):
            for target in panel["targets"]:
                assert f"by ({', '.join(IDENTITY)})" in target["expr"], where


# --- shape ------------------------------------------------------------------------------------------------------------


@boards
def test_panels_fill_the_grid_without_overlap(name: str) -> None:
    def cells(found: list[dict[str, Any]]) -> None:
        taken: dict[tuple[int, int], str] = {}
        for panel in found:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= 24
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                    taken[x, y] = panel["title"]
        # No holes: every line that is begun is full.
        lines = {y for _, y in taken}
        assert [y for y in lines if sum((x, y) in taken for x in range(24)) != 24] == []

    board = BOARDS[name]
    cells(board["panels"])
    for row in board["panels"]:
        if row["type"] == "row" and row["collapsed"]:
            cells(row["panels"])


@every_panel
def test_silence_is_told_apart_from_zero(where: str, panel: dict[str, Any]) -> None:
    """No query makes a number up, and where there is none the panel says what that means."""
    assert panel["fieldConfig"]["defaults"]["noValue"]
    for target in panel["targets"]:
        if "expr" in target:
            assert not re.search(r"\b(vector|absent)\b", target["expr"])
    if panel["type"] in ("stat", "state-timeline"):
        assert panel["fieldConfig"]["defaults"]["noValue"] == "no telemetry"


def test_no_two_panels_have_one_title() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len({query.where for query in QUERIES}) == len(QUERIES)


@boards
def test_what_happened_is_annotated(name: str) -> None:
    own = [one for one in BOARDS[name]["annotations"]["list"] if not one.get("builtIn")]
    expected = {"overview": ["Opened"], "circuit": ["Past two cooldowns", "Opened", "Closed"]}
    assert [one["name"] for one in own] == expected[name]
    for one in own:
        assert one["datasource"] == PROMETHEUS
        assert one["enable"] is True
        assert re.search(r"> 0$|>= 2$", one["expr"])


@boards
def test_the_frame(name: str) -> None:
    board = BOARDS[name]
    assert board["refresh"] == "30s"  # not below what agents export at
    assert board["timezone"] == "browser"
    assert board["graphTooltip"] == 1
    assert "otel-breaker" in board["tags"]
    assert board["description"]
    [link] = board["links"]
    assert (link["tags"], link["includeVars"], link["keepTime"]) == (["otel-breaker"], True, True)
