"""Skipped tests: what was skipped and how to get it, last; with ``OTEL_BREAKER_REQUIRE=all`` a skip is a failure."""

from __future__ import annotations

import os

import pytest

VARIABLE = "OTEL_BREAKER_REQUIRE"

_required = pytest.StashKey[bool]()
_skipped = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    # Taken out of the environment: to the package under test every OTEL_BREAKER_* variable is a setting.
    wanted = os.environ.pop(VARIABLE, "")
    if wanted not in ("", "all"):
        raise pytest.UsageError(f"{VARIABLE}={wanted} is not known; allowed: all")
    config.stash[_required] = wanted == "all"
    config.stash[_skipped] = []
    config.pluginmanager.register(_Collector(config), "otel-breaker-skips")


class _Collector:
    def __init__(self, config: pytest.Config) -> None:
        self.skipped = config.stash[_skipped]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append((report.nodeid, _why(report.longrepr)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append((report.nodeid, _why(report.longrepr)))


def _why(longrepr: object) -> str:
    """The text given to skip(); it says how to get the test to run."""
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ").strip()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash[_required] and session.config.stash[_skipped] and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash[_skipped]
    if not skipped:
        return
    required = config.stash[_required]
    terminalreporter.section("not run" + (f": a failure, {VARIABLE}=all" if required else ""), red=required)
    for node, why in sorted(skipped):
        terminalreporter.line(f"{node}: {why}")
