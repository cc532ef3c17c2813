"""Loops that time calls, and the runner that takes turns between them.

Only ratios of one run mean anything, and on a shared machine only minima do: each item is timed in short pieces, all
items in turn, again and again, and the fastest piece of each is kept.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import repeat
from time import perf_counter_ns
from typing import Any, NamedTuple

THREADS = 8
PIECE_NS = 8e6
"""How long one piece takes: shorter than a time slice of the system, so that some pieces run undisturbed."""
CALM_ROUNDS = 12
"""The run ends when this many rounds in a row have brought no minimum down by more than `NEWS`."""
NEWS = 0.01

Loop = Callable[[int], float]


class Item(NamedTuple):
    """One thing to time. ``loop(n)`` makes n calls and returns nanoseconds a call."""

    name: str
    loop: Loop


def calls(function: Callable[[Any], Any]) -> Loop:
    def loop(n: int) -> float:
        turns = repeat(None, n)
        began = perf_counter_ns()
        for _ in turns:
            function(1)
        return (perf_counter_ns() - began) / n

    return loop


def refusals(function: Callable[[Any], Any], refusal: type[BaseException]) -> Loop:
    def loop(n: int) -> float:
        turns = repeat(None, n)
        began = perf_counter_ns()
        for _ in turns:
            try:  # as a caller writes it: `contextlib.suppress` would cost more than what is measured
                function(1)
            except refusal:
                continue
        return (perf_counter_ns() - began) / n

    return loop


def awaits(function: Callable[[Any], Awaitable[Any]], runner: asyncio.Runner) -> Loop:
    async def loop(n: int) -> float:
        turns = repeat(None, n)
        began = perf_counter_ns()
        for _ in turns:
            await function(1)
        return (perf_counter_ns() - began) / n

    return lambda n: runner.run(loop(n))


def awaited_refusals(
    function: Callable[[Any], Awaitable[Any]], refusal: type[BaseException], runner: asyncio.Runner
) -> Loop:
    async def loop(n: int) -> float:
        turns = repeat(None, n)
        began = perf_counter_ns()
        for _ in turns:
            try:
                await function(1)
            except refusal:
                continue
        return (perf_counter_ns() - began) / n

    return lambda n: runner.run(loop(n))


def threads(function: Callable[[Any], Any], count: int) -> Loop:
    """Wall time a call, with so many threads that make n calls each: starting them must weigh nothing."""

    def loop(n: int) -> float:
        start = threading.Barrier(count + 1)

        def work() -> None:
            turns = repeat(None, n)
            start.wait()
            for _ in turns:
                function(1)

        workers = [threading.Thread(target=work) for _ in range(count)]
        for worker in workers:
            worker.start()
        start.wait()
        began = perf_counter_ns()
        for worker in workers:
            worker.join()
        return (perf_counter_ns() - began) / (n * count)

    return loop


class Result(NamedTuple):
    """Nanoseconds a call by item, and how the run went."""

    best: dict[str, float]
    rounds: int
    seconds: float
    calm: bool


def run(items: list[Item], seconds: float, say: Callable[[str], None]) -> Result:
    """Time all items in turn until the minima stay where they are, at most for ``seconds``."""
    began = time.monotonic()
    best: dict[str, float] = {}
    pieces: dict[str, int] = {}
    for item in items:
        item.loop(50)  # first calls: circuits are made, bytecode is specialized
        best[item.name] = item.loop(50)
        pieces[item.name] = max(20, int(PIECE_NS / best[item.name]))
    rounds = calm = 0
    while calm < CALM_ROUNDS and time.monotonic() - began < seconds:
        news = []
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            for item in items:
                took = item.loop(pieces[item.name])
                if took < best[item.name]:
                    if took < best[item.name] * (1 - NEWS):
                        news.append(item.name)
                    best[item.name] = took
        finally:
            gc.enable()
            gc.unfreeze()
        rounds += 1
        calm = 0 if news else calm + 1
        if rounds % 10 == 0:
            say(f"round {rounds}, {time.monotonic() - began:.0f} s, {len(news)} of {len(items)} minima still falling")
    return Result(best, rounds, time.monotonic() - began, calm >= CALM_ROUNDS)
