"""An agent in a process of its own whose telemetry has every instrument, and a plan of events that is known exactly.

Argument: how many rounds. In a round five failures open the circuit, one call is refused, the cooldown ends (the clock
is moved by hand), the probe succeeds, and everything is exported. With ``STAY_OPEN`` in the environment the probe of
the last round fails, and the next cooldown ends as well. With ``PROMETHEUS_TEXT`` the program has a meter provider of
its own, for Prometheus, and prints what that serves.
"""

from __future__ import annotations

import os
import sys

import otel_breaker
from otel_breaker.core.clock import ManualClock

NAME = "api.vendor.test"

clock = ManualClock()


@otel_breaker.guard(dependency=NAME, clock=clock, on_open="raise")
def refund_charge(well: bool) -> str:
    if not well:
        raise TimeoutError
    return "refunded"


def call(well: bool) -> None:
    try:
        refund_charge(well)
    except (TimeoutError, otel_breaker.CircuitOpenError) as error:
        print(type(error).__name__, flush=True)


def main() -> None:
    text = os.environ.get("PROMETHEUS_TEXT")
    if text:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.metrics import set_meter_provider
        from opentelemetry.sdk.metrics import MeterProvider

        set_meter_provider(MeterProvider(metric_readers=[PrometheusMetricReader()]))
    rounds = int(sys.argv[1])
    for number in range(1, rounds + 1):
        for _ in range(5):
            call(well=False)
        call(well=True)
        clock.advance(31)
        if number == rounds and "STAY_OPEN" in os.environ:
            call(well=False)
            clock.advance(121)
        else:
            call(well=True)
        assert otel_breaker.flush()
    if text:
        from prometheus_client import generate_latest

        print(generate_latest().decode())


main()
