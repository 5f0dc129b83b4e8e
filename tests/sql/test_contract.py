"""Every guard behaviour, sync and async, on each storage there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.fence import Fence
from storage_guards import AsyncMemoryGuard, AsyncSQLAlchemyGuard, MemoryGuard, SQLAlchemyGuard
from storage_guards.testing import GuardContract

CREATE = text("CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL)")
READ = text("SELECT value FROM counters WHERE name = :name")
WRITE = text(
    "INSERT INTO counters (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)


class TestMemoryGuard(GuardContract):
    several_guards = False

    def make(self) -> MemoryGuard:
        return MemoryGuard()

    def read(self, resource: str) -> int:
        return int(self.guard.data.get(resource, 0))

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        self.guard.write(fence, resource, value, **options)

    def write_unguarded(self, resource: str, value: int) -> None:
        self.guard._data[resource] = value

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with self.guard.begin(fence, **options) as data:
            value = data.get(resource, 0)
            between()
            data[resource] = value + 1


class TestAsyncMemoryGuard(TestMemoryGuard):
    def make(self) -> Any:
        return AsyncMemoryGuard()

    async def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:  # type: ignore[override]
        await self.guard.write(fence, resource, value, **options)

    async def add(  # type: ignore[override]
        self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any
    ) -> None:
        async with self.guard.begin(fence, **options) as data:
            value = data.get(resource, 0)
            await asyncio.to_thread(between)
            data[resource] = value + 1


CREATE_MARIADB = text("CREATE TABLE IF NOT EXISTS counters (name VARBINARY(512) PRIMARY KEY, value INT NOT NULL)")
WRITE_MARIADB = text(
    "INSERT INTO counters (name, value) VALUES (:name, :value) ON DUPLICATE KEY UPDATE value = VALUES(value)"
)


class _SQL(GuardContract):
    """SQLAlchemyGuard on ``self.engine``."""

    engine: Engine
    create_statement = CREATE
    write_statement = WRITE

    def make(self) -> SQLAlchemyGuard:
        guard = SQLAlchemyGuard(self.engine)
        guard.create_tables()
        with self.engine.begin() as connection:
            connection.execute(self.create_statement)
        return guard

    def read(self, resource: str) -> int:
        with self.engine.connect() as connection:
            return connection.execute(READ, {"name": resource}).scalar() or 0

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        rows = self.guard.write(fence, self.write_statement, {"name": resource, "value": value}, **options)
        assert rows == 1 or self.write_statement is WRITE_MARIADB  # there an updated row may count as two, or none

    def write_unguarded(self, resource: str, value: int) -> None:
        with self.engine.begin() as connection:
            connection.execute(self.write_statement, {"name": resource, "value": value})

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with self.guard.begin(fence, **options) as connection:
            value = connection.execute(READ, {"name": resource}).scalar() or 0
            between()
            connection.execute(self.write_statement, {"name": resource, "value": value + 1})


class _AsyncSQL(GuardContract):
    """AsyncSQLAlchemyGuard on ``self.engine``."""

    engine: AsyncEngine
    create_statement = CREATE
    write_statement = WRITE

    async def make(self) -> AsyncSQLAlchemyGuard:
        guard = AsyncSQLAlchemyGuard(self.engine)
        await guard.create_tables()
        async with self.engine.begin() as connection:
            await connection.execute(self.create_statement)
        return guard

    async def read(self, resource: str) -> int:
        async with self.engine.connect() as connection:
            return await _value(connection, resource)

    async def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        rows = await self.guard.write(fence, self.write_statement, {"name": resource, "value": value}, **options)
        assert rows == 1 or self.write_statement is WRITE_MARIADB

    async def write_unguarded(self, resource: str, value: int) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(self.write_statement, {"name": resource, "value": value})

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        async with self.guard.begin(fence, **options) as connection:
            value = await _value(connection, resource)
            await asyncio.to_thread(between)
            await connection.execute(self.write_statement, {"name": resource, "value": value + 1})


async def _value(connection: AsyncConnection, resource: str) -> int:
    return (await connection.execute(READ, {"name": resource})).scalar() or 0


# What the transaction's isolation level makes a database refuse, because of somebody else at the same time
RETRIED = {"40001", "40P01", 1020, 1205, 1213}


@contextmanager
def _what_may_be_retried() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or (error.orig.args[0] if error.orig else None)
        if state not in RETRIED:
            raise
        raise GuardUnavailable("the transaction was undone; retry") from error


class _Isolated(_SQL):
    """The application, too, must be ready for what the level refuses, which undoes the whole transaction."""

    level = "READ COMMITTED"

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        with _what_may_be_retried():
            super().write(fence, resource, value, **options)

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with _what_may_be_retried():
            super().add(fence, resource, between, **options)

    def write_unguarded(self, resource: str, value: int) -> None:
        with self.engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
            connection.execute(self.write_statement, {"name": resource, "value": value})


class _AsyncIsolated(_AsyncSQL):
    level = "READ COMMITTED"

    async def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        with _what_may_be_retried():
            await super().write(fence, resource, value, **options)

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with _what_may_be_retried():
            await super().add(fence, resource, between, **options)

    async def write_unguarded(self, resource: str, value: int) -> None:
        async with self.engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
            await connection.execute(self.write_statement, {"name": resource, "value": value})


class TestPostgreSQL(_Isolated):
    @pytest.fixture(autouse=True)
    def _engine(self, postgres_url: str) -> Iterator[None]:
        self.engine = create_engine(postgres_url, isolation_level=self.level)
        yield
        self.engine.dispose()


@pytest.mark.thorough
class TestPostgreSQLRepeatableRead(TestPostgreSQL):
    level = "REPEATABLE READ"


@pytest.mark.thorough
class TestPostgreSQLSerializable(TestPostgreSQL):
    level = "SERIALIZABLE"


class TestAsyncPostgreSQL(_AsyncIsolated):
    driver = "psycopg"

    @pytest.fixture(autouse=True)
    def _engine(self, postgres_url: str) -> Iterator[None]:
        url = postgres_url.replace("+psycopg", f"+{self.driver}")
        self.engine = create_async_engine(url, isolation_level=self.level)
        yield
        self.call(self.engine.dispose)


class TestAsyncpg(TestAsyncPostgreSQL):
    driver = "asyncpg"


@pytest.mark.thorough
class TestAsyncpgRepeatableRead(TestAsyncpg):
    level = "REPEATABLE READ"


@pytest.mark.thorough
class TestAsyncpgSerializable(TestAsyncpg):
    level = "SERIALIZABLE"


class TestMariaDB(_Isolated):
    create_statement = CREATE_MARIADB
    write_statement = WRITE_MARIADB

    @pytest.fixture(autouse=True)
    def _engine(self, mariadb_url: str) -> Iterator[None]:
        self.engine = create_engine(mariadb_url, isolation_level=self.level)
        yield
        self.engine.dispose()


@pytest.mark.thorough
class TestMariaDBRepeatableRead(TestMariaDB):
    """MariaDB's default."""

    level = "REPEATABLE READ"


@pytest.mark.thorough
class TestMariaDBSerializable(TestMariaDB):
    level = "SERIALIZABLE"


class TestAsyncMariaDB(_AsyncIsolated):
    create_statement = CREATE_MARIADB
    write_statement = WRITE_MARIADB

    @pytest.fixture(autouse=True)
    def _engine(self, mariadb_url: str) -> Iterator[None]:
        self.engine = create_async_engine(mariadb_url.replace("+pymysql", "+aiomysql"), isolation_level=self.level)
        yield
        self.call(self.engine.dispose)


@pytest.mark.thorough
class TestAsyncMariaDBRepeatableRead(TestAsyncMariaDB):
    level = "REPEATABLE READ"


@pytest.mark.thorough
class TestAsyncMariaDBSerializable(TestAsyncMariaDB):
    level = "SERIALIZABLE"


BEGIN_FORMS = ["driver default", "BEGIN", "BEGIN IMMEDIATE"]


def begin_with(engine: Engine, form: str) -> None:
    """The recipe of SQLAlchemy's documentation: the driver begins nothing, an event does."""
    if form == "driver default":
        return

    @event.listens_for(engine, "connect")
    def on_connect(dbapi_connection: Any, _: Any) -> None:
        dbapi_connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql(form)


class TestSQLite(_SQL):
    @pytest.fixture(autouse=True, params=BEGIN_FORMS)
    def _engine(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
        self.engine = create_engine(f"sqlite:///{tmp_path}/data.db")
        begin_with(self.engine, request.param)
        yield
        self.engine.dispose()


class TestAsyncSQLite(_AsyncSQL):
    @pytest.fixture(
        autouse=True,
        params=[BEGIN_FORMS[0], *(pytest.param(each, marks=pytest.mark.thorough) for each in BEGIN_FORMS[1:])],
    )
    def _engine(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/data.db")
        begin_with(self.engine.sync_engine, request.param)
        yield
        self.call(self.engine.dispose)
