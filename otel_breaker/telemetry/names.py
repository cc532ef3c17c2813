"""Every name and unit that leaves this package. Dashboards, rules and users' queries rely on them."""

from __future__ import annotations

from typing import Final

SCOPE: Final = "otel_breaker"
OTHER: Final = "_other"
"""What series beyond the limits are folded into: a value of otel_breaker.name and of gen_ai.tool.name."""

# --- attributes -------------------------------------------------------------------------------------------------------

NAME: Final = "otel_breaker.name"
STATE: Final = "otel_breaker.state"
PREVIOUS_STATE: Final = "otel_breaker.previous_state"
DECISION: Final = "otel_breaker.decision"
OUTCOME: Final = "otel_breaker.outcome"
REASON: Final = "otel_breaker.reason"
COOLDOWN_REMAINING: Final = "otel_breaker.cooldown.remaining"
CREDENTIAL: Final = "otel_breaker.credential"
MERGED: Final = "otel_breaker.merged"
EVENTS_DROPPED: Final = "otel_breaker.events.dropped"
ERROR_TYPE: Final = "error.type"
TOOL_NAME: Final = "gen_ai.tool.name"
SERVER_ADDRESS: Final = "server.address"

# --- events -----------------------------------------------------------------------------------------------------------

CALL_ADMITTED: Final = "otel_breaker.call.admitted"
CALL_REJECTED: Final = "otel_breaker.call.rejected"
PROBE_STARTED: Final = "otel_breaker.probe.started"
PROBE_FINISHED: Final = "otel_breaker.probe.finished"
STATE_CHANGED: Final = "otel_breaker.state.changed"
CREDENTIAL_REVOKED: Final = "otel_breaker.credential.revoked"

# --- metrics: (name, unit, description) -------------------------------------------------------------------------------

ADMISSIONS: Final = ("otel_breaker.admissions", "{call}", "Calls by what the breaker decided about them.")
OUTCOMES: Final = ("otel_breaker.outcomes", "{call}", "Finished calls by what they said about the dependency.")
FAILURES: Final = ("otel_breaker.failures", "{failure}", "Failures charged, by reason.")
TRANSITIONS: Final = ("otel_breaker.transitions", "{transition}", "Changes of state.")
STATUS: Final = ("otel_breaker.status", "1", "Circuits of this name that are in this state.")
COOLDOWNS_ELAPSED: Final = (
    "otel_breaker.cooldowns_elapsed",
    "{cooldown}",
    "Cooldowns that ran out in the current episode with the circuit not closed; the largest of this name.",
)
AWAITING_PROBE: Final = (
    "otel_breaker.awaiting_probe",
    "{circuit}",
    "Circuits whose cooldown is over and that nobody has called since.",
)
REMAINING: Final = ("otel_breaker.cooldown.remaining", "s", "What is left of the cooldown; the largest of this name.")
OPEN_ELAPSED: Final = ("otel_breaker.open.elapsed", "s", "Age of the current episode; the oldest of this name.")
OPEN_DURATION: Final = ("otel_breaker.open.duration", "s", "Length of finished episodes.")
TIME_SAVED: Final = ("otel_breaker.time_saved", "s", "Waiting that refusals spared, an estimate.")
TOOLS: Final = ("otel_breaker.tools", "{tool}", "Tools seen on this name.")
REVOKED: Final = ("otel_breaker.credentials.revoked", "{credential}", "Credentials that had worked and got a 401.")
PAUSED: Final = ("otel_breaker.credentials.paused", "{credential}", "Revoked credentials refused right now.")
THROTTLED: Final = ("otel_breaker.credentials.throttled", "{credential}", "Throttled credentials refused right now.")
CIRCUITS: Final = ("otel_breaker.circuits", "{circuit}", "Circuits in the registry.")
STORE_ERRORS: Final = ("otel_breaker.store.errors", "{error}", "Failed operations on the shared store.")

OPEN_DURATION_BUCKETS: Final = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0)
"""Seconds; the steps of the default cooldown ladder lie on boundaries."""
