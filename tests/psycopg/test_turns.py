"""The turn on a guard's only connection: it passes on whatever interrupts its holder, and swallows no cancellation."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from fencing import Fence, GuardUnavailable
from storage_guards import AsyncPsycopgGuard, PsycopgGuard
from storage_guards.psycopg.sources import Turn
from tests.support.psycopg_database import ADD, dsn_of

MINE = Fence("orders:1", 5, "a" * 22)


class Operation:
    """What has the turn."""


def test_one_operation_after_the_other() -> None:
    turn, first, second = Turn(), Operation(), Operation()
    assert turn.take(first, 1)
    assert not turn.take(second, 0.01)
    turn.pass_on(second)  # it does not have it
    assert not turn.take(second, 0)
    turn.pass_on(first)
    assert turn.take(second, 0)


def test_a_waiter_is_called() -> None:
    turn, first, second = Turn(), Operation(), Operation()
    turn._CHECK_SECONDS = 10  # it must be called
    assert turn.take(first, 1)
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(turn.take(second, 5)))
    thread.start()
    while not turn._waiting:
        pass
    turn.pass_on(first)
    thread.join(2)
    assert got == [True]


def test_an_operation_that_is_gone_has_no_turn() -> None:
    """An interruption can come between a lock's acquisition and the line that notes it: it stayed taken for good."""
    turn, first, second = Turn(), Operation(), Operation()
    assert turn.take(first, 1)
    del first
    assert turn.take(second, 1)


def test_a_cancellation_as_the_turn_comes_is_not_swallowed(postgres_url: str) -> None:
    """asyncio.wait_for swallowed it before Python 3.12, so the cancelled task committed."""

    async def story() -> list[Any]:
        dsn = dsn_of(postgres_url)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as direct:
            await direct.execute("CREATE TABLE done (id INTEGER PRIMARY KEY)")
            own = await psycopg.AsyncConnection.connect(dsn)
            guard = AsyncPsycopgGuard(own)
            await guard.create_tables()
            await guard.claim(MINE)
            borrow: Any = guard._borrow
            turn: asyncio.Lock = borrow.args[1]
            await turn.acquire()
            task = asyncio.ensure_future(guard.write(MINE, ADD, [1]))
            for _ in range(10):
                await asyncio.sleep(0)  # it waits now
            turn.release()
            task.cancel()  # its turn has come, but it has not run yet
            with suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert await guard.write(MINE, ADD, [2]) == 1
            await own.close()
            rows = await (await direct.execute("SELECT id FROM done")).fetchall()
            return [row[0] for row in rows]

    assert asyncio.run(story()) == [2]


def test_a_connection_that_stays_in_use(postgres_url: str) -> None:
    with psycopg.connect(dsn_of(postgres_url)) as own:
        guard = PsycopgGuard(own, timeout=0.1)
        guard.create_tables()
        with guard._borrow(1), pytest.raises(GuardUnavailable, match="only connection was in use"):
            guard.mark("orders:1")
        assert guard.mark("orders:1") is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_the_turn_passes_on_after_an_error(postgres_url: str, kind: type[BaseException]) -> None:
    with psycopg.connect(dsn_of(postgres_url)) as own:
        guard = PsycopgGuard(own, timeout=0.5)
        guard.create_tables()
        with pytest.raises(kind), guard.begin(MINE, claim=True):
            raise kind
        assert guard.mark("orders:1") is None
