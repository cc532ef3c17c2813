"""Opening, losing and closing MCP sessions: connecting has a circuit, a call keeps its task, a cancel is a cancel."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from otel_breaker import CircuitOpenError, settings
from otel_breaker._registry import Registry
from otel_breaker.testing import ManualClock
from tests.support.circuits import decisions
from tests.support.counts import names
from tests.support.mcp_client import (
    LINE,
    Opening,
    Session,
    is_error,
    once,
    open_client,
    open_http,
    open_pinned,
    open_stdio,
    seconds,
    structured,
    told,
)
from tests.support.mcp_process import DeadCommand, HttpServer, StdioServer
from tests.support.mcp_told import told_of

SUM = {"a": 1, "b": 2}

STDIO: dict[str, Callable[[Any], Opening]] = {"session": open_stdio, "client": open_client}


async def arrived(server: HttpServer | StdioServer, tool: str, times: int = 1) -> None:
    """Until that many calls of the tool have reached the server; the loop runs on."""
    with anyio.fail_after(20):
        while server.count("tools/call", tool) < times:
            await asyncio.sleep(0.005)


async def killed(server: StdioServer) -> None:
    """End the process; the loop hears of it before this returns."""
    await asyncio.to_thread(server.kill)
    for _ in range(50):
        await asyncio.sleep(0)


# --- a server that died and came back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", STDIO.values(), ids=STDIO)
def test_the_probe_goes_to_the_new_session_B10(
    opened: Callable[[Any], Opening], mcp_patched: Registry, manual_clock: ManualClock, mcp_stdio: StdioServer
) -> None:
    """The process is killed, its pipe stays: the circuit opens on the stale session, the new one is the way back."""

    async def run() -> None:
        circuit_name = mcp_stdio.name
        async with contextlib.AsyncExitStack() as stale_until:
            stale = await stale_until.enter_async_context(opened(mcp_stdio))
            assert not is_error(await stale.call_tool("add", SUM))
            await killed(mcp_stdio)
            for _ in range(5):
                with pytest.raises(Exception, match=r"^$|Connection closed"):
                    await stale.call_tool("add", SUM, read_timeout_seconds=seconds(15))
            circuit = mcp_patched.get(circuit_name)
            assert circuit is not None
            assert circuit.snapshot().state == "open"
            async with opened(mcp_stdio) as fresh:  # connecting is allowed while calls are not
                assert mcp_stdio.spawns == 2
                assert structured(await fresh.call_tool("add", SUM))["status"] == "circuit_open"
                assert mcp_stdio.hits == 1
                manual_clock.advance(30)
                assert not is_error(await fresh.call_tool("add", SUM))
                assert circuit.snapshot().state == "closed"
                assert not is_error(await fresh.call_tool("add", SUM))
                assert mcp_stdio.hits == 3
        assert decisions(circuit) == {"admitted": 7, "circuit_open": 1, "probe": 1}

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_stdio.name}#connect") == ["success"] * 2


def test_a_stale_session_takes_one_probe_a_cooldown_B10(
    mcp_patched: Registry, manual_clock: ManualClock, mcp_stdio: StdioServer
) -> None:
    async def run() -> None:
        async with open_stdio(mcp_stdio) as fresh, open_stdio(mcp_stdio) as stale:
            await killed(mcp_stdio)
            for _ in range(5):
                with pytest.raises(Exception, match=r"^$|Connection closed"):
                    await stale.call_tool("add", SUM)
            manual_clock.advance(30)
            with pytest.raises(Exception, match=r"^$|Connection closed"):
                await stale.call_tool("add", SUM)  # takes the probe
            for session in (stale, fresh, stale):
                assert structured(await session.call_tool("add", SUM))["retry_after_ms"] == 60_000
            manual_clock.advance(60)
            assert not is_error(await fresh.call_tool("add", SUM))
            assert not is_error(await fresh.call_tool("add", SUM))

    asyncio.run(run())
    assert mcp_stdio.hits == 2


# --- connecting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", STDIO.values(), ids=STDIO)
def test_a_command_that_exits_at_once_is_not_started_again_B12(
    opened: Callable[[Any], Opening], mcp_patched: Registry, manual_clock: ManualClock
) -> None:
    async def connect(command: Any) -> BaseException | None:
        try:
            with anyio.fail_after(20):
                async with opened(command):
                    return None
        except BaseException as error:
            return error

    async def run() -> None:
        with DeadCommand() as command:
            for number in range(5):
                assert not isinstance(await connect(command), CircuitOpenError)
                assert command.spawns == number + 1
            for _ in range(20):
                refusal = await connect(command)
                assert isinstance(refusal, CircuitOpenError), told(refusal)
            exceptions: Any = __import__("mcp.shared.exceptions", fromlist=["x"])
            assert isinstance(refusal, exceptions.MCPError if LINE == 2 else exceptions.McpError)
            assert refusal.retry_after == 30
            assert command.spawns == 5
            manual_clock.advance(30)
            assert not isinstance(await connect(command), CircuitOpenError)  # the probe
            assert isinstance(await connect(command), CircuitOpenError)
            assert command.spawns == 6

    asyncio.run(run())
    circuit = mcp_patched.get("mcp:sh#connect")
    assert circuit is not None
    assert decisions(circuit) == {"admitted": 5, "circuit_open": 21, "probe": 1}
    assert names(mcp_patched) == ["mcp:sh#connect"]


def test_a_refused_connection_opens_no_socket(mcp_patched: Registry, manual_clock: ManualClock) -> None:
    async def run(server: HttpServer) -> None:
        server.fault("s503", on="initialize")
        for _ in range(5):
            await once(open_http(server), "add", SUM)
        for _ in range(20):
            assert (await once(open_http(server), "add", SUM)).left.startswith("CircuitOpenError(")
        assert server.connects == 5
        server.heal()
        manual_clock.advance(30)
        assert '"isError": false' in (await once(open_http(server), "add", SUM)).call
        assert (server.connects, server.hits) == (6, 1)

    with HttpServer() as server:
        asyncio.run(run(server))
    circuit = mcp_patched.get(f"{server.name}#connect")
    assert circuit is not None
    assert decisions(circuit) == {"admitted": 5, "circuit_open": 20, "probe": 1}
    assert circuit.snapshot().state == "closed"


def test_an_open_tool_or_server_does_not_stop_connecting(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    async def run() -> None:
        mcp_http.fault("s503")
        for _ in range(5):
            await once(open_http(mcp_http), "add", SUM)
        circuit = mcp_patched.get(mcp_http.name)
        assert circuit is not None
        assert circuit.snapshot().state == "open"
        async with open_http(mcp_http) as session:
            await session.list_tools()

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_http.name}#connect") == ["success"] * 6


def test_a_session_that_is_left_before_it_answered_says_nothing(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    mcp_http.fault("hang", on="initialize")

    async def run() -> None:
        with anyio.move_on_after(0.2):
            async with open_http(mcp_http):
                pass

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_http.name}#connect") == ["cancelled"]


@pytest.mark.parametrize("advance", [0, 5])
def test_a_connection_that_hangs_and_is_given_up(
    advance: float, mcp_patched: Registry, manual_clock: ManualClock, mcp_http: HttpServer
) -> None:
    mcp_http.fault("hang", on="initialize")

    async def connect() -> None:
        async with open_http(mcp_http):
            pass

    async def run() -> None:
        connecting = asyncio.create_task(connect())
        while mcp_http.connects < 1:
            await asyncio.sleep(0.005)
        manual_clock.advance(advance)
        connecting.cancel()
        await asyncio.wait([connecting])

    asyncio.run(run())
    outcome = "failure:deadline_exceeded" if advance else "cancelled"
    assert told_of(mcp_patched, f"{mcp_http.name}#connect") == [outcome]


@pytest.mark.parametrize("opened", [open_http, open_client], ids=["session", "client"])
def test_a_connection_that_hangs_is_ended_at_the_deadline(
    opened: Callable[[Any], Opening], mcp_patched: Registry, mcp_http: HttpServer
) -> None:
    settings.use(settings.load(call_deadline=0.3, enforce_deadline=True))
    for method in ("initialize", "server/discover"):
        mcp_http.fault("hang", on=method)

    async def run() -> None:
        with anyio.fail_after(10), pytest.raises(BaseException) as caught:  # noqa: PT011
            async with opened(mcp_http):
                pass
        assert "Timeout" in told(caught.value)

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_http.name}#connect") == ["failure:deadline_exceeded"]


def test_a_client_that_asks_for_nothing_is_connected_by_its_first_call(
    mcp_patched: Registry, mcp_http: HttpServer
) -> None:
    async def run() -> None:
        async with open_pinned(mcp_http) as session:
            assert not is_error(await session.call_tool("add", SUM))

    asyncio.run(run())
    assert mcp_http.connects == {1: 1, 2: 0}[LINE]
    assert told_of(mcp_patched, f"{mcp_http.name}#connect") == ["success"]
    assert told_of(mcp_patched, mcp_http.name) == ["success"]


def test_a_connection_that_is_throttled_is_not_tried_again(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    """Whose credential it is may be known only when it has been sent."""
    one, two = ({"Authorization": f"Bearer {who}"} for who in ("one", "two"))
    mcp_http.fault("s429_ra120", on="initialize", times=3)

    async def run() -> None:
        for _ in range(3):
            assert (await once(open_http(mcp_http, one), "add", SUM)).call == ""
        assert '"isError": false' in (await once(open_http(mcp_http, two), "add", SUM)).call
        seen = await once(open_http(mcp_http, one), "add", SUM)
        assert seen.left.startswith("CircuitOpenError(-32000")

    asyncio.run(run())
    assert mcp_http.connects == 4


# --- a server that exits inside the tool ------------------------------------------------------------------------------


def test_a_deadline_ends_the_call_of_a_dead_server_B15(mcp_patched: Registry) -> None:
    settings.use(settings.load(failure_threshold=3, call_deadline=0.5, enforce_deadline=True))
    took: list[float] = []

    async def run(server: HttpServer) -> None:
        for _ in range(3):
            async with contextlib.AsyncExitStack() as until:
                with contextlib.suppress(BaseException):
                    session = await until.enter_async_context(open_http(server))
                    began = asyncio.get_running_loop().time()
                    try:
                        await session.call_tool("die", {})
                    finally:
                        took.append(asyncio.get_running_loop().time() - began)
            server.wait()
            server.start()
        async with open_http(server) as session:
            server.forget()
            assert structured(await session.call_tool("die", {}))["status"] == "circuit_open"
            assert server.hits == 0

    with HttpServer() as server:
        asyncio.run(run(server))
    assert len(took) == 3
    assert max(took) < 5  # 0.5 s, and a machine that has other things to do
    failed = told_of(mcp_patched, server.name) + told_of(mcp_patched, f"{server.name}/die")
    assert len([outcome for outcome in failed if outcome.startswith("failure")]) == 3


def test_without_a_deadline_cancelling_ends_it_at_once_B15(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    mcp_http.fault("hang")

    async def run() -> None:
        async with open_http(mcp_http) as session:
            call = asyncio.create_task(session.call_tool("add", SUM))
            await arrived(mcp_http, "add")
            call.cancel()
            with anyio.fail_after(5), pytest.raises(asyncio.CancelledError):
                await call
            mcp_http.heal()
            assert not is_error(await session.call_tool("add", SUM))  # the session lives

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_http.name}/add") == ["success", "cancelled"]


@pytest.mark.parametrize("opened", [open_http, open_client], ids=["session", "client"])
def test_a_hanging_tool_is_ended_at_the_deadline(
    opened: Callable[[Any], Opening], mcp_patched: Registry, mcp_http: HttpServer
) -> None:
    settings.use(settings.load(call_deadline=0.3, enforce_deadline=True))

    async def run() -> None:
        async with opened(mcp_http) as session:
            with anyio.fail_after(10), pytest.raises(TimeoutError):
                await session.call_tool("hold", {})
            mcp_http.release()
            assert not is_error(await session.call_tool("add", SUM))

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_http.name}/hold") == ["failure:deadline_exceeded"]
    assert told_of(mcp_patched, mcp_http.name) == ["success", "neutral"]


# --- cancelling -------------------------------------------------------------------------------------------------------


async def _task(session: Session, cancel: Callable[[], Any]) -> None:
    call = asyncio.create_task(session.call_tool("hold", {}))
    await cancel()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def _wait_for(session: Session, cancel: Callable[[], Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.call_tool("hold", {}), 0.2)


async def _fail_after(session: Session, cancel: Callable[[], Any]) -> None:
    with pytest.raises(TimeoutError), anyio.fail_after(0.2):
        await session.call_tool("hold", {})


CANCELS = {"task.cancel": _task, "wait_for": _wait_for, "fail_after": _fail_after}


@pytest.mark.parametrize("how", CANCELS)
@pytest.mark.parametrize("opened", [open_http, open_client], ids=["session", "client"])
def test_a_callers_cancel_is_cancelled(
    how: str, opened: Callable[[Any], Opening], mcp_patched: Registry, mcp_http: HttpServer
) -> None:
    async def run() -> None:
        async with opened(mcp_http) as session:
            await CANCELS[how](session, lambda: arrived(mcp_http, "hold"))
            mcp_http.release()
            assert not is_error(await session.call_tool("add", SUM))

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_http.name}/hold") == ["cancelled"]
    assert told_of(mcp_patched, mcp_http.name) == ["success", "cancelled"]
    assert {circuit.snapshot().failures for circuit in mcp_patched} == {0}


def test_a_callers_cancel_after_a_long_silence_is_the_tools_failure(
    mcp_patched: Registry, manual_clock: ManualClock, mcp_http: HttpServer
) -> None:
    async def run() -> None:
        async with open_http(mcp_http) as session:
            call = asyncio.create_task(session.call_tool("hold", {}))
            await arrived(mcp_http, "hold")
            manual_clock.advance(5)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            mcp_http.release()

    asyncio.run(run())
    assert told_of(mcp_patched, f"{mcp_http.name}/hold") == ["failure:deadline_exceeded"]
    assert not [outcome for outcome in told_of(mcp_patched, mcp_http.name) if outcome.startswith("failure")]


def test_a_healthy_call_that_falls_with_another_says_nothing(mcp_patched: Registry, mcp_http: HttpServer) -> None:
    """A's connection drops, which ends the session: B, on the same session, had no fault of its own."""
    mcp_http.fault("drop", mark="A")
    ended: list[str] = []

    async def call(session: Session, tool: str, mark: str, **arguments: Any) -> None:
        try:
            await session.call_tool(tool, {"mark": mark, **arguments})
        except BaseException as error:
            ended.append(f"{mark} {type(error).__name__}")
            raise

    async def run() -> None:
        with contextlib.suppress(BaseException):
            async with open_http(mcp_http) as session:
                await session.list_tools()
                healthy = asyncio.create_task(call(session, "hold", "B"))
                await arrived(mcp_http, "hold")
                broken = asyncio.create_task(call(session, "add", "A", **SUM))
                await asyncio.wait([healthy, broken])

    asyncio.run(run())
    assert sorted(one.split()[0] for one in ended) == ["A", "B"]
    assert told_of(mcp_patched, f"{mcp_http.name}/hold") == ["neutral"]
    assert told_of(mcp_patched, f"{mcp_http.name}/add") == ["neutral"]
    assert told_of(mcp_patched, mcp_http.name) == ["failure:connection_reset", "neutral"]


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [("s503", "failure:server_error"), ("s401", "unauthorized"), ("rpc-32602", "success")],
)
def test_each_of_many_parallel_calls_is_charged_with_its_own_fault(
    fault: str, outcome: str, mcp_patched: Registry, mcp_http: HttpServer
) -> None:
    """2.x keeps the session alive; in 1.x an HTTP error takes the others down, which says nothing about them."""
    mcp_http.fault(fault, mark="bad")
    mcp_http.fault("hold", mark="good")

    async def run() -> None:
        with contextlib.suppress(BaseException):
            async with open_http(mcp_http) as session:
                await session.list_tools()
                good = [asyncio.create_task(session.call_tool("add", {**SUM, "mark": "good"})) for _ in range(4)]
                await arrived(mcp_http, "add", 4)
                bad = asyncio.create_task(session.call_tool("slow", {"s": 0, "mark": "bad"}))
                await asyncio.wait([bad])
                mcp_http.release()
                await asyncio.wait(good)

    asyncio.run(run())
    falls = LINE == 1 and fault.startswith("s")
    assert told_of(mcp_patched, f"{mcp_http.name}/add") == (["neutral"] if falls else ["success"]) * 4
    expected = [outcome, *(["neutral"] if falls else ["success"]) * 4]
    assert sorted(told_of(mcp_patched, mcp_http.name)) == sorted(expected)


# --- tasks and contexts -----------------------------------------------------------------------------------------------

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


def test_a_call_stays_in_its_task_and_context_B16(
    mcp_patched: Registry, mcp_http: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp.client.session import ClientSession

    settings.use(settings.load(call_deadline=20, enforce_deadline=True))
    inside: list[asyncio.Task[Any] | None] = []
    send = ClientSession.send_request

    async def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside.append(asyncio.current_task())
        SEEN.set("set inside")
        return await send(self, *args, **kwargs)

    monkeypatch.setattr(ClientSession, "send_request", spy)

    async def run() -> None:
        async with open_http(mcp_http) as session:
            assert SEEN.get() == "set inside"  # by initialize
            SEEN.set("set outside")
            await session.list_tools()
            SEEN.set("set outside")
            inside.clear()
            await session.call_tool("add", SUM)
            assert set(inside) == {asyncio.current_task()}
            assert SEEN.get() == "set inside"

    asyncio.run(run())


def test_a_whole_stdio_session_with_a_deadline_and_a_refusal_B16(
    mcp_patched: Registry, mcp_stdio: StdioServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    settings.use(settings.load(failure_threshold=2, call_deadline=20, enforce_deadline=True))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        async with open_stdio(mcp_stdio) as session:
            assert not is_error(await session.call_tool("add", SUM))
            for _ in range(2):
                await session.call_tool("toolerr", {})
            assert structured(await session.call_tool("toolerr", {}))["status"] == "circuit_open"
            assert not is_error(await session.call_tool("add", SUM))

    problems: list[Any] = []
    asyncio.run(run())
    assert problems == []
    assert mcp_stdio.hits == 4
    assert [record.getMessage() for record in caplog.records if "cancel scope" in record.getMessage()] == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
