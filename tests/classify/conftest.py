"""Messages that are logged once per process are logged anew in each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_breaker import _log


@pytest.fixture(autouse=True)
def _fresh_log() -> Iterator[None]:
    _log.forget()
    yield
    _log.forget()
