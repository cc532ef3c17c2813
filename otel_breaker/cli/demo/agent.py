"""A small payments agent: a loop, a model that asks for tools, three tools over three HTTP clients.

The user's messages are the lines of stdin. For every message one line of JSON on stdout tells which tool ran, what the
model was told and how long the tool took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import requests

VENDOR = os.environ["VENDOR_URL"]
HEADERS = {"Authorization": f"Bearer {os.environ['VENDOR_KEY']}"}
TIMEOUT = 0.6
TRIES = 2
FINDER = httpx.Client(headers=HEADERS, timeout=TIMEOUT)
BANK = httpx2.Client(headers=HEADERS, timeout=TIMEOUT)
ERRORS = (requests.RequestException, httpx.HTTPError, httpx2.HTTPError)


def refund_charge(charge: str) -> Any:
    """Give a customer the money of one charge back."""
    reply = requests.post(f"{VENDOR}/v1/refunds", json={"charge": charge}, headers=HEADERS, timeout=TIMEOUT)
    if not reply.ok:
        raise requests.HTTPError(f"the vendor said {reply.status_code}: {reply.text}", response=reply)
    return reply.json()


def find_charge(charge: str) -> Any:
    """Look one charge up."""
    reply = FINDER.get(f"{VENDOR}/v1/charges/{charge}")
    if reply.is_error:
        message = f"the vendor said {reply.status_code}: {reply.text}"
        raise httpx.HTTPStatusError(message, request=reply.request, response=reply)
    return reply.json()


def next_payout(account: str) -> Any:
    """Tell when the money arrives."""
    reply = BANK.get(f"{VENDOR}/v1/payouts/{account}")
    if reply.is_error:
        message = f"the vendor said {reply.status_code}: {reply.text}"
        raise httpx2.HTTPStatusError(message, request=reply.request, response=reply)
    return reply.json()


TOOLS: dict[str, Callable[[str], Any]] = {"refund": refund_charge, "find": find_charge, "payout": next_payout}


def run_tool(tool: Callable[[str], Any], argument: str) -> tuple[str, bool]:
    """What the model is told, and whether the tool failed: a second try, then the error's text."""
    told = ""
    for _ in range(TRIES):
        try:
            return json.dumps(tool(argument)), False
        except ERRORS as error:
            told = str(error)
    return told, True


def model(messages: list[dict[str, str]]) -> dict[str, str]:
    """Stands in for the model: asks for the tool that the user's words name, then sums up its result."""
    last = messages[-1]
    if last["role"] == "user":
        verb, _, argument = last["content"].partition(" ")
        return {"role": "assistant", "tool": verb, "argument": argument}
    return {"role": "assistant", "content": f"Here is what I found: {last['content'][:40]}"}


def agent(questions: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Answer every question; a step per tool call."""
    messages: list[dict[str, str]] = []
    for turn, question in enumerate(questions, start=1):
        messages.append({"role": "user", "content": question.strip()})
        reply = model(messages)
        while "tool" in reply:
            tool = TOOLS[reply["tool"]]
            began = time.perf_counter()
            told, failed = run_tool(tool, reply["argument"])
            waited = time.perf_counter() - began
            messages += [reply, {"role": "tool", "content": told}]
            yield {"turn": turn, "tool": tool.__name__, "told": told, "failed": failed, "waited": waited}
            reply = model(messages)
        messages.append(reply)


if __name__ == "__main__":
    for step in agent(iter(sys.stdin.readline, "")):
        print(json.dumps(step), flush=True)
