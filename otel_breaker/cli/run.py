"""`otel-breaker run -- COMMAND`: the command with breakers switched on."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import Any, Final

from otel_breaker._settings_values import flag
from otel_breaker._startup import VARIABLE

_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126


def add(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="run a command with breakers switched on",
        description=f"Replaces itself with COMMAND, with {VARIABLE}=true. {VARIABLE}=false in the environment stays.",
        usage="otel-breaker run [-h] -- COMMAND ...",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Become the command; returns only if that is not possible."""
    command: list[str] = arguments.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        arguments.parser.error("a command is missing, such as: otel-breaker run -- python agent.py")
    found = shutil.which(command[0])
    if found is None:
        return _failed(f"command not found: {command[0]}", _NOT_FOUND)
    environment = dict(os.environ)
    if _switched_off(environment):
        sys.stderr.write(f"otel-breaker: {VARIABLE}=false is set: runs without breakers\n")
    else:
        environment[VARIABLE] = "true"
    sys.stdout.flush()
    try:
        os.execve(found, command, environment)
    except OSError as error:
        return _failed(f"cannot run {command[0]}: {error.strerror}", _NOT_EXECUTABLE)


def _switched_off(environment: dict[str, str]) -> bool:
    try:
        return not flag(environment.get(VARIABLE, "").strip() or True)
    except ValueError:
        return False


def _failed(text: str, status: int) -> int:
    sys.stderr.write(f"otel-breaker: {text}\n")
    return status
