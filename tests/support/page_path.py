"""The page path, shown: ``python -m tests.support.page_path [--keep]``, or ``make stack``.

Starts a Collector, Prometheus, Alertmanager and a stand-in for PagerDuty on loopback, and an agent whose vendor goes
down and comes back. Tells what happens, second by second, and stops all that it started. Exit status: 0 if the page
came and was resolved, 1 if not, 2 if a program is missing, 130 after Ctrl-C before that.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from otel_breaker.cli.demo.receiver import Receiver

from . import stack
from .agents import Agent, Vendor
from .pagerduty import Event, PagerDuty

SERVICE = "planner"
COOLDOWN = 10
"""Seconds; the second one is twice that."""
LIMIT = 60.0
"""Seconds that a step may take beside the cooldowns."""


class FailedError(Exception):
    """It did not go as it must."""


class Teller:
    """Writes lines with the seconds since the outage began, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.began: float | None = None

    def say(self, text: str) -> None:
        """One line; what follows the first is set under it."""
        first, *more = text.splitlines()
        clock = "" if self.began is None else f"{time.monotonic() - self.began:5.1f} s"
        with self._lock:
            print(f"{clock:>8}  {first}", flush=True)
            for line in more:
                for part in textwrap.wrap(line, 100, break_long_words=False, break_on_hyphens=False):
                    print(f"{'':10}{part}", flush=True)

    def incident(self, event: Event) -> None:
        """What the pager got."""
        if event.action == "resolve":
            self.say(f"RESOLVED at the pager, with the same key: {event.payload['summary']}")
            return
        details = event.payload["custom_details"]
        self.say(
            f"PAGE at the pager, {event.payload['severity']}: {event.payload['summary']}\n"
            f"why:     {details['reason']}\n"
            + "\n".join(f"firing:  {line}" for line in details["firing"].splitlines())
            + f"\nrunbook: {details['runbook']}\nkey:     {event.dedup_key}"
        )


class Watch:
    """Tells the circuit's transitions and cooldowns as they arrive behind the Collector."""

    def __init__(self, teller: Teller, path: stack.Stack, onward: Receiver, limit: float) -> None:
        self._teller, self._path, self._onward, self._limit = teller, path, onward, limit
        self._told = 0
        self._cooldowns = 0.0

    def look(self) -> None:
        """Tell what is new."""
        moves = sorted(self._onward.events("otel_breaker.state.changed"), key=lambda log: log.at)
        for move in moves[self._told :]:
            before, now, reason = (
                move.attributes[f"otel_breaker.{key}"] for key in ("previous_state", "state", "reason")
            )
            self._teller.say(f"circuit {move.attributes['otel_breaker.name']}: {before} -> {now} ({reason})")
        self._told = len(moves)
        elapsed = self.cooldowns()
        if elapsed > self._cooldowns:
            crossed = ", past two: the rule fires" if elapsed >= 2 > self._cooldowns else ""
            self._teller.say(f"cooldowns elapsed: {elapsed:.0f}{crossed}")
        self._cooldowns = elapsed

    def cooldowns(self) -> float:
        """The newest value in Prometheus."""
        found = self._path.prometheus.query(f'otel_breaker_cooldowns_elapsed{{service_name="{SERVICE}"}}')
        return max((one.value for one in found), default=0.0)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Look until it holds."""

        def step() -> Any:
            self.look()
            return condition()

        if not stack.wait_until(step, self._limit, 0.25):
            raise FailedError(f"{what} never came")


def play(room: Path, cooldown: int, keep: bool) -> None:
    """The whole outage."""
    teller = Teller()
    teller.say("starting a Collector, Prometheus, Alertmanager and a stand-in for PagerDuty")
    with (
        Receiver() as onward,
        Vendor() as vendor,
        PagerDuty(echo=teller.incident) as pager,
        stack.Stack(room, onward.endpoint, group_wait="3s", pager=pager) as path,
    ):
        teller.say(
            "ready\n"
            f"Prometheus:    {path.prometheus.url}/alerts\n"
            f"Alertmanager:  http://{path.alertmanager.address}\n"
            f"your agents:   OTEL_EXPORTER_OTLP_ENDPOINT={path.collector.endpoint}\n"
            f"Cooldowns are {cooldown} s and {2 * cooldown} s here, and rules are evaluated every second. "
            "By default they are 30 s and 60 s, and 15 s."
        )
        settings = {"OTEL_BREAKER_COOLDOWN": f"{cooldown}s", "OTEL_BREAKER_COOLDOWN_STEPS": "1,2"}
        with Agent(room, SERVICE, vendor.url("/v1/charges"), variables=path.environment(**settings)) as agent:
            watch = Watch(teller, path, onward, LIMIT + 3 * cooldown)
            watch.until(
                lambda: path.prometheus.query("otel_breaker_cooldowns_elapsed"), "the agent's circuit is reported"
            )
            teller.say(f"agent {SERVICE} calls {vendor.host}, five times a second; all is well")
            teller.began = time.monotonic()
            vendor.down()
            reached = vendor.hits
            teller.say("the vendor goes down: 503")
            watch.until(lambda: pager.opened, "a page")
            refused = len(agent.refusals)
            teller.say(
                f"so far {vendor.hits - reached} calls reached the dead vendor, {refused} were refused in the process"
            )
            vendor.back()
            teller.say("the vendor is back; the next probe will find out")
            watch.until(lambda: not pager.opened, "its resolve")
            watch.until(lambda: watch.cooldowns() == 0, "a closed circuit")
            if len(pager.incidents) != 1 or pager.refused or pager.strays:
                raise FailedError(f"not exactly one incident: {[event.body for event in pager.events]}")
            teller.say("one outage, one incident, one resolve")
            if keep:
                teller.say("all of it is kept running until Ctrl-C")
                with contextlib.suppress(KeyboardInterrupt):
                    while True:
                        watch.look()
                        time.sleep(0.5)
                teller.say("stopping")


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second one must not interrupt the stopping.
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="make stack", description="The page path on loopback, from outage to resolve."
    )
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    parser.add_argument("--cooldown", type=int, default=COOLDOWN, help="seconds of the first cooldown (default: 10)")
    chosen = parser.parse_args(arguments)
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="otel-breaker-stack-") as room:
            play(Path(room), chosen.cooldown, chosen.keep)
    except KeyboardInterrupt:
        print("stopped", flush=True)
        return 130
    except stack.MissingTool as missing:
        print(missing, file=sys.stderr)
        return 2
    except FailedError as failed:
        print(f"FAILED: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
