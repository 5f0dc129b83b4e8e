"""Every guard behaviour on PostgreSQL through psycopg alone: each source of connections, each isolation level."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg import AsyncConnection, Connection, IsolationLevel
from psycopg.errors import SerializationFailure
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine

from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.fence import Fence
from storage_guards import AsyncPsycopgGuard, PsycopgGuard, SQLAlchemyGuard
from storage_guards.testing import GuardContract
from tests.sql import test_contract as test_guards

CREATE = "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL)"
READ = "SELECT value FROM counters WHERE name = %s"
WRITE = "INSERT INTO counters VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"


class _Psycopg(GuardContract):
    """PsycopgGuard on ``self.source()``; reads and unguarded writes have connections of their own."""

    dsn: str
    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str) -> Iterator[None]:
        self.dsn = postgres_url.replace("+psycopg", "")
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(CREATE)
        with self.sources():
            yield

    @contextmanager
    def sources(self) -> Iterator[None]:
        yield

    def source(self) -> Any:
        return partial(psycopg.connect, self.dsn, **self.settings)

    def make(self) -> Any:
        guard = PsycopgGuard(self.source())
        guard.create_tables()
        return guard

    def read(self, resource: str) -> Any:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(READ, [resource]).fetchone()
            return row[0] if row else 0

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        with _serialization_failures_may_be_retried():
            assert self.guard.write(fence, WRITE, [resource, value], **options) == 1

    def write_unguarded(self, resource: str, value: int) -> Any:
        with psycopg.connect(self.dsn) as connection:
            connection.execute(WRITE, [resource, value])

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> Any:
        with _serialization_failures_may_be_retried(), self.guard.begin(fence, **options) as connection:
            row = connection.execute(READ, [resource]).fetchone()
            between()
            connection.execute(WRITE, [resource, (row[0] if row else 0) + 1])


@contextmanager
def _serialization_failures_may_be_retried() -> Iterator[None]:
    """Above READ COMMITTED the application, too, must be ready for them; they undo the whole transaction."""
    try:
        yield
    except SerializationFailure as error:
        raise GuardUnavailable("the transaction was undone; retry") from error


class _AsyncPsycopg(_Psycopg):
    def source(self) -> Any:
        return partial(AsyncConnection.connect, self.dsn, **self.settings)

    async def make(self) -> AsyncPsycopgGuard:
        guard = AsyncPsycopgGuard(self.source())
        await guard.create_tables()
        return guard

    async def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        with _serialization_failures_may_be_retried():
            assert await self.guard.write(fence, WRITE, [resource, value], **options) == 1

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with _serialization_failures_may_be_retried():
            async with self.guard.begin(fence, **options) as connection:
                row = await (await connection.execute(READ, [resource])).fetchone()
                await asyncio.to_thread(between)
                await connection.execute(WRITE, [resource, (row[0] if row else 0) + 1])


class _Pool(_Psycopg):
    pool: Any
    level: ClassVar[IsolationLevel | None] = None

    def configure(self, connection: Connection[Any]) -> None:
        connection.isolation_level = self.level

    @contextmanager
    def sources(self) -> Iterator[None]:
        with ConnectionPool(
            self.dsn, kwargs=self.settings, configure=self.configure, min_size=2, max_size=8, open=True
        ) as self.pool:
            yield

    def source(self) -> Any:
        return self.pool


class TestPool(_Pool):
    pass


@pytest.mark.thorough
class TestPoolInAutocommit(_Pool):
    settings: ClassVar[dict[str, Any]] = {"autocommit": True}


@pytest.mark.thorough
class TestPoolWithoutPreparedStatements(_Pool):
    settings: ClassVar[dict[str, Any]] = {"prepare_threshold": None}


@pytest.mark.thorough
class TestRepeatableRead(_Pool):
    level = IsolationLevel.REPEATABLE_READ


@pytest.mark.thorough
class TestSerializable(_Pool):
    level = IsolationLevel.SERIALIZABLE


@pytest.mark.thorough
class TestSerializableByTheServersSetting(_Pool):
    settings: ClassVar[dict[str, Any]] = {"options": "-c default_transaction_isolation=serializable"}


class TestOneConnection(_Psycopg):
    """For each guard. Its threads take turns."""

    @contextmanager
    def sources(self) -> Iterator[None]:
        self.made: list[Connection[Any]] = []
        yield
        for connection in self.made:
            connection.close()

    def source(self) -> Any:
        self.made.append(psycopg.connect(self.dsn, **self.settings))
        return self.made[-1]


@pytest.mark.thorough
class TestConnectionString(_Psycopg):
    def source(self) -> Any:
        return self.dsn


class TestAsyncPool(_AsyncPsycopg):
    @contextmanager
    def sources(self) -> Iterator[None]:
        self.pool = AsyncConnectionPool(self.dsn, min_size=2, max_size=8, open=False)
        self.call(self.pool.open)
        yield
        self.call(self.pool.close)

    def source(self) -> Any:
        return self.pool


@pytest.mark.thorough
class TestAsyncOneConnection(_AsyncPsycopg):
    @contextmanager
    def sources(self) -> Iterator[None]:
        self.made: list[Any] = []
        yield
        for connection in self.made:
            self.call(connection.close)

    async def make(self) -> AsyncPsycopgGuard:
        self.made.append(await AsyncConnection.connect(self.dsn))
        guard = AsyncPsycopgGuard(self.made[-1])
        await guard.create_tables()
        return guard


@pytest.mark.thorough
class TestAsyncConnectionString(_AsyncPsycopg):
    def source(self) -> Any:
        return self.dsn


@pytest.mark.thorough
class TestBesideSQLAlchemyGuard(_Pool):
    """The second guard on the same storage is SQLAlchemy's: each excludes the other."""

    @contextmanager
    def sources(self) -> Iterator[None]:
        self.engine = create_engine(self.dsn.replace("postgresql:", "postgresql+psycopg:"))
        with super().sources():
            yield
        self.engine.dispose()

    def _second(self) -> GuardContract:
        assert self.guard is not None
        second = _SecondBySQLAlchemy()
        second.engine = self.engine
        return second


class _SecondBySQLAlchemy(test_guards._SQL):
    def make(self) -> SQLAlchemyGuard:
        guard = SQLAlchemyGuard(self.engine)
        guard.create_tables()
        return guard


@pytest.mark.thorough
class TestSQLAlchemyGuardBeside(test_guards.TestPostgreSQL):
    """The same with the colours changed: the first guard, which makes the table, is SQLAlchemy's."""

    def _second(self) -> GuardContract:
        assert self.guard is not None
        second = _Psycopg()
        second.dsn = self.engine.url.render_as_string(hide_password=False).replace("+psycopg", "")
        return second
