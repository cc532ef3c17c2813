"""Coroutines that were made and dropped: the interpreter says so in a destructor, where no exception gets out."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def none_dropped() -> Iterator[None]:
    """Assert that nothing inside leaves a coroutine behind that nobody awaited."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        yield
        gc.collect()
    assert [str(one.message) for one in told if issubclass(one.category, RuntimeWarning)] == []
