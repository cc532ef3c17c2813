"""Tools that share a name share nothing else: not their circuits, and not each other's outages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import otel_breaker
from otel_breaker import CircuitOpenError
from otel_breaker._registry import Registry
from otel_breaker.telemetry import emit
from tests.support.circuits import Fault, of
from tests.support.clients import CLIENTS, Client, is_a
from tests.support.faults import Script
from tests.telemetry.signals import Signals

ONE = otel_breaker.Policy(failure_threshold=1)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Signals]:
    """Real SDK providers in the place of the program's."""
    made = Signals()
    made.install(monkeypatch)
    yield made
    made.shutdown()
    emit._state.reset()


@pytest.fixture
def other() -> Iterator[Script]:
    """A second server."""
    with Script() as server:
        yield server


def agent(dependency: str, body: Callable[[], Any]) -> Any:
    """An agent's own tool ``search``."""

    @otel_breaker.guard(tool="search", dependency=dependency)
    def search() -> Any:
        return body()

    return search


def test_B04_two_agents_with_a_tool_of_one_name_have_a_circuit_for_each_back_end(
    breaker_registry: Registry, signals: Signals
) -> None:
    def fails() -> None:
        raise ConnectionResetError

    down, well = agent("down.test", fails), agent("well.test", lambda: "found")
    for _ in range(5):
        with pytest.raises(ConnectionResetError):
            down()
    assert down()["status"] == "circuit_open"
    assert well() == "found"

    assert {(one.name, one.state) for one in breaker_registry} == {("down.test", "open"), ("well.test", "closed")}
    status = signals.series("otel_breaker.status")
    assert (status["down.test", "open"], status["well.test", "closed"], status["well.test", "open"]) == (1, 1, 0)
    assert signals.series("otel_breaker.tools") == {("search", "down.test"): 1, ("search", "well.test"): 1}


@pytest.mark.parametrize("name", CLIENTS)
def test_B04_tools_of_one_name_over_http_have_a_circuit_for_each_host(
    name: str, patched: Registry, srv: Script, other: Script, signals: Signals
) -> None:
    client: Client = CLIENTS[name]
    srv.reply(503, times=5)
    with client.open() as caller:

        def search_of(server: Script) -> Any:
            @otel_breaker.guard(tool="search")
            def search() -> Any:
                result = caller.get(server.url())
                if is_a(result.error, CircuitOpenError):
                    raise result.error
                return result.status

            return search

        down, well = search_of(srv), search_of(other)
        assert [down() for _ in range(5)] == [503] * 5
        assert down()["status"] == "circuit_open"
        assert well() == 200
    assert (srv.hits, other.hits) == (5, 1)
    status = signals.series("otel_breaker.status")
    assert (status[srv.host, "open"], status[other.host, "closed"], status["search", "closed"]) == (1, 1, 1)


def module(name: str) -> Any:
    """A module that defines a tool ``fetch``."""
    space: dict[str, Any] = {"__name__": name, "Fault": Fault}
    exec("def fetch(well=True):\n    if not well:\n        raise Fault\n    return __name__\n", space)
    return space["fetch"]


def test_B39_one_function_name_in_two_modules_is_two_circuits_with_their_numbers(
    breaker_registry: Registry, signals: Signals
) -> None:
    web, disk = (otel_breaker.guard(policy=ONE)(module(name)) for name in ("web", "disk"))
    with pytest.raises(Fault):
        web(False)

    assert of(web) is not of(disk)
    assert [(one.name, one.state) for one in breaker_registry] == [("fetch", "open"), ("fetch", "closed")]
    assert web()["status"] == "circuit_open"
    assert disk() == "disk"
    # One name is one series: of the circuits that bear it, one is open and one is closed.
    status = signals.series("otel_breaker.status")
    assert (status["fetch", "open"], status["fetch", "closed"]) == (1, 1)
    admissions = signals.series("otel_breaker.admissions")
    assert (admissions["admitted", "fetch"], admissions["circuit_open", "fetch"]) == (2, 1)


class Search:
    def __call__(self) -> str:
        return "found"


def found() -> str:
    return "found"


@pytest.mark.parametrize(
    ("tool", "name"),
    [(functools.partial(found), "found"), (lambda: "found", "<lambda>"), (Search(), "Search")],
    ids=["partial", "lambda", "object"],
)
def test_B39_what_has_no_name_of_its_own_gets_a_stable_one(
    tool: Callable[[], str], name: str, breaker_registry: Registry, signals: Signals
) -> None:
    one, two = otel_breaker.guard(tool), otel_breaker.guard(tool)
    assert (one(), two()) == ("found", "found")
    assert of(one) is of(two)
    assert [circuit.name for circuit in breaker_registry] == [name]
    assert repr(of(one)) == f"<Circuit {name} closed>"
    assert signals.series("otel_breaker.admissions")["admitted", name] == 2
