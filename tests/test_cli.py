"""The command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_breaker import __version__
from otel_breaker.cli import main
from tests.support.python import BIN, STARTED, environment, run

CLI = str(BIN / "otel-breaker")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"otel-breaker {__version__}\n"
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert {"config", "doctor", "run"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "argv", [[], ["nosuch"], ["run"], ["run", "--"], ["config"], ["config", "check"], ["doctor", "x"]]
)
def test_wrong_usage_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert capsys.readouterr().err.startswith("usage: otel-breaker")


def test_run_passes_arguments_and_status_on() -> None:
    code = "import os, sys; print(os.environ['OTEL_BREAKER_ENABLED'], sys.argv[1:]); sys.exit(7)"
    done = run(CLI, "run", "--", sys.executable, "-c", code, "--", "-x", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (7, "true ['--', '-x', '--json']\n", "")


def test_run_leaves_false_alone_and_says_so() -> None:
    code = "import os; print(os.environ['OTEL_BREAKER_ENABLED'])"
    done = run(CLI, "run", "--", sys.executable, "-c", code, OTEL_BREAKER_ENABLED="false")
    assert (done.returncode, done.stdout) == (0, "false\n")
    assert done.stderr == "otel-breaker: OTEL_BREAKER_ENABLED=false is set: runs without breakers\n"


def test_run_says_what_cannot_be_run(tmp_path: Path) -> None:
    done = run(CLI, "run", "--", "no-such-command", "x")
    assert (done.returncode, done.stderr) == (127, "otel-breaker: command not found: no-such-command\n")
    broken = tmp_path / "broken"
    broken.write_text("not a program")
    broken.chmod(0o755)
    done = run(CLI, "run", "--", str(broken))
    assert done.returncode == 126
    assert done.stderr.startswith(f"otel-breaker: cannot run {broken}: ")


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        ("mode: observe", 0, "{path}: valid\n"),
        ("mode: strict", 1, "otel-breaker: mode in {path}: 'strict' is not allowed; allowed: enforce, observe, off\n"),
        (None, 1, "otel-breaker: file: no such file: {path}\n"),
    ],
)
def test_config_check(
    content: str | None, status: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "otel-breaker.yaml"
    if content is not None:
        path.write_text(content)
    assert main(["config", "check", str(path)]) == status
    shown = capsys.readouterr()
    assert (shown.err if status else shown.out) == text.replace("{path}", str(path))
    assert main(["config", "check", "--json", str(path)]) == status
    answer = json.loads(capsys.readouterr().out)
    assert answer["valid"] is (status == 0)
    assert (answer["error"] is None) is (status == 0)


def test_config_check_looks_at_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BREAKER_MODE", "strict")
    path = tmp_path / "otel-breaker.yaml"
    path.write_text("mode: observe")
    assert main(["config", "check", str(path)]) == 0


def doctor(capsys: pytest.CaptureFixture[str], status: int = 0) -> dict[str, Any]:
    assert main(["doctor", "--json"]) == status
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def test_doctor_of_a_sound_installation(capsys: pytest.CaptureFixture[str]) -> None:
    facts = doctor(capsys)
    assert all(check["passed"] for check in facts["checks"])
    assert {row["library"]: row["status"] for row in facts["libraries"]}["requests"] == "guarded"
    assert facts["settings"]["mode"] == "enforce"
    assert facts["settings"]["store"] == "memory"
    assert facts["settings"]["policies"]["default"]["failure_threshold"] == 5
    assert facts["activation"]["start_up_file"].endswith("otel_breaker.start" if STARTED else "otel_breaker.pth")
    assert facts["activation"]["switched_off_by"] is None
    assert set(facts["telemetry"].values()) == {"nowhere, unless the program sets a provider"}
    assert any("-S" in line for line in facts["not_covered"])


def test_doctor_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in (
        "ok",
        "start-up file",
        "requests",
        "supported",
        "enforce",
        "failure_threshold",
        "Not covered",
        "zipapps",
    ):
        assert part in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_doctor_fails_on_invalid_settings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BREAKER_MODE", "strict")
    facts = doctor(capsys, 1)
    assert [check["detail"] for check in facts["checks"] if not check["passed"]] == [
        "OTEL_BREAKER_MODE: 'strict' is not allowed; allowed: enforce, observe, off"
    ]
    assert main(["doctor"]) == 1
    assert "the package stays off" in capsys.readouterr().out


def test_doctor_says_what_switches_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "otel_breaker")
    monkeypatch.setenv("OTEL_BREAKER_DISABLED_INSTRUMENTATIONS", "requests")
    facts = doctor(capsys)
    assert facts["activation"]["switched_off_by"] == "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS names it"
    assert {row["library"]: row["status"] for row in facts["libraries"]}["requests"] == "switched off by settings"
    monkeypatch.setenv("OTEL_BREAKER_ENABLED", "false")
    assert doctor(capsys)["activation"]["switched_off_by"] == "OTEL_BREAKER_ENABLED is false"


@pytest.mark.parametrize(
    ("variables", "traces"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://user:S3CRET@host:4317/S3CRET?k=S3CRET"}, "otlp to https://host:4317"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "user:S3CRET@host:4317"}, "otlp to host:4317"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1]:4317"}, "otlp to http://[::1]:4317"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:S3CRET"}, "otlp to an endpoint that is not a URL"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://b"},
            "otlp to http://a",
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp to http://localhost:4317"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            "otlp to http://localhost:4318",
        ),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "none"}, "nowhere, unless the program sets a provider"),
        ({"OTEL_CONFIG_FILE": "/etc/otel.yaml"}, "as /etc/otel.yaml says"),
    ],
)
def test_B122_doctor_shows_where_telemetry_goes_without_credentials(
    variables: dict[str, str], traces: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BREAKER_FINGERPRINT_KEY", "S3CRET")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    facts = doctor(capsys)
    assert facts["telemetry"]["traces"] == traces
    assert "S3CRET" not in json.dumps(facts)


def test_our_own_command_runs_without_breakers() -> None:
    code = "-c", "import requests"
    done = run(CLI, "run", "--", sys.executable, *code, OTEL_BREAKER_ENABLED="true", OTEL_BREAKER_LOG_LEVEL="info")
    assert done.stderr.count("breakers enforce") == 1  # of the command, not of the CLI before it
