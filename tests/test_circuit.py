from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from typing import Any

import pytest

import otel_breaker
from otel_breaker import Circuit, CircuitOpenError, Policy, ProbeInFlightError, Transition
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, decisions, fail, moves, outcomes, reasons, trip


@pytest.fixture
def circuit(breaker_registry: Registry) -> Circuit:
    """A circuit made by hand."""
    return Circuit("vendor")


def raise_(error: BaseException) -> Any:
    raise error


# --- ways to call -----------------------------------------------------------------------------------------------------


def by_call(circuit: Circuit, function: Any) -> Any:
    return circuit.call(function)


def by_acall(circuit: Circuit, function: Any) -> Any:
    async def body() -> Any:
        await asyncio.sleep(0)
        return function()

    return asyncio.run(circuit.acall(body))


def by_with(circuit: Circuit, function: Any) -> Any:
    with circuit as entered:
        assert entered is circuit
        return function()


def by_async_with(circuit: Circuit, function: Any) -> Any:
    async def main() -> Any:
        async with circuit as entered:
            assert entered is circuit
            await asyncio.sleep(0)
            return function()

    return asyncio.run(main())


WAYS = pytest.mark.parametrize("way", [by_call, by_acall, by_with, by_async_with])


@WAYS
def test_each_way_counts_a_success_and_hands_the_result_on(way: Any, circuit: Circuit) -> None:
    made = object()
    assert way(circuit, lambda: made) is made
    assert decisions(circuit) == {"admitted": 1}
    assert outcomes(circuit) == {"success": 1}


@WAYS
def test_each_way_opens_on_the_fifth_failure_and_raises_the_refusal(way: Any, circuit: Circuit) -> None:
    error = ConnectionRefusedError()
    for _ in range(5):
        with pytest.raises(ConnectionRefusedError) as caught:
            way(circuit, lambda: raise_(error))
        assert caught.value is error
    ran: list[int] = []
    with pytest.raises(CircuitOpenError) as refused:
        way(circuit, lambda: ran.append(1))
    assert ran == []
    assert refused.value.key == refused.value.tool == "vendor"
    assert refused.value.retry_after == 30
    assert refused.value.error_type == "connection_refused"
    assert refused.value.reason == "vendor unreachable (5 consecutive failures, last: connection refused)"
    assert decisions(circuit) == {"admitted": 5, "circuit_open": 1}
    assert reasons(circuit) == {"connection_refused": 5}


@WAYS
def test_each_way_probes_after_the_cooldown(way: Any, circuit: Circuit, manual_clock: ManualClock) -> None:
    trip(circuit)
    manual_clock.advance(30)
    assert way(circuit, lambda: circuit.snapshot().state) == "half_open"
    assert circuit.snapshot().state == "closed"
    assert decisions(circuit) == {"admitted": 5, "probe": 1}


@WAYS
def test_an_exception_that_nothing_explains_is_unclassified_by_hand(way: Any, circuit: Circuit) -> None:
    with pytest.raises(Fault):
        way(circuit, lambda: raise_(Fault()))
    assert reasons(circuit) == {"unclassified": 1}


def test_call_hands_on_arguments_of_any_name(circuit: Circuit) -> None:
    def function(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    expected = ((1, 2), {"function": 3, "circuit": 4, "self": 5})
    assert circuit.call(function, 1, 2, function=3, circuit=4, self=5) == expected

    async def asynchronous(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    assert asyncio.run(circuit.acall(asynchronous, 1, 2, function=3, circuit=4, self=5)) == expected


def test_with_blocks_nest_and_the_inner_one_is_an_attempt(circuit: Circuit) -> None:
    other = Circuit("other")
    with circuit, other, circuit:
        pass
    assert outcomes(circuit) == {"success": 1}
    assert outcomes(other) == {"success": 1}


def test_with_blocks_may_be_left_out_of_order(circuit: Circuit) -> None:
    other = Circuit("other")
    circuit.__enter__()
    other.__enter__()
    circuit.__exit__(None, None, None)
    error = Fault()
    other.__exit__(Fault, error, None)
    assert outcomes(circuit) == {"success": 1}
    assert outcomes(other) == {"failure": 1}


def test_what_follows_an_inner_block_is_still_inside_the_outer_one(circuit: Circuit) -> None:
    inner, last = Circuit("inner"), Circuit("last")

    def body() -> None:
        with circuit:
            with inner:
                pass
            circuit.call(int)  # an attempt
            with last:
                raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        body()
    assert outcomes(last) == {"failure": 1}
    assert decisions(circuit) == {"admitted": 1}
    assert outcomes(circuit) == {"neutral": 1}


def test_an_inner_block_that_goes_on_is_still_current(circuit: Circuit) -> None:
    other = Circuit("other")
    circuit.__enter__()
    other.__enter__()
    circuit.__exit__(None, None, None)
    other.call(int)  # an attempt of the block that goes on
    other.__exit__(None, None, None)
    other.call(int)
    assert decisions(other) == {"admitted": 2}


def test_with_blocks_of_tasks_do_not_meet(circuit: Circuit) -> None:
    async def one(number: int) -> None:
        async with circuit:
            await asyncio.sleep(0)
            if number % 2:
                raise Fault

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(4)), return_exceptions=True)

    asyncio.run(main())
    assert decisions(circuit) == {"admitted": 4}
    assert outcomes(circuit) == {"success": 2, "failure": 2}


def test_leaving_a_block_that_was_never_entered_is_harmless(circuit: Circuit) -> None:
    circuit.__exit__(None, None, None)
    assert outcomes(circuit) == {}


# --- permits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settle", "outcome", "reason"),
    [
        (lambda permit: permit.success(), "success", None),
        (lambda permit: permit.failure(), "failure", "unclassified"),
        (lambda permit: permit.failure("overloaded"), "failure", "overloaded"),
        (lambda permit: permit.neutral(), "neutral", None),
        (lambda permit: permit.throttled(), "throttled", None),
        (lambda permit: permit.throttled(retry_after=60), "throttled", None),
        (lambda permit: permit.unauthorized(), "unauthorized", None),
    ],
)
def test_a_permit_is_settled_by_one_of_its_methods(
    settle: Any, outcome: str, reason: str | None, circuit: Circuit
) -> None:
    permit = circuit.acquire()
    assert permit.probe is False
    settle(permit)
    assert outcomes(circuit) == {outcome: 1}
    assert reasons(circuit) == ({reason: 1} if reason else {})


def test_a_second_settle_is_late_and_changes_nothing(circuit: Circuit) -> None:
    permit = circuit.acquire()
    permit.success()
    permit.failure()
    permit.success()
    assert outcomes(circuit) == {"success": 1, "late": 2}
    assert circuit.snapshot().failures == 0


def test_an_unknown_reason_is_one_clear_error_and_the_permit_is_still_good(circuit: Circuit) -> None:
    permit = circuit.acquire()
    with pytest.raises(ValueError, match=r"^unknown reason 'boom'; known: connection_refused, .*, unclassified$"):
        permit.failure("boom")
    permit.success()
    assert outcomes(circuit) == {"success": 1}


def test_a_retry_after_sets_the_next_cooldown(circuit: Circuit) -> None:
    fail(circuit, 4)
    circuit.acquire().failure("server_error", retry_after=120)
    assert circuit.snapshot().cooldown == 120
    assert circuit.snapshot().retry_after == 120


def test_a_slow_success_from_before_the_opening_cannot_close(circuit: Circuit, manual_clock: ManualClock) -> None:
    slow, slower = circuit.acquire(), circuit.acquire()
    trip(circuit)
    slow.success()
    assert circuit.snapshot().state == "open"
    manual_clock.advance(30)
    probe = circuit.acquire()
    assert probe.probe is True
    slower.success()
    assert circuit.snapshot().state == "half_open"
    probe.failure()
    assert circuit.snapshot().state == "open"
    assert outcomes(circuit) == {"failure": 6, "late": 2}


def test_a_failure_from_before_the_opening_cannot_reopen_after_it_closed(
    circuit: Circuit, manual_clock: ManualClock
) -> None:
    old = [circuit.acquire() for _ in range(10)]
    trip(circuit)
    manual_clock.advance(30)
    circuit.acquire().success()
    for permit in old:
        permit.failure()
    assert circuit.snapshot().state == "closed"
    assert circuit.snapshot().failures == 0
    assert outcomes(circuit)["late"] == 10


def test_a_lost_probe_cannot_override_the_next_one(circuit: Circuit, manual_clock: ManualClock) -> None:
    trip(circuit)
    manual_clock.advance(30)
    lost = circuit.acquire()
    manual_clock.advance(30 + 60)  # its lease, and the next cooldown
    following = circuit.acquire()
    assert following.probe is True
    lost.success()
    assert circuit.snapshot().state == "half_open"
    following.success()
    assert circuit.snapshot().state == "closed"
    assert outcomes(circuit)["late"] == 1


def test_acquire_raises_the_kind_of_refusal(circuit: Circuit, manual_clock: ManualClock) -> None:
    trip(circuit)
    with pytest.raises(CircuitOpenError) as refused:
        circuit.acquire()
    assert type(refused.value) is CircuitOpenError
    manual_clock.advance(30)
    circuit.acquire()
    manual_clock.advance(10)
    with pytest.raises(ProbeInFlightError) as refused:
        circuit.acquire()
    assert refused.value.retry_after == 20  # what is left of the lease
    assert refused.value.state == "half_open"


# --- snapshots --------------------------------------------------------------------------------------------------------


def facts(circuit: Circuit) -> tuple[Any, ...]:
    shot = circuit.snapshot()
    return (
        shot.state, shot.failures, shot.cooldown, shot.retry_after, shot.cooldowns_elapsed, shot.awaiting_probe,
        shot.reason,
    )  # fmt: skip


def test_snapshots_through_a_life(circuit: Circuit, manual_clock: ManualClock) -> None:
    assert circuit.snapshot().name == "vendor"
    assert facts(circuit) == ("closed", 0, 0, 0, 0, False, None)
    fail(circuit, 2)
    assert facts(circuit) == ("closed", 2, 0, 0, 0, False, None)
    trip(circuit, "dns_error")
    assert facts(circuit) == ("open", 5, 30, 30, 0, False, "dns_error")
    manual_clock.advance(29)
    assert facts(circuit) == ("open", 5, 30, 1, 0, False, "dns_error")
    manual_clock.advance(1)
    assert facts(circuit) == ("open", 5, 30, 0, 1, True, "dns_error")
    probe = circuit.acquire()
    assert facts(circuit) == ("half_open", 5, 30, 30, 1, False, "dns_error")
    probe.failure("overloaded")
    assert facts(circuit) == ("open", 6, 60, 60, 1, False, "overloaded")
    manual_clock.advance(60)
    assert facts(circuit) == ("open", 6, 60, 0, 2, True, "overloaded")
    circuit.acquire().success()
    assert facts(circuit) == ("closed", 0, 0, 0, 0, False, None)


def test_a_snapshot_is_frozen_and_reading_changes_nothing(circuit: Circuit, manual_clock: ManualClock) -> None:
    trip(circuit)
    shot = circuit.snapshot()
    with pytest.raises(AttributeError):
        shot.state = "closed"  # type: ignore[misc]
    manual_clock.advance(30)
    circuit.acquire()
    manual_clock.advance(31)
    before = moves(circuit)
    for _ in range(3):
        assert circuit.snapshot().state == "open"  # the probe lapsed a second ago, as this moment makes it
        assert circuit.snapshot().retry_after == 59
    assert moves(circuit) == before
    with pytest.raises(CircuitOpenError):
        circuit.acquire()
    assert moves(circuit) == {**before, ("half_open", "open"): 1}


def test_a_verdict_that_nobody_tested_expires(
    circuit: Circuit, manual_clock: ManualClock, transitions: list[Transition]
) -> None:
    trip(circuit)
    manual_clock.advance(30 + 900 + 300 - 0.001)
    assert circuit.snapshot().state == "open"
    manual_clock.advance(0.001)
    assert circuit.snapshot().state == "closed"
    circuit.acquire().success()
    assert [(one.previous_state, one.state, one.reason) for one in transitions] == [
        ("closed", "open", "server_error"),
        ("open", "closed", "expired"),
    ]
    assert decisions(circuit) == {"admitted": 6}


def test_cooldowns_elapsed_never_falls_within_an_episode_and_page_at_two(
    circuit: Circuit, manual_clock: ManualClock
) -> None:
    trip(circuit)
    seen = []
    for _ in range(13):
        seen.append(circuit.snapshot().cooldowns_elapsed)
        manual_clock.advance(10)
    assert seen == [0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]  # 30 s, 90 s: an idle circuit counts on


# --- commands ---------------------------------------------------------------------------------------------------------


def test_force_open_refuses_until_resume_and_keeps_the_operators_text(
    circuit: Circuit, manual_clock: ManualClock
) -> None:
    circuit.force_open("maintenance window")
    assert facts(circuit) == ("forced_open", 0, 0, 30, 0, False, "maintenance window")
    manual_clock.advance(100_000)
    with pytest.raises(CircuitOpenError) as refused:
        circuit.acquire()
    assert refused.value.state == "forced_open"
    assert refused.value.decision == "forced_open"
    assert refused.value.error_type is None
    assert refused.value.retry_after == 30
    assert refused.value.reason == "vendor switched off by an operator"
    assert decisions(circuit) == {"forced_open": 1}
    circuit.resume()
    assert facts(circuit) == ("closed", 0, 0, 0, 0, False, None)
    circuit.acquire().success()


def test_force_open_for_a_time_ends_closed(circuit: Circuit, manual_clock: ManualClock) -> None:
    circuit.force_open("for a minute", 60)
    manual_clock.advance(20)
    assert circuit.snapshot().retry_after == 40
    with pytest.raises(CircuitOpenError) as refused:
        circuit.acquire()
    assert refused.value.retry_after == 40
    manual_clock.advance(40)
    assert circuit.snapshot().state == "closed"
    circuit.acquire().success()


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_force_open_for_no_time_is_one_clear_error(seconds: float, circuit: Circuit) -> None:
    with pytest.raises(ValueError, match=r"^seconds must be > 0 or None, not "):
        circuit.force_open("x", seconds)
    assert circuit.snapshot().state == "closed"


def test_disable_admits_counts_and_never_charges(circuit: Circuit) -> None:
    trip(circuit)
    circuit.disable()
    assert facts(circuit) == ("disabled", 0, 0, 0, 0, False, None)
    for _ in range(20):
        circuit.acquire().failure()
    circuit.acquire().success()
    assert circuit.snapshot().state == "disabled"
    assert decisions(circuit) == {"admitted": 26}
    assert outcomes(circuit) == {"failure": 25, "success": 1}
    assert reasons(circuit) == {"server_error": 5}
    circuit.resume()
    assert facts(circuit) == ("closed", 0, 0, 0, 0, False, None)


@pytest.mark.parametrize("before", ["closed", "open", "half_open", "forced_open", "disabled"])
def test_reset_closes_and_zeroes_from_everywhere(before: str, circuit: Circuit, manual_clock: ManualClock) -> None:
    if before == "closed":
        fail(circuit, 4)
    elif before == "forced_open":
        circuit.force_open("x")
    elif before == "disabled":
        circuit.disable()
    else:
        trip(circuit)
        manual_clock.advance(30)
        if before == "half_open":
            circuit.acquire()
    circuit.reset()
    assert facts(circuit) == ("closed", 0, 0, 0, 0, False, None)
    fail(circuit, 4)
    assert circuit.snapshot().state == "closed"


def test_commands_end_the_episode_with_reason_manual(
    circuit: Circuit, manual_clock: ManualClock, transitions: list[Transition]
) -> None:
    trip(circuit)
    circuit.reset()
    trip(circuit)
    circuit.force_open("x")
    circuit.disable()
    circuit.resume()
    assert [(one.previous_state, one.state, one.reason) for one in transitions] == [
        ("closed", "open", "server_error"),
        ("open", "closed", "manual"),
        ("closed", "open", "server_error"),
        ("open", "forced_open", "manual"),
        ("forced_open", "disabled", "manual"),
        ("disabled", "closed", "manual"),
    ]


def test_a_probe_under_way_at_a_command_is_late(circuit: Circuit, manual_clock: ManualClock) -> None:
    trip(circuit)
    manual_clock.advance(30)
    probe = circuit.acquire()
    circuit.force_open("x")
    probe.success()
    assert circuit.snapshot().state == "forced_open"
    assert outcomes(circuit) == {"failure": 5, "late": 1}


def test_resume_of_a_circuit_that_is_neither_forced_nor_disabled_changes_nothing(circuit: Circuit) -> None:
    fail(circuit, 3)
    circuit.resume()
    assert circuit.snapshot().failures == 3
    trip(circuit)
    circuit.resume()
    assert circuit.snapshot().state == "open"


# --- listeners --------------------------------------------------------------------------------------------------------


def test_a_listener_is_told_of_every_transition_with_its_counts(
    circuit: Circuit, manual_clock: ManualClock, transitions: list[Transition]
) -> None:
    began = manual_clock.wall()
    trip(circuit)
    manual_clock.advance(30)
    circuit.acquire().failure("overloaded")
    manual_clock.advance(60)
    circuit.acquire().success()
    assert transitions == [
        Transition("vendor", "closed", "open", "server_error", 5, 30, began),
        Transition("vendor", "open", "half_open", "cooldown_elapsed", 5, 30, began + 30),
        Transition("vendor", "half_open", "open", "overloaded", 6, 60, began + 30),
        Transition("vendor", "open", "half_open", "cooldown_elapsed", 6, 60, began + 90),
        Transition("vendor", "half_open", "closed", "probe_succeeded", 6, 60, began + 90),
    ]


def test_what_time_alone_did_is_told_with_its_true_moment(
    circuit: Circuit, manual_clock: ManualClock, transitions: list[Transition]
) -> None:
    began = manual_clock.wall()
    trip(circuit)
    manual_clock.advance(30)
    circuit.acquire()
    manual_clock.advance(100_000)
    assert len(transitions) == 2
    circuit.acquire().success()
    assert transitions[2:] == [
        Transition("vendor", "half_open", "open", "probe_lapsed", 6, 60, began + 60),
        Transition("vendor", "open", "closed", "expired", 6, 60, began + 60 + 60 + 900 + 300),
    ]


def test_a_removed_listener_hears_no_more(circuit: Circuit) -> None:
    told: list[Any] = []
    remove = otel_breaker.add_listener(told.append)
    trip(circuit)
    remove()
    remove()  # twice is once
    circuit.reset()
    assert len(told) == 1


def test_a_listener_runs_outside_every_lock(circuit: Circuit, breaker_registry: Registry) -> None:
    """Were a lock held, reading or commanding from another thread would hang."""
    seen: list[Any] = []

    def listener(transition: Transition) -> None:
        def look() -> None:
            seen.append(circuit.snapshot().state)
            with contextlib.suppress(CircuitOpenError):
                circuit.acquire()
            seen.extend(shot.state for shot in breaker_registry.snapshot())
            seen.append(Circuit("made by the listener").snapshot().state)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(5)
        seen.append(thread.is_alive())

    remove = otel_breaker.add_listener(listener)
    try:
        trip(circuit)
    finally:
        remove()
    assert seen == ["open", "open", "closed", False]


def test_a_listener_may_command_the_circuit_it_hears_of(circuit: Circuit) -> None:
    def listener(transition: Transition) -> None:
        if transition.state == "open":
            circuit.force_open("seen to")

    remove = otel_breaker.add_listener(listener)
    try:
        fail(circuit, 5)
    finally:
        remove()
    assert circuit.snapshot().state == "forced_open"


# --- identity ---------------------------------------------------------------------------------------------------------


def test_a_circuit_by_hand_is_in_the_registry_while_somebody_holds_it(breaker_registry: Registry) -> None:
    circuit = Circuit("mine", Policy(failure_threshold=1))
    assert breaker_registry.get("mine") is circuit
    assert [one.name for one in breaker_registry] == ["mine"]
    del circuit
    gc.collect()
    assert breaker_registry.get("mine") is None
    assert list(breaker_registry) == []


def test_two_circuits_of_one_name_are_apart_and_share_their_numbers(breaker_registry: Registry) -> None:
    one, two = Circuit("same"), Circuit("same")
    trip(one)
    assert two.snapshot().state == "closed"
    assert one.stats is two.stats
    assert decisions(two) == {"admitted": 5}


def test_policy_by_class_name_clock_and_own_defaults(breaker_registry: Registry) -> None:
    clock = ManualClock()
    circuit = Circuit("c", "slow_tool", clock=clock)
    assert circuit.policy == Policy.named("slow_tool")
    trip(circuit)
    assert circuit.snapshot().failures == 2
    clock.advance(119)
    assert circuit.snapshot().retry_after == 1
    assert Circuit("d").policy == Policy()
    assert repr(circuit) == "<Circuit c open>"


def test_configuration_gives_a_circuit_its_policy_and_display_name(breaker_registry: Registry, configure: Any) -> None:
    configure(
        failure_threshold=7,
        circuits=[{"match": {"dependency": "pay*"}, "display_name": "the bank", "failure_threshold": 1}],
    )
    assert Circuit("other").policy.failure_threshold == 7
    bank = trip(Circuit("pay.example"))
    with pytest.raises(CircuitOpenError) as refused:
        bank.acquire()
    assert refused.value.reason == "the bank failing (1 failure, last: server error)"


def test_B44_jitter_spreads_the_probes_and_never_shortens(breaker_registry: Registry) -> None:
    """The spread is random: that 200 draws from [30, 60) all fall within one half happens once in 2**199."""
    circuits = [Circuit(f"c{number}", Policy(failure_threshold=1, cooldown_jitter=1)) for number in range(200)]
    for circuit in circuits:
        fail(circuit)
    lengths = [circuit.snapshot().retry_after for circuit in circuits]
    assert min(lengths) >= 30
    assert max(lengths) <= 60
    assert any(length < 45 for length in lengths)
    assert any(length > 45 for length in lengths)
    for circuit in circuits:
        circuit.reset()
        circuit.acquire().failure("server_error", retry_after=100)
    assert min(circuit.snapshot().retry_after for circuit in circuits) >= 100
    assert max(circuit.snapshot().retry_after for circuit in circuits) <= 200
