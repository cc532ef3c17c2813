"""The dashboards are what the tables say, and the tables know every word of the package."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins

from grafana import _alerts, _charts, _theme, build
from otel_breaker.core.states import STATES
from otel_breaker.outcomes import REASONS
from otel_breaker.stats import DECISIONS, OUTCOMES
from tests.grafana.boards import BOARDS

ROOT = Path(__file__).parents[2]


# --- drift ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["overview", "circuit"])
def test_the_committed_dashboards_are_the_generated_ones(name: str) -> None:
    path = f"grafana/dashboards/{name}.json"
    assert (ROOT / path).read_text(encoding="utf-8") == build.render()[path], "python -m grafana.build"


def test_nothing_else_lies_beside_them() -> None:
    assert sorted(BOARDS) == ["circuit", "overview"]
    assert {path.name for path in (ROOT / "grafana/dashboards").iterdir()} == {"overview.json", "circuit.json"}


def test_alerts_lead_to_these_dashboards() -> None:
    assert {name: board["uid"] for name, board in BOARDS.items()} == {
        "overview": _alerts.OVERVIEW_UID,
        "circuit": _alerts.CIRCUIT_UID,
    }


def test_the_file_that_provisions_them_is_the_one_of_compose() -> None:
    provisioning, stack = (
        yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
        for path in ("grafana/provisioning/dashboards.yaml", "collector-config/stack/dashboards.yaml")
    )
    assert provisioning == stack


def test_panels_keep_their_numbers() -> None:
    """Links to a panel, and what people have noted down, name them."""
    found = {
        name: {
            panel["id"]: panel["title"]
            for row in board["panels"]
            for panel in [row, *row.get("panels", ())]
            if panel["type"] != "row"
        }
        for name, board in BOARDS.items()
    }
    assert found == {
        "overview": {
            1: "Open now", 2: "Past two cooldowns", 3: "Refused", 4: "Waiting spared", 5: "Credentials refused",
            6: "Held by hand", 7: "Processes reporting", 8: "Gone silent", 9: "State by circuit",
            10: "Circuits, worst first", 11: "Calls by outcome", 12: "Refusals and probes",
            13: "Cooldowns elapsed, and the line that pages", 14: "Calls that would be hanging",
            15: "Why: failures by reason", 16: "Openings", 17: "Processes reporting, by service",
            18: "Credentials over time", 19: "Circuits held, and store errors",
        },
        "circuit": {
            1: "State", 2: "Open for", 3: "Cooldowns elapsed", 4: "Next probe in", 5: "Waits for a call",
            6: "Replicas open", 7: "Replicas reporting", 8: "Waiting spared", 9: "State by replica",
            10: "Cooldowns elapsed, and the line that pages", 11: "Time to the next probe", 12: "Probes",
            13: "Calls by outcome", 14: "Refusals and probes", 15: "Why: failures by reason",
            16: "Failures in this time range", 17: "Tools that need it", 18: "Finished episodes, by length",
            19: "Credentials over time", 20: "Traces of refused calls", 21: "Traces in which the circuit moved",
        },
    }  # fmt: skip


# --- words ------------------------------------------------------------------------------------------------------------


def test_every_word_of_the_package_has_its_colour() -> None:
    decisions, outcomes = {word for word, _ in DECISIONS}, {word for word, _ in OUTCOMES}
    assert set(_theme.STATE) == set(_charts.SEVERITY) == set(STATES)
    assert set(_theme.OUTCOME) == outcomes | {"refused"}
    assert set(_theme.DECISION) == decisions - {"admitted"}
    assert set(_theme.REASON) == set(REASONS)
    assert set(_charts.REFUSALS) == decisions - {"admitted", "probe", "would_reject"}


def test_no_colour_means_two_things_in_one_panel() -> None:
    for palette in (_theme.STATE, _theme.OUTCOME, _theme.DECISION, _theme.REASON, _theme.PROBES, _theme.CREDENTIALS):
        assert len(set(palette.values())) == len(palette)


# --- no typing errors: what Grafana's own types do not know would be dropped ------------------------------------------


def dropped(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from dropped(value, theirs[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from dropped(one, other, f"{path}/{place}")
    elif ours != theirs:
        yield path


def through_their_types(board: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        # They would rather have their second schema, which Grafana cannot read from files.
        warnings.simplefilter("ignore", DeprecationWarning)
        from grafana_foundation_sdk.models.dashboard import Dashboard
    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_own_types_know_every_field(name: str) -> None:
    assert list(dropped(BOARDS[name], through_their_types(BOARDS[name]))) == ["/id"]  # null: a new dashboard


def test_a_typing_error_is_noticed() -> None:
    board = json.loads(json.dumps(BOARDS["overview"]))
    board["timezon"] = board.pop("timezone")
    board["panels"][1]["fieldConfig"]["defaults"]["unti"] = "s"
    assert list(dropped(board, through_their_types(board))) == [
        "/id", "/panels/1/fieldConfig/defaults/unti", "/timezon",
    ]  # fmt: skip
