"""A Redis for a measurement: on this machine, in memory only, on the processors of its starter."""

from __future__ import annotations

import time
from collections.abc import Sequence

from examples.servers import RedisServer, start_redis


def redis_server(*extra: str) -> RedisServer:
    arguments: Sequence[str] = ("--appendonly", "no", *extra)
    return start_redis(local=True, extra_args=arguments)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of another process; see clock_getcpuclockid(3). Linux only."""
    return time.clock_gettime((~pid << 3) | 2)
