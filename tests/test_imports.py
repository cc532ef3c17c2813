"""What may import what: the core is pure, and importing the package costs nothing."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import otel_breaker
from tests.support.python import last_json, python

PACKAGE = Path(otel_breaker.__file__).parent
PURE = [*sorted((PACKAGE / "core").glob("*.py")), PACKAGE / "outcomes.py"]

EFFECTS = {"socket", "ssl", "threading", "asyncio", "logging", "os", "subprocess", "sqlite3", "contextvars"}
"""Parts of the standard library that the core has no business with."""


def imported(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports."""
    package = ["otel_breaker", *path.relative_to(PACKAGE).parent.parts]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module} if node.module else {f"{module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.name)
def test_the_core_imports_only_itself_and_the_standard_library(path: Path) -> None:
    for name in imported(path):
        top = name.partition(".")[0]
        if top == "otel_breaker":
            assert name.startswith(("otel_breaker.core", "otel_breaker.outcomes")), name
        else:
            assert top in sys.stdlib_module_names, name
            assert top not in EFFECTS, name


@pytest.mark.parametrize("part", ["classify", "keys.py", "_startup.py", "_settings_values.py"])
def test_these_need_only_the_standard_library(part: str) -> None:
    path = PACKAGE / part
    for file in [path] if path.is_file() else path.glob("*.py"):
        tops = {name.partition(".")[0] for name in imported(file)}
        assert tops <= sys.stdlib_module_names | {"otel_breaker"}, file


THIRD_PARTY = """
import json, sys
before = set(sys.modules)
{code}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(json.dumps(sorted(new - sys.stdlib_module_names - {{"otel_breaker"}})))
"""


@pytest.mark.parametrize(
    "code", ["import otel_breaker", "import otel_breaker; otel_breaker.__version__; dir(otel_breaker)"]
)
def test_importing_the_package_loads_nothing_of_others(code: str) -> None:
    assert last_json(python(THIRD_PARTY.format(code=code))) == []


@pytest.mark.parametrize("name", otel_breaker.__all__)
def test_every_public_name_is_there(name: str) -> None:
    code = f"import json, otel_breaker; print(json.dumps(otel_breaker.{name} is not None))"
    assert last_json(python(code)) is True
