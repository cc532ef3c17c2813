"""What the watcher sees while a run goes on: each call, and the circuit as the receiver hears of it."""

from __future__ import annotations

import json
from typing import Final

from otel_breaker.telemetry import names

from .driver import Step
from .receiver import Receiver
from .screen import WIDTH, Screen, shortened
from .script import Turn
from .second_act import Exchange, Scene
from .signals import Log

PAGE_AT: Final = 2
"""Cooldowns after which the page rule calls a human."""

_INDENT: Final = 37
_INDENT_2: Final = 49
_INDENT_3: Final = 22
_COLOURS: Final = {"closed": "green", "open": "red", "half_open": "yellow"}


class Live:
    """Prints one run.

    Args:
        screen: where to.
        receiver: the receiver of this run's telemetry; ``None`` for a run without.
    """

    def __init__(self, screen: Screen, receiver: Receiver | None) -> None:
        self._screen = screen
        self._receiver = receiver
        self._phase = ""
        self._told: set[str] = set()
        self._shown = 0
        self._cooldowns = 0
        screen.line(f"{'turn':>4}  {'tool':<13}  {'wire':<6}  {'  wait':<6}  the model was told", "dim")

    def before(self, turn: Turn) -> None:
        """A turn begins."""
        if turn.phase.name != self._phase:
            self._phase = turn.phase.name
            self._screen.line(f"      -- {turn.phase.says}", "cyan")

    def after(self, step: Step) -> None:
        """The agent has reported a step."""
        first = f"{step.turn.number:>4}  {step.tool:<13}  {len(step.hits)} sent  {step.waited:>4.1f} s"
        colour = "green" if not step.failed else "yellow" if step.refused else "red"
        if step.refused and step.refused not in self._told:
            self._told.add(step.refused)
            self._screen.wrapped(step.told, _INDENT, colour, first=first)
        else:
            self._screen.wrapped(_brief(step), _INDENT, colour, first=first)

    def meanwhile(self) -> None:
        """Print what the receiver has heard since."""
        if self._receiver is None:
            return
        moves = self._receiver.events(names.STATE_CHANGED)
        for move in moves[self._shown :]:
            self._moved(move)
        self._shown = len(moves)
        elapsed = int(self._receiver.value(names.COOLDOWNS_ELAPSED[0]) or 0)
        if elapsed != self._cooldowns:
            paged, pages = self._cooldowns >= PAGE_AT, elapsed >= PAGE_AT
            page = "" if paged == pages else ": the page rule fires" if pages else ": the page is resolved"
            self._screen.line(f"      ** {names.COOLDOWNS_ELAPSED[0]} = {elapsed}{page}", "bold")
        self._cooldowns = elapsed

    def _moved(self, move: Log) -> None:
        state = str(move.attributes[names.STATE])
        text = f"      ** circuit {move.attributes[names.NAME]}: {move.attributes[names.PREVIOUS_STATE]} -> {state}"
        text += f" ({move.attributes.get(names.REASON, 'no reason')})"
        if names.COOLDOWN_REMAINING in move.attributes:
            text += f", next call in {move.attributes[names.COOLDOWN_REMAINING]:.1f} s"
        self._screen.line(text, "bold", _COLOURS.get(state, "cyan"))


class Live2:
    """Prints one run of the second act.

    Args:
        screen: where to.
        guarded: whether the run has breakers; what the model reads is shown once a tool, without them an error, with
            them the answer.
    """

    def __init__(self, screen: Screen, *, guarded: bool) -> None:
        self._screen = screen
        self._guarded = guarded
        self._read: set[str] = set()
        columns = f"{'turn':>4}  {'tool':<7}  {'asked':<5}  {'reached the server':<18}  {'wait':>5}"
        screen.line(f"{columns}  the model's answer to the user", "dim")

    def before(self, scene: Scene) -> None:
        """A scene begins."""
        self._screen.line(f"      -- {scene.says}", "cyan")

    def after(self, exchange: Exchange) -> None:
        """The model has answered."""
        last, waited = exchange.calls[-1], sum(call.waited for call in exchange.calls)
        first = f"{exchange.number:>4}  {exchange.tool:<7}  {len(exchange.calls):>4}x  {exchange.reached!s:<18}"
        colour = "green" if not last.failed else "yellow" if last.answer else "red"
        said = shortened(exchange.said, WIDTH - _INDENT_2)
        self._screen.wrapped(said, _INDENT_2, colour, first=f"{first}  {waited:>3.1f} s")
        if last.failed and self._guarded == bool(last.answer) and exchange.tool not in self._read:
            self._read.add(exchange.tool)
            told = last.told if last.answer else shortened(last.told, 2 * (WIDTH - _INDENT_3))
            self._screen.wrapped(told, _INDENT_3, "dim", first="      the model read")


def _brief(step: Step) -> str:
    """One line of what the model was told; of a structured answer, what changes from call to call."""
    if step.refused:
        answer = json.loads(step.told)
        return f'{{"status": "{answer["status"]}" ... "retry_after_ms": {answer["retry_after_ms"]} ...}}'
    return shortened(step.told, WIDTH - _INDENT)
