"""Each wait of a SQL guard has a bound, and the bound says that it is the guard's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence, GuardUnavailable
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from tests.support.psycopg_database import dsn_of
from tests.support.pymysql_requests import after_the_next_change_of_a_mark
from tests.support.sides import Side, close_engine
from tests.support.sql_ways import asyncio_url

OLDER = Fence("orders:1", 4, "d" * 22)
MINE = Fence("orders:1", 5, "a" * 22)
TIMEOUT = 1.0


class Short:
    """A guard with a short time-out, and its engine or connection string."""

    def __init__(self, side: Side, kind: str, url: str) -> None:
        self.side, self.kind = side, kind
        self.direct = create_engine(url)
        SQLAlchemyGuard(self.direct).create_tables()
        self.source: Any = dsn_of(url)
        self.engine: Any = None
        guards: Any = (AsyncPsycopgGuard, PsycopgGuard)
        if kind != "psycopg guard":
            guards = (AsyncSQLAlchemyGuard, SQLAlchemyGuard)
            make: Any = create_async_engine if side.asynchronous else create_engine
            self.source = self.engine = make(asyncio_url(url) if side.asynchronous else url)
        self.guard = guards[not side.asynchronous](self.source, timeout=TIMEOUT)

    def block(self, statement: str, pause: float = 0.0) -> Callable[[], Any]:
        query: Any = statement if self.kind == "psycopg guard" else text(statement)

        def run() -> None:
            with self.guard.begin(MINE, claim=True) as connection:
                connection.execute(query)
                time.sleep(pause)

        async def run_async() -> None:
            async with self.guard.begin(MINE, claim=True) as connection:
                await connection.execute(query)
                await asyncio.sleep(pause)

        return run_async if self.side.asynchronous else run

    def close(self) -> None:
        if self.engine is not None:
            close_engine(self.side, self.engine)
        self.direct.dispose()


@pytest.fixture(params=["sqlalchemy", "psycopg guard"])
def short(request: pytest.FixtureRequest, side: Side, postgres_url: str) -> Iterator[Short]:
    short = Short(side, request.param, postgres_url)
    yield short
    short.close()


@pytest.mark.thorough
def test_the_mark_of_a_locked_table(short: Short) -> None:
    """SQLAlchemyGuard.mark had no bound: it waited as long as a migration did."""
    with short.direct.begin() as migration:
        migration.execute(text("LOCK TABLE fencing_marks IN ACCESS EXCLUSIVE MODE"))
        started = time.monotonic()
        short.side.expect(GuardUnavailable, short.guard.mark, "orders:1")
        assert time.monotonic() - started < 30
    assert short.side.call(short.guard.mark, "orders:1") is None


@pytest.mark.thorough
def test_the_mark_of_a_locked_table_on_mariadb(mariadb_url: str) -> None:
    short = Short(Side(False), "sqlalchemy", mariadb_url)
    with short.direct.connect() as migration:
        migration.exec_driver_sql("LOCK TABLES fencing_marks WRITE")
        with pytest.raises(GuardUnavailable):
            short.guard.mark("orders:1")
        migration.exec_driver_sql("UNLOCK TABLES")
    assert short.guard.mark("orders:1") is None
    short.close()


@pytest.mark.thorough
def test_a_block_that_stands_still(short: Short) -> None:
    """The server says that it ended the transaction. So the outcome is known, and the error says why."""
    errors: Any = psycopg.Error if short.kind == "psycopg guard" else DBAPIError
    error = short.side.expect(errors, short.block("SELECT 1", pause=1.5 * TIMEOUT))
    assert "idle-in-transaction" in str(error)
    assert "guard's timeout, here 1 s" in "".join(error.__notes__)


@pytest.mark.thorough
def test_a_statement_that_takes_too_long(short: Short) -> None:
    errors: Any = psycopg.Error if short.kind == "psycopg guard" else DBAPIError
    error = short.side.expect(errors, short.block("SELECT pg_sleep(5)"))
    assert "statement timeout" in str(error)
    assert "guard's timeout, here 1 s" in "".join(error.__notes__)


def test_a_snapshot_from_before_the_own_claim(short: Short) -> None:
    """It was told as a fence that was never claimed: pass guards=[guard]."""

    async def advance_async() -> None:
        if short.engine is not None:
            async with short.engine.connect() as connection:
                await connection.execution_options(isolation_level="REPEATABLE READ")
                await connection.execute(text("SELECT 1"))
                await short.guard.claim(MINE)
                await short.guard.advance(connection, MINE)
            return
        async with await psycopg.AsyncConnection.connect(short.source) as own:
            await own.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await own.execute("SELECT 1")
            await short.guard.claim(MINE)
            await short.guard.advance(own, MINE)

    def advance() -> None:
        if short.engine is not None:
            with short.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
                connection.execute(text("SELECT 1"))
                short.guard.claim(MINE)
                short.guard.advance(connection, MINE)
            return
        with psycopg.connect(short.source) as own:
            own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            own.execute("SELECT 1")
            short.guard.claim(MINE)
            short.guard.advance(own, MINE)

    error = short.side.expect(GuardUnavailable, advance_async if short.side.asynchronous else advance)
    assert "advance at its beginning" in str(error)


@pytest.mark.thorough
@pytest.mark.parametrize("claim", [True, False])
def test_first_claims_that_meet_on_mariadb(mariadb_url: str, claim: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The UPDATE met no mark, and the read after it met one: "locked, and changed all the same"."""
    short = Short(Side(False), "sqlalchemy", mariadb_url)
    beside = SQLAlchemyGuard(short.direct)
    first = OLDER if claim else MINE
    meant = after_the_next_change_of_a_mark(monkeypatch, lambda: beside.claim(first))
    if claim:
        short.guard.claim(MINE)
    else:
        with short.guard.begin(MINE):
            pass
    found = short.guard.mark("orders:1")
    assert found is not None
    assert found.is_of(MINE)
    assert not meant
    short.close()
