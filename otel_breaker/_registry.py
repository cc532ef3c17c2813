"""The registry: key -> circuit, name -> numbers, both bounded, both process-wide."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, WeakValueDictionary

from . import _forking, keys
from ._bindings import release
from ._log import once
from ._policies import named_policy
from ._quotas import idle
from .circuit import Circuit, first_state
from .core.clock import Clock
from .core.policy import Policy
from .core.views import Snapshot
from .keys import CircuitKey
from .stats import Stats

if TYPE_CHECKING:
    from ._config import CircuitConfig

OTHER: Final = "_other"
"""The name that takes in what comes after the cap on names."""

LOOK: Final = 64
"""Circuits looked at to make room for one: a call past the cap must not pay for all that are open."""


class Registry:
    """All circuits of a process.

    Args:
        clock: the clock of every circuit made here; ``None`` is the system's.
        max_names: distinct metric names in the life of the registry; ``None`` takes the setting (200).
        max_circuits: circuits held at a time; ``None`` takes the setting (10,000).
    """

    def __init__(
        self, *, clock: Clock | None = None, max_names: int | None = None, max_circuits: int | None = None
    ) -> None:
        self.clock = clock
        self.store_errors = 0
        self._max_names = max_names
        self._max_circuits = max_circuits
        self._lock = threading.Lock()
        self._circuits: dict[CircuitKey, Circuit] = {}
        self._clients: dict[str, Circuit] = {}
        self._loose: WeakSet[Circuit] = WeakSet()
        self._evicted: WeakSet[Circuit] = WeakSet()
        self._stats: dict[str, Stats] = {}
        self._newest: dict[str, Circuit] = {}
        self._newest_loose: WeakValueDictionary[str, Circuit] = WeakValueDictionary()

    # --- public -------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Circuit | None:
        """The newest circuit of that name, or ``None``."""
        found = self._newest_loose.get(name) or self._newest.get(name)
        return found or next((circuit for circuit in self if circuit.name == name), None)

    def __iter__(self) -> Iterator[Circuit]:
        with self._lock:
            circuits = [*self._circuits.values(), *self._loose]
        return iter(circuits)

    def __len__(self) -> int:
        return len(self._circuits) + len(self._loose)

    def snapshot(self) -> list[Snapshot]:
        """Every circuit as this moment makes it."""
        return [circuit.snapshot() for circuit in self]

    def reset(self) -> None:
        """Close all circuits and zero them."""
        for circuit in self:
            circuit.reset()

    def clear(self) -> None:
        """Forget all circuits. The numbers stay: a counter never falls."""
        with self._lock:
            self._circuits = {}
            self._clients = {}
            self._loose = WeakSet()
            self._evicted = WeakSet()
            self._newest = {}
            self._newest_loose = WeakValueDictionary()
        release()

    def renew(self) -> None:
        """In a forked child: new locks, counters from zero; the verdicts stay, the probes under way do not."""
        self._lock = threading.Lock()
        for one in self._stats.values():
            one.zero()
        for circuit in self:
            circuit.inherit()

    # --- for the package ----------------------------------------------------------------------------------------------

    def names(self) -> list[Stats]:
        """The numbers of every name seen so far."""
        return list(self._stats.values())

    def client(self, dependency: str) -> Circuit:
        """The availability circuit of a dependency; made at its first call."""
        found = self._clients.get(dependency)
        if found is None:
            found = self._make(CircuitKey(dependency), dependency, self.config(None, dependency))
        return found

    def tool(
        self, identity: str, name: str, config: CircuitConfig, policy: Policy | None, clock: Clock | None
    ) -> Circuit:
        """The circuit of a function tool: its dependency's if it is mapped to one, else its own."""
        if config.scope == "instance" and config.dependency is None:
            circuit = self._new(CircuitKey(identity, "instance"), name, config, policy, clock)
            self._list(circuit)
            return circuit
        if config.dependency is not None:
            key, name = CircuitKey(config.dependency), config.dependency
        else:
            key = CircuitKey(identity, "tool")
        circuit = self._make(key, name, config, policy, clock)
        if policy is not None and policy != circuit.policy:
            once(("policy", key), "%s: another guard set its policy first; that one holds", circuit.name)
        return circuit

    def keyed(self, key: CircuitKey, name: str, config: CircuitConfig) -> Circuit:
        """The circuit of a key that is not a dependency's name alone."""
        return self._make(key, name, config)

    def adopt(
        self, circuit: Circuit, name: str, policy: Policy | str | None, clock: Clock | None, credential: str | None
    ) -> None:
        """Fill in a circuit that is being made by hand, and list it while somebody holds it."""
        name = keys.display_safe(str(name))
        config = self.config(None, name)
        self._fill(circuit, CircuitKey(name, "hand"), name, config, named_policy(policy), clock)
        circuit._credential = None if credential is None else keys.fingerprint("given", credential)
        self._list(circuit)

    def _list(self, circuit: Circuit) -> None:
        """List a circuit for as long as somebody holds it."""
        with self._lock:
            self._loose.add(circuit)
            self._newest_loose[circuit.name] = circuit

    def scoped(self, circuit: Circuit, fingerprint: str) -> Circuit:
        """The availability circuit of (dependency, credential) under ``scope: credential``."""
        key = CircuitKey(circuit.key.dependency, keys.within(circuit.key.scope, fingerprint))
        found = self._circuits.get(key)
        if found is None:
            config = self.config(None, circuit.key.dependency)
            found = self._make(key, circuit.name, config, circuit.policy, circuit.clock)
            found.split = False
        return found

    def stats(self, name: str) -> Stats:
        """The numbers of a name; past the cap they are those of ``_other``."""
        found = self._stats.get(name)
        if found is None:
            if len(self._stats) >= self._cap("max_names", self._max_names, 200) and name != OTHER:
                once("names", "more than %d circuit names; further ones are counted as %s", len(self._stats), OTHER)
                return self.stats(OTHER)
            found = self._stats.setdefault(name, Stats(name))
        return found

    def config(self, tool: str | None, dependency: str | None) -> CircuitConfig:
        """What the settings say about a tool or a dependency."""
        from .settings import current

        return current().resolve(tool, dependency)

    def _make(
        self,
        key: CircuitKey,
        name: str,
        config: CircuitConfig,
        policy: Policy | None = None,
        clock: Clock | None = None,
    ) -> Circuit:
        found = self._circuits.get(key)
        if found is not None:
            return found
        made = self._new(key, name, config, policy, clock)
        with self._lock:
            if (found := self._circuits.get(key)) is not None:
                return found
            held = len(self._circuits)
            if held < self._cap("max_circuits", self._max_circuits, 10_000) or self._evict():
                self._circuits[key] = made
                self._newest[made.name] = made
                self._newest_loose.pop(made.name, None)
                if not key.scope:
                    self._clients[key.dependency] = made
                return made
        once("circuits", "%d circuits and no closed one to forget: new ones have no memory", held)  # not under the lock
        return made

    def _new(
        self, key: CircuitKey, name: str, config: CircuitConfig, policy: Policy | None, clock: Clock | None
    ) -> Circuit:
        circuit = Circuit.__new__(Circuit)
        self._fill(circuit, key, keys.display_safe(name), config, policy, clock)
        return circuit

    def _fill(
        self,
        circuit: Circuit,
        key: CircuitKey,
        name: str,
        config: CircuitConfig,
        policy: Policy | None,
        clock: Clock | None,
    ) -> None:
        chosen = policy or config.policy
        circuit._build(name, key, chosen, config.mode, clock or self.clock, self.stats(name), first_state(chosen))
        circuit.display_name, circuit.alternatives = config.display_name, config.alternatives
        circuit.split = config.scope == "credential"

    def _evict(self) -> bool:
        """Make room by forgetting the oldest closed circuit of the next few. Never one that is not closed."""
        for key, circuit in list(islice(self._circuits.items(), LOOK)):
            if idle(circuit):
                del self._circuits[key]
                self._evicted.add(circuit)
                if self._clients.get(key.dependency) is circuit:
                    del self._clients[key.dependency]
                if self._newest.get(circuit.name) is circuit:
                    del self._newest[circuit.name]
                return True
            self._circuits[key] = self._circuits.pop(key)  # to the end: the next look goes on behind it
        return False

    def seen_again(self, circuit: Circuit) -> None:
        """A circuit has left closed: if it had been forgotten while a guard still held it, it is listed again."""
        with self._lock:
            if circuit in self._evicted and circuit.key not in self._circuits:
                self._evicted.discard(circuit)
                self._circuits[circuit.key] = self._newest[circuit.name] = circuit

    def _cap(self, name: str, own: int | None, default: int) -> int:
        if own is not None:
            return own
        from .settings import current

        return int(getattr(current(), name, default))


_current = Registry()


def registry() -> Registry:
    """The process-wide registry."""
    return _current


def swap(new: Registry) -> Registry:
    """Put ``new`` in the place of the process-wide registry and return the old one; guards rebind."""
    global _current
    old, _current = _current, new
    release()
    return old


_forking.watch(registry)
