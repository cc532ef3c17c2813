"""`otel-breaker demo`: a real agent run against a real outage, without and with circuit breakers."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Any, Final

_CLIENTS: Final = ("requests", "httpx", "httpx2")
_SECOND_ACT: Final = ("mcp", "langgraph.graph", "langchain_core")  # langgraph alone is a namespace of several


def add(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "demo",
        help="play two agents against an outage, without and with breakers (half a minute)",
        description=(
            "The first act is a hand-written agent over three HTTP clients, the second a LangGraph agent over MCP and "
            "HTTP. Exit status 0: every promised effect happened; 1: one did not; 2: a client library is missing."
        ),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end in place of the play")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_setting,
        dest="settings",
        help="a setting of the runs with breakers, such as mode=observe (then the promises are not kept)",
    )
    parser.set_defaults(run=run)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return f"OTEL_BREAKER_{name.upper().removeprefix('OTEL_BREAKER_')}", value


def run(arguments: argparse.Namespace) -> int:
    """Play the demo."""
    missing = _missing(_CLIENTS)
    if missing:
        print(
            f"otel-breaker: the demo's agent uses {', '.join(_CLIENTS)}; not installed: {', '.join(missing)}. "
            "Try: pip install 'otel-breaker[demo]'",
            file=sys.stderr,
        )
        return 2
    # Loaded here: the other subcommands do without it.
    from .story import tell

    lacking = [name.partition(".")[0].replace("_", "-") for name in _missing(_SECOND_ACT)]
    return tell(sys.stdout, dict(arguments.settings), lacking=lacking, as_json=arguments.json)


def _missing(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not _found(name)]


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False
