"""The four shells around a guarded function. Each keeps the function's kind, name, signature and docstring.

The shells of plain functions hold the hot path inline: while the circuit is closed and nothing else is going on, a call
costs one context read, one clock read, one list and one pair of context variable operations.
"""

from __future__ import annotations

import functools
import inspect
from contextvars import Token
from sys import exception
from typing import TYPE_CHECKING, Any

from . import _credentials, _guard
from ._frames import FRAME, SPAN, Frame, charges
from .errors import CircuitOpenError
from .telemetry import emit

if TYPE_CHECKING:
    from ._decorator import Binding


def shell(binding: Binding) -> Any:
    """The wrapper that fits the function's kind. ``__otel_breaker__`` on it is the binding."""
    function = binding.function
    call = getattr(function, "__call__", None)  # noqa: B004 - a callable object may be asynchronous by its __call__
    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(call):
        wrapper = _async_generator(binding)
    elif inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(call):
        wrapper = _generator(binding)
    elif inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        wrapper = _coroutine(binding)
    else:
        wrapper = _plain(binding)
    wrapper = functools.update_wrapper(wrapper, function)
    wrapper.__name__ = getattr(function, "__name__", binding.name)
    wrapper.__otel_breaker__ = binding  # type: ignore[attr-defined]
    return wrapper


def _plain(binding: Binding) -> Any:
    function, site = binding.function, binding.site

    def guarded(*args: Any, **kwargs: Any) -> Any:
        circuit = binding.circuit or binding.bind()
        permit = circuit.gate
        if (
            permit is None
            or FRAME.get() is not None
            or emit.current()
            or emit.own_spans()
            or binding.credential is not None
            or _credentials._used
        ):
            return _slow(binding, args, kwargs)
        stats = circuit.stats
        stats.admitted += 1
        now = circuit.clock.now()
        frame: Frame = [
            circuit, permit, now, None, charges[0], None, False, None, False, None, site, None, exception(), None, None,
            now, None,
        ]  # fmt: skip
        token = FRAME.set(frame)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            FRAME.reset(token)
            return _failed(binding, frame, error, args, kwargs)
        FRAME.reset(token)
        _guard.done(frame, result)
        return result

    return guarded


def _slow(binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    frame = None
    try:
        frame = _guard.begin(binding.site, binding.circuit or binding.bind(), binding.fingerprint())
    except CircuitOpenError as error:
        return _refused(binding, error, args, kwargs)
    if frame is None:
        return binding.function(*args, **kwargs)
    token = FRAME.set(frame)
    try:
        result = binding.function(*args, **kwargs)
    except BaseException as error:
        FRAME.reset(token)
        return _failed(binding, frame, error, args, kwargs)
    FRAME.reset(token)
    _guard.done(frame, result)
    return result


def _refused(binding: Binding, error: CircuitOpenError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = binding.refusal(error, None)
    if found is None:
        raise error
    return binding.answer(found, args, kwargs)


def _failed(binding: Binding, frame: Frame, error: BaseException, args: Any, kwargs: Any) -> Any:
    _guard.fail(frame, error)
    found = binding.refusal(error, frame)
    if found is None:
        raise error
    return binding.answer(found, args, kwargs)


def _coroutine(binding: Binding) -> Any:
    function, site = binding.function, binding.site

    async def guarded(*args: Any, **kwargs: Any) -> Any:
        frame = None
        try:
            circuit = binding.circuit or binding.bind()
            frame = _guard.begin(site, circuit, binding.fingerprint())
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
                _guard.fail(frame, error)
                raise
            FRAME.reset(token)
            _guard.done(frame, result)
            return result
        except Exception as error:
            found = binding.refusal(error, frame)
            if found is None:
                raise
            answer = binding.answer(found, args, kwargs)
        return await answer if inspect.isawaitable(answer) else answer

    return guarded


def _enter(frame: Frame) -> Token[Frame | None]:
    """Before a generator's step: its frame, and the span that is ours, are current only while the step runs."""
    if frame[SPAN] is not None:
        emit.enter(frame[SPAN])
    return FRAME.set(frame)


def _leave(frame: Frame, token: Token[Frame | None]) -> None:
    FRAME.reset(token)
    if frame[SPAN] is not None:
        emit.leave(frame[SPAN])


def _generator(binding: Binding) -> Any:
    function, site = binding.function, binding.site

    def guarded(*args: Any, **kwargs: Any) -> Any:
        frame = None
        try:
            frame = _guard.begin(site, binding.circuit or binding.bind(), binding.fingerprint())
        except CircuitOpenError as error:
            yield _refused(binding, error, args, kwargs)
            return None
        inner = function(*args, **kwargs)
        if frame is None:
            return (yield from inner)
        emit.leave(frame[SPAN])
        send: Any = inner.send
        value: Any = None
        while True:
            token = _enter(frame)
            try:
                item = send(value)
            except StopIteration as stop:
                _leave(frame, token)
                _guard.done(frame, stop.value)
                return stop.value
            except BaseException as error:
                _leave(frame, token)
                _guard.fail(frame, error)
                found = binding.refusal(error, frame)
                if found is None:
                    raise
                yield binding.answer(found, args, kwargs)
                return None
            _leave(frame, token)
            _guard.renew(frame)
            try:
                value = yield item
                send = inner.send
            except GeneratorExit:
                _guard.abandon(frame)
                inner.close()
                raise
            except BaseException as error:  # the consumer throws into the generator
                send, value = inner.throw, error

    return guarded


def _async_generator(binding: Binding) -> Any:
    function, site = binding.function, binding.site

    async def guarded(*args: Any, **kwargs: Any) -> Any:
        frame = None
        try:
            circuit = binding.circuit or binding.bind()
            frame = _guard.begin(site, circuit, binding.fingerprint())
        except CircuitOpenError as error:
            answer = _refused(binding, error, args, kwargs)
            yield await answer if inspect.isawaitable(answer) else answer
            return
        inner = function(*args, **kwargs)
        if frame is None:
            async for item in inner:
                yield item
            return
        emit.leave(frame[SPAN])
        send: Any = inner.asend
        value: Any = None
        while True:
            token = _enter(frame)
            try:
                step = send(value)
                item = await (_guard.bounded(step, frame, None) if circuit.policy.enforce_deadline else step)
            except StopAsyncIteration:
                _leave(frame, token)
                _guard.done(frame, None)
                return
            except BaseException as error:
                _leave(frame, token)
                _guard.fail(frame, error)
                found = binding.refusal(error, frame)
                if found is None:
                    raise
                yield binding.answer(found, args, kwargs)
                return
            _leave(frame, token)
            _guard.renew(frame)
            try:
                value = yield item
                send = inner.asend
            except GeneratorExit:
                _guard.abandon(frame)
                await inner.aclose()
                raise
            except BaseException as error:
                send, value = inner.athrow, error

    return guarded
