"""With the official instrumentors: in every order of switching on and off, neither side loses anything."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import pytest
import requests
from opentelemetry import trace
from opentelemetry.instrumentation import httpx as official
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_breaker.errors import CircuitOpenError
from otel_breaker.instrumentations import _patch
from tests.support.counts import admitted
from tests.support.faults import Script


def _asynchronously(library: Any) -> Callable[[str], None]:
    def call(url: str) -> None:
        async def go() -> None:
            async with library.AsyncClient() as client:
                await client.get(url)

        asyncio.run(go())

    return call


LIBRARIES: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "requests": (RequestsInstrumentor, requests.get),
    "httpx": (official.HTTPXClientInstrumentor, httpx.get),
    "httpx_async": (official.HTTPXClientInstrumentor, _asynchronously(httpx)),
}
if hasattr(official, "HTTPX2ClientInstrumentor"):  # not in older releases: there is no order to get wrong
    LIBRARIES["httpx2"] = (official.HTTPX2ClientInstrumentor, httpx2.get)
    LIBRARIES["httpx2_async"] = (official.HTTPX2ClientInstrumentor, _asynchronously(httpx2))
TOUCHED = [
    (requests.Session, "request"),
    (requests.Session, "send"),
    (requests.adapters.HTTPAdapter, "send"),
    *((library.Client, "send") for library in (httpx, httpx2)),
    *((library.AsyncClient, "send") for library in (httpx, httpx2)),
    *((library.HTTPTransport, "handle_request") for library in (httpx, httpx2)),
]


@dataclass
class Bench:
    """Both sides, and what each sees of one call."""

    registry: Any
    srv: Script
    spans: InMemorySpanExporter
    call: Callable[[str], Any]
    switches: dict[str, Callable[[], None]]

    def seen(self) -> tuple[int, int]:
        """(calls that the breaker admitted, client spans) of one call."""
        self.spans.clear()
        before = admitted(self.registry)
        self.call(self.srv.url())
        kinds = [span.kind for span in self.spans.get_finished_spans()]
        return admitted(self.registry) - before, kinds.count(trace.SpanKind.CLIENT)


@pytest.fixture(params=LIBRARIES)
def bench(request: pytest.FixtureRequest, patched: Any, srv: Script) -> Iterator[Bench]:
    """Nothing is switched on yet."""
    _patch.remove()
    plain = [vars(owner)[name] for owner, name in TOUCHED]
    made, call = LIBRARIES[request.param]
    official = made()
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    switches = {
        "ours on": _patch.enable,
        "ours off": _patch.remove,
        "theirs on": lambda: official.instrument(tracer_provider=provider),
        "theirs off": official.uninstrument,
    }
    yield Bench(patched, srv, spans, call, switches)
    _patch.remove()
    if official.is_instrumented_by_opentelemetry:
        official.uninstrument()
    _patch.enable()  # what was buried is on top now, and comes off
    _patch.remove()
    assert [vars(owner)[name] for owner, name in TOUCHED] == plain
    provider.shutdown()


@pytest.mark.parametrize("on", list(itertools.permutations(["ours on", "theirs on"])), ids=" then ".join)
@pytest.mark.parametrize("off", list(itertools.permutations(["ours off", "theirs off"])), ids=" then ".join)
def test_every_order(bench: Bench, on: tuple[str, ...], off: tuple[str, ...]) -> None:
    assert bench.seen() == (0, 0)
    for _ in range(2):  # and again, after everything was off
        for step in on:
            bench.switches[step]()
        assert bench.seen() == (1, 1)
        bench.switches[off[0]]()
        assert bench.seen() == ((0, 1) if off[0] == "ours off" else (1, 0))
        bench.switches[off[1]]()
        assert bench.seen() == (0, 0)


@pytest.mark.parametrize("on", list(itertools.permutations(["ours on", "theirs on"])), ids=" then ".join)
def test_a_refused_call_leaves_no_client_span(bench: Bench, on: tuple[str, ...]) -> None:
    for step in on:
        bench.switches[step]()
    bench.registry.client(bench.srv.host).force_open("test")
    with pytest.raises(CircuitOpenError):
        bench.call(bench.srv.url())
    assert bench.spans.get_finished_spans() == ()
    assert bench.srv.hits == 0


def test_switching_on_twice_wraps_once(bench: Bench) -> None:
    for step in ("ours on", "theirs on", "ours on", "ours off", "ours on"):
        bench.switches[step]()
    assert bench.seen() == (1, 1)
