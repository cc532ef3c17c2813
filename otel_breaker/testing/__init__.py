"""For your own tests: a clock that you move, a dependency that fails when told to, and a record of what circuits did.

Nothing here needs pytest; `otel_breaker.pytest_plugin` makes fixtures of it.
"""

from __future__ import annotations

from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock

from ._fake import FakeDependency, Request
from ._isolation import circuit_of, fresh_registry, instrumented
from ._recording import RecordingListener

__all__ = [
    "FakeDependency",
    "ManualClock",
    "RecordingListener",
    "Registry",
    "Request",
    "circuit_of",
    "fresh_registry",
    "instrumented",
]
