"""Every bundled file is accepted by the built Collector, alone and together, and uses nothing that is going away."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_breaker.telemetry import names
from tests.support import stack

BASE = stack.CONFIG / "otelcol.yaml"
FRAGMENTS = {path.stem: path for path in sorted((stack.CONFIG / "fragments").glob("*.yaml"))}
NOT_SERVED = "alertmanager-direct"
"""Its exporter is in no distribution and not to be had at this release."""
KINDS = ("receivers", "processors", "exporters", "connectors", "extensions")
MANIFEST: dict[str, Any] = yaml.safe_load((stack.CONFIG / "build/manifest.yaml").read_text())


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def merged(*configs: dict[str, Any]) -> dict[str, Any]:
    """As the Collector does: maps are merged, everything else is replaced."""
    result: dict[str, Any] = {}
    for config in configs:
        for key, value in config.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else value
    return result


def kinds_used(config: dict[str, Any]) -> set[str]:
    return {component.partition("/")[0] for kind in KINDS for component in config.get(kind, {})}


# --- accepted ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fragments", [(), *((one,) for one in FRAGMENTS if one != NOT_SERVED)], ids=lambda f: "+".join(f) or "base"
)
def test_B95_every_file_is_valid(fragments: tuple[str, ...], tmp_path: Path) -> None:
    stack.need(stack.COLLECTOR)

    done = stack.Collector(tmp_path, fragments=fragments).validate()

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_B95_all_files_together_start_and_complain_about_nothing(tmp_path: Path) -> None:
    stack.need(stack.COLLECTOR)
    with stack.Collector(tmp_path, fragments=[one for one in FRAGMENTS if one != NOT_SERVED]) as collector:
        pass

    log = collector.log.read_text()
    assert "Everything is ready. Begin running and processing data." in log
    assert not re.findall(r"(?i).*\b(?:deprecat\w*|alias\w*|removed|warn|error)\b.*", log)


def test_B95_the_direct_route_is_valid_but_for_its_exporter(tmp_path: Path) -> None:
    """What surrounds the exporter is checked with another one in its place."""
    stack.need(stack.COLLECTOR)
    text = FRAGMENTS[NOT_SERVED].read_text()
    fragment = yaml.safe_load(text)
    (exporter,) = fragment["exporters"]
    assert exporter == "alertmanager"
    fragment["exporters"] = {}
    fragment["service"]["pipelines"]["logs/alerts"]["exporters"] = ["otlp_http/logs"]
    collector = stack.Collector(tmp_path, more=fragment)

    done = collector.validate()

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_broken_file_is_noticed(tmp_path: Path) -> None:
    stack.need(stack.COLLECTOR)
    collector = stack.Collector(tmp_path, more={"processors": {"transform/labels": {"error_mood": "ignore"}}})

    done = collector.validate()

    assert done.returncode == 1
    assert "error_mood" in done.stderr


def test_promtool_accepts_the_prometheus_configuration() -> None:
    stack.need("promtool")
    done = stack.run_tool("promtool", "check", "config", str(stack.CONFIG / "prometheus/prometheus.yml"))

    assert done.returncode == 0, done.stdout + done.stderr


# --- what they are made of --------------------------------------------------------------------------------------------


def test_the_collector_is_built_from_what_the_files_use_and_nothing_else() -> None:
    stack.need(stack.COLLECTOR)
    used = set().union(*(kinds_used(load(path)) for path in (BASE, *FRAGMENTS.values())))
    components = yaml.safe_load(stack.run_tool(stack.COLLECTOR, "components").stdout)

    assert used - {"alertmanager"} == {one["name"] for kind in KINDS for one in components[kind]}


def test_the_manifest_is_of_one_release() -> None:
    version = MANIFEST["dist"]["version"]
    modules = [one["gomod"].split() for kind in (*KINDS, "providers") for one in MANIFEST[kind]]

    assert {v for module, v in modules if "/confmap/provider/" not in module} == {f"v{version}"}
    assert {v for module, v in modules if "/confmap/provider/" in module} == {"v1.67.0"}


def test_every_variable_has_a_default_and_is_explained() -> None:
    for path in (BASE, *FRAGMENTS.values()):
        text = path.read_text()
        references = re.findall(r"\$\{([^}]*)\}", text)
        assert all(re.fullmatch(r"env:[A-Z_]+:-.+", reference) for reference in references), path
    base = BASE.read_text()
    used = dict(re.findall(r"\$\{env:([A-Z_]+):-([^}]*)\}", base))
    explained = dict(re.findall(r"(?m)^#   ([A-Z_]+) .* (\S+)$", base))
    assert used == explained


@pytest.mark.parametrize(
    "fragments", [(), *((one,) for one in FRAGMENTS), tuple(FRAGMENTS)], ids=lambda f: "+".join(f) or "base"
)
def test_every_pipeline_refuses_before_it_runs_out_of_memory(fragments: tuple[str, ...]) -> None:
    config = merged(load(BASE), *(load(FRAGMENTS[one]) for one in fragments))

    for pipeline, parts in config["service"]["pipelines"].items():
        assert parts["processors"][0] == "memory_limiter", pipeline


@pytest.mark.parametrize(
    "fragments", [(), *((one,) for one in FRAGMENTS), tuple(FRAGMENTS)], ids=lambda f: "+".join(f) or "base"
)
def test_every_pipeline_that_leaves_is_scrubbed(fragments: tuple[str, ...]) -> None:
    config = merged(load(BASE), *(load(FRAGMENTS[one]) for one in fragments))
    scrubber = {"traces": "transform/scrub", "logs": "transform/scrub", "metrics": "transform/labels"}

    for pipeline, parts in config["service"]["pipelines"].items():
        if pipeline != "metrics/debug":  # shows what comes in
            assert scrubber[pipeline.partition("/")[0]] in parts["processors"], pipeline


def test_the_allow_lists_are_our_attributes() -> None:
    """What the library writes passes; a new attribute must be added to the lists or left out on purpose."""
    known = {value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
    lists = [
        set(re.findall(r'"([^"]+)"', found)) for found in re.findall(r"keep_keys\(\S+, \[(.*)\]\)", BASE.read_text())
    ]
    on_metrics, on_span_events, on_logs = lists
    events = {value for value in known if "." in value and not re.search(r"call[.]|probe[.]|changed|revoked", value)}

    assert on_metrics == {
        names.NAME, names.STATE, names.PREVIOUS_STATE, names.DECISION, names.OUTCOME, names.ERROR_TYPE, names.TOOL_NAME,
    }  # fmt: skip
    assert on_logs == events - {names.EVENTS_DROPPED}
    assert on_span_events == on_logs - {names.MERGED}


def test_B71_how_long_a_dead_process_speaks_is_said() -> None:
    compose = load(stack.CONFIG / "compose.yaml")

    assert load(BASE)["processors"]["delta_to_cumulative"]["max_stale"] == "10m"
    assert "--query.lookback-delta=5m" in compose["services"]["prometheus"]["command"]
    assert "--query.lookback-delta=5m" in (stack.CONFIG / "prometheus/prometheus.yml").read_text()
