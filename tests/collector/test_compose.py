"""compose.yaml as far as files can tell: pinned, bound to loopback, and everything it mounts is there."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.support import stack

PATH = stack.CONFIG / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(PATH.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def mounts(service: str) -> dict[str, str]:
    """Folder in the container -> what is mounted there."""
    triples = (volume.split(":") for volume in SERVICES[service].get("volumes", ()))
    return {inside: outside for outside, inside, *_ in triples}


def test_B95_every_image_is_pinned_to_a_release() -> None:
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[a-z]+/[a-z-]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert "build" not in service


def test_B95_the_collector_is_the_one_that_the_files_are_checked_with() -> None:
    manifest = yaml.safe_load((stack.CONFIG / "build/manifest.yaml").read_text())

    assert SERVICES["otelcol"]["image"].partition(":")[2] == manifest["dist"]["version"]


def test_what_is_mounted_exists_and_is_read_only() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            outside, _, *mode = volume.split(":")
            if outside.startswith("."):
                assert (stack.CONFIG / outside).exists(), f"{name}: {outside}"
                assert mode == ["ro"], volume
            else:
                assert outside in COMPOSE["volumes"], volume


def test_every_port_is_this_machines_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_dependencies_are_services() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)


def test_files_lie_where_those_that_name_them_look() -> None:
    prometheus = yaml.safe_load((stack.CONFIG / "prometheus/prometheus.yml").read_text())
    alertmanager = yaml.safe_load((stack.CONFIG / "alertmanager/alertmanager.yml").read_text())

    for name in prometheus["rule_files"]:
        assert f"/etc/prometheus/{name}" in mounts("prometheus")
    for name in alertmanager["templates"]:
        assert f"/etc/alertmanager/{name}" in mounts("alertmanager")
    assert prometheus["alerting"]["alertmanagers"] == [{"static_configs": [{"targets": ["alertmanager:9093"]}]}]
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["otelcol:8888"]}]
    commands = {name: " ".join(service.get("command", ())) for name, service in SERVICES.items()}
    for name in ("otelcol", "prometheus", "alertmanager", "tempo"):
        (config,) = re.findall(r"-config[.=]\S*?(/etc/\S+)", commands[name])
        assert config in mounts(name)


def test_prometheus_has_the_flags_that_the_collector_needs() -> None:
    assert {"--web.enable-remote-write-receiver", "--web.enable-otlp-receiver"} <= set(
        SERVICES["prometheus"]["command"]
    )


def test_the_collectors_variables_are_known_to_its_configuration() -> None:
    known = re.findall(r"\$\{env:([A-Z_]+)", (stack.CONFIG / "otelcol.yaml").read_text())

    assert set(SERVICES["otelcol"]["environment"]) - {"GOMEMLIMIT"} <= set(known)


def test_the_routing_key_reaches_alertmanager_as_a_file() -> None:
    alertmanager = yaml.safe_load((stack.CONFIG / "alertmanager/alertmanager.yml").read_text())
    (pager,) = [one for r in alertmanager["receivers"] for one in r.get("pagerduty_configs", ())]
    (secret,) = SERVICES["alertmanager"]["secrets"]

    assert secret == {"source": "pagerduty-routing-key", "target": pager["routing_key_file"]}
    assert COMPOSE["secrets"] == {"pagerduty-routing-key": {"environment": "PAGERDUTY_ROUTING_KEY"}}
    assert "environment" not in SERVICES["alertmanager"]
    assert [n for n, s in SERVICES.items() if "PAGERDUTY_ROUTING_KEY" in s.get("environment", ())] == [
        "grafana-alerting"
    ]


def test_there_is_one_pager_only() -> None:
    """Grafana's own rules are in a profile; what that service pulls in is neither Alertmanager nor the other one."""
    assert [name for name, service in SERVICES.items() if "profiles" in service] == ["grafana-alerting"]
    assert not [inside for inside in mounts("grafana") if "/alerting/" in inside]
    alerting = [outside for inside, outside in mounts("grafana-alerting").items() if "/alerting/" in inside]
    assert alerting == ["../grafana/alerting/rules.yaml", "../grafana/alerting/contact-points.yaml"]

    pulled, waiting = set[str](), ["grafana-alerting"]
    while waiting:
        name = waiting.pop()
        pulled.add(name)
        waiting += set(SERVICES[name].get("depends_on", ())) - pulled
    assert pulled == {"grafana-alerting", "otelcol", "prometheus", "tempo", "loki"}


def test_the_two_grafanas_differ_in_nothing_but_alerting() -> None:
    plain, alerting = SERVICES["grafana"], SERVICES["grafana-alerting"]

    assert set(plain["volumes"]) == {v for v in alerting["volumes"] if "/alerting/" not in v}
    assert plain["environment"].items() <= alerting["environment"].items()
    assert (plain["image"], plain["ports"]) == (alerting["image"], alerting["ports"])


def test_grafana_finds_its_datasources_and_dashboards() -> None:
    datasources = yaml.safe_load((stack.CONFIG / "stack/datasources.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((stack.CONFIG / "stack/dashboards.yaml").read_text())["providers"]

    assert provider["options"]["path"] in mounts("grafana")
    for source in datasources:
        host = re.findall(r"//([a-z]+):", source["url"])[0]
        assert host in SERVICES
    uids = {source["uid"]: source["type"] for source in datasources}
    assert uids[SERVICES["grafana-alerting"]["environment"]["OTEL_BREAKER_PROMETHEUS_UID"]] == "prometheus"
