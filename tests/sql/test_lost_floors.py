"""The floor row: it is not remade silently where marks may be lost, and no impossible number becomes the floor."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence, GuardNotEnforceable, StaleFence
from fencing.kernel.fence import MAX_NUMBER
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from storage_guards.sql.outcome import FLOOR
from tests.support.psycopg_database import dsn_of
from tests.support.sides import Side, close_engine
from tests.support.sql_ways import asyncio_url


def fence(name: str, number: int) -> Fence:
    return Fence(name, number, f"{number:022d}")


class Shop:
    """A guard of one kind, and its database."""

    def __init__(self, side: Side, url: str, kind: str) -> None:
        self.side, self.url, self.kind = side, url, kind
        self.direct: Engine = create_engine(url)
        self.engine: Any = None
        self.guard: Any
        if kind == "psycopg":
            self.guard = (AsyncPsycopgGuard if side.asynchronous else PsycopgGuard)(dsn_of(url))
        elif side.asynchronous:
            self.engine = create_async_engine(asyncio_url(url))
            self.guard = AsyncSQLAlchemyGuard(self.engine)
        else:
            self.engine = create_engine(url)
            self.guard = SQLAlchemyGuard(self.engine)
        self.call("create_tables")

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        return self.side.call(getattr(self.guard, method), *args, **options)

    def refused(self, kind: Any, method: str, *args: Any, **options: Any) -> Any:
        return self.side.expect(kind, getattr(self.guard, method), *args, **options)

    def sql(self, statement: str) -> Any:
        with self.direct.begin() as connection:
            result = connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None

    @property
    def floor(self) -> int | None:
        key = f"UNHEX('{FLOOR.encode().hex()}')" if self.kind == "mariadb" else f"'{FLOOR}'"
        number = self.sql(f"SELECT number FROM fencing_marks WHERE resource = {key}")
        return None if number is None else int(number)

    def close(self) -> None:
        if self.engine is not None:
            close_engine(self.side, self.engine)
        self.direct.dispose()


_MORE = [pytest.param(name, marks=pytest.mark.thorough) for name in ("mariadb-asyncio", "postgres", "psycopg-asyncio")]


@pytest.fixture(params=["psycopg", "postgres-asyncio", "mariadb", "sqlite", "sqlite-asyncio", *_MORE])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    kind, _, asyncio = request.param.partition("-")
    side = Side(bool(asyncio))
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/data.db"
    else:
        url = request.getfixturevalue("mariadb_url" if kind == "mariadb" else "postgres_url")
    shop = Shop(side, url, kind)
    yield shop
    shop.close()


@pytest.mark.thorough
def test_a_table_that_was_emptied(shop: Shop) -> None:
    """No old fence gets in: claims are refused, and the floor that create_tables makes shuts out all old fences."""
    before = time.time_ns() // 1000
    old = fence("orders:1", before)
    shop.call("claim", fence("orders:1", before + 1))
    shop.sql("DELETE FROM fencing_marks" if shop.kind == "sqlite" else "TRUNCATE TABLE fencing_marks")
    for method, args, options in (
        ("claim", [old], {}),
        ("claim", [old, fence("a", 1)], {}),
        ("prune", [], {"below": 9}),
    ):
        error = shop.refused(GuardNotEnforceable, method, *args, **options)
        assert "the floor row of fencing_marks is missing" in str(error)
        assert "call guard.create_tables() once" in str(error)
    assert shop.floor is None
    assert "no new name can be claimed" in str(shop.refused(GuardNotEnforceable, "verify"))
    for _ in range(2):
        shop.call("create_tables")
        assert shop.refused(StaleFence, "claim", old).floor == shop.floor
    floor = shop.floor
    assert floor is not None
    assert before < floor <= time.time_ns() // 1000
    shop.call("claim", fence("orders:1", floor + 1))
    shop.call("verify")


def test_a_floor_that_is_missing_below_marks(shop: Shop) -> None:
    """Names that have a mark do not need it."""
    shop.call("claim", fence("a", 5))
    shop.sql("DELETE FROM fencing_marks WHERE number = 0")
    shop.call("claim", fence("a", 6))
    shop.refused(GuardNotEnforceable, "claim", fence("b", 6))


def test_a_mark_that_no_history_can_have_made(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Pruned, it would have become the floor of every name."""
    shop.call("claim", fence("poisoned", MAX_NUMBER), fence("far", MAX_NUMBER - 1), fence("old", 5))
    with caplog.at_level(logging.WARNING, "fencing"):
        assert shop.call("prune", below=MAX_NUMBER) == 1
    assert "2 mark(s) have numbers that no coordinator can have minted, and were not pruned" in caplog.text
    assert shop.floor == 5
    shop.call("claim", fence("new", 6))
    report = str(shop.call("verify"))
    assert f"the mark of 'poisoned' has the number {MAX_NUMBER}, which no coordinator can have minted" in report
    assert "the mark of 'far'" in report
    assert shop.call("mark", "poisoned").number == MAX_NUMBER


def test_a_floor_that_no_history_can_have_made(shop: Shop) -> None:
    """It comes from another version, or from hand. The report names it."""
    shop.sql(f"UPDATE fencing_marks SET number = {MAX_NUMBER}")
    error = shop.refused(GuardNotEnforceable, "verify")
    assert f"the floor is {MAX_NUMBER}, which no coordinator can have minted" in str(error)
    assert "docs/operations/incidents.md" in str(error)
