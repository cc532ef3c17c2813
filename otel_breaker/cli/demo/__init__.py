"""`otel-breaker demo`: a real agent run against a real outage, without and with circuit breakers."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Any, Final

_CLIENTS: Final = ("requests", "httpx", "httpx2")


def add(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "demo",
        help="play an agent run against an outage, without and with breakers (about a minute)",
        description="Exit status 0: every promised effect happened; 1: one did not; 2: a client library is missing.",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_setting,
        dest="settings",
        help="a setting of the second run, such as mode=observe (then the promises are not kept)",
    )
    parser.set_defaults(run=run)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return f"OTEL_BREAKER_{name.upper().removeprefix('OTEL_BREAKER_')}", value


def run(arguments: argparse.Namespace) -> int:
    """Play the demo."""
    missing = [name for name in _CLIENTS if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"otel-breaker: the demo's agent uses {', '.join(_CLIENTS)}; not installed: {', '.join(missing)}. "
            "Try: pip install 'otel-breaker[demo]'",
            file=sys.stderr,
        )
        return 2
    # Loaded here: the other subcommands do without it.
    from .story import tell

    return tell(sys.stdout, dict(arguments.settings))
