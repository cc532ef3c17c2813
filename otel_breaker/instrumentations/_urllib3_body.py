"""Watches a urllib3 response body, however it is read: through requests, as a file, or piece by piece."""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

from ._http import Body


def watch(raw: Any, body: Body) -> bool:
    """Have the end of a streamed body reported. ``False`` where there is none, or none that can be watched."""
    if not hasattr(raw, "read") or getattr(raw, "length_remaining", None) == 0:
        return False
    kind: Any = type(raw)
    try:
        # A subclass and not attributes on the instance: those would be a reference cycle, and a response that nobody
        # reads would keep its connection until the cycle is collected.
        raw._otel_breaker_body = body
        raw.__class__ = _watched(kind)
    except (TypeError, AttributeError):
        return False
    weakref.finalize(raw, body.abandoned).atexit = False
    return True


@cache
def _watched(base: Any) -> Any:
    """A subclass of this body type, under its name, that reports what each way of reading it comes to."""
    members: dict[str, Any] = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    members |= {name: _reading(getattr(base, name)) for name in ("read", "read1") if hasattr(base, name)}
    members |= {name: _streaming(getattr(base, name)) for name in ("stream", "read_chunked") if hasattr(base, name)}
    if hasattr(base, "close"):
        members["close"] = _closing(base.close)
    return type(base.__name__, (base,), members)


def _reading(plain: Any) -> Any:
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        body: Body = self._otel_breaker_body
        body.reading += 1
        try:
            data = plain(self, *args, **kwargs)
        except BaseException as error:
            body.failed(error)
            raise
        finally:
            body.reading -= 1
        if not body.ended:
            amount = args[0] if args else kwargs.get("amt")
            if amount is None or amount < 0 or (amount and not data) or _drained(self):
                body.complete()
            else:
                body.piece()
        return data

    return read


def _drained(raw: Any) -> bool:
    """Whether a reader that counts bytes has had the last one (what is compressed may still not decode)."""
    return bool(getattr(raw, "closed", False)) and not getattr(raw, "headers", {}).get("content-encoding")


def _streaming(plain: Any) -> Any:
    def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        body: Body = self._otel_breaker_body
        pieces = plain(self, *args, **kwargs)
        while True:
            body.reading += 1
            try:
                piece = next(pieces)
            except StopIteration:
                break
            except BaseException as error:
                body.failed(error)
                raise
            finally:
                body.reading -= 1
            body.piece()
            yield piece
        body.complete()

    return stream


def _closing(plain: Any) -> Any:
    def close(self: Any) -> None:
        body: Body = self._otel_breaker_body
        body.whole = body.whole or bool(getattr(self, "closed", False))
        plain(self)
        if not body.reading:  # urllib3 closes by itself before it raises
            body.abandoned()

    return close
