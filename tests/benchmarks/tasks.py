"""Acquire and release with asyncio: one task, and 64 tasks at once with a lock each.

Raw commands are here a bare Protocol: all tasks send our bytes through one connection, and wait for their replies.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import hiredis

from tests.benchmarks.contenders import AGAIN, ASYNC, REDIS_PY, AsyncWay, open_async
from tests.benchmarks.duel import Batch, Contenders
from tests.benchmarks.pair import CPU, LIMIT, TIME, TTL, scenario_of
from tests.benchmarks.parts import Run
from tests.benchmarks.raw import RAW, recorded_pairs
from tests.benchmarks.servers import redis_server

Pair = Callable[[], Awaitable[object]]

# Tasks, rounds, pairs in a batch of each task.
SIZES = ((1, 1000, 10), (64, 150, 3))


def part(run: Run) -> None:
    for tasks, rounds, batch in SIZES:
        for one_core in (True, False) if run.everything else (True,):
            options = {"tasks": tasks, "batch": batch, "names": run.contenders(ASYNC)}
            against = {TIME: (REDIS_PY, RAW), CPU: (REDIS_PY,)}
            scenario = scenario_of("tasks", tasks, one_core)
            run.duel(scenario, "tasks.opened", against, rounds=rounds, seconds=LIMIT, one_core=one_core, **options)


@contextmanager
def opened(tasks: int, batch: int, names: Sequence[str]) -> Iterator[Contenders]:
    """Do the same as ``pair.opened``. A pair's time is that of the batch, divided by the pairs of all tasks."""
    with redis_server() as server, asyncio.Runner() as runner:
        stack = AsyncExitStack()
        resources = [f"orders:{number}" for number in range(tasks)]
        failures: dict[str, str] = {}
        recorded = recorded_pairs(server.host, server.port, resources, TTL)
        pairs: dict[str, list[Pair]] = {
            name: runner.run(_raw(server.host, server.port, recorded)) for name in (RAW, RAW + AGAIN)
        }
        for name in names:
            try:
                make = runner.run(open_async(name, server.url, stack, ttl=TTL, connections=tasks))
                pairs[name] = [_pair_of(make(f"{resource}:{name}")) for resource in resources]
            except Exception as error:  # noqa: BLE001 - it is reported, and the others go on
                failures[name] = f"{type(error).__name__}: {error}"

        def run(its: list[Pair]) -> tuple[float, float]:
            return runner.run(_all(its, batch))

        yield Contenders({name: Batch(functools.partial(run, its)) for name, its in pairs.items()}, batch, failures)
        runner.run(stack.aclose())


async def _all(pairs: list[Pair], batch: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(_batch(pair, batch) for pair in pairs))
    each = batch * len(pairs)
    return (time.perf_counter() - wall) / each, (time.process_time() - cpu) / each


async def _batch(pair: Pair, batch: int) -> None:
    for _ in range(batch):
        await pair()


def _pair_of(way: AsyncWay) -> Pair:
    acquire, release = way

    async def pair() -> None:
        await acquire()
        await release()

    return pair


class _Wire(asyncio.Protocol):
    def __init__(self) -> None:
        self.replies: deque[asyncio.Future[Any]] = deque()
        self._reader = hiredis.Reader(notEnoughData=_Wire)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _Wire:
            self.replies.popleft().set_result(reply)


async def _raw(host: str, port: int, recorded: Sequence[Sequence[bytes]]) -> list[Pair]:
    loop = asyncio.get_running_loop()
    transport, wire = await loop.create_connection(_Wire, host, port)

    def pair_of(commands: Sequence[bytes]) -> Pair:
        async def pair() -> None:
            for command in commands:
                reply: asyncio.Future[Any] = loop.create_future()
                wire.replies.append(reply)
                transport.write(command)
                await reply

        return pair

    return [pair_of(commands) for commands in recorded]
