"""``with credential("acct-1")``: which account the calls inside run under, where no header tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from . import keys
from .telemetry import quick

_given: ContextVar[str | None] = ContextVar("otel_breaker_credential", default=None)


@contextmanager
def credential(account: str) -> Iterator[None]:
    """Name the credential of all guarded tools called inside. Only a fingerprint of ``account`` is kept."""
    quick.detours.add("credential")
    token = _given.set(keys.fingerprint("given", account))
    try:
        yield
    finally:
        _given.reset(token)


def current() -> str | None:
    """The fingerprint in force here, or ``None``."""
    return _given.get()
