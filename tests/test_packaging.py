"""The wheel: what is in it, where, and that it works where it is installed."""

from __future__ import annotations

import configparser
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from otel_breaker import __version__
from tests.support.python import STARTED, last_json, python, run

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by way of the sdist as for a release; the build back end is the one that is installed here."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def files(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def info(files: dict[str, str], name: str) -> str:
    return files[f"otel_breaker-{__version__}.dist-info/{name}"]


def test_the_start_up_files_are_at_the_root(files: dict[str, str]) -> None:
    pth, start = files["otel_breaker.pth"], files["otel_breaker.start"]
    # The test of the variable comes first: with it unset, a start costs one look into a dict and no import of ours.
    assert pth.startswith('import os; os.environ.get("OTEL_BREAKER_ENABLED") and ')
    assert pth.count("\n") == 1
    assert start == "otel_breaker._startup:init\n"
    assert not [name for name in files if name.startswith("otel_breaker/_site")]


def test_the_wheel_is_complete(files: dict[str, str]) -> None:
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "otel_breaker").rglob("*.py")}
    assert package <= set(files)
    assert "otel_breaker/py.typed" in files
    carried = {
        f"otel_breaker/share/{path.relative_to(ROOT)}"
        for folder in ("collector-config", "grafana")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", "preview"} & set(path.parts) and path.parent != ROOT / "grafana"
    }
    assert carried == {name for name in files if name.startswith("otel_breaker/share/")}
    assert {name.partition("/")[0] for name in files} == {
        "otel_breaker", "otel_breaker.pth", "otel_breaker.start", f"otel_breaker-{__version__}.dist-info",
    }  # fmt: skip


def test_entry_points(files: dict[str, str]) -> None:
    found = configparser.ConfigParser()
    found.read_string(info(files, "entry_points.txt"))
    assert found["console_scripts"]["otel-breaker"] == "otel_breaker.cli:main"
    assert found["opentelemetry_instrumentor"]["otel_breaker"] == "otel_breaker.activate:BreakerInstrumentor"
    assert found["pytest11"]["otel_breaker"] == "otel_breaker.pytest_plugin"


def test_metadata(files: dict[str, str]) -> None:
    metadata = Parser().parsestr(info(files, "METADATA"))
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    requirements = metadata.get_all("Requires-Dist") or []
    # With such an extra, opentelemetry-instrument would leave us out as soon as one of the libraries is missing.
    assert not [line for line in requirements if "instruments" in line]
    assert not [line for line in requirements if "==" in line.partition(";")[0]]


def test_installed_from_the_wheel_it_starts(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own; the dependencies are those of this one, by a path file that sorts behind ours."""
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v"))
    (site,) = (tmp_path / "v").glob("lib/python*/site-packages")
    installed = run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel))
    assert installed.returncode == 0, installed.stderr
    (site / "zz-dependencies.pth").write_text(_this_site() + "\n")
    interpreter = str(tmp_path / "v" / "bin" / "python")
    code = "import requests, otel_breaker.activate as a; print(a.active(), a.__file__)"
    done = run(interpreter, "-c", code, OTEL_BREAKER_ENABLED="true")
    assert done.stdout.startswith(f"True {site}"), done.stderr
    assert done.stderr == ""
    quiet = run(interpreter, "-c", "import sys; print('otel_breaker' in sys.modules)")
    assert quiet.stdout == f"{STARTED}\n"
    export = "import sys; from otel_breaker.cli import main; sys.exit(main(['export', 'compose', sys.argv[1]]))"
    exported = run(interpreter, "-c", export, str(tmp_path / "out"))
    assert (exported.returncode, exported.stderr) == (0, "")
    assert (tmp_path / "out/grafana/dashboards/overview.json").read_bytes() == (
        ROOT / "grafana/dashboards/overview.json"
    ).read_bytes()


def _this_site() -> str:
    import pydantic

    return str(Path(pydantic.__file__).parent.parent)


def test_a_dependency_that_is_missing_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("raise ModuleNotFoundError('no pydantic here')")
    code = "import json, requests; print(json.dumps('still runs'))"
    done = python(code, OTEL_BREAKER_ENABLED="true", PYTHONPATH=str(tmp_path))
    assert last_json(done) == "still runs"
    assert done.stderr == "otel_breaker stays off: ModuleNotFoundError: no pydantic here\n"
