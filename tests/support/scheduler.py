"""Threads that run one at a time, and only as far as they are told: every interleaving, or a chosen one.

An actor is a real thread. Before each access to something shared (a `Run.at`) it stops, says what it is about to do,
and goes on when it is its turn. So one list of choices is one interleaving, and it can be played again.

`every` plays all of them that differ: two that only swap neighbouring steps which do not touch the same thing are one
(dynamic partial order reduction, Flanagan and Godefroid 2005, with sleep sets). `some` plays random ones, which may
also switch between any two lines of the files that are named.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

Cell = Hashable
Op = tuple[Cell, bool, bool]
"""(what is touched, is it written, does it wait for a lock); ``(None, False, False)`` touches nothing."""

NOTHING: Final[Op] = (None, False, False)
PATIENCE: Final = 20.0
"""Seconds of the real clock after which a run counts as hung: an actor waits for something that is not scheduled."""


class Stopped(BaseException):
    """Unwinds the actors of a run that is over early."""


class Deadlock(AssertionError):
    """Nobody can go on."""


class Actor:
    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self.work = work
        self.turn = threading.Lock()
        self.turn.acquire()
        self.op: Op = NOTHING
        self.over = False
        self.error: BaseException | None = None


class SharedLock:
    """A lock of the run: who waits for it is not scheduled."""

    def __init__(self, run: Run, cell: Cell) -> None:
        self.run = run
        self.cell = cell
        self.owner: Actor | None = None

    def __enter__(self) -> None:
        actor = self.run.at(self.cell, write=True, lock=True)
        if actor is not None:
            assert self.owner is None
            self.owner = actor
            self.run.locks[self.cell] = self

    def __exit__(self, *_: object) -> None:
        if self.owner is not None and not self.run.stopped:
            self.run.at(self.cell, write=True)
        self.owner = None


Choose = Callable[["Run", list[Actor]], Actor]


class Run:
    """One interleaving.

    Attributes:
        steps: (actor, op), in the order in which they were done.
        notes: what a test wants to remember of it.
    """

    def __init__(self, choose: Choose, lines: Collection[str] = ()) -> None:
        self.choose = choose
        self.lines = frozenset(lines)
        self.actors: list[Actor] = []
        self.locks: dict[Cell, SharedLock] = {}
        self.steps: list[tuple[Actor, Op]] = []
        self.notes: list[Any] = []
        self.stopped = False
        self.failure: BaseException | None = None
        self._here: dict[int, Actor] = {}
        self._over = threading.Event()

    def actor(self, name: str, work: Callable[[], Any]) -> None:
        self.actors.append(Actor(name, work))

    @property
    def current(self) -> Actor | None:
        """The actor that is asking."""
        return self._here.get(threading.get_ident())

    def held(self) -> list[Cell]:
        """The locks that the asking actor holds."""
        return [cell for cell, lock in self.locks.items() if lock.owner is not None and lock.owner is self.current]

    def at(self, cell: Cell, *, write: bool = False, lock: bool = False) -> Actor | None:
        """The asking actor is about to touch ``cell``. ``None`` for a thread that is no actor: it just goes on."""
        actor = self.current
        if actor is None:
            return None
        if self.stopped:
            raise Stopped
        actor.op = (cell, write, lock)
        following = self._next()
        if following is not actor and not self.stopped:
            self._wake(following)
            actor.turn.acquire()
        if self.stopped:
            raise Stopped
        self.steps.append((actor, actor.op))
        return actor

    def go(self) -> None:
        """Play it to its end.

        Raises:
            Deadlock: or whatever else an actor did not expect.
        """
        threads = [threading.Thread(target=self._act, args=(actor,), daemon=True) for actor in self.actors]
        for thread in threads:
            thread.start()
        self._wake(self._next())
        if not self._over.wait(PATIENCE):
            self._stop(Deadlock("an actor waits for something outside the run"))
        for thread in threads:
            thread.join(PATIENCE)
        if self.failure is not None:
            raise self.failure

    def _act(self, actor: Actor) -> None:
        self._here[threading.get_ident()] = actor
        actor.turn.acquire()
        if self.lines:
            sys.settrace(self._trace)
        try:
            if not self.stopped:
                self.steps.append((actor, actor.op))
                actor.work()
        except Stopped:
            pass
        except BaseException as error:
            self._stop(error)
        finally:
            sys.settrace(None)
            actor.over = True
            if not self.stopped:
                self._wake(self._next())

    def _next(self) -> Actor | None:
        alive = [actor for actor in self.actors if not actor.over]
        ready = [actor for actor in alive if not (actor.op[2] and self._taken(actor.op[0]))]
        if not alive:
            return None
        if not ready:
            self._stop(Deadlock(f"nobody can go on: {[(actor.name, actor.op[0]) for actor in alive]}"))
            return None
        return self.choose(self, ready)

    def _taken(self, cell: Cell) -> bool:
        lock = self.locks.get(cell)
        return lock is not None and lock.owner is not None

    def _wake(self, actor: Actor | None) -> None:
        if actor is None:
            self._over.set()
        else:
            actor.turn.release()

    def _stop(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.stopped = True
        here = self.current
        for actor in self.actors:
            if not actor.over and actor is not here and actor.turn.locked():
                actor.turn.release()
        self._over.set()

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in self.lines:
            return None
        if event == "line":
            self.at(None)
        return self._trace


# --- every interleaving -----------------------------------------------------------------------------------------------

Scene = Callable[[Run], AbstractContextManager[None]]
"""Entered, it sets the actors of a run up; left, it checks the run."""


@dataclass
class Node:
    """The moment before one step: who could go on, with what, and who has been tried."""

    pending: dict[str, Op]
    chosen: str
    asleep: dict[str, Op]
    wanted: set[str] = field(default_factory=set)
    tried: dict[str, Op] = field(default_factory=dict)


@dataclass
class Tally:
    """How many interleavings were played, and the longest of them in steps."""

    played: int = 0
    longest: int = 0


def clash(one: Op, other: Op) -> bool:
    """Whether the order of these two steps can matter."""
    return one[0] is not None and one[0] == other[0] and (one[1] or other[1])


def every(scene: Scene, limit: int = 1_000_000) -> Tally:
    """Play every interleaving that differs.

    Raises:
        AssertionError: if there are more than ``limit``; and whatever a run or its check raises, with its choices.
    """
    tally, path = Tally(), list[Node]()
    while True:
        depth, last = 0, ""
        redundant = False

        def choose(run: Run, ready: list[Actor]) -> Actor:
            nonlocal depth, last, redundant
            names = {actor.name: actor for actor in ready}
            if depth < len(path):
                node = path[depth]
            else:
                asleep = _asleep(path[-1]) if path else {}
                awake = [name for name in names if name not in asleep]
                redundant = redundant or not awake
                pick = last if last in (awake or names) else (awake or list(names))[0]
                if redundant:
                    return names[pick]
                node = Node({name: actor.op for name, actor in names.items()}, pick, asleep, {pick})
                path.append(node)
            depth, last = depth + 1, node.chosen
            return names[node.chosen]

        run = Run(choose)
        _play(run, scene, lambda: [node.chosen for node in path])
        if not redundant:
            tally.played += 1
            tally.longest = max(tally.longest, len(run.steps))
            assert tally.played <= limit, f"more than {limit} interleavings"
        _race(run.steps, path)
        while path:
            node = path[-1]
            node.tried[node.chosen] = node.pending[node.chosen]
            left = node.wanted - node.tried.keys() - node.asleep.keys()
            if left:
                node.chosen = min(left)
                break
            path.pop()
        else:
            return tally


def _asleep(node: Node) -> dict[str, Op]:
    """Whom it is pointless to wake next: the same steps in another order have been played."""
    done = node.pending[node.chosen]
    candidates = {**node.asleep, **node.tried}
    return {name: op for name, op in candidates.items() if name != node.chosen and not clash(op, done)}


def _race(steps: list[tuple[Actor, Op]], path: list[Node]) -> None:
    """Wherever two clashing steps could have come the other way round, ask for that."""
    clocks: dict[str, dict[str, int]] = {}  # actor -> actor -> the last step of it that certainly came before
    touched: dict[Cell, list[tuple[int, str, Op, dict[str, int]]]] = {}
    for index, (actor, op) in enumerate(steps):
        name, cell = actor.name, op[0]
        clock = clocks.setdefault(name, {})
        if cell is not None:
            earlier = touched.setdefault(cell, [])
            for at, who, what, _ in reversed(earlier):
                if who == name or not clash(what, op) or (op[2] and not what[2]) or at <= clock.get(who, -1):
                    continue
                if at < len(path):
                    node = path[at]
                    node.wanted.update([name] if name in node.pending else node.pending)
                break
            for at, who, what, then in earlier:
                if who != name and clash(what, op) and at > clock.get(who, -1):
                    for other, seen in then.items():
                        clock[other] = max(clock.get(other, -1), seen)
            clock[name] = index
            earlier.append((index, name, op, dict(clock)))
        clock[name] = index


# --- some of them -----------------------------------------------------------------------------------------------------


def some(scene: Scene, seeds: range, lines: Collection[str] = ()) -> Tally:
    """Play one random interleaving for each seed.

    Raises:
        AssertionError: and whatever else a run or its check raises, with its seed.
    """
    tally = Tally()
    for seed in seeds:
        rng = random.Random(f"interleaving {seed}")
        stay = rng.choice([0.0, 0.5, 0.9])  # long stretches of one actor find other faults than a fair mixture

        def choose(run: Run, ready: list[Actor], rng: random.Random = rng, stay: float = stay) -> Actor:
            last = run.steps[-1][0] if run.steps else None
            return last if last is not None and last in ready and rng.random() < stay else rng.choice(ready)

        run = Run(choose, lines)
        _play(run, scene, lambda seed=seed: f"seed {seed}")  # type: ignore[misc]
        tally.played += 1
        tally.longest = max(tally.longest, len(run.steps))
    return tally


def _play(run: Run, scene: Scene, how: Callable[[], object]) -> None:
    try:
        with scene(run):
            run.go()
    except BaseException as error:
        error.add_note(f"interleaving: {how()}")
        error.add_note("\n".join(_story(run)))
        raise


def _story(run: Run) -> Iterator[str]:
    """The steps of a run, one line for each stretch of one actor."""
    for actor, stretch in itertools.groupby(run.steps, lambda step: step[0]):
        if cells := [f"{cell}{'!' if write else ''}" for _, (cell, write, _) in stretch if cell is not None]:
            yield f"  {actor.name}: {' '.join(cells)}"
