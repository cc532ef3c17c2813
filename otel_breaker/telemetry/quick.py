"""What the hot path reads itself, because a function call would cost more than the read (docs/performance.md).

They go one step below OpenTelemetry's public functions; where a release has something else there, the public
function, or always the long way, takes their place.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from opentelemetry import context as _context
from opentelemetry import trace as _trace
from opentelemetry.trace import propagation as _propagation

_runtime: Any = getattr(_context, "_RUNTIME_CONTEXT", None)
_variable: Any = getattr(_runtime, "_current_context", None)

current: Final[Callable[[], Any]] = getattr(_variable, "get", _context.get_current)
"""The current OpenTelemetry context; empty when nothing is set."""

tracing: Final[Any] = _trace if hasattr(_trace, "_TRACER_PROVIDER") else SimpleNamespace(_TRACER_PROVIDER=_trace)
"""``tracing._TRACER_PROVIDER`` is ``None`` while the program has set no tracer provider."""

detours: Final[set[str]] = set()
"""Why every call of this process takes the long way: ``credential`` was used, ``spans`` go through a provider of ours.

One object for good, so that the hot path holds it and only asks whether it is empty.
"""

span_key: Final[str | None] = getattr(_propagation, "_SPAN_KEY", None)
"""Under which a context holds its span."""
