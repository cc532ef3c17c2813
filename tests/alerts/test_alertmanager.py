"""From alerts to incidents: the committed configuration in a real Alertmanager, before a stand-in pager."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support import stack
from tests.support.pagerduty import Incident, PagerDuty

from .rulefiles import ALERTMANAGER, IDENTITY, alerts, load, run

PAGE, FLEET, LONG, FLAPPING = (
    "OtelBreakerOpenPastTwoCooldowns",
    "OtelBreakerFleetOpenPastTwoCooldowns",
    "OtelBreakerOpenLong",
    "OtelBreakerFlapping",
)
STRIPE = {
    "deployment_environment_name": "production",
    "service_namespace": "shop",
    "service_name": "planner",
    "otel_breaker_name": "api.stripe.com",
}
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


# --- the file ---------------------------------------------------------------------------------------------------------


def test_amtool_accepts_the_configuration_and_its_template() -> None:
    found = run("amtool", "check-config", ALERTMANAGER)
    assert found.returncode == 0, found.stdout + found.stderr
    assert " - 1 templates\n" in found.stdout


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        *(
            ({"alertname": rule["alert"], **rule["labels"]}, "pagerduty")
            for rule in alerts()
            if rule["alert"] != "OtelBreakerWatchdog"
        ),
        ({"alertname": "OtelBreakerWatchdog", "severity": "none"}, "heartbeat"),
        ({"alertname": "OtelBreakerWatchdog", "severity": "critical"}, "heartbeat"),
        ({"alertname": "OtelBreakerOfYours", "severity": "info"}, "none"),
        ({"alertname": "Watchdog", "severity": "none"}, "none"),
        ({"alertname": "SomethingElse", "severity": "critical"}, "none"),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else value,
)
def test_where_an_alert_goes(labels: dict[str, str], receiver: str) -> None:
    words = [f"{key}={value}" for key, value in {**STRIPE, **labels}.items()]
    found = run("amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}", *words)
    assert found.stdout.strip() == receiver, found.stderr


def test_an_incident_is_a_circuit_of_a_service_whatever_its_alerts_are_called() -> None:
    config = load(ALERTMANAGER)
    assert config["route"]["group_by"] == IDENTITY
    [watchdog, pages] = config["route"]["routes"]
    assert "group_by" not in pages
    assert watchdog["receiver"] == "heartbeat"


def test_a_group_waits_longer_than_one_evaluation_of_the_rules_B92() -> None:
    """Else no circuit could close in time: the next evaluation would come after the page."""
    config = load(ALERTMANAGER)
    assert config["route"]["group_wait"] == "30s"
    assert load(ALERTMANAGER.parent.parent / "prometheus/otel-breaker.rules.yml")["groups"][0]["interval"] == "15s"


def test_the_watchdog_never_reaches_a_pager() -> None:
    receivers = {one["name"]: one for one in load(ALERTMANAGER)["receivers"]}
    assert "pagerduty_configs" not in receivers["heartbeat"]
    assert set(receivers) == {"pagerduty", "heartbeat", "none"}


def test_the_key_is_in_a_file_of_its_own() -> None:
    [pager] = next(one for one in load(ALERTMANAGER)["receivers"] if one["name"] == "pagerduty")["pagerduty_configs"]
    assert "routing_key" not in pager
    assert pager["routing_key_file"].startswith("/")
    assert pager["send_resolved"] is True


# --- a real Alertmanager ----------------------------------------------------------------------------------------------


class Manager:
    """An Alertmanager and its pager; each test has its own."""

    def __init__(self, server: stack.Alertmanager, pager: PagerDuty) -> None:
        self.server = server
        self.pager = pager
        # A group with an alert that began longer than group_wait ago is sent at once.
        self._began: dict[tuple[tuple[str, str], ...], datetime] = {}

    def post(self, name: str, severity: str, ended: bool = False, **more: Any) -> None:
        """What Prometheus sends; ``circuit=`` and ``labels=`` say about which alert, ``texts=`` adds annotations."""
        labels = {"alertname": name, "severity": severity, **more.get("circuit", STRIPE), **more.get("labels", {})}
        now = datetime.now(UTC)
        alert = {
            "labels": labels,
            "annotations": {
                "summary": f"Summary of {name}.",
                "description": f"Description of {name}.",
                "runbook_url": f"https://runbooks.example.com/{name}.md",
                "dashboard_url": "https://grafana.example.com/d/otel-breaker-circuit",
                **more.get("texts", {}),
            },
            "startsAt": self._began.setdefault(tuple(sorted(labels.items())), now).isoformat(),
            "endsAt": (now if ended else now + timedelta(minutes=4)).isoformat(),
            "generatorURL": "http://prometheus.example.com:9090/graph",
        }
        request = urllib.request.Request(
            f"http://{self.server.address}/api/v2/alerts",
            json.dumps([alert]).encode(),
            {"content-type": "application/json"},
        )
        with _opener.open(request, timeout=10) as answer:
            assert answer.status == 200

    def until(self, condition: Any, seconds: float = 30) -> None:
        assert self.pager.wait_for(condition, seconds), [event.body for event in self.pager.events]

    def opened(self, count: int) -> list[Incident]:
        self.until(lambda: len(self.pager.opened) == count)
        return self.pager.opened


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    stack.need(stack.ALERTMANAGER)
    with PagerDuty() as pager, stack.Alertmanager(tmp_path, pager, "2s", "1s") as server:
        yield Manager(server, pager)


def circuit(**labels: str) -> dict[str, str]:
    return {**STRIPE, **labels}


def test_every_bundled_alert_is_an_event_that_pagerduty_accepts_and_resolves_B90(manager: Manager) -> None:
    sent: dict[str, Mapping[str, Any]] = {}
    for number, rule in enumerate(rule for rule in alerts() if rule["alert"] != "OtelBreakerWatchdog"):
        name = "" if rule["alert"] == "OtelBreakerTelemetryAbsent" else f"circuit-{number}"
        where = circuit(otel_breaker_name=name) if name else {}
        texts = {key: re.sub(r"{{.*?}}", "x", text) for key, text in rule["annotations"].items()}
        manager.post(rule["alert"], rule["labels"]["severity"], circuit=where, labels=rule["labels"], texts=texts)
        sent[name] = {"rule": rule, "circuit": where, "texts": texts}
    for incident in manager.opened(len(sent)):
        payload = incident.first.payload
        of = sent[payload.get("component", "")]
        assert payload["severity"] == of["rule"]["labels"]["severity"]
        assert payload["source"] == (of["circuit"].get("service_name") or "otel-breaker")
        assert payload["summary"].endswith(of["texts"]["summary"])
        assert payload["custom_details"]["runbook"] == of["rule"]["annotations"]["runbook_url"]
    for of in sent.values():
        rule = of["rule"]
        manager.post(
            rule["alert"],
            rule["labels"]["severity"],
            True,
            circuit=of["circuit"],
            labels=rule["labels"],
            texts=of["texts"],
        )
    manager.opened(0)
    assert manager.pager.refused == []
    assert manager.pager.strays == []
    assert [one.last.action for one in manager.pager.incidents] == ["resolve"] * len(sent)


def test_what_a_person_reads_in_the_incident(manager: Manager) -> None:
    manager.post(PAGE, "critical", texts={"reason": "connection_refused, 7 times in the last hour"})
    [incident] = manager.opened(1)
    body = incident.first.body
    assert body["client"] == "otel-breaker"
    assert body["client_url"] == "https://grafana.example.com/d/otel-breaker-circuit"
    assert body["links"] == [{"href": f"https://runbooks.example.com/{PAGE}.md", "text": "Runbook"}]
    payload = body["payload"]
    assert payload["summary"] == f"api.stripe.com (planner, production): Summary of {PAGE}."
    assert (payload["source"], payload["component"], payload["group"]) == ("planner", "api.stripe.com", "shop")
    details = {key: text for key, text in payload["custom_details"].items() if not key.startswith("num_")}
    assert details == {
        "circuit": "api.stripe.com",
        "service": "planner",
        "environment": "production",
        "reason": "connection_refused, 7 times in the last hour",
        "firing": f"{PAGE}: Description of {PAGE}.",
        "resolved": "",
        "runbook": f"https://runbooks.example.com/{PAGE}.md",
        "dashboard": "https://grafana.example.com/d/otel-breaker-circuit",
    }


def test_page_and_fleet_are_one_incident_and_the_page_speaks_for_it(manager: Manager) -> None:
    manager.post(FLEET, "critical", labels={"scope": "fleet"})
    manager.post(PAGE, "critical")
    [incident] = manager.opened(1)
    assert incident.first.payload["summary"].endswith(f"Summary of {PAGE}.")
    assert FLEET in incident.first.payload["custom_details"]["firing"]
    manager.post(FLEET, "critical", True, labels={"scope": "fleet"})
    manager.post(PAGE, "critical", True)
    manager.opened(0)
    assert len(manager.pager.incidents) == 1
    assert incident.last.dedup_key == incident.first.dedup_key


def test_two_services_and_two_circuits_are_four_incidents_and_each_ends_alone_B91(manager: Manager) -> None:
    circuits = [
        circuit(service_name=service, otel_breaker_name=name)
        for service in ("planner", "mailer")
        for name in ("api.stripe.com", "smtp.example.com")
    ]
    for one in circuits:
        manager.post(PAGE, "critical", circuit=one)
    incidents = manager.opened(4)
    assert len({incident.dedup_key for incident in incidents}) == 4
    manager.post(PAGE, "critical", True, circuit=circuits[0])
    [ended] = set(map(id, incidents)) - set(map(id, manager.opened(3)))
    [first] = [incident for incident in incidents if id(incident) == ended]
    payload = first.first.payload
    assert (payload["source"], payload["component"]) == ("planner", "api.stripe.com")
    for one in circuits[1:]:
        manager.post(PAGE, "critical", True, circuit=one)
    manager.opened(0)
    assert len(manager.pager.incidents) == 4


def test_two_environments_are_two_incidents(manager: Manager) -> None:
    manager.post(PAGE, "critical")
    manager.post(PAGE, "warning", circuit=circuit(deployment_environment_name="staging"))
    incidents = manager.opened(2)
    assert {one.first.payload["severity"] for one in incidents} == {"critical", "warning"}


def test_a_circuit_that_closes_before_the_group_has_waited_sends_nothing_B92(manager: Manager) -> None:
    manager.post(PAGE, "critical", circuit=circuit(otel_breaker_name="closes"))
    manager.post(PAGE, "critical", True, circuit=circuit(otel_breaker_name="closes"))
    # One that began later and stays shows that the wait is over, and one more update that nothing comes after it.
    manager.post(PAGE, "critical", circuit=circuit(otel_breaker_name="stays"))
    [stays] = manager.opened(1)
    manager.post(PAGE, "critical", True, circuit=circuit(otel_breaker_name="stays"))
    manager.opened(0)
    assert [event.payload["component"] for event in manager.pager.events] == ["stays", "stays"]
    assert manager.pager.incidents == [stays]


def test_a_page_after_a_warning_raises_the_same_incident(manager: Manager) -> None:
    manager.post(FLAPPING, "warning")
    [incident] = manager.opened(1)
    assert incident.first.payload["severity"] == "warning"
    manager.post(PAGE, "critical")
    manager.until(lambda: incident.last.payload["severity"] == "critical")
    assert incident.last.payload["summary"].endswith(f"Summary of {PAGE}.")
    manager.post(PAGE, "critical", True)
    manager.until(lambda: incident.last.payload["severity"] == "warning")
    manager.post(FLAPPING, "warning", True)
    manager.opened(0)
    assert manager.pager.incidents == [incident]


def test_the_page_mutes_the_backstop_of_its_own_circuit_only(manager: Manager) -> None:
    other = circuit(otel_breaker_name="smtp.example.com")
    manager.post(PAGE, "critical")
    manager.post(LONG, "warning")
    manager.post(LONG, "warning", circuit=other)
    incidents = {one.first.payload["component"]: one for one in manager.opened(2)}
    assert incidents["api.stripe.com"].first.payload["custom_details"]["firing"] == f"{PAGE}: Description of {PAGE}."
    assert incidents["smtp.example.com"].first.payload["severity"] == "warning"
    manager.post(LONG, "warning", True)
    manager.post(PAGE, "critical", True)
    manager.post(LONG, "warning", True, circuit=other)
    manager.opened(0)


def test_the_watchdog_beats_and_never_pages(manager: Manager) -> None:
    manager.post("OtelBreakerWatchdog", "none", circuit={})
    manager.until(lambda: manager.pager.heartbeats >= 1)
    manager.post(PAGE, "critical")
    manager.opened(1)
    assert [event.payload["component"] for event in manager.pager.events] == ["api.stripe.com"]


def test_an_event_that_pagerduty_could_not_take_is_sent_again(manager: Manager) -> None:
    manager.pager.answer_next(500, 429)
    manager.post(PAGE, "critical")
    manager.opened(1)
    assert [event.status for event in manager.pager.events] == [500, 429, 202]


def test_a_key_that_comes_late_needs_no_reload(manager: Manager) -> None:
    key = manager.server.room / "pagerduty.key"
    kept = key.read_text()
    key.unlink()
    manager.post(PAGE, "critical")
    assert stack.wait_until(lambda: "failed to read routing key" in manager.server.tail(200))
    assert manager.pager.events == []
    key.write_text(kept)
    manager.opened(1)


def test_a_silence_over_an_open_incident_swallows_its_resolve(manager: Manager) -> None:
    """Why the runbooks say: snooze in PagerDuty what is open, silence only what is to come."""
    manager.post(PAGE, "critical")
    [incident] = manager.opened(1)
    found = run(
        "amtool", "silence", "add", f"--alertmanager.url=http://{manager.server.address}", "--duration=1h",
        "--author=test", "--comment=vendor outage", "otel_breaker_name=api.stripe.com", "alertname=~OtelBreaker.+",
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    manager.post(PAGE, "critical", True)
    # Another circuit's whole incident passes meanwhile, so the first one's group was looked at several times.
    other = circuit(otel_breaker_name="smtp.example.com")
    manager.post(PAGE, "critical", circuit=other)
    manager.opened(2)
    manager.post(PAGE, "critical", True, circuit=other)
    assert manager.opened(1) == [incident]
    assert [event.action for event in incident.events] == ["trigger"]


# --- rules and Alertmanager together ----------------------------------------------------------------------------------


class Exposition:
    """What a Collector would have written, for Prometheus to scrape."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], float] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        values = self.values

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                lines = []
                for (name, replica), value in list(values.items()):
                    labels = {**STRIPE, "otel_breaker_name": name, "service_instance_id": replica}
                    text = ",".join(f'{key}="{label}"' for key, label in labels.items())
                    lines.append(f"otel_breaker_cooldowns_elapsed{{{text}}} {value}\n")
                body = "".join(lines).encode()
                self.send_response(200)
                self.send_header("content-type", "text/plain; version=0.0.4")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """Silence."""

        return Handler

    def report(self, name: str, values: list[int]) -> None:
        """Set ``cooldowns_elapsed`` of this circuit in each replica."""
        for number, value in enumerate(values):
            self.values[name, f"replica-{number:02d}"] = value

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Exposition:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def test_twenty_replicas_of_two_circuits_are_two_incidents_that_resolve_by_their_keys_B91(tmp_path: Path) -> None:
    stack.need(stack.PROMETHEUS, stack.ALERTMANAGER)
    with (
        Exposition() as agents,
        PagerDuty() as pager,
        stack.Alertmanager(tmp_path, pager, "2s", "1s") as alertmanager,
        stack.Prometheus(tmp_path, alertmanager.address, agents.address, "1s") as prometheus,
    ):
        agents.report("api.stripe.com", [1] * 20)
        agents.report("smtp.example.com", [0] * 20)
        agents.report("closes.example.com", [0] * 20)
        assert stack.wait_until(lambda: prometheus.query("count(tool:otel_breaker_replicas:count == 20) == 3"))
        assert prometheus.alerts(PAGE) == []

        agents.report("api.stripe.com", [2] * 15 + [0] * 5)
        agents.report("smtp.example.com", [2] + [0] * 19)
        assert pager.wait_for(lambda: len(pager.opened) == 2)
        by_name = {one.first.payload["component"]: one for one in pager.opened}
        assert set(by_name) == {"api.stripe.com", "smtp.example.com"}
        assert stack.wait_until(lambda: FLEET in by_name["api.stripe.com"].last.payload["custom_details"]["firing"])
        assert {one.first.payload["severity"] for one in pager.incidents} == {"critical"}
        details = by_name["smtp.example.com"].first.payload["custom_details"]
        assert "has not closed for 2 cooldowns in 1 of 20 replicas." in details["firing"]

        agents.report("api.stripe.com", [3] + [0] * 19)
        agents.report("smtp.example.com", [0] * 20)
        assert pager.wait_for(lambda: by_name["smtp.example.com"].resolved)
        assert [one.first.payload["component"] for one in pager.opened] == ["api.stripe.com"]

        agents.report("api.stripe.com", [0] * 20)
        assert pager.wait_for(lambda: not pager.opened)
        for incident in pager.incidents:
            assert {event.dedup_key for event in incident.events} == {incident.dedup_key}
            assert incident.last.action == "resolve"
        assert len(pager.incidents) == 2
        assert pager.refused == pager.strays == []


def test_a_circuit_that_closes_before_the_page_is_sent_is_never_heard_of_B92(tmp_path: Path) -> None:
    stack.need(stack.PROMETHEUS, stack.ALERTMANAGER)
    with (
        Exposition() as agents,
        PagerDuty() as pager,
        stack.Alertmanager(tmp_path, pager, "12s", "1s") as alertmanager,
        stack.Prometheus(tmp_path, alertmanager.address, agents.address, "1s") as prometheus,
    ):
        agents.report("closes", [2])
        assert stack.wait_until(lambda: alertmanager_has(alertmanager, "closes"))
        began = time.monotonic()
        agents.report("closes", [0])
        agents.report("stays", [2])
        assert stack.wait_until(lambda: not prometheus.query('ALERTS{otel_breaker_name="closes",alertstate="firing"}'))
        assert pager.events == []
        assert time.monotonic() - began < 12, "too slow a machine to show anything"
        assert pager.wait_for(lambda: pager.opened)
        agents.report("stays", [0])
        assert pager.wait_for(lambda: not pager.opened)
        assert {event.payload["component"] for event in pager.events} == {"stays"}


def alertmanager_has(alertmanager: stack.Alertmanager, name: str) -> bool:
    return any(one["labels"].get("otel_breaker_name") == name for one in alertmanager.alerts())
