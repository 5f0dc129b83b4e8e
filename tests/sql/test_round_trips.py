"""How often the SQLAlchemy guard goes to PostgreSQL and back through psycopg, counted on the wire; and what stays as it
is where it goes past the engine: hooks, and a pool that learns of broken connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence, GuardUnavailable, StaleFence
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.support.servers import Proxy
from tests.support.sides import close_engine
from tests.support.sql_ways import Way, Wire, new_way

MINE = Fence("orders:1", 1, "a" * 22)
NEWER = Fence("orders:1", 2, "b" * 22)
ADD = text("UPDATE orders SET total = total + :more")


class Shop:
    """A guard behind a proxy, with a pool of two connections."""

    def __init__(self, way: Way) -> None:
        self.side, self.proxy = way.side, way.proxy
        self.direct = create_engine(way.url)
        with self.direct.begin() as connection:
            connection.execute(text("CREATE TABLE orders (total INTEGER NOT NULL)"))
            connection.execute(text("INSERT INTO orders VALUES (0)"))
        self.beside = SQLAlchemyGuard(self.direct)
        self.beside.create_tables()
        self.beside.claim(MINE)
        options: dict[str, Any] = {"pool_size": 2, "max_overflow": 0}
        self.engine: Any
        self.guard: Any
        if self.side.asynchronous:
            self.engine = create_async_engine(way.through, **options)
            self.guard = AsyncSQLAlchemyGuard(self.engine)
        else:
            self.engine = create_engine(way.through, **options)
            self.guard = SQLAlchemyGuard(self.engine)

    def write(self) -> int:
        return int(self.side.call(self.guard.write, MINE, ADD, {"more": 1}))

    def forget_prepared(self) -> Any:
        """On the connection that the next write will have."""
        forget = text("DEALLOCATE ALL")
        if not self.side.asynchronous:
            with self.engine.connect() as connection:
                connection.execute(forget)
            return None

        async def forget_it() -> None:
            async with self.engine.connect() as connection:
                await connection.execute(forget)

        return forget_it()

    @property
    def total(self) -> int:
        with self.direct.connect() as connection:
            return int(connection.execute(text("SELECT total FROM orders")).scalar_one())


@pytest.fixture(params=["psycopg", "psycopg-async"])
def shop(request: pytest.FixtureRequest, proxy: Callable[[Any], Proxy]) -> Iterator[Shop]:
    shop = Shop(new_way(request, request.param, proxy))
    yield shop
    close_engine(shop.side, shop.engine)
    shop.direct.dispose()


def test_trips(shop: Shop) -> None:
    for _ in range(10):
        shop.write()  # until the driver has prepared the statement
    wire = Wire(shop.proxy)
    guard, side = shop.guard, shop.side

    async def empty_async_block() -> None:
        async with guard.begin(MINE):
            pass

    def empty_block() -> None:
        with guard.begin(MINE):
            pass

    assert wire.count(side, guard.write, MINE, ADD, {"more": 1}) == 3  # as many as the same without a guard
    assert wire.count(side, empty_async_block if side.asynchronous else empty_block) == 3
    assert wire.count(side, guard.claim, MINE) == 1
    assert wire.count(side, guard.claim, NEWER) == 1
    side.expect(StaleFence, guard.write, MINE, ADD, {"more": 1})
    assert shop.total == 11


def test_a_hook_that_has_begun_the_transaction(shop: Shop) -> None:
    """Then the check joins it: what the hook has set holds in the block, also where prepared statements have vanished
    meanwhile; and the rule is the same."""
    shop.write()
    shop.side.call(shop.forget_prepared)
    engine = getattr(shop.engine, "sync_engine", shop.engine)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("SET LOCAL application_name = hooked"))
    as_hooked = text("UPDATE orders SET total = total + 1 WHERE current_setting('application_name') = 'hooked'")
    assert shop.side.call(shop.guard.write, MINE, as_hooked) == 1
    shop.side.call(shop.guard.claim, NEWER)
    shop.side.expect(StaleFence, shop.guard.write, MINE, as_hooked)
    assert shop.total == 2


def test_the_pool_learns_that_its_connections_are_broken(shop: Shop) -> None:
    """One failure tells of all the connections that a server had: the next write has a new one."""

    async def connect_twice_async() -> None:
        async with shop.engine.connect(), shop.engine.connect():
            pass

    def connect_twice() -> None:
        with shop.engine.connect(), shop.engine.connect():
            pass

    shop.side.call(connect_twice_async if shop.side.asynchronous else connect_twice)
    shop.proxy.cut()
    shop.side.expect(GuardUnavailable, shop.guard.write, MINE, ADD, {"more": 1})
    assert shop.write() == 1
    assert shop.total == 1


def test_a_check_that_joins_on_a_broken_connection(shop: Shop) -> None:
    """What it raises is not hidden by the rollback of the caller's transaction, of which there is nothing left."""

    async def advance_async() -> None:
        async with shop.engine.begin() as connection:
            shop.proxy.cut()
            await shop.guard.advance(connection, MINE)

    def advance() -> None:
        with shop.engine.begin() as connection:
            shop.proxy.cut()
            shop.guard.advance(connection, MINE)

    shop.side.expect(GuardUnavailable, advance_async if shop.side.asynchronous else advance)
    assert shop.write() == 1
