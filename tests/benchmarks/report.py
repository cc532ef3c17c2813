"""Ratios from one run, each beside its target."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any, NamedTuple

from .measure import Result

PEER = "circuitbreaker"
"""The fastest peer; it has no metrics. The targets are against it."""
CLIENTS = ("requests", "httpx", "httpx async", "httpx2", "httpx2 async")


class Row(NamedTuple):
    """One ratio (or number), and its target if it has one."""

    what: str
    value: float
    unit: str
    target: float | None = None

    @property
    def verdict(self) -> str:
        """``met``, ``missed``, or nothing."""
        if self.target is None:
            return ""
        return "met" if round(self.value, 2) <= self.target else "missed"


def rows(best: dict[str, float], weights: dict[str, float]) -> list[Row]:
    """The table. Peers that are not there give no rows."""
    found: list[Row] = []

    def add(what: str, above: str | float, below: str | float, target: float | None = None, unit: str = "x") -> None:
        try:
            top = best[above] if isinstance(above, str) else above
            found.append(Row(what, top / (best[below] if isinstance(below, str) else below), unit, target))
        except KeyError:
            pass

    add(f"closed, `def`: guard to {PEER}", "closed: guard", f"closed: {PEER}", 1.0)
    add(f"closed, `async def`: guard to {PEER}", "closed async: guard", f"closed async: {PEER}", 1.0)
    add(f"refusal by raise: guard to {PEER}", "open: guard, by raise", f"open: {PEER}", 1.0)
    add(f"refusal by answer: guard to {PEER}", "open: guard, by answer", f"open: {PEER}", 1.0)
    add(f"refusal by raise, `async def`: guard to {PEER}", "open async: guard, by raise", f"open async: {PEER}", 1.0)
    add(f"refusal by answer, `async def`: guard to {PEER}", "open async: guard, by answer", f"open async: {PEER}", 1.0)
    add("8 threads to 1 thread: guard", "8 threads: guard", "1 thread: guard", 1.2)
    add(f"8 threads to 1 thread: {PEER}", f"8 threads: {PEER}", f"1 thread: {PEER}")
    event = best["in a span: add_event"] - best["in a span: bare call"]
    add("in a recording span, what it costs more, to one add_event", best["in a span: guard"] - best["closed: guard"],
        event, 1.3)  # fmt: skip
    add("with a span of its own, what it costs more, to a span with one event",
        best["no span yet: guard"] - best["closed: guard"], "no span yet: a span with one event")  # fmt: skip
    for client in CLIENTS:
        base = best.get(f"client: {client}, plain")
        if base is None:
            continue
        more = best[f"client: {client}, guarded"] - base
        idle = best[f"client: {client}, idle wrappers"] - base
        add(f"{client}: what the guard adds, to a closed call of {PEER}", more, f"closed: {PEER}", 1.5)
        add(f"{client}: what the guard adds, to a closed `@guard`", more, "closed: guard")
        add(f"{client}: what wrappers that do nothing add, to a closed call of {PEER}", idle, f"closed: {PEER}")
        add(f"{client}: guarded call to plain call", base + more, base)
    for name, weight in weights.items():
        target = 700.0 if name.startswith("guard") else None
        found.append(Row(f"bytes a circuit: {name}", weight, "bytes", target))
    return found


def text(result: Result, weights: dict[str, float], about: dict[str, str]) -> str:
    """Two Markdown tables: the ratios, and the nanoseconds behind them."""
    lines = [f"- {key}: {value}" for key, value in {**where(result), "peers": _named(about)}.items()]
    lines += ["", "| what | value | target | |", "|---|---:|---:|---|"]
    for row in rows(result.best, weights):
        value = f"{row.value:.2f} x" if row.unit == "x" else f"{row.value:.0f} bytes"
        target = "" if row.target is None else f"{row.target:g} {row.unit}"
        lines.append(f"| {row.what} | {value} | {target} | {row.verdict} |")
    lines += ["", "| item | ns a call |", "|---|---:|"]
    lines += [f"| {name} | {took:.0f} |" for name, took in sorted(result.best.items())]
    return "\n".join(lines)


def document(result: Result, weights: dict[str, float], about: dict[str, str]) -> dict[str, Any]:
    """The same for a program."""
    return {
        **where(result),
        "peers": about,
        "rows": [{**row._asdict(), "verdict": row.verdict} for row in rows(result.best, weights)],
        "nanoseconds": result.best,
        "bytes": weights,
    }


def where(result: Result) -> dict[str, str]:
    """Where and how it was measured."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{_processor()}, {os.cpu_count()} logical processors, {platform.system()} {platform.machine()}",
        "load": " ".join(f"{one:.1f}" for one in os.getloadavg()),
        "run": f"{result.rounds} rounds in {result.seconds:.0f} s, "
        + ("minima at rest" if result.calm else "minima still falling"),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"


def _named(about: dict[str, str]) -> str:
    return ", ".join(f"{name} {what}" for name, what in about.items())
