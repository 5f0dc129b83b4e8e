"""A restore, or a failover to a lagging replica, brings back marks and data together, under a holder that lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence, UnclaimedFence
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from storage_guards.sql.transaction import GuardedTransaction
from tests.support.psycopg_database import dsn_of
from tests.support.sides import Side, close_engine
from tests.support.sql_ways import asyncio_url

MINE = Fence("orders:1", 5, "a" * 22)
OTHER = Fence("orders:2", 5, "c" * 22)
ADD = "UPDATE orders SET total = total + 1"


class Shop:
    """A guard of either library, and the database without it: to back up, and to restore."""

    def __init__(self, side: Side, kind: str, url: str) -> None:
        self.side, self.kind = side, kind
        self.direct = create_engine(url)
        with self.direct.begin() as connection:
            connection.execute(text("CREATE TABLE orders (total INTEGER)"))
            connection.execute(text("INSERT INTO orders VALUES (0)"))
        self._engine: Any = None
        if kind == "psycopg guard":
            dsn = dsn_of(url)
            self.source: Any = lambda: (psycopg.AsyncConnection if side.asynchronous else psycopg.Connection).connect(
                dsn
            )
        elif side.asynchronous:
            self.source = self._engine = create_async_engine(asyncio_url(url))
        else:
            self.source = self._engine = create_engine(url)
        self.guard = self.another_guard()
        side.call(self.guard.create_tables)

    def another_guard(self) -> Any:
        kinds: Any = (AsyncSQLAlchemyGuard, SQLAlchemyGuard)
        if self.kind == "psycopg guard":
            kinds = (AsyncPsycopgGuard, PsycopgGuard)
        return kinds[not self.side.asynchronous](self.source)

    def claim(self, *fences: Any) -> None:
        self.side.call(self.guard.claim, *fences)

    def write(self, holder: Any = MINE, guard: Any = None, **options: Any) -> None:
        add: Any = ADD if self.kind == "psycopg guard" else text(ADD)
        self.side.call((guard or self.guard).write, holder, add, **options)

    def block(self, *holders: Any, error: Exception | None = None, **options: Any) -> Callable[[], Any]:
        def raise_it() -> None:
            if error is not None:
                raise error

        def run() -> None:
            with self.guard.begin(*holders, **options):
                raise_it()

        async def run_async() -> None:
            async with self.guard.begin(*holders, **options):
                raise_it()

        return run_async if self.side.asynchronous else run

    @property
    def total(self) -> int:
        with self.direct.connect() as connection:
            return int(connection.execute(text("SELECT total FROM orders")).scalar_one())

    def backup(self) -> Callable[[], None]:
        """Return the restore."""
        tables = ("fencing_marks", "orders")
        with self.direct.connect() as connection:
            rows = {
                table: [dict(row._mapping) for row in connection.execute(text(f"SELECT * FROM {table}"))]
                for table in tables
            }

        def restore() -> None:
            with self.direct.begin() as connection:
                for table in tables:
                    connection.execute(text(f"DELETE FROM {table}"))
                    for row in rows[table]:
                        row.pop("xact", None)
                        values = ", ".join(f":{name}" for name in row)
                        connection.execute(text(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})"), row)

        return restore

    def close(self) -> None:
        if self._engine is not None:
            close_engine(self.side, self._engine)
        self.direct.dispose()


class Lease:
    """A holder, as a lease is one."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence


@pytest.fixture(params=["postgres", "sqlite", "psycopg guard", pytest.param("mariadb", marks=pytest.mark.thorough)])
def shop(request: pytest.FixtureRequest, side: Side, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/data.db"
    else:
        url = request.getfixturevalue("mariadb_url" if request.param == "mariadb" else "postgres_url")
    shop = Shop(side, request.param, url)
    yield shop
    shop.close()


def test_a_restore_under_a_living_holder(shop: Shop) -> None:
    """The next write came from what is gone, and was acknowledged: 120, where 90 was right."""
    shop.claim(MINE, OTHER)
    shop.write()
    restore = shop.backup()
    shop.write()
    restore()
    ways: tuple[Any, ...] = ({}, {"claim": True})
    for options in ways:
        shop.side.expect(UnclaimedFence, shop.write, **options)
        shop.side.expect(UnclaimedFence, shop.block(OTHER, MINE, **options))
    shop.side.expect(UnclaimedFence, shop.guard.claim, MINE)
    assert shop.total == 1
    shop.write(OTHER)  # nothing of it is gone


def test_a_restore_after_which_another_guard_has_written(shop: Shop) -> None:
    """The mark's seq is what it was, but not its last write."""
    shop.claim(MINE)
    restore = shop.backup()
    shop.write()
    restore()
    another = shop.another_guard()
    for _ in range(2):
        shop.write(guard=another)
        shop.side.expect(UnclaimedFence, shop.write)
    assert shop.total == 2


def test_what_was_acknowledged_to_a_lease_all_guards_know(shop: Shop) -> None:
    lease = Lease(MINE)
    shop.claim(lease)
    restore = shop.backup()
    shop.write(lease)
    restore()
    shop.side.expect(UnclaimedFence, shop.write, lease, guard=shop.another_guard())
    assert shop.total == 0


def test_guards_of_equal_connection_strings_share_it(postgres_url: str) -> None:
    shop, lease = Shop(Side(False), "psycopg guard", postgres_url), Lease(MINE)
    first, second = (PsycopgGuard("".join([*dsn_of(postgres_url)])) for _ in range(2))
    first.claim(lease)
    restore = shop.backup()
    first.write(lease, ADD)
    restore()
    with pytest.raises(UnclaimedFence):
        second.write(lease, ADD)
    shop.close()


@pytest.mark.thorough
def test_no_false_alarm(shop: Shop) -> None:
    """Rolled-back blocks were acknowledged nothing, and others may write under the same fence."""
    another = shop.another_guard()
    lease = Lease(MINE)
    shop.claim(lease, OTHER)
    for _ in range(2):
        shop.side.expect(ZeroDivisionError, shop.block(OTHER, lease, error=ZeroDivisionError()))
        shop.write(lease)
        shop.write(MINE, another, claim=True)
        shop.side.call(shop.block(OTHER, MINE))
        shop.claim(lease)
        for _ in range(3):
            shop.write(MINE, another)
    newer = Fence("orders:1", 6, "b" * 22)
    shop.claim(newer)
    shop.write(newer)
    assert shop.total == 11


def test_a_restore_from_before_the_claim(shop: Shop) -> None:
    restore = shop.backup()
    shop.claim(MINE)
    shop.write()
    restore()
    shop.side.expect(UnclaimedFence, shop.write)
    shop.side.expect(UnclaimedFence, shop.guard.claim, MINE)
    assert shop.total == 0


def test_a_claim_that_another_thread_overtakes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim is committed before its answer is read. Meanwhile a write was acknowledged to the same fence."""
    shop.claim(MINE)
    check_continuity = GuardedTransaction.check_continuity

    def overtaken(self: Any, admitted: Any) -> None:
        monkeypatch.undo()
        shop.guard._continuity.remember(MINE, MINE, 7, "faster")
        check_continuity(self, admitted)

    monkeypatch.setattr(GuardedTransaction, "check_continuity", overtaken)
    shop.claim(MINE)


def test_fences_of_different_numbers_are_different(shop: Shop) -> None:
    shop.claim(MINE)
    shop.write()
    newer = Fence("orders:1", 6, MINE.token)
    shop.claim(newer)
    shop.write(newer)
    assert shop.total == 2
