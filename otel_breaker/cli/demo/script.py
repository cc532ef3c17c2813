"""What happens in the demo, turn by turn: the same for both runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .vendor import RETRY_AFTER, Behaviour

COOLDOWN: Final = 1.2
"""Seconds of the first cooldown; the default would be 30."""
STEPS: Final = (1, 2, 3)
"""The ladder of cooldowns, so that two of them pass within seconds."""
PACE: Final = 0.6
"""Seconds from one turn's start to the next one's with breakers: cooldowns and telemetry take their time."""
PAUSE: Final = 0.3
"""Seconds between an answer and the next message with breakers, at least."""

QUESTIONS: Final = ("refund ch_1042", "find ch_1042", "payout acct_7")


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of turns.

    Attributes:
        name: one word.
        says: what the vendor does in it.
        behaviours: what each of its turns meets.
    """

    name: str
    says: str
    behaviours: tuple[Behaviour, ...]


def _cycle(turns: int, *behaviours: Behaviour) -> tuple[Behaviour, ...]:
    return tuple(itertools.islice(itertools.cycle(behaviours), turns))


PHASES: Final = (
    Phase("healthy", "the vendor works", _cycle(3, "answers")),
    Phase("failing", "the vendor breaks: an error page, a hang-up, silence", _cycle(3, "breaks", "hangs up", "stalls")),
    Phase(
        "down",
        "the vendor is down: silence, a gateway that gives up, connections reset",
        _cycle(10, "stalls", "gives up", "resets", "gives up"),
    ),
    Phase("limiting", f"the vendor is back, but answers 429 with Retry-After: {RETRY_AFTER}", _cycle(6, "limits")),
    Phase("recovered", "the vendor has recovered", _cycle(7, "answers")),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the user and what the vendor does while the agent works on it."""

    number: int
    phase: Phase
    behaviour: Behaviour
    question: str


def turns() -> Iterator[Turn]:
    """Every turn in order."""
    questions = itertools.cycle(QUESTIONS)
    numbers = itertools.count(1)
    for phase in PHASES:
        for behaviour in phase.behaviours:
            yield Turn(next(numbers), phase, behaviour, next(questions))
