"""A circuit breaker around every tool call of an AI agent, switched on from outside, visible in OpenTelemetry.

    import otel_breaker

    otel_breaker.instrument()                 # or OTEL_BREAKER_ENABLED=true, or opentelemetry-instrument

    @otel_breaker.guard(dependency="api.stripe.com", alternatives=["issue_refund_manually"])
    def refund_charge(charge: str) -> dict: ...

Importing this module loads nothing but the standard library; each name loads what it needs when it is first used.

PYTEST_DONT_REWRITE: switched on by the environment, this module is there before pytest, which would warn that it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from ._credentials import credential
    from ._decorator import guard
    from ._effects import Transition, add_listener
    from ._registry import registry
    from ._status import tool_status, tool_status_block
    from .activate import instrument, uninstrument
    from .circuit import Circuit
    from .core.policy import Policy
    from .core.views import Snapshot
    from .errors import BreakerError, CircuitOpenError, CredentialPausedError, ProbeInFlightError, SettingsError
    from .telemetry.emit import flush

_HOMES = {
    "BreakerError": "errors",
    "Circuit": "circuit",
    "CircuitOpenError": "errors",
    "CredentialPausedError": "errors",
    "Policy": "core.policy",
    "ProbeInFlightError": "errors",
    "SettingsError": "errors",
    "Snapshot": "core.views",
    "Transition": "_effects",
    "add_listener": "_effects",
    "credential": "_credentials",
    "flush": "telemetry.emit",
    "guard": "_decorator",
    "instrument": "activate",
    "registry": "_registry",
    "tool_status": "_status",
    "tool_status_block": "_status",
    "uninstrument": "activate",
}

__all__ = [
    "BreakerError",
    "Circuit",
    "CircuitOpenError",
    "CredentialPausedError",
    "Policy",
    "ProbeInFlightError",
    "SettingsError",
    "Snapshot",
    "Transition",
    "__version__",
    "add_listener",
    "credential",
    "flush",
    "guard",
    "instrument",
    "registry",
    "tool_status",
    "tool_status_block",
    "uninstrument",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
