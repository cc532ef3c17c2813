"""The exceptions.

    Exception
     +-- BreakerError
          +-- SettingsError             a setting is unknown or wrong; str() names it and the allowed values
          +-- CircuitOpenError          every refusal is one
               +-- ProbeInFlightError       one call is testing the dependency right now
               +-- CredentialPausedError    this credential was revoked; another one goes on

A refusal raised from a client library is also an exception of that library (`fitted`), so that existing handlers catch
it. It is never one of the library's retryable exceptions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from . import answers


class BreakerError(Exception):
    """Base of everything that this package raises."""


class SettingsError(BreakerError):
    """A setting is unknown or has a bad value. ``str()`` is one line: the key, where it came from, what is allowed."""


class CircuitOpenError(BreakerError):
    """A call was refused without touching the wire."""

    status = "circuit_open"

    def __init__(self, **facts: Any) -> None:
        # Only Exception's own __init__: the libraries' cooperative ones want arguments that we do not have.
        Exception.__init__(self)
        self._facts: dict[str, Any] = facts

    @property
    def key(self) -> str:
        """Name of the circuit."""
        return str(self._facts.get("key", ""))

    @property
    def tool(self) -> str:
        """The tool's name as the model knows it; the circuit's name where there is no tool."""
        return self._facts.get("tool") or self.key

    @property
    def state(self) -> str:
        """The circuit's state when it refused."""
        return str(self._facts.get("state", "open"))

    @property
    def decision(self) -> str:
        """Why: ``circuit_open``, ``probe_in_flight``, ``forced_open``, ``credential_paused`` or ``throttled``."""
        return str(self._facts.get("decision", "circuit_open"))

    @property
    def error_type(self) -> str | None:
        """Reason code of the last failure, or ``None``."""
        return self._facts.get("error_type")

    @property
    def retry_after(self) -> float:
        """Seconds until a call may be let through; above 0."""
        return float(self._facts.get("retry_after", 1.0))

    @property
    def alternatives(self) -> tuple[str, ...]:
        """Tools to use instead."""
        return tuple(self._facts.get("alternatives", ()))

    @property
    def reason(self) -> str:
        """One sentence in our own words; never exception text or a vendor's body."""
        facts = self._facts
        return answers.reason_text(
            facts.get("display_name") or self.key,
            self.decision,
            answers.SLOW_RATE if facts.get("slow") else self.error_type,
            facts.get("failures", 0),
            facts.get("last_took"),
            facts.get("in_a_row", True),
        )

    def answer(self, tool: str | None = None) -> dict[str, Any]:
        """The structured answer for the model, for ``tool`` if given."""
        return answers.answer(self.status, tool or self.tool, self.reason, self.retry_after, self.alternatives)

    def __str__(self) -> str:
        return json.dumps(self.answer(), ensure_ascii=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key} {self.decision} retry_after={self.retry_after:.1f}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A fitted class cannot be found by name; its plain base can.
        plain = next(cls for cls in type(self).__mro__ if cls in _PLAIN)
        return _rebuild, (plain, self._facts)


class PromptRefusal(CircuitOpenError):  # noqa: N818 - its public name is that of its base
    """The refusal of the hot path: it looks its facts up only if somebody asks."""

    def __init__(self, look: Callable[..., dict[str, Any]], *args: Any) -> None:
        self._look = (look, args)

    def __getattr__(self, name: str) -> Any:
        if name != "_facts":
            raise AttributeError(name)
        look, args = self._look
        self._facts = look(*args)
        return self._facts


PromptRefusal.__name__ = PromptRefusal.__qualname__ = CircuitOpenError.__name__


class ProbeInFlightError(CircuitOpenError):
    """Refused because one call is testing the dependency right now; ``retry_after`` is what is left of its lease."""

    status = "probe_in_flight"


class CredentialPausedError(CircuitOpenError):
    """Refused because this credential was revoked; ``retry_after`` is what is left of the pause."""

    status = "credential_paused"


_PLAIN = (ProbeInFlightError, CredentialPausedError, CircuitOpenError)
_fitted: dict[tuple[type, type], type[CircuitOpenError]] = {}


def _rebuild(cls: type[CircuitOpenError], facts: dict[str, Any]) -> CircuitOpenError:
    return cls(**facts)


def fitted(cls: type[CircuitOpenError], base: type[BaseException]) -> type[CircuitOpenError]:
    """The subclass of ``cls`` that also is a ``base``, so that the library's own handlers catch it. Made once."""
    found = _fitted.get((cls, base))
    if found is None:
        members: dict[str, Any] = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "__init__": cls.__init__,
            "__str__": cls.__str__,
            # Attributes that handlers of these libraries read and that our plain __init__ does not set.
            "request": None,
            "response": None,
        }
        found = _fitted[cls, base] = type(cls.__name__, (cls, base), members)
    return found


def refusal(decision: str) -> type[CircuitOpenError]:
    """The plain class for a decision."""
    if decision == "probe_in_flight":
        return ProbeInFlightError
    return CredentialPausedError if decision == "credential_paused" else CircuitOpenError
