"""Every query of the dashboards, put to a real Prometheus that holds three hours of a fleet with outages.

tests/endtoend/test_page_path.py asks the same of the series of a real run through the Collector.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.grafana.boards import QUERIES
from tests.support import history, panels, stack

HOUR = 3600.0


class Played:
    """A Prometheus with a history."""

    def __init__(self, url: str, told: history.History) -> None:
        self.url = url
        self.told = told
        self.now = told.now

    def ask(self, where: str, at: float = 0, span: float = 3 * HOUR, **chosen: str) -> list[dict[str, str]]:
        """Labels and last value of each series that a query gets, ``at`` minutes before now."""
        [query] = [one for one in QUERIES if one.where == where]
        variables = {**panels.EVERYTHING, **chosen}
        found = panels.answer(self.url, query, self.now - at * 60, span, variables=variables)
        return [{**one["metric"], "": one["value"][1] if query.instant else one["values"][-1][1]} for one in found]

    def number(self, where: str, at: float = 0, **chosen: str) -> float | None:
        """The one number of a query, or none."""
        found = self.ask(where, at, **chosen)
        assert len(found) <= 1
        return float(found[0][""]) if found else None


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    stack.need("prometheus", "promtool")
    server = stack.Prometheus(tmp_path_factory.mktemp("history"), rules=False, every="15s")
    told = history.play(history.SMALL)
    history.write(told, server.room / "data")
    with server:
        yield Played(server.url, told)


def test_every_query_parses(tmp_path: Path) -> None:
    stack.need("promtool")
    rules = [
        {"record": f"query:{number}", "expr": panels.put(one.expr, 60, 3 * HOUR)} for number, one in enumerate(QUERIES)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(
        [stack.tool("promtool"), "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(QUERIES)} rules found" in done.stdout


def test_every_query_gets_data(played: Played) -> None:
    assert panels.unanswered(played.url, end=played.now, marker=history.MARKER) == []


def test_the_wrong_prometheus_is_noticed(played: Played) -> None:
    with pytest.raises(AssertionError, match="another Prometheus"):
        panels.unanswered(played.url, end=played.now, marker="of_another")


def test_what_gets_no_data_is_named(played: Played) -> None:
    found = panels.unanswered(played.url, end=played.now, variables={**panels.EVERYTHING, "service": "nobody"})
    assert len(found) == len([one for one in QUERIES if "$service" in one.expr])
    left = panels.unanswered(
        played.url, end=played.now, variables={**panels.EVERYTHING, "service": "nobody"}, leave_out=["^overview"]
    )
    assert left == [one for one in found if not one.startswith("overview")]
    assert left


# --- what the numbers say ---------------------------------------------------------------------------------------------


def test_all_closed_is_zero_and_silence_is_nothing(played: Played) -> None:
    counted = ("Open now", "Past two cooldowns", "Held by hand", "Credentials refused")
    calm = {where: played.number(f"overview: {where}, A", at=110, service="research-agent") for where in counted}
    assert calm == dict.fromkeys(counted, 0.0)
    silent = {where: played.number(f"overview: {where}, A", service="nightly-report") for where in counted}
    assert silent == dict.fromkeys(counted, None)
    assert played.number("circuit: State, A", at=110, circuit="mcp:search") == 0
    assert played.number("circuit: State, A", circuit="warehouse.internal") is None


def test_what_is_open_now_is_counted_once_however_many_replicas_hold_it(played: Played) -> None:
    assert played.number("overview: Open now, A") == 1
    assert played.number("overview: Past two cooldowns, A") == 1
    assert played.number("circuit: Replicas open, A", circuit="mcp:crm") == 1
    assert played.number("circuit: State, A", circuit="mcp:crm") == 3
    assert played.number("circuit: Cooldowns elapsed, A", circuit="mcp:crm") == 4


def test_held_by_hand_is_neither_open_nor_paging(played: Played) -> None:
    chosen = {"circuit": "billing-legacy.internal"}
    assert played.number("overview: Held by hand, A", at=40, **chosen) == 1
    assert played.number("overview: Open now, A", at=40, **chosen) == 0
    assert played.number("overview: Past two cooldowns, A", at=40, **chosen) == 0
    assert played.number("circuit: State, A", at=40, **chosen) == 4


def test_a_job_that_ended_is_silent_and_still_in_the_table(played: Played) -> None:
    assert played.number("overview: Gone silent, A") == 1
    assert played.number("overview: Processes reporting, A") == 2
    rows = {one["otel_breaker_name"]: float(one[""]) for one in played.ask("overview: Circuits, worst first, I")}
    assert rows.pop("warehouse.internal") == pytest.approx(118 * 60, abs=30)
    assert max(rows.values()) < 60
    states = {one["otel_breaker_name"] for one in played.ask("overview: Circuits, worst first, A")}
    assert "warehouse.internal" not in states


def test_openings_and_probes_are_whole_numbers(played: Played) -> None:
    for where in ("overview: Openings, A", "circuit: Probes, A", "circuit: Probes, B"):
        [query] = [one for one in QUERIES if one.where == where]
        series = panels.answer(played.url, query, played.now, 3 * HOUR)
        values = {value for one in series for _, value in one["values"]}
        assert len(values) > 1
        assert all(re.fullmatch(r"\d+", value) for value in values)


def test_an_opening_shorter_than_a_step_is_drawn(played: Played) -> None:
    """Half a minute within a day's range, whose steps are six minutes long."""
    [query] = [one for one in QUERIES if one.where == "overview: State by circuit, A"]
    for phase in range(0, 360, 60):
        found = panels.answer(
            played.url, query, played.now - phase, 24 * HOUR, variables={**panels.EVERYTHING, "circuit": "mcp:crm"}
        )
        [series] = found
        assert [value for _, value in series["values"]].count("3") >= 5 + 1  # the open one, and the short one before


def test_failures_by_reason_hold_the_first_of_each(played: Played) -> None:
    found = played.ask("circuit: Failures in this time range, A", circuit="mcp:crm")
    counted = {one["error_type"]: int(one[""]) for one in found}
    assert counted["connection_reset"] == 5  # the threshold: the first would be lost by increase()
    assert set(counted) == {"connection_reset", "connection_refused", "connect_timeout"}


def test_episodes_are_counted_by_length_and_add_up(played: Played) -> None:
    chosen = {"circuit": "mcp:search"}
    parts = [played.number(f"circuit: Finished episodes, by length, {part}", **chosen) for part in "ABCD"]
    assert None not in parts
    closed = stack_closed(played, **chosen)
    assert sum(part or 0 for part in parts) == closed > 0


def stack_closed(played: Played, circuit: str) -> float:
    moves = f'otel_breaker_transitions_total{{otel_breaker_name="{circuit}",otel_breaker_state="closed"}}'
    query = panels.Asked("closings", f"sum(last_over_time({moves}[5m]))", instant=True)
    [one] = panels.answer(played.url, query, played.now, 3 * HOUR)
    return float(one["value"][1])


def test_replicas_are_told_apart_by_the_end_of_their_ids(played: Played) -> None:
    lanes = played.ask("circuit: State by replica, A", service="refund-agent|research-agent")
    assert len(lanes) == len({one["replica"] for one in lanes}) == 2
    assert all(one["service_instance_id"].endswith(one["replica"]) and len(one["replica"]) == 8 for one in lanes)


def test_variables_offer_what_there_is(played: Played) -> None:
    def offered(where: str, **chosen: str) -> list[str]:
        [query] = [one for one in QUERIES if one.where == f"overview: variable {where}"]
        variables = {**panels.EVERYTHING, **chosen}
        return sorted(panels.answer(played.url, query, played.now, 3 * HOUR, variables=variables))

    assert offered("service") == ["nightly-report", "refund-agent", "research-agent"]
    assert offered("namespace") == ["support"]
    assert offered("circuit", service="research-agent") == ["api.mail.example", "api.openai.com", "mcp:search"]
    # Chosen as a link from an alert does it, for a service without a namespace.
    assert offered("circuit", namespace="", service=".*")[0] == "api.mail.example"


# --- the history is the package's -------------------------------------------------------------------------------------


def test_history_has_the_names_and_labels_that_the_collector_gives(played: Played) -> None:
    from tests.collector import exported

    told = played.told
    committed = exported.committed()
    assert set(told.lines) == {*committed, history.MARKER}
    for name, lines in told.lines.items():
        if name != history.MARKER:
            labels = set(re.findall(r'(\w+)="', lines[-1]))
            assert labels <= committed[name] | {"le"}, name
