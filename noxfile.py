"""The version matrix: ``make matrix``, or ``nox --list`` and ``nox -s NAME``. Environments lie in .nox and are kept.

A session whose interpreter is not here says so and is skipped; in CI that is a failure where `.ci/newest-python` should
have brought it.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"

BETWEEN = ("3.12", "3.13", "3.14")
NEWEST = "3.15"

MCP = {
    "1.22.0": [
        "--deselect=tests/instrumentations/test_mcp_errors.py::test_streamable_http[SSE cut and resumed]",  # does not
        "--deselect=tests/instrumentations/test_mcp_errors.py::test_streamable_http[redirect]",  # its client follows it
    ],
    "1.30.*": [],
}
"""The oldest that is supported, and the last of the first line, with what they do otherwise. The second line is in the
main environment."""

FLOORS = (
    *(f"opentelemetry-{part}==1.39.0" for part in ("api", "exporter-otlp", "sdk")),
    *(
        f"opentelemetry-{part}==0.60b0"
        for part in ("distro", "exporter-prometheus", "instrumentation", "instrumentation-httpx")
    ),
    "opentelemetry-instrumentation-requests==0.60b0",
    "httpx==0.27.0",
    "requests==2.31.0",
    "wrapt==1.16.0",
)
"""The oldest of everything that the package stands on."""

# What depends on the interpreter, on OpenTelemetry and on wrapt. ``-- tests`` runs all there is.
PARTS = [
    *(f"tests/instrumentations/test_{name}.py" for name in ("http_clients", "httpx", "httpx2", "ordering", "patch")),
    *(f"tests/instrumentations/test_{name}.py" for name in ("requests", "retry_after")),
    "tests/telemetry",
    *(f"tests/test_{name}.py" for name in ("activate", "circuit", "claims", "cli", "forking", "hot_path", "imports")),
    *sorted(glob.glob("tests/test_guard_*.py")),
    *(f"tests/test_{name}.py" for name in ("nesting", "packaging", "probe", "quota", "testing", "threads")),
]
TOOLS = sorted(
    glob.glob("tests/instrumentations/test_mcp*.py") + glob.glob("tests/instrumentations/test_langchain*.py")
)
LANGCHAIN = [
    file
    for file in sorted(glob.glob("tests/**/test_*.py", recursive=True))
    if re.search(r"^(from|import) lang(chain|graph)", Path(file).read_text(encoding="utf-8"), re.MULTILINE)
]


def _free_threaded() -> str | None:
    """A free-threaded CPython on the path."""
    for name in ("python3.15t", "python3.14t", "python3.13t"):
        if (found := shutil.which(name)) is not None:
            return found
    return None


def _interpreter(version: str) -> str | None:
    """Where that CPython is: what `.ci/newest-python` brought, the path, pyenv."""
    brought = Path(__file__).parent / ".nox" / "interpreters" / f"python{version}" / "usr" / "bin" / f"python{version}"
    if brought.exists():
        return str(brought)
    if (found := shutil.which(f"python{version}")) is not None and _runs(found):
        return found
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    return next((str(one) for one in sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True)), None)


def _runs(interpreter: str) -> bool:
    """Whether it is one: pyenv puts a file of that name on the path for versions that are not switched on, too."""
    return subprocess.run([interpreter, "-c", ""], capture_output=True, check=False).returncode == 0


def _test(
    session: nox.Session,
    *tests: str,
    options: tuple[str, ...] = (),
    pins: tuple[str, ...] = (),
    langchain: bool = True,
) -> None:
    tests = (*(session.posargs or tests), *options)
    wanted = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["test"]
    if not langchain:
        wanted = [one for one in wanted if not one.startswith(("langchain", "langgraph"))]
        ignored = (f"--ignore={file}" for file in LANGCHAIN)  # which does nothing for one that is named
        tests = (*(one for one in tests if one not in LANGCHAIN), *ignored, "-k", "not langchain")
    session.install("--quiet", "--editable", ".", *wanted, *pins)
    session.run("python", "-m", "pytest", "--quiet", *tests)


@nox.session(python=sys.executable)
def floors(session: nox.Session) -> None:
    """The oldest OpenTelemetry, wrapt and clients that are supported."""
    _test(session, *PARTS, pins=FLOORS)


@nox.session(python=sys.executable)
@nox.parametrize("mcp", list(MCP))
def tools(session: nox.Session, mcp: str) -> None:
    """The first line of the MCP SDK, by itself and under LangChain."""
    if not TOOLS:
        session.skip("no tests of MCP or LangChain yet")
    # pydantic-settings says so of the servers of the first line.
    warned = "-Wignore:Field 'lifespan' has an incomplete definition"
    _test(session, *TOOLS, "tests/test_claims.py", options=(warned, *MCP[mcp]), pins=(f"mcp=={mcp}",))


@nox.session(python=sys.executable)
def at_once(session: nox.Session) -> None:
    """This interpreter, with the choices of a free-threaded build."""
    _test(session, *PARTS, options=("-p", "tests.support.at_once"))


def _cpython(
    name: str,
    why: str,
    interpreter: str | None,
    *tests: str,
    brought: bool = False,
    langchain: bool = True,
) -> None:
    """A session for one more interpreter. ``brought``: CI's install step should have brought it."""

    def run(session: nox.Session) -> None:
        if interpreter is not None:
            # langsmith, which LangChain brings, asks in the old way from 3.14 on.
            warned = "-Wignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning"
            _test(session, *tests, options=(warned,), langchain=langchain)
        elif brought and os.environ.get("CI"):
            session.error(f"{name} is not here, though .ci/newest-python should have brought it")
        else:
            session.skip(f"{name} is not here: {why}")

    run.__doc__ = f"CPython: {interpreter or 'not here'}."
    nox.session(run, name=name, python=interpreter or False)


for version in BETWEEN:
    _cpython(f"python{version}", "put one on the path, or into pyenv", _interpreter(version), *PARTS)
_cpython(
    f"python{NEWEST}",
    "run .ci/newest-python on Debian, or put one on the path",
    _interpreter(NEWEST),
    *PARTS,
    "tests/processes",
    brought=Path("/etc/debian_version").exists(),
    langchain=False,  # it needs zstandard, which has no wheel for 3.15
)
_cpython("free-threaded", "put a python3.13t or newer on the path", _free_threaded(), *PARTS, langchain=False)
