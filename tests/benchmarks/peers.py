"""The peers, each as its own documentation shows it, with default settings and a cooldown that does not end.

One that is not installed, or does not do what it did, is left out and named in the report.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from .measure import THREADS, Item, awaited_refusals, awaits, calls, refusals, threads

LONG = 10**6
THREADED = ("circuitbreaker", "pybreaker")
"""Timed in many threads too: the fastest, and one with a lock."""


class Boom(Exception):
    pass


def plain(x: Any) -> Any:
    return x


async def coroutine(x: Any) -> Any:
    return x


def failing(x: Any) -> Any:
    raise Boom


def _broken(breaker: Callable[[Any], Any]) -> None:
    with contextlib.suppress(Boom):
        breaker(failing)(1)


class Peer:
    """What one library brings; ``None`` for what it cannot do."""

    def __init__(self) -> None:
        self.sync: Any = None
        self.asynchronous: Any = None
        self.open: Any = None
        self.open_async: Any = None
        self.refusal: type[BaseException] = Exception
        self.circuit: Callable[[int], Any] | None = None
        self.tidy: Callable[[], None] | None = None


def circuitbreaker() -> Peer:
    import circuitbreaker as library

    def made(name: str, **options: Any) -> Any:
        return library.CircuitBreaker(recovery_timeout=LONG, name=name, **options)

    peer = Peer()
    peer.sync, peer.asynchronous = made("sync")(plain), made("async")(coroutine)
    is_open = made("open", failure_threshold=1)
    _broken(is_open)
    peer.open, peer.open_async, peer.refusal = is_open(plain), is_open(coroutine), library.CircuitBreakerError
    peer.circuit = lambda number: library.CircuitBreaker(name=f"c{number}")
    return peer


def pybreaker() -> Peer:
    import pybreaker as library

    peer = Peer()
    peer.sync = library.CircuitBreaker(reset_timeout=LONG)(plain)
    is_open = library.CircuitBreaker(reset_timeout=LONG)
    is_open.open()
    peer.open, peer.refusal = is_open(plain), library.CircuitBreakerError
    peer.circuit = lambda number: library.CircuitBreaker(name=f"c{number}")
    return peer


def aiobreaker() -> Peer:
    import aiobreaker as library

    def made() -> Any:
        return library.CircuitBreaker(timeout_duration=timedelta(seconds=LONG))

    peer = Peer()
    peer.sync, peer.asynchronous = made()(plain), made()(coroutine)
    is_open = made()
    is_open.open()
    peer.open, peer.open_async, peer.refusal = is_open(plain), is_open(coroutine), library.CircuitBreakerError
    peer.circuit = lambda number: library.CircuitBreaker(name=f"c{number}")
    return peer


def purgatory() -> Peer:
    from purgatory import AsyncCircuitBreakerFactory, SyncCircuitBreakerFactory
    from purgatory.domain.model import OpenedState

    factory = SyncCircuitBreakerFactory(default_ttl=LONG, default_threshold=1)
    factory.initialize()
    peer = Peer()
    peer.sync = factory("closed")(plain)
    peer.asynchronous = AsyncCircuitBreakerFactory(default_ttl=LONG)("closed")(coroutine)
    _broken(factory("open"))
    peer.open, peer.refusal = factory("open")(plain), OpenedState

    def tidy() -> None:  # it raises one stored exception, whose traceback grows with each refusal
        factory.get_breaker("open").context._state.__traceback__ = None

    peer.tidy = tidy
    of_many = SyncCircuitBreakerFactory()
    peer.circuit = lambda number: of_many.get_breaker(f"c{number}")
    return peer


def nopanic() -> Peer:
    import nopanic as library

    peer = Peer()
    peer.sync = library.circuit_breaker(reset_timeout=LONG)(plain)
    peer.asynchronous = library.circuit_breaker(reset_timeout=LONG)(coroutine)
    is_open = library.circuit_breaker(reset_timeout=LONG, min_calls=1)
    _broken(is_open)
    peer.open, peer.open_async, peer.refusal = is_open(plain), is_open(coroutine), library.CircuitOpen
    peer.circuit = lambda number: library.circuit_breaker(name=f"c{number}")
    return peer


def interlock() -> Peer:
    import interlock as library

    peer = Peer()
    peer.sync = library.CircuitBreaker(name="sync")(plain)
    peer.asynchronous = library.CircuitBreaker(name="async")(coroutine)
    short = library.Config(minimum_number_of_calls=1, wait_duration_in_open=float(LONG))
    is_open = library.CircuitBreaker(name="open", config=short)
    _broken(is_open)
    peer.open, peer.open_async, peer.refusal = is_open(plain), is_open(coroutine), library.CircuitOpenError
    peer.circuit = lambda number: library.CircuitBreaker(name=f"c{number}")
    return peer


KNOWN: dict[str, Callable[[], Peer]] = {
    "circuitbreaker": circuitbreaker,
    "pybreaker": pybreaker,
    "aiobreaker": aiobreaker,
    "purgatory": purgatory,
    "nopanic": nopanic,
    "interlock-cb": interlock,
}


def items(runner: asyncio.Runner) -> tuple[list[Item], dict[str, Callable[[int], Any]], dict[str, str]]:
    """The items of all peers, what makes a circuit of each, and what stands behind each name: a version, or a fault."""
    found: list[Item] = []
    circuits: dict[str, Callable[[int], Any]] = {}
    about: dict[str, str] = {}
    for name, make in KNOWN.items():
        try:
            peer = make()
            about[name] = version(name)
        except Exception as error:
            about[name] = f"left out: {error!r}"
            continue
        found.append(Item(f"closed: {name}", calls(peer.sync)))
        if peer.asynchronous is not None:
            found.append(Item(f"closed async: {name}", awaits(peer.asynchronous, runner)))
        found.append(Item(f"open: {name}", _tidied(refusals(peer.open, peer.refusal), peer.tidy)))
        if peer.open_async is not None:
            found.append(Item(f"open async: {name}", awaited_refusals(peer.open_async, peer.refusal, runner)))
        if name in THREADED:
            found.append(Item(f"1 thread: {name}", threads(peer.sync, 1)))
            found.append(Item(f"8 threads: {name}", threads(peer.sync, THREADS)))
        if peer.circuit is not None:
            circuits[name] = peer.circuit
    return found, circuits, about


def _tidied(loop: Callable[[int], float], tidy: Callable[[], None] | None) -> Callable[[int], float]:
    if tidy is None:
        return loop

    def and_tidy(n: int) -> float:
        try:
            return loop(n)
        finally:
            tidy()

    return and_tidy
