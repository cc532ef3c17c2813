"""What `Circuit` offers for use by hand; what it does is in `_byhand`, loaded at its first use."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from ._byhand import Permit
    from .circuit import Circuit


class ByHand:
    """call, acall, acquire, with and async with."""

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


def _circuit(handy: ByHand) -> Circuit:
    return cast("Circuit", handy)
