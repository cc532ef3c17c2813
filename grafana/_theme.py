"""Colours and words that mean the same in every panel.

Okabe and Ito's palette: closed and open stay far apart with red-green colour blindness, which green and red do not.
Half open and open do not, so text always says it too.
"""

from __future__ import annotations

from typing import Any, Final

from ._charts import SEVERITY

BLUE: Final = "#0072B2"
SKY: Final = "#56B4E9"
AMBER: Final = "#E69F00"
RED: Final = "#D55E00"
PINK: Final = "#CC79A7"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
GREY: Final = "#8E8E8E"

STATE: Final = {
    "closed": BLUE,
    "disabled": GREY,
    "half_open": AMBER,
    "open": RED,
    "forced_open": PINK,
}
OUTCOME: Final = {
    "success": BLUE,
    "failure": RED,
    "refused": AMBER,
    "throttled": PINK,
    "unauthorized": YELLOW,
    "neutral": SKY,
    "cancelled": GREEN,
    "late": GREY,
}
DECISION: Final = {
    "probe": SKY,
    "circuit_open": AMBER,
    "probe_in_flight": YELLOW,
    "forced_open": PINK,
    "credential_paused": RED,
    "throttled": GREEN,
    "would_reject": GREY,
}
PROBES: Final = {"failed": RED, "closed the circuit": BLUE}
REASON: Final = {
    "connection_refused": SKY,
    "connection_reset": BLUE,
    "connection_error": "#9AD0F5",
    "dns_error": "#005B8F",
    "tls_error": "#7B9EB8",
    "connect_timeout": AMBER,
    "read_timeout": "#F5C85B",
    "timeout": "#B87F00",
    "deadline_exceeded": "#8A5F00",
    "server_error": RED,
    "overloaded": "#FF9D5C",
    "malformed_output": YELLOW,
    "truncated_output": "#C9BE2E",
    "rejected_output": "#8F8720",
    "throttled": PINK,
    "quota_exhausted": "#8E4A70",
    "tool_error": GREEN,
    "probe_lapsed": GREY,
    "unclassified": "#C4C4C4",
}
"""Blue: no connection. Amber: too slow. Red: the vendor says so. Yellow: what came is broken."""
CREDENTIALS: Final = {"paused": RED, "throttled": PINK, "revoked": AMBER}

NO_TELEMETRY: Final = "no telemetry"


def words(*pairs: tuple[float, str, str]) -> dict[str, Any]:
    """A value mapping: number -> text and colour."""
    options = {f"{value:g}": {"text": text, "color": color, "index": n} for n, (value, text, color) in enumerate(pairs)}
    return {"type": "value", "options": options}


SILENCE: Final[dict[str, Any]] = {
    "type": "special",
    "options": {"match": "null+nan", "result": {"text": NO_TELEMETRY, "color": GREY, "index": 9}},
}
STATES: Final = [words(*((rank, name.replace("_", " "), STATE[name]) for name, rank in SEVERITY.items())), SILENCE]
