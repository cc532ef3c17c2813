"""A YAML writer for people: strings made of lines are folded where their author broke them."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*|[0-9]+[smhd]")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


class Lines(str):
    """Text that is one line to YAML's readers and several to people's eyes."""

    lines: tuple[str, ...]

    def __new__(cls, *lines: str) -> Lines:
        """Join ``lines`` by single spaces."""
        text = super().__new__(cls, " ".join(lines))
        text.lines = lines
        return text


class Commented(dict[str, Any]):
    """A mapping with a comment above it."""

    def __init__(self, comment: str, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self.comment = comment


class Anchored(dict[str, Any]):
    """A mapping that may stand in several places; it is written once."""

    def __init__(self, anchor: str, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self.anchor = anchor
        self.written = False


def wrapped(text: str, width: int = 110) -> Lines:
    """``text`` broken at its spaces."""
    return Lines(*textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def dump(value: Mapping[str, Any], head: str) -> str:
    """The document, under the comment ``head``."""
    return "\n".join([*(f"# {line}".rstrip() for line in head.splitlines()), *_mapping(value, ""), ""])


def _scalar(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return "'" + text.replace("'", "''") + "'"


def _mapping(value: Mapping[str, Any], indent: str) -> list[str]:
    out: list[str] = []
    for key, item in value.items():
        out += _entry(f"{indent}{key}:", item, indent + "  ")
    return out


def _entry(head: str, item: object, indent: str) -> list[str]:
    if isinstance(item, Lines) and len(item.lines) > 1:
        return [f"{head} >-", *(indent + line for line in item.lines)]
    if isinstance(item, Anchored):
        if item.written:
            return [f"{head} *{item.anchor}"]
        item.written = True
        return [f"{head} &{item.anchor}", *_mapping(item, indent)]
    if isinstance(item, Mapping):
        return [head, *_mapping(item, indent)] if item else [f"{head} {{}}"]
    if isinstance(item, str) or not isinstance(item, Sequence):
        return [f"{head} {_scalar(item)}"]
    if not any(isinstance(each, Mapping) for each in item):
        return [f"{head} [{', '.join(_flow(each) for each in item)}]"]
    return [head, *_sequence(item, indent)]


def _flow(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_flow(each) for each in value)}]"
    return _scalar(value)


def _sequence(items: Sequence[Any], indent: str) -> list[str]:
    out: list[str] = []
    for item in items:
        if isinstance(item, Commented):
            out += ["", *(f"{indent}# {line}" for line in item.comment.splitlines())]
        first, *rest = _mapping(item, indent + "  ")
        out += [f"{indent}- {first.lstrip()}", *rest]
    return out
