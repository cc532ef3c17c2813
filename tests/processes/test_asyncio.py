"""One event loop after another in one process: circuits belong to the process, not to a loop."""

from __future__ import annotations

import textwrap

from tests.support.workers import Room


def test_ten_loops_one_after_another_keep_the_circuit_and_leave_nothing(room: Room) -> None:
    code = """
    import asyncio, gc, threading
    import httpx, otel_breaker
    import job

    @otel_breaker.guard(tool="mine")
    async def tool():
        await asyncio.sleep(0)
        raise ConnectionRefusedError

    async def main():
        seen = []
        async with httpx.AsyncClient() as client:
            try:
                seen.append((await client.get(URL)).status_code)
            except httpx.HTTPError as error:
                seen.append(error.answer()["status"])
        try:
            seen.append((await tool())["status"])
        except ConnectionRefusedError:
            seen.append("refused")
        return seen

    said, threads = [], set()
    for number in range(10):
        said.append(asyncio.run(main()))
        threads.add(threading.active_count())
    gc.collect()
    job.say([said, len(threads), sum(isinstance(one, asyncio.BaseEventLoop) for one in gc.get_objects())])
    """
    ((said, threads, loops),) = room.run(textwrap.dedent(code), PYTHONWARNINGS="error", PYTHONASYNCIODEBUG="1")

    assert said == [[503, "refused"]] * 2 + [["circuit_open", "circuit_open"]] * 8
    assert (threads, loops) == (1, 0)
    assert room.vendor.hits == 2
    assert list(room.admissions().values()) == [{"admitted": 2, "circuit_open": 8}]


def test_a_probe_that_ends_with_its_loop_gives_the_slot_back(room: Room) -> None:
    """The loop cancels it: the call of the next loop is the probe."""
    (said,) = room.run(
        """
        import asyncio, time
        import httpx, otel_breaker
        import job

        async def ask(client):
            try:
                return (await client.get(URL)).status_code
            except httpx.HTTPError as error:
                return error.answer()["status"]

        async def fail():
            async with httpx.AsyncClient() as client:
                return [await ask(client) for _ in range(3)]

        async def leave():
            async with httpx.AsyncClient(transport=Silent()) as client:
                asyncio.create_task(ask(client))
                await asyncio.sleep(0.01)
                return circuit.state

        class Silent(httpx.AsyncBaseTransport):
            async def handle_async_request(self, request):
                await asyncio.sleep(60)

        async def probe():
            async with httpx.AsyncClient() as client:
                return await ask(client)

        said = [asyncio.run(fail())]
        circuit = next(iter(otel_breaker.registry()))
        while circuit.snapshot().retry_after:
            time.sleep(0.01)
        said.append(asyncio.run(leave()))
        said.append(asyncio.run(probe()))
        job.say(said)
        """,
        OTEL_BREAKER_COOLDOWN="100ms",
    )

    assert said == [[503, 503, "circuit_open"], "half_open", 503]
    assert room.vendor.hits == 3
