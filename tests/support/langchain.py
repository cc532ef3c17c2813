"""LangChain tools behind one face, sync and async, and an agent: a compiled graph with a model that follows a script.

``Agent([tool], "search", ["search"] * 5).ask()`` runs the graph: each entry of the script is a turn, with the names of
the tools that the model calls in it; ``agent.seen`` is what the model got to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

Turn = str | dict[str, Any] | Sequence[str | dict[str, Any]]


class ScriptedModel(BaseChatModel):
    """A chat model that calls the tools of its script, turn by turn, and remembers what it was given to read."""

    script: list[Any]
    seen: list[list[BaseMessage]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        self.seen.append(list(messages))
        turn = len(self.seen)
        message = AIMessage(content="done")
        if turn <= len(self.script):
            calls = self.script[turn - 1]
            calls = [calls] if isinstance(calls, (str, dict)) else calls
            named = [{"name": call, "args": {}} if isinstance(call, str) else call for call in calls]
            message = AIMessage(
                content="",
                tool_calls=[{"id": f"call-{turn}-{number}", "args": {}, **call} for number, call in enumerate(named)],
            )
        return ChatResult(generations=[ChatGeneration(message=message)])


class Agent:
    """A compiled graph of a model and a ToolNode.

    Args:
        tools: the tools.
        script: what the model calls, turn by turn.
        is_async: run it with ``ainvoke``.
        options: ``ToolNode``'s.
    """

    def __init__(self, tools: Sequence[Any], script: Sequence[Turn], is_async: bool = False, **options: Any) -> None:
        self.model = ScriptedModel(script=list(script), seen=[])
        self.is_async = is_async
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [self.model.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode(tools, **options))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
        graph.add_edge("tools", "model")
        self.graph = graph.compile()

    def ask(self) -> Agent:
        """Run the script to its end."""
        start = {"messages": [HumanMessage("go")]}
        config: Any = {"recursion_limit": 200}
        if self.is_async:
            asyncio.run(self.graph.ainvoke(start, config))
        else:
            self.graph.invoke(start, config)
        return self

    @property
    def told(self) -> list[list[ToolMessage]]:
        """What the tools told the model, turn by turn, as the next turn of the model received it."""
        found = []
        for messages in self.model.seen[1:]:
            last = max(number for number, message in enumerate(messages) if isinstance(message, AIMessage))
            found.append([message for message in messages[last + 1 :] if isinstance(message, ToolMessage)])
        return found


def caller(is_async: bool) -> Callable[..., Any]:
    """``invoke``, or ``ainvoke`` to its end: ``call(tool, arguments)``."""

    def call(tool: Any, given: Any = None, config: Any = None) -> Any:
        given = {} if given is None else given
        return asyncio.run(tool.ainvoke(given, config)) if is_async else tool.invoke(given, config)

    return call


def tool_call(name: str, arguments: dict[str, Any] | None = None, call_id: str = "c1") -> dict[str, Any]:
    """A tool call as a model makes it."""
    return {"type": "tool_call", "id": call_id, "name": name, "args": arguments or {}}
