"""The page path from real servers on loopback: Collector, Prometheus, Alertmanager, and a stand-in for PagerDuty.

Each server is run with the files of collector-config/, changed only in addresses, paths and timings. `Stack` starts all
four, ready to be used; each one can be stopped, killed and started again on the same ports. Logs are files in the room,
and are printed where a start fails or a ``with`` ends in an exception.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import yaml

from .pagerduty import PagerDuty
from .python import environment

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "collector-config"
TOOLS = ROOT / ".tools"
DISCARD = "http://127.0.0.1:9"

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class MissingTool(RuntimeError):
    """A program is not installed; the message says how to get it."""


def tool(name: str) -> str:
    """The path of a program: the Collector from .tools/, the others from there or from PATH."""
    found = shutil.which(name, path=os.pathsep.join([str(TOOLS), os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise MissingTool(f"needs {name}: make tools")
    return found


def need(*names: str) -> None:
    """Skip the test that calls this if a program is missing; where all is required that is a failure."""
    import pytest

    for name in names:
        try:
            tool(name)
        except MissingTool as missing:
            pytest.skip(str(missing))


def run_tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run([tool(name), *arguments], capture_output=True, text=True, timeout=60, check=False)


COLLECTOR, PROMETHEUS, ALERTMANAGER = "otelcol-breaker", "prometheus", "prometheus-alertmanager"
ALL = (COLLECTOR, PROMETHEUS, ALERTMANAGER)


_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on now.

    Below those that the kernel gives to outgoing connections: one of them could take it before the server has started,
    or while it is being started again.
    """
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


def wait_until(condition: Callable[[], Any], timeout: float = 30.0, every: float = 0.1) -> Any:
    """Look until ``condition()`` holds and return what it said; the last thing it said if it never did."""
    until = time.monotonic() + timeout
    while not (said := condition()) and time.monotonic() < until:
        time.sleep(every)
    return said


def get(url: str, timeout: float = 5.0, **query: Any) -> bytes:
    """The body of a GET; `OSError` if there is none."""
    full = f"{url}?{urllib.parse.urlencode(query, doseq=True)}" if query else url
    with _opener.open(full, timeout=timeout) as answer:
        body: bytes = answer.read()
        return body


class Server:
    """One process on ports of its own, with its log in the room.

    Args:
        room: where its files go.
        name: of its log and of its folder.
    """

    START_SECONDS = 30.0
    STOP_SECONDS = 15.0

    def __init__(self, room: Path, name: str) -> None:
        self.name = name
        self.room = room / name
        self.room.mkdir(parents=True, exist_ok=True)
        self.log = self.room / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        """What is run."""
        raise NotImplementedError

    def variables(self) -> Mapping[str, str]:
        """Environment variables beside those of this process."""
        return {}

    def ready(self) -> bool:
        """Whether it can be used."""
        raise NotImplementedError

    def start(self) -> Self:
        """Start it and wait until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.room,
                env=environment(**self.variables()),
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise
        return self

    def _wait(self) -> None:
        until = time.monotonic() + self.START_SECONDS
        while True:
            status = self.process.poll() if self.process else None
            if status is not None:
                raise RuntimeError(f"{self.name} ended with status {status}:\n{self.tail()}")
            with contextlib.suppress(OSError, ValueError):
                if self.ready():
                    return
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name} was not ready after {self.START_SECONDS:.0f} s:\n{self.tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ask it to end, and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a warning."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it and start it again, with its files and ports."""
        self.stop()
        self.start()

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(self.STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if isinstance(error, Exception):
            print(f"--- {self.name}: {self.log}\n{self.tail()}", file=sys.stderr)


class Collector(Server):
    """The built Collector with collector-config/otelcol.yaml.

    Args:
        room: where its files go.
        write_url: Prometheus remote write.
        onward: where traces and logs go: OTLP over HTTP, without path.
        fragments: files of collector-config/fragments/ by their stems, laid over the base in this order.
        more: configuration of the test's own, laid over all.
        variables: environment variables beside those that wire it up.
        name: of its folder, where there are several.
    """

    def __init__(
        self,
        room: Path,
        write_url: str = f"{DISCARD}/api/v1/write",
        onward: str = DISCARD,
        fragments: Sequence[str] = (),
        more: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        name: str = "collector",
    ) -> None:
        super().__init__(room, name)
        self.grpc_port, self.http_port, self.health_port, self.own_port = (free_port() for _ in range(4))
        self.write_url, self.onward, self._variables = write_url, onward, variables or {}
        self.configs = [CONFIG / "otelcol.yaml", *(CONFIG / "fragments" / f"{stem}.yaml" for stem in fragments)]
        if more:
            self.configs.append(self.room / "more.yaml")
            self.configs[-1].write_text(yaml.safe_dump(dict(more)))

    @property
    def endpoint(self) -> str:
        """OTLP over HTTP, for ``OTEL_EXPORTER_OTLP_ENDPOINT``."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_endpoint(self) -> str:
        """The same over gRPC."""
        return f"http://127.0.0.1:{self.grpc_port}"

    def environment(self, **more: str) -> dict[str, str]:
        """Variables that send everything here over HTTP."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            **more,
        }

    def command(self) -> Sequence[str]:
        return [tool(COLLECTOR), *(f"--config={path}" for path in self.configs)]

    def validate(self) -> subprocess.CompletedProcess[str]:
        """``validate`` with the same files and variables."""
        return subprocess.run(
            [tool(COLLECTOR), "validate", *self.command()[1:]], capture_output=True, text=True, timeout=60,
            env=environment(**self.variables()), check=False,
        )  # fmt: skip

    def variables(self) -> Mapping[str, str]:
        return {
            "OTELCOL_GRPC_PORT": str(self.grpc_port),
            "OTELCOL_HTTP_PORT": str(self.http_port),
            "OTELCOL_HEALTH_PORT": str(self.health_port),
            "OTELCOL_METRICS_PORT": str(self.own_port),
            "OTELCOL_QUEUE_DIR": str(self.room / "queue"),
            "PROMETHEUS_WRITE_URL": self.write_url,
            "TRACES_ENDPOINT": self.onward,
            "LOGS_ENDPOINT": self.onward,
            **self._variables,
        }

    def ready(self) -> bool:
        return b"Server available" in get(f"http://127.0.0.1:{self.health_port}/")

    def own_metrics(self) -> dict[str, float]:
        """What it says of itself: name and labels as text -> value."""
        text = get(f"http://127.0.0.1:{self.own_port}/metrics").decode()
        pairs = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def own_metrics_of(self, name: str) -> dict[str, float]:
        """The series of one metric, or of all whose names begin so."""
        return {series: value for series, value in self.own_metrics().items() if series.startswith(name)}


class Sample(NamedTuple):
    """One series of a query's answer."""

    labels: dict[str, str]
    value: float


class Prometheus(Server):
    """Prometheus with collector-config/prometheus/.

    Args:
        room: where its files go.
        alertmanager: its address, ``127.0.0.1:port``.
        collector: where the Collector tells about itself, or nothing to scrape.
        every: how often rules are evaluated and things scraped, in place of 15 s.
        rules: whether the committed rules are loaded.
    """

    def __init__(
        self,
        room: Path,
        alertmanager: str | None = None,
        collector: str | None = None,
        every: str = "1s",
        rules: bool = True,
    ) -> None:
        super().__init__(room, "prometheus")
        self.port = free_port()
        self._alertmanager = alertmanager
        config = yaml.safe_load((CONFIG / "prometheus/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": every, "evaluation_interval": every}
        config["alerting"]["alertmanagers"] = (
            [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
        )
        config["scrape_configs"] = [
            {**job, "static_configs": [{"targets": [collector]}]} for job in config["scrape_configs"] if collector
        ]
        if rules:
            for name in config["rule_files"]:
                text = (CONFIG / "prometheus" / name).read_text()
                (self.room / name).write_text(re.sub(r"(?m)^(\s+interval:).*$", rf"\1 {every}", text))
        else:
            config["rule_files"] = []
        (self.room / "prometheus.yml").write_text(yaml.safe_dump(config))

    @property
    def url(self) -> str:
        """Its web address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def write_url(self) -> str:
        """Where remote write goes."""
        return f"{self.url}/api/v1/write"

    def command(self) -> Sequence[str]:
        return [
            tool(PROMETHEUS), f"--config.file={self.room}/prometheus.yml", f"--storage.tsdb.path={self.room}/data",
            f"--web.listen-address=127.0.0.1:{self.port}", "--web.enable-remote-write-receiver",
            "--query.lookback-delta=5m",
        ]  # fmt: skip

    def ready(self) -> bool:
        # An alert that fires before the Alertmanager is found is sent to nobody, and again only after a minute.
        get(f"{self.url}/-/ready")
        return self._alertmanager is None or self._alertmanager.encode() in get(f"{self.url}/api/v1/alertmanagers")

    def api(self, path: str, **query: Any) -> Any:
        """``data`` of an API answer."""
        try:
            return json.loads(get(f"{self.url}/api/v1/{path}", **query))["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{path} {query}: {error.read().decode(errors='replace')}") from error

    def query(self, promql: str) -> list[Sample]:
        """An instant query's series."""
        answer = self.api("query", query=promql)
        if answer["resultType"] == "scalar":
            return [Sample({}, float(answer["result"][1]))]
        return [Sample(one["metric"], float(one["value"][1])) for one in answer["result"]]

    def query_range(
        self, promql: str, seconds: float = 300, step: str = "1s"
    ) -> list[tuple[dict[str, str], list[Any]]]:
        """A range query's series over the last ``seconds``: labels, and pairs of time and value as text."""
        now = time.time()
        answer = self.api("query_range", query=promql, start=now - seconds, end=now, step=step)
        return [(one["metric"], one["values"]) for one in answer["result"]]

    def series(self, match: str) -> list[dict[str, str]]:
        """Every series that matches, with all its labels."""
        found: list[dict[str, str]] = self.api("series", **{"match[]": match})
        return found

    def alerts(self, name: str | None = None) -> list[dict[str, Any]]:
        """Alerts, pending and firing, of that name."""
        found: list[dict[str, Any]] = self.api("alerts")["alerts"]
        return [one for one in found if name in (None, one["labels"]["alertname"])]


class Alertmanager(Server):
    """Alertmanager with collector-config/alertmanager/, its pager turned to the stand-in.

    Args:
        room: where its files go.
        pager: the stand-in; `None` leaves the receivers without a pager.
        group_wait: in place of the committed one, on every route.
        group_interval: the same.
    """

    def __init__(
        self, room: Path, pager: PagerDuty | None = None, group_wait: str = "1s", group_interval: str = "2s"
    ) -> None:
        super().__init__(room, "alertmanager")
        self.port = free_port()
        shutil.copytree(CONFIG / "alertmanager", self.room, dirs_exist_ok=True)
        path = self.room / "alertmanager.yml"
        config = yaml.safe_load(path.read_text())
        for route in _routes(config["route"]):
            for key, value in (("group_wait", group_wait), ("group_interval", group_interval)):
                if route is config["route"] or key in route:
                    route[key] = value
        key_file = self.room / "pagerduty.key"
        for receiver in config["receivers"]:
            if pager is None:
                receiver.pop("pagerduty_configs", None)
            for one in receiver.get("pagerduty_configs", ()):
                one |= {"url": pager and pager.url, "routing_key_file": str(key_file)}
                key_file.write_text(f"{pager and pager.routing_key}\n")
            if receiver["name"] == "heartbeat" and pager is not None:
                receiver["webhook_configs"] = [{"url": pager.heartbeat_url}]
        path.write_text(yaml.safe_dump(config))

    @property
    def address(self) -> str:
        """For Prometheus."""
        return f"127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        return [
            tool(ALERTMANAGER), f"--config.file={self.room}/alertmanager.yml", f"--storage.path={self.room}/data",
            f"--web.listen-address={self.address}", "--cluster.listen-address=",
        ]  # fmt: skip

    def ready(self) -> bool:
        get(f"http://{self.address}/-/ready")
        return True

    def alerts(self) -> list[dict[str, Any]]:
        """What it holds now."""
        found: list[dict[str, Any]] = json.loads(get(f"http://{self.address}/api/v2/alerts"))
        return found


def _routes(route: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield route
    for child in route.get("routes", ()):
        yield from _routes(child)


class Stack:
    """All of it, wired: agents -> `collector` -> `prometheus` -> `alertmanager` -> `pager`.

    Args:
        room: where all files go.
        onward: where traces and logs go.
        fragments: of the Collector.
        every: how often rules are evaluated.
        group_wait: of the Alertmanager.
        group_interval: the same.
        pager: one of the caller's own, already listening; else there is a new one.
    """

    def __init__(
        self,
        room: Path,
        onward: str = DISCARD,
        fragments: Sequence[str] = (),
        every: str = "1s",
        group_wait: str = "1s",
        group_interval: str = "2s",
        pager: PagerDuty | None = None,
    ) -> None:
        for name in ALL:
            tool(name)
        self._open = contextlib.ExitStack()
        self.pager = pager or PagerDuty()
        self._own_pager = pager is None
        self.alertmanager = Alertmanager(room, self.pager, group_wait, group_interval)
        own = free_port()
        self.prometheus = Prometheus(room, self.alertmanager.address, f"127.0.0.1:{own}", every)
        self.collector = Collector(room, self.prometheus.write_url, onward, fragments)
        self.collector.own_port = own

    @property
    def servers(self) -> tuple[Server, ...]:
        """In the order in which they start."""
        return (self.alertmanager, self.prometheus, self.collector)

    def environment(self, **more: str) -> dict[str, str]:
        """For an agent: everything to the Collector, metrics every second."""
        return self.collector.environment(**{"OTEL_METRIC_EXPORT_INTERVAL": "1000", **more})

    def __enter__(self) -> Self:
        try:
            if self._own_pager:
                self._open.enter_context(self.pager)
            for server in self.servers:
                self._open.enter_context(server)
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)
