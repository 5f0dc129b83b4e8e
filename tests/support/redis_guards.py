"""Guards of data in Redis, sync and async behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

from storage_guards import AsyncRedisGuard, RedisGuard
from tests.support.sides import Side


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
