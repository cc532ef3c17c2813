"""Run the benchmarks: ``python -m tests.benchmarks [--json FILE] [--seconds N]``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import warnings
from pathlib import Path

from . import clients, measure, ours, peers, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too; - is standard output, alone")
    parser.add_argument("--seconds", type=float, default=180, help="stop at the latest after this long (180)")
    parser.add_argument("--only", default="", help="run only items with this in their name; no table of ratios")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    ours.metrics_on()
    with asyncio.Runner() as runner:
        theirs, circuits, about = peers.items(runner)
        items = [*ours.items(runner), *theirs, *clients.items(runner)]
        items = [item for item in items if chosen.only in item.name]
        result = measure.run(items, chosen.seconds, lambda line: print(line, file=sys.stderr, flush=True))
    if chosen.only:
        for name, took in sorted(result.best.items()):
            print(f"{took:10.0f} ns  {name}")
        return
    weights = ours.bytes_a_circuit(circuits)
    document = json.dumps(report.document(result, weights, about), indent=1)
    if chosen.json == "-":
        print(document)
        return
    if chosen.json:
        Path(chosen.json).write_text(document + "\n", encoding="utf-8")
    print(report.text(result, weights, about))


main()
