"""What `doctor` finds out: plain data, ready for JSON. Nothing is patched, sent or connected to."""

from __future__ import annotations

import os
import site
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from otel_breaker import activate, settings
from otel_breaker._startup import VARIABLE
from otel_breaker._version import __version__
from otel_breaker.core.policy import NAMED
from otel_breaker.instrumentations import _patch
from otel_breaker.telemetry import wanted

START_UP_FILE: Final = "otel_breaker.start" if sys.version_info >= (3, 15) else "otel_breaker.pth"

NOT_COVERED: Final = (
    "python -S, frozen programs, zipapps, a folder on PYTHONPATH have no start-up file: call otel_breaker.instrument()",
    "libraries that the table above does not name: put @otel_breaker.guard on the tool",
    "calls inside opentelemetry's suppress_instrumentation(): they pass unguarded and uncounted",
    "child processes that do not inherit the environment",
)


def collect() -> dict[str, Any]:
    """Everything, with the checks that passed and failed under ``checks``."""
    chosen, error = _settings()
    libraries = _libraries(chosen)
    start_up, entry_point = _start_up_file(), _entry_point()
    outside = [row for row in libraries if row["status"] == "unsupported version"]
    checks = [
        _check("settings", error is None, error or "valid"),
        _check("start-up file", start_up is not None, start_up or f"{START_UP_FILE} is in no site-packages folder"),
        _check(
            "entry point",
            entry_point,
            "opentelemetry-instrument " + ("finds it" if entry_point else "does not find it"),
        ),
        _check(
            "libraries",
            not outside,
            "; ".join(f"{row['library']} {row['version']} is not guarded" for row in outside)
            or "all in supported versions",
        ),
    ]
    return {
        "version": __version__,
        "python": {"version": ".".join(map(str, sys.version_info[:3])), "executable": sys.executable},
        "checks": checks,
        "activation": {
            "variable": os.environ.get(VARIABLE) or None,
            "start_up_file": start_up,
            "entry_point": entry_point,
            "switched_off_by": activate.off_by_environment(),
        },
        "settings": _shown(chosen) if chosen else None,
        "libraries": libraries,
        "telemetry": {signal: _destination(signal) for signal in wanted.SIGNALS},
        "not_covered": list(NOT_COVERED),
    }


def _check(name: str, passed: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "passed": passed, "detail": detail}


def _settings() -> tuple[settings.Settings | None, str | None]:
    try:
        return settings.load(), None
    except settings.SettingsError as error:
        return None, str(error)


def _shown(chosen: settings.Settings) -> dict[str, Any]:
    """The settings that matter here; the key itself is never among them."""
    return {
        "file": os.environ.get("OTEL_BREAKER_CONFIG") or None,
        "mode": chosen.mode,
        "store": chosen.store,
        "events": chosen.events,
        "spans": chosen.spans,
        "scope": chosen.scope,
        "exclude": [*chosen.exclude, *chosen.excluded_urls],
        "rules": len(chosen.circuits),
        "policies": {name: asdict(chosen.policy(name)) for name in (*NAMED, *chosen.classes)},
    }


def _libraries(chosen: settings.Settings | None) -> list[dict[str, Any]]:
    return [
        {
            "library": row.library,
            "version": row.version,
            "supported": row.versions,
            "status": _status(row, chosen is None or chosen.wants(row.library)),
        }
        for row in _patch.report()
    ]


def _status(row: _patch.Report, wanted: bool) -> str:
    if row.version is None:
        return "not installed"
    if not wanted:
        return "switched off by settings"
    return "guarded" if row.supported else "unsupported version"


def _start_up_file() -> str | None:
    """Where Python finds our start-up file."""
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return next((str(found) for folder in folders if (found := Path(folder, START_UP_FILE)).is_file()), None)


def _entry_point() -> bool:
    return bool(metadata.entry_points(group="opentelemetry_instrumentor", name="otel_breaker"))


def _destination(signal: wanted.Signal) -> str:
    """Where this signal goes if the program sets no provider of its own."""
    if not wanted.wanted(signal):
        return "nowhere, unless the program sets a provider"
    if path := os.environ.get("OTEL_CONFIG_FILE"):
        return f"as {path} says"
    chosen = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() or "otlp"
    if "otlp" not in chosen:
        return chosen
    prefix = "OTEL_EXPORTER_OTLP_"
    protocol = os.environ.get(f"{prefix}{signal.upper()}_PROTOCOL") or os.environ.get(f"{prefix}PROTOCOL") or "grpc"
    default = "http://localhost:" + ("4318" if protocol.startswith("http") else "4317")
    endpoint = os.environ.get(f"{prefix}{signal.upper()}_ENDPOINT") or os.environ.get(f"{prefix}ENDPOINT") or default
    return f"{chosen} to {_host(endpoint)}"


def _host(endpoint: str) -> str:
    """Scheme, host and port: user, password, path and query may hold a token."""
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an endpoint that is not a URL"
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}{port}" if parts.scheme else f"{name}{port}"
