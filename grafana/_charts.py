"""The queries of the dashboards' panels, on top of those of the rules.

A function of ``where`` as in `_queries`. What shows the present takes each series' last value (`fresh`); what is drawn
over time looks back over ``$__rate_interval``, because a step of ``$__interval`` loses what happens between two steps.
None of them makes up a number where there is none: without telemetry there is no answer, and all closed is 0.
"""

from __future__ import annotations

from typing import Final

from ._queries import BY, fresh, grown, open_circuits, replicas, select

WINDOW: Final = "$__rate_interval"
RANGE: Final = "$__range"

REFUSALS: Final = ("circuit_open", "probe_in_flight", "forced_open", "credential_paused", "throttled")
REFUSED: Final = f'otel_breaker_decision=~"{"|".join(REFUSALS)}"'

SEVERITY: Final = {"closed": 0, "disabled": 1, "half_open": 2, "open": 3, "forced_open": 4}
"""A number for each state, so that the worst of several circuits or replicas is the largest."""

_OPENED: Final = 'otel_breaker_previous_state="closed",otel_breaker_state="open"'
_FAILED: Final = 'otel_breaker_previous_state="half_open",otel_breaker_state="open"'
_CLOSED: Final = 'otel_breaker_previous_state="half_open",otel_breaker_state="closed"'


def _worst(by: str, sample: str) -> str:
    """The worst state; ``sample`` has a place for the selector of one state."""
    ranked = [
        f"({sample.replace('STATE', state)} > bool 0) * {rank}" for state, rank in SEVERITY.items() if state != "closed"
    ]
    return f"max by ({by}) ({' or '.join(ranked)})"


def _status(where: str, function: str, window: str) -> str:
    one = 'otel_breaker_state="STATE"'
    return f"{function}({select('otel_breaker_status', where, one)}[{window}])"


def state(where: str = "") -> str:
    """The worst state of each circuit now."""
    return _worst(BY, _status(where, "last_over_time", "5m"))


def state_over_time(where: str = "", by: str = BY) -> str:
    """The worst state of each circuit within each window: an opening shorter than a step is still drawn."""
    return _worst(by, _status(where, "max_over_time", WINDOW))


def worst_state(where: str = "") -> str:
    """One number for all circuits that are selected."""
    return f"max({state(where)})"


def replica(query: str) -> str:
    """``query`` with a label ``replica``: the end of its instance id, which is what tells two of them apart."""
    return f'label_replace({query}, "replica", "$1$2", "service_instance_id", ".*(.{{8}})|(.{{1,7}})")'


# --- how many ---------------------------------------------------------------------------------------------------------


def open_names(where: str = "") -> str:
    """Circuits that are open or half open in at least one replica."""
    return f"sum({open_circuits(where)} > bool 0)"


def past_the_line(where: str = "") -> str:
    """Circuits that have outlived two cooldowns."""
    return f"sum(max by ({BY}) ({fresh('otel_breaker_cooldowns_elapsed', where)}) >= bool 2)"


def held(where: str = "") -> str:
    """Circuits that an operator forced open or disabled."""
    manual = 'otel_breaker_state=~"forced_open|disabled"'
    return f"sum(sum by ({BY}) ({fresh('otel_breaker_status', where, manual)}) > bool 0)"


def refused_credentials(where: str = "") -> str:
    """Credentials that are refused now, whether revoked or throttled."""
    paused, throttled = (fresh(f"otel_breaker_credentials_{kind}", where) for kind in ("paused", "throttled"))
    return f"sum({paused}) + sum({throttled})"


def processes(where: str = "", by: str = "") -> str:
    """Processes that report."""
    each = "service_namespace, service_name, service_instance_id"
    return f"count{f' by ({by}) ' if by else ''}(count by ({each}) ({fresh('otel_breaker_cooldowns_elapsed', where)}))"


def processes_over_time(where: str = "") -> str:
    """The same over time, without the bridge over five minutes."""
    each = "service_namespace, service_name, service_instance_id"
    seen = f"last_over_time({select('otel_breaker_cooldowns_elapsed', where)}[{WINDOW}])"
    return f"count by (service_namespace, service_name) (count by ({each}) ({seen}))"


def silent(where: str = "") -> str:
    """Circuits that reported within the time range and do not any more."""
    ever = f"max by ({BY}) (last_over_time({select('otel_breaker_cooldowns_elapsed', where)}[{RANGE}]))"
    return f"count({ever}) - count({replicas(where)})"


def open_in(where: str = "", by: str = BY) -> str:
    """Replicas in which the circuit is open or half open."""
    is_open = 'otel_breaker_state=~"open|half_open"'
    each = f"sum by ({BY}, service_instance_id) ({fresh('otel_breaker_status', where, is_open)})"
    return f"sum by ({by}) ({each} > bool 0)" if by else f"sum({each} > bool 0)"


def age(where: str = "") -> str:
    """Seconds since the last sample of each circuit, as far back as the time range."""
    stamps = f"timestamp({select('otel_breaker_cooldowns_elapsed', where)})"
    # Exact where it reports; a subquery, which rounds to a minute, where it does not any more.
    return f"time() - max by ({BY}) ({stamps} or max_over_time({stamps}[{RANGE}:1m]))"


# --- calls ------------------------------------------------------------------------------------------------------------


def outcomes(where: str = "") -> str:
    """Finished calls a second, by what they said."""
    return f"sum by (otel_breaker_outcome) (rate({select('otel_breaker_outcomes_total', where)}[{WINDOW}]))"


def refused(where: str = "", by: str = "") -> str:
    """Refused calls a second."""
    rate = f"rate({select('otel_breaker_admissions_total', where, REFUSED)}[{WINDOW}])"
    return f"sum{f' by ({by}) ' if by else ''}({rate})"


def decisions(where: str = "") -> str:
    """Calls a second that were not simply let through, by decision."""
    other = 'otel_breaker_decision!="admitted"'
    return f"sum by (otel_breaker_decision) (rate({select('otel_breaker_admissions_total', where, other)}[{WINDOW}]))"


def failed_calls(where: str = "") -> str:
    """Failed calls of each circuit within the time range."""
    failed = 'otel_breaker_outcome="failure"'
    return f"sum by ({BY}) (increase({select('otel_breaker_outcomes_total', where, failed)}[{RANGE}]))"


def waiting_spared(where: str = "") -> str:
    """Seconds of waiting that refusals spared within the time range."""
    return f"sum(increase({select('otel_breaker_time_saved_seconds_total', where)}[{RANGE}]))"


def calls_not_waiting(where: str = "", by: str = "service_name") -> str:
    """Seconds spared a second: how many calls would be hanging at once."""
    return f"sum by ({by}) (rate({select('otel_breaker_time_saved_seconds_total', where)}[{WINDOW}]))"


# --- an outage --------------------------------------------------------------------------------------------------------


def cooldowns_over_time(where: str = "") -> str:
    """Cooldowns elapsed of the circuits that outlived one within the time range."""
    metric = select("otel_breaker_cooldowns_elapsed", where)
    ever = f"max by ({BY}) (max_over_time({metric}[{RANGE}])) > 0"
    return f"max by ({BY}) (max_over_time({metric}[{WINDOW}])) and on ({BY}) ({ever})"


def by_replica(metric: str, where: str = "") -> str:
    """A gauge of each replica over time."""
    found = f"max_over_time({select(metric, where)}[{WINDOW}])"
    return replica(f"max by (service_name, service_instance_id) ({found})")


def reasons(where: str = "", window: str = WINDOW) -> str:
    """Failures charged within ``window``, by reason; also the first of a reason, which `increase` would not see."""
    return grown("error_type", select("otel_breaker_failures_total", where), window)


def _moves(where: str, which: str, by: str) -> str:
    # Whole numbers, which `increase` does not give. The series of these moves are born at 0.
    moves = select("otel_breaker_transitions_total", where, which)
    return f"sum{f' by ({by}) ' if by else ''}(clamp_min({moves} - {moves} offset {WINDOW}, 0))"


def openings(where: str = "", by: str = BY) -> str:
    """Episodes begun."""
    return _moves(where, _OPENED, by)


def probes_failed(where: str = "", by: str = "") -> str:
    """Probes that left the circuit open."""
    return _moves(where, _FAILED, by)


def probes_closed(where: str = "", by: str = "") -> str:
    """Probes that closed it."""
    return _moves(where, _CLOSED, by)


def episodes(above: int, up_to: int | None, where: str = "") -> str:
    """Finished episodes within the time range that lasted between two bounds of the histogram, seconds."""

    def within(bound: int | None) -> str:
        # Prometheus 3 may write `60` as `60.0`.
        le = f'le=~"{bound}([.]0)?"' if bound is not None else 'le="+Inf"'
        selector = select("otel_breaker_open_duration_seconds_bucket", where, le)
        return f"sum(clamp_min({selector} - ({selector} offset {RANGE} or {selector} * 0), 0))"

    return f"{within(up_to)} - {within(above)}" if above else within(up_to)


def credentials(kind: str, where: str = "") -> str:
    """Credentials that are refused, ``paused`` or ``throttled``, over time."""
    return f"sum(max_over_time({select(f'otel_breaker_credentials_{kind}', where)}[{WINDOW}]))"


def revocations(where: str = "") -> str:
    """Credentials that had worked and got a 401."""
    return f"sum(increase({select('otel_breaker_credentials_revoked_total', where)}[{WINDOW}]))"


def registered(where: str = "") -> str:
    """Circuits in the registries of a service's processes."""
    return f"sum by (service_name) (max_over_time({select('otel_breaker_circuits', where)}[{WINDOW}]))"


def store_errors(where: str = "") -> str:
    """Failed operations on the shared store a second."""
    return f"sum by (service_name) (rate({select('otel_breaker_store_errors_total', where)}[{WINDOW}]))"
