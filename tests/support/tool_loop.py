"""A tool loop as it is written by hand, and not a word about breakers in it: ``python tool_loop.py [options] URL...``.

Every call is a line of JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import requests

PAUSE = 0.2


def fetch(url: str, key: str) -> str:
    """Ask a vendor; what the model is told."""
    try:
        reply = requests.get(url, headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=2)
    except requests.RequestException as error:
        return str(error)
    return str(reply.status_code)


def langchain_tool(url: str) -> str:
    """The same by a tool of LangChain's."""
    from langchain_core.tools import tool

    @tool
    def refund_charge(charge: str) -> str:
        """Give a customer the money of one charge back."""
        requests.post(url, json={"charge": charge}, timeout=2).raise_for_status()
        return "refunded"

    try:
        return str(refund_charge.invoke({"charge": "ch_1"}))
    except requests.RequestException as error:
        return str(error)


def main() -> None:
    """Call every URL, again and again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1, help="processes, forked before the first call")
    parser.add_argument("--key", default="", help="a credential")
    parser.add_argument("--langchain", action="store_true")
    parser.add_argument("--gives-up", action="store_true", help="call nobody any more once the model was told to wait")
    parser.add_argument("urls", nargs="+")
    chosen = parser.parse_args()
    for _ in range(chosen.workers - 1):
        if os.fork() == 0:
            break
    while True:
        for url in chosen.urls:
            told = langchain_tool(url) if chosen.langchain else fetch(url, chosen.key)
            line = json.dumps({"worker": os.getpid(), "at": time.time(), "url": url, "told": told})
            os.write(1, f"{line}\n".encode())
            time.sleep(PAUSE)
            while chosen.gives_up and "retry_after_ms" in told:
                time.sleep(PAUSE)


if __name__ == "__main__":
    main()
