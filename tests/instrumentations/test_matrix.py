"""Every way of using requests, httpx and httpx2 against every fault.

For each cell: the guard's outcome is what the fault is, the caller sees what the library alone raised there
(``tests/data/http_matrix.json`` was recorded without us), and the server sees as many requests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import CLIENTS
from tests.support.counts import outcomes, reasons
from tests.support.faults import FaultServer

TIMEOUT = 0.3
RECORDED: dict[str, dict[str, list[Any]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "http_matrix.json").read_text()
)["cells"]

EXPECTED: dict[str, tuple[str, str | None]] = {
    "ok": ("success", None),
    "refused": ("failure", "connection_refused"),
    "dns": ("failure", "dns_error"),
    "connect_timeout": ("failure", "connect_timeout"),
    "rst_on_accept": ("failure", "connection_reset"),
    "tls_selfsigned": ("failure", "tls_error"),
    "tls_badhost": ("failure", "tls_error"),
    "tls_reset": ("failure", "connection_reset"),
    "tls_eof": ("failure", "tls_error"),
    "tls_alert": ("failure", "tls_error"),
    "plain_on_tls": ("failure", "tls_error"),
    "close_before_headers": ("failure", "connection_reset"),
    "rst_before_headers": ("failure", "connection_reset"),
    "read_timeout": ("failure", "read_timeout"),
    "body_stall": ("failure", "read_timeout"),
    "rst_after_headers": ("failure", "connection_reset"),
    "rst_after_headers_nobody": ("failure", "connection_reset"),
    "truncated": ("failure", "truncated_output"),
    "chunked_abort": ("failure", "truncated_output"),
    "chunked_rst": ("failure", "connection_reset"),
    "chunked_badsize": ("failure", "malformed_output"),
    "badstatus": ("failure", "malformed_output"),
    "badheader": ("failure", "malformed_output"),
    "badgzip": ("failure", "malformed_output"),
    "redirect_loop": ("neutral", None),
    "redirect_dead": ("failure", "connection_refused"),
    "s500": ("failure", "server_error"),
    "s502": ("failure", "server_error"),
    "s503": ("failure", "server_error"),
    "s503_ra1": ("failure", "server_error"),
    "s503_html": ("failure", "server_error"),
    "s504": ("failure", "server_error"),
    "s529": ("failure", "overloaded"),
    "s400": ("neutral", None),
    "s403": ("neutral", None),
    "s404": ("neutral", None),
    "s409": ("neutral", None),
    "s422": ("neutral", None),
    "s401": ("unauthorized", None),
    "s408": ("failure", "timeout"),
    "s429": ("was_throttled", None),
    "s429_ra1": ("was_throttled", None),
    "s429_radate": ("was_throttled", None),
    "s429_rams": ("was_throttled", None),
}
"""What each fault is. The classes of the oracle, in our own reasons; 408 is a failure (DESIGN section 5)."""

LEFT_OUT = ("brokenjson", "emptybody", "htmlok", "wrongshape")
"""Whole 200s: only the caller's own parsing finds them wrong. `validate: json` is the way to have them counted."""

DIFFERS: dict[tuple[str, str], tuple[str, str | None]] = {
    # urllib3 takes a header line without a colon for the end of the headers and delivers the body.
    ("requests", "badheader"): ("success", None),
    ("requests_stream", "badheader"): ("success", None),
}
"""The cells in which the guard says something else, each with the reason."""

RACES: dict[str, tuple[str, ...]] = {
    "rst_on_accept": ("ConnectError", "ReadError", "WriteError", "RemoteProtocolError", "ConnectionError"),
}
"""Faults that reach a client as one of several exceptions, also without us."""

CELLS = [(column, fault) for column in CLIENTS for fault in EXPECTED]


@pytest.mark.parametrize(("column", "fault"), CELLS)
def test_cell(column: str, fault: str, faults: FaultServer, patched: Any) -> None:
    cell = f"{column}-{fault}"
    before = faults.hits[cell]
    with CLIENTS[column].open(timeout=TIMEOUT) as caller:
        result = caller.get(faults.url(fault, cell))
    error, stage, requests = RECORDED[fault][column]

    outcome, reason = DIFFERS.get((column, fault), EXPECTED[fault])
    assert outcomes(patched) == {outcome: 1}
    assert reasons(patched) == ({reason: 1} if reason else {})
    if fault in RACES:
        assert result.error_name.rpartition(".")[2] in RACES[fault]
    else:
        assert result.error_name == error
        assert result.stage == stage
    assert faults.hits[cell] - before == requests


def test_at_least_99_of_100_visible_cells_are_right() -> None:
    assert set(EXPECTED) | set(LEFT_OUT) == set(RECORDED)
    assert len(DIFFERS) / len(CELLS) <= 0.01


@pytest.mark.parametrize("column", CLIENTS)
@pytest.mark.parametrize("fault", LEFT_OUT)
def test_what_only_the_caller_can_see_is_a_success(column: str, fault: str, faults: FaultServer, patched: Any) -> None:
    with CLIENTS[column].open(timeout=TIMEOUT) as caller:
        result = caller.get(faults.url(fault, f"{column}-{fault}"))
    error, stage, _ = RECORDED[fault][column]
    assert outcomes(patched) == {"success": 1}
    assert (result.error_name, result.stage) == (error, stage)
