"""Quota circuits: one for each (dependency, credential), made at its first 429 or 401, held by the dependency's.

Throttles and pauses live here, so that one tenant's quota neither refuses nor pages for another.
"""

from __future__ import annotations

from typing import Final

from .circuit import Circuit
from .core.states import CLOSED, Closed
from .keys import CircuitKey, within

QUOTAS_MAX: Final = 1000
"""Quota circuits of one dependency; the oldest idle ones make room."""


def heir(circuit: Circuit, fingerprint: str) -> Circuit:
    """The quota circuit of this credential. Past the cap with none of them idle, one without a memory."""
    with circuit._lock:
        quotas = circuit.quotas = {} if circuit.quotas is None else circuit.quotas
        found = quotas.get(fingerprint)
        if found is not None:
            return found
        key = CircuitKey(circuit.key.dependency, within(circuit.key.scope, fingerprint), "quota")
        found = Circuit.__new__(Circuit)
        found._build(circuit.name, key, circuit.policy, circuit.mode, circuit.clock, circuit.stats, Closed())
        found.display_name, found.alternatives = circuit.display_name, circuit.alternatives
        found.parent = circuit
        if len(quotas) >= QUOTAS_MAX:
            gone = next((one for one, quota in quotas.items() if idle(quota)), None)
            if gone is None:
                return found
            del quotas[gone]
        quotas[fingerprint] = found
    circuit.refresh()
    return found


def idle(circuit: Circuit) -> bool:
    """Whether nothing is lost with this circuit: it and its credentials' are closed as this moment makes them."""
    quotas = circuit.quotas or {}
    return circuit.state == CLOSED and all(quota.state == CLOSED for quota in list(quotas.values()))
