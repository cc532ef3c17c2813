"""The documentation says what the code does: its examples run, its tables and names are the code's, its links lead on.

A Python block after ``<!-- run -->`` is run as a program of its own and must print the ``text`` block after it.
``<!-- run: NAME=value; server=503; hits=5 -->`` sets variables, has a loopback server stand in for
``https://api.example.com`` that always answers so, and says how many requests reach it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_breaker import _decorator, answers, outcomes, settings
from otel_breaker._settings_errors import keys
from otel_breaker._settings_model import Settings
from otel_breaker._settings_parts import Match, Rule
from otel_breaker.cli import main
from otel_breaker.core.machine import LEGAL
from otel_breaker.core.policy import FIELDS, NAMED, Policy
from otel_breaker.instrumentations._table import TARGETS
from otel_breaker.telemetry import names
from tests.support.faults import Script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
HOST = "api.example.com"

_BLOCK = re.compile(
    r"<!-- run(?:: ([^>]*?))? -->\n```python\n(.*?)\n```\n((?:(?!```).)*?)```text\n(.*?)\n```", re.DOTALL
)
_MARK = re.compile(r"<!-- run(?::[^>]*)? -->")
_ROW = re.compile(r"^\|(.+)\|$", re.MULTILINE)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """What stands under a heading, without its subsections' siblings."""
    text = page(name)
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found, f"{name} has no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def tables(text: str) -> list[list[list[str]]]:
    """All tables, without head and rule: rows of cells."""
    found: list[list[list[str]]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.fullmatch(r"\|(?:-+\|)+", line):
            rows = []
            for row in lines[number + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in row.strip("|").split("|")])
            found.append(rows)
    return found


def code(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


# --- examples ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    where: str
    options: str
    program: str
    output: str


def examples() -> Iterator[Example]:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for number, found in enumerate(_BLOCK.finditer(text), start=1):
            yield Example(f"{path.relative_to(ROOT)}-{number}", found[1] or "", found[2], found[4])


EXAMPLES = list(examples())


def run(program: str, folder: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """A program of its own, without what this environment says about OpenTelemetry and proxies."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OTEL_") and not name.lower().endswith("_proxy")
    }
    script = folder / "agent.py"
    script.write_text(program, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(script)], env=plain | extra, cwd=folder, capture_output=True, text=True, timeout=60
    )


def test_every_marked_block_is_found() -> None:
    assert len(EXAMPLES) == sum(len(_MARK.findall(path.read_text(encoding="utf-8"))) for path in PAGES) - _in_prose()
    assert {example.where.rpartition("-")[0] for example in EXAMPLES} >= {"README.md", "docs/quickstart.md"}


def _in_prose() -> int:
    """Mentions of the mark that are themselves in backticks."""
    return sum(len(re.findall(r"`<!-- run(?::[^>]*)? -->`", path.read_text(encoding="utf-8"))) for path in PAGES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.where)
def test_examples_print_what_is_shown(example: Example, tmp_path: Path) -> None:
    options = dict(option.split("=", 1) for option in example.options.split("; ") if option)
    status, hits = options.pop("server", None), options.pop("hits", None)
    with Script() if status else nullcontext() as srv:
        program, name = example.program, HOST
        if srv is not None:
            srv.reply(int(status or 0), times=None)
            name = srv.host
            program = program.replace(f"https://{HOST}", f"http://{name}")
        done = run(program, tmp_path, **options)
        assert done.stderr == ""
        assert done.stdout.replace(name, HOST).rstrip("\n") == example.output
        if srv is not None and hits is not None:
            assert srv.hits == int(hits)


def test_the_readme_example_has_eight_lines() -> None:
    lines = EXAMPLES[[example.where for example in EXAMPLES].index("README.md-1")].program.splitlines()
    assert len([line for line in lines if line]) <= 8


# --- links ------------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The ids that GitHub makes of headings."""
    bare = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.+)$", bare, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_resolve(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.is_file(), f"{link}: no such file"
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), f"{link}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_paths_of_somebodys_machine(path: Path) -> None:
    assert not re.search(r"/(?:work|home|root|tmp|Users)/", path.read_text(encoding="utf-8"))


def test_every_page_is_reached_from_the_index() -> None:
    reached = {
        (DOCS / link.partition("#")[0]).resolve() for link in re.findall(r"\]\(([^)]+)\)", page("docs/index.md"))
    }
    assert {path for path in DOCS.rglob("*.md") if path.name != "index.md"} <= reached


# --- the timeline -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def timeline() -> Any:
    spec = importlib.util.spec_from_file_location("timeline", DOCS / "img" / "timeline.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["timeline"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["timeline"]


def test_the_picture_is_what_the_script_draws(timeline: Any) -> None:
    assert timeline.FILE.read_text(encoding="utf-8") == timeline.svg(timeline.play())


def test_the_worked_timeline_is_what_the_script_tells(timeline: Any) -> None:
    text = page("docs/how-it-decides.md")
    shown = text.partition("<!-- timeline.py --table -->\n")[2].partition("\n<!-- end -->")[0]
    assert shown == timeline.table(timeline.play())


# --- configuration ----------------------------------------------------------------------------------------------------

CONFIGURATION = "docs/configuration.md"
_NOWHERE = ("not set", "empty")


def setting_rows() -> list[list[str]]:
    return [row for heading in ("General", "Policy") for row in tables(section(CONFIGURATION, heading))[0]]


def test_the_settings_are_those_of_the_model() -> None:
    named = [code(row[0])[0] for row in setting_rows()]
    assert sorted(named) == sorted([*keys(Settings), "config", "defaults"])
    assert [code(row[0])[0] for row in tables(section(CONFIGURATION, "Policy"))[0]] == list(FIELDS)


@pytest.mark.parametrize("row", setting_rows(), ids=lambda row: row[0].strip("`"))
def test_variable_default_and_example_of_a_setting(
    row: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, variable, _, default, example, _ = row
    key = code(name)[0]
    for other in [other for other in os.environ if other.startswith("OTEL_BREAKER_")]:
        monkeypatch.delenv(other)
    if not variable.startswith("`"):
        assert key in ("version", "defaults", "classes", "circuits")
        return
    assert code(variable) == [f"OTEL_BREAKER_{key.upper()}"]
    if key == "config":
        return
    partner = {"slow_call": {"slow_rate": 1.0}, "slow_rate": {"slow_call": 1.0}}.get(key, {})
    plain = getattr(settings.load(), key)
    if default in _NOWHERE:
        assert plain in (None, ())
    else:
        assert getattr(settings.load(**{key: code(default)[0]}), key) == plain
    monkeypatch.setenv(code(variable)[0], code(example)[0])
    assert getattr(settings.load(**partner), key) is not None


def test_the_keys_of_a_rule_are_those_of_the_model() -> None:
    rule, match = tables(section(CONFIGURATION, "Circuits"))
    assert {code(row[0])[0] for row in rule} == set(keys(Rule)) - set(FIELDS)
    assert {code(row[0])[0] for row in match} == set(keys(Match))


def yaml_blocks() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(ROOT)}-{number}", block)
        for path in PAGES
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL), 1)
    ]


@pytest.mark.parametrize(("where", "block"), yaml_blocks(), ids=[where for where, _ in yaml_blocks()])
def test_files_shown_are_valid(where: str, block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "otel-breaker.yaml"
    file.write_text(block, encoding="utf-8")
    assert yaml.safe_load(block)["version"] == 1
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out.endswith(": valid\n")


@pytest.mark.parametrize("row", tables(section(CONFIGURATION, "Errors"))[0], ids=lambda row: row[0].strip("`"))
def test_errors_read_as_shown(row: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for other in [other for other in os.environ if other.startswith("OTEL_BREAKER_")]:
        monkeypatch.delenv(other)
    variable, _, value = code(row[0])[0].partition("=")
    monkeypatch.setenv(variable, value)
    with pytest.raises(settings.SettingsError) as caught:
        settings.load()
    assert str(caught.value) == code(row[1])[0]


# --- telemetry --------------------------------------------------------------------------------------------------------

TELEMETRY = "docs/telemetry.md"
_CONSTANTS = {name: value for name, value in vars(names).items() if name.isupper()}
_METRICS = {value[0]: value[1] for value in _CONSTANTS.values() if isinstance(value, tuple) and len(value) == 3}
_EVENTS = {value for name, value in _CONSTANTS.items() if name.startswith(("CALL_", "PROBE_", "STATE_CHANGED"))} | {
    names.CREDENTIAL_REVOKED
}
_ATTRIBUTES = {
    value for value in _CONSTANTS.values() if isinstance(value, str) and value not in (names.SCOPE, names.OTHER)
} - _EVENTS


def test_metrics_are_those_of_the_code() -> None:
    shown = {code(row[0])[0]: code(row[2])[0] for row in tables(section(TELEMETRY, "Metrics"))[0]}
    assert shown == _METRICS


def test_events_are_those_of_the_code() -> None:
    assert {code(row[0])[0] for row in tables(section(TELEMETRY, "Events"))[0]} == _EVENTS
    each = {f"otel_breaker.{row[0]}" for row in tables(section(TELEMETRY, "Attributes"))[1]}
    assert each == _EVENTS


def test_attributes_are_those_of_the_code() -> None:
    assert {code(row[0])[0] for row in tables(section(TELEMETRY, "Attributes"))[0]} == _ATTRIBUTES


def test_buckets_are_those_of_the_code() -> None:
    shown = re.search(r"Buckets of `open.duration`: ([0-9, ]+) s", page(TELEMETRY))
    assert shown
    assert tuple(float(bound) for bound in shown[1].split(",")) == names.OPEN_DURATION_BUCKETS


def test_series_of_one_name(tmp_path: Path) -> None:
    program = """
import otel_breaker
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))

@otel_breaker.guard
def lookup():
    return 1

lookup()
scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
points = [point for metric in scope.metrics for point in metric.data.data_points]
print(sum("otel_breaker.name" in point.attributes for point in points))
"""
    shown = re.search(r"used once has (\d+) series", page(TELEMETRY))
    assert shown
    assert run(program, tmp_path).stdout.strip() == shown[1]


# --- how it decides, answers, API, libraries --------------------------------------------------------------------------


def test_transitions_are_the_legal_ones() -> None:
    shown = [(row[0], row[1]) for row in tables(section("docs/how-it-decides.md", "States"))[0]]
    assert len(shown) == len(set(shown))
    assert set(shown) == LEGAL


def test_reasons_are_the_closed_list() -> None:
    text = section("docs/how-it-decides.md", "What counts")
    line = next(line for line in text.splitlines() if line.startswith("`connection_refused`"))
    assert tuple(code(line)) == outcomes.REASONS


def test_classes_have_their_numbers() -> None:
    shown = {}
    for name, failures, periods, deadline in tables(section("docs/how-it-decides.md", "When it opens"))[0]:
        ladder = [float(number) for number in re.findall(r"(\d+) s", periods)]
        shown[code(name)[0]] = (int(failures), ladder, float(deadline.removesuffix(" s")))
    assert shown == {
        name: (policy.failure_threshold, [policy.ladder(step) for step in range(4)], policy.call_deadline)
        for name, policy in NAMED.items()
    }


def test_the_readme_defaults_are_the_policys() -> None:
    text = section("README.md", "Defaults")
    plain = Policy()
    assert f"{plain.failure_threshold} consecutive failures" in text
    assert [plain.ladder(step) for step in range(5)] == [30, 60, 300, 900, 900]
    assert "30 s, then 1 min, 5 min, 15 min" in text
    assert f"{plain.throttle_threshold} in a row that ask for more than {plain.call_deadline:g} s" in text
    assert (plain.retry_after_cap, plain.pause, plain.success_threshold) == (3600, 900, 1)


def test_wordings_are_the_answers() -> None:
    shown = {reason: row[1] for row in tables(section("docs/answers.md", "The reason"))[0] for reason in code(row[0])}
    for reason in (*outcomes.REASONS, "slow_rate"):
        assert answers.reason_text("x", "circuit_open", reason).startswith(f"x {shown[reason]} (")


def test_options_of_guard() -> None:
    assert [code(row[0])[0] for row in tables(section("docs/python-api.md", "guard"))[0]] == list(_decorator._DEFAULTS)


@pytest.mark.parametrize("library", sorted({target.library for target in TARGETS}))
def test_library_pages(library: str) -> None:
    name = next(name for room in ("libraries", "frameworks") if (ROOT / (name := f"docs/{room}/{library}.md")).exists())
    rows = [target for target in TARGETS if target.library == library]
    shown = " ".join(cell for row in tables(section(name, "What is hooked"))[0] for cell in code(row[0]))
    for target in rows:
        assert target.attribute.rpartition(":")[2] in shown, target.attribute
    first, below = rows[0].versions
    last = f"{int(below) - 1}.x"
    assert f"Supported: {first} to {last}" in page(name)
    assert f"{first} to {last}" in section("README.md", "What is guarded")


def test_library_pages_have_one_shape() -> None:
    shape = ["What is hooked", "What counts", "Streams", "When the circuit is open", "Not covered"]
    for path in (DOCS / "libraries").glob("*.md"):
        heads = re.findall(r"^## (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert [head for head in heads if head in shape] == shape, path.name


def test_rooms_exist() -> None:
    for row in tables(section("docs/contributing/layout.md", "Rooms"))[0]:
        for room in code(row[0]):
            place = ROOT if room in ("tests/", "docs/", "grafana/", "collector-config/") else ROOT / "otel_breaker"
            assert list(place.glob(room)), room
