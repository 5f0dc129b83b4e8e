"""A write that is no plain INSERT, UPDATE or DELETE can end the checked transaction, and then write unchecked."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import DDL, Column, Integer, MetaData, Table, create_engine, func, select, text, update
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence, GuardNotEnforceable
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.support.sides import Side

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
    side.call(engine.dispose)
    direct.dispose()
