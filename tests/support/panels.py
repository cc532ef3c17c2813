"""Asks a Prometheus every query of the dashboards, as Grafana would put it."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FILES: Final = sorted((ROOT / "grafana/dashboards").glob("*.json"))

EVERYTHING: Final = {"environment": ".*", "namespace": ".*", "service": ".*", "circuit": ".*"}
"""What `All` stands for in each variable."""

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Asked:
    """One query of a dashboard.

    Attributes:
        where: dashboard and panel, annotation or variable, for messages.
        expr: as it stands in the file.
        instant: asked once, at the end of the time range.
        label: for a variable, the label whose values it lists.
    """

    where: str
    expr: str
    instant: bool = False
    label: str = ""


def dashboards() -> dict[str, dict[str, Any]]:
    """The committed files by their stems."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel that is not a row, also those in collapsed rows."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def asked(name: str, board: Mapping[str, Any]) -> Iterator[Asked]:
    """Every query for Prometheus: panels, annotations, variables."""
    for panel in panels(board):
        for target in panel["targets"]:
            if "expr" in target:
                yield Asked(f"{name}: {panel['title']}, {target['refId']}", target["expr"], target["instant"])
    for annotation in board["annotations"]["list"]:
        if "expr" in annotation:
            yield Asked(f"{name}: annotation {annotation['name']}", annotation["expr"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found, variable["query"]
            yield Asked(f"{name}: variable {variable['name']}", found[1], label=found[2])


def every_query() -> list[Asked]:
    """Those of all dashboards."""
    return [one for name, board in dashboards().items() for one in asked(name, board)]


def _seconds(duration: str) -> float:
    unit = {"s": 1, "m": 60, "h": 3600}[duration[-1]]
    return float(duration[:-1]) * unit


def put(expr: str, step: float, span: float, every: float = 15, variables: Mapping[str, str] = EVERYTHING) -> str:
    """The query as Grafana sends it.

    Args:
        expr: as it stands in the file.
        step: `$__interval`, seconds.
        span: the time range, seconds.
        every: the data source's scrape interval; `$__rate_interval` is at least four of them.
        variables: regular expressions.
    """
    words = {
        "__rate_interval": f"{max(round(step + every), round(4 * every))}s",
        "__interval": f"{round(step)}s",
        "__range": f"{round(span)}s",
        **variables,
    }
    # `$1` is label_replace's own; Grafana leaves alone what is no variable.
    variable = r"\$\{([A-Za-z_]\w*)(?::\w+)?\}|\$([A-Za-z_]\w*)"
    return re.sub(variable, lambda found: words[found[1] or found[2]], expr)


def _get(url: str, path: str, **query: str | float) -> Any:
    address = f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with _opener.open(address, timeout=60) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise ValueError(f"{path} {query}: {error.read().decode(errors='replace')}") from error


def answer(
    prometheus_url: str,
    one: Asked,
    end: float,
    span: float,
    every: float = 15,
    variables: Mapping[str, str] = EVERYTHING,
) -> list[Any]:
    """Series of a query that hold a number, or values of a variable."""
    step = max(every, span / 250)
    expr = put(one.expr, step, span, every, variables)
    if one.label:
        return list(_get(prometheus_url, f"label/{one.label}/values", **{"match[]": expr}, start=end - span, end=end))
    if one.instant:
        found = _get(prometheus_url, "query", query=expr, time=end)["result"]
        return [series for series in found if series["value"][1] != "NaN"]
    found = _get(prometheus_url, "query_range", query=expr, start=end - span, end=end, step=step)["result"]
    return [series for series in found if any(value != "NaN" for _, value in series["values"])]


def unanswered(
    prometheus_url: str,
    *,
    end: float | None = None,
    span: float = 3 * 3600,
    every: float = 15,
    marker: str = "",
    variables: Mapping[str, str] = EVERYTHING,
    leave_out: Sequence[str] = (),
) -> list[str]:
    """Every query of the dashboards that gets no data: where it stands, and what was asked.

    Args:
        prometheus_url: where to ask, ``http://127.0.0.1:9090``.
        end: the end of the time range; now unless given.
        span: its length, seconds.
        every: how often samples arrive, seconds.
        marker: a selector that only the right Prometheus answers.
        variables: what is chosen in the dashboards, as regular expressions.
        leave_out: regular expressions on where a query stands; for what cannot have happened in a run.

    Raises:
        AssertionError: if ``marker`` is not there: another Prometheus answered.
    """
    end = time.time() if end is None else end
    if marker:
        there = answer(prometheus_url, Asked("marker", marker), end, span, every)
        assert there, f"{prometheus_url} is another Prometheus: it has no {marker}"
    silent = []
    for one in every_query():
        if any(re.search(pattern, one.where) for pattern in leave_out):
            continue
        assert "vector(" not in one.expr, f"{one.where} answers itself"
        if not answer(prometheus_url, one, end, span, every, variables):
            silent.append(f"{one.where}: {put(one.expr, 60, span, every, variables)}")
    return silent
