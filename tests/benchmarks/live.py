"""Many locks in Redis: the time of a pair, the memory of a live lock, and what stays of a name that was locked once.

Two servers, one with ten locks and one with many, are on the same core. Their pairs take turns.
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
from tests.benchmarks.contenders import AGAIN, OURS, REDIS_PY, open_threads
from tests.benchmarks.measure import ratios, turns
from tests.benchmarks.parts import Run
from tests.benchmarks.servers import redis_server

FEW = 10
TTL = 3600
AT_ONCE = 500
LIMIT = 240.0
SHRINKING = 60.0
LEVELS = (1_000, 1_000_000)
QUICK_LEVELS = (1_000, 10_000)
MANY = "{:,} live locks"
LEFT = "names ever locked"
TIME, EACH, SLOT, KEYS = "pair, µs", "bytes a live lock", "bytes a slot", "keys left"

# Keys without an expiry would stay for ever. All others are deleted, as if their time had come.
_EXPIRE_ALL = """
local reply = redis.call('SCAN', ARGV[1], 'COUNT', 2000)
for _, key in ipairs(reply[2]) do
  if redis.call('PTTL', key) >= 0 then redis.call('DEL', key) end
end
return reply[1]
"""


def part(run: Run) -> None:
    levels = QUICK_LEVELS if run.quick else LEVELS
    run.say(f"up to {levels[-1]:,} live locks")
    result = run.child(LEFT, OURS, "live.measure", seconds=LIMIT, levels=levels, rounds=run.rounds(100))
    if result is not None:
        for level in result["levels"]:
            scenario, times = MANY.format(level["locks"]), level["times"]
            noise = ratios(times["many" + AGAIN], times["many"])
            run.add(scenario, OURS, TIME, times["many"])
            run.add(scenario, OURS, f"pair x with {FEW}", ratios(times["many"], times["few"]), noise)
            run.add(scenario, OURS, EACH, [level["memory"] / level["locks"]])
        run.add(LEFT, OURS, "names", [levels[-1]])
        run.add(LEFT, OURS, KEYS, [result["keys_left"]])
        run.add(LEFT, OURS, SLOT, [result["left"] / max(1, result["keys_left"])])
    locks = min(levels[-1], 100_000)  # beyond, it is the same for each
    theirs = run.child(MANY.format(locks), REDIS_PY, "live.measure_theirs", seconds=60, locks=locks)
    if theirs is not None:
        run.add(MANY.format(levels[-1]), REDIS_PY, EACH, [theirs])


def measure(levels: list[int], rounds: int) -> dict[str, Any]:
    """Return the times of pairs at each level, and Redis' own account of its memory. Runs in a child."""
    with redis_server() as few, redis_server() as many, many.client() as admin:
        _fill(few, 0, FEW)
        pairs = {}
        for name, server in (("few", few), ("many", many), ("many" + AGAIN, many)):
            pairs[name] = open_threads(OURS, server.url, ttl=10, connections=2)("another")
            _batch(pairs[name])
        empty = _memory(admin)
        found = []
        there = 0
        for level in levels:
            _fill(many, there, level)
            there = level
            times: dict[str, list[float]] = {name: [] for name in pairs}
            for name in turns(list(pairs), rounds):
                times[name].append(_batch(pairs[name]))
            found.append({"locks": level, "memory": _memory(admin) - empty, "times": times})
        _let_expire(admin)
        return {"levels": found, "left": _settled(admin) - empty, "keys_left": admin.dbsize()}


def measure_theirs(locks: int) -> float:
    """Return the bytes of a lock, as redis-py's lock sets it. Runs in a child."""
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
    return (time.perf_counter() - started) / pairs * 1e6


def _memory(client: redis.Redis) -> int:
    info: dict[str, Any] = client.info("memory")
    return int(info["used_memory"])


def _settled(client: redis.Redis) -> int:
    """Return the memory after Redis has shrunk its tables, which it does bit by bit."""
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
    for _ in range(2):  # SCAN may miss keys while the table shrinks
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
    unpin()  # leave the server's core to it
    asyncio.run(fill(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
