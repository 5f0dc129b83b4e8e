"""Guarded writes to an object store, the fence already claimed, compared with plain puts of the same bytes.

The store is obstore's, in memory, and answers each request after 10 ms. So the server's work does not count, and the
requests do, one after another or at the same time. They are also counted: they are the same everywhere.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from obstore.store import MemoryStore

from fencing import Fence
from storage_guards import AsyncObjectStoreGuard
from tests.benchmarks.contenders import AGAIN
from tests.benchmarks.measure import turns
from tests.benchmarks.parts import Found, Run

DELAY = 0.01
WARM_UP = 2
MANY = 100
MINE = Fence("sales", 1, "a" * 22)

SCENARIO = f"{DELAY * 1e3:.0f} ms for each request"
TIME, CPU, REQUESTS = "time, ms", "client CPU, ms", "requests"
PUT, PUBLISH, WRITE, PUBLISH_MANY = "put 1 KiB", "publish 1 KiB", "write 1 KiB", f"publish {MANY} of 1 KiB"
PUT_BIG, PUT_TEN = "put 256 KiB", "10 puts of 1 KiB"


class SlowStore:
    """A store in memory that answers each request after a while, and counts the requests."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self._store = MemoryStore()

    async def get_async(self, *arguments: Any, **options: Any) -> Any:
        await self._requested("get")
        return await self._store.get_async(*arguments, **options)

    async def put_async(self, *arguments: Any, **options: Any) -> Any:
        await self._requested("put")
        return await self._store.put_async(*arguments, **options)

    async def delete_async(self, *arguments: Any) -> Any:
        await self._requested("delete")
        return await self._store.delete_async(*arguments)

    def list(self, *arguments: Any, **options: Any) -> Any:
        return self._store.list(*arguments, **options)

    async def _requested(self, kind: str) -> None:
        self.requests[kind] += 1
        await asyncio.sleep(DELAY)


class Kind(NamedTuple):
    name: str
    plain: str
    """The name of the plain puts of the same bytes; its own name if it is one."""
    write: Callable[[], Awaitable[object]]


def part(run: Run) -> None:
    run.say(SCENARIO)
    found = run.child(SCENARIO, "all", "object_store.measure", seconds=120, rounds=run.rounds(20))
    for plain, its in (found or {}).items():
        run.compare(SCENARIO, its, {TIME: (plain,)})


def measure(rounds: int) -> dict[str, Found]:
    """Return the times and the requests of each kind of write, by the plain one. Runs in a child."""
    found, asked = asyncio.run(_measured(rounds))
    return {plain: {kind.name: found[kind.name] for kind in asked if kind.plain == plain} for _, plain, _ in asked}


async def kinds(store: SlowStore) -> list[Kind]:
    """Return the writes. Each one writes to what is there already."""
    guard = AsyncObjectStoreGuard(store)
    await guard.claim(MINE)
    small, big, ten = b"x" * 2**10, b"x" * 2**18, [str(number) for number in range(10)]
    stored = await guard.write(MINE, "replaced", small)
    numbers = itertools.count()

    async def put_ten() -> None:
        for name in ten:
            await store.put_async(f"plain-{name}", small)

    def write() -> Awaitable[object]:
        return guard.write(MINE, "in-place", b"%d" % next(numbers) + small)  # S3 refuses the same bytes

    async def replace() -> None:
        nonlocal stored
        stored = await guard.write(MINE, "replaced", b"%d" % next(numbers) + small, replacing=stored)

    def publish(count: int, data: bytes = small) -> Callable[[], Awaitable[object]]:
        return lambda: guard.publish(MINE, {str(number): data for number in range(count)})

    common = [
        Kind(PUT, PUT, lambda: store.put_async("plain", small)),
        Kind(PUBLISH, PUT, publish(1)),
        Kind(WRITE, PUT, write),
        Kind("write 1 KiB, replacing", PUT, replace),
        Kind(PUT_BIG, PUT_BIG, lambda: store.put_async("plain-big", big)),
        Kind("publish 256 KiB", PUT_BIG, publish(1, big)),
        Kind(PUT_TEN, PUT_TEN, put_ten),
        Kind("publish 10 of 1 KiB", PUT_TEN, publish(len(ten))),
    ]
    again = [Kind(PUBLISH + AGAIN, PUT, publish(1)), Kind(WRITE + AGAIN, PUT, write)]
    many = [Kind(PUBLISH_MANY, PUBLISH_MANY, publish(MANY)), Kind(PUBLISH_MANY + AGAIN, PUBLISH_MANY, publish(MANY))]
    return [*common, *again, *many]


async def _measured(rounds: int) -> tuple[dict[str, dict[str, list[float]]], dict[Kind, Counter[str]]]:
    store = SlowStore()
    writes = {kind.name: kind for kind in await kinds(store)}
    asked: dict[Kind, Counter[str]] = {}
    for kind in [*writes.values()] * WARM_UP:
        store.requests.clear()
        await kind.write()
        asked[kind] = store.requests.copy()
    found: dict[str, dict[str, list[float]]] = {name: {TIME: [], CPU: []} for name in writes}
    for kind, counts in asked.items():
        found[kind.name][REQUESTS] = [counts.total()]
    for name in turns(list(writes), rounds):
        cpu, started = time.process_time(), time.perf_counter()
        await writes[name].write()
        found[name][TIME].append((time.perf_counter() - started) * 1e3)
        found[name][CPU].append((time.process_time() - cpu) * 1e3)
    return found, asked
