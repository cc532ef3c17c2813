"""A shop's assistant: a LangGraph agent with a scripted model and two tools, one over MCP (stdio), one over HTTP.

The user's messages are the lines of stdin. For every tool call one line of JSON on stdout tells what the model was told
and how long it took, and one more what the model said to the user.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

VENDOR = os.environ["VENDOR_URL"]
HEADERS = {"Authorization": f"Bearer {os.environ['VENDOR_KEY']}"}
TIMEOUT = 0.8
TRIES = 3
WAREHOUSE = StdioServerParameters(command=sys.executable, args=["warehouse.py"])


class Warehouse:
    """A session with the MCP server: opened when it is needed, and again after it was lost."""

    def __init__(self) -> None:
        self.session: ClientSession | None = None
        self.over = asyncio.Event()
        self.holder: asyncio.Task[None] | None = None

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool of the server."""
        if self.session is None:
            opened = asyncio.get_running_loop().create_future()
            self.over = asyncio.Event()
            self.holder = asyncio.create_task(self.hold(opened))
            self.session = await opened
        try:
            result = await self.session.call_tool(tool, arguments)
        except Exception:
            self.session = None
            self.over.set()
            raise
        return "".join(getattr(block, "text", "") for block in result.content)

    async def hold(self, opened: asyncio.Future[ClientSession]) -> None:
        """Start the server and keep its session open until it is over."""
        try:
            async with stdio_client(WAREHOUSE) as streams, ClientSession(*streams) as session:
                await session.initialize()
                opened.set_result(session)
                await self.over.wait()
        except Exception as error:
            if not opened.done():
                opened.set_exception(error)

    async def close(self) -> None:
        """End the session and its server."""
        self.over.set()
        if self.holder is not None:
            await self.holder


class Model(BaseChatModel):
    """Stands in for the model: asks for the tool that the user names, and after an error again, as models do."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **more: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=reply(messages))])


def reply(messages: list[AnyMessage]) -> AIMessage:
    """The model's next message."""
    turn = max(number for number, message in enumerate(messages) if isinstance(message, HumanMessage))
    tool, _, argument = str(messages[turn].content).partition(" ")
    told = [message for message in messages[turn:] if isinstance(message, ToolMessage)]
    call = {"name": tool, "args": {"name": argument}, "id": f"{turn}.{len(told)}"}
    if not told:
        return AIMessage("", tool_calls=[call])
    last = str(told[-1].content)
    if told[-1].status != "error":
        return AIMessage(f"I found this: {last}")
    if last.startswith('{"status": "circuit_open"'):
        seconds = json.loads(last)["retry_after_ms"] // 1000
        return AIMessage(f"I cannot look that up. Ask me again in {seconds} s.")
    if len(told) < TRIES:
        return AIMessage("That failed, I will try once more.", tool_calls=[call])
    return AIMessage("I am sorry, I could not find that out.")


async def answer(agent: Any, messages: list[AnyMessage]) -> AsyncIterator[dict[str, Any]]:
    """What happens until the user has an answer."""
    began = time.perf_counter()
    async for update in agent.astream({"messages": list(messages)}, stream_mode="updates"):
        waited = time.perf_counter() - began
        for node in update.values():
            for message in node["messages"]:
                messages.append(message)
                if isinstance(message, ToolMessage):
                    failed = message.status == "error"
                    yield {"tool": message.name, "told": message.content, "failed": failed, "waited": waited}
                elif not message.tool_calls:
                    yield {"said": message.content}
        began = time.perf_counter()


async def main() -> None:
    """Answer every question."""
    warehouse, vendor, model = Warehouse(), httpx.AsyncClient(headers=HEADERS, timeout=TIMEOUT), Model()

    async def stock(name: str) -> str:
        """Tell how many pieces of an item are left."""
        return await warehouse.call("stock", {"name": name})

    async def payment(name: str) -> str:
        """Look a payment up."""
        found = await vendor.get(f"{VENDOR}/v1/charges/{name}")
        if found.is_error:
            raise RuntimeError(f"the vendor said {found.status_code}: {found.text}")
        return found.text

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    tools = [StructuredTool.from_function(coroutine=function) for function in (stock, payment)]
    graph.add_node("model", think)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.set_entry_point("model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    agent = graph.compile()
    messages: list[AnyMessage] = []
    while question := await asyncio.to_thread(sys.stdin.readline):
        messages.append(HumanMessage(question.strip()))
        async for event in answer(agent, messages):
            print(json.dumps(event), flush=True)
    await vendor.aclose()
    await warehouse.close()


if __name__ == "__main__":
    asyncio.run(main())
