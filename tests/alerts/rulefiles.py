"""The committed rules, as data, and promtool over them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import stack

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "collector-config/prometheus"
RULES = PROMETHEUS / "otel-breaker.rules.yml"
RULES_TEST = PROMETHEUS / "otel-breaker.rules.test.yml"
ALERTMANAGER = ROOT / "collector-config/alertmanager/alertmanager.yml"
GRAFANA = ROOT / "grafana/alerting"
RUNBOOKS = ROOT / "docs/runbooks"

IDENTITY = ["deployment_environment_name", "service_namespace", "service_name", "otel_breaker_name"]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    [group] = load(RULES)["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def records() -> dict[str, str]:
    return {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


def grafana_rules() -> list[dict[str, Any]]:
    [group] = load(GRAFANA / "rules.yaml")["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """One run of a tool; the test is skipped where it is not installed, which is a failure where all is required."""
    try:
        program = stack.tool(name)
    except stack.MissingTool as missing:
        pytest.skip(str(missing))
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=100, check=False)
