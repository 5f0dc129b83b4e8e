"""What each asyncio driver says of a transaction, and what a guard makes of it."""

# ruff: noqa: PT012 - what raises is a guarded block, and the statements in it are the story

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from fencing import Fence, GuardNotEnforceable, GuardUnavailable
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.servers import Proxy
from tests.support.sql_ways import TO_SERVERS, Way, new_way

MINE = Fence("orders:1", 5, "a" * 22)
NEWER = Fence("orders:1", 6, "b" * 22)
READ = text("SELECT total FROM orders WHERE id = 1")
ADD = text("UPDATE orders SET total = total + 1 WHERE id = 1")
AGAIN = text("INSERT INTO orders VALUES (1, 0)")


class Shop:
    def __init__(self, way: Way) -> None:
        self.way = way
        self.engine = create_engine(way.url)
        self.beside = SQLAlchemyGuard(self.engine)
        self.beside.create_tables()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)"))
            connection.execute(text("INSERT INTO orders VALUES (1, 0)"))
        self.beside.claim(MINE)

    def play(self, scene: Callable[[AsyncSQLAlchemyGuard], Awaitable[None]], timeout: float, **settings: Any) -> None:
        async def run() -> None:
            engine = create_async_engine(settings.pop("url", self.way.through), **settings)
            try:
                await asyncio.wait_for(scene(AsyncSQLAlchemyGuard(engine, timeout=timeout)), 30)
            finally:
                await engine.dispose()

        asyncio.run(run())

    @property
    def total(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(READ).scalar_one())


@pytest.fixture(params=[name for name in TO_SERVERS if name not in ("psycopg", "pymysql")])
def shop(request: pytest.FixtureRequest, proxy: Callable[[Any], Proxy]) -> Iterator[Shop]:
    shop = Shop(new_way(request, request.param, proxy))
    yield shop
    shop.engine.dispose()


def test_a_failed_statement_whose_error_was_swallowed(shop: Shop) -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, and no error. MariaDB undoes the statement
    alone."""

    async def scene(guard: AsyncSQLAlchemyGuard) -> None:
        async with guard.begin(MINE) as connection:
            await connection.execute(ADD)
            with pytest.raises(IntegrityError):
                await connection.execute(AGAIN)

    if shop.way.is_mariadb:
        shop.play(scene, 10.0)
    else:
        with pytest.raises(GuardNotEnforceable, match="swallowed"):
            shop.play(scene, 10.0)
    assert shop.total == (1 if shop.way.is_mariadb else 0)


def test_a_failed_statement_in_a_savepoint(shop: Shop) -> None:
    async def scene(guard: AsyncSQLAlchemyGuard) -> None:
        async with guard.begin(MINE) as connection:
            await connection.execute(ADD)
            with pytest.raises(IntegrityError):
                async with connection.begin_nested():
                    await connection.execute(AGAIN)

    shop.play(scene, 10.0)
    assert shop.total == 1


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_that_the_block_ended_in_sql(shop: Shop, end: str, goes_on: bool) -> None:
    async def scene(guard: AsyncSQLAlchemyGuard) -> None:
        async with guard.begin(MINE) as connection:
            total = (await connection.execute(READ)).scalar_one()
            await connection.exec_driver_sql(end)
            if goes_on:
                await asyncio.to_thread(shop.beside.claim, NEWER)
                await asyncio.to_thread(shop.beside.write, NEWER, ADD)
                await connection.execute(text("UPDATE orders SET total = :total WHERE id = 1"), {"total": total + 10})

    with pytest.raises(GuardNotEnforceable, match="not sound"):
        shop.play(scene, 10.0)
    assert shop.total == (1 if goes_on else 0), "the lost update was not refused"


def test_several_statements_in_one_write(shop: Shop) -> None:
    async def scene(guard: AsyncSQLAlchemyGuard) -> None:
        await guard.write(MINE, text("COMMIT; BEGIN; UPDATE orders SET total = 7"))

    with pytest.raises((GuardNotEnforceable, DBAPIError)):
        shop.play(scene, 10.0)
    assert shop.total == 0


def test_autocommit(shop: Shop) -> None:
    async def scene(guard: AsyncSQLAlchemyGuard) -> None:
        with pytest.raises(GuardNotEnforceable, match="AUTOCOMMIT"):
            await guard.claim(MINE)
        with pytest.raises(GuardNotEnforceable, match="AUTOCOMMIT"):
            async with guard.begin(MINE):
                raise AssertionError("the block has run")

    shop.play(scene, 10.0, isolation_level="AUTOCOMMIT")


def test_no_server(shop: Shop) -> None:
    """asyncpg lets the error of its socket through as it is."""
    shop.way.proxy.refuse()

    async def scene(guard: AsyncSQLAlchemyGuard) -> None:
        for use in (guard.create_tables, lambda: guard.claim(MINE), lambda: guard.write(MINE, ADD)):
            with pytest.raises(GuardUnavailable, match="did not answer"):
                await use()

    shop.play(scene, 1.0)
    nowhere = shop.way.direct.replace(f":{shop.way.server.port}/", ":1/")
    shop.play(scene, 1.0, url=nowhere)


def test_errors_of_the_block_stay_what_they_are(shop: Shop) -> None:
    """Also those that a driver's socket could have raised."""

    async def scene(guard: AsyncSQLAlchemyGuard) -> None:
        for error in (ConnectionResetError("mine"), TimeoutError("mine"), OSError("mine")):
            with pytest.raises(type(error), match="mine") as raised:
                async with guard.begin(MINE) as connection:
                    await connection.execute(ADD)
                    raise error
            assert raised.value is error

    shop.play(scene, 10.0)
    assert shop.total == 0


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_cancelled_claim_gives_its_connection_back(shop: Shop, times: int) -> None:
    """Also where it is cancelled again while the driver stops it, so that nothing is left to roll back."""

    async def scene(guard: AsyncSQLAlchemyGuard) -> None:
        with shop.beside.begin(MINE):
            claim = asyncio.ensure_future(guard.claim(NEWER))
            await asyncio.to_thread(until_locks_are_waited_for, shop.way.url)
            for _ in range(times):
                claim.cancel()
                await asyncio.sleep(0)  # so that each cancellation is delivered by itself
            with pytest.raises(asyncio.CancelledError):
                await claim
        await guard.claim(NEWER)  # the pool has one connection: it is free again, and clean
        assert await guard.write(NEWER, ADD) == 1

    shop.play(scene, 5.0, pool_size=1, max_overflow=0, pool_timeout=5)


def test_waits_are_bounded(shop: Shop) -> None:
    async def scene(guard: AsyncSQLAlchemyGuard) -> None:
        with shop.beside.begin(MINE):
            started = time.monotonic()
            with pytest.raises(GuardUnavailable, match="'orders:1' stayed locked"):
                await guard.claim(NEWER)
            assert time.monotonic() - started < 3
        await guard.claim(NEWER)

    shop.play(scene, 0.3)


def test_postgresql_bounds_end_with_the_transaction(shop: Shop) -> None:
    if shop.way.is_mariadb:
        return  # see test_sql_mariadb.py
    show = text(
        "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'), "
        "current_setting('idle_in_transaction_session_timeout'), current_setting('tcp_user_timeout')"
    )

    async def settings(engine: AsyncEngine) -> tuple[Any, ...]:
        async with engine.connect() as connection:
            return tuple((await connection.execute(show)).one())

    async def scene(guard: AsyncSQLAlchemyGuard) -> None:
        before = await settings(guard._engine)
        async with guard.begin(MINE) as connection:
            assert tuple((await connection.execute(show)).one()) == ("3s", "3s", "3s", "3000")
        assert await settings(guard._engine) == before == ("0", "0", "0", "0")

    shop.play(scene, 3.0, pool_size=1, max_overflow=0)
