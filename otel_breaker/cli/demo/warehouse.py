"""The warehouse of the demo: an MCP server over stdio. It notes every start and every call, and needs its database."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

DATABASE = Path("warehouse.db")
NOTES = Path("warehouse.notes")
PATIENCE = 0.3


def note(*words: object) -> None:
    """One more line for whoever counts."""
    with NOTES.open("a") as notes:
        notes.write(" ".join(map(str, words)) + "\n")


def stock(name: str) -> str:
    """Tell how many pieces of an item are left."""
    note("call", name)
    return f"{len(name)} pieces of {name}"


if __name__ == "__main__":
    note("start", os.getpid())
    if not DATABASE.exists():
        time.sleep(PATIENCE)
        sys.exit(1)
    try:
        from mcp.server.mcpserver import MCPServer as Server
    except ImportError:  # mcp 1.x
        from mcp.server.fastmcp import FastMCP as Server  # type: ignore[attr-defined, no-redef]
    server = Server("warehouse", log_level="ERROR")
    server.tool()(stock)
    server.run()
