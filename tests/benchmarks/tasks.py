"""Acquire and release with asyncio: one task, and 64 tasks at once with a lock each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from tests.benchmarks.contenders import ASYNC, RAW, AsyncWay, open_async
from tests.benchmarks.measure import turns
from tests.benchmarks.pair import report
from tests.benchmarks.parts import Run
from tests.benchmarks.raw import AsyncRaw, recorded_pairs
from tests.benchmarks.servers import redis_server

TTL = 10
BATCH_LIMIT = 20.0

Pair = Callable[[], Awaitable[object]]


def part(run: Run) -> None:
    for tasks in (1, 64):
        for one_core in (True, False):
            scenario = f"{'one task' if tasks == 1 else f'{tasks} tasks'}, {'one core' if one_core else 'all cores'}"
            run.say(scenario)
            rounds, batch = (60, 20) if tasks == 1 else (20, 5)
            result = run.child(
                scenario,
                "all",
                "tasks.measure",
                seconds=180,
                one_core=one_core,
                tasks=tasks,
                rounds=rounds // 6 if run.quick else rounds,
                batch=batch,
            )
            if result is not None:
                report(run, scenario, result)


def measure(tasks: int, rounds: int, batch: int) -> dict[str, Any]:
    """In a child: as ``pair.measure``. A pair's time is that of the batch over all its pairs, those of all tasks."""
    with redis_server() as server:
        resources = [f"orders:{number}" for number in range(tasks)]
        recorded = recorded_pairs(server.host, server.port, resources, TTL)

        async def all_of_them() -> dict[str, Any]:
            async with AsyncExitStack() as stack:
                raw = await AsyncRaw.open(server.host, server.port)
                pairs: dict[str, list[Pair]] = {RAW: [raw.pairs_of(commands) for commands in recorded]}
                failures: dict[str, str] = {}
                for name in ASYNC:
                    try:
                        make = await open_async(name, server.url, stack, ttl=TTL, connections=tasks)
                        pairs[name] = [_pair_of(make(f"{resource}:{name}")) for resource in resources]
                    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported, and the others go on
                        failures[name] = f"{type(error).__name__}: {error}"
                return await _measured(pairs, failures, rounds, batch)

        return asyncio.run(all_of_them())


async def _measured(pairs: dict[str, list[Pair]], failures: dict[str, str], rounds: int, batch: int) -> dict[str, Any]:
    times: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in pairs}

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
            times[name]["wall"].append(wall / each)
            times[name]["cpu"].append(cpu / each)

    for name in pairs:
        await turn(name, counts=False)
    for name in turns(list(pairs), rounds, failures):
        await turn(name, counts=True)
    return {"times": times, "failures": failures}


async def _batch(pair: Pair, batch: int) -> None:
    for _ in range(batch):
        await pair()


def _pair_of(way: AsyncWay) -> Pair:
    acquire, release = way

    async def pair() -> None:
        await acquire()
        await release()

    return pair
