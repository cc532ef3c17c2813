from __future__ import annotations

import base64
import functools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import httpx
import pytest
import requests

from otel_breaker import keys
from otel_breaker.keys import (
    CircuitKey,
    credential_of,
    dependency,
    dependency_of_url,
    display_safe,
    fingerprint,
    tool_identity,
    tool_name,
)


@pytest.fixture(autouse=True)
def _random_key_again() -> Iterator[None]:
    yield
    keys.set_fingerprint_key(None)


@pytest.mark.parametrize(
    ("host", "port", "name"),
    [
        ("api.stripe.com", None, "api.stripe.com"),
        ("API.Stripe.COM.", None, "api.stripe.com"),
        ("api.stripe.com", 443, "api.stripe.com"),
        ("api.stripe.com", 80, "api.stripe.com"),
        ("api.stripe.com", 8443, "api.stripe.com:8443"),
        ("api.stripe.com", "8443", "api.stripe.com:8443"),
        ("api.stripe.com:8443", None, "api.stripe.com:8443"),
        ("api.stripe.com:443", None, "api.stripe.com"),
        ("127.0.0.1", 9000, "127.0.0.1:9000"),
        ("::1", 9000, "[::1]:9000"),
        ("[::1]", None, "[::1]"),
        ("2001:DB8:0:0:0:0:0:1", 443, "[2001:db8::1]"),
        ("bücher.example", None, "xn--bcher-kva.example"),
        ("BÜCHER.example", 8080, "xn--bcher-kva.example:8080"),
        ("xn--bcher-kva.example", None, "xn--bcher-kva.example"),
        (b"api.stripe.com", None, "api.stripe.com"),
        ("", None, ""),
        (".", None, ""),
        (None, None, ""),
        ("h", "no port", ""),
        ([], None, ""),
        ("user:pw@host.example/p?api_key=S3CRET#f", None, "host.example"),
        ("https://user:pw@host.example/p", None, "host.example"),
    ],
)
def test_B74_dependency_of_a_host(host: Any, port: Any, name: str) -> None:
    assert dependency(host, port) == name


def test_a_unix_socket_is_named_by_its_path() -> None:
    assert dependency("/run/docker.sock", scheme="unix") == "unix:/run/docker.sock"
    assert dependency("%2Frun%2Fdocker.sock", scheme="http+unix") == "unix:/run/docker.sock"
    assert dependency_of_url("http+unix://%2Frun%2Fdocker.sock/v1/info?x=1") == "unix:/run/docker.sock"
    assert dependency_of_url("unix:/run/x.sock") == "unix:/run/x.sock"
    assert dependency_of_url("unix:///run/x.sock") == "unix:/run/x.sock"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.stripe.com/v1/refunds", "api.stripe.com"),
        ("https://api.stripe.com", "api.stripe.com"),
        ("https://api.stripe.com?x=1", "api.stripe.com"),
        ("https://api.stripe.com#x", "api.stripe.com"),
        ("HTTPS://API.STRIPE.COM:443/", "api.stripe.com"),
        ("http://h:80/", "h"),
        ("http://h:8080/", "h:8080"),
        ("http://h:/", "h"),
        ("ws://h:8080/", "h:8080"),
        ("redis://:pw@h:6379/0", "h:6379"),
        ("http://[::1]:8080/p", "[::1]:8080"),
        ("http://[2001:db8::1]/p", "[2001:db8::1]"),
        ("https://user:pw@host/p?api_key=S3CRET&X-Amz-Signature=S3CRET#S3CRET", "host"),
        ("https://user:p@w@host/p", "host"),
        ("https://host\\@evil.example/", "host"),
        (" https://h/ ", "h"),
        (b"https://h/", "h"),
        ("https:///p", None),
        ("api.stripe.com/v1", None),
        ("mailto:user@h", None),
        ("/p?x=https://h/", None),
        ("http://h:port/", None),
        ("http://[::1/", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_B122_dependency_of_a_url_keeps_host_and_port_alone(url: Any, name: str | None) -> None:
    assert dependency_of_url(url) == name


def test_B74_paths_queries_and_ids_of_one_host_are_one_dependency() -> None:
    urls = (f"https://u{i}:p{i}@h.example/users/{i}?id={i}&token=t{i}#f{i}" for i in range(10_000))
    assert {dependency_of_url(url) for url in urls} == {"h.example"}


def test_B74_long_hosts_are_cut_and_stay_apart() -> None:
    first, second = dependency("a" * 300 + ".example"), dependency("a" * 301 + ".example")
    assert len(first) == len(second) == 255
    assert first != second
    assert first == dependency("a" * 300 + ".example")


def test_a_key_is_hashable_comparable_and_safe_to_print() -> None:
    key = CircuitKey("api.stripe.com", "0123456789abcdef", "quota")
    assert key == CircuitKey("api.stripe.com", "0123456789abcdef", "quota")
    assert len({key, CircuitKey("api.stripe.com"), CircuitKey("api.stripe.com", "", "availability")}) == 2
    assert str(key) == "api.stripe.com#0123456789abcdef (quota)"
    assert str(CircuitKey("api.stripe.com")) == "api.stripe.com"
    assert "\n" not in str(CircuitKey("a\nb", "c\x1bd"))
    assert pickle.loads(pickle.dumps(key)) == key
    with pytest.raises(AttributeError):
        key.scope = "x"


def test_B122_a_fingerprint_is_short_stable_keyed_and_hides_its_input() -> None:
    print_ = fingerprint("bearer", "S3CRET")
    assert len(print_) == 16
    assert int(print_, 16) >= 0
    assert print_ == fingerprint("bearer", b"S3CRET")
    assert print_ != fingerprint("basic", "S3CRET")
    assert fingerprint("bearer", "S3CRET2") != print_
    keys.set_fingerprint_key(b"another")
    assert fingerprint("bearer", "S3CRET") != print_
    keys.set_fingerprint_key(None)
    assert fingerprint("bearer", "S3CRET") == print_


def test_processes_agree_on_fingerprints_only_when_they_share_a_key() -> None:
    script = "from otel_breaker import keys; {}print(keys.fingerprint('bearer', 'S3CRET'))"
    runs = [script.format("")] * 2 + [script.format("keys.set_fingerprint_key(b'k' * 32);")] * 2
    one, two, three, four = (
        subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True).stdout for run in runs
    )
    assert one != two
    assert three == four
    keys.set_fingerprint_key(b"k" * 32)
    assert three.strip() == fingerprint("bearer", "S3CRET")


BASIC = "Basic " + base64.b64encode(b"user:p@w").decode()
SIGV4 = "AWS4-HMAC-SHA256 Credential=AKIA1/{}/us-east-1/s3/aws4_request, SignedHeaders=host, Signature={}"
DIGEST = 'Digest username="ann", realm="r", nonce="{0}", uri="/", response="{0}"'
OAUTH = 'OAuth oauth_consumer_key="ck", oauth_token="tk", oauth_nonce="{0}", oauth_signature="{0}"'


@pytest.mark.parametrize(
    ("headers", "url", "scheme", "secret"),
    [
        ({"Authorization": "Bearer sk-1"}, None, "bearer", "sk-1"),
        ({"authorization": "bearer   sk-1 "}, None, "bearer", "sk-1"),
        ({b"Authorization": b"Bearer sk-1"}, None, "bearer", "sk-1"),
        ([("AUTHORIZATION", "Bearer sk-1")], None, "bearer", "sk-1"),
        ({"Authorization": "sk-1"}, None, "", "sk-1"),
        ({"Authorization": BASIC}, None, "basic", BASIC.split()[1]),
        ({}, "https://user:p%40w@h/", "basic", BASIC.split()[1]),
        ({"Authorization": SIGV4.format("20261130", "aa")}, None, "aws", "AKIA1"),
        ({"Authorization": SIGV4.format("20261201", "bb"), "x-amz-security-token": "t"}, None, "aws", "AKIA1"),
        (None, "https://h/?X-Amz-Credential=AKIA1%2F20261130%2Fus-east-1&X-Amz-Signature=aa", "aws", "AKIA1"),
        ({"x-api-key": "k1", "api-key": "k2"}, None, "x-api-key", "k1"),
        ({"api-key": "k2", "x-goog-api-key": "k3"}, None, "api-key", "k2"),
        ({"x-goog-api-key": "k3"}, "https://h/?key=k4", "x-goog-api-key", "k3"),
        ({"Private-Token": "k5"}, None, "private-token", "k5"),
        ({"x-api-key": "k1", "Authorization": "Bearer sk-1"}, None, "bearer", "sk-1"),
        ({"Authorization": "", "x-api-key": "k1"}, None, "x-api-key", "k1"),
        ({}, "https://h/p?q=1&KEY=k%2B4#key=no", "key", "k+4"),
        ({"Cookie": "session=s1"}, "https://u:p@h/?api_key=k6", "api_key", "k6"),
    ],
)
def test_B122_credentials_are_found_in_order(headers: Any, url: str | None, scheme: str, secret: str) -> None:
    assert credential_of(headers, url) == fingerprint(scheme, secret)


@pytest.mark.parametrize("template", [DIGEST, OAUTH])
def test_what_changes_from_call_to_call_is_left_out(template: str) -> None:
    first = credential_of({"Authorization": template.format("1")}, None)
    assert first == credential_of({"Authorization": template.format("2")}, None)
    assert first is not None
    assert first != credential_of(
        {"Authorization": template.format("1").replace("ann", "bob").replace("tk", "tl")}, None
    )


@pytest.mark.parametrize(
    ("headers", "url"),
    [
        ({}, None),
        (None, None),
        ({}, "https://h/p?q=1"),
        ({}, "https://h/p?key="),
        ({}, "https://:@h/"),
        ({}, "https://@h/"),
        ({"Cookie": "theme=dark; csrftoken=x"}, None),
        ({"Authorization": "Negotiate abc"}, None),
        ({"Authorization": "Digest realm"}, None),
        ({"x-amz-security-token": "t"}, None),
        ({"X-Api-Key": None, 7: 7}, None),
        ("weird", None),
        (object(), 7),
    ],
)
def test_no_credential(headers: Any, url: Any) -> None:
    assert credential_of(headers, url) is None


def test_cookies_count_where_their_names_are_those_of_sessions() -> None:
    first = credential_of({"Cookie": "theme=dark; sessionid=s1; sid=2"}, None)
    assert first is not None
    assert first == credential_of({"cookie": "sid=2;sessionid=s1;theme=light"}, None)
    assert first != credential_of({"cookie": "sid=2; sessionid=s2"}, None)


def test_real_header_collections_are_read() -> None:
    assert credential_of(httpx.Headers({"Authorization": "Bearer sk-1"}), None) == fingerprint("bearer", "sk-1")
    prepared = requests.Request("GET", "https://h/", auth=("user", "p@w")).prepare()
    assert credential_of(prepared.headers, prepared.url) == credential_of({}, "https://user:p%40w@h/")


def function() -> None: ...


class Tool:
    def method(self) -> None: ...

    def __call__(self) -> None: ...

    @classmethod
    def made(cls) -> None: ...


def factory() -> Any:
    def inner() -> None: ...

    return inner


first_lambda = lambda: 1  # noqa: E731
other_lambda = lambda: 2  # noqa: E731

HERE = function.__module__


@pytest.mark.parametrize(
    ("fn", "identity", "name"),
    [
        (function, f"{HERE}.function", "function"),
        (functools.partial(function), f"{HERE}.function", "function"),
        (functools.partial(functools.partial(function)), f"{HERE}.function", "function"),
        (Tool().method, f"{HERE}.Tool.method", "method"),
        (Tool.made, f"{HERE}.Tool.made", "made"),
        (Tool(), f"{HERE}.Tool", "Tool"),
        (Tool, f"{HERE}.Tool", "Tool"),
        (factory(), f"{HERE}.factory.<locals>.inner", "inner"),
        (len, "builtins.len", "len"),
        (first_lambda, f"{HERE}.<lambda>:{first_lambda.__code__.co_firstlineno}", "<lambda>"),
        (mock.MagicMock(), "unittest.mock.MagicMock", "MagicMock"),
    ],
)
def test_tools_are_named_by_their_code(fn: Any, identity: str, name: str) -> None:
    assert tool_identity(fn) == identity
    assert tool_name(fn) == name


def test_two_from_one_factory_share_an_identity_and_two_lambdas_do_not() -> None:
    assert tool_identity(factory()) == tool_identity(factory())
    assert tool_identity(first_lambda) != tool_identity(other_lambda)


class Hostile:
    def __call__(self) -> None: ...

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no")


def test_no_object_is_weird_enough_to_raise() -> None:
    for weird in (Hostile(), None, 7, functools.partial(Hostile())):
        assert tool_identity(weird)
        assert tool_name(weird)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("refund_charge", "refund_charge"),
        ("mcp:server/tool", "mcp:server/tool"),
        ("is it open? yes", "is it open? yes"),
        ("billing & refunds", "billing & refunds"),
        ("Zahlung für Müller", "Zahlung für Müller"),
        ("", "unknown"),
        ("  ", "unknown"),
        (None, "unknown"),
        (7, "unknown"),
        ("a\nb\tc\x00d\x1b[31m", "a_b_c_d_[31m"),
        ("a\u202eb\ud800c\u200bd", "a_b_c_d"),
        ("https://user:pw@host/p?api_key=S3CRET&X-Amz-Signature=S3CRET#S3CRET", "https://host/p"),
        ("redis://:pw@host:6379/0", "redis://host:6379/0"),
        ("user:pw@host", "host"),
        ("host/p?api_key=S3CRET", "host/p"),
        ("host/p#token=S3CRET", "host/p"),
        ("call https://u:pw@h/p?k=S3CRET now", "call https://h/p now"),
    ],
)
def test_B122_names_are_printable_and_hold_no_url_secret(name: Any, safe: str) -> None:
    assert display_safe(name) == safe
    assert tool_name(name) == safe if isinstance(name, str) else True


def test_B74_long_names_are_cut_to_128_and_stay_apart() -> None:
    first, second = display_safe("x" * 500), display_safe("x" * 501)
    assert len(first) == len(second) == 128
    assert first != second
    assert display_safe("y" * 128) == "y" * 128
    assert len(tool_identity(type("T" * 400, (), {}))) == 255
