"""`make stack`: an agent's vendor goes down, a person is paged, the vendor comes back, the page resolves.

All from real servers. Cooldowns, exports and evaluations are shortened to seconds; everything else is as committed.
Nothing is left running.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from otel_breaker.cli.demo import driver
from otel_breaker.cli.demo.vendor import Vendor

from . import stack
from .pagerduty import Event, PagerDuty, line

SETTINGS: Final = {
    "OTEL_BREAKER_ENABLED": "true",
    "OTEL_BREAKER_COOLDOWN": "2s",
    "OTEL_BREAKER_COOLDOWN_STEPS": "1",
    "OTEL_SERVICE_NAME": "payments-agent",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=production",
}
LIMIT: Final = 60.0
"""Seconds after which a step that did not happen is a failure."""


class _Clock:
    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def hear(self, event: Event) -> None:
        self.say(line(event))


class _Agent:
    """The demo's agent: no code of ours in it. It is asked twice a second while somebody waits."""

    def __init__(self, vendor: Vendor, room: Path, variables: dict[str, str]) -> None:
        program = room / "agent.py"
        program.write_bytes(driver.AGENT.read_bytes())
        self._log = (room / "agent.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, cwd=room,
            env=driver.environment(vendor, variables), text=True,
        )  # fmt: skip

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Work until ``condition()`` holds."""
        assert self._process.stdin is not None
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end:
                raise SystemExit(f"did not happen within {LIMIT:.0f} s: {what}")
            self._process.stdin.write("refund ch_1\n")
            self._process.stdin.flush()
            time.sleep(0.5)

    def __enter__(self) -> _Agent:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._log.close()


def main() -> None:
    """Show it."""
    clock = _Clock()
    with tempfile.TemporaryDirectory(prefix="otel-breaker-stack-") as folder, PagerDuty(echo=clock.hear) as pager:
        room = Path(folder)
        vendor = Vendor()
        vendor.start()
        clock.say("starting Alertmanager, Prometheus and the Collector")
        try:
            with stack.Stack(room, pager=pager) as whole:
                for server in whole.servers:
                    clock.say(f"{server.name} is ready, process {server.process.pid if server.process else None}")
                with _Agent(vendor, room, whole.environment(**SETTINGS)) as agent:
                    _outage(clock, vendor, whole, agent)
        finally:
            vendor.stop()
    clock.say("everything that was started has been stopped")


def _outage(clock: _Clock, vendor: Vendor, whole: stack.Stack, agent: _Agent) -> None:
    def is_in(state: str) -> bool:
        return any(s.value for s in whole.prometheus.query(f'otel_breaker_status{{otel_breaker_state="{state}"}}'))

    agent.until(lambda: is_in("closed"), "the agent's circuit in Prometheus")
    clock.say(f"the agent works; its circuit for {vendor.address} is closed")
    vendor.behaviour = "breaks"
    clock.say("the vendor goes down")
    agent.until(lambda: is_in("open"), "the circuit opens")
    clock.say("the circuit is open: the agent is answered at once, the vendor is left alone")
    agent.until(lambda: whole.pager.opened, "a page after two cooldowns")
    vendor.behaviour = "answers"
    clock.say("the vendor is back")
    agent.until(lambda: is_in("closed"), "the circuit closes")
    clock.say("a probe succeeded, the circuit is closed")
    agent.until(lambda: not whole.pager.opened, "the page resolves")


if __name__ == "__main__":
    try:
        main()
    except stack.MissingTool as missing:
        raise SystemExit(str(missing)) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
