"""httpx2 beside httpx, and in its place."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import httpx
import httpx2
import pytest

from otel_breaker.errors import CircuitOpenError
from tests.support.clients import is_a
from tests.support.counts import outcomes
from tests.support.faults import Script


def test_each_refuses_in_its_own_form(patched: Any, srv: Script) -> None:
    patched.client(srv.host).force_open("test")
    with pytest.raises(CircuitOpenError) as ours:
        httpx.get(srv.url())
    assert is_a(ours.value, httpx.HTTPError)
    assert not is_a(ours.value, httpx2.HTTPError)
    with pytest.raises(CircuitOpenError) as ours:
        httpx2.get(srv.url())
    assert is_a(ours.value, httpx2.HTTPError)
    assert not is_a(ours.value, httpx.HTTPError)


def test_both_share_the_hosts_circuit(patched: Any, srv: Script) -> None:
    srv.reply(503, times=5)
    for library in (httpx, httpx2, httpx, httpx2, httpx):
        library.get(srv.url())
    for library in (httpx, httpx2):
        with pytest.raises(CircuitOpenError):
            library.get(srv.url())
    assert srv.hits == 5


def test_server_sent_events(patched: Any, srv: Script) -> None:
    srv.reply(chunks=[b"data: a\n\n", b"data: b\n\n"], headers={"Content-Type": "text/event-stream"})
    with httpx2.Client() as client, client.sse(srv.url()) as source:
        assert [event.data for event in source] == ["a", "b"]
    assert outcomes(patched) == {"success": 1}


@pytest.mark.parametrize("order", ["alias first", "breaker first"])
def test_aliased_to_httpx_it_is_wrapped_once_B48(srv: Script, order: str) -> None:
    steps = ["httpx2.alias_httpx()", "_patch.enable()"]
    if order == "breaker first":
        steps.reverse()
    code = "\n".join(
        [
            "import httpx2",
            "from otel_breaker.instrumentations import _patch",
            "from otel_breaker._registry import registry",
            *steps,
            "import httpx",
            "_patch.apply('httpx')",
            f"httpx.get({srv.url()!r})",
            "assert httpx is httpx2",
            "print(sum(stats.admitted for stats in registry().names()), type(vars(httpx.Client)['send'].__wrapped__))",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "1 <class 'function'>"
