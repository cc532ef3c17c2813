from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from otel_breaker.core.events import (
    Acquire,
    Admitted,
    Disable,
    Event,
    ForceOpen,
    Moved,
    Refused,
    Renew,
    Reset,
    Resume,
    Settle,
)
from otel_breaker.core.machine import LEGAL
from otel_breaker.core.states import STATES
from otel_breaker.outcomes import ABORTED, IGNORED, OK
from tests.core.drive import DENIED, Drive, bad, busy, opened, probing

C, O, H, F, D = STATES  # noqa: E741
ILLEGAL = {(C, H), (F, O), (F, H), (D, O), (D, H), *((s, s) for s in STATES)}


@pytest.mark.parametrize("pair", list(product(STATES, STATES)), ids="-".join)
def test_every_pair_is_legal_or_not_as_the_design_says(pair: tuple[str, str]) -> None:
    assert (pair in LEGAL) == (pair not in ILLEGAL)


def closed() -> Drive:
    return Drive(failure_threshold=1)


def cooling() -> Drive:
    return opened(failure_threshold=1).at(10)


def due() -> Drive:
    return opened(failure_threshold=1).at(30)


def busy_half() -> Drive:
    return probing(failure_threshold=1)[0]


def free_half() -> Drive:
    drive, permit = probing(failure_threshold=1)
    drive.settle(permit, IGNORED)
    return drive


def paused() -> Drive:
    drive = Drive(failure_threshold=1)
    drive.call(DENIED, pause=True)
    return drive


def forced() -> Drive:
    drive = Drive(failure_threshold=1)
    drive.send(ForceOpen("maintenance"))
    return drive


def disabled() -> Drive:
    drive = Drive(failure_threshold=1)
    drive.send(Disable())
    return drive


PLACES: list[Callable[[], Drive]] = [closed, cooling, due, busy_half, free_half, paused, forced, disabled]
#                          closed, cooling, due, probing, free, paused, forced, disabled
AFTER: dict[str, tuple[Callable[[int], Event], str]] = {
    "acquire": (lambda _: Acquire(), "C O H H H O F D"),
    "acquire health": (lambda _: Acquire(health=True), "C O H H H O F D"),
    "success": (lambda i: Settle(i, OK), "C O O C H O F D"),
    "failure": (lambda i: Settle(i, bad()), "O O O O H O F D"),
    "neutral": (lambda i: Settle(i, IGNORED), "C O O H H O F D"),
    "cancelled": (lambda i: Settle(i, ABORTED), "C O O H H O F D"),
    "one 429": (lambda i: Settle(i, busy()), "C O O O H O F D"),
    "denied": (lambda i: Settle(i, DENIED), "C O O H H O F D"),
    "revoked": (lambda i: Settle(i, DENIED, pause=True), "O O O O H O F D"),
    "late success": (lambda i: Settle(i - 1, OK), "C O O H H O F D"),
    "late failure": (lambda i: Settle(i - 1, bad()), "C O O H H O F D"),
    "renew": (lambda i: Renew(i), "C O O H H O F D"),
    "force": (lambda _: ForceOpen("x"), "F F F F F F F F"),
    "force for a while": (lambda _: ForceOpen("x", 60), "F F F F F F F F"),
    "disable": (lambda _: Disable(), "D D D D D D D D"),
    "reset": (lambda _: Reset(), "C C C C C C C C"),
    "resume": (lambda _: Resume(), "C O O H H O C C"),
}
LETTER = dict(zip("COHFD", STATES, strict=True))


@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("what", AFTER)
def test_every_event_in_every_state(place: Callable[[], Drive], what: str) -> None:
    make, row = AFTER[what]
    drive = place()
    before = drive.state
    held = before.id - (place is free_half)  # a slot given back is held by nobody: the last permit is the old probe's
    effects = drive.send(make(held))
    assert drive.state.name == LETTER[row.split()[PLACES.index(place)]]
    names = [before.name]
    for move in effects:
        if isinstance(move, Moved):
            assert (move.previous_state, move.state) in LEGAL
            assert move.previous_state == names[-1]
            names.append(move.state)
    assert names[-1] == drive.state.name
    assert drive.state.id > before.id or (drive.state.id == before.id and len(names) == 1)
    answers = [e for e in effects if isinstance(e, Admitted | Refused)]
    assert len(answers) == what.startswith("acquire")
    if answers:
        assert effects[-1] is answers[0]


SCRIPTS: dict[tuple[str, str], list[tuple[Callable[[], Drive], str]]] = {
    (C, O): [(closed, "failure"), (closed, "revoked")],
    (C, F): [(closed, "force")],
    (C, D): [(closed, "disable")],
    (O, C): [(cooling, "reset"), (paused, "reset")],
    (O, H): [(due, "acquire")],
    (O, F): [(cooling, "force"), (due, "force")],
    (O, D): [(cooling, "disable")],
    (H, C): [(busy_half, "success"), (free_half, "reset")],
    (H, O): [(busy_half, "failure"), (busy_half, "one 429"), (busy_half, "revoked")],
    (H, F): [(busy_half, "force"), (free_half, "force")],
    (H, D): [(busy_half, "disable")],
    (F, C): [(forced, "resume"), (forced, "reset")],
    (F, D): [(forced, "disable")],
    (D, C): [(disabled, "resume"), (disabled, "reset")],
    (D, F): [(disabled, "force")],
}


def test_every_legal_pair_is_produced_by_some_event() -> None:
    assert set(SCRIPTS) == LEGAL
    for pair, ways in SCRIPTS.items():
        for place, what in ways:
            drive = place()
            moves = [e for e in drive.send(AFTER[what][0](drive.state.id)) if isinstance(e, Moved)]
            assert [(m.previous_state, m.state) for m in moves] == [pair], (pair, what)


def test_the_reasons_of_transitions() -> None:
    drive, permit = probing()
    drive.settle(permit, bad("dns_error"))
    drive.at(90).settle(drive.probe())
    drive.send(ForceOpen("x", 10))
    drive.at(100)
    drive.call(bad("timeout"), 5)
    drive.at(5000).ask()
    assert drive.moves == [
        (C, O, "server_error", 0),
        (O, H, "cooldown_elapsed", 30),
        (H, O, "dns_error", 30),
        (O, H, "cooldown_elapsed", 90),
        (H, C, "probe_succeeded", 90),
        (C, F, "manual", 90),
        (F, C, "manual", 100),
        (C, O, "timeout", 100),
        (O, C, "expired", 100 + 30 + 1200),
    ]
