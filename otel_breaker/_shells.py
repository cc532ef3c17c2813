"""The four shells around a guarded function. Each keeps the function's kind, name, signature and docstring.

The shells of plain functions hold the hot path inline: while the circuit is closed and nothing else is going on, a call
costs one context read, one clock read, one list and one pair of context variable operations.
"""

from __future__ import annotations

import functools
import inspect
from sys import exception
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from . import _credentials, _generators, _guard
from ._frames import DONE, EVIDENCE, FRAME, Frame, Site, charges, facts
from .core.states import Open
from .core.views import view
from .errors import CircuitOpenError, PromptRefusal
from .telemetry import providers, quick

if TYPE_CHECKING:
    from ._decorator import Binding
    from .circuit import Circuit


def shell(binding: Binding) -> Any:
    """The wrapper that fits the function's kind. ``__otel_breaker__`` on it is the binding."""
    function = binding.function
    call = getattr(function, "__call__", None)  # noqa: B004 - a callable object may be asynchronous by its __call__
    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(call):
        binding.stream = True
        wrapper = _generators.async_generator(binding)
    elif inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(call):
        binding.stream = True
        wrapper = _generators.generator(binding)
    elif inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        wrapper = _coroutine(binding)
    else:
        wrapper = _plain(binding)
    wrapper = functools.update_wrapper(wrapper, function)
    wrapper.__name__ = getattr(function, "__name__", binding.name)
    wrapper.__otel_breaker__ = binding  # type: ignore[attr-defined]
    return wrapper


def _plain(binding: Binding) -> Any:
    function, site, judged = binding.function, binding.site, binding.judged
    frames, context = FRAME.get, quick.current
    push, pop = FRAME.set, FRAME.reset

    def guarded(*args: Any, **kwargs: Any) -> Any:
        circuit = binding.circuit or binding.bind()
        permit = circuit.gate
        if (
            frames() is not None
            or context()
            or quick.tracing._TRACER_PROVIDER is not None
            or providers._state.mine
            or binding.credential is not None
            or _credentials._used
        ):
            return _slow(binding, args, kwargs)
        stats = circuit.stats
        if permit is None:
            state = circuit._state
            if type(state) is Open and circuit.mode == "enforce":
                now = circuit.now()
                if now < state.episode.until and now < circuit.told_at:
                    cost = circuit.cost
                    stats.circuit_open += 1
                    stats.time_saved += cost
                    circuit.untold += 1
                    if binding.raises:
                        raise PromptRefusal(_facts, circuit, state, now, site)
                    return binding.answer_promptly(circuit, state, now, args, kwargs)
            return _slow(binding, args, kwargs)
        stats.admitted += 1
        now = circuit.now()
        frame: Frame = [
            circuit, permit, now, None, charges[0], None, False, None, False, None, site, None, exception(), None, None,
            now, None,
        ]  # fmt: skip
        token = push(frame)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            pop(token)
            return _failed(binding, frame, error, args, kwargs)
        pop(token)
        if (
            now >= circuit.sample_at
            or circuit.busy
            or circuit.gate != permit
            or judged
            or frame[EVIDENCE] is not None
            or isinstance(result, (dict, CoroutineType))
        ):
            return _returned(binding, frame, result, args, kwargs)
        frame[DONE] = True
        stats.success += 1
        return result

    return guarded


def _facts(circuit: Circuit, state: Open, now: float, site: Site) -> dict[str, Any]:
    snapshot = view(circuit.name, state, circuit.policy, now)
    return facts(circuit, snapshot, "circuit_open", state.episode.until - now, site.tool, site.alternatives)


def _slow(binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    frame = None
    try:
        frame = _guard.begin(binding.site, binding.circuit or binding.bind(), binding.fingerprint())
    except CircuitOpenError as error:
        return _generators.refused(binding, error, args, kwargs)
    if frame is None:
        return binding.function(*args, **kwargs)
    token = FRAME.set(frame)
    try:
        result = binding.function(*args, **kwargs)
    except BaseException as error:
        FRAME.reset(token)
        return _failed(binding, frame, error, args, kwargs)
    FRAME.reset(token)
    return _returned(binding, frame, result, args, kwargs)


def _returned(binding: Binding, frame: Frame, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if type(result) is CoroutineType:  # a plain function in front of an asynchronous one: the call is yet to come
        frame[DONE] = True
        return _awaited(binding, frame, result, args, kwargs)
    _guard.done(frame, result)
    return result


async def _awaited(binding: Binding, frame: Frame, coroutine: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    try:
        return await _guard.later(frame, coroutine)
    except BaseException as error:
        found = binding.refusal(error, frame)
        if found is None:
            raise
        answer = binding.answer(found, args, kwargs)
    return await answer if inspect.isawaitable(answer) else answer


def _failed(binding: Binding, frame: Frame, error: BaseException, args: Any, kwargs: Any) -> Any:
    _guard.fail(frame, error)
    found = binding.refusal(error, frame)
    if found is None:
        raise error
    return binding.answer(found, args, kwargs)


def _coroutine(binding: Binding) -> Any:
    function, site = binding.function, binding.site

    async def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            circuit = binding.circuit or binding.bind()
            frame = _guard.begin(site, circuit, binding.fingerprint())
        except CircuitOpenError as error:
            answer = _generators.refused(binding, error, args, kwargs)
            return await answer if inspect.isawaitable(answer) else answer
        if frame is None:
            return await function(*args, **kwargs)
        token = FRAME.set(frame)
        try:
            if circuit.policy.enforce_deadline:
                result = await _guard.bounded(function(*args, **kwargs), frame, None)
            else:
                result = await function(*args, **kwargs)
        except BaseException as error:
            FRAME.reset(token)
            answer = _failed(binding, frame, error, args, kwargs)
            return await answer if inspect.isawaitable(answer) else answer
        FRAME.reset(token)
        _guard.done(frame, result)
        return result

    return guarded
