"""Switching on and off, each way in a real process: what is on, what is patched, and how often."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from otel_breaker._startup import bystander
from tests.support.python import BIN, QUIET_OTEL, STARTED, last_json, python, run

AGENT = """
import json, sys
at_start = [name for name in ("wrapt", "ssl", "asyncio", "opentelemetry", "otel_breaker") if name in sys.modules]
import requests
layers, wrapped = 0, vars(requests.Session)["request"]
while hasattr(wrapped, "__wrapped__"):
    layers, wrapped = layers + 1, wrapped.__wrapped__
print(json.dumps({"layers": layers, "at_start": at_start, "ours": "otel_breaker.activate" in sys.modules}))
"""


def release(distribution: str) -> tuple[int, ...]:
    """Its installed version: the first two numbers."""
    return tuple(int(number) for number in re.findall(r"\d+", version(distribution))[:2])


ON = {"OTEL_BREAKER_ENABLED": "true", "OTEL_BREAKER_LOG_LEVEL": "info"}
ANNOUNCED = "otel_breaker: breakers enforce"


def instrumented(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(str(BIN / "opentelemetry-instrument"), sys.executable, "-c", code, **QUIET_OTEL, **variables)


def wrapped(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(str(BIN / "otel-breaker"), "run", "--", sys.executable, "-c", code, **variables)


def by_hand(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return python("import otel_breaker; otel_breaker.instrument()\n" + code, **variables)


WAYS = {
    "opentelemetry-instrument": instrumented,
    "OTEL_BREAKER_ENABLED=true": lambda code, **v: python(code, **{"OTEL_BREAKER_ENABLED": "true", **v}),
    "otel-breaker run": wrapped,
    "instrument()": by_hand,
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_switches_on_and_patches_once(way: str) -> None:
    done = WAYS[way](AGENT, OTEL_BREAKER_LOG_LEVEL="info")
    assert last_json(done)["layers"] == 1
    assert done.stderr.count(ANNOUNCED) == 1


@pytest.mark.parametrize("way", WAYS)
def test_false_wins_over_every_way(way: str) -> None:
    done = WAYS[way](AGENT, OTEL_BREAKER_ENABLED="false", OTEL_BREAKER_LOG_LEVEL="info")
    assert last_json(done)["layers"] == 0
    assert "enforce" not in done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_modes_are_announced_as_what_they_are(way: str) -> None:
    done = WAYS[way](AGENT, OTEL_BREAKER_MODE="observe", OTEL_BREAKER_LOG_LEVEL="info")
    assert last_json(done)["layers"] == 1
    assert "otel_breaker: breakers observe" in done.stderr


def test_installed_and_not_enabled_does_nothing() -> None:
    found = last_json(python(AGENT))
    assert found == {"layers": 0, "at_start": ["otel_breaker"] * STARTED, "ours": False}


def test_not_enabled_it_loads_next_to_nothing() -> None:
    code = "import json, sys; print(json.dumps(sorted(name for name in sys.modules if 'otel_breaker' in name)))"
    loaded = ["otel_breaker", "otel_breaker._startup", "otel_breaker._version"]
    assert last_json(python(code)) == loaded * STARTED


def test_start_up_loads_neither_wrapt_nor_ssl_nor_asyncio() -> None:
    assert last_json(python(AGENT, **ON))["at_start"] == ["otel_breaker"]


@pytest.mark.parametrize("options", [("-I",), ("-E",), ("-s",), ("-X", "utf8")])
def test_interpreter_options_that_leave_site_alone_do_not_matter(options: tuple[str, ...]) -> None:
    assert last_json(python(AGENT, *options, **ON))["layers"] == 1


def test_without_site_nothing_starts() -> None:
    assert python("import sys; print('otel_breaker' in sys.modules)", "-S", **ON).stdout == "False\n"


@pytest.mark.parametrize("value", ["otel_breaker", "*", "requests, otel_breaker"])
@pytest.mark.parametrize("way", ["opentelemetry-instrument", "OTEL_BREAKER_ENABLED=true", "otel-breaker run"])
def test_opentelemetrys_own_switch_is_honoured(way: str, value: str) -> None:
    done = WAYS[way](AGENT, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=value)
    # OpenTelemetry's own instrumentor of requests patches Session.send, not Session.request.
    assert last_json(done)["layers"] == 0


def test_the_switch_of_opentelemetry_leaves_instrument_by_hand_alone() -> None:
    assert last_json(by_hand(AGENT, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="*"))["layers"] == 1


def test_all_ways_at_once_patch_once() -> None:
    code = """
import otel_breaker
from otel_breaker.activate import BreakerInstrumentor
import requests
otel_breaker.instrument()
BreakerInstrumentor().instrument(skip_dep_check=True)
"""
    done = run(
        str(BIN / "otel-breaker"), "run", "--", str(BIN / "opentelemetry-instrument"),
        sys.executable, "-c", code + AGENT, **QUIET_OTEL, OTEL_BREAKER_LOG_LEVEL="info",
    )  # fmt: skip
    assert last_json(done)["layers"] == 1
    assert done.stderr.count(ANNOUNCED) == 1
    assert "WARNING" not in done.stderr


def test_B48_instrument_twice_is_one_warning_and_one_layer() -> None:
    done = by_hand("otel_breaker.instrument(mode='off'); otel_breaker.instrument()" + AGENT)
    assert last_json(done)["layers"] == 1
    assert done.stderr.splitlines() == [
        "otel_breaker is already on: this call changes nothing; uninstrument() comes first"
    ]


def test_many_threads_at_once_patch_once() -> None:
    code = """
import threading, otel_breaker
gate = threading.Barrier(16)
def both():
    gate.wait()
    import requests
    otel_breaker.instrument()
threads = [threading.Thread(target=both) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    for _ in range(3):
        assert last_json(python(code + AGENT))["layers"] == 1


def test_libraries_that_are_already_imported_are_patched_too() -> None:
    assert last_json(python("import requests, otel_breaker; otel_breaker.instrument()" + AGENT))["layers"] == 1


def test_uninstrument_and_again() -> None:
    code = """
import otel_breaker
otel_breaker.instrument(); otel_breaker.uninstrument()
"""
    assert last_json(python(code + AGENT))["layers"] == 0
    assert last_json(python(code + "import requests\notel_breaker.instrument()" + AGENT))["layers"] == 1
    assert last_json(python(code + "otel_breaker.instrument()\notel_breaker.uninstrument()" + AGENT))["layers"] == 0


def test_keywords_of_the_program_go_before_the_environment_that_switched_on() -> None:
    code = """
import json, otel_breaker
from otel_breaker import settings
before = settings.current().cooldown
otel_breaker.instrument(cooldown="3s")
print(json.dumps([before, settings.current().cooldown]))
"""
    assert last_json(python(code, **ON, OTEL_BREAKER_COOLDOWN="7s")) == [7, 3]


def test_keywords_may_name_other_libraries_than_the_environment_did() -> None:
    code = "import requests, otel_breaker; otel_breaker.instrument(instrumentations={})"
    assert last_json(python(code.format("['httpx']") + AGENT, **ON))["layers"] == 0
    assert (
        last_json(python(code.format("['requests']") + AGENT, **ON, OTEL_BREAKER_INSTRUMENTATIONS="httpx"))["layers"]
        == 1
    )


def test_a_file_may_switch_off_what_the_environment_does_not(tmp_path: Path) -> None:
    path = tmp_path / "otel-breaker.yaml"
    path.write_text("enabled: false")
    assert last_json(by_hand(AGENT, OTEL_BREAKER_CONFIG=str(path)))["layers"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_invalid_settings_are_one_line_and_the_program_runs_on(way: str) -> None:
    done = WAYS[way](AGENT, OTEL_BREAKER_COOLDOWN="soon")
    assert last_json(done)["layers"] == 0
    lines = [line for line in done.stderr.splitlines() if "otel_breaker" in line or "Traceback" in line]
    assert len(lines) == 1
    assert lines[0].startswith("otel_breaker stays off: OTEL_BREAKER_COOLDOWN: 'soon' is not a duration")


def test_a_switch_that_is_neither_true_nor_false_is_an_invalid_setting() -> None:
    done = python(AGENT, OTEL_BREAKER_ENABLED="maybe")
    assert last_json(done)["layers"] == 0
    assert (
        done.stderr == "otel_breaker stays off: OTEL_BREAKER_ENABLED: 'maybe' is not a boolean; allowed: true, false\n"
    )


def test_after_invalid_settings_a_bare_call_does_not_switch_on_the_defaults() -> None:
    code = "import otel_breaker; otel_breaker.instrument(cooldwn=3); otel_breaker.instrument()"
    done = python(code + AGENT)
    assert last_json(done)["layers"] == 0
    assert done.stderr.count("\n") == 1
    assert last_json(python(code + "; otel_breaker.instrument(cooldown=3)" + AGENT))["layers"] == 1


def test_invalid_keywords_leave_what_is_on_as_it_is() -> None:
    done = python("import otel_breaker; otel_breaker.instrument(cooldwn=3)" + AGENT, OTEL_BREAKER_ENABLED="true")
    assert last_json(done)["layers"] == 1
    assert done.stderr.startswith(
        "otel_breaker keeps its earlier settings: cooldwn (keyword argument): unknown setting"
    )


def test_the_instrumentor_of_the_entry_point() -> None:
    code = """
import json
from importlib.metadata import entry_points
(entry,) = entry_points(group="opentelemetry_instrumentor", name="otel_breaker")
instrumentor = entry.load()()
seen = [instrumentor.is_instrumented_by_opentelemetry]
instrumentor.instrument(mode="observe"); seen.append(instrumentor.is_instrumented_by_opentelemetry)
instrumentor.uninstrument(); seen.append(instrumentor.is_instrumented_by_opentelemetry)
instrumentor.instrument(no_such=1); seen.append(instrumentor.is_instrumented_by_opentelemetry)
print(json.dumps(seen + [list(instrumentor.instrumentation_dependencies())]))
"""
    assert last_json(python(code)) == [False, True, False, False, []]


def test_B63_workers_and_child_processes_have_one_layer_each(tmp_path: Path) -> None:
    worker = AGENT.replace("\n", "\n    ").strip()
    program = tmp_path / "program.py"
    program.write_text(f"""
import multiprocessing, subprocess, sys
def work():
    {worker}
if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", {AGENT!r}], check=True)
    for method in ("spawn", "forkserver", "fork"):
        child = multiprocessing.get_context(method).Process(target=work)
        child.start(); child.join(); assert child.exitcode == 0
    work()
""")
    for command, variables in (
        ([str(BIN / "opentelemetry-instrument"), sys.executable, str(program)], QUIET_OTEL),
        ([sys.executable, str(program)], {"OTEL_BREAKER_ENABLED": "true"}),
    ):
        done = run(*command, **variables)
        assert done.returncode == 0, done.stderr
        # Before 0.63 opentelemetry-instrument reached no new interpreter: only the forked child and the program itself.
        everywhere = "OTEL_BREAKER_ENABLED" in variables or release("opentelemetry-instrumentation") >= (0, 63)
        assert done.stdout.count('"layers": 1') == (5 if everywhere else 2)
        assert done.stderr == ""


PIP = ["/usr/bin/python", "/v/bin/pip", "install", "x"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (PIP, True),
        (["python", "-m", "pip", "list"], True),
        (["python", "-Im", "ensurepip"], True),
        (["python", "-W", "ignore", "-X", "dev", "-mvenv", ".venv"], True),
        (["python", "/v/bin/pip3.11"], True),
        (["python", "-u", "/v/lib/site-packages/pip/__pip-runner__.py", "install"], True),
        (["python", "/v/lib/site-packages/pip/__main__.py"], True),
        (["python", "/v/lib/site-packages/pyproject_hooks/_in_process/_in_process.py"], True),
        (["python", "-I", "-B", "-c", "from python.get_interpreter_info import main; main()"], True),
        (["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"], True),
        (["python", "/v/bin/otel-breaker", "doctor"], True),
        (["python", "-m", "otel_breaker", "doctor"], True),
        (["python", "/v/bin/opentelemetry-instrument", "python", "agent.py"], True),
        (["python.exe", "C:/v/Scripts/uv.exe"], True),
        (["python", "-m", "pipeline"], False),
        (["python", "pip.py"], False),
        (["python", "agent.py", "-m", "pip"], False),
        (["python", "-c", "import agent", "pip"], False),
        (["python", "-m", "otel_breaker_agent"], False),
        (["python", "-c", "from multiprocessing.forkserver import main; main()"], False),
        (
            ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork"],
            False,
        ),
        (["python", "--check-hash-based-pycs", "always", "agent.py"], False),
        (["python"], False),
        (["python", "-"], False),
        ([], False),
    ],
)
def test_tools_of_their_own_are_left_alone(argv: list[str], expected: bool) -> None:
    assert bystander(argv) is expected


def test_pip_runs_without_us() -> None:
    code = "-m", "pip", "--version"
    done = run(sys.executable, "-X", "importtime", *code, **ON)
    assert done.returncode == 0
    assert "otel_breaker.activate" not in done.stderr


# --- the import hook --------------------------------------------------------------------------------------------------


HOOK = """
import importlib, importlib.util, json, sys
from otel_breaker._importing import Finder
applied = []
finder = Finder({"colorsys", "wave", "nosuchmodule"}, applied.append)
finder.install(); finder.install()
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import colorsys, wave, tabnanny", ["colorsys", "wave"]),
        ("import colorsys; importlib.reload(colorsys)", ["colorsys", "colorsys"]),
        ("importlib.util.find_spec('colorsys')", []),
        ("finder.remove(); finder.remove(); import colorsys", []),
        (
            "import colorsys; spec = colorsys.__spec__\n"
            "assert type(spec.loader).__name__ == type(colorsys.__loader__).__name__ == 'SourceFileLoader', spec",
            ["colorsys"],
        ),
        ("assert importlib.util.find_spec('colorsys').loader.get_code('colorsys')", []),
        ("import wrapt; wrapt.register_post_import_hook(lambda m: applied.append('x'), 'colorsys'); import colorsys",
         ["colorsys", "x"]),
        (
            "import wrapt; wrapt.register_post_import_hook(lambda m: applied.append('x'), 'colorsys')\n"
            "finder.remove(); finder.install(); import colorsys",
            ["x", "colorsys"],
        ),
        (
            "spec = importlib.util.find_spec('colorsys'); spec.loader = importlib.util.LazyLoader(spec.loader)\n"
            "m = sys.modules['colorsys'] = importlib.util.module_from_spec(spec); spec.loader.exec_module(m)\n"
            "applied.append('lazy'); m.rgb_to_hsv",
            ["lazy", "colorsys"],
        ),
        ("try:\n    import nosuchmodule\nexcept ImportError as e:\n    applied.append(e.name)", ["nosuchmodule"]),
        (
            "def broken(name):\n    raise RuntimeError\n"
            "finder._apply = broken; import colorsys; applied.append(colorsys.rgb_to_hsv(0, 0, 0)[2])",
            [0],
        ),
    ],
)  # fmt: skip
def test_the_import_hook(code: str, expected: list[Any]) -> None:
    done = python(HOOK + code + "\nprint(json.dumps(applied))")
    found = last_json(done)
    assert sorted(found, key=str) == sorted(expected, key=str)
    if "lazy" in expected:
        assert found == expected


# Under opentelemetry-instrument the exporters are OpenTelemetry's own and wait as long as they like.
@pytest.mark.parametrize("way", [way for way in WAYS if way != "opentelemetry-instrument"])
def test_B76_a_collector_that_is_down_does_not_hold_the_end_of_the_process(way: str) -> None:
    code = """
import time, requests
start = time.perf_counter()
for _ in range(3):
    try:
        requests.get("http://127.0.0.1:1/", timeout=1)
    except requests.RequestException as error:
        pass
print("calls took", time.perf_counter() - start)
"""
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    start = time.monotonic()
    done = WAYS[way](code, **endpoint)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 10  # a busy machine's start-up included; the bound of our own flush is 2 s


def test_the_variable_alone_loads_nothing_heavy_before_there_is_something_to_guard() -> None:
    done = python(
        "import sys\n"
        "before = {'pydantic', 'wrapt', 'ssl', 'asyncio', 'opentelemetry'} & sys.modules.keys()\n"
        "import requests\n"
        "print(sorted(before), hasattr(requests.Session.request, '__wrapped__'), 'pydantic' in sys.modules)",
        OTEL_BREAKER_ENABLED="true",
    )
    assert (done.stdout, done.stderr) == ("[] True True\n", "")


def test_the_variable_alone_reports_a_bad_setting_at_the_first_library_and_the_program_runs_on() -> None:
    done = python(
        "import requests; print(hasattr(requests.Session.request, '__wrapped__'))",
        OTEL_BREAKER_ENABLED="true",
        OTEL_BREAKER_COOLDOWN="-1",
    )
    assert done.stdout == "False\n"
    assert done.stderr.count("\n") == 1
    assert "OTEL_BREAKER_COOLDOWN" in done.stderr


def test_uninstrument_before_the_first_library_is_a_no() -> None:
    done = python(
        "import otel_breaker; otel_breaker.uninstrument()\nimport requests\n"
        "print(hasattr(requests.Session.request, '__wrapped__'))",
        OTEL_BREAKER_ENABLED="true",
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
