"""Runs a piece of Python in a process of its own, as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent

STARTED = sys.version_info >= (3, 15)
"""There our `.start` file, which cannot ask for the variable itself, loads the start-up module in every process."""

QUIET_OTEL = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without anything that is about OpenTelemetry, plus `variables`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PYTHON"))}
    return kept | variables


def run(*command: str, timeout: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment(**variables), check=False
    )


def python(code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `code` with this interpreter."""
    return run(sys.executable, *options, "-c", code, **variables)


def last_json(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON document on the last line that the process printed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
