"""What the OpenTelemetry variables ask for. Standard library only: also asked when an interpreter starts."""

from __future__ import annotations

import os
from typing import Final, Literal

Signal = Literal["traces", "metrics", "logs"]
SIGNALS: Final[tuple[Signal, ...]] = ("metrics", "logs", "traces")
"""In the order in which they are flushed: what pages comes first."""


def wanted(signal: Signal) -> bool:
    """Whether the environment asks for this signal to be exported."""
    if variable("OTEL_SDK_DISABLED").lower() == "true":
        return False
    chosen = variable(f"OTEL_{signal.upper()}_EXPORTER").lower()
    if chosen:
        return chosen != "none"
    return any(
        variable(name)
        for name in (
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_CONFIG_FILE",
        )
    )  # fmt: skip


def variable(name: str) -> str:
    """An environment variable without the spaces around it; empty where it is not set."""
    return os.environ.get(name, "").strip()
