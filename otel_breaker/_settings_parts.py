"""The parts of the settings: Policy fields as they are written by hand, and the rules of `circuits`."""

from __future__ import annotations

import fnmatch
import re
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from . import _settings_values as values
from .core.policy import FIELDS, Policy

Seconds = Annotated[float, BeforeValidator(values.duration)]
OptionalSeconds = Annotated[float | None, BeforeValidator(values.optional(values.duration))]
OptionalShare = Annotated[float | None, BeforeValidator(values.optional(values.number))]
Number = Annotated[float, BeforeValidator(values.number)]
Count = Annotated[int, BeforeValidator(values.whole)]
AtLeastOne = Annotated[int, BeforeValidator(values.whole), Field(ge=1)]
Factors = Annotated[tuple[float, ...], BeforeValidator(values.numbers)]
Flag = Annotated[bool, BeforeValidator(values.flag)]
Names = Annotated[tuple[str, ...], BeforeValidator(values.words)]
Name = Annotated[str, BeforeValidator(values.name)]
Word = BeforeValidator(values.word)
Mode = Annotated[Literal["enforce", "observe", "off"], Word]
OnOpen = Annotated[Literal["answer", "raise"], Word]
Scope = Annotated[Literal["dependency", "credential", "instance"], Word]

_PLAIN: Final = Policy()
_PARTNERS: Final = {"slow_call": {"slow_rate": 1.0}, "slow_rate": {"slow_call": 1.0}}


class MisplacedError(ValueError):
    """A fault that only the whole of the settings shows; `place` is where the user should look."""

    def __init__(self, place: tuple[str | int, ...], text: str) -> None:
        super().__init__(text)
        self.place = place


class Part(BaseModel):
    """Base of all: unknown keys are errors, nothing changes later, values never stand in error texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=False)


class Overrides(Part):
    """Any fields of a Policy. Those that were given are the overrides; see `Policy` for what each means."""

    failure_threshold: Count = _PLAIN.failure_threshold
    failure_rate: OptionalShare = _PLAIN.failure_rate
    window: Seconds = _PLAIN.window
    minimum_calls: Count = _PLAIN.minimum_calls
    slow_call: OptionalSeconds = _PLAIN.slow_call
    slow_rate: OptionalShare = _PLAIN.slow_rate
    cooldown: Seconds = _PLAIN.cooldown
    cooldown_steps: Factors = _PLAIN.cooldown_steps
    cooldown_cap: Seconds = _PLAIN.cooldown_cap
    cooldown_jitter: Number = _PLAIN.cooldown_jitter
    success_threshold: Count = _PLAIN.success_threshold
    probe_by: Annotated[Literal["call", "health_check"], Word] = _PLAIN.probe_by
    call_deadline: Seconds = _PLAIN.call_deadline
    enforce_deadline: Flag = _PLAIN.enforce_deadline
    cancel_counts_after: Seconds = _PLAIN.cancel_counts_after
    throttle_threshold: Count = _PLAIN.throttle_threshold
    retry_after_cap: Seconds = _PLAIN.retry_after_cap
    verdict_ttl: OptionalSeconds = _PLAIN.verdict_ttl
    unclassified: Annotated[Literal["failure", "neutral"], Word] = _PLAIN.unclassified
    on_unauthorized: Annotated[Literal["pause", "alert"], Word] = _PLAIN.on_unauthorized
    pause: Seconds = _PLAIN.pause

    @field_validator(*FIELDS, mode="after")
    @classmethod
    def _in_range(cls, value: Any, info: ValidationInfo) -> Any:
        # The ranges live in Policy; asking it for each field alone keeps the field's name on the error.
        field = info.field_name or ""
        partner = {} if value is None else _PARTNERS.get(field, {})
        Policy(**{field: value, **partner})
        return value

    def overrides(self) -> dict[str, Any]:
        """The Policy fields that were given."""
        return {field: getattr(self, field) for field in FIELDS if field in self.model_fields_set}


class Match(Part):
    """What a rule is about: globs over the tool's name and the dependency, in any case."""

    tool: str | None = None
    dependency: str | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Match:
        if not self.tool and not self.dependency:
            raise ValueError("names nothing; allowed: tool, dependency or both ('*' is any)")
        return self


class Rule(Overrides):
    """One entry of `circuits`: which circuits, and what is different about them."""

    match: Match
    dependency: Name | None = None
    display_name: Name | None = None
    class_: str | None = Field(None, alias="class")
    alternatives: Names = ()
    mode: Mode | None = None
    on_open: OnOpen | None = None
    scope: Scope | None = None
    validates: Annotated[Literal["json"] | None, Word] = Field(None, alias="validate")

    @cached_property
    def _tool(self) -> re.Pattern[str] | None:
        return glob(self.match.tool) if self.match.tool else None

    @cached_property
    def _dependency(self) -> re.Pattern[str] | None:
        return glob(self.match.dependency) if self.match.dependency else None

    def fits(self, tool: str | None, dependency: str | None) -> bool:
        """Whether this rule is about that call.

        A rule that maps tools to a `dependency` is also about that dependency itself, whoever calls it: the circuit
        must not depend on which of its callers came first.
        """
        if tool is None and self.match.dependency is None:
            return (
                dependency is not None and self.dependency is not None and dependency.lower() == self.dependency.lower()
            )
        tool_fits = self._tool is None or (tool is not None and self._tool.match(tool.lower()) is not None)
        return tool_fits and (self._dependency is None or matches(self._dependency, dependency))


def glob(text: str) -> re.Pattern[str]:
    """A compiled glob over lower-case names. A bracketed IPv6 address is meant literally."""
    text = text.strip().lower()
    if re.match(r"\[[0-9a-f:.*?]*:[0-9a-f:.*?]*\]", text):
        text = "[[]" + text[1:]
    return re.compile(fnmatch.translate(text))


def matches(pattern: re.Pattern[str], dependency: str | None) -> bool:
    """Whether the glob means this dependency; default ports are left out of names but may stand in a glob."""
    if dependency is None:
        return False
    name = dependency.lower()
    if pattern.match(name):
        return True
    has_port = ":" in name.rpartition("]")[2]
    return not has_port and any(pattern.match(name + port) for port in (":80", ":443"))
