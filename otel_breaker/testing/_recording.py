"""A listener that remembers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from otel_breaker._effects import Transition, add_listener


class RecordingListener:
    """Collects transitions: while it is entered as a context manager, or wherever it was given to `add_listener`.

    Attributes:
        transitions: what it was told, oldest first.
    """

    def __init__(self) -> None:
        self.transitions: list[Transition] = []
        self._remove: Callable[[], None] | None = None

    def __call__(self, transition: Transition) -> None:
        """Remember one transition."""
        self.transitions.append(transition)

    @property
    def moves(self) -> list[tuple[str, str, str, str]]:
        """The transitions as ``(name, previous_state, state, reason)``."""
        return [(one.name, one.previous_state, one.state, one.reason) for one in self.transitions]

    def clear(self) -> None:
        """Forget what was told so far."""
        self.transitions.clear()

    def __enter__(self) -> Self:
        if self._remove is None:  # entered twice it would hear everything twice
            self._remove = add_listener(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()
