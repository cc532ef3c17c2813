"""`tool_status` and `tool_status_block`: what a harness can tell the model before it calls."""

from __future__ import annotations

from typing import Any, Final

from . import answers
from ._bindings import held
from ._registry import registry
from .circuit import Circuit

BLOCK_MAX: Final = 20
"""Tools named in a block; what comes after is only counted, so that a prompt stays small in a wide outage."""


def tool_status() -> list[dict[str, Any]]:
    """Every tool that has been seen, as the model should know it now.

    Returns:
        One dict a tool, sorted by name: ``tool``, ``status`` (``available`` or the status of a refusal), ``reason``
        (empty when available), ``retry_after_ms`` (0 when available) and ``alternatives``.
    """
    told: dict[str, dict[str, Any]] = {}
    offers = {tool: offered for holder in held() for tool, offered in holder.offers().items() if offered}
    for circuit in registry():
        for tool in list(circuit.stats.tools) or [circuit.name]:
            entry = _entry(circuit, tool, offers.get(tool) or circuit.alternatives)
            if tool not in told or told[tool]["status"] == "available":
                told[tool] = entry
    return [told[tool] for tool in sorted(told)]


def tool_status_block() -> str:
    """The tools that are out, as a short block for a system prompt; empty while all are available.

    Built from names and our own words only: no exception text, no vendor text, no line breaks from outside.
    """
    out = [entry for entry in tool_status() if entry["status"] != "available"]
    if not out:
        return ""
    lines = ["Tools that are out right now (do not retry them before the time given):"]
    for entry in out[:BLOCK_MAX]:
        line = f"- {entry['tool']}: {entry['reason']}; try again in {entry['retry_after_ms'] // 1000} s"
        if entry["alternatives"]:
            line += f"; instead: {', '.join(entry['alternatives'])}"
        lines.append(_plain(line))
    if len(out) > BLOCK_MAX:
        lines.append(f"- and {len(out) - BLOCK_MAX} more")
    return "\n".join(lines)


def _entry(circuit: Circuit, tool: str, alternatives: tuple[str, ...]) -> dict[str, Any]:
    snapshot = circuit.snapshot()
    if snapshot.retry_after <= 0 or circuit.mode != "enforce":  # the next call goes through, if only as a probe
        return {"tool": tool, "status": "available", "reason": "", "retry_after_ms": 0, "alternatives": []}
    decision = {"forced_open": "forced_open", "half_open": "probe_in_flight"}.get(snapshot.state, "circuit_open")
    name = circuit.display_name or circuit.name
    in_a_row = circuit.policy.failure_rate is None
    text = answers.reason_text(name, decision, snapshot.reason, snapshot.failures, circuit.last_took, in_a_row)
    status = "probe_in_flight" if decision == "probe_in_flight" else "circuit_open"
    return answers.answer(status, tool, text, snapshot.retry_after, alternatives)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "<>`{}" else " " for c in text)[:400]
