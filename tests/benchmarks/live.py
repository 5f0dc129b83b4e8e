"""Many locks in Redis: whether a pair takes longer, and what each of them, and each name ever locked, keeps in memory.

Two servers, one with ten locks and one with many, on the same core; pairs turn about.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import redis
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncRedisCoordinator
from tests.benchmarks.children import unpin
from tests.benchmarks.contenders import OURS, REDIS_PY, open_threads
from tests.benchmarks.measure import ratios
from tests.benchmarks.parts import Run
from tests.benchmarks.servers import redis_server

FEW = 10
TTL = 3600
AT_ONCE = 500
LIMIT = 240.0
SHRINKING = 60.0
MEMORY = "memory, {:,} names"

# What would stay for ever is what has no expiry; all the rest is taken away as if its time had come.
_EXPIRE_ALL = """
local reply = redis.call('SCAN', ARGV[1], 'COUNT', 2000)
for _, key in ipairs(reply[2]) do
  if redis.call('PTTL', key) >= 0 then redis.call('DEL', key) end
end
return reply[1]
"""


def part(run: Run) -> None:
    levels = [100, 1_000, 10_000] if run.quick else [100, 1_000, 10_000, 100_000, 1_000_000]
    memory = MEMORY.format(levels[-1])
    run.say(f"up to {levels[-1]:,} live locks")
    result = run.child("live locks", OURS, "live.measure", seconds=LIMIT, levels=levels, rounds=10 if run.quick else 60)
    if result is not None:
        for level in result["levels"]:
            scenario = f"{level['locks']:,} live locks"
            run.add(scenario, OURS, "pair, µs", [seconds * 1e6 for seconds in level["many"]])
            run.add(scenario, OURS, f"x with {FEW}", ratios(level["many"], level["few"]))
            run.add(scenario, OURS, "bytes a live lock", level["memory"] / level["locks"])
        run.add(memory, OURS, "bytes a live lock", result["levels"][-1]["memory"] / levels[-1])
        run.add(memory, OURS, "bytes a name ever locked", result["left"] / levels[-1])
        run.add(memory, OURS, "names locked", levels[-1])
        run.add(memory, OURS, "keys left", result["keys_left"])
    locks = min(levels[-1], 100_000)  # from there on it is the same for each
    theirs = run.child(memory, REDIS_PY, "live.measure_theirs", seconds=60, locks=locks)
    if theirs is not None:
        run.add(memory, REDIS_PY, "names locked", locks)
        run.add(memory, REDIS_PY, "bytes a live lock", theirs)


def measure(levels: list[int], rounds: int) -> dict[str, Any]:
    """In a child: seconds of pairs at each level, and what Redis says of its memory."""
    with redis_server() as few, redis_server() as many, many.client() as admin:
        _fill(few, 0, FEW)
        pairs = {}
        for name, server in (("few", few), ("many", many)):
            pairs[name] = open_threads(OURS, server.url, ttl=10, connections=2)("another")
            _batch(pairs[name])
        empty = _memory(admin)
        found = []
        there = 0
        for level in levels:
            _fill(many, there, level)
            there = level
            times: dict[str, list[float]] = {name: [] for name in pairs}
            for _ in range(rounds):
                for name, way in pairs.items():
                    times[name].append(_batch(way))
            found.append({"locks": level, "memory": _memory(admin) - empty, **times})
        _let_expire(admin)
        return {"levels": found, "left": _settled(admin) - empty, "keys_left": admin.dbsize()}


def measure_theirs(locks: int) -> float:
    """In a child: bytes a lock, as redis-py's lock sets it."""
    with redis_server() as server, server.client() as client:
        client.lock("another", timeout=TTL).acquire()
        empty = _memory(client)
        for start in range(0, locks, AT_ONCE):
            with client.pipeline(transaction=False) as pipeline:
                for number in range(start, start + AT_ONCE):
                    pipeline.set(f"orders:{number}", f"{number:032x}", nx=True, px=TTL * 1000)
                pipeline.execute()
        return (_memory(client) - empty) / locks


def _batch(way: Any, pairs: int = 20) -> float:
    started = time.perf_counter()
    for _ in range(pairs):
        way.acquire()
        way.release()
    return (time.perf_counter() - started) / pairs


def _memory(client: redis.Redis) -> int:
    info: dict[str, Any] = client.info("memory")
    return int(info["used_memory"])


def _settled(client: redis.Redis) -> int:
    """Once Redis has shrunk its tables, which it does bit by bit."""
    before, deadline = _memory(client), time.monotonic() + SHRINKING
    while time.monotonic() < deadline:
        time.sleep(1)
        now = _memory(client)
        if now >= before:
            break
        before = now
    return before


def _let_expire(admin: redis.Redis) -> None:
    cursor: Any = b"0"
    script = admin.register_script(_EXPIRE_ALL)
    for _ in range(2):  # keys that SCAN met while the table shrank may have been passed over
        cursor = script(args=[0])
        while cursor != b"0":
            cursor = script(args=[cursor])


def _fill(server: RedisServer, start: int, end: int) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.live", server.url, str(start), str(end)]
    subprocess.run(command, check=True, timeout=LIMIT)


async def fill(url: str, start: int, end: int) -> None:
    """Take the locks of these numbers, and leave them to their ttl."""
    async with (
        redis.asyncio.Redis.from_url(url) as client,
        AsyncRedisCoordinator(client, ttl=TTL, renew=False) as coordinator,
    ):
        for first in range(start, end, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, end))
            for lease in await asyncio.gather(*(coordinator.acquire(f"orders:{number}", 30) for number in numbers)):
                lease.detach()


if __name__ == "__main__":
    unpin()  # beside the server, not in its way
    asyncio.run(fill(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
