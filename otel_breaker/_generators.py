"""The shells of guarded generators: admission at the first step, the frame current only while a step runs."""

from __future__ import annotations

import inspect
import sys
from contextvars import Token
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _guard
from ._frames import ALIVE, CIRCUIT, FRAME, SPAN, Frame
from .errors import CircuitOpenError
from .telemetry import emit

if TYPE_CHECKING:
    from ._decorator import Binding


def refused(binding: Binding, error: CircuitOpenError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The answer in place of a refusal, or the refusal itself, raised."""
    found = binding.refusal(error, None)
    if found is None:
        raise error
    return binding.answer(found, args, kwargs)


def _enter(frame: Frame) -> Token[Frame | None]:
    """Before a generator's step: its frame, and the span that is ours, are current only while the step runs."""
    frame[ALIVE] = frame[CIRCUIT].now()  # until now it was the reader's time
    if frame[SPAN] is not None:
        emit.enter(frame[SPAN])
    return FRAME.set(frame)


def _leave(frame: Frame, token: Token[Frame | None]) -> None:
    FRAME.reset(token)
    if frame[SPAN] is not None:
        emit.leave(frame[SPAN])


def generator(binding: Binding) -> Any:
    """The shell of a generator function."""
    function, site = binding.function, binding.site

    def guarded(*args: Any, **kwargs: Any) -> Any:
        frame = None
        try:
            frame = _guard.begin(site, binding.circuit or binding.bind(), binding.fingerprint())
        except CircuitOpenError as error:
            yield refused(binding, error, args, kwargs)
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


def async_generator(binding: Binding) -> Any:
    """The shell of an asynchronous generator function."""
    function, site = binding.function, binding.site

    async def guarded(*args: Any, **kwargs: Any) -> Any:
        frame = None
        try:
            circuit = binding.circuit or binding.bind()
            frame = _guard.begin(site, circuit, binding.fingerprint())
        except CircuitOpenError as error:
            answer = refused(binding, error, args, kwargs)
            yield await answer if inspect.isawaitable(answer) else answer
            return
        inner = function(*args, **kwargs)
        send: Any = partial(_first, inner)
        value: Any = None
        while frame is None:  # not guarded: as if the function stood here itself, like `yield from`
            try:
                item = await send(value)
            except StopAsyncIteration:
                return
            try:
                value = yield item
                send = inner.asend
            except GeneratorExit:
                await inner.aclose()
                raise
            except BaseException as error:
                send, value = inner.athrow, error
        emit.leave(frame[SPAN])
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


def _first(inner: Any, value: Any) -> Any:
    """The first step, unseen by the loop: one that ends closes all generators it knows at once, ours and the user's.

    Ours closes the user's; a second closing beside it is an error that the loop would report.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return inner.asend(value)
    finally:
        sys.set_asyncgen_hooks(*hooks)
