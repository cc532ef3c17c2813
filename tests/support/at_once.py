"""``-p tests.support.at_once``: the package as a free-threaded build runs it, on any build."""

from __future__ import annotations

import sys

from otel_breaker import _threads

assert "otel_breaker.circuit" not in sys.modules, "too late: the choice is read at import"
_threads.AT_ONCE = True
