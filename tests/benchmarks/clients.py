"""One call of each HTTP client on a transport that answers from memory: guarded, plain, and with idle wrappers.

All three are there at once: the classes of the library are patched, and subclasses have the original methods back, or
have wrappers that only call on. So no piece has to switch anything, which would cost the interpreter its caches.
"""

from __future__ import annotations

import asyncio
import importlib
import io
from collections.abc import Callable
from typing import Any

import requests
import urllib3
import wrapt

import otel_breaker
from otel_breaker.instrumentations._table import TARGETS

from .measure import Item, Loop, awaits, calls

MEASURED = ("requests", "httpx", "httpx2")
URL = "http://api.example.com/v1/things"
BODY = b'{"ok": true}'
JSON = {"content-type": "application/json"}

Changed = Callable[[type], Any]
"""Makes of a class that the guard patches the class to measure."""


class _Connection(urllib3.connection.HTTPConnection):
    """Answers every request at once; urllib3 above it is the real one."""

    def connect(self) -> None:
        pass

    def request(self, *args: Any, **kwargs: Any) -> None:
        pass

    def getresponse(self) -> Any:
        return urllib3.HTTPResponse(io.BytesIO(BODY), JSON, 200, preload_content=False)


def _requests(changed: Changed, runner: asyncio.Runner) -> dict[str, Loop]:
    pool = changed(urllib3.HTTPConnectionPool)("api.example.com")
    pool.ConnectionCls = _Connection
    adapter = changed(requests.adapters.HTTPAdapter)()
    adapter.get_connection_with_tls_context = lambda *args, **kwargs: pool
    session = changed(requests.Session)()
    session.trust_env = False  # else each call looks for a .netrc, which is slow and not even
    session.mount("http://", adapter)
    return {"requests": calls(lambda _: session.get(URL, timeout=5))}


def _httpx(library: str, changed: Changed, runner: asyncio.Runner) -> dict[str, Loop]:
    module = importlib.import_module(library)

    def answer(request: Any) -> Any:
        return module.Response(200, content=BODY, headers=JSON)

    transport = module.MockTransport(answer)
    client = changed(module.Client)(transport=transport)
    async_client = changed(module.AsyncClient)(transport=transport)
    return {
        library: calls(lambda _: client.get(URL)),
        f"{library} async": awaits(lambda _: async_client.get(URL), runner),
    }


def items(runner: asyncio.Runner) -> list[Item]:
    """Three items for each client. Switches the breakers on for the process."""
    for library in MEASURED:
        importlib.import_module(library)
    originals = _originals()
    otel_breaker.instrument()

    def plain(owner: type) -> Any:
        return type(owner.__name__, (owner,), dict(originals[owner]))

    def idle(owner: type) -> Any:
        return type(owner.__name__, (owner,), {name: _idle(owner, name, one) for name, one in originals[owner].items()})

    kinds: dict[str, Changed] = {"plain": plain, "guarded": lambda owner: owner, "idle wrappers": idle}
    found: list[Item] = []
    for kind, changed in kinds.items():
        loops = {**_requests(changed, runner), **_httpx("httpx", changed, runner), **_httpx("httpx2", changed, runner)}
        found += [Item(f"client: {name}, {kind}", loop) for name, loop in loops.items()]
    return found


def _originals() -> dict[type, dict[str, Any]]:
    """The methods that the guard patches, by their class."""
    found: dict[type, dict[str, Any]] = {}
    for row in (row for row in TARGETS if row.library in MEASURED):
        module, _, path = row.attribute.rpartition(":")
        owner, name, original = wrapt.resolve_path(importlib.import_module(module or row.module), path)
        found.setdefault(owner, {})[name] = original
    return found


def _idle(owner: type, name: str, original: Any) -> Any:
    return wrapt.FunctionWrapper(original, _call_on_async if owner.__name__.startswith("Async") else _call_on)


def _call_on(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs)


async def _call_on_async(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return await wrapped(*args, **kwargs)
