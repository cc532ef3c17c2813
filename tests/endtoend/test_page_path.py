"""From an outage to the incident and back: real agents, the real Collector, Prometheus, Alertmanager, a stand-in pager.

Two plays, each on servers of its own: in `calm` ten services meet ten kinds of outage at the same time; in `storm` one
service is in an outage while the servers of the path are killed and started again. What happened is then looked at.
Cooldowns are 3 s, then 6 s, and everything is exported and evaluated every second; the rules are the committed ones.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.collector import exported
from tests.support import panels, stack
from tests.support.agents import Agent, Vendor
from tests.support.otlp import Log, Receiver
from tests.support.pagerduty import Incident

pytestmark = pytest.mark.timeout(300)

PAGE, FLEET = "OtelBreakerOpenPastTwoCooldowns", "OtelBreakerFleetOpenPastTwoCooldowns"
RECORD = "tool:otel_breaker_cooldowns_elapsed:max"
RUNBOOKS = "https://github.com/otel-breaker/otel-breaker/blob/main/docs/runbooks"
RULES = stack.CONFIG / "prometheus/otel-breaker.rules.yml"
TWO_COOLDOWNS = 3 + 6
GROUP_WAIT = 3
CLOCKS = 0.1
"""Seconds by which two clocks of one machine are allowed to differ."""
SLOW = 20.0
"""Seconds that a step of the path may take at most; it takes about one."""


@dataclass
class Play:
    """The servers, and what was seen of them."""

    path: stack.Stack
    onward: Receiver
    vendors: dict[str, Vendor] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def prometheus(self) -> stack.Prometheus:
        return self.path.prometheus

    def until(self, condition: Callable[[], Any], what: str, timeout: float = 60) -> None:
        """Wait, and say what is there if it never comes."""
        if not stack.wait_until(condition, timeout):
            alerts = [(one["labels"], one["state"]) for one in self.prometheus.alerts()]
            incidents = [(self.whose(one), one.resolved) for one in self.path.pager.incidents]
            raise AssertionError(f"never: {what}\nincidents: {incidents}\nalerts: {alerts}")

    def elapsed(self, service: str) -> float:
        """Cooldowns of its worst circuit, as last exported."""
        found = self.prometheus.query(f'otel_breaker_cooldowns_elapsed{{service_name="{service}"}}')
        return max((one.value for one in found), default=-1)

    def samples(self, selector: str) -> list[tuple[float, float]]:
        """Every sample as it was written: time and value, of all series together."""
        result = self.prometheus.api("query", query=f"{selector}[15m]")["result"]
        return sorted((float(at), float(value)) for one in result for at, value in one["values"])

    def newest(self) -> float:
        """When the last sample was taken."""
        return self.samples("otel_breaker_cooldowns_elapsed")[-1][0]

    def firing(self, service: str, alert: str = PAGE) -> list[float]:
        """The evaluations in which it fired."""
        selector = f'ALERTS{{alertname="{alert}",service_name="{service}",alertstate="firing"}}'
        return [at for at, _ in self.samples(selector)]

    def moves(self, service: str) -> list[Log]:
        """Transitions of its circuits, as its own log events tell them."""
        logs = self.onward.events("otel_breaker.state.changed")
        return sorted((log for log in logs if log.resource["service.name"] == service), key=lambda log: log.at)

    def state(self, service: str) -> str:
        """Of its circuit, as its own log events tell it."""
        return str(self.moves(service)[-1].attributes["otel_breaker.state"])

    def whose(self, incident: Incident) -> tuple[str, str]:
        """Service, and name of the vendor or of whatever else the circuit is called."""
        payload = incident.first.payload
        names = {vendor.host: name for name, vendor in self.vendors.items()}
        return payload["source"], names.get(payload["component"], payload["component"])

    def incidents(self, service: str) -> list[Incident]:
        """All that there ever were."""
        return [one for one in self.path.pager.incidents if self.whose(one)[0] == service]

    def incident(self, service: str) -> Incident:
        """The only one."""
        (found,) = self.incidents(service)
        return found

    def opened(self) -> set[tuple[str, str]]:
        """What is open now."""
        return {self.whose(one) for one in self.path.pager.opened}


def wall(monotonic: float) -> float:
    """The pager's clock as time of day."""
    return time.time() - time.monotonic() + monotonic


def firing(incident: Incident) -> str:
    """Which alerts fire, as its newest event says it."""
    return str(incident.last.payload["custom_details"]["firing"])


def span(log: Log) -> tuple[str, str, str]:
    """A transition: from, to, why."""
    return tuple(log.attributes[f"otel_breaker.{key}"] for key in ("previous_state", "state", "reason"))  # type: ignore[return-value]


@contextlib.contextmanager
def playing(room: Path, vendors: str) -> Iterator[Play]:
    stack.need(*stack.ALL)
    with contextlib.ExitStack() as held:
        onward = held.enter_context(Receiver(stack.free_port()))
        path = held.enter_context(stack.Stack(room, onward.endpoint, group_wait=f"{GROUP_WAIT}s"))
        play = Play(path, onward)
        play.vendors = {name: held.enter_context(Vendor()) for name in vendors.split()}

        def start(service: str, vendors: str, *options: str, **more: str) -> None:
            identity = {key: more.pop(key) for key in ("deployment", "namespace") if key in more}
            urls = [play.vendors[name].url(f"/{name}") for name in vendors.split()]
            variables = path.environment(**more)
            agent = Agent(room / "agents", service, *options, *urls, variables=variables, **identity)
            play.agents[service] = held.enter_context(agent)

        play.seen["start"] = start
        yield play


# --- ten services, ten outages, at the same time ----------------------------------------------------------------------

CIRCUITS = {
    "planner": 1, "brief": 1, "tester": 1, "mailer": 8, "biller": 8, "doomed": 1, "early": 1, "keyed": 1,
    "assistant": 2, "sleeper": 1,
}  # fmt: skip
"""Series of each service: circuits times workers. LangChain's tool has a circuit beside its vendor's."""
FOUR = {("mailer", "smtp"), ("mailer", "bank"), ("biller", "smtp"), ("biller", "bank")}
PAGED = FOUR | {
    ("planner", "pay"), ("tester", "pay"), ("doomed", "mine"), ("keyed", "keys"), ("assistant", "refunds"),
    ("sleeper", "nap"),
}  # fmt: skip


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    with playing(tmp_path_factory.mktemp("calm"), "pay quick smtp bank mine gone keys refunds nap") as play:
        start, vendors, agents, pager = play.seen["start"], play.vendors, play.agents, play.path.pager
        start("planner", "pay")
        start("brief", "quick")
        start("tester", "pay", deployment="staging")
        start("mailer", "smtp bank", "--workers=4")
        start("biller", "smtp bank", "--workers=4")
        start("doomed", "mine", deployment="", namespace="")
        start("early", "gone")
        start("keyed", "keys", "--key=sk-live-0123456789abcdef")
        start("assistant", "refunds", "--langchain")
        start("sleeper", "nap", "--gives-up", OTEL_BREAKER_VERDICT_TTL="16s")

        def reported() -> dict[str, float]:
            found = play.prometheus.query("count by (service_name) (otel_breaker_cooldowns_elapsed)")
            return {one.labels["service_name"]: one.value for one in found}

        play.until(lambda: reported() == CIRCUITS, "every circuit is reported")
        assert pager.events == []

        play.seen["down"] = time.time()
        vendors["pay"].down(fault="rst_before_headers")
        vendors["keys"].down(status=401)
        for name in ("quick", "smtp", "bank", "mine", "gone", "refunds", "nap"):
            vendors[name].down()
        play.until(lambda: play.elapsed("early") == 1, "one cooldown has run out")
        agents["early"].kill()
        play.until(lambda: play.elapsed("brief") == 1, "one cooldown has run out")
        vendors["quick"].back()

        play.until(lambda: {play.whose(one) for one in pager.incidents} >= PAGED, "every page is there")
        agents["doomed"].kill()
        play.seen["killed"] = time.time()
        # Joins the incident a moment later, where one worker of four was ahead of the others.
        play.until(lambda: all(FLEET in firing(one) for one in pager.opened if play.whose(one) in FOUR), "the fleet's")
        for name in ("pay", "refunds", "smtp"):
            vendors[name].back()
        left = {("mailer", "bank"), ("biller", "bank"), ("doomed", "mine"), ("keyed", "keys")}
        play.until(lambda: play.opened() == left, "those resolve whose vendor is back")
        vendors["bank"].back()
        left -= FOUR
        play.until(lambda: play.opened() == left, "the others resolve too")

        for agent in agents.values():
            agent.stop()
        play.until(lambda: play.state("planner") == play.state("brief") == "closed", "the last events have arrived")
        yield play


def test_the_rules_are_the_committed_ones(calm: Play) -> None:
    def rules(path: Path) -> Any:
        (group,) = yaml.safe_load(path.read_text())["groups"]
        return group["rules"]

    assert rules(calm.prometheus.room / RULES.name) == rules(RULES)


def test_it_fires_after_two_cooldowns_and_not_before_B84_B86(calm: Play) -> None:
    opening, closing = calm.moves("planner")[0], calm.moves("planner")[-1]
    assert span(opening)[:2] == ("closed", "open")
    assert span(closing) == ("half_open", "closed", "probe_succeeded")
    opened, closed = opening.at / 1e9, closing.at / 1e9

    counts = calm.samples('otel_breaker_cooldowns_elapsed{service_name="planner"}')
    two = next(at for at, value in counts if value >= 2)
    assert opened + TWO_COOLDOWNS - CLOCKS <= two <= opened + TWO_COOLDOWNS + SLOW
    fired = calm.firing("planner")
    assert two <= fired[0] + CLOCKS
    assert fired[0] <= two + SLOW
    # The half-open states of its probes neither reset nor resolve it.
    assert max(later - sooner for sooner, later in itertools.pairwise(fired)) < 5
    assert closed <= fired[-1] + SLOW
    assert not calm.samples('ALERTS{alertstate="pending",alertname=~".*TwoCooldowns"}')

    (incident,) = calm.incidents("planner")
    paged, resolved = wall(incident.first.at), wall(incident.last.at)
    assert fired[0] + GROUP_WAIT - CLOCKS <= paged <= fired[0] + GROUP_WAIT + SLOW
    assert closed <= resolved <= closed + SLOW


def test_one_outage_is_one_incident_and_one_resolve_B92(calm: Play) -> None:
    incident = calm.incident("planner")
    assert [event.action for event in incident.events] == ["trigger", "resolve"]
    assert {event.dedup_key for event in incident.events} == {incident.dedup_key}


def test_what_the_page_says_B90(calm: Play) -> None:
    host = calm.vendors["pay"].host
    body = calm.incident("planner").first.body
    payload = body["payload"]
    assert payload["severity"] == "critical"
    assert payload["summary"] == f"{host} (planner, production): Circuit breaker has stayed open past two cooldowns."
    assert (payload["source"], payload["component"], payload["group"]) == ("planner", host, "shop")
    details = payload["custom_details"]
    assert re.fullmatch(r"connection_reset, \d+ times in the last hour", details["reason"])
    assert re.fullmatch(
        rf"{PAGE}: Circuit {host} of planner in production has not closed for 2 cooldowns \((?:9|1\d)\.\d+s\)"
        r" in 1 of 1 replicas\. Probes are failing: [12] in the last hour\.(?: The next one waits for a call\.)?",
        details["firing"],
    ), details["firing"]
    assert details["runbook"] == f"{RUNBOOKS}/{PAGE}.md"
    assert body["links"] == [{"href": f"{RUNBOOKS}/{PAGE}.md", "text": "Runbook"}]
    assert "var-service=planner&var-circuit=127.0.0.1%3A" in body["client_url"]


def test_refused_calls_never_reached_the_vendor(calm: Play) -> None:
    for service, vendor in (("keyed", "keys"), ("brief", "quick"), ("sleeper", "nap"), ("assistant", "refunds")):
        agent = calm.agents[service]
        assert len(agent.refusals) > 0
        assert len(agent.steps) - len(agent.refusals) == calm.vendors[vendor].hits, service
    assert len(calm.agents["sleeper"].refusals) == 1


def test_a_circuit_that_outlives_one_cooldown_is_never_heard_of(calm: Play) -> None:
    states = [move.attributes["otel_breaker.state"] for move in calm.moves("brief")]
    assert states == ["open", "half_open", "open", "half_open", "closed"]
    assert calm.incidents("brief") == []


def test_an_agent_that_dies_after_one_cooldown_is_never_heard_of(calm: Play) -> None:
    counts = calm.samples('otel_breaker_cooldowns_elapsed{service_name="early"}')
    assert counts[-1][1] == 1
    assert calm.firing("early") == []
    assert calm.incidents("early") == []


def test_outside_production_it_is_a_warning(calm: Play) -> None:
    incident = calm.incident("tester")
    assert [event.action for event in incident.events] == ["trigger", "resolve"]
    assert incident.first.payload["severity"] == "warning"
    assert "(tester, staging): " in incident.first.payload["summary"]
    # The same vendor, and another incident than production's.
    assert incident.dedup_key != calm.incident("planner").dedup_key


def test_two_services_two_vendors_four_workers_are_four_incidents_B91(calm: Play) -> None:
    incidents = [*calm.incidents("mailer"), *calm.incidents("biller")]
    assert {calm.whose(one) for one in incidents} == FOUR
    assert len(incidents) == len({one.dedup_key for one in incidents}) == 4
    for incident in incidents:
        service, vendor = calm.whose(incident)
        assert [event.action for event in incident.events if event.action != "trigger"] == ["resolve"]
        assert incident.last.action == "resolve"
        assert {event.payload["severity"] for event in incident.events} == {"critical"}
        assert {event.dedup_key for event in incident.events} == {incident.dedup_key}
        # Three of four is most of them; the share is that of the moment at which it began.
        most = rf"of {service} in production has not closed for two cooldowns in (75|100)% of the replicas"
        assert any(re.search(most, event.payload["custom_details"]["firing"]) for event in incident.events)

        # Only when its own circuit had closed in all four.
        whose = f'service_name="{service}",otel_breaker_name="{calm.vendors[vendor].host}"'
        mine = f"otel_breaker_cooldowns_elapsed{{{whose}}}"
        assert len({one["service_instance_id"] for one in calm.prometheus.series(mine)}) == 4
        assert max(at for at, value in calm.samples(mine) if value > 0) < wall(incident.last.at)


def test_an_agent_killed_while_open_holds_its_page_for_five_minutes_B71(calm: Play) -> None:
    incident = calm.incident("doomed")
    assert [event.action for event in incident.events] == ["trigger"]
    # No environment said: it must not be quiet.
    assert incident.first.payload["severity"] == "critical"
    counts = calm.samples('otel_breaker_cooldowns_elapsed{service_name="doomed"}')
    last, value = counts[-1]
    assert last <= calm.seen["killed"] + CLOCKS
    assert value >= 2
    assert calm.firing("doomed")[-1] >= last + 5

    # What the committed rules will make of these very samples. Nothing that is queried later changes them.
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    record = next(
        one["expr"] for one in group["rules"] if one.get("record") == "tool:otel_breaker_cooldowns_elapsed:max"
    )

    def doomed(moment: float) -> list[float]:
        result = calm.prometheus.api("query", query=record, time=moment)["result"]
        return [float(one["value"][1]) for one in result if one["metric"]["service_name"] == "doomed"]

    assert doomed(last + 299) == [value]
    assert doomed(last + 301) == []


def test_a_revoked_credential_warns(calm: Play) -> None:
    incident = calm.incident("keyed")
    assert [event.action for event in incident.events] == ["trigger"]
    assert incident.first.payload["severity"] == "warning"
    assert incident.first.payload["custom_details"]["runbook"] == f"{RUNBOOKS}/OtelBreakerCredentialRevoked.md"
    assert "0123456789abcdef" not in str(incident.first.body)
    assert b"0123456789abcdef" not in calm.onward.raw


def test_the_page_names_the_tools_that_are_out(calm: Play) -> None:
    incident = calm.incident("assistant")
    assert incident.first.payload["custom_details"]["firing"].endswith(" Tools out: refund_charge.")
    assert [event.action for event in incident.events] == ["trigger", "resolve"]


def test_the_page_says_that_nobody_calls_and_ends_with_the_verdict(calm: Play) -> None:
    # Nobody looked, so there is no event of its end; the numbers tell.
    assert [span(move) for move in calm.moves("sleeper")] == [("closed", "open", "server_error")]
    values = [value for _, value in calm.samples('otel_breaker_cooldowns_elapsed{service_name="sleeper"}')]
    assert [value for value, _ in itertools.groupby(values)] == [0, 1, 2, 3, 0]
    incident = calm.incident("sleeper")
    assert "Nobody has called since the cooldown ended" in incident.first.payload["custom_details"]["firing"]
    assert [event.action for event in incident.events] == ["trigger", "resolve"]


def test_every_event_was_accepted_and_belongs_to_an_incident_B90(calm: Play) -> None:
    assert {calm.whose(one) for one in calm.path.pager.incidents} == PAGED
    assert len(calm.path.pager.incidents) == len(PAGED)
    assert calm.path.pager.refused == calm.path.pager.strays == []


def test_no_alert_is_about_a_process_B87(calm: Play) -> None:
    known = {"__name__", "alertname", "alertstate", "severity", "scope", "deployment_environment_name",
             "service_namespace", "service_name", "otel_breaker_name"}  # fmt: skip
    assert {label for one in calm.prometheus.series("ALERTS") for label in one} == known


def test_names_and_labels_are_those_of_the_page_B72(calm: Play) -> None:
    committed = exported.committed()
    series = calm.prometheus.series('{__name__=~"otel_breaker_.+"}')
    assert {one["__name__"] for one in series} == set(committed)
    for one in series:
        assert set(one) - {"__name__"} <= committed[one["__name__"]], one


def test_every_query_of_the_dashboards_has_an_answer(calm: Play) -> None:
    """As somebody sees it who opens them when the last page has come."""
    when = calm.seen["killed"]

    def silent(end: float) -> set[str]:
        marker = 'otel_breaker_cooldowns_elapsed{service_name="doomed"}'
        return set(panels.unanswered(calm.prometheus.url, end=end, span=300, every=1, marker=marker))

    # "Last seen" looks at whole minutes, and there need not be one in this short life: so the next one counts as well.
    late = silent(when)
    assert {one for one in late if "[300s:1m]" not in one} == set()
    assert late & silent(when + 60) == set()
    assert len(panels.every_query()) > 60


def test_agents_had_nothing_to_complain_about(calm: Play) -> None:
    assert {name: agent.complaints for name, agent in calm.agents.items()} == dict.fromkeys(calm.agents, "")


# --- one outage while the servers of the path are restarted -----------------------------------------------------------


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    with playing(tmp_path_factory.mktemp("storm"), "pay") as play:
        path, pager, vendor = play.path, play.path.pager, play.vendors["pay"]
        play.seen["start"]("planner", "pay")
        play.until(lambda: play.elapsed("planner") == 0, "the circuit is reported")
        # From here on traces and logs wait in the Collector's queue.
        play.onward.down()
        vendor.down()
        play.until(lambda: play.elapsed("planner") == 1, "one cooldown has run out")
        path.collector.restart()
        play.until(lambda: pager.opened, "the page is there")

        path.collector.kill()
        path.collector.start()
        play.seen["collector"] = time.time()
        play.until(
            lambda: play.samples("otel_breaker_cooldowns_elapsed")[-1][0] > play.seen["collector"] + 2, "samples"
        )
        play.seen["after the Collector"] = [event.action for event in pager.events]

        path.prometheus.restart()
        play.seen["prometheus"] = time.time()
        play.until(lambda: play.firing("planner")[-1] > play.seen["prometheus"] + 8, "it fires on")
        play.seen["after Prometheus"] = [event.action for event in pager.events]

        # It knows from its disk what it has sent; the alert itself comes again with the resolve, or within a minute.
        path.alertmanager.restart()
        vendor.back()
        play.until(lambda: not pager.opened, "it is resolved")
        play.agents["planner"].stop()
        path.collector.restart()
        play.seen["arrived"] = (len(play.onward.spans), len(play.onward.logs))
        play.onward.up()
        play.until(lambda: len(sent(play)) >= vendor.hits, "the spans that waited have arrived")
        play.until(lambda: len(play.moves("planner")) >= transitions(play), "the logs that waited have arrived")
        yield play


def sent(play: Play) -> list[str]:
    """Ids of the spans of calls that were let through."""
    let_through = {"otel_breaker.call.admitted", "otel_breaker.probe.started"}
    return [one.span_id for one in play.onward.spans if let_through & {event.name for event in one.events}]


def transitions(play: Play) -> float:
    """As counted by the process itself."""
    (found,) = play.prometheus.query("sum(otel_breaker_transitions_total)")
    return found.value


def test_a_restarted_collector_loses_and_doubles_no_page(storm: Play) -> None:
    assert storm.seen["after the Collector"] == ["trigger"]
    counts = storm.samples("otel_breaker_cooldowns_elapsed")
    two = next(at for at, value in counts if value >= 2)
    opened = storm.moves("planner")[0].at / 1e9
    assert opened + TWO_COOLDOWNS - CLOCKS <= two <= opened + TWO_COOLDOWNS + SLOW


def test_a_restarted_prometheus_neither_resolves_nor_pages_again_B86(storm: Play) -> None:
    assert storm.seen["after Prometheus"] == ["trigger"]
    # It fires from its first evaluation on.
    again = next(at for at in storm.firing("planner") if at > storm.seen["prometheus"])
    assert again <= storm.seen["prometheus"] + 5


def test_after_all_that_there_was_one_incident_and_one_resolve(storm: Play) -> None:
    (incident,) = storm.path.pager.incidents
    assert [event.action for event in incident.events] == ["trigger", "resolve"]
    assert {event.dedup_key for event in incident.events} == {incident.dedup_key}
    assert storm.path.pager.refused == storm.path.pager.strays == []


def test_what_waited_in_the_queue_has_arrived_whole(storm: Play) -> None:
    """A call that reached the vendor has a span, a transition a log: as many as vendor and process counted."""
    assert storm.seen["arrived"] == (0, 0)
    vendor, agent = storm.vendors["pay"], storm.agents["planner"]
    ids = sent(storm)
    # What was on its way when the Collector was killed may have been sent twice.
    assert len(set(ids)) == vendor.hits
    assert len(ids) - len(set(ids)) <= 5
    moves = {(move.at, *span(move)) for move in storm.moves("planner")}
    assert len(moves) == transitions(storm)
    told = storm.prometheus.query('sum(otel_breaker_admissions_total{otel_breaker_decision=~"admitted|probe"})')
    assert [one.value for one in told] == [vendor.hits]
    told = storm.prometheus.query('sum(otel_breaker_admissions_total{otel_breaker_decision!~"admitted|probe"})')
    assert [one.value for one in told] == [len(agent.refusals)]
    # The SDK's exporter says that it tries again, and never that it gave up.
    assert [line for line in agent.complaints.splitlines() if not line.startswith("Transient error ")] == []
