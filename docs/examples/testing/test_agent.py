"""What the agent does while its vendor is down. Run by ``pytest`` in this folder."""

from __future__ import annotations

import json

import agent
import pytest

from otel_breaker.testing import FakeDependency, ManualClock, RecordingListener, Registry, circuit_of


@pytest.fixture(autouse=True)
def vendor(fake_dependency: FakeDependency, monkeypatch: pytest.MonkeyPatch) -> FakeDependency:
    """The agent talks to the fake vendor."""
    monkeypatch.setattr(agent, "VENDOR", fake_dependency.url)
    return fake_dependency


def test_an_outage_costs_the_vendor_three_requests(vendor: FakeDependency, breaker_registry: Registry) -> None:
    vendor.fail(503)
    told = [agent.call("refund_charge", "ch_1") for _ in range(6)]
    assert vendor.hits == 3
    assert json.loads(told[-1]) == {
        "status": "circuit_open",
        "tool": "refund_charge",
        "reason": "refund_charge failing (3 consecutive failures, last: server error)",
        "retry_after_ms": 30_000,
        "alternatives": ["issue_refund_manually"],
    }


def test_it_tries_again_after_the_cooldown(
    vendor: FakeDependency, manual_clock: ManualClock, breaker_transitions: RecordingListener
) -> None:
    vendor.drop()
    for _ in range(3):
        agent.call("refund_charge", "ch_1")
    vendor.recover()
    manual_clock.advance(29)
    assert "circuit_open" in agent.call("refund_charge", "ch_1")
    manual_clock.advance(1)
    assert agent.call("refund_charge", "ch_1") == '{"ok": true}'
    assert breaker_transitions.moves == [
        ("refund_charge", "closed", "open", "connection_reset"),
        ("refund_charge", "open", "half_open", "cooldown_elapsed"),
        ("refund_charge", "half_open", "closed", "probe_succeeded"),
    ]


def test_the_vendor_says_when_to_come_back(
    vendor: FakeDependency, manual_clock: ManualClock, breaker_registry: Registry
) -> None:
    vendor.fail(503, retry_after=120)
    for _ in range(3):
        agent.call("refund_charge", "ch_1")
    manual_clock.advance(119)
    assert json.loads(agent.call("refund_charge", "ch_1"))["retry_after_ms"] == 1_000


def test_an_operator_takes_the_tool_out(vendor: FakeDependency, breaker_registry: Registry) -> None:
    circuit_of(agent.refund_charge).force_open("vendor migration")
    assert "circuit_open" in agent.call("refund_charge", "ch_1")
    assert vendor.hits == 0


@pytest.mark.otel_breaker(failure_threshold=2)
def test_tools_without_a_guard_when_the_breakers_are_on(vendor: FakeDependency, breaker_registry: Registry) -> None:
    vendor.time_out()
    for _ in range(4):
        told = agent.call("look_up_charge", "ch_1")
    assert vendor.hits == 2
    assert json.loads(told)["tool"] == vendor.dependency
    assert breaker_registry.get(vendor.dependency) is circuit_of(vendor.dependency)


def test_nothing_is_left_of_the_test_before(vendor: FakeDependency) -> None:
    vendor.fail(503, times=4)
    for _ in range(5):
        told = agent.call("look_up_charge", "ch_1")
    assert vendor.hits == 5
    assert told == '{"ok": true}'
