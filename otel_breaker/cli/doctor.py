"""`otel-breaker doctor`: what is guarded, how it is switched on, by which policy, and where telemetry and state go."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from ._tables import table

_POLICY_ROWS: Final = ("failure_threshold", "cooldown", "cooldown_steps", "cooldown_cap", "call_deadline")


def add(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="show what is guarded and whether it would work here",
        description="Exit status 0: every check passed; 1: one failed.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look and report."""
    # Loaded here: the other subcommands do without it.
    from ._facts import collect

    facts = collect()
    print(json.dumps(facts, indent=2) if arguments.json else _text(facts))
    return 0 if all(check["passed"] for check in facts["checks"]) else 1


def _text(facts: dict[str, Any]) -> str:
    python = facts["python"]
    sections = {
        f"otel-breaker {facts['version']} on Python {python['version']} ({python['executable']})": table(
            [("ok" if check["passed"] else "FAILED", check["name"], check["detail"]) for check in facts["checks"]]
        ),
        "Switched on by": _activation(facts["activation"]),
        "Guarded": table(
            [(row["library"], row["version"] or "-", row["supported"], row["status"]) for row in facts["libraries"]],
            ("library", "version", "supported", "status"),
        ),
        "Settings": _settings(facts["settings"]) if facts["settings"] else "  invalid: the package stays off",
        "Telemetry": table(list(facts["telemetry"].items())),
        "Not covered": "\n".join(f"  - {line}" for line in facts["not_covered"]),
    }
    return "\n\n".join(f"{title}\n{body}" for title, body in sections.items())


def _activation(activation: dict[str, Any]) -> str:
    rows = [
        ("OTEL_BREAKER_ENABLED=true", activation["start_up_file"] or "start-up file missing"),
        ("otel-breaker run -- COMMAND", activation["start_up_file"] or "start-up file missing"),
        ("opentelemetry-instrument", "found" if activation["entry_point"] else "entry point missing"),
        ("otel_breaker.instrument()", "always there"),
        ("in this environment", activation["switched_off_by"] or _variable(activation["variable"])),
    ]
    return table(rows)


def _variable(value: str | None) -> str:
    return f"OTEL_BREAKER_ENABLED={value}" if value else "OTEL_BREAKER_ENABLED is not set"


def _settings(chosen: dict[str, Any]) -> str:
    policies = chosen["policies"]
    general = table(
        [
            ("file", chosen["file"] or "none (OTEL_BREAKER_CONFIG)"),
            ("mode", chosen["mode"]),
            (
                "state",
                f"{chosen['store']}: gone at the end of the process"
                if chosen["store"] == "memory"
                else chosen["store"],
            ),
            ("events", chosen["events"]),
            ("rules", chosen["rules"]),
            ("excluded", ", ".join(chosen["exclude"]) or "nothing"),
        ]
    )
    rows = [(field, *(_cell(policies[name][field]) for name in policies)) for field in _POLICY_ROWS]
    return general + "\n\n" + table(rows, ("policy", *policies))


def _cell(value: Any) -> str:
    items = value if isinstance(value, (tuple, list)) else (value,)
    return ", ".join(f"{item:g}" for item in items)
