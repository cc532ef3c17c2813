"""Walk an exception's causes and name its classes, without importing the libraries that define them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MOST_LINKS = 32
"""Exceptions looked at in one chain; real ones have at most a dozen."""


def attribute(thing: Any, name: str) -> Any:
    """``thing.name``, or ``None`` where there is none or reading it raises (httpx properties do)."""
    try:
        return getattr(thing, name, None)
    except Exception:  # a property may raise anything
        return None


def text_of(exc: BaseException) -> str:
    """The first 2,000 characters of ``str(exc)``; empty where that raises."""
    try:
        return str.__str__(str(exc))[:2000]
    except Exception:  # nor need every __str__ work
        return ""


def class_names(cls: type) -> list[str]:
    """``package.Class`` for each class of the MRO, most derived first.

    Only the top package counts, since libraries move classes between their modules; httpx2 and httpcore2 are forks that
    kept every name of httpx and httpcore, and are called by those.
    """
    names = []
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package in ("httpx2", "httpcore2"):
            package = package[:-1]
        names.append(f"{package}.{base.__qualname__.rpartition('.')[2]}")
    return names


def leaves(exc: BaseException) -> list[BaseException]:
    """The exceptions that a (nested) group holds; ``[exc]`` for one that is no group."""
    return [link for link in _closure(exc, _members) if not isinstance(link, BaseExceptionGroup)]


def walk(exc: BaseException, stop: BaseException | None = None) -> list[BaseException]:
    """``exc`` and what it came from, outermost first: causes, contexts (suppressed or not) and members of groups.

    Where an exception has neither cause nor context, the exceptions that it carries in ``reason`` and in its first two
    arguments stand in (urllib3, urllib). Ends at ``stop``, the exception that was already being handled when the
    guarded call began: what lies behind it is no part of this call. At most 32 are returned. Never raises.
    """
    return _closure(exc, lambda link: _members(link) + _origins(link), stop)


def _closure(
    exc: BaseException,
    further: Callable[[BaseException], list[BaseException]],
    stop: BaseException | None = None,
) -> list[BaseException]:
    found: dict[int, BaseException] = {}
    todo = [exc]
    while todo and len(found) < _MOST_LINKS:
        link = todo.pop(0)
        if id(link) not in found and (link is not stop or link is exc):
            found[id(link)] = link
            todo += further(link)
    return list(found.values())


def _members(link: BaseException) -> list[BaseException]:
    return list(link.exceptions[:_MOST_LINKS]) if isinstance(link, BaseExceptionGroup) else []


def _origins(link: BaseException) -> list[BaseException]:
    origin = link.__cause__ or link.__context__
    if origin is not None:
        return [origin]
    args = attribute(link, "args")
    carried = [attribute(link, "reason"), *(args[:2] if isinstance(args, tuple) else ())]
    return [other for other in carried if isinstance(other, BaseException)]
