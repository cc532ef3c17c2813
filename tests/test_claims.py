"""B07: whatever the README says is guarded is guarded, in a fresh process, at the first call through its front door."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_breaker.instrumentations._table import TARGETS
from tests.support.faults import Script
from tests.support.python import last_json, python

README = Path(__file__).parent.parent / "README.md"


@dataclass(frozen=True)
class Claim:
    """One call, to a server at ``URL`` where it needs one, and the circuits that it admits to (``HOST``: its)."""

    code: str
    names: tuple[str, ...]


CLAIMS = {
    "requests": Claim("import requests; requests.get(URL)", ("HOST",)),
    "httpx": Claim("import httpx; httpx.get(URL)", ("HOST",)),
    "httpx, async": Claim(
        """
import asyncio, httpx

async def main():
    async with httpx.AsyncClient() as client:
        await client.get(URL)

asyncio.run(main())
""",
        ("HOST",),
    ),
    "httpx2": Claim("import httpx2; httpx2.get(URL)", ("HOST",)),
    "httpx2, async": Claim(
        """
import asyncio, httpx2

async def main():
    async with httpx2.AsyncClient() as client:
        await client.get(URL)

asyncio.run(main())
""",
        ("HOST",),
    ),
    "mcp": Claim(
        """
import asyncio
from mcp import ClientSession, StdioServerParameters, stdio_client

SERVER = '''
try:
    from mcp.server import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server
server = Server("files")

@server.tool()
def search() -> str:
    return "ok"

server.run("stdio")
'''

async def main():
    with open(os.devnull, "w") as nowhere, tempfile.TemporaryDirectory() as room:
        script = pathlib.Path(room, "files_server.py")
        script.write_text(SERVER)
        parameters = StdioServerParameters(command=sys.executable, args=[str(script)])
        async with stdio_client(parameters, errlog=nowhere) as streams, ClientSession(*streams) as session:
            await session.initialize()
            result = await session.call_tool("search", {})
            assert result.content[0].text == "ok", result

asyncio.run(main())
""",
        ("mcp:files_server", "mcp:files_server#connect", "mcp:files_server/search"),
    ),
    "langchain-core": Claim(
        """
from langchain_core.tools import tool

@tool
def search(word: str) -> str:
    "Find it."
    return word

assert search.invoke({"word": "ok"}) == "ok"
""",
        ("search",),
    ),
    "langchain-core, async": Claim(
        """
import asyncio
from langchain_core.tools import tool

@tool
async def search(word: str) -> str:
    "Find it."
    return word

assert asyncio.run(search.ainvoke({"word": "ok"})) == "ok"
""",
        ("search",),
    ),
    "langchain-core, ToolNode": Claim(
        """
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

@tool
def search(word: str) -> str:
    "Find it."
    return word

graph = StateGraph(MessagesState)
graph.add_node("tools", ToolNode([search]))
graph.add_edge(START, "tools")
graph.add_edge("tools", END)
call = {"type": "tool_call", "id": "1", "name": "search", "args": {"word": "ok"}}
told = graph.compile().invoke({"messages": [AIMessage(content="", tool_calls=[call])]})
assert told["messages"][-1].content == "ok"
""",
        ("search",),
    ),
    "your functions": Claim(
        """
@otel_breaker.guard
def search():
    return "ok"

search()
""",
        ("search",),
    ),
    "anything, by hand": Claim('otel_breaker.Circuit("vendor").call(str)', ("vendor",)),
}
"""By the README's words; after a comma, one more way to use the same."""

BEFORE = """
import json, os, pathlib, sys, tempfile
import otel_breaker

otel_breaker.instrument()
"""
AFTER = """
print(json.dumps({one.name: [one.admitted, one.probe] for one in otel_breaker.registry().names()}))
"""


def claimed() -> list[str]:
    """The rows of the table."""
    table = README.read_text().partition("\n## What is guarded\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (?!what )([^-|][^|]*?) \|", table, re.MULTILINE)


def test_B07_every_library_that_the_readme_claims_has_a_call_here() -> None:
    assert len(claimed()) >= 7
    assert {name.partition(",")[0] if name not in claimed() else name for name in CLAIMS} == set(claimed())


def test_B07_the_readme_claims_what_is_patched_and_nothing_more() -> None:
    table = README.read_text().partition("\n## What is guarded\n")[2].partition("\n## ")[0]
    patched = re.findall(r"^\| ([^|]+?) \| patching", table, re.MULTILINE)
    assert sorted(patched) == sorted({row.distribution for row in TARGETS})


@pytest.mark.parametrize("name", CLAIMS)
def test_B07_one_call_through_the_front_door_is_one_admit(name: str, srv: Script) -> None:
    claim = CLAIMS[name]
    done = python(f"{BEFORE}\nURL = {srv.url()!r}\n{claim.code}\n{AFTER}")
    assert last_json(done) == {one.replace("HOST", srv.host): [1, 0] for one in claim.names}, done.stderr
    assert srv.hits == ("HOST" in claim.names)


def test_B07_without_instrument_none_of_it_is_admitted(srv: Script) -> None:
    """Else the test above would prove nothing."""
    code = BEFORE.replace("otel_breaker.instrument()", "")
    assert last_json(python(f"{code}\nURL = {srv.url()!r}\n{CLAIMS['requests'].code}\n{AFTER}")) == {}
