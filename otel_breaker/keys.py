"""Names of circuits and fingerprints of credentials: what may be printed, and nothing that must not be.

Standard library only. No function here raises.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import unquote

from ._fingerprints import credential_of, fingerprint, set_fingerprint_key
from .classify._headers import plain

__all__ = [
    "MAX_DEPENDENCY",
    "MAX_NAME",
    "CircuitKey",
    "credential_of",
    "dependency",
    "dependency_of_url",
    "display_safe",
    "fingerprint",
    "set_fingerprint_key",
    "tool_identity",
    "tool_name",
    "within",
]

MAX_DEPENDENCY: Final = 255
"""Characters of a dependency name."""
MAX_NAME: Final = 128
"""Characters of a name in metrics, events and logs."""

_URL: Final = re.compile(
    r"\s*([A-Za-z][A-Za-z0-9+.-]*)://(?:[^/?#\\]*@)?(\[[^\]/?#@]*\]|[^/?#\\:@]*)(?::(\d*))?(?=[/?#\\]|$)"
)
_UNIX_SCHEMES: Final = ("unix", "http+unix", "https+unix")
_HOST_AND_PORT: Final = re.compile(r"([^:]+):(\d+)")

_PORTS_LEFT_OUT: Final = (80, 443)


@dataclass(frozen=True, slots=True)
class CircuitKey:
    """What one circuit is kept under. Hashable; ``str()`` is safe to print.

    Attributes:
        dependency: what the circuit protects, as `dependency` or `tool_identity` name it.
        scope: the credential's fingerprint, or any other part that tells circuits of one dependency apart.
        role: ``availability``, or ``quota`` for throttles and pauses of one credential.
    """

    dependency: str
    scope: str = ""
    role: Literal["availability", "quota"] = "availability"

    def __str__(self) -> str:
        name = display_safe(self.dependency)
        return "".join(
            (
                name,
                f"#{display_safe(self.scope)}" if self.scope else "",
                "" if self.role == "availability" else f" ({self.role})",
            )
        )


def within(scope: str, part: str) -> str:
    """The scope of a circuit that is a part of another one's."""
    return f"{scope}/{part}" if scope else part


def dependency(host: str, port: int | str | None = None, scheme: str = "") -> str:
    """The name of a host as a dependency: ``host[:port]``, or ``unix:path``; empty when there is no host.

    Lower case, IDN as A-label, IPv6 compressed and in brackets, without ports 80 and 443 and without a trailing dot; at
    most 255 characters. User information, path and query that came with the host are dropped.
    """
    try:
        if type(host) is str and type(scheme) is str and (port is None or type(port) is int):
            return _dependency(host, port or None, scheme.lower())
        return _dependency(plain(host), int(port) if port else None, plain(scheme).lower())
    except Exception:  # neither a text nor a port: there is nothing that could be named
        return ""


@functools.lru_cache(maxsize=1024)
def _dependency(host: str, port: int | None, scheme: str) -> str:
    if scheme in _UNIX_SCHEMES:
        return _bounded(f"unix:{_printable(unquote(host))}", MAX_DEPENDENCY) if host else ""
    host = re.split(r"[/?#\\]", host.strip().partition("://")[2] or host.strip(), maxsplit=1)[0].rpartition("@")[2]
    if port is None and (both := _HOST_AND_PORT.fullmatch(host)):
        host, port = both[1], int(both[2])
    host = host.strip("[]").rstrip(".").lower()
    if not host:
        return ""
    if ":" in host:
        host = f"[{_compressed(host)}]"
    elif not host.isascii():
        host = _a_label(host)
    suffix = "" if port is None or port in _PORTS_LEFT_OUT else f":{port}"
    return _bounded(_printable(host) + suffix, MAX_DEPENDENCY)


def _compressed(host: str) -> str:
    import ipaddress  # rarely needed

    try:
        return str(ipaddress.ip_address(host)).lower()
    except ValueError:
        return host


def _a_label(host: str) -> str:
    try:
        return host.encode("idna").decode("ascii").rstrip(".")
    except UnicodeError:
        return host.encode("ascii", "backslashreplace").decode("ascii")


def dependency_of_url(url: str) -> str | None:
    """The dependency that a URL leads to; ``None`` when it names no host. Of the URL only host and port are kept."""
    try:
        text = plain(url)
        if text[:5].lower() == "unix:":
            return dependency("/" + text[5:].partition("?")[0].lstrip("/"), scheme="unix")
        found = _URL.match(text)
        return (dependency(found[2], found[3], found[1]) or None) if found else None
    except Exception:  # whatever was handed in
        return None


def tool_identity(fn: Callable[..., Any]) -> str:
    """``module.qualname`` of the function behind a tool, the same in every process that runs the same code.

    Partials and bound methods lead to their function, callable objects to their class; a lambda has its line added,
    since lambdas of one scope share a name.
    """
    try:
        inner = _innermost(fn)
        code = getattr(inner, "__code__", None)
        line = getattr(code, "co_firstlineno", None) if _own(inner, "__name__") == "<lambda>" else None
        named = inner if _own(inner, "__qualname__") else type(inner)
        module = _own(named, "__module__") or _own(type(inner), "__module__") or ""
        identity = f"{module}.{_own(named, '__qualname__')}" + (f":{line}" if line else "")
        return _bounded(_printable(identity), MAX_DEPENDENCY)
    except Exception:  # objects that answer to every name, or raise
        return "unknown"


def tool_name(fn: Callable[..., Any] | str) -> str:
    """The name under which a tool appears where nobody named it: that of its function or class. Never empty."""
    try:
        if isinstance(fn, str):
            return display_safe(fn)
        inner = _innermost(fn)
        return display_safe(_own(inner, "__name__") or type(inner).__name__)
    except Exception:  # objects that answer to every name, or raise
        return "unknown"


def _innermost(fn: Any) -> Any:
    for _ in range(8):
        if not isinstance(fn, (functools.partial, functools.partialmethod)):
            break
        fn = fn.func
    return fn


def _own(thing: Any, name: str) -> str | None:
    value = getattr(thing, name, None)
    return value if type(value) is str and value else None


_URL_USERINFO: Final = re.compile(r"(?<=://)[^/?#\s]*@")
_BARE_USERINFO: Final = re.compile(r"[^\s/?#:@]+:[^\s/?#@]*@")
_URL_TAIL: Final = re.compile(r"(?<=://)([^\s?#]*)[?#]\S*")
_BARE_QUERY: Final = re.compile(r"[?#&]\S*=\S*")


def display_safe(name: str) -> str:
    """``name`` as it may appear in metrics, events and logs: printable, at most 128 characters, never empty.

    What is not printable becomes ``_``. User information, query and fragment of URLs are removed. A name that had to be
    cut ends in a hash, so that two long ones stay apart.
    """
    try:
        text = plain(name)
    except TypeError:
        return "unknown"
    text = _URL_USERINFO.sub("", text)
    text = _BARE_USERINFO.sub("", text)
    text = _URL_TAIL.sub(r"\1", text)
    text = _BARE_QUERY.sub("", text)
    return _bounded(_printable(text).strip(), MAX_NAME) or "unknown"


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else "_" for c in text)


def _bounded(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit - 17]}~{hashlib.sha256(text.encode()).hexdigest()[:16]}"
