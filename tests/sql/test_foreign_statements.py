"""A write that is no plain INSERT, UPDATE or DELETE can end the checked transaction, and then write unchecked."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import DDL, Column, Integer, MetaData, Table, create_engine, func, select, text, update
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence, GuardNotEnforceable
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from storage_guards.sql.statements import is_one_write
from tests.support.sides import Side, close_engine
from tests.support.sql_ways import DONE, TO_POSTGRES, WayLender, ways

MINE = Fence("orders:1", 5, "a" * 22)

ORDERS = Table("orders", MetaData(), Column("total", Integer))
SEVERAL = "COMMIT; BEGIN; UPDATE orders SET total = 99"

STATEMENTS = {
    "ddl": DDL(SEVERAL),  # type: ignore[no-untyped-call]
    "text": text(SEVERAL),
    "in an update": update(ORDERS).values(total=ORDERS.c.total).where(text(f"true; {SEVERAL}")),
    "a prefix": update(ORDERS).values(total=ORDERS.c.total).prefix_with(f"orders SET total = 1; {SEVERAL}; UPDATE"),
    "columns": text(f"{SEVERAL} RETURNING total").columns(ORDERS.c.total),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_write_that_ends_the_checked_transaction(side: Side, postgres_url: str, name: str) -> None:
    """DDL("COMMIT; BEGIN; UPDATE …") was acknowledged, and written without a check."""
    direct = create_engine(postgres_url)
    with direct.begin() as connection:
        ORDERS.create(connection)
        connection.execute(ORDERS.insert().values(total=0))
    engine: Any = (create_async_engine if side.asynchronous else create_engine)(postgres_url)
    guard: Any = (AsyncSQLAlchemyGuard if side.asynchronous else SQLAlchemyGuard)(engine)
    side.call(guard.create_tables)
    side.call(guard.claim, MINE)
    side.expect(GuardNotEnforceable, guard.write, MINE, STATEMENTS[name])
    with direct.connect() as connection:
        assert connection.execute(select(ORDERS.c.total)).scalar_one() != 99
    assert side.call(guard.write, MINE, update(ORDERS).values(total=1)) == 1
    assert side.call(guard.write, MINE, func.now()) == 1  # a call is foreign, too, but may be sound
    close_engine(side, engine)
    direct.dispose()


@pytest.mark.parametrize("statement", ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN", " /* a */ rollback and chain"])
@pytest.mark.parametrize("name", ways("psycopg", "asyncpg", "PsycopgGuard", of=TO_POSTGRES))
def test_a_write_that_exchanges_the_transaction(sql_ways: WayLender, name: str, statement: str) -> None:
    """It was acknowledged. After the rollback all later writes were refused: the mark had lost an acknowledged one."""
    with sql_ways.lend(name) as way:
        way.beside.claim(MINE)
        way.side.expect(GuardNotEnforceable, way.guard.write, MINE, *way.statement(statement))
        assert way.write(MINE, DONE, id=1) == 1


@pytest.mark.parametrize("one", ["UPDATE a SET b = 1", "\n insert into a values (1)", "WITH a AS (SELECT 1) TABLE a"])
def test_a_text_that_is_one_write(one: str) -> None:
    assert is_one_write(one)


@pytest.mark.parametrize(
    "other", ["COMMIT", "UPDATE a SET b = 1; COMMIT", "-- UPDATE\nCOMMIT", "UPDATES", "", "CALL x()"]
)
def test_a_text_that_may_be_anything(other: str) -> None:
    assert not is_one_write(other)
