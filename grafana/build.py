"""Write the generated files: ``python -m grafana.build [--check] [--grafana-url URL]``, from the repository's root."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from grafana import _alerts, _dashboards, _rules

ROOT: Final = Path(__file__).resolve().parents[1]

SOURCES: Final[tuple[Callable[[str], dict[str, str]], ...]] = (_rules.outputs, _dashboards.outputs)
"""Functions of Grafana's address that give path -> text."""


def render(grafana_url: str = _alerts.GRAFANA_URL) -> dict[str, str]:
    """Every generated file: its path from the root, and its text."""
    return {path: text for source in SOURCES for path, text in source(grafana_url).items()}


def main(arguments: list[str] | None = None) -> int:
    """Write, or with ``--check`` only compare; 1 if a committed file differs."""
    parser = argparse.ArgumentParser(prog="python -m grafana.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs from the table")
    parser.add_argument("--grafana-url", default=_alerts.GRAFANA_URL, help="where alerts' links to dashboards lead")
    chosen = parser.parse_args(arguments)
    stale = False
    for path, text in render(chosen.grafana_url.rstrip("/")).items():
        target = ROOT / path
        if target.is_file() and target.read_text(encoding="utf-8") == text:
            continue
        stale = True
        sys.stdout.write(f"{path}\n")
        if not chosen.check:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    return int(stale and chosen.check)


if __name__ == "__main__":
    sys.exit(main())
