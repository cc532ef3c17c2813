"""Tasks of one event loop that go on only when it is their turn: every order of their turns."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager

Turn = Callable[[], Awaitable[None]]
Work = Callable[[Turn], Awaitable[None]]
Troupe = AbstractAsyncContextManager[dict[str, Work]]

__all__ = ["AsyncIterator", "Turn", "Work", "orders"]


async def orders(scene: Callable[[dict[str, asyncio.Task[None]]], Troupe], limit: int = 100_000) -> int:
    """Play every order in which the tasks of a scene can take their turns. Returns how many there are.

    Args:
        scene: entered with the tasks to be (by name, filled in before the first turn), it gives what each one does,
            with ``await turn()`` wherever another may go on; left, it checks.
        limit: an order more is an error.
    """
    path: list[list[str]] = []  # for each turn, who could take it: the first one does
    played = 0
    while True:
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            async with scene(tasks) as works:
                await _play(works, tasks, path)
        except BaseException as error:
            error.add_note(f"turns: {[ready[0] for ready in path]}")
            raise
        played += 1
        assert played <= limit, f"more than {limit} orders"
        while path and len(path[-1]) == 1:
            path.pop()
        if not path:
            return played
        path[-1].pop(0)


async def _play(works: dict[str, Work], tasks: dict[str, asyncio.Task[None]], path: list[list[str]]) -> None:
    waiting: dict[str, asyncio.Future[None]] = {}

    def turn_of(name: str) -> Turn:
        async def turn() -> None:
            waiting[name] = asyncio.get_running_loop().create_future()
            await waiting[name]

        return turn

    async def act(name: str, work: Work) -> None:
        turn = turn_of(name)
        await turn()
        await work(turn)

    for name, work in works.items():
        tasks[name] = asyncio.ensure_future(act(name, work))
    depth = 0
    while True:
        while not all(task.done() or (name in waiting and not waiting[name].done()) for name, task in tasks.items()):
            await _step()
        ready = [name for name, task in tasks.items() if not task.done()]
        if not ready:
            break
        if depth == len(path):
            path.append(ready)
        waiting[path[depth][0]].set_result(None)
        depth += 1
    for task in tasks.values():
        if not task.cancelled():
            task.result()


@types.coroutine
def _step() -> Generator[None, None, None]:
    """Let every task that can go on do so, once."""
    yield
