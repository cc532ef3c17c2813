"""The tools of a small payments agent, and the loop that hands their results to the model."""

from __future__ import annotations

import json
from typing import Any

import requests

import otel_breaker

VENDOR = "https://api.example.com"


@otel_breaker.guard(policy="fast_api", alternatives=["issue_refund_manually"])
def refund_charge(charge: str) -> Any:
    """Refund a charge at the vendor."""
    reply = requests.post(f"{VENDOR}/v1/refunds", json={"charge": charge}, timeout=0.5)
    reply.raise_for_status()
    return reply.json()


def look_up_charge(charge: str) -> Any:
    """Read a charge. Nobody has put a guard here: it is one where the breakers are switched on."""
    reply = requests.get(f"{VENDOR}/v1/charges/{charge}", timeout=0.5)
    reply.raise_for_status()
    return reply.json()


TOOLS = {"refund_charge": refund_charge, "look_up_charge": look_up_charge}


def call(tool: str, argument: str) -> str:
    """One tool call of the model: what it reads as the result."""
    try:
        return json.dumps(TOOLS[tool](argument))
    except requests.RequestException as error:
        return str(error)
