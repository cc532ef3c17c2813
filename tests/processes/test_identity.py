"""B69: processes that export the same series have different instance ids, or the product says so once."""

from __future__ import annotations

import textwrap

import pytest

from tests.support.workers import NUMBERS, Room

OWN = """
import multiprocessing, os
import job
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

def set_own(provider=MeterProvider, **resource):
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=600_000)
    metrics.set_meter_provider(provider([reader], resource=Resource({"service.name": "mine", **resource})))

def work():
    job.report(URL)

def fork(count):
    children = [multiprocessing.get_context("fork").Process(target=work) for _ in range(count)]
    [child.start() for child in children]
    [child.join() for child in children]
    assert [child.exitcode for child in children] == [0] * count
"""

NONE = "the program's meter provider has no service.instance.id"
SAME = "the program's meter provider has the service.instance.id of the parent process"


def warnings(room: Room, code: str) -> list[str]:
    process = room.program(OWN + textwrap.dedent(code), OTEL_TRACES_EXPORTER="none", OTEL_LOGS_EXPORTER="none")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    return errors.splitlines()


def test_B69_three_forked_workers_have_an_id_each_for_life_and_one_writer_for_every_series(room: Room) -> None:
    room.run(
        """
        import multiprocessing
        import job, otel_breaker

        def work():
            for _ in range(3):
                job.call(URL)
                assert otel_breaker.flush()

        job.report(URL)
        otel_breaker.registry().reset()
        children = [multiprocessing.get_context("fork").Process(target=work) for _ in range(3)]
        [child.start() for child in children]
        [child.join() for child in children]
        """
    )

    assert sorted(room.admissions().values(), key=repr) == [NUMBERS] * 4
    everything = [*room.receiver.points, *room.receiver.spans, *room.receiver.logs]
    assert {one.resource["service.instance.id"] for one in everything} == set(room.admissions())
    # One writer: the numbers of a series never fall, and each worker's three flushes and its end are of one series.
    grown: dict[str, list[float]] = {}
    for point in room.receiver.points:
        if point.name == "otel_breaker.admissions" and point.attributes["otel_breaker.decision"] == "admitted":
            grown.setdefault(str(point.resource["service.instance.id"]), []).append(point.value)
    assert all(values == sorted(values) for values in grown.values())
    assert sum(len(values) >= 4 for values in grown.values()) == 3


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("set_own(); work(); work()", [NONE]),
        ("set_own(**{'service.instance.id': 'one'}); work()", []),
        ("metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()], resource=Resource({}))); work()", []),
        ("set_own(**{'service.instance.id': 'one'}); work(); fork(2)", []),
    ],
    ids=["no id", "an id", "pushes nothing", "an id that the SDK renews after a fork"],
)
def test_B69_a_provider_of_the_program_without_an_id_is_said_once(room: Room, code: str, said: list[str]) -> None:
    assert [line.partition(",")[0] for line in warnings(room, code)] == said


def test_B69_a_provider_that_keeps_its_id_over_a_fork_is_said_once_in_each_child(room: Room) -> None:
    """As older SDKs do; seen with 1.39."""
    lines = warnings(
        room,
        """
        class Older(MeterProvider):
            def _update_resource(self, resource):
                pass

        set_own(Older, **{"service.instance.id": "one"})
        fork(2)
        work()
        """,
    )

    assert [line.partition(",")[0] for line in lines] == [SAME] * 2
    assert "make the provider after the fork" in lines[0]
