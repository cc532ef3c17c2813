"""Reached from `otel_breaker.pth` and `otel_breaker.start` when an interpreter starts.

Everything here is cheap until `OTEL_BREAKER_ENABLED` is set: every Python of the machine passes through it. The
`.pth` file asks for the variable before it loads this; the `.start` file, which takes its place from 3.15 on, cannot.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

VARIABLE: Final = "OTEL_BREAKER_ENABLED"

_MODULES: Final = frozenset({"pip", "uv", "venv", "ensurepip", "virtualenv"})
_EXACT_MODULES: Final = frozenset(
    {"otel_breaker", "otel_breaker.cli", "opentelemetry.instrumentation.auto_instrumentation"}
)
# opentelemetry-instrument replaces itself with the program, which then is a process of its own.
_SCRIPTS: Final = (
    r"(?:(?:pip|uv|uvx|virtualenv)[0-9.]*|otel-breaker|opentelemetry-(?:instrument|bootstrap)"
    r"|__pip-runner__\.py|_in_process\.py)(?:\.exe)?"
)
_CODE: Final = r"multiprocessing\.resource_tracker|get_interpreter_info|\bensurepip\b|run_module\([\"']pip[\"']"

_done = False


def init() -> None:
    """Switch the breakers on if the environment says so. Never raises; does its work once.

    Python before 3.15 runs `.pth` files twice in a virtual environment.
    """
    global _done
    if _done or not os.environ.get(VARIABLE, "").strip():
        return
    _done = True
    try:
        _activate()
    except Exception as error:
        complain(error)


def bystander(argv: Sequence[str] | None = None) -> bool:
    """Whether this process is no agent: it installs packages, makes environments, tracks resources, is our own CLI."""
    import re

    kind, text = _program(sys.orig_argv if argv is None else argv)
    if kind == "module":
        top = text.partition(".")[0]
        return top in _MODULES or text in _EXACT_MODULES
    if kind == "code":
        return re.search(_CODE, text) is not None
    folder, name = os.path.split(text.rstrip("/\\"))
    if name == "__main__.py":  # python site-packages/pip/__main__.py
        return os.path.basename(folder) in _MODULES
    return re.fullmatch(_SCRIPTS, name.lower()) is not None


def _program(argv: Sequence[str]) -> tuple[str, str]:
    """What the interpreter was told to run: ``script``, ``module`` or ``code``, and its text."""
    rest = iter(argv[1:])
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            return "script", argument
        if argument.startswith("--"):
            if argument == "--check-hash-based-pycs":
                next(rest, None)
            continue
        for place, letter in enumerate(argument[1:], 2):
            if letter in "cmWX":
                value = argument[place:] or next(rest, "")
                if letter in "cm":
                    return ("code" if letter == "c" else "module"), value
                break
    return "script", ""


def _activate() -> None:
    if bystander():
        return
    from ._settings_values import flag

    try:
        if not flag(os.environ[VARIABLE]):
            return
    except ValueError:
        pass  # activate() reports it, with every other setting
    from . import _waiting

    _waiting.begin()


def complain(error: Exception) -> None:
    """One line on stderr: logging may not be there yet."""
    if sys.stderr is not None:
        sys.stderr.write(f"otel_breaker stays off: {type(error).__name__}: {error}\n")
