"""One clear line out of a pydantic error: the key, where it came from, what is allowed; never a secret."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ValidationError

from ._settings_parts import Match, MisplacedError, Overrides, Rule
from ._settings_sources import Merged, unknown
from ._settings_values import show

_SECRET: Final = frozenset({"store", "fingerprint_key"})
_SHAPES: Final = {"a valid dictionary": "a mapping", "a valid tuple": "a list", "a valid string": "text"}


def one_line(error: ValidationError, merged: Merged, root: type[BaseModel]) -> str:
    """The first error of `error`, and how many more there are."""
    errors = error.errors(include_url=False)
    first, more = errors[0], len(errors) - 1
    cause = first.get("ctx", {}).get("error")
    place = cause.place if isinstance(cause, MisplacedError) else first["loc"]
    key, path = str(place[0]), _path(place)
    if first["type"] == "extra_forbidden":
        *parents, name = place
        where = merged.name(key, _path(tuple(parents)) if parents else path)
        text = f"{where}: {unknown(str(name), _known(tuple(parents), root))}"
    else:
        text = f"{merged.name(key, path)}: {_explain(first, key)}"
    return " ".join(text.split()) + (f" (and {more} more)" if more else "")


def keys(model: type[BaseModel]) -> tuple[str, ...]:
    """The keys of a part as a user writes them."""
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _explain(error: Any, key: str) -> str:
    """What is wrong and what is allowed, in our words."""
    value = "the given value" if key in _SECRET else show(error["input"])
    context = error.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    if key == "store":
        return "this release keeps state in memory only; allowed: memory"
    if "expected" in context:
        return f"{value} is not allowed; allowed: {str(context['expected']).replace(chr(39), '').replace(' or ', ', ')}"
    if error["type"] == "missing":
        return "is missing"
    message = str(error["msg"]).removeprefix("Input should be ").partition(" or instance of ")[0]
    return f"{value} is not allowed; allowed: {_SHAPES.get(message, message)}"


def _known(parents: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str, ...]:
    """The keys that are known at that place."""
    match parents:
        case ("circuits", _, "match", *_):
            return keys(Match)
        case ("circuits", *_):
            return keys(Rule)
        case ("classes", *_):
            return keys(Overrides)
    return keys(root)


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text[:120]
