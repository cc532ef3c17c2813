"""What unpatched clients raised under each fault, rebuilt by name, against what we make of it."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_breaker.classify import exception_outcome
from otel_breaker.outcomes import Outcome

ORACLE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "http_oracle.json").read_text())
WALL = 1_796_068_800.0
DATE_IN_TWO_SECONDS = "Mon, 30 Nov 2026 20:00:02 GMT"

TRANSPORT = {
    "refused": "connection_refused",
    "dns": "dns_error",
    "connect_timeout": "connect_timeout",
    "rst_on_accept": "connection_reset",
    "tls_selfsigned": "tls_error",
    "tls_badhost": "tls_error",
    "tls_hostname_mismatch_trusted_ca": "tls_error",
    "tls_reset": "connection_reset",
    "tls_eof": "tls_error",
    "tls_alert": "tls_error",
    "plain_on_tls": "tls_error",
    "close_before_headers": "connection_reset",
    "rst_before_headers": "connection_reset",
    "read_timeout": "read_timeout",
    "body_stall": "read_timeout",
    "rst_after_headers": "connection_reset",
    "rst_after_headers_nobody": "connection_reset",
    "truncated": "truncated_output",
    "chunked_abort": "truncated_output",
    "chunked_rst": "connection_reset",
    "chunked_badsize": "malformed_output",
    "badstatus": "malformed_output",
    "badheader": "malformed_output",
    "badgzip": "malformed_output",
    "brokenjson": "malformed_output",
    "emptybody": "malformed_output",
    "htmlok": "malformed_output",
    "redirect_dead": "connection_refused",
}
SERVER = ["s500", "s502", "s503", "s503_html", "s504"]
ANSWERS = ["s400", "s403", "s404", "s409", "s422"]

EXPECTED: dict[str, Outcome] = {
    **{fault: Outcome("failure", reason) for fault, reason in TRANSPORT.items()},
    **{fault: Outcome("failure", "server_error") for fault in SERVER},
    **{fault: Outcome("neutral", answered=True) for fault in ANSWERS},
    "s503_ra1": Outcome("failure", "server_error", retry_after=1.0),
    "s401": Outcome("unauthorized"),
    "s408": Outcome("failure", "timeout"),
    "s429": Outcome("throttled", "throttled"),
    "s429_ra1": Outcome("throttled", "throttled", retry_after=1.0),
    "s429_radate": Outcome("throttled", "throttled", retry_after=2.0),
    "s429_rams": Outcome("throttled", "throttled", retry_after=0.25),
    "s529": Outcome("failure", "overloaded"),
    "redirect_loop": Outcome("neutral"),
}

COARSE = {
    "refused": {"connection_refused"},
    "dns": {"dns_error"},
    "timeout": {"connect_timeout", "read_timeout"},
    "reset": {"connection_reset"},
    "tls": {"tls_error"},
    "malformed": {"malformed_output", "truncated_output"},
    "5xx": {"server_error", "overloaded"},
    "429": {"throttled"},
    "401": {None},
    "4xx": {None},
    "redirects": {None},
}
"""The recording's own names for what a fault is."""

DEVIATIONS = {"s408": "the design counts a 408 as a time-out; the recording calls it a 4xx"}

UNSEEN = {
    "ok": "no fault",
    "wrongshape": "valid JSON of another shape: no client looks, only the user's schema can tell",
    "badheader": "requests accepts a header line without a colon",
}
"""Faults under which a client returned: there is no exception to classify."""

WRONG: dict[tuple[str, str], str] = {}
"""(fault, client) of cells that a client can see and that are classified otherwise, with the reason."""

HEADERS = {
    "s503_ra1": {"Retry-After": "1"},
    "s429_ra1": {"Retry-After": "1"},
    "s429_radate": {"Retry-After": DATE_IN_TWO_SECONDS},
    "s429_rams": {"retry-after-ms": "250", "Retry-After": "30"},
}
RAISED = [cell for cell in ORACLE["cells"] if "chain" in cell]


def class_named(name: str) -> type[BaseException]:
    """A class with the recorded names in its MRO; only builtins are the real ones."""
    recorded: list[str] = ORACLE["mro"][name]
    bases: list[type] = []
    for base in recorded[1:]:
        module, _, qualname = base.rpartition(".")
        if module == "builtins":
            real = getattr(builtins, qualname)
            if real is not object and not any(issubclass(known, real) for known in bases):
                bases.append(real)
        else:
            bases.append(type(qualname, (), {"__module__": module}))
    module, _, qualname = name.rpartition(".")
    if module == "builtins":
        return getattr(builtins, qualname)
    return type(qualname, tuple(bases), {"__module__": module})


def rebuilt(cell: dict[str, Any]) -> BaseException:
    """The recorded chain as exceptions whose causes are contexts, suppressed as by ``raise ... from None``."""
    outer: BaseException | None = None
    for name, errno, text in reversed(cell["chain"]):
        exc = class_named(name)(text)
        if errno is not None:
            exc.errno = errno
        exc.__context__, exc.__suppress_context__ = outer, True
        outer = exc
    assert outer is not None
    if "status" in cell:
        outer.response = SimpleNamespace(status_code=cell["status"], headers=HEADERS.get(cell["fault"], {}))
    return outer


def seen_as(cell: dict[str, Any]) -> Outcome:
    return exception_outcome(rebuilt(cell), called=True, wall=WALL)


@pytest.mark.parametrize("name", ORACLE["mro"])
def test_rebuilt_classes_have_the_recorded_names(name: str) -> None:
    names = {f"{base.__module__}.{base.__qualname__}" for base in class_named(name).__mro__}
    assert set(ORACLE["mro"][name]) <= names


@pytest.mark.parametrize("cell", RAISED, ids=lambda cell: f"{cell['fault']}-{cell['clients'][0]}")
def test_B121_each_recorded_exception_has_its_own_reason(cell: dict[str, Any]) -> None:
    if any((cell["fault"], client) in WRONG for client in cell["clients"]):
        assert seen_as(cell) != EXPECTED[cell["fault"]]
    else:
        assert seen_as(cell) == EXPECTED[cell["fault"]]


def test_at_least_99_percent_of_the_cells_that_a_client_can_see_are_right() -> None:
    cells = [(cell, client) for cell in RAISED for client in cell["clients"]]
    right = [client for cell, client in cells if seen_as(cell) == EXPECTED[cell["fault"]]]
    assert len(cells) > 450
    assert len(right) == len(cells) - len(WRONG)
    assert len(right) / len(cells) >= 0.99


def test_the_outcomes_agree_with_the_recording_but_for_the_named_deviations() -> None:
    differing = {c["fault"] for c in RAISED if seen_as(c).reason not in COARSE[c["expected"]]}
    assert differing == set(DEVIATIONS)


def test_no_other_fault_went_unseen() -> None:
    silent = {cell["fault"] for cell in ORACLE["cells"] if "chain" not in cell}
    assert silent == set(UNSEEN)


def test_B116_a_redirect_loop_is_neutral_and_a_dead_target_counts() -> None:
    kinds = {c["fault"]: seen_as(c).kind for c in RAISED if c["fault"].startswith("redirect")}
    assert kinds == {"redirect_loop": "neutral", "redirect_dead": "failure"}
