"""Exceptions, HTTP responses, results and provider codes -> `Outcome`. Standard library only.

Classes of other libraries are matched by name, so none is imported. No function here raises.
"""

from __future__ import annotations

from ._chain import walk
from .codes import code_outcome
from .exceptions import exception_outcome
from .responses import response_outcome
from .results import result_outcome
from .retry_after import retry_after
from .texts import text_outcome

__all__ = [
    "code_outcome",
    "exception_outcome",
    "response_outcome",
    "result_outcome",
    "retry_after",
    "text_outcome",
    "walk",
]
