"""A circuit whose every shared read and write is a step of a `scheduler.Run`, and what must hold of it at any time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import otel_breaker
from otel_breaker import Circuit, CircuitOpenError, Policy, _quotas, _registry, settings
from otel_breaker._frames import CIRCUIT, FRAME, PERMIT, PROBE
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from otel_breaker.core.states import Closed, ForcedOpen, HalfOpen, Open, State
from otel_breaker.telemetry import emit
from tests.support.circuits import decisions, moves, outcomes
from tests.support.scheduler import Run, SharedLock

SHARED: Final = frozenset({"_state", "gate", "busy", "quotas"})
"""The attributes whose reads and writes are steps. The counters are not: ``n += 1`` is one piece (stats.py)."""

TOLD: Final = ("on_moved", "on_episode_over", "on_revoked", "on_refuse", "on_admit", "on_done", "start")


NOBODY: Final = -1
"""In place of a step: the call was made before or after the run."""


class Oops(Exception):
    """What a broken dependency raises."""


class Clock(ManualClock):
    """A manual clock; where somebody moves it, its readings are steps."""

    __slots__ = ("moves", "run")

    def __init__(self, run: Run, moves: bool) -> None:
        super().__init__()
        self.run = run
        self.moves = moves

    def now(self) -> float:
        if self.moves:
            self.run.at("clock")
        return super().now()

    def advance(self, seconds: float) -> None:
        self.run.at("clock", write=True)
        super().advance(seconds)


class Quotas(dict[str, Circuit]):
    """A circuit's quota circuits; looking in it and changing it are steps."""

    run: Run

    def get(self, key: str, default: Any = None) -> Any:
        self.run.at("quotas{}")
        return super().get(key, default)

    def values(self) -> Any:
        self.run.at("quotas{}")
        return super().values()

    def __len__(self) -> int:
        self.run.at("quotas{}")
        return super().__len__()

    def __setitem__(self, key: str, value: Circuit) -> None:
        self.run.at("quotas{}", write=True)
        super().__setitem__(key, value)


@dataclass
class Period:
    """A state that a circuit had: written at one step, and seen by everybody from another one on."""

    circuit: Circuit
    state: State
    written: int
    seen: float = math.inf


@dataclass(frozen=True)
class Answer:
    """What one call came to: ``ok``, ``Oops`` or a status; and from which step to which it was decided."""

    said: str
    began: int
    decided: int


class World:
    """One circuit, ``svc``, in a registry of its own, on a clock of its own, all watched by a run."""

    here: ClassVar[World]

    def __init__(self, run: Run, policy: Policy, mode: str = "enforce", time_moves: bool = False) -> None:
        World.here = self
        self.run = run
        self.clock = Clock(run, time_moves)
        self.wrong: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.listeners: list[Callable[[Any], None]] = []
        self.answers: list[Answer] = []
        self.history: list[Period] = []
        self.probing: list[tuple[Circuit, int]] = []
        watched = _watched(self)
        with _in_place(watched, Registry(clock=self.clock)):
            self.circuit = Circuit("svc", policy)
        self.circuit.__class__ = watched
        self.circuit._lock = self.circuit._lock  # of the run, from here on
        self.circuit.mode = mode
        self.history.append(Period(self.circuit, self.circuit._state, 0, 0))
        self.circuit.refresh()
        self.watched = watched

    # --- what actors do -----------------------------------------------------------------------------------------------

    def call(self, body: Callable[[], Any], through: Callable[[Any], Any] | None = None) -> str:
        """One guarded call; what it came to."""
        with self.answer() as (said, entered):

            def protected() -> Any:
                entered.append(len(self.run.steps))
                return self.body(body)

            (through or self.circuit.call)(protected)
        return said[0]

    async def acall(self, body: Callable[[], Any]) -> str:
        """One guarded call of a task; what it came to."""
        with self.answer() as (said, _):
            await self.circuit.acall(self.abody, body)
        return said[0]

    @contextmanager
    def answer(self) -> Iterator[tuple[list[str], list[int]]]:
        """Around one guarded call: gives where it is put what the call came to, and where to put when it was let in."""
        began = len(self.run.steps) if self.run.current is not None else NOBODY
        said, entered = ["ok"], list[int]()
        try:
            yield said, entered
        except (Oops, KeyboardInterrupt):
            said[0] = "Oops"
        except CircuitOpenError as error:
            said[0] = error.answer()["status"]
        finally:
            self.answers.append(Answer(said[0], began, *entered or [len(self.run.steps)]))

    def body(self, body: Callable[[], Any]) -> Any:
        """The protected call: it may be interrupted, and looks round."""
        with self._inside():
            self.run.at(None)
            return body()

    async def abody(self, body: Callable[[], Any]) -> Any:
        """The protected call of a task."""
        with self._inside():
            return await body()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        frame = FRAME.get()
        assert frame is not None
        self.foreign("the protected call")
        probe = (frame[CIRCUIT], frame[PERMIT])
        if not frame[PROBE]:
            yield
            return
        for circuit, permit in self.probing:
            if circuit is probe[0] and permit in (probe[1], circuit._state.id):
                self.wrong.append(f"two probes in flight: {permit} and {probe[1]}")
        self.probing.append(probe)
        try:
            yield
        finally:
            self.probing.remove(probe)

    def foreign(self, who: str) -> None:
        """Called from code that is not the package's: none of its locks may be held."""
        held = [*self.run.held()]
        registry = _registry.registry()
        held += [f"stats of {one.name}" for one in registry.names() if one.lock._is_owned()]
        held += ["registry"] * registry._lock.locked()
        if held:
            self.wrong.append(f"{who} ran under {held}")

    # --- what must hold -----------------------------------------------------------------------------------------------

    def settled(self) -> None:
        """Every actor is done: nothing is lost, nothing is stuck, and the hot path reads what is true."""
        circuit = self.circuit
        every = [circuit, *(circuit.quotas or {}).values()]
        assert self.wrong == []
        assert self.run.held() == []
        assert self.probing == []
        self._adds_up()
        for one in every:
            state = one._state
            quotas = list((one.quotas or {}).values())
            clear = all(isinstance(quota._state, Closed) for quota in quotas)
            opened = isinstance(state, Closed) and clear and one.mode == "enforce"
            assert one.gate == (state.id if opened else None), f"gate {one.gate} in {state}"
            if isinstance(state, Closed):
                assert one.busy == bool(state.failures or state.throttles or state.window is not None or quotas)
            assert not (isinstance(state, HalfOpen) and state.probing), "a probe's slot is still taken"
        self._every_answer_was_true_once(every)
        before = circuit._state
        if isinstance(before, ForcedOpen):
            return
        self.clock.advance(circuit.snapshot().retry_after)  # none is stuck
        assert self.call(lambda: None) == "ok"
        assert circuit.state in ("closed", "half_open", "disabled")

    def _adds_up(self) -> None:
        admitted = sum(decisions(self.circuit).get(one, 0) for one in ("admitted", "probe", "would_reject"))
        ended = sum(outcomes(self.circuit).values())
        assert admitted == ended, f"{decisions(self.circuit)} but {outcomes(self.circuit)}"
        counted = sorted(pair for pair, times in moves(self.circuit).items() for _ in range(times))
        assert sorted(self.told) == counted
        refused = [answer for answer in self.answers if answer.said not in ("ok", "Oops")]
        assert len(refused) == sum(decisions(self.circuit).values()) - admitted

    def _every_answer_was_true_once(self, every: list[Circuit]) -> None:
        """A refused call met, at some moment of its own, a circuit not closed; an admitted one, one that admits."""
        for answer in self.answers:
            if answer.began == NOBODY:
                continue
            met: list[State] = []
            for circuit in every:
                own = [period for period in self.history if period.circuit is circuit]
                gone = [*(after.seen for after in own[1:]), math.inf]
                both = zip(own, gone, strict=True)
                met += [one.state for one, end in both if one.written <= answer.decided and end > answer.began]
            if answer.said not in ("ok", "Oops"):
                assert any(not isinstance(state, Closed) for state in met), f"{answer} met only {met}"
            elif self.circuit.mode == "enforce":
                assert any(not isinstance(state, (Open, ForcedOpen)) for state in met), f"{answer} met only {met}"


def _watched(world: World) -> type[Circuit]:
    run = world.run
    cells: dict[int, str] = {}

    class Watched(Circuit):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in SHARED:
                run.at(f"{cells.setdefault(id(self), f'c{len(cells)}')}.{name}")
            return super().__getattribute__(name)

        def __setattr__(self, name: str, value: Any) -> None:
            cell = cells.setdefault(id(self), f"c{len(cells)}")
            if name == "_lock":
                value = SharedLock(run, f"{cell}.lock")
            elif name in SHARED:
                run.at(f"{cell}.{name}", write=True)
            super().__setattr__(name, value)
            last = next((period for period in reversed(world.history) if period.circuit is self), None)
            if name == "_state" and (last is None or last.state is not value):
                world.history.append(Period(self, value, len(run.steps)))
            elif name == "gate" and last is not None:
                last.seen = min(last.seen, len(run.steps))

    return Watched


@contextmanager
def _in_place(watched: type[Circuit], registry: Registry) -> Iterator[None]:
    old = _registry.swap(registry)
    try:
        yield
    finally:
        _registry.swap(old)


@contextmanager
def watching(world: World) -> Iterator[None]:
    """While a run goes on: quota circuits are watched too, and telemetry and listeners look for locks."""
    kept = {name: getattr(emit, name) for name in TOLD}
    patched: Any = emit

    def checked(name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            world.foreign(f"telemetry {name}")
            return kept[name](*args, **kwargs)

        return function

    def listener(transition: Any) -> None:
        world.foreign("a listener")
        world.told.append((transition.previous_state, transition.state))
        for one in world.listeners:
            one(transition)

    quotas: Any = _quotas
    quotas.Circuit = world.watched
    for name in TOLD:
        setattr(patched, name, checked(name))
    remove = otel_breaker.add_listener(listener)
    settings.forget()
    try:
        yield
    finally:
        remove()
        quotas.Circuit = Circuit
        for name, function in kept.items():
            setattr(patched, name, function)
