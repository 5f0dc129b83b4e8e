"""Every guard behaviour, sync and async, on each storage there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from fencing.errors import GuardUnavailable
from fencing.fence import Fence
from storage_guards import AsyncMemoryGuard, AsyncSQLAlchemyGuard, MemoryGuard, SQLAlchemyGuard
from storage_guards.conformance import GuardContract

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


class _SQL(GuardContract):
    """SQLAlchemyGuard on ``self.engine``."""

    engine: Engine

    def make(self) -> SQLAlchemyGuard:
        guard = SQLAlchemyGuard(self.engine)
        guard.create_tables()
        with self.engine.begin() as connection:
            connection.execute(CREATE)
        return guard

    def read(self, resource: str) -> int:
        with self.engine.connect() as connection:
            return connection.execute(READ, {"name": resource}).scalar() or 0

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        assert self.guard.write(fence, WRITE, {"name": resource, "value": value}, **options) == 1

    def write_unguarded(self, resource: str, value: int) -> None:
        with self.engine.begin() as connection:
            connection.execute(WRITE, {"name": resource, "value": value})

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with self.guard.begin(fence, **options) as connection:
            value = connection.execute(READ, {"name": resource}).scalar() or 0
            between()
            connection.execute(WRITE, {"name": resource, "value": value + 1})


class _AsyncSQL(GuardContract):
    """AsyncSQLAlchemyGuard on ``self.engine``."""

    engine: AsyncEngine

    async def make(self) -> AsyncSQLAlchemyGuard:
        guard = AsyncSQLAlchemyGuard(self.engine)
        await guard.create_tables()
        async with self.engine.begin() as connection:
            await connection.execute(CREATE)
        return guard

    async def read(self, resource: str) -> int:
        async with self.engine.connect() as connection:
            return await _value(connection, resource)

    async def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        assert await self.guard.write(fence, WRITE, {"name": resource, "value": value}, **options) == 1

    async def write_unguarded(self, resource: str, value: int) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(WRITE, {"name": resource, "value": value})

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        async with self.guard.begin(fence, **options) as connection:
            value = await _value(connection, resource)
            await asyncio.to_thread(between)
            await connection.execute(WRITE, {"name": resource, "value": value + 1})


async def _value(connection: AsyncConnection, resource: str) -> int:
    return (await connection.execute(READ, {"name": resource})).scalar() or 0


class TestPostgreSQL(_SQL):
    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _engine(self, postgres_url: str) -> Iterator[None]:
        self.engine = create_engine(postgres_url, **self.settings)
        yield
        self.engine.dispose()


class TestPostgreSQLRepeatableRead(TestPostgreSQL):
    """Here the application, too, must be ready for serialization failures, which undo the whole transaction."""

    settings: ClassVar[dict[str, Any]] = {"isolation_level": "REPEATABLE READ"}

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        with _serialization_failures_may_be_retried():
            super().write(fence, resource, value, **options)

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with _serialization_failures_may_be_retried():
            super().add(fence, resource, between, **options)

    def write_unguarded(self, resource: str, value: int) -> None:
        with self.engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
            connection.execute(WRITE, {"name": resource, "value": value})


class TestPostgreSQLSerializable(TestPostgreSQLRepeatableRead):
    settings: ClassVar[dict[str, Any]] = {"isolation_level": "SERIALIZABLE"}


@contextmanager
def _serialization_failures_may_be_retried() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "40001":
            raise
        raise GuardUnavailable("the transaction was undone; retry") from error


class TestAsyncPostgreSQL(_AsyncSQL):
    @pytest.fixture(autouse=True)
    def _engine(self, postgres_url: str) -> Iterator[None]:
        self.engine = create_async_engine(postgres_url)
        yield
        self.call(self.engine.dispose)


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
    @pytest.fixture(autouse=True, params=BEGIN_FORMS)
    def _engine(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/data.db")
        begin_with(self.engine.sync_engine, request.param)
        yield
        self.call(self.engine.dispose)
