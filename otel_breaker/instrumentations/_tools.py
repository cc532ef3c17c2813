"""What the agent frameworks share: a guard around one tool call, and the refusal as the framework's own result.

A framework's wrapper names the tool and says what a refusal looks like there; everything else is here
(docs/contributing/adding-a-framework.md).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from otel_breaker import _bindings, _credentials, _guard, _log, _settling
from otel_breaker._admission import begin
from otel_breaker._frames import CIRCUIT, FRAME, PERMIT, Frame, Site
from otel_breaker._registry import registry
from otel_breaker.circuit import Circuit
from otel_breaker.classify._chain import class_names
from otel_breaker.errors import CircuitOpenError
from otel_breaker.keys import display_safe
from otel_breaker.outcomes import IGNORED, Outcome

_MOST: Final = 4096
"""Tools remembered; past it all are looked up anew."""

Answer = Callable[[CircuitOpenError], Any]
"""Makes of a refusal what the framework hands to the model."""

_running: ContextVar[Frame | None] = ContextVar("otel_breaker_tool", default=None)
"""The frame of the innermost tool call; ``None`` where that one is not guarded, whatever is around it."""


class Tool:
    """One tool of a framework, as the guard sees it.

    Attributes:
        circuit: its own, or that of the dependency it is mapped to.
        site: its static facts.
        raises: ``on_open: raise``: a refusal is raised, not answered.
        control: see `Tools`.
    """

    __slots__ = ("__weakref__", "circuit", "control", "raises", "site")

    def __init__(self, circuit: Circuit, site: Site, raises: bool, control: frozenset[str] = frozenset()) -> None:
        self.circuit = circuit
        self.site = site
        self.raises = raises
        self.control = control


class Tools:
    """The tools of one framework.

    Args:
        library: its name in the table.
        judge: (frame, result) -> Outcome, or ``None`` for a success.
        explain: (frame, exception) -> Outcome, or ``None`` where the built-in rules shall decide.
        fit: the exception class that a raised refusal must also be, or ``None``.
        control: classes (``package.Class``) of exceptions that steer the framework: they pass and say nothing, also
            where they were raised while a failure or refusal was being handled.
    """

    def __init__(
        self,
        library: str,
        *,
        judge: Callable[[Frame, Any], Any] | None = None,
        explain: Callable[[Frame, BaseException], Any] | None = None,
        fit: Callable[[], type[BaseException] | None] | None = None,
        control: tuple[str, ...] = (),
    ) -> None:
        self._library = library
        self._judge, self._explain, self._fit = judge, explain, fit
        self._control = frozenset(control)
        self._known: dict[tuple[str, str, int], Tool] = {}
        _bindings.bind(self)

    def release(self) -> None:
        """The registry was swapped or cleared: look circuits up anew."""
        self._known = {}

    def offers(self) -> dict[str, tuple[str, ...]]:
        """What the answers of the tools seen so far offer instead, by tool."""
        return {tool.site.tool: tool.site.alternatives for tool in list(self._known.values()) if tool.site.tool}

    def get(self, name: str, identity: str, owner: Any = None, metric: str | None = None) -> Tool | None:
        """The tool of that name; ``None`` where it cannot be told: `call` then goes straight through. Never raises.

        Args:
            name: as the model knows it.
            identity: `keys.tool_identity` of its function, or what else is the same in every process; never ``id()``.
            owner: the tool object; under ``scope: instance`` each has a circuit of its own, as long as it lives.
            metric: name of its circuit where that is not the tool's name.
        """
        try:
            name = display_safe(name)
            found = self._known.get((identity, name, 0)) or self._known.get((identity, name, id(owner)))
            return found or self._make(name, identity, owner, metric or name)
        except Exception as error:
            _log.fault(("tool", self._library), f"{self._library}: a tool could not be guarded", error)
            return None

    def _make(self, name: str, identity: str, owner: Any, metric: str) -> Tool:
        circuits = registry()
        config = circuits.config(name, None if metric == name else metric)
        circuit = circuits.tool(f"{identity}/{name}" if metric == name else identity, metric, config, None, None)
        circuit.stats.used_by(name)
        site = Site(
            self._library, layer="tool", tool=name, fit=self._fit, judge=self._judge, explain=self._explained, body=True
        )
        site.alternatives = config.alternatives
        made = Tool(circuit, site, config.on_open == "raise", self._control)
        if len(self._known) >= _MOST:
            self._known = {}
        key = (identity, name, 0)
        if config.scope == "instance" and config.dependency is None and owner is not None:
            with suppress(TypeError):  # an owner that cannot be referred to weakly shares with its like
                weakref.finalize(owner, self._known.pop, (identity, name, id(owner)), None)
                key = (identity, name, id(owner))
        return self._known.setdefault(key, made)

    def _explained(self, frame: Frame, error: BaseException) -> Outcome | None:
        if _steers(error, self._control):
            return IGNORED
        told: Outcome | None = self._explain(frame, error) if self._explain is not None else None
        return told


def call(tool: Tool | None, wrapped: Callable[..., Any], args: Any, kwargs: Any, answer: Answer) -> Any:
    """Run a tool's body through its guard; a refusal, its own or from a guard below, becomes ``answer(refusal)``."""
    try:
        frame = begin(tool.site, tool.circuit, _credentials.current()) if tool is not None else None
    except CircuitOpenError as refusal:
        return _told(tool, refusal, answer)
    inner = _running.set(frame)
    try:
        if tool is None or frame is None:
            return wrapped(*args, **kwargs)
        token = FRAME.set(frame)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            FRAME.reset(token)
            return _failed(tool, frame, error, answer)
        FRAME.reset(token)
        if frame[PERMIT] is not None:
            _guard.done(frame, result)
        return result
    finally:
        _running.reset(inner)


async def acall(tool: Tool | None, wrapped: Callable[..., Any], args: Any, kwargs: Any, answer: Answer) -> Any:
    """`call` for a coroutine function; ends it at the deadline where the policy enforces that."""
    try:
        frame = begin(tool.site, tool.circuit, _credentials.current()) if tool is not None else None
    except CircuitOpenError as refusal:
        return _told(tool, refusal, answer)
    inner = _running.set(frame)
    try:
        if tool is None or frame is None:
            return await wrapped(*args, **kwargs)
        token = FRAME.set(frame)
        try:
            running = wrapped(*args, **kwargs)
            enforced = frame[CIRCUIT].policy.enforce_deadline
            result = await (_guard.bounded(running, frame, None) if enforced else running)
        except BaseException as error:
            FRAME.reset(token)
            return _failed(tool, frame, error, answer)
        FRAME.reset(token)
        if frame[PERMIT] is not None:
            _guard.done(frame, result)
        return result
    finally:
        _running.reset(inner)


def swallowed(error: BaseException) -> None:
    """The framework makes a result of this exception, which ended the body of the innermost tool call. Never raises."""
    frame = _running.get()
    if frame is not None and frame[PERMIT] is not None:
        _guard.fail(frame, error)


def _failed(tool: Tool, frame: Frame, error: BaseException, answer: Answer) -> Any:
    _guard.fail(frame, error)
    found = None if _steers(error, tool.control) else _settling.refusal_behind(error, frame)
    if found is None or tool.raises:
        raise error
    return _told(tool, found, answer)


def _told(tool: Tool | None, refusal: CircuitOpenError, answer: Answer) -> Any:
    if tool is not None and not tool.raises:
        try:
            return answer(refusal)
        except Exception as error:
            _log.fault(("answer", tool.site.library), f"{tool.site.library}: a refusal could not be answered", error)
    raise refusal


def _steers(error: BaseException, control: frozenset[str]) -> bool:
    return bool(control) and not control.isdisjoint(class_names(type(error)))
