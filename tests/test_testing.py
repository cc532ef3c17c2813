"""`otel_breaker.testing` and the pytest plugin: what they give, and that nothing of it is left behind."""

from __future__ import annotations

import http.client
import logging
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import otel_breaker
from otel_breaker import _effects, _log, activate, keys, settings, testing
from otel_breaker.instrumentations import _patch
from otel_breaker.telemetry import emit
from otel_breaker.testing import (
    FakeDependency,
    ManualClock,
    RecordingListener,
    Registry,
    circuit_of,
    fresh_registry,
    instrumented,
)
from tests.support.python import last_json, python, run

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "examples" / "testing"
OUTAGE = 3


@otel_breaker.guard(policy="fast_api")
def module_tool(url: str) -> Any:
    """Decorated when this module was imported, long before any test's registry."""
    reply = requests.get(url, timeout=1)
    reply.raise_for_status()
    return reply.json()


def trip(url: str, calls: int = OUTAGE) -> None:
    for _ in range(calls):
        with pytest.raises(requests.RequestException):
            module_tool(url)


def suite(folder: Path, *options: str, test: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """A user's suite, run by pytest in a process and a folder of its own."""
    if test is not None:
        (folder / "test_it.py").write_text(test, encoding="utf-8")
    alone = ["-p", "no:cacheprovider", "-p", "no:langsmith_plugin"]  # LangChain brings a plugin that imports half of it
    return run(
        sys.executable, "-m", "pytest", *alone, "--rootdir", str(folder), *options, str(folder), **variables
    )  # fmt: skip


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """What pytest's last line says: ``{"passed": 2}``."""
    last = done.stdout.rstrip().splitlines()[-1]
    return {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|errors?|warnings?|skipped)", last)}


# --- FakeDependency ---------------------------------------------------------------------------------------------------


def exchange(fake: FakeDependency, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, str, bytes]:
    """Status, Retry-After and body of one request, by a client that none of our wrappers knows."""
    host, port = fake.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=1)
    try:
        connection.request(method, "/v1/charges?limit=1", body, headers)
        reply = connection.getresponse()
        return reply.status, reply.headers.get("Retry-After", ""), reply.read()
    finally:
        connection.close()


def test_it_is_healthy_at_first_and_says_what_it_is_told() -> None:
    with FakeDependency() as fake:
        assert exchange(fake) == (200, "", b'{"ok": true}')
        fake.json = [1, 2]
        assert exchange(fake) == (200, "", b"[1, 2]")
    with FakeDependency(json={}) as fake:
        assert exchange(fake) == (200, "", b"{}")


def test_its_names(fake_dependency: FakeDependency) -> None:
    assert fake_dependency.dependency == keys.dependency_of_url(fake_dependency.url)
    assert fake_dependency.url == f"http://{fake_dependency.dependency}"


@pytest.mark.parametrize("status", [200, 204, 304, 400, 401, 404, 429, 500, 503, 599])
def test_statuses(fake_dependency: FakeDependency, status: int) -> None:
    fake_dependency.fail(status)
    assert exchange(fake_dependency)[0] == status
    assert exchange(fake_dependency, "HEAD")[::2] == (status, b"")
    assert fake_dependency.hits == 2


@pytest.mark.parametrize(
    ("given", "sent"), [(None, ""), (20, "20"), (0.5, "0.5"), (0, "0"), ("Fri, 15 Jan 2027 08:00:00 GMT",) * 2]
)
def test_retry_after(fake_dependency: FakeDependency, given: Any, sent: str) -> None:
    fake_dependency.fail(429, retry_after=given)
    assert exchange(fake_dependency)[:2] == (429, sent)


def test_times_are_counted_and_then_it_is_healthy(fake_dependency: FakeDependency) -> None:
    fake_dependency.fail(503, times=2)
    assert [exchange(fake_dependency)[0] for _ in range(4)] == [503, 503, 200, 200]
    fake_dependency.drop(times=1)
    with pytest.raises(ConnectionResetError):
        exchange(fake_dependency)
    assert exchange(fake_dependency)[0] == 200
    fake_dependency.time_out(times=1)
    with pytest.raises(TimeoutError):
        exchange(fake_dependency)
    assert exchange(fake_dependency)[0] == 200
    assert fake_dependency.hits == 8


def test_an_order_holds_until_the_next_one(fake_dependency: FakeDependency) -> None:
    fake_dependency.fail(500, times=5)
    fake_dependency.fail(502)
    assert [exchange(fake_dependency)[0] for _ in range(6)] == [502] * 6
    fake_dependency.recover()
    assert exchange(fake_dependency)[0] == 200


@pytest.mark.parametrize("status", [0, -1, 100, 199, 600])
def test_a_status_that_is_none(fake_dependency: FakeDependency, status: int) -> None:
    with pytest.raises(ValueError, match=f"^status must be 200 to 599, not {status}$"):
        fake_dependency.fail(status)


def test_no_times(fake_dependency: FakeDependency) -> None:
    for order in (fake_dependency.fail, fake_dependency.drop, fake_dependency.time_out):
        with pytest.raises(ValueError, match=r"^times must be 1 or more, or None, not 0$"):
            order(times=0)
    assert exchange(fake_dependency)[0] == 200


def test_requests_are_kept(fake_dependency: FakeDependency) -> None:
    exchange(fake_dependency, "POST", b'{"charge": 1}', **{"X-Who": "me"})
    (request,) = fake_dependency.requests
    assert request[:2] == ("POST", "/v1/charges?limit=1")
    assert request.headers["x-who"] == "me"
    assert request.body == b'{"charge": 1}'


def test_bodies_in_chunks(fake_dependency: FakeDependency) -> None:
    exchange(fake_dependency, "POST", iter([b"one", b"two"]))
    exchange(fake_dependency, "PUT", iter([]))
    assert [request.body for request in fake_dependency.requests] == [b"onetwo", b""]


def test_expect_continue(fake_dependency: FakeDependency) -> None:
    with socket.create_connection(fake_dependency._address, timeout=1) as client, client.makefile("rb") as replies:
        client.sendall(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert replies.readline() == b"HTTP/1.1 100 Continue\r\n"
        client.sendall(b"ab")
        assert replies.readline() == b"\r\n"
        assert replies.readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_connection_is_kept_and_every_request_on_it_counts(fake_dependency: FakeDependency) -> None:
    with requests.Session() as session:
        for _ in range(3):
            assert session.get(fake_dependency.url, timeout=1).ok
        assert len(fake_dependency._open) == 1
    assert fake_dependency.hits == 3


def test_what_is_not_http_is_no_hit(fake_dependency: FakeDependency) -> None:
    with socket.create_connection(fake_dependency._address, timeout=1) as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert client.recv(1) == b""
    assert fake_dependency.hits == 0
    assert exchange(fake_dependency)[0] == 200


def test_close_ends_all_of_it_at_once() -> None:
    fake = FakeDependency()
    threads = [fake._accepting]
    with requests.Session() as session:
        session.get(fake.url, timeout=1)
        fake.time_out()
        with socket.create_connection(fake._address, timeout=5) as waiting:
            waiting.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while fake.hits < 2:  # until the order has taken it
                pass
            threads += fake._open.values()
            fake.close()
            fake.close()
            assert waiting.recv(1) == b""
    assert not [thread for thread in threads if thread.is_alive()]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(fake._address, timeout=1)


# --- RecordingListener ------------------------------------------------------------------------------------------------


def test_it_listens_inside_its_block(breaker_registry: Registry) -> None:
    before = _effects._listeners
    circuit = otel_breaker.Circuit("vendor")
    with RecordingListener() as listener, listener:  # twice is once
        circuit.force_open("drill")
    circuit.reset()
    assert _effects._listeners == before
    assert listener.moves == [("vendor", "closed", "forced_open", "manual")]
    assert [type(one) for one in listener.transitions] == [otel_breaker.Transition]
    listener.clear()
    assert listener.moves == []


def test_it_is_a_listener_like_any_other(breaker_registry: Registry) -> None:
    listener = RecordingListener()
    remove = otel_breaker.add_listener(listener)
    otel_breaker.Circuit("vendor").disable()
    remove()
    assert listener.moves == [("vendor", "closed", "disabled", "manual")]


# --- fresh_registry, circuit_of ---------------------------------------------------------------------------------------


def test_a_fresh_registry_and_the_old_one_again() -> None:
    before = otel_breaker.registry()
    clock = ManualClock()

    def inside() -> None:
        with fresh_registry(clock) as fresh:
            assert otel_breaker.registry() is fresh
            assert fresh.clock is clock
            assert len(fresh) == 0
            raise LookupError

    with pytest.raises(LookupError):
        inside()
    assert otel_breaker.registry() is before
    with fresh_registry() as fresh:
        assert isinstance(fresh.clock, ManualClock)


def test_a_module_level_tool_has_a_fresh_circuit_in_each(fake_dependency: FakeDependency) -> None:
    fake_dependency.fail(503)
    with fresh_registry():
        mine = circuit_of(module_tool)
        for number in range(1, 3):
            with fresh_registry():
                trip(fake_dependency.url)
                assert module_tool(fake_dependency.url)["status"] == "circuit_open"
                assert fake_dependency.hits == OUTAGE * number
        assert circuit_of(module_tool) is mine
        assert mine.snapshot().failures == 0


def test_what_is_logged_once_is_logged_once_in_each(caplog: pytest.LogCaptureFixture) -> None:
    _log.once("before", "before")
    with fresh_registry():
        _log.once("before", "inside")
    _log.once("before", "after")
    assert [record.message for record in caplog.records] == ["before", "inside"]


def test_circuit_of(breaker_registry: Registry) -> None:
    assert breaker_registry.get("module_tool") is None
    circuit = circuit_of(module_tool)
    assert circuit is circuit_of(module_tool) is circuit_of("module_tool") is breaker_registry.get("module_tool")
    vendor = circuit_of("API.example.com")
    assert vendor is circuit_of("api.example.com") is breaker_registry.get("api.example.com")
    with pytest.raises(TypeError, match=r"^trip is not guarded: put @otel_breaker.guard on it, or give a name$"):
        circuit_of(trip)


def test_circuit_of_a_method(breaker_registry: Registry) -> None:
    class Agent:
        @otel_breaker.guard
        def tool(self) -> int:
            return 1

    assert circuit_of(Agent().tool) is circuit_of(Agent.tool)


# --- instrumented -----------------------------------------------------------------------------------------------------


def state() -> dict[str, Any]:
    """All that `instrumented` may change in a process."""
    return {
        "active": activate.active(),
        "configured": activate._configured,
        "invalid": activate._invalid,
        "settings": settings._current,
        "patched": set(_patch._installed),
        "finder": activate._finder in sys.meta_path,
        "request": id(vars(requests.Session)["request"]),  # a wrapper is equal to what it wraps
        "fingerprint": keys.fingerprint("given", "acct-1"),
        "events": (emit._state.span, emit._state.log, emit._state.own),
        "level": logging.getLogger("otel_breaker").level,
        "handlers": list(logging.getLogger("otel_breaker").handlers),
    }


@pytest.fixture
def off() -> Iterator[None]:
    """A process in which nobody has switched anything on."""
    activate.deactivate()
    settings.forget()
    emit.start()
    yield
    activate.deactivate()
    settings.forget()


ALL = {"failure_threshold": 2, "fingerprint_key": "k" * 32, "events": "none", "spans": "never", "log_level": "debug"}


@pytest.mark.usefixtures("off", "breaker_registry")
def test_on_inside_and_as_before_afterwards(fake_dependency: FakeDependency) -> None:
    fake_dependency.fail(500)
    before = state()

    def on() -> None:
        with instrumented(**ALL):
            inside = state()
            assert inside["active"]
            assert inside["finder"]
            assert inside["patched"]
            assert inside["events"] == (False, False, False)
            assert {name for name, value in before.items() if value == inside[name]} == {"invalid"}
            for _ in range(2):
                requests.get(fake_dependency.url, timeout=1)
            with pytest.raises(otel_breaker.CircuitOpenError):
                requests.get(fake_dependency.url, timeout=1)
            raise LookupError

    with pytest.raises(LookupError):
        on()
    assert state() == before
    assert requests.get(fake_dependency.url, timeout=1).status_code == 500


@pytest.mark.usefixtures("off", "breaker_registry")
def test_breakers_that_were_on_are_on_again(fake_dependency: FakeDependency) -> None:
    fake_dependency.fail(500)
    assert otel_breaker.instrument(failure_threshold=4)
    before = state()
    with instrumented(failure_threshold=2):
        assert settings.current().failure_threshold == 2
        with instrumented(failure_threshold=1):
            assert settings.current().failure_threshold == 1
        assert settings.current().failure_threshold == 2
    after = state()
    del before["request"], after["request"]  # a new wrapper, around the same
    assert after == before
    assert not hasattr(requests.Session.request.__wrapped__, "__wrapped__")  # type: ignore[attr-defined]
    for _ in range(4):
        requests.get(fake_dependency.url, timeout=1)
    with pytest.raises(otel_breaker.CircuitOpenError):
        requests.get(fake_dependency.url, timeout=1)


@pytest.mark.usefixtures("off")
def test_wrong_settings_and_a_veto_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    with pytest.raises(otel_breaker.SettingsError, match="failure_treshold"), instrumented(failure_treshold=2):
        pass
    with pytest.raises(RuntimeError, match=r"^the breakers cannot be switched on: enabled is false$"):
        instrumented(enabled=False).__enter__()
    monkeypatch.setenv("OTEL_BREAKER_ENABLED", "false")
    with pytest.raises(RuntimeError, match=r"^the breakers cannot be switched on: OTEL_BREAKER_ENABLED is false$"):
        instrumented().__enter__()
    assert state() == before


@otel_breaker.guard
def answers_or_raises() -> None:
    raise AssertionError("never reached")


@pytest.mark.usefixtures("off")
def test_settings_of_one_test_do_not_stay_on_a_guard() -> None:
    with fresh_registry(), instrumented(on_open="raise"):
        circuit_of(answers_or_raises).force_open("drill")
        with pytest.raises(otel_breaker.CircuitOpenError):
            answers_or_raises()
    with fresh_registry():
        circuit_of(answers_or_raises).force_open("drill")
        assert answers_or_raises()["status"] == "circuit_open"  # type: ignore[func-returns-value,index]


# --- the fixtures, here -----------------------------------------------------------------------------------------------


def test_the_fixtures_belong_together(
    breaker_registry: Registry, manual_clock: ManualClock, breaker_transitions: RecordingListener
) -> None:
    assert otel_breaker.registry() is breaker_registry
    assert breaker_registry.clock is manual_clock
    assert breaker_transitions in _effects._listeners


@pytest.mark.parametrize("run", [1, 2])
def test_the_clock_drives_cooldowns(
    run: int, fake_dependency: FakeDependency, manual_clock: ManualClock, breaker_transitions: RecordingListener
) -> None:
    """Twice the same: the first leaves the tool of this module half open, and the second sees nothing of it."""
    fake_dependency.drop()
    trip(fake_dependency.url)
    manual_clock.advance(29.9)
    assert module_tool(fake_dependency.url)["retry_after_ms"] == 1000
    manual_clock.advance(0.1)
    trip(fake_dependency.url, 1)
    assert module_tool(fake_dependency.url)["retry_after_ms"] == 60_000
    manual_clock.advance(60)
    assert fake_dependency.hits == OUTAGE + 1
    assert breaker_transitions.moves == [
        ("module_tool", "closed", "open", "connection_reset"),
        ("module_tool", "open", "half_open", "cooldown_elapsed"),
        ("module_tool", "half_open", "open", "connection_reset"),
    ]


@pytest.mark.otel_breaker(failure_threshold=2)
def test_with_the_breakers_on_the_host_is_charged_and_not_the_tool(
    fake_dependency: FakeDependency, breaker_transitions: RecordingListener
) -> None:
    fake_dependency.fail(503)
    trip(fake_dependency.url, 2)
    assert module_tool(fake_dependency.url)["status"] == "circuit_open"
    assert breaker_transitions.moves == [(fake_dependency.dependency, "closed", "open", "server_error")]
    assert circuit_of(module_tool).snapshot().failures == 0


@pytest.mark.parametrize(
    "on", [pytest.param(True, marks=pytest.mark.otel_breaker(failure_threshold=1)), pytest.param(False)]
)
def test_the_marker_of_one_variant_is_that_variants(on: bool) -> None:
    assert activate.active() is on


def test_every_name_says_what_it_is() -> None:
    for name in testing.__all__:
        assert getattr(testing, name).__doc__, name


# --- the plugin, in suites of its users -------------------------------------------------------------------------------


def test_the_plugin_loads_nothing_and_switches_nothing_on(tmp_path: Path) -> None:
    test = """
import sys

def test_it():
    ours = {name for name in sys.modules if name.startswith("otel_breaker")}
    by_start_file = {"otel_breaker._startup"} if sys.version_info >= (3, 15) else set()
    assert ours == {"otel_breaker", "otel_breaker._version", "otel_breaker.pytest_plugin"} | by_start_file
    assert not {"opentelemetry", "wrapt", "pydantic", "yaml"} & set(sys.modules)
"""
    done = suite(tmp_path, "--strict-markers", "-W", "error", test=test)
    assert outcomes(done) == {"passed": 1}, done.stdout


def test_fixtures_and_marker_are_listed(tmp_path: Path) -> None:
    listed = suite(tmp_path, "--fixtures", test="").stdout
    for name in ("breaker_registry", "manual_clock", "fake_dependency", "breaker_transitions", "breaker_enabled"):
        assert f"\n{name} -- " in listed
    assert (
        "@pytest.mark.otel_breaker(**settings): switch the circuit breakers on" in suite(tmp_path, "--markers").stdout
    )


def test_it_can_be_kept_out(tmp_path: Path) -> None:
    done = suite(tmp_path, "-p", "no:otel_breaker", test="def test_it(breaker_registry): ...")
    assert "fixture 'breaker_registry' not found" in done.stdout


def test_breakers_that_the_environment_switched_on_do_not_disturb_it(tmp_path: Path) -> None:
    test = """
import otel_breaker.activate, pytest, requests
from otel_breaker import settings

def test_on(): assert otel_breaker.activate.active()

@pytest.mark.otel_breaker(failure_threshold=2)
def test_other_settings(): assert settings.current().failure_threshold == 2

def test_on_again():
    assert otel_breaker.activate.active()
    assert settings.current().failure_threshold == 7
    assert hasattr(requests.Session.request, "__wrapped__")
"""
    done = suite(
        tmp_path, "-W", "error", test=test, OTEL_BREAKER_ENABLED="true", OTEL_BREAKER_FAILURE_THRESHOLD="7"
    )  # fmt: skip
    assert outcomes(done) == {"passed": 3}, done.stdout + done.stderr


SUITE = """
import asyncio, threading, unittest
import otel_breaker, pytest, requests
from otel_breaker import activate, settings

calls = []

@otel_breaker.guard(policy="fast_api")
async def search(query):
    calls.append(query)
    raise ConnectionRefusedError

async def turns(count):
    return [await one for one in [asyncio.create_task(turn(number)) for number in range(count)]]

async def turn(number):
    try:
        return await search(number)
    except ConnectionRefusedError:
        return None

@pytest.mark.parametrize("run", range(3))
def test_each_run_begins_with_a_closed_circuit(run, breaker_registry):
    calls.clear()
    told = asyncio.run(turns(5))
    assert len(calls) == 3 and told[-1]["status"] == "circuit_open"

def test_the_clock_alone_is_enough(manual_clock):
    asyncio.run(turns(4))
    manual_clock.advance(30)
    calls.clear()
    asyncio.run(turns(1))
    assert len(calls) == 1

@pytest.mark.otel_breaker(failure_threshold=4, cooldown="10s")
class TestMarks:
    def test_of_the_class(self):
        assert (settings.current().failure_threshold, settings.current().cooldown) == (4, 10)

    @pytest.mark.otel_breaker(failure_threshold=2)
    def test_the_nearest_wins_key_by_key(self, breaker_enabled):
        assert (settings.current().failure_threshold, settings.current().cooldown) == (2, 10)
        assert otel_breaker.registry() is breaker_enabled

class TestCase(unittest.TestCase):
    @pytest.mark.otel_breaker(failure_threshold=6)
    def test_marked(self):
        assert settings.current().failure_threshold == 6

def test_nothing_is_left():
    assert not activate.active()
    assert not hasattr(requests.Session.request, "__wrapped__")
    assert otel_breaker.registry().clock is None
    assert not [t for t in threading.enumerate() if "fake-dependency" in t.name]
"""


def test_a_suite(tmp_path: Path) -> None:
    done = suite(tmp_path, "--strict-markers", "-W", "error", test=SUITE)
    assert outcomes(done) == {"passed": 8}, done.stdout


WRONG = """
import pytest

def test_right(breaker_enabled): ...

@pytest.mark.otel_breaker(failure_treshold=2)
def test_unknown(): ...

@pytest.mark.otel_breaker(2)
def test_by_place(): ...
"""


def test_a_wrong_marker_is_one_clear_error(tmp_path: Path) -> None:
    done = suite(tmp_path, test=WRONG)
    assert outcomes(done) == {"passed": 1, "errors": 2}
    assert re.search(r"^E? *breaker_enabled: .*failure_treshold", done.stdout, re.MULTILINE)
    assert "the marker otel_breaker takes settings by name, such as failure_threshold=2" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_veto_of_the_environment_is_one_clear_error(tmp_path: Path) -> None:
    done = suite(tmp_path, test="def test_it(breaker_enabled): ...", OTEL_BREAKER_ENABLED="false")
    assert outcomes(done) == {"error": 1}
    assert "the breakers cannot be switched on: OTEL_BREAKER_ENABLED is false" in done.stdout


def test_importing_it_needs_no_pytest() -> None:
    code = "import json, sys, otel_breaker.testing; print(json.dumps('pytest' in sys.modules))"
    assert last_json(python(code)) is False


# --- the example and the page -----------------------------------------------------------------------------------------


def test_the_example_project(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    done = suite(folder, "-W", "error")
    written = len(re.findall(r"^def test_", (EXAMPLE / "test_agent.py").read_text(encoding="utf-8"), re.MULTILINE))
    assert outcomes(done) == {"passed": written} == {"passed": 6}, done.stdout


PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- pytest: (\d+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_block_of_the_page_is_run() -> None:
    assert len(BLOCKS) == PAGE.count("<!-- pytest:") == PAGE.count("```python") - PAGE.count("<!-- run -->") == 4


@pytest.mark.parametrize(("passed", "block"), BLOCKS, ids=range(len(BLOCKS)))
def test_the_examples_of_the_page(passed: str, block: str, tmp_path: Path) -> None:
    done = suite(tmp_path, "-W", "error", test=block)
    assert outcomes(done) == {"passed": int(passed)}, done.stdout


def test_the_page_names_what_is_there() -> None:
    named = set(re.findall(r"^\| `(\w+)[`(]", PAGE, re.MULTILINE)) | set(re.findall(r"`(\w+)`, `", PAGE))
    public = {name for name in dir(FakeDependency) if not name.startswith("_")} | {"json"}
    assert public - {"hits", "requests"} <= named
    for name in testing.__all__:
        assert name in PAGE or name in ("Registry", "Request"), name
