"""Sync and async behind one interface, so that a test is written once and runs twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.retry
from redis._parsers import _AsyncRESP2Parser, _RESP2Parser
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from examples.servers import RedisCluster
from fencing import AsyncRedisCoordinator, RedisCoordinator
from fencing.redis.connection_factory import ConnectionFactory
from fencing.testing.contract import Contract
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard


class Side(Contract):
    """Makes coordinators, all sync or all async; ``call`` runs their methods, awaiting where that is needed."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.made: list[Any] = []

    @property
    def name(self) -> str:
        return "async" if self.asynchronous else "sync"

    def wait_until(self, condition: Callable[[], Any], *, seconds: float = 90.0) -> None:
        super().wait_until(condition, seconds=seconds)

    def client(self, url: str, **options: Any) -> Any:
        return (redis.asyncio.Redis if self.asynchronous else redis.Redis).from_url(url, **options)

    def cluster_client(self, cluster: RedisCluster, **options: Any) -> Any:
        return cluster.async_client(**options) if self.asynchronous else cluster.client(**options)

    def coordinator(self, url_or_client: Any, **settings: Any) -> Any:
        client = self.client(url_or_client) if isinstance(url_or_client, str) else url_or_client
        made = (AsyncRedisCoordinator if self.asynchronous else RedisCoordinator)(client, **settings)
        self.made.append(made)
        return made


def close_engine(side: Side, engine: Any, seconds: float = 10.0) -> None:
    """Close an engine of SQLAlchemy when all its connections are back, or after so many seconds.

    SQLAlchemy gives the connection of a cancelled task back in the background. If the pool was disposed of before, that
    connection stays open, until the garbage collector warns of it, in whatever test runs then.
    """
    deadline = time.monotonic() + seconds
    while getattr(engine.pool, "checkedout", int)() and time.monotonic() < deadline:
        time.sleep(0.002)
    side.call(engine.dispose)


class Account:
    """A balance in a real database, guarded and not, through a sync or an async guard."""

    def __init__(self, side: Side, url: str, *, make: bool = True) -> None:
        self.side, self.url = side, url
        self.engine: Any
        self.guard: Any
        if side.asynchronous:
            self.engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
            self.guard = AsyncSQLAlchemyGuard(self.engine)
        else:
            self.engine = create_engine(url)
            self.guard = SQLAlchemyGuard(self.engine)
        self._direct = create_engine(url, isolation_level="AUTOCOMMIT")
        if make:
            self._make()

    def _make(self) -> None:
        self.side.call(self.guard.create_tables)
        self.sql("CREATE TABLE account (name VARCHAR(512) PRIMARY KEY, balance INTEGER NOT NULL)")
        self.sql("INSERT INTO account VALUES ('r', 0)")

    def sql(self, statement: str, **values: Any) -> Any:
        """Run and commit one statement without the guard; return its first value, if it has one."""
        with self._direct.connect() as connection:
            result = connection.execute(text(statement), values)
            return result.scalar() if result.returns_rows else result.rowcount

    @property
    def balance(self) -> int:
        return int(self.sql("SELECT balance FROM account WHERE name = 'r'"))

    def write(self, holder: Any, balance: int, **options: Any) -> int:
        statement = text("UPDATE account SET balance = :balance WHERE name = 'r'")
        return int(self.side.call(self.guard.write, holder, statement, {"balance": balance}, **options))

    def mark(self, resource: str = "r") -> Any:
        return self.side.call(self.guard.mark, resource)

    def close(self) -> None:
        close_engine(self.side, self.engine)
        self._direct.dispose()


def with_python_parser(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make connections that redis-py reads as it does where hiredis is not installed."""

    def made(factory: ConnectionFactory, *primary: Any) -> Any:
        asynchronous = isinstance(factory.options["retry"], redis.asyncio.retry.Retry)
        factory.options["parser_class"] = _AsyncRESP2Parser if asynchronous else _RESP2Parser
        return make(factory, *primary)

    return made
