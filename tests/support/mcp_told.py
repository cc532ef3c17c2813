"""What the circuits of MCP servers and tools were told."""

from __future__ import annotations

from otel_breaker._registry import Registry
from otel_breaker.stats import OUTCOMES


def told_of(registry: Registry, name: str) -> list[str]:
    """The outcomes counted under a name, each as often as it was; a failure with its reason."""
    for stats in registry.names():
        if stats.name == name:
            plain = [kind for kind, slot in OUTCOMES if kind != "failure" for _ in range(getattr(stats, slot))]
            return [f"failure:{reason}" for reason, count in stats.failures.items() for _ in range(count)] + plain
    return []
