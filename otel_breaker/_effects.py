"""Where effects leave the circuit: to telemetry and to listeners, outside every lock, faults caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._log import fault
from .core.events import PROBE_LAPSED, Effect, EpisodeOver, Moved, ProbeOver, Revoked
from .core.states import CLOSED

if TYPE_CHECKING:
    from .circuit import Circuit


@dataclass(frozen=True, slots=True)
class Transition:
    """What a listener is told.

    Attributes:
        name: the circuit's name.
        previous_state, state: from and to.
        reason: a failure reason, or ``slow_rate``, ``cooldown_elapsed``, ``probe_succeeded``, ``expired``, ``manual``.
        failures: charged failures in a row.
        cooldown: length of the open period, seconds.
        at: when it happened, seconds since the Unix epoch.
    """

    name: str
    previous_state: str
    state: str
    reason: str
    failures: int
    cooldown: float
    at: float


Listener = Callable[[Transition], Any]
_listeners: tuple[Listener, ...] = ()


def add_listener(listener: Listener) -> Callable[[], None]:
    """Call ``listener(transition)`` after every transition, outside every lock.

    Returns:
        A function that takes the listener off again.

    Raises:
        TypeError: if it cannot be called.
    """
    if not callable(listener):
        raise TypeError(f"a listener must be a function, not {type(listener).__name__}")
    global _listeners
    _listeners = (*_listeners, listener)

    def remove() -> None:
        global _listeners
        _listeners = tuple(one for one in _listeners if one is not listener)

    return remove


def publish(circuit: Circuit, effects: tuple[Effect, ...], site: Any = None, credential: str | None = None) -> None:
    """Tell telemetry and listeners. Never raises."""
    if not effects:
        return
    try:
        from ._registry import registry
        from .telemetry import emit

        emit.start()
        for effect in effects:
            if isinstance(effect, Moved):
                if effect.previous_state == CLOSED:
                    registry().seen_again(circuit)
                emit.on_moved(circuit, effect, site, credential)
            elif isinstance(effect, EpisodeOver) and circuit.role == "availability":
                emit.on_episode_over(circuit, effect.duration)
            elif isinstance(effect, Revoked):
                emit.on_revoked(circuit, site, credential)
            elif isinstance(effect, ProbeOver) and effect.reason == PROBE_LAPSED:
                emit.on_done(None, circuit, site, effect.kind, effect.reason, True, credential)
    except Exception as error:
        fault("telemetry", "telemetry failed; calls go on without it", error)
    if _listeners and circuit.role == "availability":
        _tell(circuit, effects)


def _tell(circuit: Circuit, effects: tuple[Effect, ...]) -> None:
    clock = circuit.clock
    offset = clock.wall() - clock.now()
    for effect in effects:
        if not isinstance(effect, Moved):
            continue
        told = Transition(
            circuit.name, effect.previous_state, effect.state, effect.reason, effect.failures, effect.cooldown,
            effect.at + offset,
        )  # fmt: skip
        for listener in _listeners:
            try:
                listener(told)
            except Exception as error:
                fault(("listener", id(listener)), "a transition listener raised; the circuit goes on", error)
