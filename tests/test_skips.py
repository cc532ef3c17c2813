"""The suite's own rule: what was skipped stands last, and with OTEL_BREAKER_REQUIRE=all it is a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.python import run

ROOT = Path(__file__).parent.parent

SKIPS = """
import os, pytest

def test_runs():
    assert "OTEL_BREAKER_REQUIRE" not in os.environ

@pytest.mark.skipif(True, reason="needs a collector: make stack")
def test_does_not():
    pass

@pytest.mark.xfail(strict=True)
def test_known():
    assert False
"""


@pytest.mark.parametrize(("require", "status"), [("", 0), ("all", 1), ("some", 4)])
def test_a_skip_is_a_failure_where_all_is_required(require: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SKIPS)
    plugin = ["-p", "tests.support.skips", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-c", str(tmp_path / "x.ini"), *plugin]
    (tmp_path / "x.ini").write_text("[pytest]\n")
    done = run(*command, str(tmp_path), PYTHONPATH=str(ROOT), OTEL_BREAKER_REQUIRE=require)
    assert done.returncode == status, done.stdout + done.stderr
    if status == 4:
        assert "OTEL_BREAKER_REQUIRE=some is not known; allowed: all" in done.stderr
        return
    *_, why, last = filter(None, done.stdout.splitlines())
    assert why.endswith("test_it.py::test_does_not: needs a collector: make stack")
    assert "1 passed, 1 skipped, 1 xfailed" in last
