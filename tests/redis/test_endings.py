"""Ends of the interpreter and of event loops, with leases held and locks to give back: no hang, and no traceback."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from examples.servers import RedisServer

START = """
import asyncio, os, signal
import redis, redis.asyncio
from fencing import AsyncRedisCoordinator, FencingError, RedisCoordinator

url, pid = {url!r}, {pid}

def freeze():
    os.kill(pid, signal.SIGSTOP)

async def hold(coordinator):
    async with coordinator.hold("r"):
        await asyncio.sleep(60)

async def main(end):
    global coordinator, tasks
    coordinator = AsyncRedisCoordinator(redis.asyncio.Redis.from_url(url), ttl=0.9)
    await (await coordinator.acquire("warm")).release()
    tasks = [asyncio.create_task(hold(coordinator)) for _ in range(2)]
    await asyncio.sleep(0.1)
    end()
"""

PROGRAMS = {
    "a block that the interpreter ends": """
coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=0.9)
block = coordinator.hold("r")
block.__enter__()
freeze()
""",
    "a lock to give back": """
coordinator = RedisCoordinator(redis.Redis.from_url(url), ttl=0.9)
coordinator.acquire("warm").release()
freeze()
try:
    coordinator.acquire("r", timeout=0.1)
except FencingError:
    pass
""",
    "tasks that the loop ends": """
asyncio.run(main(lambda: None))
assert redis.Redis.from_url(url).get("r") is None
""",
    "tasks that the loop ends, without an answer": """
asyncio.run(main(freeze))
""",
    "a loop that is closed": """
loop = asyncio.new_event_loop()
loop.run_until_complete(main(lambda: [task.cancel() for task in tasks]))
loop.run_until_complete(asyncio.wait(tasks))
loop.close()
""",
}


@pytest.mark.thorough
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_nothing_hangs_and_nothing_is_reported(program: str, freezable_redis: RedisServer) -> None:
    pid = freezable_redis.client().info("server")["process_id"]
    code = START.format(url=freezable_redis.url, pid=pid) + program
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    freezable_redis.thaw()
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "destroyed" not in done.stderr
    assert time.monotonic() - began < 40
