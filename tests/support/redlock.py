"""Coordinators on several Redis servers, for threads and for asyncio."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from examples.servers import FakeClock, RedisServer, find_redis_binaries, start_redis
from examples.servers.redis import version_for_clocks
from fencing import AsyncRedlockCoordinator, RedlockCoordinator
from tests.support.fixtures import missing
from tests.support.sides import Side

NODE_TIMEOUT = 2.0
"""Seconds: far more than a node takes on a busy machine. Tests of time-outs pass their own."""


class FreshNodes(Protocol):
    def __call__(
        self,
        count: int = 3,
        *,
        longest_ttl: float = 0.5,
        extra_args: tuple[str, ...] = (),
        admitted: bool = True,
        clocks: Sequence[FakeClock] = (),
    ) -> RedlockNodes: ...


class RedlockNodes:
    """The nodes of one installation."""

    def __init__(self, servers: Sequence[RedisServer], *, longest_ttl: float) -> None:
        self.servers = list(servers)
        self.longest_ttl = longest_ttl

    def wait_until_all_hold(self, side: Side, name: str) -> None:
        """Wait until a lock has arrived at each node: a grant waits for a majority only."""
        for server in self.servers:
            with server.client() as client:
                side.wait_until(lambda client=client: client.exists(name))  # type: ignore[misc]

    def coordinator(self, side: Side, urls: Sequence[str] | None = None, **options: Any) -> Any:
        """A coordinator on these nodes, or on these addresses of them. The test closes it, or its side does."""
        kind: Any = AsyncRedlockCoordinator if side.asynchronous else RedlockCoordinator
        clients = [side.client(url) for url in urls or [server.url for server in self.servers]]
        ttl = options.setdefault("ttl", min(10.0, self.longest_ttl))
        options.setdefault("node_timeout", min(NODE_TIMEOUT, ttl / 4))
        options.setdefault("longest_ttl", self.longest_ttl)
        made = kind(clients, **options)
        side.made.append(made)
        return made


def start_node(extra_args: Sequence[str] = (), clock: FakeClock | None = None) -> RedisServer:
    """Start a Redis that the test may freeze, kill and restart."""
    if not find_redis_binaries():
        missing("redis", "found no binary")
    if clock is None:
        return start_redis(extra_args=extra_args, own=True, local=True)
    return start_redis(extra_args=extra_args, own=True, version=version_for_clocks(), environment=clock.environment)


TIMESTAMPS = ("--aof-timestamp-enabled", "yes")
"""A server that notes in its file of all writes when each second begins."""


def cut_off_the_last_second(server: RedisServer) -> bool:
    """Remove the writes of its last second, as a crash of the machine does. The server does not run. False: it has
    none."""
    data: Any = server._host
    [file] = data._data.glob("appendonlydir/*.incr.aof")
    text = file.read_bytes()
    seconds = list(re.finditer(rb"(?m)^#TS:[0-9]+\r\n", text))
    if seconds:
        file.write_bytes(text[: seconds[-1].start()])
    return bool(seconds)
