"""Watches a streamed body of httpx or httpx2, and the decoder that its reader may use."""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

from ._http import Body


def watch(module: Any, response: Any, body: Body) -> None:
    """Have the end of a streamed body reported."""
    decoder = getattr(response, "_get_content_decoder", lambda: None)()
    if decoder is not None and type(decoder).__name__ != "IdentityDecoder":
        response._decoder = _Decoder(decoder, body)
    made = _sync_stream if isinstance(response.stream, module.SyncByteStream) else _async_stream
    response.stream = made(module)(response.stream, body)
    weakref.finalize(response.stream, body.abandoned).atexit = False


class _Stream:
    """Forwards a byte stream and tells `Body` how it went."""

    def __init__(self, inner: Any, body: Body) -> None:
        self._inner = inner
        self._body = body

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _ended(self) -> None:
        self._body.whole = True
        if not self._body.decoding:
            self._body.complete()

    def _closed(self) -> None:
        if not (self._body.whole and self._body.decoding):  # else the decoder's flush is still to come
            self._body.abandoned()


class _Decoder:
    """Forwards a content decoder: undecodable bytes show here and nowhere else."""

    def __init__(self, inner: Any, body: Body) -> None:
        self._inner = inner
        self._body = body

    def decode(self, data: bytes) -> Any:
        """Decode a piece."""
        self._body.decoding = True
        return self._watched(self._inner.decode, data, last=False)

    def flush(self) -> Any:
        """Decode what is left."""
        return self._watched(self._inner.flush, last=True)

    def _watched(self, step: Any, *data: bytes, last: bool) -> Any:
        try:
            made = step(*data)
        except BaseException as error:
            self._body.failed(error)
            raise
        if isinstance(made, bytes):
            if last:
                self._body.complete()
            return made
        return self._relay(made, last)

    def _relay(self, pieces: Any, last: bool) -> Any:
        try:
            yield from pieces
        except GeneratorExit:
            raise
        except BaseException as error:
            self._body.failed(error)
            raise
        if last:
            self._body.complete()


@cache
def _sync_stream(module: Any) -> Any:
    class BreakerStream(_Stream, module.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Any:
            try:
                for chunk in self._inner:
                    self._body.piece()
                    yield chunk
            except GeneratorExit:  # the reader stopped; `close` or the collector tells
                raise
            except BaseException as error:
                self._body.failed(error)
                raise
            self._ended()

        def close(self) -> None:
            try:
                self._inner.close()
            finally:
                self._closed()

    return BreakerStream


@cache
def _async_stream(module: Any) -> Any:
    class BreakerAsyncStream(_Stream, module.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> Any:
            chunks = self._inner.__aiter__()
            try:
                while True:
                    chunk = await self._body.wait(chunks.__anext__())
                    self._body.piece()
                    yield chunk
            except StopAsyncIteration:
                self._ended()
            except GeneratorExit:
                raise
            except BaseException as error:
                self._body.failed(error)
                raise
            finally:
                if (aclose := getattr(chunks, "aclose", None)) is not None:
                    await aclose()

        async def aclose(self) -> None:
            try:
                await self._inner.aclose()
            finally:
                self._closed()

    return BreakerAsyncStream
