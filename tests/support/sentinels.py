"""Sentinels with their servers for tests, and clients of them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import redis.asyncio.sentinel
import redis.sentinel

from examples.servers import SentinelServers, ServerError, start_sentinels
from tests.support.fixtures import missing_or_broken, name_of, newest_found
from tests.support.sides import Side


def started(stack: ExitStack, **options: Any) -> SentinelServers:
    """Start Sentinels on the newest Redis; `options` as for `start_sentinels`."""
    version = newest_found()
    options = {"version": version, **options}
    try:
        return stack.enter_context(start_sentinels(**options))
    except ServerError as error:
        missing_or_broken(name_of(options["version"]), error)


def sentinel_client(side: Side, addresses: list[tuple[str, int]], **options: Any) -> Any:
    """Return redis-py's Sentinel, with its own retries and time-outs unless there are options."""
    return (redis.asyncio.sentinel if side.asynchronous else redis.sentinel).Sentinel(addresses, **options)


def master_for(side: Side, addresses: list[tuple[str, int]], service: str = "shop", **options: Any) -> Any:
    """Return a client of the primary that Sentinels name."""
    return sentinel_client(side, addresses, **options).master_for(service)
