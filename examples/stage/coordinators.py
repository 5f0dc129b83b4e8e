"""The coordinators that a demo can run on. One entry each: how its servers start, and how a process opens it."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import redis
from sqlalchemy import create_engine

from examples.servers import start_postgres, start_redis
from fencing import Coordinator, RedisCoordinator, RedlockCoordinator, SQLCoordinator

LONGEST_TTL = 30.0
"""Seconds: the longest that a demo may ask for. All coordinators of the same nodes must agree on it."""

NODE_TIMEOUT = 0.2
"""Seconds: more than by default, because all five share one machine with everything else."""


class Choice(NamedTuple):
    title: str
    """Where its locks are."""
    start: Callable[[ExitStack], str]
    """Start its servers, which the stack removes again, and return their address: a text."""
    open: Callable[..., Coordinator]
    """Return the coordinator at an address; with the options of locks."""


def _start_redis(stack: ExitStack) -> str:
    return stack.enter_context(start_redis()).url


def _start_redlock(stack: ExitStack) -> str:
    addresses = ",".join(stack.enter_context(start_redis(own=True, local=True)).url for _ in range(5))
    with _open_redlock(addresses) as coordinator:
        coordinator.initialise()
    return addresses


def _start_sqlite(stack: ExitStack) -> str:
    directory = stack.enter_context(TemporaryDirectory(prefix="fencing-demo-"))
    return _with_tables(f"sqlite:///{directory}/locks.db")


def _start_sql(stack: ExitStack) -> str:
    postgres = stack.enter_context(start_postgres())
    url = postgres.create_database()
    stack.callback(postgres.drop_database, url)
    return _with_tables(url)


def _with_tables(url: str) -> str:
    engine = create_engine(url)
    SQLCoordinator(engine).create_tables()
    engine.dispose()
    return url


def _open_redis(address: str, **options: Any) -> Coordinator:
    return RedisCoordinator(redis.Redis.from_url(address), **options)


def _open_redlock(address: str, *, ttl: float = 10.0, **options: Any) -> RedlockCoordinator:
    clients = [redis.Redis.from_url(url) for url in address.split(",")]
    timeout = min(NODE_TIMEOUT, ttl / 4)
    return RedlockCoordinator(clients, ttl=ttl, longest_ttl=LONGEST_TTL, node_timeout=timeout, **options)


def _open_sql(address: str, **options: Any) -> Coordinator:
    return SQLCoordinator(create_engine(address), **options)


CHOICES: Mapping[str, Choice] = {
    "redis": Choice("locks in Redis", _start_redis, _open_redis),
    "redlock": Choice("locks in five independent Redis", _start_redlock, _open_redlock),
    "sql": Choice("locks in PostgreSQL", _start_sql, _open_sql),
    "sqlite": Choice("locks in SQLite", _start_sqlite, _open_sql),
}
