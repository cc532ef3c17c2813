"""`otel-breaker demo` as a user runs it: it keeps its promises, and says so when it does not."""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from otel_breaker.cli import demo
from otel_breaker.cli.demo import driver, second_act, story
from otel_breaker.cli.demo.screen import WIDTH, Screen, shortened

pytestmark = pytest.mark.timeout(240)
LIMIT = 180.0
WITHOUT_LANGGRAPH = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name.startswith("langgraph.") else find(name, *more)
from otel_breaker.cli import main
raise SystemExit(main(["demo"]))
"""


def first_act(played: Played) -> str:
    """What is shown before the second act begins."""
    return played.text.partition("\nact 2, ")[0]


def counted(played: Played, act: str) -> dict[str, list[str]]:
    """An act's rows of the table: without and with breakers, in each of them fewer with."""
    _, _, table = played.text.partition(f"\n  {act}\n")
    rows = {}
    for line in table.splitlines():
        row = re.fullmatch(r"    (\S.*?)  +([\d.,]+) +([\d.,]+) +-\d+%", line)
        if row is None:
            break
        rows[row[1]] = [row[2], row[3]]
    return rows


@dataclass
class Played:
    status: int
    text: str
    errors: str


@pytest.fixture(scope="module")
def played() -> Iterator[dict[str, Played]]:
    """All demos at once, since each takes its time."""
    command = [sys.executable, "-m", "otel_breaker", "demo"]
    commands = {
        "kept": command,
        "broken": [*command, "--set", "mode=off", "--json"],
        "lacking": [sys.executable, "-c", WITHOUT_LANGGRAPH],
    }
    pipe = subprocess.PIPE
    started = {
        name: subprocess.Popen(one, stdout=pipe, stderr=pipe, encoding="utf-8") for name, one in commands.items()
    }
    try:
        done = {name: (process, process.communicate(timeout=LIMIT)) for name, process in started.items()}
        yield {name: Played(process.returncode, *texts) for name, (process, texts) in done.items()}
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def test_it_keeps_its_promises(played: dict[str, Played]) -> None:
    kept = played["kept"]
    assert kept.status == 0, kept.text + kept.errors
    assert kept.errors == ""
    assert "FAILED" not in kept.text
    assert kept.text.count("    ok  ") == 14 + 12
    assert kept.text.splitlines()[-1] == "Every promised effect happened."


def test_the_model_is_told_the_structured_answer(played: dict[str, Played]) -> None:
    flat = re.sub(r"\s+", " ", first_act(played["kept"]))
    assert re.search(r'\{"status": "circuit_open", "tool": "127\.0\.0\.1:\d+", "reason": "[^"]+\(5 consecutive', flat)


def test_the_state_is_shown_as_it_changes(played: dict[str, Played]) -> None:
    moves = re.findall(r"\*\* circuit \S+ (\w+ -> \w+) \((\w+)\)", first_act(played["kept"]))
    assert moves[0][0] == "closed -> open"
    assert ("half_open -> open", "throttled") in moves
    assert moves[-1] == ("half_open -> closed", "probe_succeeded")
    assert "** otel_breaker.cooldowns_elapsed = 2: the page rule fires" in played["kept"].text


def test_the_comparison_is_counted(played: dict[str, Played]) -> None:
    rows = counted(played["kept"], "first act, a hand-written agent")
    assert list(rows) == ["requests on the wire", "seconds waited for tools", "characters of failure text"]
    plain, _, guarded = first_act(played["kept"]).partition("act 1, the same with circuit breakers")
    sent = [sum(map(int, re.findall(r" (\d) sent ", part))) for part in (plain, guarded)]
    assert sent[0] == 48
    assert rows["requests on the wire"] == [str(one) for one in sent]


def test_what_the_receiver_got_is_listed(played: dict[str, Played]) -> None:
    text = played["kept"].text
    assert re.search(
        r"otel_breaker\.admissions +\{call\} +admitted \d+, probe \d+, circuit_open \d+$", text, re.MULTILINE
    )
    for event in ("call.admitted", "call.rejected", "probe.started", "probe.finished", "state.changed"):
        assert re.search(rf"otel_breaker\.{event} +[1-9]", text), event


def test_the_agent_of_langgraph_is_counted_at_both_servers(played: dict[str, Played]) -> None:
    rows = counted(played["kept"], "second act, LangGraph and MCP")
    rounds, tries, threshold = second_act.DOWN, second_act.TRIES, 5
    # Working, then every try of every turn or no more than the threshold, then working again. The first try of the
    # outage meets the killed server, and starts none.
    assert rows["requests on the wire"] == [str(1 + rounds * tries + 1), str(1 + threshold + 1)] == ["14", "7"]
    assert rows["starts of the MCP server"] == [str(1 + rounds * tries - 1 + 1), str(1 + threshold + 1)] == ["13", "7"]
    assert rows["tool calls that the model asked for"] == ["28", "20"]
    assert len(rows) == 5


def test_each_turn_of_the_second_act_is_shown(played: dict[str, Played]) -> None:
    text = played["kept"].text
    _, plain, guarded = re.split(r"^act 2, .*$", text.partition("\nReceived")[0], flags=re.MULTILINE)
    found = re.compile(r"^ +\d+  (stock|payment) +(\d)x  (\S.*\S) +\d+\.\d s  \S", re.MULTILINE)
    healthy = [("stock", "1", "1 start, 1 call"), ("payment", "1", "1 request")]
    lost = [("stock", "3", "2 starts"), ("payment", "3", "3 requests")]
    down = [("stock", "3", "3 starts"), ("payment", "3", "3 requests")]
    opening = [("stock", "3", "3 starts"), ("payment", "3", "2 requests")]
    refused = [("stock", "1", "nothing"), ("payment", "1", "nothing")]
    assert found.findall(plain) == [*healthy, *lost, *down * 3, *healthy]
    assert found.findall(guarded) == [*healthy, *lost, *opening, *refused * 2, *healthy]


def test_the_next_message_of_the_model_is_shown_without_and_with(played: dict[str, Played]) -> None:
    tail = re.sub(r"\s+", " ", played["kept"].text.rpartition("The model's next message")[2])
    assert "without Error: ExceptionGroup('unhandled errors in a TaskGroup'" in tail
    answer = re.search(r" with (\{.*\}) ", tail)
    assert answer is not None
    assert json.loads(answer[1]) == {
        "status": "circuit_open",
        "tool": "stock",
        "reason": "mcp:warehouse unreachable (5 consecutive failures, last: connection reset)",
        "retry_after_ms": second_act.COOLDOWN * 1000,
        "alternatives": [],
    }


def test_a_failure_of_a_server_is_not_charged_to_the_tool(played: dict[str, Played]) -> None:
    charged = r"11 failed calls; charged: 127\.0\.0\.1:\d+ 5, mcp:warehouse 1, mcp:warehouse#connect 5$"
    assert re.search(charged, played["kept"].text, re.MULTILINE)


def test_it_reads_well_in_a_hundred_columns_and_without_colour(played: dict[str, Played]) -> None:
    text = played["kept"].text
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "\x1b" not in text


def test_without_breakers_it_fails_and_says_so_in_json(played: dict[str, Played]) -> None:
    broken = played["broken"]
    assert broken.status == 1
    assert broken.errors == ""
    document = json.loads(broken.text)
    assert document["kept"] is False
    assert document["not_installed"] == []
    first, second = ({one["promise"] for one in act["promised"] if not one["kept"]} for act in document["acts"])
    assert {"the circuit opened", "fewer requests on the wire"} <= first
    assert {"fewer starts of the MCP server", "two circuits opened, and every circuit is closed at the end"} <= second
    counts: dict[str, Any] = {row["what"]: row for row in document["acts"][1]["counted"]}
    assert counts["starts of the MCP server"] == {"what": "starts of the MCP server", "without": 13, "with": 13}
    assert counts["requests on the wire"] == {"what": "requests on the wire", "without": 14, "with": 14}


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "httpx2" else find(name))
    assert demo.run(argparse.Namespace(settings=[], json=False)) == 2
    assert "not installed: httpx2. Try: pip install 'otel-breaker[demo]'" in capsys.readouterr().err


def test_without_the_packages_of_the_second_act_the_first_is_played(played: dict[str, Played]) -> None:
    lacking = played["lacking"]
    assert lacking.status == 0, lacking.text + lacking.errors
    assert lacking.text.splitlines()[-2:] == [
        "The second act was left out; not installed: langgraph. Try: pip install 'otel-breaker[demo]'",
        "Every promised effect happened.",
    ]
    assert lacking.text.count("    ok  ") == 14
    assert "act 2" not in lacking.text


def test_a_setting_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    demo.add(parser.add_subparsers())
    with pytest.raises(SystemExit) as leaving:
        parser.parse_args(["demo", "--set", "mode"])
    assert leaving.value.code == 2
    assert "'mode' is not NAME=VALUE" in capsys.readouterr().err
    assert parser.parse_args(["demo", "--set", "mode=off"]).settings == [("OTEL_BREAKER_MODE", "off")]


def test_an_agent_that_dies_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "dies.py"
    program.write_text("raise SystemExit('out of tokens')\n")
    monkeypatch.setattr(driver, "AGENT", program)
    out = io.StringIO()
    assert story.tell(out, {}) == 1
    assert "FAILED  the agent ended early or went silent:\nout of tokens" in out.getvalue()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Screen(_Terminal()).paint("ok", "green") == "\x1b[32mok\x1b[0m"
    assert Screen(io.StringIO()).paint("ok", "green") == "ok"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen(_Terminal()).paint("ok", "green") == "ok"


def test_what_is_left_out_is_counted() -> None:
    assert shortened("two\nlines", 20) == "two lines"
    assert shortened("x" * 1200, 40) == "x" * 17 + " ... (1,200 characters)"
