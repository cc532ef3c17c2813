"""What one finished call says about the dependency: the vocabulary shared by classifiers, machine and telemetry.

Standard library only: the core imports this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["success", "failure", "neutral", "throttled", "unauthorized", "cancelled"]

SUCCESS: Final = "success"
FAILURE: Final = "failure"
NEUTRAL: Final = "neutral"
THROTTLED: Final = "throttled"
UNAUTHORIZED: Final = "unauthorized"
CANCELLED: Final = "cancelled"
LATE: Final = "late"
"""Not a kind: the count of outcomes whose permit was no longer current."""

REASONS: Final = (
    "connection_refused",
    "connection_reset",
    "connection_error",
    "dns_error",
    "tls_error",
    "connect_timeout",
    "read_timeout",
    "timeout",
    "deadline_exceeded",
    "server_error",
    "overloaded",
    "malformed_output",
    "truncated_output",
    "rejected_output",
    "throttled",
    "quota_exhausted",
    "tool_error",
    "probe_lapsed",
    "unclassified",
)
"""The closed list of reasons; the values of ``error.type`` in every metric and event."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on one finished call.

    Attributes:
        kind: what it means for the circuit. ``cancelled`` is neutral to the machine and counted apart.
        reason: one of `REASONS`; set for ``failure`` and ``throttled``, else ``None``.
        retry_after: seconds that the server asked to wait, not yet clamped; ``None`` when it named no usable time.
        credential: fingerprint of the credential the call really used; ``None`` when unknown.
        answered: the host gave an HTTP answer although the outcome is neutral (a 4xx other than 401, 408, 429).
    """

    kind: Kind
    reason: str | None = None
    retry_after: float | None = None
    credential: str | None = None
    answered: bool = False


OK: Final = Outcome(SUCCESS)
IGNORED: Final = Outcome(NEUTRAL)
ANSWERED: Final = Outcome(NEUTRAL, answered=True)
ABORTED: Final = Outcome(CANCELLED)
