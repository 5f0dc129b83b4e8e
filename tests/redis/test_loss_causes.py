"""The causes of a loss, each made to happen: a stopped process, a blocked loop, a frozen Redis, lost data, force."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from examples.servers import RedisServer
from examples.servers.freezing import freeze
from fencing import AsyncRedisCoordinator, LeaseLost
from tests.support import wait_until
from tests.support.sides import Side

ROOT = Path(__file__).resolve().parents[2]
TTL = 2.0


def loss_of(side: Side, lease: Any) -> LeaseLost:
    side.wait_until(lease.lost.is_set)
    return side.expect(LeaseLost, lease.ensure_held)


def loss_found_by_a_renewal(side: Side, lease: Any) -> LeaseLost:
    """The ttl is long, so that a busy machine does not make it end first."""
    error = side.expect(LeaseLost, lease.renew)
    assert lease.lost.is_set()
    assert side.expect(LeaseLost, lease.ensure_held).cause == error.cause
    return error


@pytest.mark.thorough
def test_a_stopped_process(side: Side, any_redis: RedisServer) -> None:
    command = [sys.executable, "-m", "tests.support.stopped_holder", any_redis.url, str(TTL), side.name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        freeze(process)
        wait_until(lambda: any_redis.client().get("r") is None)
        process.send_signal(signal.SIGCONT)
        said = process.stdout.readline()
    assert re.search(r"has passed its deadline: this process stood still for \d+\.\d s; stop", said)


@pytest.mark.thorough
def test_a_blocked_event_loop(any_redis: RedisServer) -> None:
    async def main() -> str | None:
        client = redis.asyncio.Redis.from_url(any_redis.url)
        async with AsyncRedisCoordinator(client, ttl=TTL, stall_limit=0.1) as coordinator:
            lease = await coordinator.acquire("r")
            wait_until(lambda: lease._holding.has_ended)  # this is the fault: it blocks the loop
            with pytest.raises(LeaseLost) as raised:
                lease.ensure_held()
            return raised.value.cause

    cause = asyncio.run(main())
    assert re.fullmatch(r"the event loop had not answered for \d+\.\d s, and stall_limit is 0\.1 s", cause or "")


@pytest.mark.thorough
def test_a_frozen_redis(side: Side, freezable_redis: RedisServer) -> None:
    lease = side.call(side.coordinator(freezable_redis.url, ttl=TTL).acquire, "r")
    freezable_redis.freeze()
    error = loss_of(side, lease)
    assert error.reason == "expired"
    assert re.fullmatch(
        r"no answer from Redis at [^ ]+ for \d+\.\d s; the last renewal, or the grant, was \d+\.\d s ago",
        error.cause or "",
    )


def test_a_flushed_redis(side: Side, any_redis: RedisServer) -> None:
    lease = side.call(side.coordinator(any_redis.url, ttl=60).acquire, "r")
    any_redis.client().flushall()
    error = loss_found_by_a_renewal(side, lease)
    assert (error.reason, error.cause) == ("gone", "the lock is free, nobody has it now")


@pytest.mark.parametrize("then", ["free", "taken"])
def test_a_forced_release(side: Side, any_redis: RedisServer, then: str) -> None:
    lease = side.call(side.coordinator(any_redis.url, ttl=60).acquire, "r")
    side.call(side.coordinator(any_redis.url, owner="an operator").force_release, "r")
    if then == "taken":
        side.call(side.coordinator(any_redis.url, owner="the next one").acquire, "r").detach()
    error = loss_found_by_a_renewal(side, lease)
    assert error.cause == "force-released by an operator"
    [name] = any_redis.client().keys("fencing:1:*:forced:*")
    assert 0 < any_redis.client().ttl(name) <= 60


def test_a_lock_of_redis_py(side: Side, any_redis: RedisServer) -> None:
    lease = side.call(side.coordinator(any_redis.url, ttl=60).acquire, "r")
    any_redis.client().set("r", "a token of redis-py", px=20_000)
    assert loss_found_by_a_renewal(side, lease).cause == "a holder that does not use this library has the lock"
    any_redis.client().delete("r")
