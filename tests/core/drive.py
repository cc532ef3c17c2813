"""A tiny driver around the pure machine: one circuit, a clock moved by hand, and everything it has said so far.

Moments in tests are seconds after `START`, at which every driver begins.
"""

from __future__ import annotations

from typing import Any

from otel_breaker.core.clock import ManualClock
from otel_breaker.core.events import Acquire, Admitted, Effect, Event, Moved, Refused, Renew, Settle
from otel_breaker.core.machine import step
from otel_breaker.core.moves import fresh
from otel_breaker.core.policy import Policy
from otel_breaker.core.states import State
from otel_breaker.core.views import Snapshot, view
from otel_breaker.outcomes import FAILURE, OK, THROTTLED, UNAUTHORIZED, Outcome

START = 1000.0
DENIED = Outcome(UNAUTHORIZED)


def bad(reason: str = "server_error", retry_after: float | None = None) -> Outcome:
    return Outcome(FAILURE, reason, retry_after)


def busy(retry_after: float | None = None, credential: str | None = None, reason: str = "throttled") -> Outcome:
    return Outcome(THROTTLED, reason, retry_after, credential)


class Drive:
    def __init__(self, policy: Policy | None = None, /, **fields: Any) -> None:
        self.policy = policy or Policy(**fields)
        self.clock = ManualClock(START)
        self.state: State = fresh(self.policy)
        self.log: list[Effect] = []

    @property
    def now(self) -> float:
        return self.clock.now()

    def at(self, moment: float) -> Drive:
        """Move the clock to ``moment`` seconds after `START`."""
        self.clock.advance(START + moment - self.now)
        return self

    def send(self, event: Event) -> list[Effect]:
        self.state, effects = step(self.state, event, self.policy, self.now)
        self.log += effects
        return list(effects)

    def ask(self, timeout: float | None = None, *, health: bool = False) -> Admitted | Refused:
        """What an Acquire is answered."""
        answers = [e for e in self.send(Acquire(timeout, health)) if isinstance(e, Admitted | Refused)]
        assert len(answers) == 1
        return answers[0]

    def enter(self, timeout: float | None = None, *, health: bool = False) -> int:
        """The permit id of a call that must be admitted."""
        answer = self.ask(timeout, health=health)
        assert isinstance(answer, Admitted), answer
        return answer.id

    def probe(self, timeout: float | None = None) -> int:
        """The permit id of a call that must be the probe."""
        answer = self.ask(timeout)
        assert isinstance(answer, Admitted), answer
        assert answer.probe
        return answer.id

    def settle(self, permit: int, outcome: Outcome = OK, **fields: Any) -> list[Effect]:
        return self.send(Settle(permit, outcome, **fields))

    def renew(self, permit: int) -> list[Effect]:
        return self.send(Renew(permit))

    def call(self, outcome: Outcome = OK, times: int = 1, **fields: Any) -> list[Effect]:
        """So many whole calls that take no time; the effects of the last one's end."""
        effects: list[Effect] = []
        for _ in range(times):
            effects = self.settle(self.enter(), outcome, **fields)
        return effects

    def trip(self, outcome: Outcome | None = None, **fields: Any) -> Drive:
        """Fail until the threshold is reached."""
        self.call(outcome or bad(), self.policy.failure_threshold, **fields)
        assert self.name == "open"
        return self

    @property
    def view(self) -> Snapshot:
        return view("svc", self.state, self.policy, self.now)

    @property
    def name(self) -> str:
        return self.view.state

    @property
    def elapsed(self) -> int:
        return self.view.cooldowns_elapsed

    @property
    def moves(self) -> list[tuple[str, str, str, float]]:
        """(previous state, state, reason, moment) of every transition so far."""
        return [(m.previous_state, m.state, m.reason, m.at - START) for m in self.log if isinstance(m, Moved)]

    def saw(self, kind: type[Any]) -> list[Any]:
        return [e for e in self.log if isinstance(e, kind)]


def opened(policy: Policy | None = None, /, **fields: Any) -> Drive:
    """A circuit that opened at moment 0."""
    return Drive(policy, **fields).trip()


def probing(policy: Policy | None = None, /, **fields: Any) -> tuple[Drive, int]:
    """A circuit that opened at moment 0, with its probe out since its cooldown ended."""
    drive = opened(policy, **fields)
    drive.at(drive.view.cooldown)
    return drive, drive.probe()
