"""The four shells around a guarded function. Each keeps the function's kind, name, signature and docstring.

Those of functions and coroutine functions hold the hot path inline, twice the same: docs/performance.md counts it out.
It counts without a lock; where threads run at once, every call takes the long way in its place.
"""

from __future__ import annotations

import functools
import inspect
from sys import exception
from types import CoroutineType, NoneType
from typing import TYPE_CHECKING, Any, Final

from . import _generators, _guard
from ._admission import QUIET
from ._frames import DONE, EVIDENCE, FRAME, Frame, Site, charges, facts
from ._threads import AT_ONCE
from .core.clock import BOOT, SYSTEM_CLOCK, gettime
from .core.states import Open
from .core.views import view
from .errors import CircuitOpenError, PromptRefusal
from .telemetry import emit, quick

if TYPE_CHECKING:
    from ._decorator import Binding
    from .circuit import Circuit

_SIMPLE: Final = frozenset({NoneType, bool, int, float, str, bytes, list, tuple})
"""Types of results that need no second look: asking this is cheaper than asking what else one is an instance of."""


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
    if AT_ONCE:

        def counted(*args: Any, **kwargs: Any) -> Any:
            return _slow(binding, args, kwargs)

        return counted
    function, site, judged = binding.function, binding.site, binding.judged
    # A guard with a credential of its own always takes the long way.
    frames = FRAME.get if binding.credential is None else lambda: QUIET
    context, tracing, detours, on_span = quick.current, quick.tracing, quick.detours, emit.on_span
    push, pop = FRAME.set, FRAME.reset
    system_now = SYSTEM_CLOCK.now if BOOT is not None else None

    def guarded(*args: Any, **kwargs: Any) -> Any:
        circuit = binding.circuit or binding.bind()
        permit = circuit.gate
        around = context()
        if frames() is not None or detours:
            return _slow(binding, args, kwargs)
        if around:
            if permit is None or not on_span(around, circuit, site):
                return _slow(binding, args, kwargs)
        elif tracing._TRACER_PROVIDER is not None:
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
        now = gettime(BOOT) if circuit.now is system_now else circuit.now()
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
            or circuit.gate is not permit
            or judged
            or frame[EVIDENCE] is not None
            or (type(result) not in _SIMPLE and isinstance(result, (dict, CoroutineType)))
        ):
            return _returned(binding, frame, result, args, kwargs)
        frame[DONE] = True
        stats.success += 1
        return result

    return guarded


def _facts(circuit: Circuit, state: Open, now: float, site: Site) -> dict[str, Any]:
    seen = view(circuit.name, state, circuit.policy, now)
    return facts(circuit, seen, "circuit_open", state.episode.until - now, site.tool, site.alternatives)


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
    if AT_ONCE:

        async def counted(*args: Any, **kwargs: Any) -> Any:
            return await _slow_coroutine(binding, args, kwargs)

        return counted
    function, site, judged = binding.function, binding.site, binding.judged
    # A guard with a credential of its own always takes the long way.
    frames = FRAME.get if binding.credential is None else lambda: QUIET
    context, tracing, detours, on_span = quick.current, quick.tracing, quick.detours, emit.on_span
    push, pop = FRAME.set, FRAME.reset
    system_now = SYSTEM_CLOCK.now if BOOT is not None else None

    async def guarded(*args: Any, **kwargs: Any) -> Any:  # the same as in `_plain`, for the price of a call
        circuit = binding.circuit or binding.bind()
        permit = circuit.gate
        around = context()
        if frames() is not None or detours:
            return await _slow_coroutine(binding, args, kwargs)
        if circuit.policy.enforce_deadline:
            return await _slow_coroutine(binding, args, kwargs)
        if around:
            if permit is None or not on_span(around, circuit, site):
                return await _slow_coroutine(binding, args, kwargs)
        elif tracing._TRACER_PROVIDER is not None:
            return await _slow_coroutine(binding, args, kwargs)
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
                    answer = binding.answer_promptly(circuit, state, now, args, kwargs)
                    return answer if type(answer) is dict or not inspect.isawaitable(answer) else await answer
            return await _slow_coroutine(binding, args, kwargs)
        stats.admitted += 1
        now = gettime(BOOT) if circuit.now is system_now else circuit.now()
        frame: Frame = [
            circuit, permit, now, None, charges[0], None, False, None, False, None, site, None, exception(), None, None,
            now, None,
        ]  # fmt: skip
        token = push(frame)
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            pop(token)
            answer = _failed(binding, frame, error, args, kwargs)
            return await answer if inspect.isawaitable(answer) else answer
        pop(token)
        if (
            now >= circuit.sample_at
            or circuit.busy
            or circuit.gate is not permit
            or judged
            or frame[EVIDENCE] is not None
            or (type(result) not in _SIMPLE and isinstance(result, dict))
        ):
            _guard.done(frame, result)
            return result
        frame[DONE] = True
        stats.success += 1
        return result

    return guarded


async def _slow_coroutine(binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function, circuit = binding.function, binding.circuit or binding.bind()
    try:
        frame = _guard.begin(binding.site, circuit, binding.fingerprint())
    except CircuitOpenError as error:
        answer = _generators.refused(binding, error, args, kwargs)
        return await answer if inspect.isawaitable(answer) else answer
    if frame is None:
        return await function(*args, **kwargs)
    token = FRAME.set(frame)
    try:
        call = function(*args, **kwargs)
        result = await (_guard.bounded(call, frame, None) if circuit.policy.enforce_deadline else call)
    except BaseException as error:
        FRAME.reset(token)
        answer = _failed(binding, frame, error, args, kwargs)
        return await answer if inspect.isawaitable(answer) else answer
    FRAME.reset(token)
    _guard.done(frame, result)
    return result
