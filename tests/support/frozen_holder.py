"""The process that test_frozen_holders.py freezes: in a guarded block, idle or while it reads rows; or in a transaction
of its own."""

from __future__ import annotations

import asyncio
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard

WRITE = text("UPDATE orders SET total = total + 1000")
ROWS = "20000000"
MANY = {
    "postgresql": text(f"SELECT repeat('x', 1000) FROM generate_series(1, {ROWS})"),
    "mysql": text(f"SELECT REPEAT('x', 1000) FROM seq_1_to_{ROWS}"),
}
GUARD_SECONDS = 300.0


class Lease:
    """As much of a lease as a guard uses; it is not the guard's own bound that frees the marks in time."""

    fence = Fence("orders:1", 5, "a" * 22)

    def remaining(self) -> float:
        return 1.5


def main(url: str, what: str) -> None:
    engine = create_engine(url)
    guard = SQLAlchemyGuard(engine, timeout=GUARD_SECONDS)
    if what == "joined":
        guard.claim(Lease())
    with engine.begin() if what == "joined" else guard.begin(Lease(), claim=True) as connection:
        if what == "joined":
            guard.advance(connection, Lease())
        connection.execute(WRITE)
        print("wrote", flush=True)
        if what == "receiving":
            connection.execute(MANY[engine.dialect.name])
        sys.stdin.readline()  # frozen (SIGSTOP) here or above


async def async_main(url: str, what: str) -> None:
    engine = create_async_engine(url)
    guard = AsyncSQLAlchemyGuard(engine, timeout=GUARD_SECONDS)
    if what == "joined":
        await guard.claim(Lease())
    async with engine.begin() if what == "joined" else guard.begin(Lease(), claim=True) as connection:
        if what == "joined":
            await guard.advance(connection, Lease())
        await connection.execute(WRITE)
        print("wrote", flush=True)
        if what == "receiving":
            await connection.execute(MANY[engine.dialect.name])
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    _, _url, _what, _side = sys.argv
    if _side == "async":
        asyncio.run(async_main(_url, _what))
    else:
        main(_url, _what)
