"""The demo from start to end: the same agent, the same vendor, the same outage, twice."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TextIO

from . import report
from .checks import Evidence, checks
from .driver import AGENT, AgentDiedError, Run, play
from .live import Live
from .receiver import Receiver
from .screen import Screen
from .script import COOLDOWN, STEPS
from .vendor import Vendor

_SWITCH: Final = {
    "OTEL_BREAKER_ENABLED": "true",
    "OTEL_BREAKER_COOLDOWN": f"{COOLDOWN}s",
    "OTEL_BREAKER_COOLDOWN_STEPS": ",".join(map(str, STEPS)),
}
_EXPORT: Final = {
    # Only to see it live: by default metrics leave every 15 s, spans and logs every few seconds.
    "OTEL_SERVICE_NAME": "payments-agent",
    "OTEL_METRIC_EXPORT_INTERVAL": "250",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "OTEL_BLRP_SCHEDULE_DELAY": "100",
}


def tell(stream: TextIO, settings: Mapping[str, str]) -> int:
    """Play both runs and report.

    Args:
        stream: where to print.
        settings: more environment for the second run.

    Returns:
        The exit status: 0 if every promise was kept, else 1.
    """
    screen = Screen(stream)
    screen.line("otel-breaker demo: one agent, one payment vendor, one outage, twice", "bold")
    screen.line()
    lines = len(AGENT.read_text().splitlines())
    screen.wrapped(
        f"agent.py, {lines} lines that know nothing of circuit breakers: a tool loop, a scripted model, tools over "
        "requests, httpx and httpx2, a timeout of 0.6 s, two tries; failures go to the model as str(exception). "
        "otel-breaker is installed for both runs and switched on, from outside, for the second.",
        10,
        first="  agent",
    )
    try:
        with tempfile.TemporaryDirectory(prefix="otel-breaker-demo-") as folder, Receiver() as receiver:
            plain = _run(screen, Path(folder), "1 of 2: without", {}, None)
            extra = {**_SWITCH, **settings, **receiver.environment()}
            guarded = _run(screen, Path(folder), "2 of 2: the same program with circuit breakers", extra, receiver)
            return _conclude(screen, Evidence(plain, guarded, receiver))
    except AgentDiedError as error:
        screen.line(f"FAILED  {error}", "red")
        return 1
    except KeyboardInterrupt:
        screen.line()
        return 130


def _run(screen: Screen, folder: Path, title: str, extra: Mapping[str, str], receiver: Receiver | None) -> Run:
    vendor = Vendor()
    vendor.start()
    try:
        screen.heading(title)
        screen.wrapped(
            " ".join([*(f"{name}={value}" for name, value in extra.items()), "python agent.py"]), 2, first="$"
        )
        screen.line()
        live = Live(screen, receiver)
        environment = {**extra, **(_EXPORT if receiver else {})}
        return play(vendor, folder, environment, before=live.before, after=live.after, meanwhile=live.meanwhile)
    finally:
        vendor.stop()


def _conclude(screen: Screen, evidence: Evidence) -> int:
    report.comparison(screen, evidence)
    report.received(screen, evidence.receiver)
    broken = report.promises(screen, checks(evidence))
    if broken and evidence.guarded.complaints:
        screen.line()
        screen.line("The agent's stderr in the second run:", "dim")
        screen.line(evidence.guarded.complaints.strip())
    screen.line()
    if broken:
        screen.line(f"{broken} of the promised effects did not happen.", "bold", "red")
        return 1
    screen.line("Every promised effect happened.", "bold", "green")
    return 0
