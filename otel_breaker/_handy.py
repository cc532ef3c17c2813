"""What `Circuit` offers for use by hand; what it does is in `_byhand`, loaded at its first use."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from .core.events import Disable, ForceOpen, Reset, Resume

if TYPE_CHECKING:
    from ._byhand import Permit
    from .circuit import Circuit


class ByHand:
    """call, acall, acquire, with and async with; and the operator's commands."""

    __slots__ = ()

    def call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` through the circuit.

        Raises:
            CircuitOpenError: if it was refused; else whatever ``function`` raises, as the same object.
        """
        from ._byhand import call

        return call(_circuit(self), function, args, kwargs)

    async def acall(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`call` for a function that returns an awaitable."""
        from ._byhand import acall

        return await acall(_circuit(self), function, args, kwargs)

    def acquire(self) -> Permit:
        """Ask for a `Permit`, to be settled by one of its methods.

        Raises:
            CircuitOpenError, ProbeInFlightError: if it was refused.
        """
        from ._byhand import acquire

        return acquire(_circuit(self))

    def __enter__(self) -> Self:
        from ._byhand import push

        push(_circuit(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from ._byhand import pop

        pop(_circuit(self), error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    # --- commands -----------------------------------------------------------------------------------------------------

    def force_open(self, reason: str, seconds: float | None = None) -> None:
        """Refuse every call, for ``seconds`` or until `resume`; never pages. ``reason`` is told to people only."""
        if seconds is not None and not seconds > 0:
            raise ValueError(f"seconds must be > 0 or None, not {seconds!r}")
        _circuit(self)._commit(ForceOpen(str(reason), seconds))

    def disable(self) -> None:
        """Let everything through and charge nothing, until `resume`."""
        _circuit(self)._commit(Disable())

    def resume(self) -> None:
        """End a force or a disable: closed. End its credentials' pauses: one call may try."""
        _circuit(self)._commit(Resume())
        for quota in list((_circuit(self).quotas or {}).values()):
            quota.resume()

    def reset(self) -> None:
        """Close the circuit and its credentials' and zero them."""
        _circuit(self)._commit(Reset())
        for quota in list((_circuit(self).quotas or {}).values()):
            quota.reset()


def _circuit(handy: ByHand) -> Circuit:
    return cast("Circuit", handy)
