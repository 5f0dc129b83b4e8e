"""The guards through a pooler of transactions, PgBouncer: each transaction may have another connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence, StaleFence
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from tests.support.psycopg_database import dsn_of
from tests.support.servers import PgBouncerServer
from tests.support.sides import Side, close_engine

OLD = Fence("orders:1", 5, "a" * 22)
NEW = Fence("orders:1", 6, "b" * 22)
ADD = "UPDATE orders SET total = total + %s"


class Shop:
    """A guard on one connection to the pooler, and another client of it."""

    def __init__(self, side: Side, kind: str, url: str, pooled: str) -> None:
        self.side = side
        self.direct = psycopg.connect(dsn_of(url), autocommit=True)
        self.direct.execute("CREATE TABLE orders (total INTEGER NOT NULL)")
        self.direct.execute("INSERT INTO orders VALUES (0)")
        self.other = psycopg.connect(dsn_of(pooled), prepare_threshold=None)
        self._connection: Any = None
        self._engine: Any = None
        self.guard: Any
        if kind == "psycopg":
            connect = (psycopg.AsyncConnection if side.asynchronous else psycopg.Connection).connect
            self._connection = side.call(connect, dsn_of(pooled), prepare_threshold=None)
            self.guard = (AsyncPsycopgGuard if side.asynchronous else PsycopgGuard)(self._connection)
            self._write: tuple[Any, Any] = (ADD, [1])
        else:
            create: Any = create_async_engine if side.asynchronous else create_engine
            options = {"connect_args": {"prepare_threshold": None}}  # as docs/operations/upkeep.md says
            self._engine = create(pooled, pool_size=1, max_overflow=0, **options)
            self.guard = (AsyncSQLAlchemyGuard if side.asynchronous else SQLAlchemyGuard)(self._engine)
            self._write = (text(ADD.replace("%s", ":more")), {"more": 1})

    def write(self, fence: Fence) -> int:
        return int(self.side.call(self.guard.write, fence, *self._write))

    def refused(self, fence: Fence) -> None:
        self.side.expect(StaleFence, self.guard.write, fence, *self._write)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Let the other client have the connection that was used last."""
        self.other.execute("SELECT 1")
        try:
            yield
        finally:
            self.other.rollback()

    def close(self) -> None:
        if self._connection is not None:
            self.side.call(self._connection.close)
        if self._engine is not None:
            close_engine(self.side, self._engine)
        self.other.close()
        self.direct.close()


@pytest.fixture(params=["psycopg", "sqlalchemy"])
def shop(
    request: pytest.FixtureRequest, side: Side, pgbouncer_server: PgBouncerServer, postgres_url: str
) -> Iterator[Shop]:
    shop = Shop(side, request.param, postgres_url, pgbouncer_server.url(postgres_url))
    yield shop
    shop.close()


@pytest.mark.thorough
def test_the_guards(shop: Shop) -> None:
    """The rule holds whichever connection a transaction has, and the user's statements run often."""
    call, guard = shop.side.call, shop.guard
    call(guard.create_tables)
    call(guard.claim, OLD)
    for _ in range(7):
        assert shop.write(OLD) == 1
        with shop.elsewhere():
            assert shop.write(OLD) == 1
    with shop.elsewhere():
        call(guard.claim, NEW)
        shop.refused(OLD)
    shop.refused(OLD)
    assert shop.write(NEW) == 1
    assert call(guard.prune, below=6) == 0
    assert "there is a pooler between this client and the server" in str(call(guard.verify))
    assert shop.direct.execute("SELECT total FROM orders").fetchone() == (15,)


def test_statements_that_the_guard_prepares(side: Side, pgbouncer_server: PgBouncerServer, postgres_url: str) -> None:
    """With psycopg's defaults the guard prepares its own. They may be gone, or be there already: it does without."""
    shop = Shop(side, "psycopg", postgres_url, pgbouncer_server.url(postgres_url))
    shop._connection.prepare_threshold = 5
    call, guard = side.call, shop.guard
    call(guard.create_tables)
    for number in range(5, 12):
        fence = Fence("orders:1", number, f"{number:022d}")
        call(guard.claim, fence)
        with shop.elsewhere():
            call(guard.claim, fence)
    shop.close()


def test_statements_that_the_driver_prepares(pgbouncer_server: PgBouncerServer, postgres_url: str) -> None:
    """The reason for prepare_threshold=None: without a guard, too, psycopg's own prepared statements are elsewhere."""
    pooled = dsn_of(pgbouncer_server.url(postgres_url))
    with psycopg.connect(pooled) as one, psycopg.connect(pooled, prepare_threshold=None) as other:
        for _ in range(7):
            one.execute("SELECT %s", [1])
            one.commit()
        other.execute("SELECT 1")
        with pytest.raises((psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)):
            one.execute("SELECT %s", [1])
