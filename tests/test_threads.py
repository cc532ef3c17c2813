"""Where threads run at once, every count is made under its name's lock. Chosen at import; forced here, in a process."""

from __future__ import annotations

import sysconfig
from typing import Any

import pytest

from otel_breaker import _threads
from tests.support.python import last_json, python

CALLS = """
import asyncio, json, logging, sys, threading
import otel_breaker
from otel_breaker import _registry, _threads, stats
_threads.AT_ONCE = {at_once}
logging.disable(logging.CRITICAL)
{kind}
_registry.Stats = Kind
THREADS, ROUNDS = 8, {rounds}


class Broken(Exception):
    pass


@otel_breaker.guard(tool="well")
def well():
    return "ok"


@otel_breaker.guard(tool="later")
async def later():
    return "ok"


@otel_breaker.guard(tool="pieces")
def pieces():
    yield "ok"


@otel_breaker.guard(tool="fails", policy=otel_breaker.Policy(failure_threshold=10**9))
def fails():
    raise Broken


@otel_breaker.guard(tool="refused", policy=otel_breaker.Policy(failure_threshold=1, cooldown=3600))
def refused():
    raise Broken


@otel_breaker.guard(tool="refused later", policy=otel_breaker.Policy(failure_threshold=1, cooldown=3600))
async def refused_later():
    raise Broken


hand = otel_breaker.Circuit("hand")
for open_it in (refused, lambda: asyncio.run(refused_later())):
    try:
        open_it()
    except Broken:
        pass
refused.__otel_breaker__.circuit.cost = refused_later.__otel_breaker__.circuit.cost = 0.5


async def coroutines():
    for _ in range(ROUNDS):
        await later()
        await refused_later()


def work():
    for _ in range(ROUNDS):
        well()
        list(pieces())
        hand.call(str)
        refused()
        try:
            fails()
        except Broken:
            pass
    asyncio.run(coroutines())


sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=work) for _ in range(THREADS)]
for one in threads:
    one.start()
for one in threads:
    one.join()
sys.setswitchinterval(0.005)
found = {{
    one.name: {{
        slot: value
        for slot in (*(s for _, s in stats.DECISIONS + stats.OUTCOMES), "time_saved", "failures")
        if (value := getattr(one, slot))
    }}
    for one in otel_breaker.registry().names()
}}
print(json.dumps({{"found": found, "outside": sorted(getattr(Kind, "outside", ()))}}))
"""

WATCHED = """
class Kind(stats.Stats):
    outside = set()

    def __setattr__(self, name, value):
        if name not in ("name", "lock", "failures", "tools", "transitions") and value and not self.lock._is_owned():
            self.outside.add(name)
        super().__setattr__(name, value)
"""

INTERRUPTED = """
import time


class Kind(stats.Stats):
    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if isinstance(value, (int, float)):
            time.sleep(0)  # between reading a number and writing it back, another thread runs
        return value
"""


def run(kind: str, at_once: bool, rounds: int) -> Any:
    return last_json(python(CALLS.format(kind=kind, at_once=at_once, rounds=rounds)))


def expected(calls: int) -> dict[str, Any]:
    refused = {"admitted": 1, "circuit_open": calls, "failure": 1, "time_saved": calls / 2}
    return {
        "well": {"admitted": calls, "success": calls},
        "later": {"admitted": calls, "success": calls},
        "pieces": {"admitted": calls, "success": calls},
        "hand": {"admitted": calls, "success": calls},
        "fails": {"admitted": calls, "failure": calls, "failures": {"tool_error": calls}},
        "refused": refused | {"failures": {"tool_error": 1}},
        "refused later": refused | {"failures": {"tool_error": 1}},
    }


def test_the_build_decides() -> None:
    chosen = last_json(python("import json; from otel_breaker._threads import AT_ONCE; print(json.dumps(AT_ONCE))"))
    assert chosen is bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def test_no_count_is_lost_by_threads() -> None:
    assert run("Kind = stats.Stats", _threads.AT_ONCE, 1_000)["found"] == expected(8_000)


def test_where_threads_run_at_once_no_count_is_lost_though_each_is_interrupted() -> None:
    assert run(INTERRUPTED, True, 50)["found"] == expected(400)


def test_the_interruption_loses_counts_of_the_hot_path() -> None:
    """Else the test above would prove nothing."""
    found = run(INTERRUPTED, False, 50)["found"]
    assert found["well"]["admitted"] < 400
    assert found["refused"]["circuit_open"] < 400


def test_where_threads_run_at_once_every_count_is_made_under_the_lock() -> None:
    assert run(WATCHED, True, 3) == {"found": expected(24), "outside": []}


@pytest.mark.skipif(_threads.AT_ONCE, reason="the hot path: this build does not take it; run with the GIL")
def test_the_hot_path_takes_no_lock() -> None:
    # Watching takes the one piece apart, so that counts may be lost here: only who is without a lock is asked.
    assert run(WATCHED, False, 3)["outside"] == ["admitted", "circuit_open", "success", "time_saved"]
