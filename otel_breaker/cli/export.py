"""`otel-breaker export WHAT DIR`: the bundled dashboards, rules, Collector files, or all of it with compose."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_GRAFANA_URL: Final = "http://localhost:3000"
"""Where the bundled alerts look for the dashboards."""

_FOLDERS: Final = ("alertmanager", "fragments", "prometheus", "stack")

# What is written: (folder or file of the bundle, where in DIR), and what to do next.
_WHAT: Final[dict[str, tuple[str, tuple[tuple[str, str], ...], str]]] = {
    "dashboards": (
        "Grafana's dashboards, and a file that provisions them",
        (("grafana/dashboards", "."), ("grafana/provisioning", "provisioning")),
        "In Grafana: Dashboards > New > Import. Or mount them as provisioning/dashboards.yaml says.",
    ),
    "rules": (
        "alert rules for Prometheus and for Grafana, and the Alertmanager's routing",
        (
            ("collector-config/prometheus/otel-breaker.rules.yml", "prometheus"),
            ("collector-config/prometheus/otel-breaker.rules.test.yml", "prometheus"),
            ("collector-config/alertmanager", "alertmanager"),
            ("grafana/alerting", "grafana"),
        ),
        "Load prometheus/otel-breaker.rules.yml, route as in alertmanager/. grafana/: only without an Alertmanager.",
    ),
    "collector": (
        "the Collector's configuration and its fragments",
        (
            ("collector-config/otelcol.yaml", "."),
            ("collector-config/fragments", "fragments"),
        ),
        "Run it with otelcol-contrib --config=otelcol.yaml.",
    ),
    "compose": (
        "all of it: Collector, Prometheus, Alertmanager and Grafana in containers",
        (
            *((f"collector-config/{one}", f"collector-config/{one}") for one in _FOLDERS),
            ("collector-config/compose.yaml", "collector-config"),
            ("collector-config/otelcol.yaml", "collector-config"),
            ("grafana/dashboards", "grafana/dashboards"),
            ("grafana/provisioning", "grafana/provisioning"),
            ("grafana/alerting", "grafana/alerting"),
        ),
        "Run it with PAGERDUTY_ROUTING_KEY=... docker compose -f collector-config/compose.yaml up",
    ),
}


def add(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "export",
        help="write the bundled dashboards, rules and configurations to a folder",
        description="Exit status 0: written, or already there; 1: nothing was written, and one line says why.",
    )
    parser.add_argument("what", choices=_WHAT, help="; ".join(f"{name}: {row[0]}" for name, row in _WHAT.items()))
    parser.add_argument("folder", metavar="DIR", help="where to write; made if it is not there")
    parser.add_argument("--force", action="store_true", help="write over files that have another content")
    parser.add_argument("--grafana-url", metavar="URL", help=f"where alerts link to, in place of {_GRAFANA_URL}")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the files, or none."""
    # Loaded here: the other subcommands do without it.
    import json

    folder = Path(arguments.folder)
    try:
        wanted = dict(_files(arguments.what, arguments.grafana_url))
        written, same = _write(folder, wanted, arguments.force)
        error = None
    except _ExportError as refused:
        written, same, error = [], [], str(refused)
    except OSError as fault:
        written, same, error = [], [], f"cannot write to {folder}: {fault.strerror}: {fault.filename}"
    if arguments.json:
        print(json.dumps({"folder": str(folder), "written": written, "unchanged": same, "error": error}))
    elif error is not None:
        print(f"otel-breaker: {error}", file=sys.stderr)
    else:
        for name in written:
            print(folder / name)
        print(f"{len(written)} written, {len(same)} already there. {_WHAT[arguments.what][2]}")
    return 0 if error is None else 1


class _ExportError(Exception):
    """Nothing is written; the text says why."""


def _share() -> Path:
    """The bundle: beside the package in a wheel, the repository itself in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for root in (package / "share", package.parent):
        if (root / "collector-config" / "otelcol.yaml").is_file() and (root / "grafana" / "dashboards").is_dir():
            return root
    raise _ExportError(f"this installation has no bundled files: neither in {package / 'share'} nor beside the package")


def _files(what: str, grafana_url: str | None) -> Iterator[tuple[str, bytes]]:
    """Path in the folder -> content."""
    share = _share()
    for source, target in _WHAT[what][1]:
        root = share / source
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                inside = path.name if root.is_file() else path.relative_to(root).as_posix()
                content = path.read_bytes()
                if grafana_url is not None:
                    content = content.replace(_GRAFANA_URL.encode(), grafana_url.rstrip("/").encode())
                yield (Path(target) / inside).as_posix(), content


def _write(folder: Path, wanted: dict[str, bytes], force: bool) -> tuple[list[str], list[str]]:
    """All files or none: what was written, and what was there already."""
    same, other = [], []
    for name, content in wanted.items():
        target = folder / name
        for parent in target.relative_to(folder).parents:
            if (folder / parent).exists() and not (folder / parent).is_dir():
                raise _ExportError(f"{folder / parent} is not a folder")
        if target.is_file() and target.read_bytes() == content:
            same.append(name)
        elif target.exists():
            if target.is_dir():
                raise _ExportError(f"{target} is a folder")
            other.append(name)
    if other and not force:
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        raise _ExportError(f"{folder / other[0]}{more} is there with another content: --force writes over it")
    written = [name for name in wanted if name not in same]
    for name in written:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(wanted[name])
    return written, same
