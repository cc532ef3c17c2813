"""One upstream failure is charged once, to the innermost guarded dependency that saw it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import otel_breaker
from otel_breaker import Circuit, CircuitOpenError, Policy, ProbeInFlightError
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, decisions, fail, moves, of, outcomes, reasons, trip
from tests.support.faults import Script


@pytest.fixture
def vendor(breaker_registry: Registry) -> Circuit:
    """A dependency that tools call by hand."""
    return Circuit("vendor")


@pytest.fixture
def web(patched: Registry) -> Iterator[httpx.Client]:
    """A patched client for real requests."""
    with httpx.Client(trust_env=False) as client:
        yield client


def raise_(error: BaseException) -> Any:
    raise error


def get(web: httpx.Client, url: str) -> Any:
    response = web.get(url)
    response.raise_for_status()
    return response.json()


def host(srv: Script) -> Circuit:
    """The circuit of the server."""
    found = otel_breaker.registry().get(srv.host)
    assert found is not None
    return found


# --- charged once -----------------------------------------------------------------------------------------------------


def test_tool_over_sdk_over_http_charges_the_host_once(web: httpx.Client, srv: Script) -> None:
    """The SDK names its own dependency here: three layers, one charge, innermost."""
    sdk = Circuit("sdk")

    @otel_breaker.guard
    def tool() -> Any:
        return sdk.call(get, web, srv.url())

    srv.reply(503, times=3)
    for _ in range(3):
        with pytest.raises(httpx.HTTPStatusError):
            tool()
    assert srv.hits == 3
    assert (outcomes(host(srv)), reasons(host(srv))) == ({"failure": 3}, {"server_error": 3})
    assert (outcomes(sdk), outcomes(of(tool))) == ({"neutral": 3}, {"neutral": 3})
    assert (sdk.snapshot().failures, of(tool).snapshot().failures) == (0, 0)
    tool()
    assert (outcomes(sdk), outcomes(of(tool))) == ({"neutral": 3, "success": 1}, {"neutral": 3, "success": 1})


def test_an_sdk_of_the_same_dependency_is_the_logical_call_and_http_its_attempts(
    web: httpx.Client, srv: Script
) -> None:
    def sdk() -> Any:
        for _ in range(2):  # owns retries
            try:
                return get(web, srv.url())
            except httpx.HTTPStatusError as error:
                last = error
        raise last

    call = otel_breaker.guard(dependency=srv.host)(sdk)
    srv.reply(503, times=3)
    with pytest.raises(httpx.HTTPStatusError):
        call()  # 503, 503: an exhausted retry budget is one failure
    assert call() == {"ok": True}  # 503, 200: a success
    assert srv.hits == 4
    assert decisions(host(srv)) == {"admitted": 2}
    assert outcomes(host(srv)) == {"failure": 1, "success": 1}
    assert reasons(host(srv)) == {"server_error": 1}


def test_a_failed_attempt_that_the_tool_swallowed_is_the_dependencys_failure(web: httpx.Client, srv: Script) -> None:
    @otel_breaker.guard(dependency=srv.host)
    def tool() -> str:
        try:
            return str(get(web, srv.url()))
        except httpx.HTTPStatusError:
            return "sorry"

    srv.reply(503, times=5)
    assert [tool() for _ in range(5)] == ["sorry"] * 5
    assert reasons(host(srv)) == {"server_error": 5}
    assert tool()["status"] == "circuit_open"  # type: ignore[index]
    assert srv.hits == 5


def test_the_attempts_below_tell_the_true_cause(web: httpx.Client, srv: Script) -> None:
    @otel_breaker.guard(dependency=srv.host)
    def sdk() -> None:
        with contextlib.suppress(httpx.HTTPStatusError):
            get(web, srv.url())
        raise Fault("the SDK lost the cause")

    srv.reply(529)
    with pytest.raises(Fault):
        sdk()
    assert reasons(host(srv)) == {"overloaded": 1}


@pytest.mark.parametrize("how", ["throttled", "unauthorized", "failure"])
def test_throttled_and_unauthorized_count_as_charged(how: str, vendor: Circuit) -> None:
    answers = {"throttled": 429, "unauthorized": 401, "failure": 503}

    class HTTPStatusError(Exception):
        status_code = answers[how]

    HTTPStatusError.__module__ = "httpx"

    @otel_breaker.guard
    def tool() -> None:
        vendor.call(raise_, HTTPStatusError())

    with pytest.raises(HTTPStatusError):
        tool()
    assert outcomes(vendor) == {how: 1}
    assert outcomes(of(tool)) == {"neutral": 1}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda error: raise_(error),
        lambda error: raise_(Fault().with_traceback(None)),
        lambda error: raise_(ExceptionGroup("many", [KeyError(), ExceptionGroup("inner", [error])])),
    ],
    ids=["itself", "in its context", "in a group"],
)
def test_because_of_means_that_the_charged_exception_is_in_the_chain(wrap: Any, vendor: Circuit) -> None:
    @otel_breaker.guard
    def tool() -> None:
        try:
            vendor.call(raise_, ConnectionResetError())
        except ConnectionResetError as error:
            Circuit("another, that works").call(lambda: None)  # so that the last inner call was no charge
            wrap(error)

    with pytest.raises((ConnectionResetError, Fault, ExceptionGroup)):
        tool()
    assert outcomes(vendor) == {"failure": 1}
    assert outcomes(of(tool)) == {"neutral": 1}


def test_or_that_the_last_inner_call_was_charged_where_the_tool_swallowed_it(vendor: Circuit) -> None:
    @otel_breaker.guard
    def tool(after: Any) -> Any:
        with contextlib.suppress(ConnectionResetError):
            vendor.call(raise_, ConnectionResetError())
        return after()

    with pytest.raises(Fault):
        tool(lambda: raise_(Fault("nothing came back")))
    assert outcomes(of(tool)) == {"neutral": 1}
    assert tool(lambda: "sorry") == "sorry"  # it coped
    assert outcomes(of(tool)) == {"neutral": 1, "success": 1}


@pytest.mark.parametrize("refused", [False, True])
def test_a_swallowed_failure_that_comes_back_as_an_error_dict_is_not_charged_again(
    refused: bool, vendor: Circuit
) -> None:
    @otel_breaker.guard
    def tool() -> Any:
        try:
            return vendor.call(raise_, ConnectionResetError())
        except Exception as error:
            return {"error": type(error).__name__}

    if refused:
        trip(vendor)
    for _ in range(5):
        assert tool() == {"error": "CircuitOpenError" if refused else "ConnectionResetError"}
    assert of(tool).snapshot().state == "closed"
    assert outcomes(of(tool)) == {"neutral": 5}


def test_a_swallowed_failure_whose_substitute_the_validator_rejects_is_not_charged_again(vendor: Circuit) -> None:
    @otel_breaker.guard(validate=bool)
    def tool() -> str:
        with contextlib.suppress(ConnectionResetError):
            vendor.call(raise_, ConnectionResetError())
        return ""

    assert tool() == ""
    assert outcomes(of(tool)) == {"neutral": 1}


def test_a_bug_after_a_later_call_that_worked_is_the_tools_own(vendor: Circuit) -> None:
    @otel_breaker.guard
    def tool() -> None:
        with contextlib.suppress(ConnectionResetError):
            vendor.call(raise_, ConnectionResetError())
        vendor.call(lambda: None)
        raise Fault

    with pytest.raises(Fault):
        tool()
    assert outcomes(of(tool)) == {"failure": 1}


def test_one_exception_object_raised_twice_is_charged_each_time() -> None:
    error = Fault("made once, at import")

    @otel_breaker.guard(tool="reraises")
    def tool() -> None:
        raise error

    for _ in range(5):
        with pytest.raises(Fault) as caught:
            tool()
        assert caught.value is error
    assert tool()["status"] == "circuit_open"
    assert outcomes(of(tool)) == {"failure": 5}


def test_a_mark_from_before_the_guard_was_entered_does_not_count(vendor: Circuit) -> None:
    with pytest.raises(Fault) as caught:
        vendor.call(raise_, Fault())
    kept = caught.value

    @otel_breaker.guard
    def tool() -> None:
        raise kept

    with pytest.raises(Fault):
        tool()
    assert outcomes(of(tool)) == {"failure": 1}


def test_what_was_being_handled_when_the_guard_was_entered_is_not_its_doing(vendor: Circuit) -> None:
    @otel_breaker.guard
    def clean_up() -> None:
        raise Fault

    try:
        vendor.call(raise_, ConnectionResetError())
    except ConnectionResetError:
        with pytest.raises(Fault):
            clean_up()
    assert reasons(of(clean_up)) == {"tool_error": 1}


def test_an_exception_without_room_for_a_mark_is_charged_once_all_the_same(vendor: Circuit) -> None:
    class Sealed(Exception):
        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(name)

    @otel_breaker.guard
    def tool() -> None:
        vendor.call(raise_, Sealed())

    with pytest.raises(Sealed):
        tool()
    assert outcomes(vendor) == {"failure": 1}
    assert outcomes(of(tool)) == {"neutral": 1}


# --- two tools, one vendor --------------------------------------------------------------------------------------------


def test_two_tools_of_one_vendor_share_its_circuit_and_a_broken_body_opens_only_its_own(
    web: httpx.Client, srv: Script
) -> None:
    @otel_breaker.guard
    def refund() -> Any:
        return get(web, srv.url("/refund"))

    @otel_breaker.guard
    def charge() -> Any:
        return get(web, srv.url("/charge"))

    @otel_breaker.guard
    def broken() -> Any:
        get(web, srv.url("/fine"))
        raise Fault

    for _ in range(5):
        with pytest.raises(Fault):
            broken()
    assert broken()["status"] == "circuit_open"
    assert host(srv).snapshot().failures == 0
    srv.forget()
    srv.reply(503, times=None)
    for tool in (refund, charge, refund, charge, refund):
        with pytest.raises(httpx.HTTPStatusError):
            tool()
    assert srv.hits == 5
    reason = f"{srv.host} failing (5 consecutive failures, last: server error)"
    assert [(tool()["tool"], tool()["reason"]) for tool in (refund, charge)] == [("refund", reason), ("charge", reason)]
    assert srv.hits == 5
    assert of(refund).snapshot().state == of(charge).snapshot().state == "closed"


def test_a_tool_without_dependency_runs_up_to_its_guarded_call_and_nothing_leaves(
    web: httpx.Client, srv: Script
) -> None:
    ran: list[str] = []

    @otel_breaker.guard(alternatives=["ask a human"])
    def tool() -> Any:
        ran.append("before")
        found = get(web, srv.url())
        ran.append("after")
        return found

    srv.reply(503, times=5)
    for _ in range(5):
        with pytest.raises(httpx.HTTPStatusError):
            tool()
    ran.clear()
    assert tool() == {
        "status": "circuit_open",
        "tool": "tool",
        "reason": f"{srv.host} failing (5 consecutive failures, last: server error)",
        "retry_after_ms": 30000,
        "alternatives": ["ask a human"],
    }
    assert ran == ["before"]
    assert srv.hits == 5
    assert decisions(host(srv)) == {"admitted": 5, "circuit_open": 1}
    assert decisions(of(tool)) == {"admitted": 6}
    assert outcomes(of(tool)) == {"neutral": 6}


def test_a_tool_with_a_dependency_is_checked_before_its_body_is_entered(web: httpx.Client, srv: Script) -> None:
    ran: list[int] = []

    @otel_breaker.guard(dependency=srv.host)
    def tool() -> Any:
        ran.append(1)
        return get(web, srv.url())

    srv.reply(503, times=5)
    for _ in range(5):
        with pytest.raises(httpx.HTTPStatusError):
            tool()
    assert tool()["status"] == "circuit_open"
    assert len(ran) == srv.hits == 5
    assert outcomes(host(srv)) == {"failure": 5}


def test_a_refusal_that_the_tool_returns_as_text_is_the_answer_as_one_line(web: httpx.Client, srv: Script) -> None:
    @otel_breaker.guard(tool="refund_charge")
    def tool() -> str:
        try:
            return str(get(web, srv.url()))
        except Exception as error:
            return str(error)

    srv.reply(503, times=5)
    for _ in range(5):
        assert "503" in tool()
    told = tool()
    assert "\n" not in told
    assert json.loads(told) == {
        "status": "circuit_open",
        "tool": "refund_charge",
        "reason": f"{srv.host} failing (5 consecutive failures, last: server error)",
        "retry_after_ms": 30000,
        "alternatives": [],
    }
    assert srv.hits == 5
    assert outcomes(of(tool)) == {"success": 6}


def test_on_open_raise_lets_the_refusal_from_below_through(vendor: Circuit) -> None:
    trip(vendor)

    @otel_breaker.guard(on_open="raise")
    def tool() -> Any:
        return vendor.call(lambda: None)

    with pytest.raises(CircuitOpenError) as caught:
        tool()
    assert (caught.value.key, caught.value.tool) == ("vendor", "tool")


def test_a_tool_that_wraps_the_refusal_still_answers(vendor: Circuit) -> None:
    trip(vendor)

    @otel_breaker.guard
    def tool() -> Any:
        try:
            return vendor.call(lambda: None)
        except CircuitOpenError as error:
            raise RuntimeError("vendor trouble") from error

    assert tool()["status"] == "circuit_open"
    assert tool()["tool"] == "tool"
    assert outcomes(of(tool)) == {"neutral": 2}


def test_a_tool_that_has_an_alternative_of_its_own_is_a_success(vendor: Circuit) -> None:
    trip(vendor)

    @otel_breaker.guard
    def tool() -> str:
        try:
            return str(vendor.call(lambda: "fresh"))
        except CircuitOpenError:
            return "from the cache"

    assert tool() == "from the cache"
    assert outcomes(of(tool)) == {"success": 1}


# --- attempts under a circuit that opens, and under a probe -----------------------------------------------------------


def test_once_the_circuit_has_opened_a_running_retry_loop_is_stopped(web: httpx.Client, srv: Script) -> None:
    @otel_breaker.guard(dependency=srv.host)
    def sdk() -> Any:
        for number in range(10):
            if number == 2:
                contextvars.Context().run(fail, circuit, 5)  # calls from elsewhere
            try:
                return get(web, srv.url())
            except httpx.HTTPStatusError:
                continue
        raise Fault

    circuit = of(sdk)
    srv.reply(503, times=None)
    answer = sdk()
    assert answer["status"] == "circuit_open"
    assert srv.hits == 2
    assert circuit.snapshot().state == "open"


@pytest.mark.parametrize("status", [503, 429])
def test_a_probe_is_one_attempt(status: int, web: httpx.Client, srv: Script, manual_clock: ManualClock) -> None:
    @otel_breaker.guard(dependency=srv.host)
    def sdk() -> Any:
        for _ in range(2):
            response = web.get(srv.url())
            if response.status_code == 200:
                return "ok"
        response.raise_for_status()
        return None

    srv.reply(503, times=10)
    for _ in range(5):
        with pytest.raises(httpx.HTTPStatusError):
            sdk()
    assert srv.hits == 10
    manual_clock.advance(30)
    srv.reply(status, times=None)
    answer = sdk()
    assert srv.hits == 11  # the second attempt never left
    assert host(srv).snapshot().state == "open"
    assert host(srv).snapshot().cooldown == 60
    assert answer["status"] == "circuit_open"
    assert answer["retry_after_ms"] == 60000
    assert decisions(host(srv)) == {"admitted": 5, "probe": 1, "probe_in_flight": 1}
    assert moves(host(srv)) == {("closed", "open"): 1, ("open", "half_open"): 1, ("half_open", "open"): 1}


def test_a_probe_whose_attempts_work_goes_on(web: httpx.Client, srv: Script, manual_clock: ManualClock) -> None:
    @otel_breaker.guard(dependency=srv.host)
    def sdk() -> Any:
        return [get(web, srv.url(path)) for path in ("/login", "/data")]

    trip(of(sdk))
    manual_clock.advance(30)
    assert sdk() == [{"ok": True}] * 2
    assert srv.hits == 2
    assert of(sdk).snapshot().state == "closed"
    assert decisions(of(sdk)) == {"admitted": 5, "probe": 1}


def test_concurrent_attempts_under_a_probe(patched: Registry, srv: Script, manual_clock: ManualClock) -> None:
    gate = threading.Event()
    refused: list[ProbeInFlightError] = []

    @otel_breaker.guard(dependency=srv.host)
    async def sdk() -> Any:
        async with httpx.AsyncClient(trust_env=False) as client:

            async def one() -> Any:
                try:
                    return (await client.get(srv.url())).json()
                except ProbeInFlightError as error:
                    refused.append(error)
                    gate.set()
                    return "refused"

            return await asyncio.gather(one(), one())

    trip(of(sdk))
    manual_clock.advance(30)
    srv.reply(200, json={"ok": True}, gate=gate)
    assert asyncio.run(sdk()) == [{"ok": True}, "refused"]
    assert srv.hits == 1
    assert isinstance(refused[0], httpx.HTTPError)
    assert refused[0].retry_after == 30
    assert of(sdk).snapshot().state == "closed"


def test_a_401_attempt_under_a_probe_may_be_followed_by_another(
    web: httpx.Client, srv: Script, manual_clock: ManualClock
) -> None:
    """A token refresh shows an inner 401: what the whole call returns is judged."""

    @otel_breaker.guard(dependency=srv.host)
    def sdk() -> Any:
        if web.get(srv.url()).status_code == 401:
            return get(web, srv.url())
        return None

    trip(of(sdk))
    manual_clock.advance(30)
    srv.reply(401)
    assert sdk() == {"ok": True}
    assert srv.hits == 2
    assert of(sdk).snapshot().state == "closed"
    assert outcomes(of(sdk)) == {"failure": 5, "success": 1}


# --- tasks and threads ------------------------------------------------------------------------------------------------


def test_a_task_that_outlives_its_parent_makes_calls_of_its_own(vendor: Circuit) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def background() -> None:
            await go.wait()
            for _ in range(2):
                with pytest.raises(ConnectionResetError):
                    vendor.call(raise_, ConnectionResetError())

        async def body() -> Any:
            return asyncio.create_task(background())

        task = await vendor.acall(body)
        assert outcomes(vendor) == {"success": 1}
        go.set()
        await task

    asyncio.run(main())
    assert decisions(vendor) == {"admitted": 3}
    assert outcomes(vendor) == {"success": 1, "failure": 2}


def test_a_refusal_after_the_tool_is_over_is_not_told_as_the_tools(vendor: Circuit) -> None:
    trip(vendor)

    async def main() -> None:
        go = asyncio.Event()

        @otel_breaker.guard(tool="over", alternatives=["other"])
        async def tool() -> Any:
            async def background() -> None:
                await go.wait()
                vendor.call(int)

            return asyncio.create_task(background())

        task = await tool()
        go.set()
        with pytest.raises(CircuitOpenError) as refused:
            await task
        assert (refused.value.tool, refused.value.alternatives) == ("vendor", ())

    asyncio.run(main())


def test_a_finished_frame_takes_no_blame_and_hands_none_on(vendor: Circuit) -> None:
    """The parent is over; what its task does later is not the parent's last inner call."""

    async def main() -> None:
        go = asyncio.Event()

        @otel_breaker.guard
        async def tool() -> Any:
            async def background() -> None:
                await go.wait()
                with pytest.raises(ConnectionResetError):
                    vendor.call(raise_, ConnectionResetError())

            return asyncio.create_task(background())

        task = await tool()
        go.set()
        await task
        assert outcomes(of(tool)) == {"success": 1}

    asyncio.run(main())
    assert outcomes(vendor) == {"failure": 1}


def test_a_task_within_its_parent_is_inside(vendor: Circuit) -> None:
    @otel_breaker.guard
    async def tool() -> None:
        async def part() -> None:
            vendor.call(raise_, ConnectionResetError())

        async with asyncio.TaskGroup() as group:
            group.create_task(part())

    with pytest.raises(ExceptionGroup):
        asyncio.run(tool())
    assert outcomes(vendor) == {"failure": 1}
    assert outcomes(of(tool)) == {"neutral": 1}


def test_a_thread_that_got_the_context_is_inside(vendor: Circuit) -> None:
    @otel_breaker.guard
    async def tool() -> None:
        await asyncio.to_thread(vendor.call, raise_, ConnectionResetError())

    with pytest.raises(ConnectionResetError):
        asyncio.run(tool())
    assert outcomes(vendor) == {"failure": 1}
    assert outcomes(of(tool)) == {"neutral": 1}


def test_a_call_after_the_guarded_one_is_not_inside(vendor: Circuit) -> None:
    @otel_breaker.guard(policy=Policy(failure_threshold=1))
    def tool() -> None:
        raise Fault

    with pytest.raises(Fault):
        tool()
    for _ in range(2):
        vendor.call(lambda: None)
    assert decisions(vendor) == {"admitted": 2}


# --- the same in every shell ------------------------------------------------------------------------------------------


def test_with_blocks_and_permits_nest_like_calls(vendor: Circuit) -> None:
    outer = Circuit("outer")
    with pytest.raises(ConnectionResetError), outer, vendor:
        raise ConnectionResetError
    assert (outcomes(outer), outcomes(vendor)) == ({"neutral": 1}, {"failure": 1})

    def body() -> None:
        with outer:
            vendor.acquire().failure("timeout")
            raise Fault

    with pytest.raises(Fault):
        body()
    assert (outcomes(outer), outcomes(vendor)) == ({"neutral": 2}, {"failure": 2})
