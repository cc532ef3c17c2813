"""``@guard``: a circuit around an own function, a coroutine function, a generator or an asynchronous generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar, cast, overload

from . import _bindings, _credentials, _registry, _settling, _shells, keys
from ._frames import Frame, Site
from ._log import fault
from ._policies import named_policy
from .answers import milliseconds, reason_text
from .circuit import Circuit
from .classify import result_outcome
from .core.clock import Clock
from .core.policy import Policy
from .core.states import Open
from .errors import CircuitOpenError
from .outcomes import CANCELLED, FAILURE, NEUTRAL, REASONS, SUCCESS, THROTTLED, UNAUTHORIZED, Kind, Outcome
from .telemetry import emit

F = TypeVar("F", bound=Callable[..., Any])

REJECTED: Final = Outcome(FAILURE, "rejected_output")
KINDS: Final = (SUCCESS, FAILURE, NEUTRAL, THROTTLED, UNAUTHORIZED, CANCELLED)


class Binding:
    """One guarded function: its settings and, once needed, its circuit.

    Attributes:
        circuit: ``None`` until the next call must look it up.
        site: the static facts for the guard.
        stream: it is a generator.
        raises: a refusal is raised, not answered.
        judged: the user has a say in what a result means.
        name: the tool's name.
    """

    __slots__ = (
        "__weakref__", "_classify", "_clock", "_dependency", "_fallback", "_offers", "_on_open", "_policy", "_told",
        "_validate", "circuit", "credential", "function", "identity", "judged", "name", "raises", "site", "stream",
    )  # fmt: skip

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function = function
        self.name = keys.display_safe(str(options["tool"] or keys.tool_name(function)))
        self.identity = f"{keys.tool_identity(function)}/{self.name}"  # one function may make many tools
        self.circuit: Circuit | None = None
        self._told: tuple[Open, str] | None = None
        self._dependency: str | None = options["dependency"]
        self._policy = named_policy(options["policy"])
        self._clock: Clock | None = options["clock"]
        self._on_open: str | None = options["on_open"]
        self._offers = tuple(options["alternatives"])
        self._fallback: Callable[..., Any] | None = options["fallback"]
        self._validate: Callable[[Any], Any] | None = options["validate"]
        self._classify: Callable[[Any], str | None] | None = options["classify"]
        self.stream = False
        self.judged = self._validate is not None or self._classify is not None
        self.credential = keys.fingerprint("given", options["credential"]) if options["credential"] else None
        self.site = Site(
            "",
            layer="tool",
            tool=self.name,
            judge=self._judge,
            explain=self._explained if self._classify is not None else None,
            body=True,
        )
        self._look_up()
        _bindings.bind(self)

    def bind(self) -> Circuit:
        """The circuit, at the first call and after the registry was swapped or cleared."""
        emit.start()
        self.circuit = self._look_up()
        return self.circuit

    def _look_up(self) -> Circuit:
        registry = _registry.registry()
        config = registry.config(self.name, self._dependency)
        if self._dependency is not None and config.dependency is None:
            config = replace(config, dependency=keys.display_safe(self._dependency).lower())
        circuit = registry.tool(self.identity, self.name, config, self._policy, self._clock)
        circuit.stats.used_by(self.name)
        self.site.alternatives = self._offers or config.alternatives
        # Not kept: after a look-up under other settings (a test's) those must not hold on.
        self.raises = (self._on_open or config.on_open) == "raise" and self._fallback is None
        return circuit

    def release(self) -> None:
        """Forget the circuit: the registry has others now."""
        self.circuit = None

    def offers(self) -> dict[str, tuple[str, ...]]:
        """What its tool's answer offers instead."""
        return {self.name: self.site.alternatives}

    def fingerprint(self) -> str | None:
        """The credential in force for this call: the guard's own, else that of `credential`."""
        return self.credential if self.credential is not None else _credentials.current()

    def refusal(self, error: BaseException, frame: Frame | None) -> CircuitOpenError | None:
        """The refusal behind ``error`` if this guard should turn it into an answer, else ``None``."""
        if self.raises or not isinstance(error, Exception):
            return None
        if frame is None:
            return error if isinstance(error, CircuitOpenError) else None
        return _settling.refusal_behind(error, frame)

    def answer_promptly(
        self, circuit: Circuit, state: Open, now: float, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """`answer` on the hot path: while one state lasts, only the seconds change."""
        if self._fallback is not None:
            return self._fallback(*args, **kwargs)
        if self._told is None or self._told[0] is not state:
            episode = state.episode
            name = circuit.display_name or circuit.name
            self._told = (
                state,
                reason_text(
                    name,
                    "circuit_open",
                    episode.reason,
                    episode.failures,
                    circuit.last_took,
                    circuit.policy.failure_rate is None,
                ),
            )
        return {
            "status": "circuit_open",
            "tool": self.name,
            "reason": self._told[1],
            "retry_after_ms": milliseconds(state.episode.until - now),
            "alternatives": list(self.site.alternatives),
        }

    def answer(self, error: CircuitOpenError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the caller gets in place of a result: the fallback's, or the answer for the model."""
        if self._fallback is not None:
            return self._fallback(*args, **kwargs)
        told = error.answer(self.name)
        if self.site.alternatives:
            told["alternatives"] = list(self.site.alternatives)
        return told

    def _judge(self, frame: Frame, result: Any) -> Outcome | None:
        if result is None and self.stream:  # a generator that returns nothing has no result to look at
            return None
        if self._classify is not None and (told := self._explain(result)) is not None:
            return told
        if self._validate is not None:
            try:
                if self._validate(result) is False:
                    return REJECTED
            except Exception:
                return REJECTED
        return result_outcome(result) if isinstance(result, dict) else None

    def _explained(self, frame: Frame, error: BaseException) -> Outcome | None:
        return self._explain(error)

    def _explain(self, what: Any) -> Outcome | None:
        """The user's classifier: ``None``, an outcome kind, or a failure reason."""
        try:
            told = self._classify(what) if self._classify is not None else None
        except Exception as error:
            fault(("classify", self.identity), "a classifier raised; the built-in rules decide", error)
            return None
        if told is None:
            return None
        if told in REASONS:
            return Outcome(THROTTLED if told in ("throttled", "quota_exhausted") else FAILURE, told)
        if told in KINDS:
            return Outcome(cast("Kind", told), "unclassified" if told == FAILURE else None)
        fault(("classify", self.identity), f"a classifier returned neither a kind nor a reason ({type(told).__name__})",
              ValueError())  # fmt: skip
        return None


@overload
def guard(function: F, /) -> F: ...


@overload
def guard(
    *,
    tool: str | None = None,
    dependency: str | None = None,
    credential: str | None = None,
    policy: Policy | str | None = None,
    on_open: Literal["answer", "raise"] | None = None,
    alternatives: tuple[str, ...] | list[str] = (),
    fallback: Callable[..., Any] | None = None,
    validate: Callable[[Any], Any] | None = None,
    classify: Callable[[Any], str | None] | None = None,
    clock: Clock | None = None,
) -> Callable[[F], F]: ...


def guard(function: Any = None, /, **options: Any) -> Any:  # noqa: D417 - the overload names the options
    """Put a circuit around a function. Bare or called; for def, async def, generators and asynchronous generators.

    Args:
        tool: the name that the model knows; default: the function's.
        dependency: the dependency whose circuit this tool shares (``api.stripe.com``); default: a circuit of its own.
        credential: the account that its calls run under; only a fingerprint is kept.
        policy: a `Policy`, or the name of a class; default: the configured one.
        on_open: ``answer`` (default) returns the answer for the model when refused, ``raise`` raises.
        alternatives: tools that the answer offers instead.
        fallback: called with the call's arguments in place of the answer; its result is returned.
        validate: ``validate(result)``: ``False`` or an exception counts the result as ``rejected_output``.
            The caller still gets it.
        classify: ``classify(exception_or_result)``: ``None``, an outcome kind, or a failure reason.
        clock: where time comes from, for tests.

    A generator asks for admission at its first step; refused, it yields the answer once.

    Raises:
        TypeError: for an unknown option, or something that cannot be called.
        ValueError: for an unknown policy class or ``on_open``.
    """
    unknown = options.keys() - _DEFAULTS.keys()
    if unknown:
        raise TypeError(f"guard() has no option {sorted(unknown)[0]!r}; known: {', '.join(_DEFAULTS)}")
    merged = {**_DEFAULTS, **options}
    if merged["on_open"] not in (None, "answer", "raise"):
        raise ValueError(f"on_open must be 'answer' or 'raise', not {merged['on_open']!r}")
    if isinstance(merged["alternatives"], str):
        raise TypeError("alternatives must be a list of tool names, not one string")
    for name in ("fallback", "validate", "classify"):  # now: later it would look like the tool's failure
        if merged[name] is not None and not callable(merged[name]):
            raise TypeError(f"{name} must be a function, not {type(merged[name]).__name__}")

    def decorate(target: Any) -> Any:
        if not callable(target):
            raise TypeError(f"guard() takes a function, not {type(target).__name__}")
        return _shells.shell(Binding(target, merged))

    return decorate if function is None else decorate(function)


_DEFAULTS: Final[dict[str, Any]] = {
    "tool": None,
    "dependency": None,
    "credential": None,
    "policy": None,
    "on_open": None,
    "alternatives": (),
    "fallback": None,
    "validate": None,
    "classify": None,
    "clock": None,
}
