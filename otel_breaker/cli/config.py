"""`otel-breaker config check FILE`: is this settings file valid?"""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("config", help="check a settings file", description="Work with settings files.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="say whether a file is valid",
        description="Exit status 0: valid; 1: not, with one line that names the key and what is allowed.",
    )
    check.add_argument("file", metavar="FILE", help="a settings file, such as otel-breaker.yaml")
    check.add_argument("--json", action="store_true", help="print one JSON document")
    check.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the file."""
    # Loaded here: the other subcommands do without it.
    import json

    from otel_breaker.settings import SettingsError, load_file

    error: str | None = None
    try:
        load_file(arguments.file)
    except SettingsError as fault:
        error = str(fault)
    if arguments.json:
        print(json.dumps({"file": arguments.file, "valid": error is None, "error": error}))
    elif error is None:
        print(f"{arguments.file}: valid")
    else:
        print(f"otel-breaker: {error}", file=sys.stderr)
    return 0 if error is None else 1
