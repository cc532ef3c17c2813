"""Throttles and revoked credentials: whose they are, and whom they do not concern."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import otel_breaker
from otel_breaker import Circuit, CircuitOpenError, CredentialPausedError, Policy, Transition
from otel_breaker._registry import Registry
from otel_breaker.core.clock import ManualClock
from tests.support.circuits import decisions, fail, moves, of, outcomes, trip
from tests.support.faults import Script

ALICE, BOB = "key-of-alice", "key-of-bob"


class Vendor:
    """One dependency that two credentials use: answers of ``replies`` in turn, then successes."""

    def __init__(self, **policy: Any) -> None:
        self.replies: list[str | tuple[str, float | None]] = []
        self.calls = 0
        self.tool = otel_breaker.guard(
            tool="t", on_open="raise", policy=Policy(**policy), classify=self._classify, dependency="vendor"
        )(self._body)
        self.circuit = of(self.tool)

    def _body(self) -> str:
        self.calls += 1
        return self.replies.pop(0) if self.replies else "success"  # type: ignore[return-value]

    def _classify(self, what: Any) -> str | None:
        return what if isinstance(what, str) else None

    def call(self, account: str | None = None) -> Any:
        if account is None:
            return self.tool()
        with otel_breaker.credential(account):
            return self.tool()


@pytest.fixture
def vendor(breaker_registry: Registry) -> Vendor:
    """With the default policy."""
    return Vendor()


@pytest.fixture
def web(patched: Registry) -> Iterator[httpx.Client]:
    """A patched client for real requests."""
    with httpx.Client(trust_env=False) as client:
        yield client


def ask(web: httpx.Client, srv: Script, key: str | None) -> httpx.Response:
    return web.get(srv.url(), headers={"Authorization": f"Bearer {key}"} if key else {})


def host(srv: Script) -> Circuit:
    found = otel_breaker.registry().get(srv.host)
    assert found is not None
    return found


# --- 429 --------------------------------------------------------------------------------------------------------------


def test_three_long_429s_open_that_credentials_circuit_with_that_retry_after(web: httpx.Client, srv: Script) -> None:
    srv.reply(429, headers={"Retry-After": "120"}, times=3)
    for _ in range(3):
        assert ask(web, srv, ALICE).status_code == 429
    with pytest.raises(CircuitOpenError) as refused:
        ask(web, srv, ALICE)
    assert srv.hits == 3
    assert refused.value.retry_after == 120
    assert refused.value.decision == "throttled"
    assert refused.value.answer() == {
        "status": "circuit_open",
        "tool": srv.host,
        "reason": f"{srv.host} limiting our rate (3 consecutive failures, last: rate limit)",
        "retry_after_ms": 120000,
        "alternatives": [],
    }
    assert host(srv).snapshot().state == "closed"
    assert host(srv).snapshot().failures == 0
    assert decisions(host(srv)) == {"admitted": 3, "throttled": 1}
    assert outcomes(host(srv)) == {"throttled": 3}
    assert moves(host(srv)) == {}


def test_another_credential_goes_on_and_so_does_one_that_nobody_knows(web: httpx.Client, srv: Script) -> None:
    srv.reply(429, headers={"Retry-After": "120"}, times=3)
    for _ in range(3):
        ask(web, srv, ALICE)
    assert ask(web, srv, BOB).status_code == 200
    assert ask(web, srv, None).status_code == 200
    with pytest.raises(CircuitOpenError):
        ask(web, srv, ALICE)
    assert srv.hits == 5


def test_a_throttled_credential_probes_after_its_retry_after(
    web: httpx.Client, srv: Script, manual_clock: ManualClock
) -> None:
    srv.reply(429, headers={"Retry-After": "120"}, times=4)
    for _ in range(3):
        ask(web, srv, ALICE)
    manual_clock.advance(119.9)
    with pytest.raises(CircuitOpenError):
        ask(web, srv, ALICE)
    manual_clock.advance(0.1)
    assert ask(web, srv, ALICE).status_code == 429  # a throttled probe reopens
    with pytest.raises(CircuitOpenError) as refused:
        ask(web, srv, ALICE)
    assert refused.value.retry_after == 120
    manual_clock.advance(120)
    for _ in range(3):
        assert ask(web, srv, ALICE).status_code == 200
    assert srv.hits == 7
    assert decisions(host(srv)) == {"admitted": 5, "probe": 2, "throttled": 2}
    assert moves(host(srv)) == {}


def test_with_no_known_credential_throttles_open_the_dependency(web: httpx.Client, srv: Script) -> None:
    srv.reply(429, headers={"Retry-After": "120"}, times=3)
    for _ in range(3):
        ask(web, srv, None)
    assert host(srv).snapshot().state == "open"
    assert host(srv).snapshot().retry_after == 120
    assert host(srv).snapshot().reason == "throttled"
    with pytest.raises(CircuitOpenError) as refused:
        ask(web, srv, ALICE)
    assert refused.value.decision == "circuit_open"
    assert moves(host(srv)) == {("closed", "open"): 1}


def test_a_short_429_is_noted_and_counts_towards_nothing(web: httpx.Client, srv: Script) -> None:
    srv.reply(429, headers={"Retry-After": "5"}, times=20)
    for _ in range(20):
        assert ask(web, srv, ALICE).status_code == 429
    assert srv.hits == 20
    assert outcomes(host(srv)) == {"throttled": 20}


def test_only_a_success_ends_a_run_of_throttles_and_throttles_leave_the_failure_streak(vendor: Vendor) -> None:
    vendor.replies = ["throttled", "throttled", "success", "throttled", "throttled", "neutral", "failure"]
    for _ in range(7):
        vendor.call(ALICE)
    assert vendor.circuit.snapshot().failures == 1
    vendor.replies = ["throttled"]
    vendor.call(ALICE)
    with pytest.raises(CircuitOpenError) as refused:
        vendor.call(ALICE)
    assert refused.value.decision == "throttled"
    assert refused.value.retry_after == 30  # it named no time: the step
    assert vendor.circuit.snapshot().failures == 1
    assert vendor.calls == 8


def test_a_429_with_a_known_credential_reopens_the_dependency_when_it_was_the_probe(
    vendor: Vendor, manual_clock: ManualClock
) -> None:
    trip(vendor.circuit)
    manual_clock.advance(30)
    vendor.replies = ["throttled"]
    vendor.call(ALICE)
    assert vendor.circuit.snapshot().state == "open"
    assert vendor.circuit.snapshot().cooldown == 60


def test_quota_circuits_are_in_neither_iteration_nor_snapshot_nor_listeners(
    vendor: Vendor, breaker_registry: Registry, transitions: list[Transition]
) -> None:
    vendor.replies = ["throttled"] * 3
    for _ in range(3):
        vendor.call(ALICE)
    assert [circuit.name for circuit in breaker_registry] == ["vendor"]
    assert [(shot.name, shot.state) for shot in breaker_registry.snapshot()] == [("vendor", "closed")]
    assert len(breaker_registry) == 1
    assert transitions == []
    assert [one["status"] for one in otel_breaker.tool_status()] == ["available"]


def test_quota_and_dependency_are_both_asked(vendor: Vendor, manual_clock: ManualClock) -> None:
    """The quota circuit is read first; when the dependency refuses, the credential's probe gives its slot back."""
    vendor.replies = ["throttled"] * 3
    for _ in range(3):
        vendor.call(ALICE)
    manual_clock.advance(10)
    trip(vendor.circuit)
    with pytest.raises(CircuitOpenError) as refused:
        vendor.call(ALICE)
    assert refused.value.decision == "throttled"
    manual_clock.advance(20)  # the credential's cooldown is over, the dependency's has 10 s to go
    with pytest.raises(CircuitOpenError) as refused:
        vendor.call(ALICE)
    assert refused.value.decision == "circuit_open"
    assert refused.value.retry_after == 10
    manual_clock.advance(10)
    assert vendor.call(ALICE) == "success"  # the probe of both
    assert vendor.circuit.snapshot().state == "closed"
    assert vendor.call(ALICE) == "success"


def test_a_credentials_neutral_probe_gives_its_slot_back(vendor: Vendor, manual_clock: ManualClock) -> None:
    vendor.replies = ["throttled"] * 3
    for _ in range(3):
        vendor.call(ALICE)
    manual_clock.advance(30)
    vendor.replies = ["neutral"] * 3
    for _ in range(3):
        vendor.call(ALICE)
    assert vendor.call(ALICE) == "success"
    assert vendor.call(ALICE) == "success"
    assert decisions(vendor.circuit) == {"admitted": 4, "probe": 4}


def test_a_slow_success_from_before_the_throttles_cannot_close_the_credentials_circuit(
    breaker_registry: Registry, manual_clock: ManualClock
) -> None:
    circuit = Circuit("vendor", credential=ALICE)
    slow = circuit.acquire()
    for _ in range(3):
        circuit.acquire().throttled()
    manual_clock.advance(30)
    probe = circuit.acquire()
    assert probe.probe is True
    slow.success()
    with pytest.raises(CircuitOpenError):  # the probe is still out
        circuit.acquire()
    probe.throttled()
    with pytest.raises(CircuitOpenError) as refused:
        circuit.acquire()
    assert refused.value.retry_after == 60


def test_a_slow_429_from_before_the_throttles_cannot_reopen_under_a_probe(
    breaker_registry: Registry, manual_clock: ManualClock
) -> None:
    circuit = Circuit("vendor", credential=ALICE)
    slow = circuit.acquire()
    for _ in range(3):
        circuit.acquire().throttled()
    manual_clock.advance(30)
    probe = circuit.acquire()
    slow.throttled()
    probe.success()
    circuit.acquire().success()  # closed


# --- 401 --------------------------------------------------------------------------------------------------------------


def test_a_401_after_a_success_pauses_that_credential_only_and_never_counts(web: httpx.Client, srv: Script) -> None:
    assert ask(web, srv, ALICE).status_code == 200
    srv.reply(401)
    assert ask(web, srv, ALICE).status_code == 401
    with pytest.raises(CredentialPausedError) as refused:
        ask(web, srv, ALICE)
    assert isinstance(refused.value, httpx.HTTPError)
    assert refused.value.answer() == {
        "status": "credential_paused",
        "tool": srv.host,
        "reason": f"{srv.host} no longer accepts this credential (401 after it had worked)",
        "retry_after_ms": 900000,
        "alternatives": [],
    }
    assert ALICE not in repr(refused.value) + str(refused.value)
    assert srv.hits == 2
    for _ in range(3):
        assert ask(web, srv, BOB).status_code == 200
        assert ask(web, srv, None).status_code == 200
    assert host(srv).snapshot().state == "closed"
    assert host(srv).snapshot().failures == 0
    assert host(srv).stats.revoked == 1
    assert decisions(host(srv)) == {"admitted": 8, "credential_paused": 1}
    assert outcomes(host(srv)) == {"success": 7, "unauthorized": 1}


def test_a_401_on_a_credential_that_never_worked_is_counted_no_more(web: httpx.Client, srv: Script) -> None:
    srv.reply(401, times=20)
    for _ in range(20):
        assert ask(web, srv, ALICE).status_code == 401
    assert srv.hits == 20
    assert outcomes(host(srv)) == {"unauthorized": 20}
    assert host(srv).stats.revoked == 0
    assert host(srv).snapshot().failures == 0


def test_a_401_without_a_known_credential_pauses_nobody(vendor: Vendor) -> None:
    vendor.replies = ["success", *["unauthorized"] * 10]
    for _ in range(12):
        vendor.call()
    assert outcomes(vendor.circuit) == {"success": 2, "unauthorized": 10}


def revoke(vendor: Vendor, account: str = ALICE) -> None:
    vendor.replies = ["success", "unauthorized"]
    vendor.call(account)
    vendor.call(account)


def test_a_pause_lapses_and_one_call_may_try(vendor: Vendor, manual_clock: ManualClock) -> None:
    revoke(vendor)
    manual_clock.advance(899)
    with pytest.raises(CredentialPausedError) as refused:
        vendor.call(ALICE)
    assert refused.value.retry_after == 1
    manual_clock.advance(1)
    vendor.replies = ["unauthorized"]
    vendor.call(ALICE)
    with pytest.raises(CredentialPausedError) as refused:
        vendor.call(ALICE)
    assert refused.value.retry_after == 900
    manual_clock.advance(900)
    assert [vendor.call(ALICE) for _ in range(3)] == ["success"] * 3
    assert vendor.circuit.stats.revoked == 1  # the same credential, still revoked
    assert decisions(vendor.circuit) == {"admitted": 4, "probe": 2, "credential_paused": 2}


def test_resume_ends_a_pause_and_one_call_may_try(vendor: Vendor) -> None:
    revoke(vendor)
    vendor.circuit.resume()
    assert vendor.call(ALICE) == "success"
    assert vendor.call(ALICE) == "success"
    assert decisions(vendor.circuit) == {"admitted": 3, "probe": 1}


def test_reset_ends_pauses_and_throttles(vendor: Vendor) -> None:
    revoke(vendor)
    vendor.replies = ["throttled"] * 3
    for _ in range(3):
        vendor.call(BOB)
    vendor.circuit.reset()
    assert (vendor.call(ALICE), vendor.call(BOB)) == ("success", "success")
    assert decisions(vendor.circuit) == {"admitted": 7}


def test_on_unauthorized_alert_reports_and_refuses_nobody(breaker_registry: Registry) -> None:
    vendor = Vendor(on_unauthorized="alert")
    revoke(vendor)
    vendor.replies = ["unauthorized"] * 5
    for _ in range(5):
        vendor.call(ALICE)
    assert vendor.circuit.stats.revoked == 1
    assert decisions(vendor.circuit) == {"admitted": 7}
    vendor.replies = ["success", "unauthorized"]  # it worked again: then it is news again
    vendor.call(ALICE)
    vendor.call(ALICE)
    assert vendor.circuit.stats.revoked == 2


def test_the_length_of_a_pause_is_a_setting(breaker_registry: Registry) -> None:
    vendor = Vendor(pause=60)
    revoke(vendor)
    with pytest.raises(CredentialPausedError) as refused:
        vendor.call(ALICE)
    assert refused.value.retry_after == 60


def test_a_token_refresh_is_judged_by_what_the_whole_call_returns(web: httpx.Client, srv: Script) -> None:
    @otel_breaker.guard(dependency=srv.host)
    def sdk() -> Any:
        response = ask(web, srv, ALICE)
        return (ask(web, srv, BOB) if response.status_code == 401 else response).json()

    assert sdk() == {"ok": True}
    srv.reply(401)
    assert sdk() == {"ok": True}
    assert sdk() == {"ok": True}
    assert host(srv).stats.revoked == 0
    assert outcomes(host(srv)) == {"success": 3}


# --- naming the credential --------------------------------------------------------------------------------------------


def test_a_guards_own_credential_and_a_circuits(breaker_registry: Registry) -> None:
    def tool_for(account: str) -> Any:
        def body(reply: str) -> str:
            return reply

        return otel_breaker.guard(
            tool=account, dependency="vendor", credential=account, on_open="raise", classify=lambda what: what
        )(body)

    alice, bob = tool_for(ALICE), tool_for(BOB)
    for reply in ("success", "unauthorized"):
        alice(reply)
    with pytest.raises(CredentialPausedError):
        alice("success")
    assert bob("success") == "success"
    circuit = Circuit("by hand", credential=ALICE)
    circuit.acquire().success()
    circuit.acquire().unauthorized()
    with pytest.raises(CredentialPausedError):
        circuit.acquire()


def test_a_guards_own_credential_wins_over_the_context(breaker_registry: Registry) -> None:
    tool = otel_breaker.guard(credential=ALICE, on_open="raise", classify=lambda what: what)(lambda reply: reply)
    with otel_breaker.credential(BOB):
        tool("success")
        tool("unauthorized")
    with pytest.raises(CredentialPausedError):
        tool("success")


def test_the_credential_context_ends_and_nests(vendor: Vendor) -> None:
    revoke(vendor)
    with otel_breaker.credential(BOB):
        assert vendor.call() == "success"
        with otel_breaker.credential(ALICE), pytest.raises(CredentialPausedError):
            vendor.call()
        assert vendor.call() == "success"
    assert vendor.call() == "success"


def test_the_credential_context_reaches_async_and_generator_tools(breaker_registry: Registry) -> None:
    import asyncio

    @otel_breaker.guard(tool="a", dependency="vendor", classify=lambda what: what, on_open="raise")
    async def tool(reply: str) -> str:
        return reply

    @otel_breaker.guard(tool="g", dependency="vendor")
    def stream() -> Iterator[str]:
        yield "item"

    async def main() -> None:
        with otel_breaker.credential(ALICE):
            await tool("success")
            await tool("unauthorized")
            with pytest.raises(CredentialPausedError):
                await tool("success")
            assert [item["status"] for item in stream()] == ["credential_paused"]  # type: ignore[index]
        assert await tool("success") == "success"
        assert list(stream()) == ["item"]

    asyncio.run(main())


def test_scope_credential_gives_each_its_own_circuit(breaker_registry: Registry, configure: Any) -> None:
    configure(scope="credential")
    vendor = Vendor()
    vendor.replies = ["failure"] * 5
    for _ in range(5):
        vendor.call(ALICE)
    with pytest.raises(CircuitOpenError) as refused:
        vendor.call(ALICE)
    assert refused.value.decision == "circuit_open"
    assert vendor.call(BOB) == "success"
    assert vendor.call() == "success"
    assert sorted(shot.state for shot in breaker_registry.snapshot()) == ["closed", "closed", "open"]


def test_scope_credential_holds_for_a_circuit_by_hand_in_every_way_to_use_it(
    breaker_registry: Registry, configure: Any
) -> None:
    configure(scope="credential")
    circuit = Circuit("by hand", credential=ALICE)
    for _ in range(5):
        with pytest.raises(ConnectionResetError), circuit:
            raise ConnectionResetError
    with pytest.raises(CircuitOpenError), circuit:
        raise AssertionError("was let in")
    assert outcomes(circuit) == {"failure": 5}


def test_many_credentials_are_bounded(vendor: Vendor) -> None:
    for number in range(1500):
        vendor.replies = ["success", "throttled"]
        vendor.call(f"account {number}")
        vendor.call(f"account {number}")
    assert vendor.circuit.quotas is not None
    assert vendor.circuit.worked is not None
    assert len(vendor.circuit.quotas) == 1000
    assert len(vendor.circuit.worked) == 1000


def test_a_throttled_credential_is_never_forgotten_to_make_room(vendor: Vendor) -> None:
    vendor.replies = ["throttled"] * 3
    for _ in range(3):
        vendor.call(ALICE)
    for number in range(1100):
        vendor.replies = ["throttled"]
        vendor.call(f"account {number}")
    with pytest.raises(CircuitOpenError):
        vendor.call(ALICE)


def test_failures_are_the_dependencys_whoever_called(vendor: Vendor) -> None:
    vendor.replies = ["failure"] * 5
    for account in (ALICE, BOB, None, ALICE, BOB):
        vendor.call(account)
    for account in (ALICE, BOB, None):
        with pytest.raises(CircuitOpenError):
            vendor.call(account)
    fail(Circuit("elsewhere"))
