"""Acquire and release with asyncio: one task, and 64 tasks at once with a lock each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from tests.benchmarks.contenders import ASYNC, AsyncWay, contenders, open_async
from tests.benchmarks.measure import turns
from tests.benchmarks.pair import BATCH_LIMIT, CPU, TIME, TTL, report, scenario_of
from tests.benchmarks.parts import Run
from tests.benchmarks.servers import redis_server

Pair = Callable[[], Awaitable[object]]

# Tasks, rounds, pairs in a batch of each task.
SIZES = ((1, 1000, 10), (64, 150, 3))


def part(run: Run) -> None:
    for tasks, rounds, batch in SIZES:
        for one_core in (True, False) if run.everything else (True,):
            scenario = scenario_of("tasks", tasks, one_core)
            run.say(scenario)
            names = contenders(ASYNC, everything=run.everything)
            options = {"tasks": tasks, "rounds": run.rounds(rounds), "batch": batch, "names": names}
            result = run.child(scenario, "all", "tasks.measure", seconds=180, one_core=one_core, **options)
            report(run, scenario, result)


def measure(tasks: int, rounds: int, batch: int, names: Sequence[str]) -> dict[str, Any]:
    """Do the same as ``pair.measure``. A pair's time is that of the batch, divided by the pairs of all tasks."""
    with redis_server() as server:
        resources = [f"orders:{number}" for number in range(tasks)]

        async def all_of_them() -> dict[str, Any]:
            async with AsyncExitStack() as stack:
                pairs: dict[str, list[Pair]] = {}
                failures: dict[str, str] = {}
                for name in names:
                    try:
                        make = await open_async(name, server.url, stack, ttl=TTL, connections=tasks)
                        pairs[name] = [_pair_of(make(f"{resource}:{name}")) for resource in resources]
                    except Exception as error:  # noqa: BLE001 - it is reported, and the others go on
                        failures[name] = f"{type(error).__name__}: {error}"
                return await _measured(pairs, failures, rounds, batch)

        return asyncio.run(all_of_them())


async def _measured(pairs: dict[str, list[Pair]], failures: dict[str, str], rounds: int, batch: int) -> dict[str, Any]:
    found: dict[str, dict[str, list[float]]] = {name: {TIME: [], CPU: []} for name in pairs}

    async def turn(name: str, *, counts: bool) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        try:
            await asyncio.wait_for(asyncio.gather(*(_batch(pair, batch) for pair in pairs[name])), BATCH_LIMIT)
        except Exception as error:  # noqa: BLE001 - as above
            failures[name] = f"{type(error).__name__}: {error}"
            return
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if counts:
            each = batch * len(pairs[name])
            found[name][TIME].append(wall / each * 1e6)
            found[name][CPU].append(cpu / each * 1e6)

    for name in pairs:
        await turn(name, counts=False)
    for name in turns(list(pairs), rounds, failures):
        await turn(name, counts=True)
    return {"found": found, "failures": failures}


async def _batch(pair: Pair, batch: int) -> None:
    for _ in range(batch):
        await pair()


def _pair_of(way: AsyncWay) -> Pair:
    acquire, release = way

    async def pair() -> None:
        await acquire()
        await release()

    return pair
