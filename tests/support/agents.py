"""Agents of the page path: processes of `tool_loop.py` under OTEL_BREAKER_ENABLED, and the vendors that they call."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .faults import Reply, Script
from .python import environment

PROGRAM = Path(__file__).with_name("tool_loop.py")
QUICK = {
    "OTEL_BREAKER_COOLDOWN": "3s",
    "OTEL_BREAKER_COOLDOWN_STEPS": "1,2",
    "OTEL_BSP_SCHEDULE_DELAY": "500",
    "OTEL_BLRP_SCHEDULE_DELAY": "500",
}
"""Cooldowns of 3 s and 6 s, and telemetry that leaves every half second."""


class Vendor(Script):
    """A server on loopback that is up until it is told to be down; ``requests`` are those that reached it."""

    def down(self, fault: str | None = None, status: int = 503) -> None:
        """Answer with this status from now on, or break the connection in this way."""
        self.default = Reply(status, b"{}", fault=fault, left=None)

    def __enter__(self) -> Vendor:
        return self

    def back(self) -> None:
        """Answer 200 again."""
        self.default = Reply(200, b'{"ok": true}', left=None)


class Agent:
    """One program, perhaps of several processes.

    Args:
        room: where its folder goes.
        service: ``service.name``, and the name of the folder.
        arguments: of the program: options and URLs.
        variables: its environment beside this process's own; begin with `stack.Stack.environment`.
        deployment: ``deployment.environment.name``; empty is unset.
        namespace: ``service.namespace``; empty is unset.
    """

    def __init__(
        self,
        room: Path,
        service: str,
        *arguments: str,
        variables: Mapping[str, str],
        deployment: str = "production",
        namespace: str = "shop",
    ) -> None:
        self.service = service
        self.room = room / service
        self.room.mkdir(parents=True)
        (self.room / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
        resource = {
            "service.name": service,
            "service.namespace": namespace,
            "deployment.environment.name": deployment,
        }
        said = {
            "OTEL_RESOURCE_ATTRIBUTES": ",".join(f"{key}={value}" for key, value in resource.items() if value),
            "OTEL_BREAKER_ENABLED": "true",
            **QUICK,
            **variables,
        }
        with (self.room / "stdout").open("wb") as out, (self.room / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, PROGRAM.name, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                cwd=self.room, env=environment(**said), start_new_session=True,
            )  # fmt: skip

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Its calls so far, of all its processes."""
        return [json.loads(line) for line in (self.room / "stdout").read_text().splitlines()]

    @property
    def refusals(self) -> list[dict[str, Any]]:
        """The calls that were refused."""
        return [step for step in self.steps if step["told"].startswith("{")]

    @property
    def complaints(self) -> str:
        """What it wrote to stderr."""
        return (self.room / "stderr").read_text()

    def kill(self) -> None:
        """End all its processes without a warning."""
        self._signal(signal.SIGKILL)

    def stop(self, seconds: float = 10.0) -> None:
        """Ask it to end, so that it exports what it has."""
        self._signal(signal.SIGTERM, seconds)
        self.kill()

    def _signal(self, how: signal.Signals, seconds: float = 10.0) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if isinstance(error, Exception):
            print(f"--- {self.service}: {len(self.steps)} calls\n{self.complaints}", file=sys.stderr)
