"""LangChain tools: opening, refusing, probing, closing, by ``invoke`` and ``ainvoke`` and in a real LangGraph agent."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import gc
import inspect
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import pydantic
import pytest
import requests
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, Tool, ToolException
from langchain_core.tools import tool as made_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.types import Command, interrupt

import otel_breaker
from otel_breaker import CircuitOpenError, ProbeInFlightError, Transition, settings
from otel_breaker._frames import FRAME
from otel_breaker._registry import Registry
from otel_breaker.instrumentations import _patch
from otel_breaker.testing import ManualClock
from tests.support.circuits import Fault, decisions, moves, outcomes, reasons
from tests.support.counts import names
from tests.support.faults import Script
from tests.support.langchain import Agent, caller, tool_call
from tests.support.unawaited import none_dropped


@dataclass(frozen=True)
class Way:
    """One way to have a tool called: the kind of tool, and how."""

    name: str
    coroutine: bool
    awaited: bool

    def tool(self, body: Callable[..., Any], name: str = "search", **options: Any) -> Any:
        """A tool with this body."""

        def search(q: str = "x") -> Any:
            """Search."""
            return body(q)

        async def asearch(q: str = "x") -> Any:
            """Search."""
            result = body(q)
            return await result if inspect.isawaitable(result) else result

        wanted = {"coroutine": asearch} if self.coroutine else {"func": search}
        return StructuredTool.from_function(**wanted, name=name, description="Search.", **options)

    def call(self, tool: Any, given: Any = None, config: Any = None) -> Any:
        """One call, to its end."""
        return caller(self.awaited)(tool, given, config)

    def agent(self, tools: list[Any], script: list[Any], **options: Any) -> Agent:
        """A graph that runs the script."""
        return Agent(tools, script, self.awaited, **options).ask()


WAYS = [Way("sync", False, False), Way("async", True, True), Way("sync tool, awaited", False, True)]


@pytest.fixture(params=WAYS, ids=lambda way: way.name)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def on(breaker_registry: Registry) -> Iterator[Registry]:
    """LangChain and the HTTP clients, patched, over a fresh registry and default settings."""
    settings.use(settings.load())
    _patch.enable()
    yield breaker_registry
    _patch.remove()
    settings.forget()


class Body:
    """A tool's body that does what it is told, and counts how often it was entered."""

    def __init__(self, does: Callable[[str], Any] | BaseException | None = None) -> None:
        self.does = does
        self.entered = 0

    def __call__(self, q: str) -> Any:
        self.entered += 1
        if isinstance(self.does, BaseException):
            raise self.does
        return self.does(q) if self.does is not None else f"found {q}"


def open_answer(name: str = "search", reason: str | None = None, seconds: int = 30) -> dict[str, Any]:
    return {
        "status": "circuit_open",
        "tool": name,
        "reason": reason or f"{name} failing (5 consecutive failures, last: tool error)",
        "retry_after_ms": seconds * 1000,
        "alternatives": [],
    }


def fail(way: Way, tool: Any, times: int = 5, error: type[BaseException] = Fault) -> None:
    for _ in range(times):
        with pytest.raises(error):
            way.call(tool)


def only(registry: Registry) -> Any:
    """The one circuit there is."""
    (circuit,) = registry
    return circuit


# --- opening, refusing ------------------------------------------------------------------------------------------------


def test_after_five_failures_the_body_is_not_entered_and_the_caller_gets_the_answer_as_json(
    way: Way, on: Registry
) -> None:
    body = Body(Fault())
    search = way.tool(body)
    fail(way, search)
    for _ in range(3):
        assert json.loads(way.call(search)) == open_answer()
    assert body.entered == 5
    assert decisions(only(on)) == {"admitted": 5, "circuit_open": 3}
    assert reasons(only(on)) == {"tool_error": 5}


def test_a_refused_tool_call_is_a_tool_message(way: Way, on: Registry) -> None:
    search = way.tool(Body(Fault()))
    fail(way, search)
    message = way.call(search, tool_call("search", call_id="c7"))
    assert type(message) is ToolMessage
    assert json.loads(message.content) == message.artifact == open_answer()
    assert (message.name, message.tool_call_id, message.status) == ("search", "c7", "error")


SCRIPT: tuple[str | float, ...] = (
    "ok", "fault", "ok", "fault", "bad argument", "fault", "handled", "fault", "fault",  # opens on the fifth
    "refused", 30.0, "fault",  # a failed probe
    "refused", 60.0, "bad argument", "interrupt", "ok",  # two neutral probes, then one that closes
    "ok", "error dict", "fault", "fault", "fault", "declared", "refused", 30.0, "ok",
)  # fmt: skip


def perform(what: str) -> Any:
    errors: dict[str, Any] = {
        "fault": Fault,
        "bad argument": ValueError,
        "handled": lambda: ToolException("no such thing"),
        "declared": lambda: ToolException("backend is gone"),
        "interrupt": GraphInterrupt,
    }
    if what in errors:
        raise errors[what]()
    return {"error": "boom"} if what == "error dict" else what


def test_sync_and_async_tell_the_same_story_B06(
    way: Way, on: Registry, manual_clock: ManualClock, transitions: list[Transition]
) -> None:
    search = way.tool(perform, handle_tool_error=True)
    said = []
    for step in SCRIPT:
        if isinstance(step, float):
            manual_clock.advance(step)
            continue
        try:
            result = way.call(search, {"q": step})
        except Exception as error:
            result = type(error).__name__
        said.append(json.loads(result)["status"] if step == "refused" else result)
    circuit = only(on)
    assert said == [
        "ok", "Fault", "ok", "Fault", "ValueError", "Fault", "no such thing", "Fault", "Fault",
        "circuit_open", "Fault", "circuit_open", "ValueError", "GraphInterrupt", "ok",
        "ok", {"error": "boom"}, "Fault", "Fault", "Fault", "backend is gone", "circuit_open", "ok",
    ]  # fmt: skip
    began = transitions[0].at
    assert [(move.previous_state, move.state, move.reason, move.at - began) for move in transitions] == [
        ("closed", "open", "tool_error", 0),
        ("open", "half_open", "cooldown_elapsed", 30),
        ("half_open", "open", "tool_error", 30),
        ("open", "half_open", "cooldown_elapsed", 90),
        ("half_open", "closed", "probe_succeeded", 90),
        ("closed", "open", "tool_error", 90),
        ("open", "half_open", "cooldown_elapsed", 120),
        ("half_open", "closed", "probe_succeeded", 120),
    ]
    assert decisions(circuit) == {"admitted": 15, "probe": 5, "circuit_open": 3}
    assert outcomes(circuit) == {"success": 5, "failure": 12, "neutral": 3}
    assert reasons(circuit) == {"tool_error": 12}
    assert moves(circuit) == {
        ("closed", "open"): 2,
        ("open", "half_open"): 3,
        ("half_open", "open"): 1,
        ("half_open", "closed"): 2,
    }
    assert circuit.snapshot().state == "closed"
    assert circuit.snapshot().failures == 0


# --- in an agent ------------------------------------------------------------------------------------------------------


def unreachable(_: str) -> Any:
    raise httpx.ConnectError("[Errno 111] Connection refused")


@pytest.mark.parametrize("handle", [True, False])
def test_the_models_next_turn_receives_the_answer_with_error_handling_on_and_off_B18(
    way: Way, on: Registry, handle: bool
) -> None:
    body = Body(unreachable)
    search = way.tool(body)
    if handle:
        agent = way.agent([search], ["search"] * 6, handle_tool_errors=True)
        assert [len(turn) for turn in agent.told] == [1] * 6
        assert all("ConnectError" in str(turn[0].content) for turn in agent.told[:5])
    else:
        for _ in range(5):
            with pytest.raises(httpx.ConnectError):
                way.agent([search], ["search"], handle_tool_errors=False)
        agent = way.agent([search], ["search"], handle_tool_errors=False)
    assert body.entered == 5
    assert reasons(only(on)) == {"connection_refused": 5}
    (message,) = agent.told[-1]
    told = open_answer(reason="search unreachable (5 consecutive failures, last: connection refused)")
    assert json.loads(str(message.content)) == message.artifact == told
    assert (message.name, message.status) == ("search", "error")
    assert message.tool_call_id == f"call-{len(agent.told)}-0"


def shown(error: Exception) -> str:
    return str(error)


def test_with_on_open_raise_handling_gives_a_message_and_no_handling_raises_B18(
    way: Way, on: Registry, configure: Callable[..., None]
) -> None:
    configure(circuits=[{"match": {"tool": "search"}, "on_open": "raise"}])
    body = Body(Fault())
    search = way.tool(body)
    fail(way, search)
    with pytest.raises(CircuitOpenError) as caught:
        way.call(search)
    assert caught.value.answer() == open_answer()
    with pytest.raises(CircuitOpenError):
        way.agent([search], ["search"], handle_tool_errors=False)
    ((message,),) = way.agent([search], ["search"], handle_tool_errors=True).told
    assert message.status == "error"
    assert message.artifact is None
    ((message,),) = way.agent([search], ["search"], handle_tool_errors=shown).told
    assert json.loads(str(message.content)) == open_answer()
    assert body.entered == 5


def test_of_five_tool_calls_in_one_turn_one_probes_and_four_are_told_so(
    way: Way, on: Registry, manual_clock: ManualClock
) -> None:
    body = Body(Fault())
    search = way.tool(body)
    fail(way, search)
    manual_clock.advance(30)

    def others_are_refused() -> bool:
        return bool(only(on).stats.probe_in_flight == 4)

    async def awaiting() -> str:
        ends = time.monotonic() + 20
        while not others_are_refused() and time.monotonic() < ends:
            await asyncio.sleep(0)
        return "found"

    def waiting() -> str:
        ends = time.monotonic() + 20
        while not others_are_refused() and time.monotonic() < ends:
            time.sleep(0.002)
        return "found"

    body.does = (lambda _: awaiting()) if way.coroutine else (lambda _: waiting())
    (messages,) = way.agent([search], [["search"] * 5]).told
    assert body.entered == 6
    told = [message.artifact["status"] if message.artifact else message.content for message in messages]
    assert sorted(told) == ["found"] + ["probe_in_flight"] * 4
    assert [message.tool_call_id for message in messages] == [f"call-1-{number}" for number in range(5)]
    for message in messages:
        if message.artifact:
            assert json.loads(str(message.content)) == message.artifact
            assert message.artifact == {
                "status": "probe_in_flight",
                "tool": "search",
                "reason": "search failing (5 consecutive failures, last: tool error); one call is testing it now",
                "retry_after_ms": 30000,
                "alternatives": [],
            }
    assert only(on).snapshot().state == "closed"


# --- what counts ------------------------------------------------------------------------------------------------------


class Arguments(pydantic.BaseModel):
    q: int


def test_argument_errors_do_not_count_whoever_finds_them(way: Way, on: Registry) -> None:
    search = way.tool(Body(), args_schema=Arguments)
    lenient = way.tool(Body(), name="lenient", args_schema=Arguments, handle_validation_error=True)
    picky = way.tool(Body(ValueError("q must be a city")), name="picky")
    wrapped = way.tool(Body(raising_from(ValueError("q must be a city"))), name="wrapped", handle_tool_error=True)
    single = Tool("single", lambda q: q, "One argument.")
    for _ in range(6):
        with pytest.raises(pydantic.ValidationError):
            way.call(search, {"q": "x"})
        assert way.call(lenient, {"q": "x"}) == "Tool input validation error"
        assert way.call(lenient, tool_call("lenient", {"q": "x"})).status == "error"
        with pytest.raises(ValueError, match="must be a city"):
            way.call(picky)
        assert way.call(wrapped) == "declared"
        with pytest.raises(ToolException, match="Too many arguments"):
            way.call(single, {"a": 1, "b": 2})
        ((message,),) = way.agent([search], [{"name": "search", "args": {"q": "x"}}]).told
        assert message.status == "error"
    found = {circuit.name: outcomes(circuit) for circuit in on}
    assert found == {
        "search": {"neutral": 12},
        "lenient": {"neutral": 12},
        "picky": {"neutral": 6},
        "wrapped": {"neutral": 6},
        "single": {"neutral": 6},
    }


def raising_from(cause: Exception) -> Callable[[str], Any]:
    def body(_: str) -> Any:
        try:
            raise cause
        except Exception as error:
            raise ToolException("declared") from error

    return body


def test_a_tool_that_the_model_made_up_gets_no_circuit(way: Way, on: Registry) -> None:
    ((message,),) = way.agent([way.tool(Body())], ["serach"]).told
    assert "not a valid tool" in str(message.content)
    assert names(on) == []


def test_a_tool_exception_is_a_failure_that_its_cause_or_its_words_explain(way: Way, on: Registry) -> None:
    for name, body in {
        "declared": Body(ToolException("backend is gone")),
        "timeout": Body(ToolException("the backend timed out")),
        "refused": Body(raising_from(ConnectionRefusedError())),
        "arguments": Body(ToolException("1 validation error for Query")),
    }.items():
        plain, handled = way.tool(body, name=name), way.tool(body, name=name, handle_tool_error=True)
        fail(way, plain, 1, ToolException)
        way.call(handled)
        way.call(handled, tool_call(name))
    assert {circuit.name: reasons(circuit) for circuit in on} == {
        "declared": {"tool_error": 3},
        "timeout": {"timeout": 3},
        "refused": {"connection_refused": 3},
        "arguments": {},
    }
    assert outcomes(on.get("arguments")) == {"neutral": 3}  # type: ignore[arg-type]


def test_unclassified_neutral_is_for_tools_that_declare_what_is_no_outage(
    way: Way, on: Registry, configure: Callable[..., None]
) -> None:
    configure(circuits=[{"match": {"tool": "search"}, "unclassified": "neutral"}])
    search = way.tool(Body(ToolException("no such city")), handle_tool_error=True)
    said = way.tool(Body(lambda _: ToolMessage("no such city", tool_call_id="c1", status="error")))
    for _ in range(6):
        assert way.call(search) == "no such city"
        assert way.call(said).status == "error"
    assert outcomes(only(on)) == {"neutral": 12}


def test_handled_errors_open_the_circuit_like_raised_ones(way: Way, on: Registry) -> None:
    body = Body(ToolException("backend is gone"))
    search = way.tool(body, handle_tool_error="try later")
    told = way.agent([search], ["search"] * 6).told
    assert [message.content for (message,) in told[:5]] == ["try later"] * 5
    assert told[5][0].artifact == open_answer()
    assert body.entered == 5


def test_a_handled_error_of_a_tool_that_is_not_guarded_is_not_charged_to_the_tool_around_it(
    way: Way, on: Registry, configure: Callable[..., None]
) -> None:
    configure(circuits=[{"match": {"tool": "inner"}, "mode": "off"}])
    inner = StructuredTool.from_function(
        Body(ToolException("gone")).__call__, name="inner", description="Inner.", handle_tool_error=True
    )
    outer = way.tool(Body(lambda q: inner.invoke({"q": q})), name="outer")
    assert way.call(outer) == "gone"
    assert outcomes(on.get("outer")) == {"success": 1}  # type: ignore[arg-type]


def test_errors_that_a_tool_returns_count_by_what_they_say(way: Way, on: Registry) -> None:
    def says(content: Any) -> Callable[[str], Any]:
        return lambda _: ToolMessage(content, tool_call_id="c1", status="error")

    bodies: dict[str, tuple[Any, dict[str, int]]] = {
        "dict": ({"error": "boom"}, {"tool_error": 2}),
        "text": ('{"error": "boom"}', {"tool_error": 2}),
        "message": (says("boom"), {"tool_error": 2}),
        "blocks": (says([{"type": "text", "text": "connection refused"}]), {"connection_refused": 2}),
        "arguments": (says("Input validation error: q"), {}),
        "denied": ({"error": "no", "approval_denied": True}, {}),
        "no error": ({"error": None}, {}),
        "not JSON": ('{"error": ', {}),
        "large": ('{"error": "' + "x" * 200_000 + '"}', {}),
    }
    for name, (given, _) in bodies.items():
        search = way.tool(Body(given if callable(given) else lambda _, given=given: given), name=name)
        way.call(search)
        way.call(search, tool_call(name))
    assert {name: reasons(on.get(name)) for name in bodies} == {name: found for name, (_, found) in bodies.items()}  # type: ignore[arg-type]
    assert outcomes(on.get("denied")) == {"neutral": 2}  # type: ignore[arg-type]


def test_a_command_is_a_result(way: Way, on: Registry) -> None:
    command = Command(update={"messages": [ToolMessage("done", tool_call_id="call-1-0")]})
    search = way.tool(Body(lambda _: command))
    assert way.call(search, tool_call("search")) is command
    ((message,),) = way.agent([search], ["search"]).told
    assert message.content == "done"
    assert outcomes(only(on)) == {"success": 2}


def test_control_flow_passes_as_the_same_object_and_says_nothing_also_after_a_failure_or_a_refusal(
    way: Way, on: Registry, srv: Script
) -> None:
    signal = GraphBubbleUp("up")

    def stops(_: str) -> Any:
        raise signal

    def stops_after_a_failure(_: str) -> Any:
        try:
            raise ConnectionResetError
        except ConnectionResetError:
            raise signal  # noqa: B904

    def stops_after_a_refusal(_: str) -> Any:
        try:
            return requests.get(srv.url(), timeout=5).text
        except requests.RequestException:
            raise signal  # noqa: B904

    srv.reply(503, times=None)
    for _ in range(5):
        requests.get(srv.url(), timeout=5)
    for body in (stops, stops_after_a_failure, stops_after_a_refusal):
        search = way.tool(Body(body))
        for _ in range(6):
            with pytest.raises(GraphBubbleUp) as caught:
                way.call(search)
            assert caught.value is signal
    search_circuit = on.get("search")
    assert search_circuit is not None
    assert outcomes(search_circuit) == {"neutral": 18}
    assert search_circuit.snapshot().state == "closed"
    assert srv.hits == 5


def test_an_interrupted_tool_is_resumed_and_counts_once(way: Way, on: Registry) -> None:
    body = Body(lambda q: f"{q}: {interrupt('really?')}")
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([way.tool(body)]))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    agent = graph.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    wants = AIMessage("", tool_calls=[{"id": "c1", "name": "search", "args": {"q": "x"}}])

    def step(given: Any) -> Any:
        return asyncio.run(agent.ainvoke(given, config)) if way.awaited else agent.invoke(given, config)

    step({"messages": [wants]})
    assert [task.interrupts[0].value for task in agent.get_state(config).tasks] == ["really?"]
    assert step(Command(resume="yes"))["messages"][-1].content == "x: yes"
    assert outcomes(only(on)) == {"success": 1, "neutral": 1}


def test_a_tool_called_the_way_it_does_not_support_says_nothing(on: Registry) -> None:
    only_async = WAYS[1].tool(Body())
    for _ in range(6):
        with pytest.raises(NotImplementedError):
            only_async.invoke({})
    assert outcomes(only(on)) == {"neutral": 6}
    assert asyncio.run(only_async.ainvoke({})) == "found x"


def test_a_cancelled_call_is_neutral_until_it_has_waited_long(on: Registry, manual_clock: ManualClock) -> None:
    async def cancel_after(seconds: float) -> None:
        entered = asyncio.Event()

        async def hang(q: str = "x") -> str:
            """Hang."""
            entered.set()
            await asyncio.sleep(3600)
            return q

        hanging = StructuredTool.from_function(coroutine=hang, name="hang", description="Hang.")
        task = asyncio.ensure_future(hanging.ainvoke({}))
        await entered.wait()
        manual_clock.advance(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_after(1))
    assert outcomes(only(on)) == {"cancelled": 1}
    asyncio.run(cancel_after(6))
    assert reasons(only(on)) == {"deadline_exceeded": 1}


def test_an_enforced_deadline_ends_an_async_tool(on: Registry, configure: Callable[..., None]) -> None:
    configure(circuits=[{"match": {"tool": "hang"}, "call_deadline": 0.05, "enforce_deadline": True}])

    async def hang() -> str:
        """Hang."""
        await asyncio.sleep(3600)
        return "never"

    hanging = StructuredTool.from_function(coroutine=hang, name="hang", description="Hang.")
    with pytest.raises(TimeoutError):
        asyncio.run(hanging.ainvoke({}))
    assert reasons(only(on)) == {"deadline_exceeded": 1}


# --- a guarded client inside ------------------------------------------------------------------------------------------


def fetching(srv: Script, path: str = "/") -> Callable[[str], Any]:
    """A body that asks the vendor, as most do."""

    def body(q: str) -> Any:
        response = httpx.get(srv.url(path), timeout=5, trust_env=False)
        response.raise_for_status()
        return response.text

    return body


def vendor_answer(srv: Script, name: str, **facts: Any) -> dict[str, Any]:
    told = open_answer(name, f"{srv.host} failing (5 consecutive failures, last: server error)")
    return {**told, **facts}


def test_a_vendors_failure_is_charged_to_the_vendor_once_and_the_answer_names_tool_and_vendor(
    way: Way, on: Registry, srv: Script
) -> None:
    srv.reply(503, times=None)
    search = way.tool(Body(fetching(srv)))
    fail(way, search, 5, httpx.HTTPStatusError)
    assert json.loads(way.call(search)) == vendor_answer(srv, "search")
    assert way.call(search, tool_call("search")).artifact == vendor_answer(srv, "search")
    assert srv.hits == 5
    found = {circuit.name: outcomes(circuit) for circuit in on}
    assert found == {srv.host: {"failure": 5}, "search": {"neutral": 7}}
    assert on.get(srv.host).stats.tools.keys() == {"search"}  # type: ignore[union-attr]


def test_two_tools_of_one_vendor_share_its_circuit(way: Way, on: Registry, srv: Script) -> None:
    srv.reply(503, times=None)
    pay, refund = way.tool(Body(fetching(srv)), name="pay"), way.tool(Body(fetching(srv)), name="refund")
    fail(way, pay, 5, httpx.HTTPStatusError)
    ((message,),) = way.agent([pay, refund], ["refund"]).told
    assert message.artifact == vendor_answer(srv, "refund")
    assert srv.hits == 5
    assert {circuit.name: circuit.snapshot().state for circuit in on} == {
        srv.host: "open",
        "pay": "closed",
        "refund": "closed",
    }


@pytest.mark.parametrize("library", ["httpx", "requests"])
def test_a_refusal_that_the_body_wraps_still_becomes_the_answer(
    way: Way, on: Registry, srv: Script, library: str
) -> None:
    srv.reply(503, times=None)
    for _ in range(5):
        requests.get(srv.url(), timeout=5)

    def wrapping(_: str) -> Any:
        try:
            if library == "httpx":
                return fetching(srv)("x")
            return requests.get(srv.url(), timeout=5).text
        except (httpx.HTTPError, requests.RequestException) as error:
            raise RuntimeError("no luck") from error

    assert json.loads(way.call(way.tool(Body(wrapping)))) == vendor_answer(srv, "search")
    assert srv.hits == 5


def test_with_on_open_raise_what_the_body_made_of_a_refusal_is_raised_as_the_same_object(
    way: Way, on: Registry, srv: Script, configure: Callable[..., None]
) -> None:
    configure(on_open="raise")
    srv.reply(503, times=None)
    for _ in range(5):
        requests.get(srv.url(), timeout=5)
    own = RuntimeError("no luck")

    def wrapping(_: str) -> Any:
        try:
            return requests.get(srv.url(), timeout=5).text
        except requests.RequestException as error:
            raise own from error

    with pytest.raises(RuntimeError) as caught:
        way.call(way.tool(Body(wrapping)))
    assert caught.value is own


def test_what_a_tool_makes_of_a_refusal_itself_is_left_alone(way: Way, on: Registry, srv: Script) -> None:
    srv.reply(503, times=None)
    for _ in range(5):
        requests.get(srv.url(), timeout=5)

    def telling(_: str) -> Any:
        try:
            return fetching(srv)("x")
        except httpx.HTTPError as error:
            raise ToolException(f"vendor: {error}") from error

    told = way.call(way.tool(Body(telling), handle_tool_error=True))
    assert told == f"vendor: {json.dumps(vendor_answer(srv, 'search'))}"
    assert outcomes(on.get("search")) == {"neutral": 1}  # type: ignore[arg-type]


def test_a_tool_that_is_mapped_to_a_dependency_is_refused_before_its_body(
    way: Way, on: Registry, srv: Script, configure: Callable[..., None]
) -> None:
    rule = {"match": {"tool": "refund_*"}, "dependency": srv.host, "display_name": "payment vendor"}
    configure(circuits=[{**rule, "alternatives": ["issue_refund_manually"]}])
    srv.reply(503, times=None)
    body = Body(fetching(srv))
    refund = way.tool(body, name="refund_charge")
    fail(way, refund, 5, httpx.HTTPStatusError)
    ((message,),) = way.agent([refund], ["refund_charge"]).told
    assert message.artifact == {
        "status": "circuit_open",
        "tool": "refund_charge",
        "reason": "payment vendor failing (5 consecutive failures, last: server error)",
        "retry_after_ms": 30000,
        "alternatives": ["issue_refund_manually"],
    }
    assert (body.entered, srv.hits) == (5, 5)
    assert names(on) == [srv.host]
    assert reasons(only(on)) == {"server_error": 5}


def test_a_tool_that_recovers_from_its_vendors_failure_is_well(way: Way, on: Registry, srv: Script) -> None:
    srv.reply(503)

    def recovering(_: str) -> Any:
        with_error = httpx.get(srv.url(), timeout=5, trust_env=False)
        return "cached" if with_error.status_code == 503 else "fresh"

    assert way.call(way.tool(Body(recovering))) == "cached"
    assert outcomes(on.get("search")) == {"success": 1}  # type: ignore[arg-type]


def test_what_an_mcp_tool_was_charged_for_is_not_charged_to_the_langchain_tool_around_it(
    mcp_patched: Registry, mcp_http: Any
) -> None:
    """As `langchain-mcp-adapters` calls it: an ``isError`` becomes a message with status ``error``, or an exception."""
    from tests.support.mcp_client import is_error, open_http, text

    async def run(raises: bool) -> list[Any]:
        async def remote(q: str = "x") -> Any:
            async with open_http(mcp_http) as session:
                result = await session.call_tool("toolerr", {})
            if raises and is_error(result):
                raise ToolException(text(result))
            return ToolMessage(text(result), tool_call_id="c1", status="error" if is_error(result) else "success")

        called = StructuredTool.from_function(coroutine=remote, name="remote", description="Remote.")
        said = []
        for _ in range(3):
            try:
                said.append(await called.ainvoke(tool_call("remote")))
            except ToolException as error:
                said.append(error)
        return said

    first, second = asyncio.run(run(False)), asyncio.run(run(True))
    assert [type(one) for one in first + second] == [ToolMessage] * 3 + [ToolException] * 3
    assert mcp_http.hits == 5
    assert outcomes(mcp_patched.get("remote")) == {"neutral": 6}  # type: ignore[arg-type]
    assert reasons(mcp_patched.get(f"{mcp_http.name}/toolerr")) == {"unclassified": 5}  # type: ignore[arg-type]


# --- kinds of tools ---------------------------------------------------------------------------------------------------


class Query(pydantic.BaseModel):
    q: str


class Subclass(BaseTool):
    name: str = "sub"
    description: str = "A subclass."
    body: Any = None

    def _run(self, q: str = "x") -> Any:
        return self.body(q)


class AsyncSubclass(Subclass):
    async def _arun(self, q: str = "x") -> Any:
        await asyncio.sleep(0)
        return self.body(q)


class Callback:
    def __init__(self, body: Any) -> None:
        self.body = body

    def __call__(self, q: str = "x") -> Any:
        """Called."""
        return self.body(q)

    def method(self, q: str = "x") -> Any:
        """A method."""
        return self.body(q)


def plain(body: Any, q: str = "x") -> Any:
    """A function."""
    return body(q)


def structured(function: Any) -> Any:
    return StructuredTool.from_function(function, name="kind", description="A kind.", args_schema=Query)


KINDS: dict[str, Callable[[Any], Any]] = {
    "subclass": lambda body: Subclass(body=body),
    "subclass with _arun": lambda body: AsyncSubclass(body=body),
    "decorated": lambda body: made_tool("kind")(Callback(body).method),
    "single input": lambda body: Tool("kind", lambda q: body(q), "A kind."),
    "partial": lambda body: structured(functools.partial(plain, body)),
    "lambda": lambda body: Tool("kind", lambda q: body(q), "A kind."),
    "callable object": lambda body: Tool("kind", Callback(body), "A kind."),
    "bound method": lambda body: structured(Callback(body).method),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("awaited", [False, True], ids=["invoke", "ainvoke"])
def test_every_kind_of_tool_is_guarded_under_a_stable_name_B39(kind: str, awaited: bool, on: Registry) -> None:
    body = Body(Fault())
    call = caller(awaited)
    for _ in range(5):
        made = KINDS[kind](body)  # made anew each time, as by a request's own agent
        with pytest.raises(Fault):
            call(made, {"q": "x"})
    refused = json.loads(call(KINDS[kind](body), {"q": "x"}))
    assert refused == open_answer("sub" if "subclass" in kind else "kind")
    assert body.entered == 5
    assert names(on) == ["sub" if "subclass" in kind else "kind"]
    assert "<" not in only(on).name
    assert "0x" not in str(only(on).key)


def test_a_single_run_without_invoke_is_guarded(on: Registry) -> None:
    body = Body(Fault())
    search = Tool("search", body, "Search.")
    for _ in range(5):
        with pytest.raises(Fault):
            search.run("x")
    assert json.loads(search.run("x")) == open_answer()
    assert search.run("x", tool_call_id="c3").tool_call_id == "c3"
    assert body.entered == 5


def test_content_and_artifact(way: Way, on: Registry) -> None:
    body = Body(lambda q: (q, {"rows": 3}))
    search = way.tool(body, response_format="content_and_artifact")
    message = way.call(search, tool_call("search"))
    assert (message.content, message.artifact, message.status) == ("x", {"rows": 3}, "success")
    assert way.call(search) == "x"
    assert outcomes(only(on)) == {"success": 2}
    body.does = Fault()
    fail(way, search)
    message = way.call(search, tool_call("search"))
    assert json.loads(message.content) == message.artifact == open_answer()
    assert json.loads(way.call(search)) == open_answer()


def test_a_tool_that_returns_directly_returns_the_answer(way: Way, on: Registry) -> None:
    search = way.tool(Body(Fault()), return_direct=True)
    fail(way, search)
    ((message,),) = way.agent([search], ["search"]).told
    assert message.artifact == open_answer()


class State(MessagesState):
    user: str


def test_injected_state_and_call_id_reach_the_body_and_a_refusal_needs_neither(on: Registry) -> None:
    got: list[tuple[str, str]] = []

    @made_tool
    def search(q: str, call_id: Annotated[str, InjectedToolCallId], state: Annotated[Any, InjectedState]) -> str:
        """Search."""
        got.append((call_id, state["user"]))
        if q == "bad":
            raise Fault
        return q

    graph = StateGraph(State)
    graph.add_node("tools", ToolNode([search]))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    agent = graph.compile()

    def ask(q: str) -> Any:
        wants = AIMessage("", tool_calls=[{"id": "c1", "name": "search", "args": {"q": q}}])
        return agent.invoke({"messages": [wants], "user": "ada"})["messages"][-1]

    assert ask("good").content == "good"
    for _ in range(5):
        with pytest.raises(Fault):
            ask("bad")
    assert got == [("c1", "ada")] * 6
    assert ask("good").artifact == open_answer()
    assert len(got) == 6
    assert "state" not in search.tool_call_schema.model_json_schema()["properties"]  # type: ignore[union-attr]


def test_a_tool_around_a_guarded_function_has_one_circuit(on: Registry) -> None:
    @made_tool
    @otel_breaker.guard(policy="fast_api")
    def search(q: str = "x") -> str:
        """Search."""
        raise Fault

    for _ in range(3):
        with pytest.raises(Fault):
            search.invoke({})
    assert json.loads(search.invoke({})) == open_answer(
        reason="search failing (3 consecutive failures, last: tool error)"
    )
    assert names(on) == ["search"]
    assert reasons(only(on)) == {"tool_error": 3}


# --- which circuit ----------------------------------------------------------------------------------------------------


def module_with_fetch(name: str, body: Any) -> Any:
    """A module's own ``fetch``."""
    made = {"__name__": name, "body": body}
    exec("def fetch(q: str = 'x'):\n    'Fetch.'\n    return body(q)", made)
    return StructuredTool.from_function(made["fetch"], description="Fetch.")


def test_tools_of_one_name_from_two_modules_are_two_circuits_B04_B39(
    on: Registry, srv: Script, configure: Callable[..., None]
) -> None:
    """Two agents, each with a ``fetch`` of its own: one talks to a server that fails, the other to one that is well."""
    with Script() as well:
        srv.reply(503, times=None)
        bad, good = Body(lambda _: ask_plainly(srv)), Body(lambda _: ask_plainly(well))
        failing, healthy = module_with_fetch("crm", bad), module_with_fetch("billing", good)
        for _ in range(5):
            with pytest.raises(Fault):
                failing.invoke({})
        reason = "fetch failing (5 consecutive failures, last: server error)"
        assert json.loads(failing.invoke({})) == open_answer("fetch", reason)
        ((message,),) = Agent([healthy], ["fetch"]).ask().told
        assert message.content == "well"
        assert (srv.hits, well.hits) == (5, 1)
    assert names(on) == ["fetch", "fetch"]
    assert sorted(circuit.snapshot().state for circuit in on) == ["closed", "open"]
    assert {str(circuit.key) for circuit in on} == {"crm.fetch/fetch#tool", "billing.fetch/fetch#tool"}


def ask_plainly(srv: Script) -> str:
    """Over a client that nobody guards."""
    import urllib.error
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(srv.url(), timeout=5):
            return "well"
    except urllib.error.HTTPError as error:
        error.close()
        raise Fault from None


def test_two_servers_of_two_tools_of_one_name_show_as_two_dependencies_B04(on: Registry, srv: Script) -> None:
    with Script() as well:
        srv.reply(503, times=None)
        one = StructuredTool.from_function(fetching(srv), name="search", description="Search.")
        two = StructuredTool.from_function(fetching(well), name="search", description="Search.")
        for _ in range(5):
            with pytest.raises(httpx.HTTPStatusError):
                one.invoke({"q": "x"})
        two.invoke({"q": "x"})
        assert {c.name: c.snapshot().state for c in on if c.name != "search"} == {srv.host: "open", well.host: "closed"}


def test_tools_of_one_factory_share_a_circuit_unless_each_instance_has_its_own(
    on: Registry, configure: Callable[..., None]
) -> None:
    one, two = Subclass(body=Body(Fault())), Subclass(body=Body())
    fail(WAYS[0], one)
    assert json.loads(two.invoke({})) == open_answer("sub")
    configure(circuits=[{"match": {"tool": "sub"}, "scope": "instance"}])
    otel_breaker.registry().clear()
    fail(WAYS[0], one)
    assert json.loads(one.invoke({})) == open_answer("sub")
    assert two.invoke({}) == "found x"
    assert sorted(circuit.snapshot().state for circuit in on) == ["closed", "open"]
    del one, two
    gc.collect()
    assert names(on) == []


def test_one_instance_met_by_many_threads_at_once_has_one_circuit(on: Registry, configure: Callable[..., None]) -> None:
    configure(circuits=[{"match": {"tool": "sub"}, "scope": "instance"}])
    made, start = Subclass(body=Body(lambda _: perform("fault"))), threading.Barrier(4)

    def once() -> None:
        start.wait(20)
        with pytest.raises(Fault):
            made.invoke({})

    threads = [threading.Thread(target=once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert only(on).snapshot().failures == 4


# --- nothing else changes ---------------------------------------------------------------------------------------------


class Events(BaseCallbackHandler):
    """The callbacks of tools, by name."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append("start")

    def on_tool_end(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append("end")

    def on_tool_error(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append("error")


def test_callbacks_are_the_same_and_a_refusal_has_none_since_nothing_ran(way: Way, on: Registry, srv: Script) -> None:
    events = Events()
    body = Body()
    search = way.tool(body)
    way.call(search, config={"callbacks": [events]})
    body.does = Fault()
    for _ in range(5):
        with pytest.raises(Fault):
            way.call(search, config={"callbacks": [events]})
    assert events.seen == ["start", "end"] + ["start", "error"] * 5
    events.seen.clear()
    way.call(search, config={"callbacks": [events]})
    assert events.seen == []
    srv.reply(503, times=None)
    for _ in range(5):
        requests.get(srv.url(), timeout=5)
    way.call(way.tool(Body(fetching(srv)), name="other"), config={"callbacks": [events]})
    assert events.seen == ["start", "error"]  # its body began, and was refused further in


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_a_body_sees_the_callers_context_and_leaves_it_as_langchain_does(way: Way, on: Registry) -> None:
    seen: list[Any] = []

    def body(_: str) -> Any:
        seen.append((variable.get(), FRAME.get() is not None))
        variable.set("by the body")
        return "ok"

    def run() -> str:
        variable.set("by the caller")
        way.call(way.tool(Body(body)))
        return variable.get()

    guarded = contextvars.copy_context().run(run)
    _patch.remove()
    assert guarded == contextvars.copy_context().run(run)
    assert seen == [("by the caller", True), ("by the caller", False)]


def test_results_exceptions_schemas_and_signatures_are_the_same_objects_and_texts(way: Way, on: Registry) -> None:
    result, error = object(), Fault("same")
    search = way.tool(Body(lambda q: result))
    assert way.call(search) is result
    with pytest.raises(Fault) as caught:
        way.call(way.tool(Body(error)))
    assert caught.value is error
    facts = [search.name, search.description, search.args, search.tool_call_schema.model_json_schema()]
    signatures = [str(inspect.signature(method)) for method in (BaseTool.run, BaseTool.arun)]
    kinds = [inspect.iscoroutinefunction(method) for method in (BaseTool.run, BaseTool.arun)]
    _patch.remove()
    search = way.tool(Body())
    assert facts == [search.name, search.description, search.args, search.tool_call_schema.model_json_schema()]
    assert signatures == [str(inspect.signature(method)) for method in (BaseTool.run, BaseTool.arun)]
    assert kinds == [inspect.iscoroutinefunction(method) for method in (BaseTool.run, BaseTool.arun)] == [False, True]


def test_tools_copy_and_pickle(on: Registry) -> None:
    made = Subclass(body=None)
    for copied in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)), made.model_copy()):
        copied.body = Body()
        assert copied.invoke({}) == "found x"
    assert outcomes(only(on)) == {"success": 4}


def test_switched_off_a_tool_runs_as_ever(way: Way, on: Registry) -> None:
    search = way.tool(Body(Fault()))
    fail(way, search)
    _patch.remove()
    fail(way, search)
    _patch.enable()
    assert json.loads(way.call(search)) == open_answer()


def test_in_observe_mode_nothing_is_refused(way: Way, on: Registry, configure: Callable[..., None]) -> None:
    configure(mode="observe")
    search = way.tool(Body(Fault()))
    fail(way, search, 7)
    assert decisions(only(on)) == {"admitted": 5, "would_reject": 2}


def test_an_answer_that_cannot_be_made_is_a_refusal_that_is_raised(
    way: Way, on: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = way.tool(Body(Fault()))
    fail(way, search)
    monkeypatch.setattr("langchain_core.messages.ToolMessage", None)
    with pytest.raises(CircuitOpenError):
        way.call(search, tool_call("search"))


def test_100_refusals_leave_nothing_behind_B33(on: Registry) -> None:
    body = Body(Fault())
    search = WAYS[1].tool(body)
    with none_dropped():
        fail(WAYS[1], search)

        async def refused() -> None:
            for _ in range(100):
                assert json.loads(await search.ainvoke({})) == open_answer()
            told = await asyncio.gather(*(search.ainvoke(tool_call("search")) for _ in range(100)))
            assert {message.artifact["status"] for message in told} == {"circuit_open"}

        asyncio.run(refused())
        gc.collect()
    assert body.entered == 5


def test_a_probe_in_flight_raises_its_own_class(on: Registry, manual_clock: ManualClock, configure: Any) -> None:
    configure(on_open="raise")
    search = WAYS[0].tool(Body(Fault()))
    fail(WAYS[0], search)
    manual_clock.advance(30)
    only(on).acquire()
    with pytest.raises(ProbeInFlightError):
        search.invoke({})
    assert decisions(only(on)) == {"admitted": 5, "probe": 1, "probe_in_flight": 1}
