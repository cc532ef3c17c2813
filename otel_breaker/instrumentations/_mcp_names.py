"""What an MCP server is called: by its host, or by the program that was started. Nothing else of it is told."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import PurePath
from typing import Final

_LAUNCHERS: Final = re.compile(r"(?:python[\d.]*w?|node|npx|bunx?|deno|uvx?|pipx)(?:\.exe|\.cmd)?", re.IGNORECASE)
"""Programs that run another one, which their arguments name."""
_VERBS: Final = frozenset({"run", "tool", "exec", "x"})
_PROGRAM: Final = re.compile(r"@?[A-Za-z0-9_.-]+(?:[/\\][A-Za-z0-9_.@-]+)*|/[A-Za-z0-9_./@-]+")


def program(command: str, args: list[str]) -> str:
    """The server's program: that of the command, or the one that a launcher (python, npx, uvx ...) is told to run."""
    name = PurePath(command.replace("\\", "/")).name or "unknown"
    if not _LAUNCHERS.fullmatch(name):
        return name
    for arg in args:
        if arg in ("-c", "-e", "--eval"):  # a program text, not a name
            return name
        if arg.startswith("-") or arg in _VERBS:
            continue
        if not _PROGRAM.fullmatch(arg):
            return name
        found = PurePath(arg.replace("\\", "/")).name
        return re.sub(r"(?<=.)@[\w.-]*$|\.(?:py|[cm]?js|ts)$", "", found) or name
    return name


def digest(text: str) -> str:
    """Tells servers of one name apart, the same in every process."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
