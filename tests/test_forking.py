"""A forked child starts with sane state: no lock of the parent's, no count of the parent's, its verdicts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import otel_breaker
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="fork: this system has none; run on Linux or macOS"),
    # Said from 3.12 on; forking with threads around is what is tested here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def child(work: Callable[[], bool]) -> int:
    """Fork, do ``work`` there; 0 if it returned True. A child that hangs is ended by its alarm."""
    pid = os.fork()
    if pid == 0:
        import signal

        signal.alarm(10)
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_child_counts_from_zero_and_keeps_the_verdict(breaker_registry: Registry) -> None:
    @otel_breaker.guard(tool="t", policy=otel_breaker.Policy(failure_threshold=1))
    def tool(error: BaseException | None = None) -> Any:
        if error is not None:
            raise error
        return "ok"

    @otel_breaker.guard(tool="healthy")
    def healthy() -> str:
        return "ok"

    healthy()
    with pytest.raises(ConnectionError):
        tool(ConnectionRefusedError())

    def work() -> bool:
        answer = tool()
        healthy()
        counts = {one.name: one for one in breaker_registry.names()}
        broken, well = counts["t"], counts["healthy"]
        return (
            answer["status"] == "circuit_open"
            and (broken.failure, broken.admitted, broken.circuit_open) == (0, 0, 1)
            and (well.admitted, well.success) == (1, 1)
            and broken.transitions["closed", "open"] == 0
        )

    assert child(work) == 0
    counts = {one.name: one for one in breaker_registry.names()}
    assert (counts["t"].failure, counts["t"].circuit_open, counts["healthy"].success) == (1, 0, 1)


def test_B62_a_child_forked_while_other_threads_call_does_not_hang(
    breaker_registry: Registry, manual_clock: ManualClock
) -> None:
    @otel_breaker.guard(tool="busy")
    def tool() -> dict[str, str]:
        return {"error": "server_error"}

    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            tool()
            breaker_registry.reset()

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()

    def work() -> bool:
        breaker_registry.reset()
        tool()
        return len(breaker_registry.snapshot()) == 1

    try:
        assert [child(work) for _ in range(50)] == [0] * 50
    finally:
        stop.set()
        for thread in threads:
            thread.join()
