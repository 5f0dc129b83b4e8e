"""Sentinels with their servers for tests, and clients of them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import redis.asyncio.sentinel
import redis.sentinel

from examples.servers import SentinelServers, ServerError, start_sentinels
from tests.support.fixtures import flush, missing_or_broken, name_of, newest_found
from tests.support.sides import Side


def started(stack: ExitStack, **options: Any) -> SentinelServers:
    """Start Sentinels on the newest Redis; `options` as for `start_sentinels`."""
    version = newest_found()
    options = {"version": version, **options}
    try:
        return stack.enter_context(start_sentinels(**options))
    except ServerError as error:
        missing_or_broken(name_of(options["version"]), error)


class SharedSentinels:
    """The Sentinels of a run by series: three each, with a primary and two replicas. No test makes them fail over."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str | None, SentinelServers] = {}

    def get(self, series: str | None) -> SentinelServers:
        """Return those of a series, with an empty primary."""
        if series not in self._started:
            self._started[series] = started(self._stack, version=series, down_after=10.0)
        flush(self._started[series].servers[0])
        return self._started[series]


def sentinel_client(side: Side, addresses: list[tuple[str, int]], **options: Any) -> Any:
    """Return redis-py's Sentinel, with its own retries and time-outs unless there are options."""
    return (redis.asyncio.sentinel if side.asynchronous else redis.sentinel).Sentinel(addresses, **options)


def master_for(side: Side, addresses: list[tuple[str, int]], service: str = "shop", **options: Any) -> Any:
    """Return a client of the primary that Sentinels name."""
    return sentinel_client(side, addresses, **options).master_for(service)
