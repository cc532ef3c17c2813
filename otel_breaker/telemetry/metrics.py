"""Observable instruments over the plain integers of the registry.

Callbacks run in a reader's thread: they do no I/O and never raise, one bad circuit does not hide the others, and what a
counter has reported never falls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation

from otel_breaker import _log
from otel_breaker._registry import registry
from otel_breaker._version import __version__
from otel_breaker.core.states import OPEN, STATES
from otel_breaker.outcomes import UNAUTHORIZED
from otel_breaker.stats import DECISIONS, OUTCOMES, Stats

from . import names

if TYPE_CHECKING:
    from otel_breaker.circuit import Circuit

SERIES_MAX: Final = 1_800
"""Series of one instrument before new ones fold into `names.OTHER`; the SDK's own limit is 2,000, and what lies beyond
that loses all its attributes."""

_VIEW_AGE: Final = 1.0
"""Seconds of real time for which one pass over the circuits may serve several instruments of one collection."""

_Series = dict[tuple[str, str], float]
_Observe = Callable[[], list[Observation]]


class _Gauges:
    """What the circuits of one name look like right now."""

    __slots__ = ("awaiting", "cooldowns", "elapsed", "paused", "remaining", "states", "throttled")

    def __init__(self) -> None:
        self.states = dict.fromkeys(STATES, 0)
        self.cooldowns = self.awaiting = self.paused = self.throttled = 0
        self.remaining = self.elapsed = 0.0

    def add(self, circuit: Circuit) -> None:
        """Take in one availability circuit and its quota circuits."""
        seen = circuit.snapshot()
        self.states[seen.state] += 1
        self.awaiting += seen.awaiting_probe
        self.cooldowns = max(self.cooldowns, seen.cooldowns_elapsed)
        self.elapsed = max(self.elapsed, seen.open_elapsed)
        if seen.state == OPEN:
            self.remaining = max(self.remaining, seen.retry_after)
        for quota in list((circuit.quotas or {}).values()):
            credential = quota.snapshot()
            if credential.retry_after > 0:
                if credential.reason == UNAUTHORIZED:
                    self.paused += 1
                else:
                    self.throttled += 1


class _Fold:
    """Bounds the series of one instrument: those beyond `SERIES_MAX` are summed under `names.OTHER`, for good."""

    __slots__ = ("_own",)

    def __init__(self) -> None:
        self._own: set[tuple[str, str]] = set()

    def __call__(self, series: _Series, other: Callable[[str], str]) -> _Series:
        folded: _Series = {}
        for key, value in series.items():
            if key not in self._own:
                if len(self._own) < SERIES_MAX:
                    self._own.add(key)
                else:
                    key = (names.OTHER, other(key[1]))
            folded[key] = folded.get(key, 0) + value
        return folded


class _Collector:
    """The callbacks of one meter. They share one pass over the circuits in each collection."""

    def __init__(self) -> None:
        self._source: object = None
        self._gauges: dict[str, _Gauges] = {}
        self._served: set[str] = set()
        self._taken = -math.inf
        self._folds = {name: _Fold() for name in (names.FAILURES[0], names.TRANSITIONS[0], names.TOOLS[0])}

    def gauges(self, instrument: str) -> dict[str, _Gauges]:
        """One pass over all circuits, new for every collection: whoever asks a second time starts the next one."""
        now = time.monotonic()
        if instrument in self._served or now - self._taken > _VIEW_AGE:
            self._gauges, self._taken = self._look(), now
            self._served = set()
        self._served.add(instrument)
        return self._gauges

    def _look(self) -> dict[str, _Gauges]:
        found = {stats.name: _Gauges() for stats in registry().names()}
        for circuit in list(registry()):
            try:
                found.setdefault(circuit.stats.name, _Gauges()).add(circuit)
            except Exception as error:  # one bad circuit must not hide the others
                _log.fault(("snapshot", type(error)), "a circuit could not be read for metrics", error)
        return found

    def fold(self, instrument: str, series: _Series, other: Callable[[str], str] = str) -> _Series:
        """Keep ``instrument`` within its limit; a fresh registry (tests) starts afresh."""
        if self._source is not registry():
            self._source = registry()
            self._folds = {name: _Fold() for name in self._folds}
        return self._folds[instrument](series, other)


def _numbers(pairs: Iterable[tuple[str, str]], key: str) -> _Observe:
    return lambda: [
        Observation(getattr(stats, slot), {names.NAME: stats.name, key: value})
        for stats in registry().names()
        for value, slot in pairs
    ]


def _each(value: Callable[[Stats], float]) -> _Observe:
    return lambda: [Observation(_finite(value(stats)), {names.NAME: stats.name}) for stats in registry().names()]


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _gauge(collector: _Collector, instrument: tuple[str, str, str], value: Callable[[_Gauges], float]) -> _Observe:
    return lambda: [
        Observation(_finite(value(gauges)), {names.NAME: name})
        for name, gauges in collector.gauges(instrument[0]).items()
    ]


def _status(collector: _Collector) -> list[Observation]:
    return [
        Observation(count, {names.NAME: name, names.STATE: state})
        for name, gauges in collector.gauges(names.STATUS[0]).items()
        for state, count in gauges.states.items()
    ]


def _failures(collector: _Collector) -> list[Observation]:
    series: _Series = {(s.name, reason): n for s in registry().names() for reason, n in s.failures.copy().items()}
    return [
        Observation(value, {names.NAME: name, names.ERROR_TYPE: reason})
        for (name, reason), value in collector.fold(names.FAILURES[0], series).items()
    ]


def _transitions(collector: _Collector) -> list[Observation]:
    series: _Series = {
        (s.name, " ".join(pair)): n for s in registry().names() for pair, n in s.transitions.copy().items()
    }
    folded = collector.fold(names.TRANSITIONS[0], series)
    return [
        Observation(value, {names.NAME: name, names.PREVIOUS_STATE: previous, names.STATE: state})
        for (name, pair), value in folded.items()
        for previous, state in [pair.split(" ")]
    ]


def _tools(collector: _Collector) -> list[Observation]:
    series: _Series = {(s.name, tool): n for s in registry().names() for tool, n in s.tools.copy().items()}
    # A tool's name is the one attribute value without a closed list, so what is folded loses it too.
    folded = collector.fold(names.TOOLS[0], series, other=lambda tool: names.OTHER)
    return [Observation(value, {names.NAME: name, names.TOOL_NAME: tool}) for (name, tool), value in folded.items()]


def _safely(instrument: str, observe: _Observe) -> Callable[[CallbackOptions], list[Observation]]:
    def callback(options: CallbackOptions) -> list[Observation]:
        try:
            return observe()
        except Exception as error:  # a fault of ours must not reach the reader
            _log.fault(("metric", instrument), f"{instrument} could not be read", error)
            return []

    return callback


def _create(meter: Meter) -> Histogram:
    collector = _Collector()
    counter, gauge = meter.create_observable_counter, meter.create_observable_gauge
    up_down = meter.create_observable_up_down_counter
    rows: list[tuple[Callable[..., object], tuple[str, str, str], _Observe]] = [
        (counter, names.ADMISSIONS, _numbers(DECISIONS, names.DECISION)),
        (counter, names.OUTCOMES, _numbers(OUTCOMES, names.OUTCOME)),
        (counter, names.FAILURES, lambda: _failures(collector)),
        (counter, names.TRANSITIONS, lambda: _transitions(collector)),
        (up_down, names.STATUS, lambda: _status(collector)),
        (gauge, names.COOLDOWNS_ELAPSED, _gauge(collector, names.COOLDOWNS_ELAPSED, lambda g: g.cooldowns)),
        (up_down, names.AWAITING_PROBE, _gauge(collector, names.AWAITING_PROBE, lambda g: g.awaiting)),
        (gauge, names.REMAINING, _gauge(collector, names.REMAINING, lambda g: g.remaining)),
        (gauge, names.OPEN_ELAPSED, _gauge(collector, names.OPEN_ELAPSED, lambda g: g.elapsed)),
        (counter, names.TIME_SAVED, _each(lambda stats: stats.time_saved)),
        (up_down, names.TOOLS, lambda: _tools(collector)),
        (counter, names.REVOKED, _each(lambda stats: stats.revoked)),
        (up_down, names.PAUSED, _gauge(collector, names.PAUSED, lambda g: g.paused)),
        (up_down, names.THROTTLED, _gauge(collector, names.THROTTLED, lambda g: g.throttled)),
        (up_down, names.CIRCUITS, lambda: [Observation(len(list(registry())))]),
        (counter, names.STORE_ERRORS, lambda: [Observation(registry().store_errors)]),
    ]
    for create, (name, unit, description), observe in rows:
        create(name, callbacks=[_safely(name, observe)], unit=unit, description=description)
    name, unit, description = names.OPEN_DURATION
    return meter.create_histogram(
        name, unit=unit, description=description, explicit_bucket_boundaries_advisory=names.OPEN_DURATION_BUCKETS
    )


_registered: dict[int, tuple[MeterProvider, Histogram]] = {}
"""Which providers carry the instruments, and the histogram of each."""


def register(provider: MeterProvider | None = None) -> None:
    """Create the instruments on ``provider`` (default: the global one), once.

    A second creation would be ignored by the SDK together with its callbacks, so what is registered on the API's proxy
    counts for the provider that the proxy comes to stand for.
    """
    target = metrics.get_meter_provider() if provider is None else provider
    for known, _ in list(_registered.values()):
        if known is target or getattr(known, "_real_meter_provider", None) is target:
            return
    histogram = _create(target.get_meter(names.SCOPE, __version__))
    _registered[id(target)] = (target, histogram)


def unregister(provider: MeterProvider) -> None:
    """Forget a provider of ours that was dropped."""
    _registered.pop(id(provider), None)


def episode_over(name: str, seconds: float) -> None:
    """Record the length of a finished episode."""
    for _, histogram in list(_registered.values()):
        histogram.record(seconds, {names.NAME: name})
