"""Where settings come from: keyword arguments, then environment, then the file. Merged here, validated elsewhere."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .core.policy import FIELDS
from .errors import SettingsError

PREFIX: Final = "OTEL_BREAKER_"


@dataclass(slots=True)
class Merged:
    """The values of all sources, the strongest one of each key, and where each key came from.

    Attributes:
        values: key to raw value.
        origins: key to a format string that turns a path inside the value into the name the user knows it by.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def add(self, values: Mapping[str, Any], origin: str) -> None:
        """Lay a stronger source over what is there; its ``defaults`` are its own Policy fields written together."""
        values = dict(values)
        defaults = values.pop("defaults", None)
        if defaults is not None:
            self._add_defaults(defaults, values, origin)
        for key, value in values.items():
            self.values[key] = value
            self.origins[key] = origin

    def _add_defaults(self, defaults: object, values: Mapping[str, Any], origin: str) -> None:
        where = origin.format(path="defaults")
        if not isinstance(defaults, Mapping):
            raise SettingsError(f"{where}: must be a mapping of policy fields")
        for key, value in defaults.items():
            if key not in FIELDS:
                raise SettingsError(f"{where}: {unknown(str(key), FIELDS)}")
            if key in values:
                raise SettingsError(f"{where}: {key} is given twice, here and beside defaults")
            self.values[key] = value
            self.origins[key] = origin.replace("{path}", "defaults.{path}")

    def name(self, key: str, path: str) -> str:
        """The name of a setting for an error message."""
        return self.origins.get(key, "{path} (keyword argument)").format(path=path, PATH=path.upper())


def merge(kwargs: Mapping[str, Any], environ: Mapping[str, str], known: Collection[str]) -> Merged:
    """All sources, weakest first.

    Args:
        kwargs: keyword arguments of the program.
        environ: the environment.
        known: keys that the environment may set, in lower case.

    Raises:
        SettingsError: for an unknown variable or a file that cannot be read.
    """
    kwargs = dict(kwargs)
    environment = _environment(environ, known)
    in_environment = environment.pop("config", None)
    merged = Merged()
    if (path := kwargs.pop("config", None)) is not None:
        merged.add(read_file(path, "config (keyword argument)"), file_origin(path))
    elif in_environment is not None:
        merged.add(read_file(in_environment, PREFIX + "CONFIG"), file_origin(in_environment))
    merged.add(environment, PREFIX + "{PATH}")
    merged.add(kwargs, "{path} (keyword argument)")
    return merged


FILE_MAX: Final = 1 << 20
"""Bytes of a settings file that are read; a device or a log named by mistake must not be read without end."""


def file_origin(path: object) -> str:
    """How settings of this file are named in messages."""
    return "{path} in " + str(path).replace("{", "{{").replace("}", "}}")


def unknown(key: str, known: Collection[str]) -> str:
    """``unknown setting 'x'`` with the nearest known one, or with all of them where none is near."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"unknown setting {key[:60]!r}; {hint}"


def _environment(environ: Mapping[str, str], known: Collection[str]) -> dict[str, Any]:
    """The variables that are set. An empty one counts as not set, as everywhere in OpenTelemetry."""
    found: dict[str, Any] = {}
    for variable, value in sorted(environ.items()):
        if not variable.startswith(PREFIX) or not value.strip():
            continue
        key = variable.removeprefix(PREFIX).lower()
        if key not in known:
            near = difflib.get_close_matches(variable, [PREFIX + name.upper() for name in known], n=1, cutoff=0.6)
            names = ", ".join(name.upper() for name in known)
            hint = f"did you mean {near[0]}?" if near else f"known: {PREFIX} and one of {names}"
            raise SettingsError(f"{variable[:80]}: unknown variable; {hint}")
        found[key] = value
    return found


def read_file(path: object, asked_by: str) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        SettingsError: the file is missing, not readable, not UTF-8, not YAML, or not a mapping of settings.
    """
    # Only programs that have such a file pay for the parser.
    import yaml

    try:
        with Path(str(path)).expanduser().open("rb") as file:
            raw = file.read(FILE_MAX + 1)
        text = raw[:FILE_MAX].decode("utf-8-sig")
    except FileNotFoundError:
        raise SettingsError(f"{asked_by}: no such file: {path}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text (at byte {error.start})") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise SettingsError(f"{asked_by}: cannot read {path}: {reason}") from None
    if len(raw) > FILE_MAX:
        raise SettingsError(f"{path}: larger than {FILE_MAX >> 20} MiB: not a settings file")
    try:
        content = yaml.load(text, _loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SettingsError(f"{path}: not valid YAML ({place}{_line(error.problem)})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not valid YAML ({type(error).__name__})") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError(f"{path}: must be a mapping of settings, such as 'mode: observe'")
    return content


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _loader() -> type[Any]:
    """The safe loader, but a key that stands twice in one mapping is a fault instead of the last one winning."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        raise yaml.MarkedYAMLError(
                            problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader
