"""Draws timeline.svg, and the table of docs/how-it-decides.md, from a run of the pure machine.

    python docs/img/timeline.py            writes timeline.svg beside this file
    python docs/img/timeline.py --table    prints the table

Every mark is what `otel_breaker.core.machine.step` returned under the default policy; only the vendor is made up.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from otel_breaker.core.events import Acquire, Admitted, Effect, Moved, Refused, Settle
from otel_breaker.core.machine import step
from otel_breaker.core.moves import fresh
from otel_breaker.core.policy import Policy
from otel_breaker.core.states import CLOSED, HALF_OPEN, OPEN, State
from otel_breaker.core.views import view
from otel_breaker.outcomes import FAILURE, OK, Outcome

FILE: Final = Path(__file__).with_name("timeline.svg")

EVERY: Final = 10
"""Seconds between two calls of the agent."""
DOWN: Final = 40
UP: Final = 300
"""When the vendor stops answering, and when it is back."""
END: Final = 560
TIMEOUT: Final = 5
"""Seconds that a call to the dead vendor takes."""
ANSWER: Final = 1
"""Seconds that a call to the living vendor takes."""
PAGE: Final = 2
"""The page rule's threshold on cooldowns_elapsed."""


@dataclass
class Run:
    """What happened."""

    calls: list[tuple[int, str, bool]] = field(default_factory=list)
    """(when, success | failure | refused, probe)"""
    moves: list[Moved] = field(default_factory=list)
    elapsed: list[tuple[int, int]] = field(default_factory=list)
    """(since when, cooldowns_elapsed)"""

    def requests_while_down(self) -> int:
        """Requests that reached the dead vendor."""
        return sum(1 for at, how, _ in self.calls if how != "refused" and DOWN <= at < UP)


def play() -> Run:
    """One agent, one circuit, one outage."""
    policy = Policy()
    state: State = fresh(policy)
    run = Run()
    pending: tuple[int, int, Outcome] | None = None  # (when it ends, permit, how)
    for now in range(END + 1):
        if pending is not None and pending[0] == now:
            state, effects = step(state, Settle(pending[1], pending[2]), policy, now)
            pending = None
            run.moves += _moves(effects)
        if now % EVERY == 0 and now < END:
            state, effects = step(state, Acquire(timeout=TIMEOUT), policy, now)
            run.moves += _moves(effects)
            verdict = next(e for e in reversed(effects) if isinstance(e, (Admitted, Refused)))
            if isinstance(verdict, Refused):
                run.calls.append((now, "refused", False))
            else:
                down = DOWN <= now < UP
                outcome = Outcome(FAILURE, "read_timeout") if down else OK
                run.calls.append((now, outcome.kind, verdict.probe))
                pending = (now + (TIMEOUT if down else ANSWER), verdict.id, outcome)
        count = view("vendor", state, policy, now).cooldowns_elapsed
        if not run.elapsed or run.elapsed[-1][1] != count:
            run.elapsed.append((now, count))
    return run


def _moves(effects: tuple[Effect, ...]) -> list[Moved]:
    return [effect for effect in effects if isinstance(effect, Moved)]


def clock(seconds: float) -> str:
    """``m:ss``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


# --- the table --------------------------------------------------------------------------------------------------------


def table(run: Run) -> str:
    """The run as a Markdown table."""
    rows = ["| time | what happens | state | cooldown |", "|---|---|---|---|"]
    first = next(at for at, how, _ in run.calls if how == "failure")
    rows.append(f"| {clock(first)} | the vendor stops answering; the first call times out | closed | |")
    probes = {at: how for at, how, probe in run.calls if probe}
    for before, move in zip([None, *run.moves[:-1]], run.moves, strict=True):
        if move.state == OPEN:
            what = (
                f"failure {move.failures} in a row: open"
                if move.previous_state == CLOSED
                else f"the probe failed ({move.failures} failures by now): one step up the ladder"
            )
            rows.append(f"| {clock(move.at)} | {what} | open | {move.cooldown:g} s |")
        elif move.state == HALF_OPEN:
            assert before is not None
            refused = sum(1 for at, how, _ in run.calls if how == "refused" and before.at <= at < move.at)
            how = "times out" if probes[int(move.at)] == "failure" else "is answered"
            rows.append(
                f"| {clock(move.at)} | {refused} calls refused since; this one is the probe, it {how} | half_open | |"
            )
        else:
            rows.append(f"| {clock(move.at)} | the probe succeeded: everything at zero again | closed | |")
        for at, count in run.elapsed:
            following = next((m.at for m in run.moves if m.at > move.at), END)
            if count and move.at < at <= following:
                page = ", the page threshold" if count == PAGE else ""
                rows.append(f"| {clock(at)} | a cooldown ran out, `cooldowns_elapsed` is {count}{page} | open | |")
    return "\n".join(rows)


# --- the picture ------------------------------------------------------------------------------------------------------

LEFT: Final = 118
RIGHT: Final = 882
WIDTH: Final = 900
HEIGHT: Final = 318

STYLE: Final = """
    .card { fill: #ffffff; stroke: #d0d7de; }
    .ink { fill: #1f2328; } .soft { fill: #59636e; } .line { stroke: #d0d7de; }
    .closed { fill: #2da44e; } .open { fill: #cf222e; } .half { fill: #bf8700; }
    .ok { fill: #1a7f37; } .bad { stroke: #cf222e; } .no { stroke: #6e7781; fill: none; }
    .probe { stroke: #9a6700; fill: none; } .step { stroke: #0969da; fill: none; } .page { fill: #cf222e; }
    .on { fill: #ffffff; }
    text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
    .head { font-size: 14px; font-weight: 600; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #3d444d; }
      .ink { fill: #f0f6fc; } .soft { fill: #9198a1; } .line { stroke: #3d444d; }
      .closed { fill: #238636; } .open { fill: #b62324; } .half { fill: #9e6a03; }
      .ok { fill: #3fb950; } .bad { stroke: #f85149; } .no { stroke: #9198a1; }
      .probe { stroke: #d29922; } .step { stroke: #4493f8; } .page { fill: #f85149; }
    }
"""


def x(seconds: float) -> str:
    """Where a moment lies."""
    return f"{LEFT + (RIGHT - LEFT) * seconds / END:.1f}"


def svg(run: Run) -> str:
    """The whole picture."""
    total = sum(1 for at, _, _ in run.calls if DOWN <= at < UP)
    with_breaker = run.requests_while_down()
    words = f"One call every {EVERY} s. The vendor is down from {clock(DOWN)} to {clock(UP)}. Default policy."
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d">',
        '  <title id="t">A circuit through one outage</title>',
        f'  <desc id="d">{words} {_spoken(run)}</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
        f'  <text class="ink head" x="20" y="28">{words}</text>',
        *_label(66, "vendor"),
        *_band(0, DOWN, 52, "closed", "up"),
        *_band(DOWN, UP, 52, "open", "down"),
        *_band(UP, END, 52, "closed", "up"),
        *_label(108, "circuit"),
        *_states(run),
        *_label(147, "calls"),
        *_calls(run),
        *_label(200, "cooldowns_", "elapsed"),
        *_elapsed(run),
        *_axis(),
        *_legend(with_breaker, total),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _spoken(run: Run) -> str:
    return " ".join(
        f"{clock(m.at)} {m.previous_state} to {m.state}" + (f", {m.cooldown:g} s." if m.state == OPEN else ".")
        for m in run.moves
    )


def _label(y: int, *lines: str) -> list[str]:
    return [f'  <text class="soft" x="20" y="{y + 14 * n}">{line}</text>' for n, line in enumerate(lines)]


def _band(start: float, end: float, y: int, kind: str, text: str) -> list[str]:
    wide = float(x(end)) - float(x(start))
    made = [f'  <rect class="{kind}" x="{x(start)}" y="{y}" width="{wide:.1f}" height="22"/>']
    if text and wide > 6.2 * len(text):
        middle = float(x(start)) + wide / 2
        made.append(f'  <text class="on" x="{middle:.1f}" y="{y + 15}" text-anchor="middle">{text}</text>')
    return made


def _states(run: Run) -> list[str]:
    kinds = {CLOSED: "closed", OPEN: "open", HALF_OPEN: "half"}
    spans: list[tuple[float, str, float]] = [(0, CLOSED, 0.0), *((m.at, m.state, m.cooldown) for m in run.moves)]
    made = []
    for (start, state, cooldown), (end, *_) in pairwise([*spans, (END, "", 0.0)]):
        text = {CLOSED: "closed", OPEN: f"open, {cooldown:g} s", HALF_OPEN: ""}[state]
        if state == OPEN and (end - start) < 60:
            text = f"{cooldown:g} s"
        made += _band(start, end, 94, kinds[state], text)
    return made


def _calls(run: Run) -> list[str]:
    made = []
    for at, how, probe in run.calls:
        here, y = float(x(at)), 143
        if how == "success":
            made.append(f'  <circle class="ok" cx="{here:.1f}" cy="{y}" r="3.5"/>')
        elif how == "failure":
            made.append(f'  <path class="bad" stroke-width="2" d="M{here - 3.5:.1f} {y - 3.5}l7 7m0 -7l-7 7"/>')
        else:
            made.append(f'  <circle class="no" cx="{here:.1f}" cy="{y}" r="2.5"/>')
        if probe:
            made.append(f'  <circle class="probe" stroke-width="1.5" cx="{here:.1f}" cy="{y}" r="8"/>')
    return made


def _elapsed(run: Run) -> list[str]:
    base, height = 226, 16
    path = f"M{x(0)} {base}"
    marks = []
    for at, count in run.elapsed[1:]:
        path += f"H{x(at)}V{base - height * count}"
        if count:
            right, top = float(x(at)), base - height * count - 4
            marks.append(f'  <text class="ink" x="{right + 4:.1f}" y="{top}">{count}</text>')
            if count == PAGE:
                marks.append(f'  <text class="page" x="{right + 18:.1f}" y="{top}">page threshold, {clock(at)}</text>')
    return [f'  <path class="step" stroke-width="2" d="{path}H{x(END)}"/>', *marks]


def _axis() -> list[str]:
    made = [f'  <path class="line" d="M{x(0)} 240H{x(END)}"/>']
    for at in range(0, END, 60):
        made.append(f'  <path class="line" d="M{x(at)} 240v5"/>')
        made.append(f'  <text class="soft" x="{x(at)}" y="258" text-anchor="middle">{clock(at)}</text>')
    return made


def _legend(with_breaker: int, total: int) -> list[str]:
    y = 284
    counted = f"Requests that reached the vendor while it was down: {with_breaker}; without a breaker: {total}."
    return [
        f'  <circle class="ok" cx="24" cy="{y - 4}" r="3.5"/><text class="soft" x="34" y="{y}">answered</text>',
        f'  <path class="bad" stroke-width="2" d="M112 {y - 7.5}l7 7m0 -7l-7 7"/>',
        f'  <text class="soft" x="126" y="{y}">failed</text>',
        f'  <circle class="no" cx="184" cy="{y - 4}" r="2.5"/><text class="soft" x="194" y="{y}">refused</text>',
        f'  <circle class="probe" stroke-width="1.5" cx="262" cy="{y - 4}" r="8"/>',
        f'  <text class="soft" x="276" y="{y}">probe (half_open)</text>',
        f'  <text class="ink" x="20" y="{y + 20}">{counted}</text>',
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["--table"]:
        sys.stdout.write(table(play()) + "\n")
    else:
        FILE.write_text(svg(play()), encoding="utf-8")
