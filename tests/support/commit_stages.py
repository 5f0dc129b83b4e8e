"""Guards whose COMMIT can be caught under way: SQLAlchemy's with each asyncio driver, and the psycopg guard."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import psycopg
from psycopg.errors import UniqueViolation
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from fencing import Fence, GuardUnavailable
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.support.psycopg_database import dsn_of
from tests.support.servers import Proxy
from tests.support.sql_ways import Way, is_commit

MINE = Fence("orders:1", 5, "a" * 22)


class Stage(ABC):
    """A guard with one connection, behind a proxy that falls silent when a COMMIT (or what else) comes by."""

    REFUSED_COMMIT: ClassVar[type[Exception]]
    CARRIER: ClassVar[str]
    """In the name of the task that carries a COMMIT to its end."""
    MOST_ATTEMPTS = 1
    """After how many at the most the pool has replaced a broken connection."""

    def __init__(self, guard: Any, url: str, proxy: Proxy) -> None:
        self.guard, self.url, self.proxy = guard, url, proxy
        self.direct = create_engine(url)
        self.beside = SQLAlchemyGuard(self.direct)
        self.is_mariadb = self.direct.dialect.name == "mysql"
        self.is_mysql = self.is_mariadb and not getattr(self.direct.dialect, "is_mariadb", False)
        self.beside.create_tables()
        deferred = "" if self.is_mariadb else "DEFERRABLE INITIALLY DEFERRED"
        with self.direct.begin() as connection:
            connection.execute(text(f"CREATE TABLE done (id INTEGER UNIQUE {deferred})"))

    @staticmethod
    @abstractmethod
    def adding(id_: int) -> tuple[Any, Any]:
        """A statement that leaves a trace in ``done``, and its parameters."""

    @abstractmethod
    async def write_into_silence(self) -> None:
        """A write whose COMMIT does not reach the server before ``proxy.restore``."""

    def hold_back(self, statement: str) -> None:
        """The reply to the request with ``statement`` arrives late: at ``proxy.restore``."""
        self._hold = self.proxy.hold_reply_when(
            lambda request: is_commit(request) if statement == "COMMIT" else statement.encode() in request
        )

    async def until_held_back(self) -> None:
        assert await asyncio.to_thread(self._hold.wait, 60)

    async def write(self, id_: int) -> int:
        return int(await self.guard.write(MINE, *self.adding(id_)))

    @property
    def done(self) -> set[int]:
        with self.direct.connect() as connection:
            return set(connection.execute(text("SELECT id FROM done")).scalars())

    async def is_usable(self) -> None:
        """The pool has one connection, which must be free and clean."""
        self.proxy.restore()
        for attempt in range(1, self.MOST_ATTEMPTS + 1):
            try:
                assert await self.write(99) == 1
                break
            except GuardUnavailable:
                if attempt == self.MOST_ATTEMPTS:
                    raise
        assert 99 in self.done


class SQLAlchemyStage(Stage):
    REFUSED_COMMIT = IntegrityError
    CARRIER = "run_sync"
    engine: AsyncEngine

    @staticmethod
    def adding(id_: int) -> tuple[Any, Any]:
        return text("INSERT INTO done VALUES (:id)"), {"id": id_}

    async def write_into_silence(self) -> None:
        event.listen(self.engine.sync_engine, "commit", lambda _: self.proxy.silence(), once=True)
        await self.write(1)

    @classmethod
    @asynccontextmanager
    async def open(cls, way: Way, timeout: float) -> AsyncIterator[Stage]:
        engine = create_async_engine(way.through, pool_size=1, max_overflow=0, pool_timeout=60)
        stage = cls(AsyncSQLAlchemyGuard(engine, timeout=timeout), way.url, way.proxy)
        stage.engine = engine
        try:
            yield stage
        finally:
            await engine.dispose()


class PsycopgStage(Stage):
    REFUSED_COMMIT = UniqueViolation
    CARRIER = "AsyncGuardedBlock._end"
    MOST_ATTEMPTS = 100  # it connects anew in the background

    @staticmethod
    def adding(id_: int) -> tuple[Any, Any]:
        return "INSERT INTO done VALUES (%s)", [id_]

    async def write_into_silence(self) -> None:
        async with self.guard.begin(MINE) as connection:
            await connection.execute(*self.adding(1))
            self.proxy.silence()

    @classmethod
    @asynccontextmanager
    async def open(cls, way: Way, timeout: float) -> AsyncIterator[Stage]:
        dsn = dsn_of(way.through)
        async with AsyncConnectionPool[psycopg.AsyncConnection[Any]](dsn, min_size=1, max_size=1, open=False) as pool:
            yield cls(AsyncPsycopgGuard(pool, timeout=timeout), way.url, way.proxy)


@asynccontextmanager
async def open_stage(kind: type[SQLAlchemyStage | PsycopgStage], way: Way, timeout: float) -> AsyncIterator[Stage]:
    async with kind.open(way, timeout) as stage:
        await stage.guard.claim(MINE)  # and is connected now, with what drivers ask first
        try:
            yield stage
        finally:
            way.proxy.restore()
            stage.direct.dispose()
