"""What the hot path reads itself, because a function call would cost more than the read (docs/performance.md).

Both reads go one step below OpenTelemetry's public functions; where a release has something else there, the public
function, or always the long way, takes their place.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from opentelemetry import context as _context
from opentelemetry import trace as _trace

_runtime: Any = getattr(_context, "_RUNTIME_CONTEXT", None)
_variable: Any = getattr(_runtime, "_current_context", None)

current: Final[Callable[[], Any]] = getattr(_variable, "get", _context.get_current)
"""The current OpenTelemetry context; empty when nothing is set."""

tracing: Final[Any] = _trace if hasattr(_trace, "_TRACER_PROVIDER") else SimpleNamespace(_TRACER_PROVIDER=_trace)
"""``tracing._TRACER_PROVIDER`` is ``None`` while the program has set no tracer provider."""
