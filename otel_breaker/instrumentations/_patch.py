"""The patch engine: puts the wrappers of `_table` on, once each, and takes them off again.

Nothing here may hurt the host: every fault is logged once and leaves the library as it was. ``wrapt`` is loaded by the
first `apply`, because it brings in ssl and asyncio, which gevent wants to patch first.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from otel_breaker import _log

from ._table import TARGETS, Target

_lock = threading.RLock()

enabled: bool = True
"""The gate. Every wrapper reads it at call time, so that a wrapper that is buried under another can be switched off."""


@dataclass(frozen=True, slots=True)
class Report:
    """What ``doctor`` says about one library.

    Attributes:
        library: its name in ``instrumentations``.
        version: what is installed; ``None`` where the distribution is not found.
        versions: the range that is supported.
        supported: whether `version` lies in it.
        patched: the attributes that carry our wrapper now.
        missing: the attributes that this version does not have.
    """

    library: str
    version: str | None
    versions: str
    supported: bool
    patched: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(slots=True)
class _Installed:
    owner: Any
    name: str
    wrapper: Any


_installed: Final[dict[Target, _Installed]] = {}
_missing: Final[set[Target]] = set()


def apply(module_name: str) -> None:
    """Wrap what the table names in this module, which has just been imported. Never raises."""
    rows = [row for row in TARGETS if row.module == module_name]
    with _lock:
        for row in rows:
            try:
                if _wanted(row.library) and _supported(row) and _meant(row):
                    _wrap(row)
            except Exception as error:
                _log.fault(("patch", row), f"{row.library}: {row.attribute} could not be patched: not guarded", error)


def enable() -> None:
    """Open the gate, and wrap what is already imported and carries no wrapper of ours."""
    global enabled
    enabled = True
    for module_name in dict.fromkeys(row.module for row in TARGETS):
        module = sys.modules.get(module_name)
        # One that another thread is importing just now gets its `apply` from there; waiting for it could deadlock.
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            apply(module_name)


def remove() -> None:
    """Close the gate, and take off each wrapper that nobody else has wrapped since."""
    global enabled
    with _lock:
        enabled = False
        for row, put in list(_installed.items()):
            try:
                if vars(put.owner).get(put.name) is put.wrapper:
                    setattr(put.owner, put.name, put.wrapper.__wrapped__)
                    del _installed[row]
            except Exception as error:
                _log.fault(("patch", row), f"{row.library}: {row.attribute} keeps its wrapper, switched off", error)


def report() -> list[Report]:
    """One row for each library of the table."""
    rows: dict[str, list[Target]] = {}
    for row in TARGETS:
        rows.setdefault(row.library, []).append(row)
    return [
        Report(
            library,
            version := _version(targets[0].distribution),
            ">={},<{}".format(*targets[0].versions),
            version is not None and _in_range(version, targets[0].versions),
            tuple(row.attribute for row in targets if row in _installed) if enabled else (),
            tuple(row.attribute for row in targets if row in _missing),
        )
        for library, targets in rows.items()
    ]


def _wrap(row: Target) -> None:
    import wrapt

    module, _, path = row.attribute.rpartition(":")
    try:
        owner, name, original = wrapt.resolve_path(sys.modules[module or row.module], path)
    except (AttributeError, KeyError):
        _missing.add(row)
        lost = "redirects and retries inside a call go unwatched" if row.optional else "its calls are not guarded"
        _log.once(("missing", row), "%s %s has no %s: %s", row.library, _version(row.distribution), row.attribute, lost)
        return
    _missing.discard(row)
    if _wrapped_by_us(original):  # by an earlier import, or under another name (httpx2.alias_httpx)
        return
    ours, _, function = row.wrapper.partition(":")
    wrapper = _wrapper_type()(original, getattr(importlib.import_module(ours), function), enabled=_is_enabled)
    wrapper._self_breaker_owner = owner
    wrapt.apply_patch(owner, name, wrapper)
    _installed[row] = _Installed(owner, name, wrapper)


def _is_enabled() -> bool:
    return enabled


def _wrapped_by_us(attribute: Any) -> bool:
    """Whether our wrapper is anywhere in this chain of wrappers."""
    ours = _wrapper_type()
    for _ in range(100):
        if type(attribute) is ours:
            return True
        attribute = getattr(attribute, "__wrapped__", None)
        if attribute is None:
            return False
    return False


@cache
def _wrapper_type() -> Any:
    """A FunctionWrapper whose methods copy and pickle as the plain ones do (wrapt's own refuse to)."""
    import wrapt

    class Bound(wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]
        def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, str]]:
            instance = self._self_instance
            return getattr, (self._self_parent._self_breaker_owner if instance is None else instance, self.__name__)

        def __copy__(self) -> Any:
            return self

        def __deepcopy__(self, memo: Any) -> Any:
            import copy

            instance = self._self_instance
            return self if instance is None else getattr(copy.deepcopy(instance, memo), self.__name__)

    class Wrapper(wrapt.FunctionWrapper):  # type: ignore[type-arg]
        __bound_function_wrapper__ = Bound

        def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, str]]:
            return getattr, (self._self_breaker_owner, self.__name__)

        def __copy__(self) -> Any:
            return self

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    return Wrapper


def _supported(row: Target) -> bool:
    version = _version(row.distribution)
    if version is None or _in_range(version, row.versions):  # no metadata (vendored, frozen): try
        return True
    _log.once(
        ("version", row.library),
        "%s %s is outside the supported range (>=%s,<%s): its calls are not guarded",
        row.library,
        version,
        *row.versions,
    )
    return False


def _meant(row: Target) -> bool:
    """Whether this release is one that has the attribute."""
    version = _version(row.distribution)
    return row.only is None or version is None or _in_range(version, row.only)


def _wanted(library: str) -> bool:
    from otel_breaker import settings  # brings pydantic, which nobody needs before the first library arrives

    return settings.current().wants(library)


@cache
def _version(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _in_range(version: str, versions: tuple[str, str]) -> bool:
    first, below = versions
    return _numbers(first) <= _numbers(version) < _numbers(below)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading release numbers: ``1.2rc1`` is (1, 2)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
