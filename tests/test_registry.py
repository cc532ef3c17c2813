from __future__ import annotations

import gc
import logging
import sys
import threading
from typing import Any

import pytest

import otel_breaker
from otel_breaker import Circuit, Policy, _registry
from otel_breaker._registry import Registry, swap
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, decisions, fail, of, outcomes, trip


def tool_named(name: str, **options: Any) -> Any:
    def body() -> None: ...

    return otel_breaker.guard(tool=name, **options)(body)


PERIOD = 4096
"""So many owners later, the bounded memories of the settings are as full as they were."""


def blocks() -> int:
    """What the process holds."""
    gc.collect()
    return sys.getallocatedblocks()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_registry_is_the_process_wide_one(breaker_registry: Registry) -> None:
    assert otel_breaker.registry() is breaker_registry
    assert len(breaker_registry) == 0
    assert list(breaker_registry) == []
    assert breaker_registry.snapshot() == []
    assert breaker_registry.get("nobody") is None


def test_get_iteration_and_snapshots(breaker_registry: Registry) -> None:
    mine, tool, client = Circuit("mine"), tool_named("tool"), breaker_registry.client("api.example")
    trip(mine)
    assert {circuit.name for circuit in breaker_registry} == {"mine", "tool", "api.example"}
    assert (breaker_registry.get("mine"), breaker_registry.get("tool")) == (mine, of(tool))
    assert breaker_registry.get("api.example") is client
    assert {shot.name: shot.state for shot in breaker_registry.snapshot()} == {
        "mine": "open",
        "tool": "closed",
        "api.example": "closed",
    }


@pytest.mark.parametrize("size", [2, 20])
def test_get_gives_the_newest_of_a_name(size: int, breaker_registry: Registry) -> None:
    held = []
    for _ in range(size):
        held.append(Circuit("same"))
        assert breaker_registry.get("same") is held[-1]


def test_get_gives_the_newest_of_a_name_whatever_made_it(breaker_registry: Registry) -> None:
    tool = tool_named("same")
    assert breaker_registry.get("same") is of(tool)
    mine = Circuit("same")
    assert breaker_registry.get("same") is mine
    client = breaker_registry.client("same")
    assert breaker_registry.get("same") is client
    again = Circuit("same")
    assert breaker_registry.get("same") is again
    del again
    gc.collect()
    assert breaker_registry.get("same") in {mine, client, of(tool)}


def test_reset_closes_all_and_zeroes(breaker_registry: Registry) -> None:
    one, two = trip(Circuit("one")), Circuit("two")
    fail(two, 4)
    breaker_registry.reset()
    assert [(shot.state, shot.failures) for shot in breaker_registry.snapshot()] == [("closed", 0)] * 2
    assert one.snapshot().state == "closed"


def test_clear_forgets_all_and_the_numbers_stay(breaker_registry: Registry) -> None:
    tool, mine = tool_named("tool"), Circuit("mine")
    old = trip(of(tool))
    breaker_registry.clear()
    assert list(breaker_registry) == []
    assert breaker_registry.get("tool") is None
    tool()
    assert of(tool) is not old
    assert of(tool).snapshot().state == "closed"
    assert decisions(of(tool)) == {"admitted": 6}
    assert outcomes(of(tool)) == {"failure": 5, "success": 1}
    mine.acquire().success()  # its holder may go on with it
    assert [circuit.name for circuit in breaker_registry] == ["tool"]


def test_after_a_swap_guards_look_their_circuits_up_again(breaker_registry: Registry) -> None:
    tool = tool_named("tool")
    trip(of(tool))
    fresh = Registry(clock=ManualClock())
    old = swap(fresh)
    try:
        assert tool() is None
        assert fresh.get("tool") is of(tool)
        assert decisions(of(tool)) == {"admitted": 1}
    finally:
        swap(old)
    assert tool()["status"] == "circuit_open"


def test_a_client_circuit_is_made_once_however_many_ask(breaker_registry: Registry) -> None:
    start, made = threading.Barrier(20), []

    def work() -> None:
        start.wait(10)
        made.append(breaker_registry.client("api.example"))

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, made))) == 1
    assert len(breaker_registry) == 1


def test_two_guards_of_one_dependency_first_policy_holds_with_one_warning(
    breaker_registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    first = tool_named("a", dependency="vendor", policy="fast_api")
    for name in ("b", "c", "d"):
        assert of(tool_named(name, dependency="vendor", policy=Policy(failure_threshold=9))) is of(first)
    tool_named("e", dependency="vendor")
    tool_named("f", dependency="vendor", policy="fast_api")
    assert of(first).policy == Policy.named("fast_api")
    assert warnings(caplog) == ["vendor: another guard set its policy first; that one holds"]


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_names_beyond_the_cap_are_counted_as_other_with_one_warning(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(clock=manual_clock, max_names=3)
    old = swap(registry)
    try:
        circuits = [registry.client(f"host-{number}") for number in range(10)]
        for circuit in circuits:
            fail(circuit)
    finally:
        swap(old)
    assert [stats.name for stats in registry.names()] == ["host-0", "host-1", "host-2", "_other"]
    assert [stats.failure for stats in registry.names()] == [1, 1, 1, 7]
    assert circuits[9].name == circuits[9].snapshot().name == "host-9"  # a circuit of its own all the same
    assert [circuit.snapshot().failures for circuit in circuits] == [1] * 10
    assert warnings(caplog) == ["more than 3 circuit names; further ones are counted as _other"]


def test_a_name_once_known_keeps_its_numbers_beyond_the_cap(manual_clock: ManualClock) -> None:
    registry = Registry(clock=manual_clock, max_names=2)
    known = registry.stats("a")
    registry.stats("b")
    registry.stats("c")
    assert registry.stats("a") is known
    assert registry.stats("d") is registry.stats("c")


def test_default_caps(configure: Any) -> None:
    configure()
    registry = Registry()
    for number in range(250):
        registry.stats(f"n{number}")
    assert len(registry.names()) == 201
    configure(max_names=5)
    assert len({registry.stats(f"m{number}").name for number in range(20)}) == 1


def test_eviction_forgets_the_oldest_closed_circuit_and_never_one_that_is_not(manual_clock: ManualClock) -> None:
    registry = Registry(clock=manual_clock, max_circuits=3)
    oldest, second, third = (registry.client(name) for name in ("a", "b", "c"))
    trip(oldest)
    second.force_open("x")
    registry.client("d")
    assert {circuit.name for circuit in registry} == {"a", "b", "d"}
    assert registry.get("c") is None
    assert registry.client("c") is not third
    assert registry.client("a") is oldest
    assert {circuit.name for circuit in registry} == {"a", "b", "c"}


def test_half_open_and_throttled_and_paused_circuits_are_not_evicted(manual_clock: ManualClock) -> None:
    registry = Registry(clock=manual_clock, max_circuits=3)
    old = swap(registry)
    try:
        probing, throttled, disabled = (registry.client(name) for name in ("a", "b", "c"))
        trip(probing)
        manual_clock.advance(30)
        probing.acquire()
        quota = throttled.heir("fingerprint")
        for _ in range(3):
            quota.acquire().throttled()
        disabled.disable()
        for number in range(5):
            registry.client(f"more-{number}")
        assert {circuit.name for circuit in registry} == {"a", "b", "c"}
    finally:
        swap(old)


def test_when_none_is_closed_further_ones_have_no_memory_with_one_warning(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(clock=manual_clock, max_circuits=2)
    for name in ("a", "b"):
        trip(registry.client(name))
    for number in range(100):
        fail(registry.client(f"c{number}"))
    assert len(registry) == 2
    assert warnings(caplog) == ["2 circuits and no closed one to forget: new ones have no memory"]


def test_a_log_handler_that_reads_the_registry_or_makes_a_call_of_its_own_does_not_wait_for_itself(
    manual_clock: ManualClock,
) -> None:
    """Handlers that send what they get over a guarded client are common."""
    registry = Registry(clock=manual_clock, max_circuits=1, max_names=1)
    trip(registry.client("a"))
    seen: list[list[str]] = []

    class Reads(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            registry.client("logs.example").acquire().success()
            seen.append([circuit.name for circuit in registry])

    handler, logger = Reads(), logging.getLogger("otel_breaker")
    logger.addHandler(handler)
    try:
        thread = threading.Thread(target=lambda: registry.client("b"), daemon=True)
        thread.start()
        thread.join(20)
    finally:
        logger.removeHandler(handler)
    assert seen == [["a"], ["a"]]  # one of names, one of circuits


def test_making_room_among_open_circuits_looks_at_a_few_and_finds_the_closed_one_in_the_end(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def idle(circuit: Circuit) -> bool:
        looked.append(circuit.name)
        return circuit.state == "closed"

    monkeypatch.setattr(_registry, "idle", idle)
    registry = Registry(clock=manual_clock, max_circuits=300)
    for number in range(300):
        trip(registry.client(f"n{number}"))
    registry.client("late")
    assert len(looked) <= _registry.LOOK

    closed = registry.client("n299")
    closed.reset()
    for _ in range(300 // _registry.LOOK + 1):
        registry.client("late")
    assert registry.get("late") is registry.client("late")
    assert registry.get("n299") is None
    assert len(registry) == 300
    assert len(looked) <= 301


def test_an_expired_circuit_may_go(manual_clock: ManualClock) -> None:
    registry = Registry(clock=manual_clock, max_circuits=1)
    trip(registry.client("a"))
    manual_clock.advance(30 + 900 + 300)
    registry.client("b")
    assert [circuit.name for circuit in registry] == ["b"]


def test_B74_two_thousand_hosts_are_bounded(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture, configure: Any
) -> None:
    configure()
    registry = Registry(clock=manual_clock, max_circuits=1000)
    old = swap(registry)
    try:

        def call(first: int, last: int) -> int:
            for number in range(first, last):
                registry.client(f"host-{number}.example").acquire().success()
            return blocks()

        before = call(0, 2000)
        assert len(registry) == 1000
        assert len(registry.names()) == 201
        after = call(2000, 2000 + PERIOD)
    finally:
        swap(old)
    assert len(registry) == 1000
    assert len(registry.names()) == 201
    assert after - before < 500
    assert warnings(caplog) == ["more than 200 circuit names; further ones are counted as _other"]


def test_B74_ten_thousand_paths_and_ids_of_one_host_are_one_circuit(breaker_registry: Registry) -> None:
    from otel_breaker import keys

    for number in range(10_000):
        name = keys.dependency_of_url(f"https://user:pw@API.example:443/v1/things/{number}?id={number}#{number}")
        assert name is not None
        breaker_registry.client(name)
    assert [circuit.name for circuit in breaker_registry] == ["api.example"]


@pytest.mark.parametrize("kind", ["guards", "guards of names", "circuits", "instances"])
def test_thousands_of_short_lived_owners_are_bounded(kind: str, breaker_registry: Registry, configure: Any) -> None:
    """An agent that makes its tools anew for each conversation must not grow."""
    configure(scope="instance" if kind == "instances" else "dependency", max_circuits=100)

    def owner(number: int) -> Any:
        if kind == "circuits":
            circuit = Circuit(f"c{number}")
            circuit.acquire().success()
            return circuit
        tool = tool_named("search" if kind != "guards of names" else f"search {number}", policy=Policy())
        tool()
        return tool

    def run(first: int, last: int) -> int:
        for number in range(first, last):
            owner(number)
        return blocks()

    before = run(0, 900)
    after = run(900, 900 + PERIOD)
    assert len(breaker_registry) == {"guards": 1, "guards of names": 100}.get(kind, 0)
    assert len(breaker_registry.names()) <= 201
    assert after - before < 500


def test_five_thousand_policies_are_bounded(breaker_registry: Registry) -> None:
    def run(first: int, last: int) -> int:
        for number in range(first, last):
            Circuit("c", Policy(failure_threshold=1 + number)).acquire().success()
        return blocks()

    before = run(0, 1000)
    assert run(1000, 6000) - before < 5000


def test_scope_instance_gives_each_function_object_its_own_held_weakly(
    breaker_registry: Registry, configure: Any
) -> None:
    configure(scope="instance")
    one, two = tool_named("search"), tool_named("search")
    assert of(one) is not of(two)
    assert len(breaker_registry) == 2
    trip(of(one))
    assert one()["status"] == "circuit_open"
    assert two() is None
    del one
    gc.collect()
    assert len(breaker_registry) == 1


def test_a_listener_that_reads_the_registry_sees_the_new_state(breaker_registry: Registry) -> None:
    seen: list[str] = []
    remove = otel_breaker.add_listener(lambda t: seen.extend(shot.state for shot in breaker_registry.snapshot()))
    try:
        with pytest.raises(Fault):
            Circuit("c", Policy(failure_threshold=1)).call(raise_fault)
    finally:
        remove()
    assert seen == ["open"]


def raise_fault() -> None:
    raise Fault


def test_a_circuit_that_was_forgotten_while_a_guard_held_it_is_listed_again_when_it_opens(
    manual_clock: ManualClock,
) -> None:
    registry = Registry(clock=manual_clock, max_circuits=1)
    old = swap(registry)
    try:

        @otel_breaker.guard(tool="first", policy=Policy(failure_threshold=1))
        def first(well: bool) -> None:
            if not well:
                raise ConnectionRefusedError

        second = tool_named("second")
        first(True)
        second()
        assert [circuit.name for circuit in registry] == ["second"]
        with pytest.raises(ConnectionRefusedError):
            first(False)
        assert {circuit.name: circuit.state for circuit in registry} == {"first": "open", "second": "closed"}
        assert registry.get("first") is of(first)
    finally:
        swap(old)
