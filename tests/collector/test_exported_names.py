"""What arrives in Prometheus is what the committed page says, whole and unique, by the Collector and by the SDK."""

from __future__ import annotations

from pathlib import Path

from tests.collector import exported
from tests.support import stack


def test_B72_names_and_labels_are_those_of_the_page(tmp_path: Path) -> None:
    stack.need(stack.COLLECTOR, stack.PROMETHEUS)

    collected, common = exported.through_the_collector(tmp_path)
    by_the_sdk = exported.through_the_exporter()

    assert common == exported.COMMON
    recorded = exported.render(collected, common, by_the_sdk)
    page = exported.PAGE.read_text().partition(exported.FROM)[2].partition(exported.TO)[0]
    assert page == recorded, "python -m tests.collector.exported records it anew"
    assert exported.committed() == {metric.name: frozenset(metric.labels) | common for metric in collected}
    # The SDK's exporter calls everything the same and has the same labels of our own.
    assert by_the_sdk == collected


def test_B72_every_instrument_has_names_of_its_own() -> None:
    found = [exported.instrument_of(name)[0] for name in exported.committed()]

    assert sorted(set(found)) == sorted(instrument[0] for instrument in exported.INSTRUMENTS)
    # One name each; a histogram has three.
    assert sorted(found).count("otel_breaker.open.duration") == 3
    assert len(found) == len(exported.INSTRUMENTS) + 2
    assert all(name.startswith("otel_breaker_") for name in exported.committed())
