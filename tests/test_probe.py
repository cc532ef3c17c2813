"""Half-open: one probe at a time, and none that leaves the circuit stuck. Requests are counted at a real server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests

import otel_breaker
from otel_breaker import Circuit, CircuitOpenError, Policy, ProbeInFlightError
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import Fault, decisions, moves, of, outcomes, trip
from tests.support.faults import FaultServer, Script, free_port


def half_open(srv: Script, clock: ManualClock) -> Circuit:
    """The circuit of the server, its cooldown over."""
    circuit = otel_breaker.registry().client(srv.host)
    trip(circuit)
    clock.advance(30)
    return circuit


class Crowd:
    """Callers that all arrive while the first is held at the server; its gate opens when the others are told."""

    def __init__(self, srv: Script, size: int) -> None:
        self.srv = srv
        self.size = size
        self.gate = threading.Event()
        self.start = threading.Barrier(size)
        self.told: list[Any] = []
        self._lock = threading.Lock()
        srv.reply(200, json={"ok": True}, gate=self.gate)

    def tell(self, what: Any) -> None:
        with self._lock:
            self.told.append(what)
            if len(self.told) == self.size - 1:
                self.gate.set()

    def thread(self, call: Callable[[str], Any]) -> threading.Thread:
        def work() -> None:
            self.start.wait(10)
            try:
                self.tell(call(self.srv.url()))
            except Exception as error:
                self.tell(error)

        return threading.Thread(target=work)

    async def task(self, client: httpx.AsyncClient) -> None:
        try:
            self.tell((await client.get(self.srv.url())).json())
        except Exception as error:
            self.tell(error)

    def check(self, circuit: Circuit) -> None:
        """One request left, everybody else was told so."""
        assert self.srv.hits == 1
        assert [one for one in self.told if not isinstance(one, Exception)] == [{"ok": True}]
        refused = [one for one in self.told if isinstance(one, Exception)]
        assert {type(one).__mro__[1] for one in refused} == {ProbeInFlightError}
        assert len(refused) == self.size - 1
        assert {one.retry_after for one in refused} == {30}
        assert {one.answer()["status"] for one in refused} == {"probe_in_flight"}
        assert circuit.snapshot().state == "closed"
        assert decisions(circuit) == {"admitted": 5, "probe": 1, "probe_in_flight": self.size - 1}
        assert moves(circuit) == {("closed", "open"): 1, ("open", "half_open"): 1, ("half_open", "closed"): 1}


def by_requests(url: str) -> Any:
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=10).json()


def by_httpx(url: str) -> Any:
    with httpx.Client(trust_env=False) as client:
        return client.get(url).json()


@pytest.mark.parametrize("call", [by_requests, by_httpx])
def test_five_threads_at_half_open_make_one_request(
    call: Any, patched: Registry, srv: Script, manual_clock: ManualClock
) -> None:
    circuit = half_open(srv, manual_clock)
    crowd = Crowd(srv, 5)
    threads = [crowd.thread(call) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    crowd.check(circuit)


def test_five_tasks_at_half_open_make_one_request(patched: Registry, srv: Script, manual_clock: ManualClock) -> None:
    circuit = half_open(srv, manual_clock)
    crowd = Crowd(srv, 5)

    async def main() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            await asyncio.gather(*(crowd.task(client) for _ in range(5)))

    asyncio.run(main())
    crowd.check(circuit)


def test_B29_fifty_threads_and_fifty_tasks_make_one_request(
    patched: Registry, srv: Script, manual_clock: ManualClock
) -> None:
    circuit = half_open(srv, manual_clock)
    crowd = Crowd(srv, 100)
    crowd.start = threading.Barrier(51)

    async def main() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            crowd.start.wait(10)
            await asyncio.gather(*(crowd.task(client) for _ in range(50)))

    threads = [crowd.thread(by_httpx) for _ in range(50)]
    loop = threading.Thread(target=lambda: asyncio.run(main()))
    for thread in (*threads, loop):
        thread.start()
    for thread in (*threads, loop):
        thread.join()
    crowd.check(circuit)


def test_guarded_tools_get_four_answers_and_run_one_body(breaker_registry: Registry, manual_clock: ManualClock) -> None:
    """The same without a client: what the model of each caller is told."""
    gate, runs = threading.Event(), []

    @otel_breaker.guard(tool="t", alternatives=["other"])
    def tool() -> str:
        runs.append(1)
        gate.wait(10)
        return "ok"

    trip(of(tool))
    manual_clock.advance(30)
    told: list[Any] = []
    start = threading.Barrier(5)

    def work() -> None:
        start.wait(10)
        told.append(tool())
        if len(told) == 4:
            gate.set()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1
    answer = {
        "status": "probe_in_flight",
        "tool": "t",
        "reason": "t failing (5 consecutive failures, last: server error); one call is testing it now",
        "retry_after_ms": 30000,
        "alternatives": ["other"],
    }
    assert told == [answer] * 4 + ["ok"]


# --- a probe that never leaves the circuit stuck ----------------------------------------------------------------------


@pytest.fixture
def circuit(breaker_registry: Registry, manual_clock: ManualClock) -> Circuit:
    """Half-open: the next call is the probe."""
    made = trip(Circuit("vendor"))
    manual_clock.advance(30)
    return made


def assert_the_next_call_is_a_probe_and_closes(circuit: Circuit) -> None:
    assert circuit.snapshot().state == "half_open"
    permit = circuit.acquire()
    assert permit.probe is True
    permit.success()
    assert circuit.snapshot().state == "closed"


def test_B25_a_cancelled_probe_gives_its_slot_back(circuit: Circuit) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def hang() -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(circuit.acall(hang))
        await begun.wait()
        with pytest.raises(ProbeInFlightError):
            circuit.acquire()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert outcomes(circuit) == {"failure": 5, "cancelled": 1}
    assert_the_next_call_is_a_probe_and_closes(circuit)


def test_B25_a_cancelled_probe_of_a_tool_on_a_real_server(
    patched: Registry, srv: Script, manual_clock: ManualClock
) -> None:
    circuit = half_open(srv, manual_clock)
    gate = threading.Event()
    srv.reply(200, json={}, gate=gate)

    async def main() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            task = asyncio.create_task(client.get(srv.url()))
            while not srv.hits:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.set()
            assert (await client.get(srv.url())).status_code == 200

    asyncio.run(main())
    assert srv.hits == 2
    assert circuit.snapshot().state == "closed"
    assert decisions(circuit) == {"admitted": 5, "probe": 2}


def test_a_probe_cancelled_after_five_seconds_of_silence_failed(circuit: Circuit, manual_clock: ManualClock) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def hang() -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(circuit.acall(hang))
        await begun.wait()
        manual_clock.advance(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert circuit.snapshot().state == "open"
    assert circuit.snapshot().cooldown == 60
    assert circuit.snapshot().reason == "deadline_exceeded"


@pytest.mark.parametrize("killer", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_killed_probe_gives_its_slot_back(killer: type[BaseException], circuit: Circuit) -> None:
    def body() -> None:
        raise killer

    with pytest.raises(killer):
        circuit.call(body)
    assert outcomes(circuit) == {"failure": 5, "neutral": 1}
    assert_the_next_call_is_a_probe_and_closes(circuit)


def test_a_probe_whose_thread_never_comes_back_lapses(circuit: Circuit, manual_clock: ManualClock) -> None:
    hung, release = threading.Event(), threading.Event()

    def body() -> None:
        hung.set()
        release.wait(10)

    thread = threading.Thread(target=circuit.call, args=(body,))
    thread.start()
    hung.wait(10)
    manual_clock.advance(29.999)
    with pytest.raises(ProbeInFlightError) as refused:
        circuit.acquire()
    assert refused.value.answer()["retry_after_ms"] == 1000
    manual_clock.advance(0.001)
    assert circuit.snapshot().state == "open"
    assert circuit.snapshot().reason == "probe_lapsed"
    assert circuit.snapshot().cooldown == 60
    with pytest.raises(CircuitOpenError) as open_:
        circuit.acquire()
    assert open_.value.reason == "vendor unreachable (6 consecutive failures, last: probe without an answer)"
    manual_clock.advance(60)
    permit = circuit.acquire()
    assert permit.probe is True
    release.set()  # the hung one comes back with a success: too late
    thread.join()
    assert circuit.snapshot().state == "half_open"
    permit.success()
    assert circuit.snapshot().state == "closed"
    assert outcomes(circuit) == {"failure": 5, "late": 1, "success": 1}


def test_a_permit_that_was_dropped_lapses_too(circuit: Circuit, manual_clock: ManualClock) -> None:
    circuit.acquire()
    manual_clock.advance(30 + 60)
    permit = circuit.acquire()
    assert permit.probe is True
    permit.success()
    assert circuit.snapshot().state == "closed"


@pytest.mark.parametrize(
    ("policy", "worked_for", "lease"),
    [
        (Policy(), 0.0, 30.0),
        (Policy(call_deadline=300), 0.0, 300.0),
        (Policy(), 40.0, 80.0),  # twice the longest success
        (Policy(), 1000.0, 900.0),  # at most 15 min
    ],
)
def test_the_lease(
    policy: Policy, worked_for: float, lease: float, breaker_registry: Registry, manual_clock: ManualClock
) -> None:
    circuit = Circuit("c", policy)
    circuit.call(manual_clock.advance, worked_for)
    trip(circuit)
    manual_clock.advance(30)
    circuit.acquire()
    assert circuit.snapshot().retry_after == lease


def test_a_clients_own_timeout_lengthens_the_lease(patched: Registry, srv: Script, manual_clock: ManualClock) -> None:
    circuit = half_open(srv, manual_clock)
    gate = threading.Event()
    srv.reply(200, json={}, gate=gate)

    def work() -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            client.get(srv.url())

    thread = threading.Thread(target=work)
    thread.start()
    while not srv.hits:
        pass
    assert circuit.snapshot().retry_after == 120
    gate.set()
    thread.join()


NEUTRAL = [404, 400, 403, 401]


@pytest.mark.parametrize("status", NEUTRAL)
def test_B27_ten_neutral_probes_never_block_the_eleventh(
    status: int, patched: Registry, srv: Script, manual_clock: ManualClock
) -> None:
    circuit = half_open(srv, manual_clock)
    srv.reply(status, times=10)
    for number in range(1, 11):
        with httpx.Client(trust_env=False) as client:
            assert client.get(srv.url()).status_code == status
        assert circuit.snapshot().state == "half_open"
        assert circuit.snapshot().retry_after == 0
        assert srv.hits == number
    assert by_httpx(srv.url()) == {"ok": True}
    assert circuit.snapshot().state == "closed"
    assert decisions(circuit) == {"admitted": 5, "probe": 11}
    kind = "unauthorized" if status == 401 else "neutral"
    assert outcomes(circuit) == {"failure": 5, kind: 10, "success": 1}


def test_a_probe_that_was_answered_moves_the_next_boundary_and_a_401_does_not(
    circuit: Circuit, manual_clock: ManualClock, patched: Registry, srv: Script
) -> None:
    """Cooldown of 30 s over at 30; idle, the second boundary is at 90. A 404 at 80 moves it to 110."""
    for status, boundary in ((404, 110), (401, 90)):
        srv.forget()
        made = half_open(srv, manual_clock)
        manual_clock.advance(50)
        srv.reply(status)
        with httpx.Client(trust_env=False) as client:
            client.get(srv.url())
        manual_clock.advance(boundary - 80 - 0.001)
        assert made.snapshot().cooldowns_elapsed == 1
        manual_clock.advance(0.001)
        assert made.snapshot().cooldowns_elapsed == 2
        made.reset()


@pytest.mark.parametrize("fault", ["refused", "unknown host", "tls", "never seen", "429", "503", "408"])
def test_B43_no_failed_probe_closes(
    fault: str, patched: Registry, srv: Script, faults: FaultServer, manual_clock: ManualClock
) -> None:
    urls = {
        "refused": f"http://127.0.0.1:{free_port()}/",
        "unknown host": "http://no-such-host.invalid/",
        "tls": faults.url("tls_alert"),
    }
    url = urls.get(fault, srv.url())
    name = httpx.URL(url).netloc.decode()
    circuit = trip(otel_breaker.registry().client(name))
    manual_clock.advance(30)
    if fault.isdigit():
        srv.reply(int(fault))

    class NeverSeen(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            raise Fault

    transport = NeverSeen() if fault == "never seen" else None
    with httpx.Client(trust_env=False, transport=transport) as client, contextlib.suppress(httpx.HTTPError, Fault):
        client.get(url)
    assert decisions(circuit) == {"admitted": 5, "probe": 1}
    assert circuit.snapshot().state == "open"
    assert circuit.snapshot().cooldown == 60


def test_success_threshold_asks_for_a_run_of_probes(breaker_registry: Registry, manual_clock: ManualClock) -> None:
    circuit = trip(Circuit("c", Policy(success_threshold=3)))
    manual_clock.advance(30)
    circuit.acquire().success()
    circuit.acquire().success()
    assert circuit.snapshot().state == "half_open"
    circuit.acquire().failure()  # zeroes the run
    manual_clock.advance(60)
    circuit.acquire().success()
    circuit.acquire().neutral()  # keeps it
    circuit.acquire().success()
    assert circuit.snapshot().state == "half_open"
    circuit.acquire().success()
    assert circuit.snapshot().state == "closed"


def test_probe_by_health_check_lets_no_call_probe(breaker_registry: Registry, manual_clock: ManualClock) -> None:
    ran: list[int] = []
    tool = otel_breaker.guard(policy=Policy(probe_by="health_check"))(lambda: ran.append(1))
    trip(of(tool))
    for _ in range(3):
        manual_clock.advance(30)
        answer = tool()
        assert answer["status"] == "circuit_open"
        assert answer["retry_after_ms"] >= 1000
    assert ran == []
