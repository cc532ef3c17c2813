"""Short ways to bring a circuit somewhere and to read what it counted."""

from __future__ import annotations

from typing import Any

from otel_breaker import Circuit

_DECISIONS = (
    "admitted",
    "probe",
    "circuit_open",
    "probe_in_flight",
    "forced_open",
    "credential_paused",
    "throttled",
    "would_reject",
)
_OUTCOMES = ("success", "failure", "neutral", "throttled", "unauthorized", "cancelled", "late")


class Fault(Exception):
    """What a broken tool body raises: nothing explains it, so it is a ``tool_error``."""


def fail(circuit: Circuit, times: int = 1, reason: str = "server_error") -> None:
    """That many calls that failed."""
    for _ in range(times):
        circuit.acquire().failure(reason)


def trip(circuit: Circuit, reason: str = "server_error") -> Circuit:
    """Fail until it is open."""
    fail(circuit, circuit.policy.failure_threshold - circuit.snapshot().failures, reason)
    assert circuit.snapshot().state == "open"
    return circuit


def of(guarded: Any) -> Circuit:
    """The circuit of a guarded function."""
    binding = guarded.__otel_breaker__
    found: Circuit = binding.circuit or binding.bind()
    return found


def decisions(circuit: Circuit) -> dict[str, int]:
    """Admissions by decision, without the zeros."""
    return {name: count for name in _DECISIONS if (count := getattr(circuit.stats, name))}


def outcomes(circuit: Circuit) -> dict[str, int]:
    """Outcomes by kind, without the zeros."""
    slots = {"throttled": "was_throttled"}
    return {name: count for name in _OUTCOMES if (count := getattr(circuit.stats, slots.get(name, name)))}


def reasons(circuit: Circuit) -> dict[str, int]:
    """Failures by reason, without the zeros."""
    return {reason: count for reason, count in circuit.stats.failures.items() if count}


def moves(circuit: Circuit) -> dict[tuple[str, str], int]:
    """Transitions, without the zeros."""
    return {pair: count for pair, count in circuit.stats.transitions.items() if count}
