"""Pictures of both dashboards in docs/img: ``make preview``.

From the series of a played outage (tests/support/history.py), or with ``ARGS='--prometheus URL'`` from those of any
Prometheus. Needs node, npm and chromium; what npm brings goes to .tools/preview.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
HERE: Final = ROOT / "grafana/preview"
ROOM: Final = ROOT / ".tools/preview"


def main() -> int:
    """Build the page, ask Prometheus, take the pictures."""
    parser = argparse.ArgumentParser(prog="make preview", description=__doc__)
    parser.add_argument("--prometheus", metavar="URL", help="where the series are; default: a played outage")
    parser.add_argument("--end", type=float, help="end of the time range, seconds since 1970; default: now")
    parser.add_argument("--span", type=float, help="length of the time range, seconds; default: 3 hours, and one")
    parser.add_argument("--every", type=float, default=15, help="how often samples come, seconds; default: 15")
    parser.add_argument("--service", default="refund-agent", help="whose circuit the second picture shows")
    parser.add_argument("--circuit", default="mcp:crm", help="which circuit the second picture shows")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/img")
    chosen = parser.parse_args()
    for program in ("node", "npm", "chromium"):
        if shutil.which(program) is None:
            sys.stderr.write(f"make preview needs {program} (Debian: apt-get install nodejs npm chromium)\n")
            return 1
    _build()
    with _series(chosen.prometheus, chosen.end) as (url, end):
        wanted = {
            "dashboards": str(ROOT / "grafana/dashboards"),
            "out": str(chosen.out.resolve()),
            "prometheus": url,
            "end": end,
            "every": chosen.every,
            "shots": [
                {"dashboard": "overview", "span": chosen.span or 10800},
                {
                    "dashboard": "circuit",
                    "span": chosen.span or 3600,
                    "var-service": chosen.service,
                    "var-circuit": chosen.circuit,
                    "var-environment": "production",
                },
            ],
        }
        _run("node", "shoot.mjs", json.dumps(wanted))
    return 0


def _build() -> None:
    ROOM.mkdir(parents=True, exist_ok=True)
    lock = ROOM / "package-lock.json"
    before = lock.read_bytes() if lock.is_file() else b""
    shutil.copytree(HERE, ROOM, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    if before != lock.read_bytes() or not (ROOM / "node_modules").is_dir():
        # Not `npm ci`: it wants a package for Windows that the lock file cannot have everywhere.
        _run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts")
    _run("npx", "vite", "build", "--logLevel", "warn")


def _run(*command: str) -> None:
    subprocess.run(["nice", *command], cwd=ROOM, check=True)


@contextlib.contextmanager
def _series(prometheus: str | None, end: float | None) -> Iterator[tuple[str, float]]:
    if prometheus is not None:
        yield prometheus.rstrip("/"), time.time() if end is None else end
        return
    from tests.support import history, stack

    with tempfile.TemporaryDirectory() as folder:
        server = stack.Prometheus(Path(folder), rules=False, every="15s")
        played = history.play()
        history.write(played, server.room / "data")
        with server:
            yield server.url, played.now


if __name__ == "__main__":
    sys.exit(main())
