"""Builders of panels: one function for each kind, none of which lets out a panel without a unit or a description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ._theme import NO_TELEMETRY

Json = dict[str, Any]

PROMETHEUS: Final = {"type": "prometheus", "uid": "${prometheus_datasource}"}
TEMPO: Final = {"type": "tempo", "uid": "${tempo_datasource}"}
WIDTH: Final = 24

LINE: Final = [{"value": None, "color": "transparent"}, {"value": 2, "color": "#D55E00"}]
"""Thresholds that draw the page line."""


def query(expr: str, legend: str = "", *, now: bool = False, table: bool = False) -> Json:
    """A query: over the time range, or of its end (``now``). The panel gives it its letter."""
    return {
        "datasource": PROMETHEUS,
        "editorMode": "code",
        "expr": expr,
        "format": "table" if table else "time_series",
        "instant": now,
        "legendFormat": legend or "__auto",
        "range": not now,
    }


def steps(first: str, *more: tuple[float, str]) -> list[Json]:
    """Thresholds: the colour from the bottom up, and from each value on."""
    return [{"value": None, "color": first}, *({"value": value, "color": color} for value, color in more)]


def named(colors: Mapping[str, str]) -> list[Json]:
    """A fixed colour for each series of that name."""
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for name, color in colors.items()
    ]


def _panel(
    kind: str,
    number: int,
    title: str,
    description: str,
    size: tuple[int, int],
    queries: Sequence[Json],
    defaults: Json,
    options: Json,
    overrides: Sequence[Json] = (),
    datasource: Json = PROMETHEUS,
    links: Sequence[Json] = (),
    **more: Any,
) -> Json:
    if links:
        defaults = {**defaults, "links": list(links)}
    return {
        "id": number,
        "type": kind,
        "title": title,
        "description": description,
        "datasource": datasource,
        "gridPos": {"w": size[0], "h": size[1]},
        "targets": [{"refId": chr(ord("A") + place), **one} for place, one in enumerate(queries)],
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "options": options,
        **more,
    }


def stat(
    number: int,
    title: str,
    description: str,
    one: Json,
    *,
    unit: str,
    thresholds: Sequence[Json],
    size: tuple[int, int] = (3, 4),
    mappings: Sequence[Json] = (),
    decimals: int | None = None,
    solid: bool = False,
    text_size: int | None = None,
) -> Json:
    """One number. ``solid`` fills the panel with its colour."""
    defaults: Json = {
        "unit": unit,
        "noValue": NO_TELEMETRY,
        "mappings": list(mappings),
        "color": {"mode": "thresholds"},
        "thresholds": {"mode": "absolute", "steps": list(thresholds)},
    }
    if decimals is not None:
        defaults["decimals"] = decimals
    options: Json = {
        "colorMode": "background_solid" if solid else "value",
        "graphMode": "none" if one["instant"] else "area",
        "justifyMode": "center",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": "value",
        "wideLayout": True,
    }
    if text_size is not None:
        options["text"] = {"valueSize": text_size}
    return _panel("stat", number, title, description, size, [one], defaults, options)


def lanes(
    number: int,
    title: str,
    description: str,
    one: Json,
    *,
    mappings: Sequence[Json],
    size: tuple[int, int],
    links: Sequence[Json] = (),
) -> Json:
    """A state timeline: one lane for each series; where there is no sample, there is no bar."""
    defaults: Json = {
        "unit": "none",
        "noValue": NO_TELEMETRY,
        "mappings": list(mappings),
        "color": {"mode": "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps("#0072B2")},
        "custom": {"fillOpacity": 90, "lineWidth": 0, "insertNulls": False, "spanNulls": False},
    }
    options = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "mergeValues": True,
        "perPage": 20,
        "rowHeight": 0.8,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return _panel("state-timeline", number, title, description, size, [one], defaults, options, links=links)


def series(
    number: int,
    title: str,
    description: str,
    queries: Sequence[Json],
    *,
    unit: str,
    size: tuple[int, int],
    colors: Mapping[str, str] | None = None,
    stacked: bool = False,
    bars: bool = False,
    stairs: bool = False,
    decimals: int | None = None,
    line: bool = False,
    legend: Sequence[str] = ("max", "lastNotNull"),
    aside: bool = False,
    empty: str = NO_TELEMETRY,
    links: Sequence[Json] = (),
) -> Json:
    """Time series. ``line`` draws the page line; ``aside`` puts the legend to the right, for many or long names."""
    custom: Json = {
        "drawStyle": "bars" if bars else "line",
        "lineInterpolation": "stepAfter" if stairs else "linear",
        # A line around a stacked series that is 0 would lie on top of those below it.
        "lineWidth": 0 if stacked and not bars else 1,
        "fillOpacity": 80 if bars or stacked else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "axisPlacement": "auto",
        "axisLabel": "",
        "axisSoftMin": 0,
        "thresholdsStyle": {"mode": "dashed" if line else "off"},
    }
    defaults: Json = {
        "unit": unit,
        "min": 0,
        "noValue": empty,
        "mappings": [],
        "color": {"mode": "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": LINE if line else steps("#0072B2")},
        "custom": custom,
    }
    if decimals is not None:
        defaults["decimals"] = decimals
        custom["axisSoftMax"] = 3 if line else 1
    options = {
        "legend": {
            "calcs": list(legend),
            "displayMode": "table" if legend else "list",
            "placement": "right" if aside else "bottom",
            "showLegend": True,
            **({"sortBy": "Max", "sortDesc": True} if "max" in legend else {}),
        },
        "tooltip": {"mode": "multi", "sort": "desc", "hideZeros": True},
    }
    return _panel(
        "timeseries", number, title, description, size, queries, defaults, options, named(colors or {}), links=links
    )


def bars(
    number: int,
    title: str,
    description: str,
    queries: Sequence[Json],
    *,
    unit: str,
    size: tuple[int, int],
    color: str,
    empty: str,
) -> Json:
    """A bar for each series."""
    defaults: Json = {
        "unit": unit,
        "min": 0,
        "decimals": 0,
        "noValue": empty,
        "mappings": [],
        "color": {"mode": "fixed", "fixedColor": color},
        "thresholds": {"mode": "absolute", "steps": steps(color)},
    }
    options = {
        "displayMode": "basic",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "maxVizHeight": 36,
        "minVizHeight": 16,
        "minVizWidth": 8,
        "namePlacement": "left",
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showUnfilled": True,
        "sizing": "auto",
        "valueMode": "color",
    }
    return _panel("bargauge", number, title, description, size, queries, defaults, options)


def column(title: str, width: int = 0, **properties: Any) -> Json:
    """How a table shows a column; ``custom`` properties with a ``_`` for the dot."""
    found = [{"id": name.replace("custom_", "custom."), "value": value} for name, value in properties.items()]
    if width:
        found.append({"id": "custom.width", "value": width})
    return {"matcher": {"id": "byName", "options": title}, "properties": found}


def table(
    number: int,
    title: str,
    description: str,
    queries: Sequence[Json],
    *,
    size: tuple[int, int],
    columns: Sequence[tuple[str, str]],
    hidden: Sequence[str] = (),
    worst: str = "",
    overrides: Sequence[Json] = (),
    empty: str = NO_TELEMETRY,
) -> Json:
    """A row for each circuit. ``columns`` are (field, title) in order; ``worst`` is the title to sort by, down."""
    defaults: Json = {
        "unit": "none",
        "noValue": empty,
        "mappings": [],
        "color": {"mode": "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps("text")},
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False},
    }
    options = {
        "cellHeight": "sm",
        "showHeader": True,
        "sortBy": [{"displayName": worst, "desc": True}] if worst else [],
    }
    shape = {
        "excludeByName": dict.fromkeys(("Time", *hidden), True),
        "indexByName": {field: place for place, (field, _) in enumerate(columns)},
        "renameByName": dict(columns),
    }
    transformations = [{"id": "merge", "options": {}}, {"id": "organize", "options": shape}]
    return _panel(
        "table", number, title, description, size, queries, defaults, options, overrides,
        transformations=transformations,
    )  # fmt: skip


def traces(number: int, title: str, description: str, traceql: str, *, size: tuple[int, int]) -> Json:
    """A table of traces from Tempo."""
    one = {
        "datasource": TEMPO,
        "query": traceql,
        "queryType": "traceql",
        "tableType": "traces",
        "limit": 20,
        "filters": [],
    }
    defaults: Json = {
        "unit": "none",
        "noValue": "no such trace in this time range",
        "mappings": [],
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": False, "inspect": False},
    }
    options = {"cellHeight": "sm", "showHeader": True, "sortBy": []}
    return _panel("table", number, title, description, size, [one], defaults, options, datasource=TEMPO)


def row(number: int, title: str, panels: Sequence[Json], *, collapsed: bool = False) -> list[Json]:
    """A row and what stands in it, not yet placed."""
    head: Json = {"id": number, "type": "row", "title": title, "collapsed": collapsed, "panels": []}
    if collapsed:
        return [{**head, "panels": list(panels)}]
    return [head, *panels]


def place(panels: Sequence[Json]) -> list[Json]:
    """Panels side by side from the left, a new line when one is full; rows take a line of their own."""
    x = y = height = 0
    placed: list[Json] = []
    for panel in panels:
        if panel["type"] == "row":
            y, x, height = y + height, 0, 0
            inside = [
                {**one, "gridPos": {**one["gridPos"], "y": one["gridPos"]["y"] + y + 1}}
                for one in place(panel["panels"])
            ]
            placed.append({**panel, "panels": inside, "gridPos": {"w": WIDTH, "h": 1, "x": 0, "y": y}})
            y += 1
            continue
        size = panel["gridPos"]
        if x + size["w"] > WIDTH:
            y, x, height = y + height, 0, 0
        placed.append({**panel, "gridPos": {"w": size["w"], "h": size["h"], "x": x, "y": y}})
        x, height = x + size["w"], max(height, size["h"])
    return placed
