"""What the guards of a registry have counted."""

from __future__ import annotations

from typing import Any


def outcomes(registry: Any) -> dict[str, int]:
    """Outcomes by name, over all circuits, without the zeros."""
    found: dict[str, int] = {}
    for stats in registry.names():
        for name in ("success", "failure", "neutral", "was_throttled", "unauthorized", "cancelled", "late"):
            if count := getattr(stats, name):
                found[name] = found.get(name, 0) + count
    return found


def reasons(registry: Any) -> dict[str, int]:
    """Failures by reason, over all circuits."""
    found: dict[str, int] = {}
    for stats in registry.names():
        for reason, count in stats.failures.items():
            found[reason] = found.get(reason, 0) + count
    return found


def admitted(registry: Any) -> int:
    """Calls let through, probes with them."""
    return sum(stats.admitted + stats.probe for stats in registry.names())


def names(registry: Any) -> list[str]:
    """The names of all circuits."""
    return sorted(circuit.name for circuit in registry)
