"""Fingerprints of credentials: a secret goes in, a keyed and truncated hash comes out. `keys` exports them."""

from __future__ import annotations

import base64
import hmac
import os
import re
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

from otel_breaker.classify._headers import pairs, plain

_RANDOM: Final = os.urandom(32)


class _FingerprintKey:
    """The process's fingerprint key: random unless the settings name one."""

    value: bytes = _RANDOM


def set_fingerprint_key(key: bytes | None) -> None:
    """Use ``key`` for all further fingerprints, so that processes sharing it agree; ``None``: the random one."""
    _FingerprintKey.value = bytes(key) if key else _RANDOM


def fingerprint(scheme: str, secret: str | bytes) -> str:
    """16 hexadecimal digits that stand for a credential: an HMAC-SHA256 under the process's key, cut to 64 bits."""
    raw = secret if isinstance(secret, bytes) else str(secret).encode("utf-8", "surrogatepass")
    return hmac.digest(_FingerprintKey.value, scheme.encode() + b"\0" + raw, "sha256")[:8].hex()


_HEADERS: Final = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "private-token", "cookie")
_CREDENTIAL_HEADERS: Final = frozenset(_HEADERS)
_QUERY: Final = frozenset({"key", "api_key", "apikey", "access_token", "token", "sig", "x-amz-credential"})
_SIGV4: Final = re.compile(r"AWS4-\S+\s.*?Credential=([^/,\s]+)", re.IGNORECASE)
_SIGNED_SCHEMES: Final = ("digest", "oauth", "hawk", "signature")
_LASTING_PARAMETER: Final = re.compile(r'\b(username|oauth_consumer_key|oauth_token|id|keyid)="([^"]*)"', re.IGNORECASE)
_CHANGING_SCHEMES: Final = ("negotiate", "ntlm")
_USERINFO: Final = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://([^/?#\\]*)@")
_SESSION_COOKIE: Final = re.compile(r"^(?!.*[cx]srf).*(?:sess|auth|token)|^(?:connect\.)?sid$", re.IGNORECASE)


def credential_of(headers: Any, url: str | None = None) -> str | None:
    """The fingerprint of the credential that a request shows; ``None`` when it shows none.

    First hit wins: ``Authorization`` (of an AWS signature the access key id alone, of other signatures what does not
    change from call to call), ``x-api-key``, ``api-key``, ``x-goog-api-key``, ``private-token``, a key in the query,
    user information in the URL (the same as the Basic header made of it), cookies with session-like names. An AWS
    session token is not looked at: its access key id stands for it.

    Args:
        headers: a mapping or (name, value) pairs, any case, text or bytes.
        url: the request's URL; ``None`` if unknown.
    """
    try:
        shown = _shown(headers)
        for name in _HEADERS[:-1]:
            if (value := shown.get(name)) and (found := _of_header(name, value)) is not None:
                return found
        if url is not None and (found := _of_url(plain(url))) is not None:
            return found
        return _of_cookies(shown["cookie"]) if "cookie" in shown else None
    except Exception:
        return None


def _shown(headers: Any) -> dict[str, str]:
    found = {}
    for key, value in pairs(headers):
        try:
            name = (key if type(key) is str else plain(key)).lower()
            if name in _CREDENTIAL_HEADERS:
                found[name] = plain(value).strip()
        except TypeError:
            continue
    return found


def _of_header(name: str, value: str) -> str | None:
    if name != "authorization":
        return fingerprint(name, value)
    scheme, _, token = value.partition(" ")
    if not token:
        return fingerprint("", value)
    scheme = scheme.lower()
    if scheme == "bearer":
        return fingerprint(scheme, token.strip())
    if (signed := _SIGV4.match(value)) is not None:
        return fingerprint("aws", signed[1])
    if scheme in _CHANGING_SCHEMES:
        return None
    if scheme in _SIGNED_SCHEMES:
        lasting = "\0".join(f"{k.lower()}={v}" for k, v in _LASTING_PARAMETER.findall(token))
        return fingerprint(scheme, lasting) if lasting else None
    return fingerprint(scheme, token.strip())


def _of_url(url: str) -> str | None:
    query = url.partition("#")[0].partition("?")[2]
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        name = unquote_plus(name).lower()
        if value and name in _QUERY:
            value = unquote_plus(value)
            return (
                fingerprint("aws", value.partition("/")[0]) if name == "x-amz-credential" else fingerprint(name, value)
            )
    if (userinfo := _USERINFO.match(url)) is not None and userinfo[1] not in ("", ":"):
        user, _, password = userinfo[1].partition(":")
        basic = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
        return fingerprint("basic", basic)
    return None


def _of_cookies(header: str) -> str | None:
    cookies = sorted(c for part in header.split(";") if _SESSION_COOKIE.search((c := part.strip()).partition("=")[0]))
    return fingerprint("cookie", "; ".join(cookies)) if cookies else None
