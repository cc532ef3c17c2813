"""`make tools`: does nothing twice, says what is missing, and installs programs, never services."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import stack

SCRIPT = stack.CONFIG / "build/tools.sh"
PLAIN = (
    "bash", "cat", "chmod", "dirname", "env", "flock", "head", "ln", "mkdir", "mv", "rm", "sed", "sh", "sha256sum",
    "tail", "tee",
)  # fmt: skip
PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager", "amtool", "redis-server")


class Machine:
    """Only the plain programs, and stand-ins that write down how they were called."""

    def __init__(self, room: Path) -> None:
        self.bin, self.tools, self.calls, self.policy = (room / name for name in ("bin", "tools", "calls", "policy"))
        self.bin.mkdir()
        self.tools.mkdir()
        for name in PLAIN:
            (self.bin / name).symlink_to(shutil.which(name) or name)

    def has(self, name: str, does: str = "", where: Path | None = None) -> None:
        program = (where or self.bin) / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n{does}\n')
        program.chmod(0o755)

    def has_collector(self, key: str | None = None) -> None:
        self.has("otelcol-breaker", "echo otelcol-breaker version 0", self.tools)
        manifest = SCRIPT.with_name("manifest.yaml").read_bytes()
        known = subprocess.run(["sha256sum"], input=manifest, capture_output=True, check=True).stdout.decode()
        (self.tools / "otelcol-breaker.key").write_text(key or known)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {
            "PATH": str(self.bin),
            "TOOLS_DIR": str(self.tools),
            "POLICY_RC_D": str(self.policy),
            "HOME": os.environ["HOME"],
        }
        command = [str(self.bin / "bash"), str(SCRIPT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, env=variables, check=False)

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_go_it_says_what_to_do(machine: Machine) -> None:
    done = machine.run()

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "tools: no go, which builds the Collector: install Go 1.26 or newer (https://go.dev/dl), "
        "or run otelcol-contrib 0.161.0 with collector-config/otelcol.yaml\n"
    )


def test_a_build_that_fails_shows_why_and_leaves_no_binary(machine: Machine) -> None:
    machine.has("go", 'test "$1" = env && echo go1 && exit; echo requires go 1.26; exit 1')
    done = machine.run()

    assert done.returncode == 1
    assert "tools: the Collector could not be built: requires go 1.26" in done.stderr
    assert not (machine.tools / "otelcol-breaker").exists()


def test_what_is_there_is_left_alone(machine: Machine) -> None:
    machine.has_collector()
    for name in (*PROGRAMS, "apt-get", "go"):
        machine.has(name, f"echo {name} of this machine")

    first, second = machine.run(), machine.run()

    assert first.returncode == second.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert "redis-server: redis-server of this machine" in first.stdout
    # The second run asks nobody.
    assert machine.called() == [f"{name} --version" for name in ("otelcol-breaker", *PROGRAMS)]


def test_another_manifest_builds_anew(machine: Machine) -> None:
    machine.has_collector(key="of another manifest")

    assert "no go" in machine.run().stderr


def test_without_the_right_to_install_one_line_says_what(machine: Machine) -> None:
    machine.has_collector()
    machine.has("apt-get")
    machine.has("id", "echo 1000")
    machine.has("prometheus")
    machine.has("redis-server")

    done = machine.run()

    assert done.returncode == 1
    assert done.stderr == (
        "tools: not installed: prometheus prometheus-alertmanager. On Debian and Ubuntu: "
        "sudo apt-get install --no-install-recommends prometheus prometheus-alertmanager\n"
    )
    assert machine.called() == ["id -u", "id -u"]


def test_the_collector_alone_needs_no_package(machine: Machine) -> None:
    machine.has_collector()

    assert machine.run("collector").returncode == 0


@pytest.mark.parametrize("forbidden_before", [True, False])
def test_packages_are_programs_and_no_services(machine: Machine, forbidden_before: bool) -> None:
    """Debian's own switch is set while they are installed, and is as before afterwards."""
    machine.has_collector()
    machine.has("id", "echo 0")
    machine.has("systemctl")
    installs = "; ".join(f"ln -s {machine.bin}/id {machine.bin}/{name}" for name in PROGRAMS)
    machine.has(
        "apt-get",
        f'case "$*" in *install*) sh {machine.policy}; echo "may start: $?" >> {machine.calls}; {installs};; esac',
    )
    if forbidden_before:
        machine.policy.write_text("exit 101 # of the machine\n")

    done = machine.run()

    assert done.returncode == 0, done.stderr
    asked = [call for call in machine.called() if call.startswith(("apt-get", "systemctl", "may start"))]
    assert asked == [
        "apt-get -q update",
        "apt-get -q -y install --no-install-recommends prometheus prometheus-alertmanager redis-server",
        "may start: 101",
        "systemctl disable prometheus", "systemctl disable prometheus-alertmanager", "systemctl disable redis-server",
    ]  # fmt: skip
    assert machine.policy.exists() == forbidden_before


def test_packages_that_cannot_be_had_are_an_error(machine: Machine) -> None:
    machine.has_collector()
    machine.has("id", "echo 0")
    machine.has("apt-get", "echo E: no such package; exit 100")

    done = machine.run()

    assert done.returncode == 1
    assert "apt-get did not install prometheus prometheus-alertmanager redis-server: E: no such package" in done.stderr
    assert not machine.policy.exists()
