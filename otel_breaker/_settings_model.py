"""All settings of a process as one frozen, validated model, and the questions the rest of the package asks of it."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, SecretStr, ValidationInfo, field_validator, model_validator

from . import _settings_values as values
from ._config import CircuitConfig
from ._settings_parts import (
    AtLeastOne,
    Flag,
    MisplacedError,
    Mode,
    Names,
    OnOpen,
    Overrides,
    Rule,
    Scope,
    Word,
    glob,
    matches,
)
from .core.policy import FIELDS, NAMED, Policy
from .errors import SettingsError
from .instrumentations._table import TARGETS

_RESOLVED_MAX: Final = 4096
_PLAIN: Final = Policy()
_CLASS: Final = ("failure_threshold", "cooldown")
"""What every built-in class says, also where it happens to say the same as the defaults."""
_PAIR: Final = ("slow_call", "slow_rate")
_LIBRARIES: Final = tuple(dict.fromkeys(target.library for target in TARGETS))


class Settings(Overrides):
    """All settings of a process, valid and frozen; the Policy fields here are the defaults of every circuit."""

    version: Literal[1] = 1
    enabled: Flag | None = None
    mode: Mode = "enforce"
    store: Annotated[Literal["memory"], Word] = "memory"
    events: Annotated[Literal["span", "log", "both", "none"], Word] = "both"
    spans: Annotated[Literal["auto", "never"], Word] = "auto"
    on_open: OnOpen | None = None
    scope: Scope = "dependency"
    share: Annotated[Literal["off", "remote-causes", "all"], Word] = "remote-causes"
    max_names: AtLeastOne = 200
    max_circuits: AtLeastOne = 10_000
    fingerprint_key: SecretStr | None = None
    instrumentations: Names = ("default",)
    disabled_instrumentations: Names = ()
    excluded_urls: Names = ()
    exclude: Names = ()
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"] | None, BeforeValidator(values.level)
    ] = None
    classes: dict[str, Overrides] = Field(default_factory=dict)
    circuits: tuple[Rule, ...] = ()

    _policies: dict[str, Policy] = PrivateAttr(default_factory=dict)
    _rules: list[tuple[Rule, CircuitConfig]] = PrivateAttr(default_factory=list)
    _resolved: dict[tuple[str | None, str | None], CircuitConfig] = PrivateAttr(default_factory=dict)

    @field_validator("instrumentations", "disabled_instrumentations")
    @classmethod
    def _known_libraries(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        special = "default" if info.field_name == "instrumentations" else "*"
        for name in names:
            if name not in (*_LIBRARIES, special):
                raise ValueError(f"{values.show(name)} is not a library; allowed: {', '.join((special, *_LIBRARIES))}")
        return names

    @field_validator("excluded_urls")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(values.pattern(pattern) for pattern in patterns)

    @model_validator(mode="after")
    def _build(self) -> Settings:
        """Every policy that these settings can yield, made now, so that a bad combination is found now."""
        for name in (*NAMED, *self.classes):
            self._policies[name] = self._policy(("classes", name), name, {})
        base = self._policies["default"]
        for number, rule in enumerate(self.circuits):
            if rule.class_ is not None and rule.class_ not in self._policies:
                raise MisplacedError(("circuits", number, "class"), self._unknown_class(rule.class_))
            policy = self._policy(("circuits", number), rule.class_ or "default", rule.overrides())
            self._rules.append((rule, self._config(rule, base if policy == base else policy)))
        return self

    def _policy(self, place: tuple[str | int, ...], name: str, extra: dict[str, Any]) -> Policy:
        """The defaults of these settings, then the built-in class, then `classes`, then the rule's own fields."""
        layers = self.overrides()
        if name in NAMED and name != "default":
            built_in = NAMED[name]
            layers |= {
                f: getattr(built_in, f) for f in FIELDS if f in _CLASS or getattr(built_in, f) != getattr(_PLAIN, f)
            }
        if name in self.classes:
            layers |= self.classes[name].overrides()
        layers |= extra
        try:
            return Policy(**layers)
        except ValueError as error:
            # Each field alone is in range: only a pair can be wrong, and its own layer names it best.
            own = (
                next((f for f in _PAIR if f in self.model_fields_set), None)
                if not (extra or name in self.classes)
                else None
            )
            raise MisplacedError((own,) if own else place, str(error)) from None

    def _config(self, rule: Rule, policy: Policy) -> CircuitConfig:
        return CircuitConfig(
            policy=policy,
            mode=rule.mode or self.mode,
            dependency=rule.dependency,
            display_name=rule.display_name,
            alternatives=rule.alternatives,
            on_open=rule.on_open or self.on_open,
            scope=rule.scope or self.scope,
            validate=rule.validates,
        )

    def _unknown_class(self, name: str) -> str:
        return f"unknown class {values.show(name)}; known: {', '.join(self._policies)}"

    def policy(self, name: str = "default") -> Policy:
        """The policy of a class; `default` is what circuits have that no rule is about.

        Raises:
            SettingsError: for an unknown class; the message lists the known ones.
        """
        try:
            return self._policies[name]
        except KeyError:
            raise SettingsError(self._unknown_class(name)) from None

    def resolve(self, tool: str | None, dependency: str | None) -> CircuitConfig:
        """What configuration says about a tool, a dependency, or a dependency as called by a tool.

        The first rule of `circuits` that fits wins. A rule that maps tools to a dependency is also about that
        dependency when it is asked for without a tool.
        """
        key = (tool, dependency)
        if (found := self._resolved.get(key)) is None:
            plain = CircuitConfig(policy=self.policy(), mode=self.mode, on_open=self.on_open, scope=self.scope)
            found = next((config for rule, config in self._rules if rule.fits(tool, dependency)), plain)
            if len(self._resolved) >= _RESOLVED_MAX:
                self._resolved.clear()
            self._resolved[key] = found
        return found

    @cached_property
    def _excludes(self) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
        return [glob(text) for text in self.exclude], [re.compile(text) for text in self.excluded_urls]

    def excluded(self, url: str | None, dependency: str | None) -> bool:
        """Whether calls there are not guarded: globs over the dependency, regular expressions over the URL.

        Args:
            url: without its query, fragment and credentials.
            dependency: the name of `keys.dependency`.
        """
        globs, patterns = self._excludes
        return any(matches(pattern, dependency) for pattern in globs) or (
            url is not None and any(pattern.search(url) for pattern in patterns)
        )

    def wants(self, library: str) -> bool:
        """Whether this library is to be patched."""
        if "*" in self.disabled_instrumentations or library in self.disabled_instrumentations:
            return False
        return library in self.instrumentations or "default" in self.instrumentations
