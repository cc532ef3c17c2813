"""LangChain: `BaseTool.run` and `BaseTool.arun` are the call, whoever makes it (``invoke``, ToolNode, an executor).

Where a tool has ``handle_tool_error`` or ``handle_validation_error``, LangChain makes a result of the exception below
these two; `handled` sees it before that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from otel_breaker import keys
from otel_breaker._frames import CIRCUIT, Frame
from otel_breaker.classify import result_outcome, text_outcome
from otel_breaker.classify._chain import text_of
from otel_breaker.errors import CircuitOpenError
from otel_breaker.outcomes import FAILURE, IGNORED, Outcome

from ._tools import Tool, Tools, acall, call, swallowed

_TOOL_ERROR: Final = Outcome(FAILURE, "tool_error")
_MISUSE: Final = (
    "Tool does not support sync",
    "StructuredTool does not support sync",
    "Too many arguments to single-input tool",
)
"""What LangChain itself raises, before any body runs, and not as an argument error."""
_LONGEST: Final = 100_000
"""Characters of a result that are looked at for an error in JSON."""


def run(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    """``BaseTool.run``."""
    return call(_known(tool), wrapped, args, kwargs, partial(_answer, tool, kwargs))


async def arun(wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
    """``BaseTool.arun``."""
    return await acall(_known(tool), wrapped, args, kwargs, partial(_answer, tool, kwargs))


def handled(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``_handle_tool_error``, ``_handle_validation_error``: an exception is about to become a result."""
    error = args[0] if args else kwargs.get("e")
    if isinstance(error, BaseException):
        swallowed(error)
    return wrapped(*args, **kwargs)


def _known(tool: Any) -> Tool | None:
    """The tool of that name and code: its function, or its class where `_run` is the class's own."""
    code = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or type(tool)
    return _TOOLS.get(tool.name, keys.tool_identity(code), tool)


def _answer(tool: Any, kwargs: Any, refusal: CircuitOpenError) -> Any:
    """What `run` would have returned: a message for a tool call of the model's, else its content."""
    told = refusal.answer(tool.name)
    content = json.dumps(told, ensure_ascii=False)
    call_id = kwargs.get("tool_call_id")
    if call_id is None:
        return content
    from langchain_core.messages import ToolMessage

    return ToolMessage(content=content, name=tool.name, tool_call_id=call_id, status="error", artifact=told)


def _judge(frame: Frame, result: Any) -> Outcome | None:
    """Of a message, its status and content; of anything else, what it is itself."""
    content = getattr(result, "content", None) if getattr(result, "type", None) == "tool" else result
    if content is not result and getattr(result, "status", None) == "error":  # a message of the tool's own making
        told = text_outcome(_text(content))
        return told or (IGNORED if frame[CIRCUIT].policy.unclassified == "neutral" else _TOOL_ERROR)
    if isinstance(content, str) and content[:1] == "{" and '"error"' in content and len(content) <= _LONGEST:
        try:
            content = json.loads(content)
        except ValueError:
            return None
    return result_outcome(content) if isinstance(content, Mapping) else None


def _text(content: Any) -> str:
    blocks = content if isinstance(content, list) else [content]
    return " ".join(block if isinstance(block, str) else str(block.get("text", "")) for block in blocks)


def _explain(frame: Frame, error: BaseException) -> Outcome | None:
    return IGNORED if text_of(error).lstrip().startswith(_MISUSE) else None


_TOOLS: Final = Tools(
    "langchain", judge=_judge, explain=_explain, control=("langgraph.GraphBubbleUp", "langgraph.GraphInterrupt")
)
