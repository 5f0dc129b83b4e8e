"""Guards of data in Redis, sync and async behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

from examples.servers import RedisServer
from fencing.kernel.fence import Fence
from storage_guards import AsyncRedisGuard, RedisGuard
from storage_guards.testing import GuardContract
from tests.support.sides import Side


class RedisGuardContract(GuardContract):
    """The contract over one Redis: who subclasses it sets the server, and a client of it."""

    server: RedisServer
    direct: Any

    def make(self) -> Any:
        return RedisGuard(self.server.client())

    def read(self, resource: str) -> int:
        return int(self.direct.get(f"data:{resource}") or 0)

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        return self.guard.write(fence, ("SET", f"data:{resource}", value), **options)

    def write_unguarded(self, resource: str, value: int) -> None:
        self.direct.set(f"data:{resource}", value)

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> Any:
        with self.guard.begin(fence, **options) as transaction:
            value = int(transaction.read("GET", f"data:{resource}") or 0)
            between()
            transaction.write("SET", f"data:{resource}", value + 1)


def guard_of(side: Side, url: str, *, cluster: bool = False, timeout: float = 10.0, **options: Any) -> Any:
    """Make a guard over a client of its own."""
    module: Any = redis.asyncio if side.asynchronous else redis
    client = (module.RedisCluster if cluster else module.Redis).from_url(url, **options)
    return (AsyncRedisGuard if side.asynchronous else RedisGuard)(client, timeout=timeout)


def in_block(side: Side, guard: Any, *holders: Any, work: Callable[[Any, Any], None], **options: Any) -> None:
    """Run ``work(transaction, read)`` in a transaction; ``read`` is a plain function on both sides."""

    def sync() -> None:
        with guard.begin(*holders, **options) as transaction:
            work(transaction, transaction.read)

    async def asynchronous() -> None:
        async with guard.begin(*holders, **options) as transaction:
            work(transaction, lambda *command: _Later(transaction.read(*command)))

    side.call(asynchronous if side.asynchronous else sync)


class _Later:
    """A read of an async transaction that the block does not need."""

    def __init__(self, coroutine: Any) -> None:
        coroutine.close()
