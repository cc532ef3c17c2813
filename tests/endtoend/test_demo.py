"""`otel-breaker demo` as a user runs it: it keeps its promises, and says so when it does not."""

from __future__ import annotations

import argparse
import importlib.util
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_breaker.cli import demo
from otel_breaker.cli.demo import driver, story
from otel_breaker.cli.demo.screen import WIDTH, Screen, shortened

pytestmark = pytest.mark.timeout(240)
LIMIT = 180.0


@dataclass
class Played:
    status: int
    text: str
    errors: str


@pytest.fixture(scope="module")
def played() -> Iterator[dict[str, Played]]:
    """Both demos at once, since each takes its minute."""
    command = [sys.executable, "-m", "otel_breaker", "demo"]
    pipe = subprocess.PIPE
    started = {
        name: subprocess.Popen([*command, *arguments], stdout=pipe, stderr=pipe, encoding="utf-8")
        for name, arguments in {"kept": (), "broken": ("--set", "mode=off")}.items()
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
    assert kept.text.count("    ok  ") == 14
    assert kept.text.splitlines()[-1] == "Every promised effect happened."


def test_the_model_is_told_the_structured_answer(played: dict[str, Played]) -> None:
    flat = re.sub(r"\s+", " ", played["kept"].text)
    assert re.search(r'\{"status": "circuit_open", "tool": "127\.0\.0\.1:\d+", "reason": "[^"]+\(5 consecutive', flat)


def test_the_state_is_shown_as_it_changes(played: dict[str, Played]) -> None:
    moves = re.findall(r"\*\* circuit \S+ (\w+ -> \w+) \((\w+)\)", played["kept"].text)
    assert moves[0][0] == "closed -> open"
    assert ("half_open -> open", "throttled") in moves
    assert moves[-1] == ("half_open -> closed", "probe_succeeded")
    assert "** otel_breaker.cooldowns_elapsed = 2: the page rule fires" in played["kept"].text


def test_the_comparison_is_counted(played: dict[str, Played]) -> None:
    text = played["kept"].text
    rows = dict(re.findall(r"^  (requests|seconds|characters) .*?([\d.,]+ +[\d.,]+) +-\d+%$", text, re.MULTILINE))
    assert set(rows) == {"requests", "seconds", "characters"}
    plain, _, guarded = text.partition("2 of 2:")
    sent = [sum(map(int, re.findall(r" (\d) sent ", part))) for part in (plain, guarded)]
    assert rows["requests"].split() == [str(one) for one in sent]


def test_what_the_receiver_got_is_listed(played: dict[str, Played]) -> None:
    text = played["kept"].text
    assert re.search(
        r"otel_breaker\.admissions +\{call\} +admitted \d+, probe \d+, circuit_open \d+$", text, re.MULTILINE
    )
    for event in ("call.admitted", "call.rejected", "probe.started", "probe.finished", "state.changed"):
        assert re.search(rf"otel_breaker\.{event} +[1-9]", text), event


def test_it_reads_well_in_a_hundred_columns_and_without_colour(played: dict[str, Played]) -> None:
    for one in played.values():
        assert max(map(len, one.text.splitlines())) <= WIDTH
        assert "\x1b" not in one.text


def test_without_breakers_it_fails(played: dict[str, Played]) -> None:
    broken = played["broken"]
    assert broken.status == 1
    assert "FAILED  the circuit opened" in broken.text
    assert "FAILED  fewer requests on the wire" in broken.text
    assert broken.text.splitlines()[-1].endswith("of the promised effects did not happen.")
    assert broken.errors == ""


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "httpx2" else find(name))
    assert demo.run(argparse.Namespace(settings=[])) == 2
    assert "not installed: httpx2. Try: pip install 'otel-breaker[demo]'" in capsys.readouterr().err


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
