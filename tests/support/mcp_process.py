"""The processes of `mcp_server`, as a test holds them: orders, counts, kill and restart."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support.faults import free_port

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))
PATIENCE = 20.0
"""Seconds that something may take which takes well under one."""

_ids = itertools.count()


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Poll until it holds; its value."""
    until = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < until, f"waited {PATIENCE} s for: {what}"
        time.sleep(0.005)
    return value


class Notes:
    """The directory through which a server takes orders and says what reached it."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mcp-server-"))
        self._rules: list[dict[str, Any]] = []
        self._from = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        shutil.rmtree(self.directory)

    # --- orders -------------------------------------------------------------------------------------------------------

    def fault(
        self,
        mode: str,
        *,
        on: str = "tools/call",
        tool: str | None = None,
        mark: str | None = None,
        times: int | None = None,
    ) -> None:
        """Answer so from now on.

        Args:
            mode: see `mcp_server`.
            on: the JSON-RPC method.
            tool: only calls of this tool.
            mark: only calls whose argument ``mark`` is this.
            times: that many requests, then no more; ``None``: until `heal`.
        """
        rule = {"id": str(next(_ids)), "mode": mode, "on": on, "tool": tool, "mark": mark, "times": times}
        self._rules.append(rule)
        self._write()

    def heal(self) -> None:
        """Forget all orders."""
        self._rules.clear()
        (self.directory / "released").unlink(missing_ok=True)
        self._write()

    def release(self) -> None:
        """Let go what is held."""
        (self.directory / "released").touch()

    def _write(self) -> None:
        part = self.directory / "rules.part"
        part.write_text(json.dumps(self._rules))
        part.replace(self.directory / "rules.json")

    # --- counts -------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> list[str]:
        """What arrived since `forget`: ``<method> <tool> <mark>``, or ``spawn <pid>``."""
        return [line.strip() for line in self._lines()[self._from :]]

    def _lines(self) -> list[str]:
        try:
            return (self.directory / "log").read_text().splitlines()
        except FileNotFoundError:
            return []

    def forget(self) -> None:
        """Count from 0 again."""
        self._from = len(self._lines())

    def count(self, *words: str) -> int:
        """Lines of the log that begin with these words."""
        return sum(line.split(" ")[: len(words)] == list(words) for line in self.log)

    @property
    def hits(self) -> int:
        """Tool calls that reached it."""
        return self.count("tools/call")

    @property
    def connects(self) -> int:
        """Sessions that were opened, or tried: by handshake, or by discovery."""
        return self.count("initialize") + self.count("server/discover")

    @property
    def spawns(self) -> int:
        """Processes started."""
        return self.count("spawn")

    def arrived(self, *words: str, times: int = 1) -> None:
        """Wait until that many such lines are in the log."""
        wait_until(lambda: self.count(*words) >= times, f"{times} of {words}; there are {self.log}")

    def kill(self) -> None:
        """End the newest process, and wait until it is gone."""
        pid = int([line for line in self._lines() if line.startswith("spawn ")][-1].split()[1])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: _gone(pid), f"the end of {pid}")


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError):  # a zombie, whose parent has not looked yet, serves nobody
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


class HttpServer(Notes):
    """A server on 127.0.0.1: ``http`` (streamable, answers as events), ``json`` (the same, as JSON) or ``sse``."""

    def __init__(self, kind: str = "http") -> None:
        super().__init__()
        self.kind = kind
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where a client connects."""
        return f"http://127.0.0.1:{self.port}/{'sse' if self.kind == 'sse' else 'mcp'}"

    @property
    def name(self) -> str:
        """The name of its circuit."""
        return f"mcp:127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/connections") as answer:
            return int(answer.read())

    def start(self) -> Self:
        """Start, or start again at the same port."""
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", PROGRAM, self.kind, str(self.directory), str(self.port)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._listens, "the server")
        return self

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the server ended"
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def wait(self) -> None:
        """Until the process has ended by itself."""
        if self.process is not None:
            self.process.wait(PATIENCE)
            self.process = None

    def kill(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.kill()
        self.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        super().__exit__()


class Command(Notes):
    """What the client starts.

    Attributes:
        command: the program.
        name: of its circuit.
        more: arguments that it does not look at.
        environment: variables that it does not look at.
    """

    command = ""
    name = ""

    def __init__(self) -> None:
        super().__init__()
        self.more: list[str] = []
        self.environment: dict[str, str] = {}

    @property
    def args(self) -> list[str]:
        """The arguments of `command`."""
        raise NotImplementedError


class StdioServer(Command):
    """A server on standard input and output."""

    name = "mcp:mcp_server"
    command = sys.executable

    @property
    def args(self) -> list[str]:
        return [PROGRAM, "stdio", str(self.directory), *self.more]


class DeadCommand(Command):
    """A command that notes that it was started and exits at once."""

    name = "mcp:sh"
    command = "/bin/sh"

    @property
    def args(self) -> list[str]:
        return ["-c", f"echo spawn $$ >> '{self.directory}/log'; exit 1", "sh", *self.more]
