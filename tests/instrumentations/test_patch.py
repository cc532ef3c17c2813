"""The engine: versions, settings, what is missing, and what it says about itself."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import requests

from otel_breaker import settings
from otel_breaker.instrumentations import _patch, _table


@pytest.fixture
def rows(patched: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the table of the engine, with nothing patched yet."""
    _patch.remove()

    def use(*targets: _table.Target) -> None:
        monkeypatch.setattr(_patch, "TARGETS", targets)

    return use


SEND = next(row for row in _table.TARGETS if row.attribute == "Session.request")


def is_plain() -> bool:
    return not hasattr(vars(requests.Session)["request"], "__wrapped__")


@pytest.mark.parametrize("versions", [("1", "2"), ("99", "100"), ("2.20", "2.21")])
def test_an_unsupported_version_is_left_alone_with_one_warning(
    rows: Any, caplog: pytest.LogCaptureFixture, versions: tuple[str, str]
) -> None:
    rows(replace(SEND, versions=versions))
    for _ in range(3):
        _patch.enable()
    assert is_plain()
    assert len(caplog.records) == 1
    assert f">={versions[0]},<{versions[1]}" in caplog.text
    (report,) = _patch.report()
    assert (report.supported, report.patched) == (False, ())


def test_a_missing_attribute_is_said_once(rows: Any, caplog: pytest.LogCaptureFixture) -> None:
    rows(replace(SEND, attribute="Session.gone"))
    for _ in range(3):
        _patch.enable()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    (report,) = _patch.report()
    assert report.missing == ("Session.gone",)


def test_a_wrapper_that_cannot_be_loaded_leaves_the_library_alone(rows: Any, caplog: pytest.LogCaptureFixture) -> None:
    rows(replace(SEND, wrapper="otel_breaker.instrumentations.nothing:here"))
    _patch.enable()
    assert is_plain()
    assert len(caplog.records) == 1


def test_no_metadata_means_try(rows: Any) -> None:
    rows(replace(SEND, distribution="not-there-at-all"))
    _patch.enable()
    assert not is_plain()
    _patch.remove()


@pytest.mark.parametrize(
    ("given", "guarded"),
    [
        ({}, True),
        ({"instrumentations": ["requests"]}, True),
        ({"instrumentations": ["httpx"]}, False),
        ({"disabled_instrumentations": ["requests"]}, False),
        ({"instrumentations": ["default", "httpx"]}, True),
    ],
)
def test_settings_choose(rows: Any, given: dict[str, Any], guarded: bool) -> None:
    rows(SEND)
    settings.use(settings.load(**given))
    _patch.enable()
    assert is_plain() is not guarded


def test_the_report(patched: Any) -> None:
    found = {row.library: row for row in _patch.report()}
    assert set(found) == {row.library for row in _table.TARGETS}
    installed = {name: row for name, row in found.items() if row.version}
    assert set(installed) >= {"requests", "httpx", "httpx2"}  # not every interpreter has the frameworks
    assert all(row.supported and not row.missing for row in installed.values())
    assert found["requests"].patched[:2] == ("Session.request", "HTTPAdapter.send")
    assert len(found["httpx"].patched) == 4
    _patch.remove()
    assert all(row.patched == () for row in _patch.report())


def test_loading_the_engine_loads_nothing_heavy() -> None:
    code = (
        "import sys; from otel_breaker.instrumentations import _patch;"
        "print(*({'wrapt', 'ssl', 'asyncio', 'requests', 'httpx', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_every_wrapper_of_the_table_exists() -> None:
    import importlib

    for row in _table.TARGETS:
        module, _, function = row.wrapper.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
