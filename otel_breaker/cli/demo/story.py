"""The demo from start to end: two agents, each of them through the same outage twice."""

from __future__ import annotations

import io
import json
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TextIO

from . import driver, report, second_act, second_checks
from .checks import Check, Evidence, checks
from .driver import AGENT, AgentDiedError, Process
from .live import Live, Live2
from .receiver import Receiver
from .screen import Screen
from .script import COOLDOWN, PACE, STEPS
from .vendor import Vendor

_SWITCH: Final = {"OTEL_BREAKER_ENABLED": "true"}
_FIRST: Final = {
    **_SWITCH,
    "OTEL_BREAKER_COOLDOWN": f"{COOLDOWN}s",
    "OTEL_BREAKER_COOLDOWN_STEPS": ",".join(map(str, STEPS)),
}
_SECOND: Final = {**_SWITCH, "OTEL_BREAKER_COOLDOWN": f"{second_act.COOLDOWN}s"}
_EXPORT: Final = {
    # Only to see it live: by default metrics leave every 15 s, spans and logs every few seconds.
    "OTEL_SERVICE_NAME": "payments-agent",
    "OTEL_METRIC_EXPORT_INTERVAL": "250",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "OTEL_BLRP_SCHEDULE_DELAY": "100",
}
_ACTS: Final = ("first act, a hand-written agent", "second act, LangGraph and MCP")


def tell(stream: TextIO, settings: Mapping[str, str], *, lacking: Sequence[str] = (), as_json: bool = False) -> int:
    """Play both acts and report.

    Args:
        stream: where to print.
        settings: more environment for the runs with breakers.
        lacking: what the second act needs and does not find; it is then left out.
        as_json: print one JSON document, and nothing else.

    Returns:
        The exit status: 0 if every promise was kept, else 1.
    """
    play = _Play(io.StringIO() if as_json else stream, settings, lacking)
    try:
        document = play.tell()
    except AgentDiedError as error:
        document = {"kept": False, "error": str(error)}
        play.screen.line(f"FAILED  {error}", "red")
    except KeyboardInterrupt:
        play.screen.line()
        return 130
    if as_json:
        print(json.dumps(document, indent=2), file=stream)
    return 0 if document["kept"] else 1


class _StoppedError(Exception):
    """Another run failed, or the watcher has had enough."""


class _Play:
    """All runs start at once, so that nobody waits for four; each is shown from its beginning."""

    def __init__(self, stream: TextIO, settings: Mapping[str, str], lacking: Sequence[str]) -> None:
        self._stream = stream
        self._settings = settings
        self._lacking = lacking
        self._stop = threading.Event()
        self.screen = Screen(stream)

    def tell(self) -> dict[str, Any]:
        """Everything; the document of `--json`."""
        self.screen.line("otel-breaker demo: two agents, each of them through one outage twice", "bold")
        self._introduce()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-breaker-demo-")))
            receivers = [stack.enter_context(Receiver()) for _ in range(1 if self._lacking else 2)]
            pool = stack.enter_context(ThreadPoolExecutor(4))
            stack.callback(self._stop.set)
            first = self._start(pool, folder, self._first, _FIRST, receivers[0])
            second = None if self._lacking else self._start(pool, folder, self._second, _SECOND, receivers[1])
            without, guarded = map(_shown, first)
            evidence = Evidence(without, guarded, receivers[0])
            if second is None:
                return self._conclude(evidence, None)
            self._introduce_second()
            without, guarded = map(_shown, second)
            return self._conclude(evidence, second_checks.Evidence(without, guarded, receivers[1]))

    def _introduce(self) -> None:
        self.screen.line()
        lines = len(AGENT.read_text().splitlines())
        self.screen.wrapped(
            f"agent.py, {lines} lines that know nothing of circuit breakers: a tool loop, a scripted model, tools over "
            "requests, httpx and httpx2, a timeout of 0.6 s, two tries; failures go to the model as str(exception). "
            "otel-breaker is installed for both runs and switched on, from outside, for the second. All runs start at "
            "once; each is shown from its beginning.",
            10,
            first="  act 1",
        )

    def _introduce_second(self) -> None:
        self.screen.line()
        lines = len(second_act.ASSISTANT.read_text().splitlines())
        self.screen.wrapped(
            f"assistant.py, {lines} lines: a LangGraph agent with a scripted model. Its tool stock asks an MCP server "
            "over stdio, a process of its own, and starts it again when it is lost; its tool payment asks a vendor "
            f"over HTTP. After an error the model asks for the tool again, {second_act.TRIES} times in all; told that "
            "a circuit is open, it tells the user when to come back.",
            10,
            first="  act 2",
        )

    def _start(
        self,
        pool: ThreadPoolExecutor,
        folder: Path,
        run: Callable[[Screen, Path, Mapping[str, str], Receiver | None], Any],
        switch: Mapping[str, str],
        receiver: Receiver,
    ) -> list[tuple[Screen, Future[Any]]]:
        """Both runs of one act."""
        guarded = {**switch, **self._settings, **receiver.environment()}
        started = []
        for title, extra, heard in (("without", {}, None), ("the same with circuit breakers", guarded, receiver)):
            screen = Screen(self._stream, held=True)
            place = Path(tempfile.mkdtemp(dir=folder))
            act, program = ("act 2", second_act.ASSISTANT) if run == self._second else ("act 1", AGENT)
            screen.heading(f"{act}, {title}")
            settings = [f"{name}={value}" for name, value in extra.items()]
            screen.wrapped(" ".join([*settings, f"python {program.name}"]), 2, first="$")
            screen.line()
            environment = {**extra, **(_EXPORT if heard else {})}
            started.append((screen, pool.submit(run, screen, place, environment, heard)))
        return started

    def _first(
        self, screen: Screen, folder: Path, environment: Mapping[str, str], receiver: Receiver | None
    ) -> driver.Run:
        live = Live(screen, receiver)

        def meanwhile() -> None:
            self._tick()
            live.meanwhile()

        with Vendor() as vendor:
            pace = PACE if receiver else 0.0
            return driver.play(
                vendor, folder, environment, pace=pace, before=live.before, after=live.after, meanwhile=meanwhile
            )

    def _second(
        self, screen: Screen, folder: Path, environment: Mapping[str, str], receiver: Receiver | None
    ) -> second_act.Second:
        live = Live2(screen, guarded=receiver is not None)
        with Vendor() as vendor:
            return second_act.play(
                vendor, folder, environment, before=live.before, after=live.after, meanwhile=self._tick
            )

    def _tick(self) -> None:
        if self._stop.is_set():
            raise _StoppedError

    def _conclude(self, first: Evidence, second: second_checks.Evidence | None) -> dict[str, Any]:
        screen = self.screen
        report.received(screen, first.receiver)
        acts: dict[str, tuple[list[report.Row], list[Check]]] = {_ACTS[0]: (report.rows(first), list(checks(first)))}
        runs: list[Process] = [first.guarded]
        if second is not None:
            acts[_ACTS[1]] = (report.rows_of_second(second), list(second_checks.checks(second)))
            runs.append(second.guarded)
        broken = 0
        for (title, (_, checked)), run in zip(acts.items(), runs, strict=True):
            failed = report.promises(screen, f"Promised: {title}", checked)
            if failed and run.complaints:
                screen.line()
                screen.line("The agent's stderr in the run with breakers:", "dim")
                screen.line(run.complaints.strip())
            broken += failed
        report.comparison(screen, {title: rows for title, (rows, _) in acts.items()})
        if second is not None:
            report.read(screen, second)
        screen.line()
        if self._lacking:
            screen.wrapped(report.left_out(self._lacking), 0, "yellow")
        if broken:
            screen.line(f"{broken} of the promised effects did not happen.", "bold", "red")
        else:
            screen.line("Every promised effect happened.", "bold", "green")
        return report.document(acts, self._lacking)


def _shown(run: tuple[Screen, Future[Any]]) -> Any:
    """What the run left behind; from now on it is seen as it goes."""
    screen, future = run
    screen.show()
    return future.result()
