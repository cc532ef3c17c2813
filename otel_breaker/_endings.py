"""How a process ends, and that what is waiting to be exported leaves before.

Python's own end of a process runs `atexit`, which is not all: SIGTERM ends it at once, multiprocessing's children and
Celery's end by `os._exit`. Standard library only, and cheap: SIGTERM is taken care of when the interpreter starts,
because a server (uvicorn) puts back at its end what it found there at its start.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final


def watch() -> bool:
    """Flush on SIGTERM, where the program left it to end the process at once.

    Returns:
        Whether this thread could look. Only the main thread may ask.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)
    return True


def watch_early() -> None:
    """`watch`, where the environment names a place to export to."""
    from .telemetry.wanted import SIGNALS, wanted

    if any(wanted(one) for one in SIGNALS):
        watch()


def unwatch() -> None:
    """Give the signal back: the program's own providers do the exporting."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def at_exit(flush: Callable[[], None]) -> None:
    """Run ``flush`` at the end of the interpreter; a forked child, which has inherited it, registers it afresh."""
    atexit.unregister(flush)
    atexit.register(flush)


def at_end_of_worker(flush: Callable[[], None]) -> None:
    """Run ``flush`` where a worker ends without `atexit`: children of multiprocessing and Celery's pool."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, flush, exitpriority=-100)  # after the program's own, and after its threads and children
    signals: Any = sys.modules.get("celery.signals")
    if signals is not None:
        _tasks.append(flush)
        signals.worker_process_shutdown.connect(_celery_worker_over, weak=False, dispatch_uid="otel_breaker")


_tasks: Final[list[Callable[[], None]]] = []


def _celery_worker_over(**_: Any) -> None:
    while _tasks:
        _tasks.pop()()


# --- SIGTERM ----------------------------------------------------------------------------------------------------------


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    providers: Any = sys.modules.get("otel_breaker.telemetry.providers")
    if providers is None or not providers.waiting():
        _end(number)
    elif _in_event_loop():  # which must not block: another greenlet waits and ends the process
        threading.Thread(target=_flush_and_end, args=(providers.finish, number), daemon=True).start()
    else:
        _flush_and_end(providers.finish, number)


def _flush_and_end(flush: Callable[[], None], number: int) -> None:
    try:
        flush()
    finally:
        _end(number)


def _end(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.signal(number, _on_sigterm)  # still here: process 1 of a container, which the default action spares


def _in_event_loop() -> bool:
    """Whether gevent's loop runs this handler, as it does while every greenlet waits."""
    gevent: Any = sys.modules.get("gevent")
    return gevent is not None and gevent.getcurrent() is gevent.get_hub()
