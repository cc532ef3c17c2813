"""The import hook: patches a library right after its import, in every order of imports and other hooks.

It loads nothing but the standard library's core, so that programs which patch the world first (gevent) still can. The
real loader is back in place before the module's own code runs: nobody sees ours.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import _log


class Finder:
    """Finds nothing itself: lets the finders behind it find the awaited modules and wraps what they return."""

    def __init__(self, awaited: Collection[str], apply: Callable[[str], None]) -> None:
        self._awaited = frozenset(awaited)
        self._apply = apply
        self._busy = threading.local()

    def install(self) -> None:
        """Go to the front of `sys.meta_path`; wait for imports that another thread is in the middle of."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        for name in self._awaited:
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if getattr(spec, "_initializing", False):
                try:
                    importlib.import_module(name)
                except Exception:  # the importing thread gets this error itself
                    continue

    def remove(self) -> None:
        """Leave `sys.meta_path`."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the finders behind this one give, with a loader that patches after loading."""
        if fullname not in self._awaited or getattr(self._busy, "name", None) == fullname:
            return None
        # Other hooks ask the whole meta_path again from inside their find_spec.
        outer = getattr(self._busy, "name", None)
        self._busy.name = fullname
        try:
            spec = self._found_behind(fullname, path, target)
        finally:
            self._busy.name = outer
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self._patch)  # type: ignore[assignment]
        return spec

    def _found_behind(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        finders: list[Any] = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        for finder in behind:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(fullname, path, target) if find_spec else None
            if spec is not None:
                return spec
        return None

    def _patch(self, name: str) -> None:
        try:
            self._apply(name)
        except Exception as error:  # we are inside the user's import statement
            _log.fault(("import", name), f"{name} could not be patched: not guarded", error)


class _Loader:
    """Stands in for the real loader until the module's code is about to run."""

    def __init__(self, loader: Any, patch: Callable[[str], None]) -> None:
        self._loader = loader
        self._patch = patch

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy that is being made
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        for holder, attribute in ((spec, "loader"), (module, "__loader__")):
            if getattr(holder, attribute, None) is self:
                setattr(holder, attribute, self._loader)
        self._loader.exec_module(module)
        self._patch(module.__name__)
