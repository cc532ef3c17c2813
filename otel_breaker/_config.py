"""What configuration says about one circuit, resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .core.policy import NAMED, Policy

DEFAULT = NAMED["default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitConfig:
    """One circuit's settings after kwargs, environment, file and defaults were merged.

    Attributes:
        policy: the numbers.
        mode: ``enforce`` refuses, ``observe`` only counts what it would refuse, ``off`` passes straight through.
        dependency: the dependency a tool is mapped to; ``None`` keeps the tool's own circuit.
        display_name: how the model hears of it; ``None`` means its name.
        alternatives: tool names to offer while it is open.
        on_open: what a tool guard does when refused: ``answer`` or ``raise``; ``None`` leaves it to the guard.
        scope: one circuit for each ``dependency``, ``credential`` or tool ``instance``.
        validate: ``json`` makes an undecodable 200 body a failure.
    """

    policy: Policy = DEFAULT
    mode: Literal["enforce", "observe", "off"] = "enforce"
    dependency: str | None = None
    display_name: str | None = None
    alternatives: tuple[str, ...] = ()
    on_open: Literal["answer", "raise"] | None = None
    scope: Literal["dependency", "credential", "instance"] = "dependency"
    validate: Literal["json"] | None = None
