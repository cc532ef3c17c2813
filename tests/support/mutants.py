"""A dozen faults put into a copy of the package, one at a time, and the test that must notice each.

``python -m tests.support.mutants`` runs them all and prints the table of docs/contributing/mutants.md;
``--write`` puts it there. ``tests/test_mutants.py`` does the same in CI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/contributing/mutants.md"
SHORTLY: Final = 120.0
"""Seconds for one mutant; a hanging one is caught, too."""


@dataclass(frozen=True)
class Mutant:
    """One fault: in ``file``, ``before`` (which stands there once) becomes ``after``; ``test`` must fail."""

    what: str
    file: str
    before: str
    after: str
    test: str


PROPERTIES: Final = "tests/core/test_properties.py"
SMALL: Final = "tests/test_interleavings.py::test_every_interleaving[{}]"

MUTANTS: Final = (
    Mutant(
        "the lease ends a moment later than it says",
        "core/machine.py",
        "if isinstance(state, HalfOpen) and state.probing and now >= state.lapses:",
        "if isinstance(state, HalfOpen) and state.probing and now > state.lapses:",
        PROPERTIES,
    ),
    Mutant(
        "a Retry-After does not take the ladder one step on",
        "core/episodes.py",
        "    step = episode.step + 1\n",
        "    step = episode.step + (until_hint <= at)\n",
        PROPERTIES,
    ),
    Mutant(
        "a success ends no run of throttles",
        "core/machine.py",
        "throttles=state.throttles if charged else 0,",
        "throttles=state.throttles,",
        PROPERTIES,
    ),
    Mutant(
        "a neutral probe zeroes the run of successes",
        "core/machine.py",
        "    return moves.free(state, state.successes, state.episode, now)",
        "    return moves.free(state, 0, state.episode, now)",
        PROPERTIES,
    ),
    Mutant(
        "an answered probe does not move the next boundary",
        "core/episodes.py",
        "boundary=max(boundary, at + episode.cooldown)",
        "boundary=boundary",
        PROPERTIES,
    ),
    Mutant(
        "the state is read before the lock is taken",
        "circuit.py",
        "        with self._lock:\n            before = self._state\n",
        "        before = self._state\n        with self._lock:\n",
        SMALL.format("two want to be the probe"),
    ),
    Mutant(
        "listeners and telemetry are told under the lock",
        "circuit.py",
        "                self._count(effect)\n        told =",
        "                self._count(effect)\n"
        "            _effects.publish(self, effects, site, credential)\n"
        "        told =",
        SMALL.format("the first failure of two opens"),
    ),
    Mutant(
        "a credential's circuit that moves does not tell the dependency's",
        "circuit.py",
        "            if self.parent is not None:\n                self.parent.refresh()\n",
        "",
        SMALL.format("two quotas, one ends and one begins"),
    ),
    Mutant(
        "what the hot path reads is set outside the lock",
        "circuit.py",
        "    def refresh(self) -> None:\n"
        '        """A credential\'s circuit moved: look again at what the hot path reads."""\n'
        "        with self._lock:\n"
        "            self._refresh()\n",
        "    def refresh(self) -> None:\n"
        '        """A credential\'s circuit moved: look again at what the hot path reads."""\n'
        "        self._refresh()\n",
        SMALL.format("two quotas, one ends and one begins"),
    ),
    Mutant(
        "a stream's sign of life proves it, whoever closed the circuit",
        "_settling.py",
        "    if circuit.renew(permit):\n",
        "    if circuit.renew(permit) or (circuit.current != permit and circuit.state == 'closed'):\n",
        SMALL.format("reset while a probe streams"),
    ),
    Mutant(
        "a stream that has proven itself is counted again at its end",
        "_guard.py",
        "                and frame[PROBE] is not _settling.PROVEN\n",
        "",
        SMALL.format("a call beside a probe that streams"),
    ),
    Mutant(
        "a probe of the quota keeps its slot when the dependency refuses",
        "_settling.py",
        "        if held[2]:\n            held[0].settle(held[1], IGNORED)\n",
        "",
        SMALL.format("a quota ends while the host fails"),
    ),
)


def caught(mutant: Mutant) -> str | None:
    """The name of the test that fails with this fault in; ``None`` if it lives."""
    return None if passes([mutant.test], mutant) else mutant.test


def passes(tests: list[str], mutant: Mutant | None = None) -> bool:
    """Whether these tests pass in a copy of the package, with that fault in.

    Raises:
        ValueError: if the source no longer has what the fault changes.
        RuntimeError: if the tests did not run.
    """
    with tempfile.TemporaryDirectory() as room:
        copy = Path(room)
        keep = shutil.ignore_patterns("__pycache__", "_site")
        for folder in ("otel_breaker", "tests"):
            shutil.copytree(ROOT / folder, copy / folder, ignore=keep)
        shutil.copy(ROOT / "pyproject.toml", copy)
        if mutant is not None:
            target = copy / "otel_breaker" / mutant.file
            source = target.read_text()
            if source.count(mutant.before) != 1:
                raise ValueError(f"{mutant.file} no longer has what this mutant changes: {mutant.what}")
            target.write_text(source.replace(mutant.before, mutant.after))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no"]
        command += ["--hypothesis-profile=mutants"] * (PROPERTIES in tests)
        try:
            done = subprocess.run(
                [*command, *tests], cwd=copy, capture_output=True, text=True, timeout=SHORTLY, check=False,
                env={**os.environ, "PYTHONPATH": room},  # else a start-up file may load the real package
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stdout + done.stderr)
    return done.returncode == 0


def table(results: list[str | None]) -> str:
    """The results as the table of the page."""
    rows = ["| the fault | in | caught by |", "|---|---|---|"]
    for mutant, test in zip(MUTANTS, results, strict=True):
        rows.append(f"| {mutant.what} | `{mutant.file}` | {f'`{test}`' if test is not None else '**nothing**'} |")
    return "\n".join(rows)


def run() -> list[str | None]:
    """Try every mutant, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(caught, MUTANTS))


def main() -> int:
    """Print the table; with ``--write``, put it into the page."""
    results = run()
    print(table(results))
    if "--write" in sys.argv:
        head, _, rest = PAGE.read_text().partition("<!-- table -->")
        PAGE.write_text(f"{head}<!-- table -->\n{table(results)}\n<!-- end -->{rest.partition('<!-- end -->')[2]}")
    return int(None in results)


if __name__ == "__main__":
    sys.exit(main())
