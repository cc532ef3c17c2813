"""`otel-breaker export`: what is written, and when nothing is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from grafana import _alerts
from otel_breaker.cli import export, main

ROOT = Path(__file__).parent.parent


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_dashboards_are_the_committed_ones_with_a_file_that_provisions_them(tmp_path: Path) -> None:
    assert main(["export", "dashboards", str(tmp_path)]) == 0
    assert files(tmp_path) == {"overview.json", "circuit.json", "provisioning/dashboards.yaml"}
    for name in ("overview.json", "circuit.json"):
        assert (tmp_path / name).read_bytes() == (ROOT / "grafana/dashboards" / name).read_bytes()


def test_rules_are_those_of_prometheus_alertmanager_and_grafana(tmp_path: Path) -> None:
    assert main(["export", "rules", str(tmp_path)]) == 0
    assert files(tmp_path) == {
        "prometheus/otel-breaker.rules.yml", "prometheus/otel-breaker.rules.test.yml",
        "alertmanager/alertmanager.yml", "alertmanager/otel-breaker.tmpl",
        "grafana/rules.yaml", "grafana/contact-points.yaml", "grafana/examples/policies.yaml",
    }  # fmt: skip


def test_the_collector_comes_with_its_fragments(tmp_path: Path) -> None:
    assert main(["export", "collector", str(tmp_path)]) == 0
    fragments = {f"fragments/{path.name}" for path in (ROOT / "collector-config/fragments").iterdir()}
    assert files(tmp_path) == {"otelcol.yaml"} | fragments


def test_compose_finds_every_file_that_it_mounts(tmp_path: Path) -> None:
    assert main(["export", "compose", str(tmp_path)]) == 0
    compose = tmp_path / "collector-config/compose.yaml"
    mounted = [
        volume.split(":")[0]
        for service in yaml.safe_load(compose.read_text())["services"].values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]
    assert len(mounted) > 10
    assert [one for one in mounted if not (compose.parent / one).exists()] == []


def test_a_second_time_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "dashboards", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("3 written, 0 already there. ")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert main(["export", "dashboards", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("0 written, 3 already there. ")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == before


def test_another_content_is_one_error_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "circuit.json").write_text("mine")
    assert main(["export", "dashboards", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"otel-breaker: {tmp_path / 'circuit.json'} is there with another content: --force writes over it\n"
    )
    assert files(tmp_path) == {"circuit.json"}

    assert main(["export", "dashboards", str(tmp_path), "--force"]) == 0
    assert json.loads((tmp_path / "circuit.json").read_text())["uid"] == "otel-breaker-circuit"


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_in_the_place_of_a_file_or_the_other_way_round_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], force: list[str]
) -> None:
    (tmp_path / "a/overview.json").mkdir(parents=True)
    (tmp_path / "b").write_text("a file")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/provisioning").write_text("a file")
    for name, wrong in (("a", "a/overview.json is a folder"), ("b", "b is not a folder"),
                        ("c", "c/provisioning is not a folder")):  # fmt: skip
        assert main(["export", "dashboards", str(tmp_path / name), *force]) == 1
        assert capsys.readouterr().err == f"otel-breaker: {tmp_path}/{wrong}\n"
    assert files(tmp_path) == {"b", "c/provisioning"}


def test_alerts_link_to_the_grafana_that_was_named(tmp_path: Path) -> None:
    assert export._GRAFANA_URL == _alerts.GRAFANA_URL
    assert main(["export", "rules", str(tmp_path), "--grafana-url", "https://grafana.example.com/"]) == 0
    for name in ("prometheus/otel-breaker.rules.yml", "grafana/rules.yaml"):
        text = (tmp_path / name).read_text()
        assert "localhost:3000" not in text
        assert "https://grafana.example.com/d/otel-breaker-circuit?" in text


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "dashboards", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(tmp_path),
        "written": ["circuit.json", "overview.json", "provisioning/dashboards.yaml"],
        "unchanged": [],
        "error": None,
    }
    (tmp_path / "circuit.json").write_text("mine")
    assert main(["export", "dashboards", str(tmp_path), "--json"]) == 1
    assert "another content" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("argv", [["export"], ["export", "dashboards"], ["export", "nothing", "x"]])
def test_wrong_usage_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert capsys.readouterr().err.startswith("usage: otel-breaker export")


def test_an_installation_without_the_bundle_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "__file__", str(tmp_path / "site/otel_breaker/cli/export.py"))
    assert main(["export", "dashboards", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("otel-breaker: this installation has no bundled files")
    assert not (tmp_path / "out").exists()
