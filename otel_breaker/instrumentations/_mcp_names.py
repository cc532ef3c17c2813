"""What an MCP server is called: by its host, or by the program that was started. Nothing else of it is told."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import PurePath
from typing import Final

_LAUNCHERS: Final = re.compile(r"(python[\d.]*w?|node|npx|bunx?|deno|uvx?|pipx)(?:\.exe|\.cmd)?", re.IGNORECASE)
"""Programs that run another one, which their arguments name."""
_WITH_VALUE: Final = {
    "-W", "-X", "-r", "-p", "-C", "--require", "--import", "--loader", "--experimental-loader", "--conditions",
    "--env-file", "--package", "--directory", "--project", "--with", "--with-requirements", "--with-editable",
    "--python", "--from", "--extra", "--group", "--index", "--index-url", "--default-index", "--extra-index-url",
    "--find-links", "--config", "--config-file", "--import-map", "--spec", "--pip-args", "--workspace", "--cache-dir",
    "--color", "--cwd",
}  # fmt: skip
"""Options of launchers whose value is the next argument, as their ``--help`` has them (November 2026)."""
_PROGRAM_TEXTS: Final = frozenset({"-c", "-e", "-p", "--eval", "--print", "--call"})
_VERBS: Final = frozenset({"run", "tool", "exec", "x", "eval"})
_PROGRAM: Final = re.compile(
    r"@?[A-Za-z0-9_.-]+(?:[/\\][A-Za-z0-9_.@-]+)*(?:@[A-Za-z0-9_.-]+)?|(?:[A-Za-z]:)?[/\\][A-Za-z0-9_./\\@ -]+"
)


def program(command: str, args: list[str]) -> str:
    """The server's program: that of the command, or the one that a launcher (python, npx, uvx ...) is told to run."""
    name = _last(command) or "unknown"
    launcher = _LAUNCHERS.fullmatch(name)
    if launcher is None:
        return name
    texts = _PROGRAM_TEXTS - ({"-p"} if launcher[1].lower() != "node" else set())
    skip = False
    for arg in args:
        if skip:
            skip = False
        elif arg in texts:  # what follows is a program, not the name of one
            return name
        elif arg.startswith("-"):
            skip = arg in _WITH_VALUE
        elif arg not in _VERBS:
            found = re.sub(r"(?<=.)@[\w.-]*$|\.(?:py|[cm]?js|ts)$", "", _last(arg)) if _PROGRAM.fullmatch(arg) else ""
            return found or name
    return name


def _last(path: str) -> str:
    return PurePath(path.replace("\\", "/")).name


def digest(text: str) -> str:
    """Tells servers of one name apart, the same in every process."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
