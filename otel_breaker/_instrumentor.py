"""The instrumentor that `opentelemetry-instrument` and `OTEL_CONFIG_FILE` find by its entry point."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from . import activate


class BreakerInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Switches the breakers on and off. It never raises: the loader would skip all instrumentors after this one.

    Which libraries are there, and in which version, is checked for each when it is imported, so the base class's
    check, which knows only all or nothing, is not used.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: nothing that is missing may switch all of it off."""
        return ()

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether the breakers are on, by whatever way."""
        return activate.active()

    def instrument(self, **kwargs: Any) -> None:
        """Switch on with these settings; see `otel_breaker.instrument`."""
        by_loader = kwargs.pop("skip_dep_check", False)
        kwargs.pop("raise_exception_on_conflict", None)
        by_file = (
            "OTEL_CONFIG_FILE" in os.environ and "opentelemetry.instrumentation.auto_instrumentation" in sys.modules
        )
        activate.activate(activate.AUTOMATIC if by_loader or by_file else activate.BY_HAND, **kwargs)

    def uninstrument(self, **kwargs: Any) -> None:
        """Switch off."""
        activate.deactivate()

    def _instrument(self, **kwargs: Any) -> None:
        self.instrument(**kwargs)

    def _uninstrument(self, **kwargs: Any) -> None:
        self.uninstrument(**kwargs)
