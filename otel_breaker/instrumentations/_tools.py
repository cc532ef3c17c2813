"""What the agent frameworks share: a guard around one tool call, and the refusal as the framework's own result.

A framework's wrapper names the tool and says what a refusal looks like there; everything else is here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from otel_breaker import _bindings, _credentials, _guard, _settling
from otel_breaker._admission import begin
from otel_breaker._frames import CIRCUIT, FRAME, Frame, Site
from otel_breaker._registry import registry
from otel_breaker.circuit import Circuit
from otel_breaker.errors import CircuitOpenError
from otel_breaker.keys import display_safe

_MOST: Final = 4096
"""Tools remembered; past it all are looked up anew."""

Answer = Callable[[CircuitOpenError], Any]
"""Makes of a refusal what the framework hands to the model."""


class Tool:
    """One tool of a framework, as the guard sees it.

    Attributes:
        circuit: its own, or that of the dependency it is mapped to.
        site: its static facts.
        raises: ``on_open: raise``: a refusal is raised, not answered.
    """

    __slots__ = ("__weakref__", "circuit", "raises", "site")

    def __init__(self, circuit: Circuit, site: Site, raises: bool) -> None:
        self.circuit = circuit
        self.site = site
        self.raises = raises


class Tools:
    """The tools of one framework.

    Args:
        library: its name in the table.
        judge: (frame, result) -> Outcome, or ``None`` for a success.
        explain: (frame, exception) -> Outcome, or ``None`` where the built-in rules shall decide.
        fit: the exception class that a raised refusal must also be, or ``None``.
    """

    def __init__(
        self,
        library: str,
        *,
        judge: Callable[[Frame, Any], Any] | None = None,
        explain: Callable[[Frame, BaseException], Any] | None = None,
        fit: Callable[[], type[BaseException] | None] | None = None,
    ) -> None:
        self._library = library
        self._judge, self._explain, self._fit = judge, explain, fit
        self._known: dict[tuple[str, str, int], Tool] = {}
        _bindings.bind(self)

    def release(self) -> None:
        """The registry was swapped or cleared: look circuits up anew."""
        self._known = {}

    def get(self, name: str, identity: str, owner: Any = None, metric: str | None = None) -> Tool:
        """The tool of that name.

        Args:
            name: as the model knows it.
            identity: `keys.tool_identity` of its function, or what else is the same in every process; never ``id()``.
            owner: the tool object; under ``scope: instance`` each has a circuit of its own, as long as it lives.
            metric: name of its circuit where that is not the tool's name.
        """
        name = display_safe(name)
        found = self._known.get((identity, name, 0)) or self._known.get((identity, name, id(owner)))
        return found or self._make(name, identity, owner, metric or name)

    def _make(self, name: str, identity: str, owner: Any, metric: str) -> Tool:
        circuits = registry()
        config = circuits.config(name, None if metric == name else metric)
        circuit = circuits.tool(f"{identity}/{name}" if metric == name else identity, metric, config, None, None)
        circuit.stats.used_by(name)
        site = Site(
            self._library, layer="tool", tool=name, fit=self._fit, judge=self._judge, explain=self._explain, body=True
        )
        site.alternatives = config.alternatives
        made = Tool(circuit, site, config.on_open == "raise")
        if len(self._known) >= _MOST:
            self._known = {}
        if config.scope == "instance" and config.dependency is None and owner is not None:
            key = (identity, name, id(owner))
            weakref.finalize(owner, self._known.pop, key, None)
        else:
            key = (identity, name, 0)
        self._known[key] = made
        return made


def call(tool: Tool, wrapped: Callable[..., Any], args: Any, kwargs: Any, answer: Answer) -> Any:
    """Run a tool's body through its guard; a refusal, its own or from a guard below, becomes ``answer(refusal)``."""
    try:
        frame = begin(tool.site, tool.circuit, _credentials.current())
    except CircuitOpenError as refusal:
        if tool.raises:
            raise
        return answer(refusal)
    if frame is None:
        return wrapped(*args, **kwargs)
    token = FRAME.set(frame)
    try:
        result = wrapped(*args, **kwargs)
    except BaseException as error:
        FRAME.reset(token)
        return _failed(tool, frame, error, answer)
    FRAME.reset(token)
    _guard.done(frame, result)
    return result


async def acall(tool: Tool, wrapped: Callable[..., Any], args: Any, kwargs: Any, answer: Answer) -> Any:
    """`call` for a coroutine function; ends it at the deadline where the policy enforces that."""
    try:
        frame = begin(tool.site, tool.circuit, _credentials.current())
    except CircuitOpenError as refusal:
        if tool.raises:
            raise
        return answer(refusal)
    if frame is None:
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
    _guard.done(frame, result)
    return result


def _failed(tool: Tool, frame: Frame, error: BaseException, answer: Answer) -> Any:
    _guard.fail(frame, error)
    found = None if tool.raises else _settling.refusal_behind(error, frame)
    if found is None:
        raise error
    return answer(found)
