"""What may happen between any two steps: circuit and guard under a scheduler that decides who goes on.

`every` plays each interleaving of a small scene, `some` random ones of a large scene, down to single lines of the files
in `LINES`; `orders` does the same for tasks. After each, `World.settled` says what must hold.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest

import otel_breaker
from otel_breaker import Policy, _admission, _effects, _frames, _guard, _quotas, _settling, _shells, circuit
from otel_breaker.core.events import Admitted
from tests.support.circuits import decisions, outcomes
from tests.support.scheduler import Deadlock, Run, Scene, SharedLock, every, some
from tests.support.tasks import Turn, orders
from tests.support.watched import Oops, Quotas, World, watching

LINES = [
    str(module.__file__) for module in (_admission, _effects, _frames, _guard, _quotas, _settling, _shells, circuit)
]
ONE = Policy(failure_threshold=1, throttle_threshold=1)
TWO = Policy(failure_threshold=2)

Work = Callable[[World], Any]


def scene(
    policy: Policy,
    *cast: Work,
    before: Work | None = None,
    after: Work | None = None,
    mode: str = "enforce",
) -> Scene:
    """A scene with one circuit: what is done before, the actors, and what must hold after besides the rest."""

    @contextmanager
    def play(run: Run) -> Iterator[None]:
        world = World(run, policy, mode, time_moves=time_goes_by in cast)
        with watching(world):
            for guarded in (through, *through_with.values(), stream):
                guarded.__otel_breaker__.circuit = world.circuit
            if before is not None:
                before(world)
            for number, work in enumerate(cast):
                run.actor(f"{getattr(work, '__name__', 'work')}{number}", partial(work, world))
            yield
            if after is not None:
                after(world)
            world.settled()

    return play


# --- the guarded functions --------------------------------------------------------------------------------------------


class Busy(Oops):
    """A 429."""


class Denied(Oops):
    """A 401."""


def explained(what: object) -> str | None:
    """The user's classifier: foreign code, too."""
    World.here.foreign("a classifier")
    return "throttled" if isinstance(what, Busy) else "unauthorized" if isinstance(what, Denied) else None


def plain(body: Callable[[], Any]) -> Any:
    return body()


through: Any = otel_breaker.guard(tool="svc", on_open="raise")(plain)  # the hot path
through_with: dict[str, Any] = {
    who: otel_breaker.guard(tool="svc", on_open="raise", credential=who, classify=explained)(plain) for who in "ab"
}


@otel_breaker.guard(tool="svc", on_open="raise")
def stream_of(body: Callable[[], Any]) -> Iterator[Any]:
    for _ in range(3):
        yield body()


stream: Any = stream_of


# --- actors -----------------------------------------------------------------------------------------------------------


def nothing() -> None:
    return None


def raising(error: type[BaseException]) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


broken = raising(Oops)


def good(world: World) -> None:
    world.call(nothing, through)


def bad(world: World) -> None:
    world.call(broken, through)


def by_hand(world: World) -> None:
    world.call(nothing)


def neutral(world: World) -> None:
    world.call(raising(KeyboardInterrupt))


def three_times(world: World) -> None:
    for body in (nothing, broken, nothing):
        world.call(body, through)


def asks(world: World) -> None:
    """One call asks, and never ends."""
    world.run.notes.append(world.circuit.admit())


def reset(world: World) -> None:
    world.circuit.reset()


def force(world: World) -> None:
    world.circuit.force_open("by hand")


def force_for_a_while(world: World) -> None:
    world.circuit.force_open("by hand", 5.0)


def off_and_on(world: World) -> None:
    world.circuit.disable()
    world.circuit.resume()


def time_goes_by(world: World) -> None:
    world.clock.advance(30.0)


def looks(world: World) -> None:
    shown = world.circuit.snapshot()
    assert shown.retry_after >= 0
    assert shown.failures >= 1 or shown.state in ("closed", "forced_open", "disabled")


def with_credential(who: str, error: type[Exception] | None = None) -> Work:
    def work(world: World) -> None:
        world.call(raising(error) if error is not None else nothing, through_with[who])

    work.__name__ = f"{who}_{error.__name__ if error is not None else 'good'}"
    return work


def reads(world: World) -> None:
    """A probe that streams: each piece comes almost a lease after the last one."""
    with world.answer():
        for _ in stream(lambda: world.body(nothing)):
            world.clock.advance(20.0)


# --- before and after -------------------------------------------------------------------------------------------------


def one_failure(world: World) -> None:
    assert world.call(broken) == "Oops"


def opened(world: World) -> None:
    while world.circuit.snapshot().state == "closed":
        one_failure(world)


def cooled_down(world: World) -> None:
    opened(world)
    world.clock.advance(30.0)


def one_probe(world: World) -> None:
    assert decisions(world.circuit).get("probe", 0) == 1


class Out:
    """A call that was let in before."""

    def __init__(self, world: World) -> None:
        world.run.notes.append(world.circuit.acquire())


def late_success(world: World) -> None:
    world.run.notes[0].success()


def late_failure(world: World) -> None:
    world.run.notes[0].failure("timeout")


def opened_with_one_out(world: World) -> None:
    Out(world)
    opened(world)


def cooled_down_with_one_out(world: World) -> None:
    Out(world)
    cooled_down(world)


def late(world: World) -> None:
    assert outcomes(world.circuit)["late"] == 1


def closed_and_late(world: World) -> None:
    late(world)
    assert (world.circuit.state, world.circuit.snapshot().failures) == ("closed", 0)


def quotas(world: World) -> None:
    """From here on, also what is done with the quota circuits of `World.circuit` is a step."""
    world.circuit.quotas = Quotas()
    Quotas.run = world.run


def a_has_worked(world: World) -> None:
    quotas(world)
    a_good(world)


def a_was_revoked(world: World) -> None:
    a_has_worked(world)
    a_denied(world)


def b_was_busy(world: World) -> None:
    quotas(world)
    b_busy(world)
    assert world.circuit.gate is None
    world.clock.advance(30.0)


def both_were_busy(world: World) -> None:
    quotas(world)
    a_busy(world)
    b_busy(world)
    world.clock.advance(30.0)


def resume(world: World) -> None:
    world.circuit.resume()


def listener_that_calls(world: World) -> None:
    def again(transition: Any) -> None:
        if transition.state == "open":
            assert world.circuit.snapshot().state == "open"
            world.circuit.reset()
            world.call(nothing)

    world.listeners.append(again)


a_good, b_good = with_credential("a"), with_credential("b")
a_busy, b_busy = with_credential("a", Busy), with_credential("b", Busy)
a_denied = with_credential("a", Denied)

# --- every interleaving of small scenes -------------------------------------------------------------------------------

COMMANDS: list[Work] = [reset, force, force_for_a_while, off_and_on]

SMALL: dict[str, Scene] = {
    "the first failure of two opens": scene(ONE, bad, bad),
    "a success beside the failure that opens": scene(ONE, bad, good),
    "two failures open together": scene(TWO, bad, bad),
    "a success beside the second failure": scene(TWO, bad, good, before=one_failure),
    "two successes beside the failure that opens": scene(ONE, bad, good, good),
    "three failures and two are enough": scene(TWO, bad, bad, bad),
    "two want to be the probe": scene(ONE, good, good, before=cooled_down),
    "two want to be the probe, one fails": scene(ONE, bad, good, before=cooled_down),
    "two want to be the probe, one says nothing": scene(ONE, neutral, by_hand, before=cooled_down),
    "two of two probes": scene(Policy(failure_threshold=1, success_threshold=2), good, good, before=cooled_down),
    "the cooldown ends while one calls": scene(ONE, good, time_goes_by, before=opened),
    "a probe lapses": scene(ONE, bad, time_goes_by, before=cooled_down),
    "a probe lapses while another one calls": scene(ONE, good, time_goes_by, by_hand, before=cooled_down),
    "somebody looks on": scene(ONE, bad, looks, looks),
    "observed: two calls beside an opening": scene(ONE, bad, good, mode="observe"),
    "observed: two want to be the probe": scene(ONE, bad, good, before=cooled_down, mode="observe"),
    **{
        f"{command.__name__} while {work.__name__} probes": scene(ONE, work, command, before=cooled_down)
        for command in COMMANDS
        for work in (good, bad)
    },
    **{f"{command.__name__} beside an opening": scene(ONE, bad, command) for command in COMMANDS},
    "two commands": scene(ONE, reset, force_for_a_while, before=cooled_down),
    "a command between two probes": scene(ONE, bad, reset, good, before=cooled_down),
    "reset while a probe streams": scene(ONE, reads, reset, before=cooled_down),
    "a call beside a probe that streams": scene(ONE, reads, good, before=cooled_down),
    "a call from before the opening ends": scene(ONE, late_success, good, before=cooled_down_with_one_out, after=late),
    "a call from before the opening ends badly": scene(
        ONE, late_failure, good, before=cooled_down_with_one_out, after=closed_and_late
    ),
    "a call from before a reset ends badly": scene(ONE, late_failure, reset, before=opened_with_one_out, after=late),
    "two quotas, one ends and one begins": scene(ONE, a_busy, b_good, before=b_was_busy),
    "two quotas, both end": scene(ONE, a_good, b_good, before=both_were_busy),
    "two calls find the same quota": scene(ONE, a_busy, with_credential("a", Busy), before=quotas),
    "a quota begins while the host fails": scene(ONE, a_busy, bad, before=quotas),
    "a quota ends while the host fails": scene(ONE, b_good, bad, before=b_was_busy),
    "a credential is revoked while another call has it": scene(ONE, a_denied, a_good, before=a_has_worked),
    "a pause is ended while a call tries": scene(ONE, a_good, resume, before=a_was_revoked),
    "a listener calls the circuit": scene(ONE, bad, good, before=listener_that_calls),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_interleaving(name: str) -> None:
    tally = every(SMALL[name], 10_000)
    assert tally.played > 1
    print(f"{tally.played} interleavings of up to {tally.longest} steps")


def test_of_three_that_ask_at_once_one_is_the_probe_in_every_interleaving() -> None:
    @contextmanager
    def play(run: Run) -> Iterator[None]:
        world = World(run, ONE)
        with watching(world):
            cooled_down(world)
            for name in "xyz":
                run.actor(name, partial(asks, world))
            yield
            said = [answer.probe if isinstance(answer, Admitted) else answer.decision for answer in run.notes]
            assert sorted(said, key=str) == [True, "probe_in_flight", "probe_in_flight"]
            assert world.wrong == []

    assert every(play, 10_000).played > 6


# --- random interleavings of large ones -------------------------------------------------------------------------------

LARGE: dict[str, Scene] = {
    "five want to be the probe": scene(ONE, *[good] * 5, before=cooled_down, after=one_probe),
    "five want to be the probe, and each fails": scene(ONE, *[bad] * 5, before=cooled_down),
    "six calls beside an opening": scene(TWO, bad, bad, bad, good, three_times, three_times),
    "commands while everybody calls": scene(
        ONE, three_times, three_times, reset, force_for_a_while, off_and_on, good, before=cooled_down
    ),
    "time goes by": scene(
        ONE, three_times, time_goes_by, neutral, time_goes_by, bad, time_goes_by, reads, before=opened
    ),
    "two credentials": scene(ONE, a_good, b_good, a_busy, b_busy, bad, time_goes_by, reset, before=both_were_busy),
    "a credential that dies": scene(ONE, a_denied, a_good, a_busy, b_good, resume, three_times, before=a_has_worked),
    "observed": scene(TWO, three_times, three_times, reset, bad, good, before=opened, mode="observe"),
    "shares": scene(
        Policy(failure_rate=0.5, minimum_calls=2), three_times, three_times, bad, good, off_and_on, time_goes_by
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_random_interleavings(name: str) -> None:
    tally = some(LARGE[name], range(150))
    print(f"{tally.played} interleavings of up to {tally.longest} steps")


@pytest.mark.parametrize("name", LARGE)
def test_random_interleavings_line_by_line(name: str) -> None:
    tally = some(LARGE[name], range(40), LINES)
    print(f"{tally.played} interleavings of up to {tally.longest} steps")


# --- tasks ------------------------------------------------------------------------------------------------------------


def tasks(
    *names: str, policy: Policy = ONE, before: Work = cooled_down, after: Work = lambda world: None
) -> Callable[[dict[str, asyncio.Task[None]]], Any]:
    """A scene of tasks: each name is what one of them does."""

    @asynccontextmanager
    async def play(running: dict[str, asyncio.Task[None]]) -> AsyncIterator[dict[str, Any]]:
        world = World(Run(lambda run, ready: ready[0]), policy)

        def named(number: int, name: str) -> Any:
            async def works(turn: Turn) -> None:
                async def fine() -> None:
                    await turn()

                async def fails() -> None:
                    await turn()
                    raise Oops

                match name:
                    case "good":
                        await world.acall(fine)
                    case "bad":
                        await world.acall(fails)
                    case "cancel":
                        running[f"0 {names[0]}"].cancel()
                    case "reset":
                        world.circuit.reset()
                    case "force":
                        world.circuit.force_open("by hand", 5.0)
                    case "time":
                        world.clock.advance(30.0)

            return works

        with watching(world):
            before(world)
            yield {f"{number} {name}": named(number, name) for number, name in enumerate(names)}
            after(world)
            world.settled()

    return play


TASKS: dict[str, Any] = {
    "three want to be the probe": tasks("good", "good", "good"),
    "a probe that fails beside two others": tasks("bad", "good", "good"),
    "a probe is cancelled": tasks("good", "cancel", "good"),
    "a probe lapses": tasks("good", "time", "bad", "time"),
    "a reset while a probe is out": tasks("bad", "reset", "good", "good"),
    "a force while a probe is out": tasks("good", "force", "bad"),
    "an opening": tasks("bad", "good", "bad", "good", before=lambda world: None),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_order_of_tasks(name: str) -> None:
    played = asyncio.run(orders(TASKS[name]))
    assert played > 1
    print(f"{played} orders")


# --- the scheduler itself ---------------------------------------------------------------------------------------------


def adding(run: Run, cell: list[int], lock: SharedLock | None) -> None:
    """``cell[0] += 1`` in two steps; without a lock, one of two may be lost."""
    with lock or nullcontext():
        run.at("cell")
        found = cell[0]
        run.at("cell", write=True)
        cell[0] = found + 1


@pytest.mark.parametrize(("locked", "sums"), [(False, {1, 2, 3}), (True, {3})])
def test_the_scheduler_finds_a_lost_update_and_none_under_a_lock(locked: bool, sums: set[int]) -> None:
    ends: set[int] = set()

    @contextmanager
    def play(run: Run) -> Iterator[None]:
        cell, lock = [0], SharedLock(run, "lock") if locked else None
        for name in "xyz":
            run.actor(name, partial(adding, run, cell, lock))
        yield
        ends.add(cell[0])

    every(play)
    assert ends == sums
    some(play, range(300))
    assert ends == sums


def test_the_scheduler_plays_what_differs_once() -> None:
    """Two actors write x, y, x and y, x: 10 interleavings; in those that differ the writes to x and to y do."""
    ends: list[tuple[str, ...]] = []

    @contextmanager
    def play(run: Run) -> Iterator[None]:
        order: dict[str, str] = {"x": "", "y": ""}

        def writes(name: str, cells: str) -> None:
            for cell in cells:
                run.at(cell, write=True)
                order[cell] += name

        run.actor("a", partial(writes, "a", "xyx"))
        run.actor("b", partial(writes, "b", "yx"))
        yield
        ends.append(tuple(order.values()))

    tally = every(play)
    brute = set()
    for places in itertools.combinations(range(5), 2):
        order = {"x": "", "y": ""}
        todo = {"a": list("xyx"), "b": list("yx")}
        for place in range(5):
            name = "b" if place in places else "a"
            order[todo[name].pop(0)] += name
        brute.add(tuple(order.values()))
    assert set(ends) == brute
    assert tally.played == len(brute) == len(ends)


def test_the_scheduler_finds_a_deadlock() -> None:
    @contextmanager
    def play(run: Run) -> Iterator[None]:
        one, two = SharedLock(run, "one"), SharedLock(run, "two")

        def both(first: SharedLock, second: SharedLock) -> None:
            with first, second:
                pass

        run.actor("x", partial(both, one, two))
        run.actor("y", partial(both, two, one))
        yield

    with pytest.raises(Deadlock, match="nobody can go on"):
        every(play)
