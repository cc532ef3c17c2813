"""Settings: where they come from, which wins, and the one line that a bad one yields."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_breaker import settings
from otel_breaker.core.policy import FIELDS, NAMED, Policy
from otel_breaker.errors import SettingsError
from otel_breaker.keys import fingerprint, set_fingerprint_key

OTHER: dict[str, Any] = {
    "failure_threshold": 7,
    "failure_rate": 0.25,
    "window": 60.0,
    "minimum_calls": 3,
    "slow_call": 2.5,
    "slow_rate": 0.5,
    "cooldown": 45.0,
    "cooldown_steps": (1.0, 3.0),
    "cooldown_cap": 600.0,
    "cooldown_jitter": 0.5,
    "success_threshold": 2,
    "probe_by": "health_check",
    "call_deadline": 12.0,
    "enforce_deadline": True,
    "cancel_counts_after": 0.0,
    "throttle_threshold": 4,
    "retry_after_cap": 1800.0,
    "verdict_ttl": 90.0,
    "unclassified": "neutral",
    "on_unauthorized": "alert",
    "pause": 120.0,
}
PARTNER = {"slow_call": ("slow_rate", 0.5), "slow_rate": ("slow_call", 2.5)}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_BREAKER_")]:
        monkeypatch.delenv(name)
    settings.forget()
    yield
    settings.forget()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def writer(text: str | bytes) -> Path:
        path = tmp_path / "otel-breaker.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        monkeypatch.setenv("OTEL_BREAKER_CONFIG", str(path))
        return path

    return writer


def error_of(**kwargs: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        settings.load(**kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


def text_of(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_the_table_above_knows_every_policy_field() -> None:
    assert set(OTHER) == set(FIELDS)
    assert all(value != getattr(Policy(), field) for field, value in OTHER.items())


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("way", ["kwargs", "environment", "file", "file defaults", "rule"])
def test_every_policy_field_by_every_way(field: str, way: str, monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
    values = {field: OTHER[field]}
    if field in PARTNER:
        values |= [PARTNER[field]]
    kwargs: dict[str, Any] = {}
    lines = [f"{key}: {list(value) if isinstance(value, tuple) else text_of(value)}" for key, value in values.items()]
    match way:
        case "kwargs":
            kwargs = values
        case "environment":
            for key, value in values.items():
                monkeypatch.setenv(f"OTEL_BREAKER_{key.upper()}", text_of(value))
        case "file":
            write("\n".join(lines))
        case "file defaults":
            write("defaults: {" + ", ".join(lines) + "}")
        case "rule":
            write("circuits: [{match: {tool: '*'}, " + ", ".join(lines) + "}]")
    loaded = settings.load(**kwargs)
    policy = loaded.resolve("any", None).policy
    assert getattr(policy, field) == OTHER[field]
    assert policy == dataclasses.replace(Policy(), **values)


def test_defaults_are_those_of_the_policy() -> None:
    loaded = settings.load()
    assert loaded.resolve(None, "api.stripe.com").policy == Policy()
    assert (loaded.mode, loaded.store, loaded.events, loaded.spans) == ("enforce", "memory", "both", "auto")
    assert (loaded.max_names, loaded.max_circuits, loaded.enabled) == (200, 10_000, None)
    assert all(loaded.policy(name) == policy for name, policy in NAMED.items())


def test_kwargs_before_environment_before_file(monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
    write("defaults: {cooldown: 10s, failure_threshold: 2, success_threshold: 4}\nmode: observe")
    assert settings.load().cooldown == 10
    monkeypatch.setenv("OTEL_BREAKER_COOLDOWN", "20")
    monkeypatch.setenv("OTEL_BREAKER_FAILURE_THRESHOLD", "3")
    loaded = settings.load(cooldown="30s")
    assert (loaded.cooldown, loaded.failure_threshold, loaded.success_threshold) == (30, 3, 4)
    assert loaded.mode == "observe"
    assert settings.load(defaults={"cooldown": 40}).policy().cooldown == 40


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), ("0.5", 0.5), ("500ms", 0.5), ("5m", 300), ("1h", 3600), (" 2 m ", 120), ("1.5M", 90)],
)
def test_durations(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BREAKER_COOLDOWN", text)
    assert settings.load().cooldown == seconds


@pytest.mark.parametrize("text", ["fast", "-1", "1d", "30 s s", "1,5", "nan", "inf", "0x10", "٣"])
def test_bad_durations_name_the_forms(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BREAKER_COOLDOWN", text)
    assert error_of().startswith("OTEL_BREAKER_COOLDOWN: ")
    assert "500ms, 30s, 5m, 1h" in error_of()


def test_lists_and_words_and_booleans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BREAKER_COOLDOWN_STEPS", "1, 2,10")
    monkeypatch.setenv("OTEL_BREAKER_DISABLED_INSTRUMENTATIONS", "httpx, httpx2,")
    monkeypatch.setenv("OTEL_BREAKER_ENFORCE_DEADLINE", "Yes")
    monkeypatch.setenv("OTEL_BREAKER_MODE", "Observe")
    monkeypatch.setenv("OTEL_BREAKER_EVENTS", "")  # empty counts as not set
    loaded = settings.load()
    assert loaded.cooldown_steps == (1, 2, 10)
    assert [name for name in ("requests", "httpx", "httpx2") if loaded.wants(name)] == ["requests"]
    assert loaded.enforce_deadline is True
    assert (loaded.mode, loaded.events) == ("observe", "both")
    assert not settings.load(disabled_instrumentations="*").wants("requests")
    assert not settings.load(instrumentations=["httpx"]).wants("requests")


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"mode": "strict"}, "mode (keyword argument): 'strict' is not allowed; allowed: enforce, observe, off"),
        ({"cooldwn": 3}, "cooldwn (keyword argument): unknown setting 'cooldwn'; did you mean 'cooldown'?"),
        ({"defaults": {"mode": 1}}, "defaults (keyword argument): unknown setting 'mode'; "),
        ({"defaults": [1]}, "defaults (keyword argument): must be a mapping"),
        (
            {"failure_threshold": 0},
            "failure_threshold (keyword argument): failure_threshold must be a whole number >= 1",
        ),
        ({"failure_threshold": 2.5}, "failure_threshold (keyword argument): 2.5 is not a whole number"),
        ({"failure_threshold": True}, "failure_threshold (keyword argument): True is not a whole number"),
        ({"failure_rate": 1.5}, "failure_rate (keyword argument): failure_rate must be a share above 0"),
        ({"slow_call": 3}, "slow_call (keyword argument): slow_call and slow_rate go together"),
        ({"cooldown_steps": []}, "cooldown_steps (keyword argument): cooldown_steps must be factors > 0"),
        ({"max_names": 0}, "max_names (keyword argument): 0 is not allowed; allowed: greater than or equal to 1"),
        ({"version": 2}, "version (keyword argument): 2 is not allowed; allowed: 1"),
        (
            {"instrumentations": "curl"},
            "instrumentations (keyword argument): 'curl' is not a library; allowed: default, ",
        ),
        ({"excluded_urls": "("}, "excluded_urls (keyword argument): '(' is not a regular expression"),
        ({"enforce_deadline": "maybe"}, "enforce_deadline (keyword argument): 'maybe' is not a boolean; allowed: true"),
        ({"circuits": 3}, "circuits (keyword argument): 3 is not allowed; allowed: a list"),
        ({"circuits": [3]}, "circuits[0] (keyword argument): 3 is not allowed; allowed: a mapping"),
        ({"circuits": [{}]}, "circuits[0].match (keyword argument): is missing"),
        (
            {"circuits": [{"match": {}}]},
            "circuits[0].match (keyword argument): names nothing; allowed: tool, dependency",
        ),
        (
            {"circuits": [{"match": {"tol": "a"}}]},
            "circuits[0].match (keyword argument): unknown setting 'tol'; did you",
        ),
        (
            {"circuits": [{"match": {"tool": "a"}, "class": "vendr"}], "classes": {"vendor": {}}},
            (
                "circuits[0].class (keyword argument): unknown class 'vendr'; known: default, fast_api, slow_tool, "
                "code_executor, vendor"
            ),
        ),
        ({"classes": {"vendor": {"mode": "off"}}}, "classes.vendor (keyword argument): unknown setting 'mode'; "),
        ({"classes": {"vendor": {"cooldown": 0}}}, "classes.vendor.cooldown (keyword argument): cooldown must be"),
        (
            {"store": "redis://host/0"},
            "store (keyword argument): this release keeps state in memory only; allowed: memory",
        ),
    ],
)
def test_bad_keywords_say_key_source_and_what_is_allowed(kwargs: dict[str, Any], text: str) -> None:
    assert error_of(**kwargs).startswith(text)


def test_unknown_variables_are_errors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BREAKER_COLDOWN", "3")
    assert error_of() == "OTEL_BREAKER_COLDOWN: unknown variable; did you mean OTEL_BREAKER_COOLDOWN?"
    monkeypatch.delenv("OTEL_BREAKER_COLDOWN")
    monkeypatch.setenv("OTEL_BREAKER_CIRCUITS", "x")  # a file's matter
    assert error_of().startswith("OTEL_BREAKER_CIRCUITS: unknown variable; ")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("mode: [", "not valid YAML (line 1"),
        ("mode: off\nmode: observe", "not valid YAML (line 2, column 1: key 'mode' is given twice)"),
        ("- mode", "must be a mapping of settings"),
        ("just text", "must be a mapping of settings"),
        (b"mode: \xff", "not UTF-8 text (at byte 6)"),
        ("!!python/object:os.system {}", "not valid YAML"),
        ("mode: strict", "mode in {path}: 'strict' is not allowed; allowed: enforce, observe, off"),
        ("defaults: {cooldown: x}", "defaults.cooldown in {path}: 'x' is not a duration"),
        ("defaults: {cooldown: 1}\ncooldown: 2", "cooldown is given twice"),
        (
            "defaults: {cooldown: 1}\nvresion: 1",
            "vresion in {path}: unknown setting 'vresion'; did you mean 'version'?",
        ),
    ],
)
def test_bad_files_are_named(content: str | bytes, text: str, write: Any) -> None:
    path = write(content)
    error = error_of()
    assert text.replace("{path}", str(path)) in error
    assert str(path) in error


@pytest.mark.parametrize(
    ("path", "reason"), [("nosuch.yaml", "no such file: "), (".", "cannot read "), ("a\0b", "cannot read ")]
)
def test_files_that_cannot_be_read(path: str, reason: str) -> None:
    assert error_of(config=path).startswith(f"config (keyword argument): {reason}")


def test_an_empty_file_says_nothing(write: Any) -> None:
    write("# only a comment\n")
    assert settings.load().policy() == Policy()


def test_braces_in_a_path_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "{x}{path}.yaml"
    path.write_text("mode: strict")
    assert f"mode in {path}: " in error_of(config=path)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STORE", "redis://user:S3CRET@host/0?password=S3CRET"),
        ("STORE", "sqlite:///S3CRET"),
        ("COOLDOWN", "https://user:S3CRET@host"),
        ("INSTRUMENTATIONS", "https://user:S3CRET@host"),
    ],
)
def test_secrets_are_never_echoed(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"OTEL_BREAKER_{variable}", value)
    assert "S3CRET" not in error_of()


def test_the_fingerprint_key_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BREAKER_FINGERPRINT_KEY", "S3CRET")
    loaded = settings.load()
    assert loaded.fingerprint_key is not None
    assert loaded.fingerprint_key.get_secret_value() == "S3CRET"
    assert "S3CRET" not in repr(loaded) + str(loaded.model_dump())
    assert "S3CRET" not in error_of(fingerprint_key=["S3CRET"])
    assert "S3CRET" not in error_of(circuits=[{"match": {"tool": "a"}, "dependency": "https://u:S3CRET@h"}])


EXAMPLE = """
version: 1
mode: observe
store: memory
defaults: {failure_threshold: 5, cooldown: 30s}
classes: {vendor: {failure_threshold: 3, cooldown: 1m}}
circuits:
  - match: {tool: "refund_*"}
    dependency: api.stripe.com
    display_name: payment vendor
    class: vendor
    alternatives: [issue_refund_manually]
    validate: json
    on_open: raise
  - match: {dependency: "*.internal"}
    mode: off
  - match: {tool: run_*, dependency: "sandbox:*"}
    class: code_executor
    cooldown: 10s
exclude: ["localhost:*", "[::1]:*"]
excluded_urls: "/health$,^http://metrics"
"""


def test_rules_first_match_wins(write: Any) -> None:
    write(EXAMPLE)
    loaded = settings.load()
    refund = loaded.resolve("Refund_Charge", None)
    assert refund == loaded.resolve("refund_x", "a.internal")
    assert (refund.dependency, refund.display_name) == ("api.stripe.com", "payment vendor")
    assert refund.alternatives == ("issue_refund_manually",)
    assert (refund.policy.failure_threshold, refund.policy.cooldown) == (3, 60)
    assert (refund.validate, refund.on_open, refund.mode) == ("json", "raise", "observe")
    assert loaded.resolve(None, "DB.internal").mode == "off"  # YAML reads a bare `off` as false
    run = loaded.resolve("run_code", "sandbox:1").policy
    assert (run.failure_threshold, run.cooldown, run.call_deadline) == (2, 10, 300)
    plain = loaded.resolve("run_code", None)
    assert (plain.policy, plain.mode, plain.dependency) == (Policy(), "observe", None)
    assert loaded.resolve("run_code", None) is plain


def test_a_rule_that_maps_tools_to_a_dependency_is_about_that_dependency_whoever_calls(write: Any) -> None:
    write(EXAMPLE)
    loaded = settings.load()
    assert loaded.resolve(None, "api.stripe.com") == loaded.resolve("refund_x", None)
    assert loaded.resolve("other", "api.stripe.com").policy == Policy()


@pytest.mark.parametrize(
    ("url", "dependency", "expected"),
    [
        (None, "localhost:8080", True),
        (None, "localhost", True),  # port 80 is left out of names
        (None, "localhost.example:8080", False),
        (None, "[::1]:9", True),
        (None, None, False),
        ("http://a/health", "a", True),
        ("http://a/healthy", "a", False),
        ("http://metrics/x", "metrics", True),
    ],
)
def test_excluded(url: str | None, dependency: str | None, expected: bool, write: Any) -> None:
    write(EXAMPLE)
    assert settings.load().excluded(url, dependency) is expected


def test_classes_lie_over_the_defaults() -> None:
    loaded = settings.load(
        failure_threshold=9,
        call_deadline="20s",
        classes={"slow_tool": {"cooldown": "1m"}, "default": {"window": 60}, "mine": {"pause": 5}},
    )
    assert loaded.policy("slow_tool") == Policy.named("slow_tool", cooldown=60.0)
    assert loaded.policy("fast_api") == Policy.named("fast_api", call_deadline=20.0)
    assert loaded.policy("mine") == Policy(failure_threshold=9, call_deadline=20.0, pause=5.0)
    assert loaded.policy() == Policy(failure_threshold=9, call_deadline=20.0, window=60.0)
    with pytest.raises(SettingsError, match="unknown class 'x'; known: default, fast_api"):
        loaded.policy("x")


def test_the_answers_of_resolve_are_bounded() -> None:
    loaded = settings.load()
    for number in range(10_000):
        loaded.resolve(f"tool-{number}", None)
    assert len(loaded._resolved) <= 4096


def test_invalid_settings_are_one_error_line_and_everything_is_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BREAKER_MODE", "strict")
    assert [settings.current() for _ in range(3)] == [settings.OFF] * 3
    settings.report(SettingsError("OTEL_BREAKER_MODE: 'strict' is not allowed; allowed: enforce, observe, off"))
    lines = [record for record in caplog.records if record.name == "otel_breaker"]
    assert [record.levelno for record in lines] == [logging.ERROR]
    assert lines[0].getMessage().startswith("otel_breaker stays off: OTEL_BREAKER_MODE: ")
    assert settings.current().resolve("any", None).mode == "off"
    assert settings.current().enabled is False


def test_current_is_loaded_once_until_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.current().mode == "enforce"
    monkeypatch.setenv("OTEL_BREAKER_MODE", "observe")
    assert settings.current().mode == "enforce"
    settings.forget()
    assert settings.current().mode == "observe"
    settings.use(settings.load(mode="off"))
    assert settings.current().mode == "off"


def test_a_log_level_shows_our_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("otel_breaker")
    settings.use(settings.load(log_level="INFO"))
    log.info("shown")
    log.debug("hidden")
    settings.use(settings.load())
    log.info("quiet again")
    err = capsys.readouterr().err
    assert "INFO [otel_breaker] shown" in err
    assert "hidden" not in err
    assert "quiet" not in err


def test_processes_with_one_fingerprint_key_agree_and_others_do_not() -> None:
    try:
        settings.use(settings.load(fingerprint_key="shared among replicas"))
        shared = fingerprint("bearer", "sk-1")
        settings.use(settings.load())
        own = fingerprint("bearer", "sk-1")
        settings.use(settings.load(fingerprint_key="shared among replicas"))
        assert fingerprint("bearer", "sk-1") == shared != own
    finally:
        settings.forget()
        set_fingerprint_key(None)
    assert fingerprint("bearer", "sk-1") == own


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(SettingsError, match=r"^/dev/zero: larger than 1 MiB: not a settings file$"):
        settings.load_file("/dev/zero")
