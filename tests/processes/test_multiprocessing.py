"""Children of multiprocessing, by every way of starting them: guarded once, reporting for themselves, to their end."""

from __future__ import annotations

import pytest

from tests.support.workers import NUMBERS, Room, check

PROCESSES = """
import multiprocessing
import job

def work(queue):
    queue.put(job.report(URL))

if __name__ == "__main__":
    context = multiprocessing.get_context(METHOD)
    queue = context.SimpleQueue()
    children = [context.Process(target=work, args=(queue,)) for _ in range(3)]
    for child in children:
        child.start()
    for _ in children:
        job.say(queue.get())
    for child in children:
        child.join()
        assert child.exitcode == 0, child.exitcode
    job.say(job.report(URL))
"""


@pytest.mark.parametrize(
    ("method", "way"),
    [
        ("fork", "variable"),
        ("fork", "opentelemetry-instrument"),
        ("spawn", "variable"),
        ("spawn", "run"),
        ("spawn", "opentelemetry-instrument"),
        ("forkserver", "variable"),
        ("forkserver", "opentelemetry-instrument"),
    ],
)
def test_B63_B69_three_workers_and_their_parent(room: Room, method: str, way: str) -> None:
    room.way = way

    reports = room.run(f"METHOD = {method!r}\n" + PROCESSES)

    check(reports, 4)
    assert room.vendor.hits == 4 * 2
    assert list(room.admissions().values()) == [NUMBERS] * 4
    assert list(room.transitions().values()) == [{"open": 1}] * 4
    assert sorted(room.opened()) == sorted(room.admissions())


def test_a_forked_worker_inherits_the_open_circuit_and_counts_from_zero(room: Room) -> None:
    parent, child = room.run(
        """
        import multiprocessing
        import job

        def work():
            job.say(job.report(URL))

        job.say(job.report(URL))
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        """
    )

    assert (parent["seen"], child["seen"]) == ([503, 503, "circuit_open"], ["circuit_open"] * 3)
    assert room.vendor.hits == 2
    numbers = list(room.admissions().values())
    assert sorted(numbers, key=len) == [{"circuit_open": 3}, NUMBERS]
    assert len(room.opened()) == 1


def test_B69_an_id_that_the_environment_tells_is_the_parents_alone(room: Room) -> None:
    """Every child that is spawned reads the same environment."""
    room.run("METHOD = 'spawn'\n" + PROCESSES, OTEL_RESOURCE_ATTRIBUTES="service.instance.id=told")

    ids = sorted(room.admissions(), key=len)
    assert (ids[0], len(ids)) == ("told", 4)


@pytest.mark.parametrize("end", ["close", "terminate"])
def test_a_pool_exports_however_it_ends(room: Room, end: str) -> None:
    """Leaving the with block terminates the workers by SIGTERM; close() lets them end by themselves."""
    reports = room.run(
        f"""
        import multiprocessing, time
        import job

        def work(gate):
            gate.wait()
            return job.report(URL)

        if __name__ == "__main__":
            with multiprocessing.Manager() as manager:
                gate = manager.Barrier(2)
                pool = multiprocessing.get_context("fork").Pool(2)
                for one in pool.map(work, [gate] * 2, chunksize=1):
                    job.say(one)
                pool.{end}()
                pool.join()
        """
    )

    check(reports, 2)
    assert list(room.admissions().values()) == [NUMBERS] * 2


def test_workers_of_a_pool_that_is_replaced_after_each_task_lose_nothing(room: Room) -> None:
    reports = room.run(
        """
        import multiprocessing
        import job

        if __name__ == "__main__":
            pool = multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1)
            for one in pool.map(job.report, [URL] * 3, chunksize=1):
                job.say(one)
            pool.close()
            pool.join()
        """
    )

    check(reports, 3)
    assert list(room.admissions().values()) == [NUMBERS] * 3


def test_a_process_pool_executor(room: Room) -> None:
    reports = room.run(
        """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        import job

        if __name__ == "__main__":
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                job.say(pool.submit(job.report, URL).result())
        """
    )

    check(reports, 1)
    assert list(room.admissions().values()) == [NUMBERS]


def test_a_worker_that_fails_reports_too(room: Room) -> None:
    process = room.program(
        """
        import multiprocessing
        import job

        def work():
            job.report(URL)
            raise SystemError("mine")

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        job.say(child.exitcode)
        """
    )
    out, err = process.communicate(timeout=30)

    assert (out, err.count("Traceback"), err.count("SystemError: mine")) == ("1\n", 1, 1)
    assert list(room.admissions().values()) == [NUMBERS]
