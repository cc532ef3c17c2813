"""The `otel-breaker` command.

A subcommand is one module or package here with `add(subparsers)`, which sets `run=run`, a function of the parsed
arguments that returns the exit status. Exit status: 0 fine, 1 a check failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

from otel_breaker._version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="otel-breaker", description="Circuit breakers for the tools of AI agents, with OpenTelemetry."
    )
    parser.add_argument("--version", action="version", version=f"otel-breaker {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        command = importlib.import_module(f"{__name__}.{name}")
        if hasattr(command, "add"):
            command.add(subparsers)
    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 1
    return status
