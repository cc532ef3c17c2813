"""`make stack` does what it says and leaves nothing running."""

from __future__ import annotations

import os
import re
import sys

from tests.support import stack
from tests.support.python import run


def test_make_stack_shows_a_page_that_opens_and_resolves_and_stops_everything() -> None:
    stack.need(*stack.ALL)

    done = run(sys.executable, "-m", "tests.support.show_page", PYTHONPATH=str(stack.ROOT), timeout=110)

    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.split(" s  ", 1)[1] for line in done.stdout.splitlines() if " s  " in line]
    heard = [line.split()[2] for line in said if line.startswith("PagerDuty 202")]
    assert heard[0] == "trigger"
    assert heard[-1] == "resolve"
    assert heard.count("resolve") == 1
    assert said[-1] == "everything that was started has been stopped"
    processes = [int(found) for found in re.findall(r"is ready, process (\d+)", done.stdout)]
    assert len(processes) == 3
    assert not [process for process in processes if os.path.exists(f"/proc/{process}")]
