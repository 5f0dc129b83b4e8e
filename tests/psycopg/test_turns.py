"""The turn on a guard's only connection: it passes on whatever interrupts its holder, and swallows no cancellation."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from fencing import Fence, GuardUnavailable, OutcomeUnknown
from fencing.kernel.waking import AsyncTurns
from storage_guards import AsyncPsycopgGuard, PsycopgGuard
from tests.support.interruptions import Interruption, SoftTimeLimit
from tests.support.psycopg_database import ADD, dsn_of

MINE = Fence("orders:1", 5, "a" * 22)


def test_async_turns_one_after_the_other() -> None:
    async def story() -> None:
        turns, first, second, third = AsyncTurns(), asyncio.Event(), asyncio.Event(), asyncio.Event()
        assert await turns.take(first, 1)
        assert not await turns.take(second, 0.01)
        turns.queue.pop(second)
        waiting = asyncio.ensure_future(turns.take(third, 60))
        await asyncio.sleep(0)
        turns.queue.pop(first)  # and then its task was interrupted: nothing has woken the next one
        assert await asyncio.wait_for(waiting, 30)

    asyncio.run(story())


def test_an_operation_that_is_gone_has_no_turn(postgres_url: str) -> None:
    """An interruption can come where nothing gives the turn back: an operation that is gone does not have it."""
    with psycopg.connect(dsn_of(postgres_url)) as own:
        guard = PsycopgGuard(own, timeout=1.0)
        guard.create_tables()
        operation: Any = guard._borrow(1)
        operation.__enter__()
        del operation
        gc.collect()
        assert guard.mark("orders:1") is None


# Python warns where an interruption has dropped what was just made.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("source", ["connection", "pool"])
@pytest.mark.parametrize("operation", ["mark", "write"])
def test_a_signal_handler_raises_in_a_task_that_borrows_or_gives_back(
    postgres_url: str, source: str, operation: str
) -> None:
    """The lock was taken, and nothing had noted that. Or the pool's connection was about to be given back."""
    dsn = dsn_of(postgres_url)
    nothing = "UPDATE fencing_marks SET seq = seq WHERE false"
    use: tuple[Any, ...] = ("orders:1",) if operation == "mark" else (MINE, nothing)

    async def story(line: int) -> bool:
        interruption = Interruption(line, SoftTimeLimit(), only=("psycopg/sources.py",))
        if source == "pool":
            async with AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False) as pool:
                await interrupted(AsyncPsycopgGuard(pool, timeout=1), interruption)
        else:
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as own:
                await interrupted(AsyncPsycopgGuard(own, timeout=1), interruption, own)
        return interruption.was_raised

    async def interrupted(guard: Any, interruption: Interruption, own: Any = None) -> None:
        await guard.mark("orders:1")
        running = asyncio.ensure_future(interruption.run_async(getattr(guard, operation)(*use)))
        with suppress(SoftTimeLimit, OutcomeUnknown):
            await running
        del running
        if own is None or not own.closed:
            assert await guard.mark("orders:1") is not None

    with psycopg.connect(dsn, autocommit=True) as direct:
        guard = PsycopgGuard(direct)
        guard.create_tables()
        guard.claim(MINE)
    line = 0
    while asyncio.run(story(line)):
        line += 1
    assert line > 10


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
            turns: AsyncTurns = borrow._borrow.args[1]
            turn = asyncio.Event()
            assert await turns.take(turn, 1)
            task = asyncio.ensure_future(guard.write(MINE, ADD, [1]))
            for _ in range(10):
                await asyncio.sleep(0)  # it waits now
            turns.queue.pop(turn)
            turns.wake_first()
            task.cancel()  # its turn has come, but it has not run yet
            with suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert await guard.write(MINE, ADD, [2]) == 1
            await own.close()
            rows = await (await direct.execute("SELECT id FROM done")).fetchall()
            return [row[0] for row in rows]

    assert asyncio.run(story()) == [2]


@pytest.mark.thorough
def test_a_connection_that_stays_in_use(postgres_url: str) -> None:
    with psycopg.connect(dsn_of(postgres_url)) as own:
        guard = PsycopgGuard(own, timeout=1.0)
        guard.create_tables()
        with guard._borrow(1), pytest.raises(GuardUnavailable, match="only connection was in use"):
            guard.mark("orders:1")
        assert guard.mark("orders:1") is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_the_turn_passes_on_after_an_error(postgres_url: str, kind: type[BaseException]) -> None:
    with psycopg.connect(dsn_of(postgres_url)) as own:
        guard = PsycopgGuard(own, timeout=1.0)
        guard.create_tables()
        with pytest.raises(kind), guard.begin(MINE, claim=True):
            raise kind
        assert guard.mark("orders:1") is None


def test_an_interrupted_return_lends_no_connection_twice(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool had queued the connection for its reset, and was given it again: two threads had one transaction."""
    may_reset = threading.Event()

    def reset(_: psycopg.Connection[Any]) -> None:
        may_reset.wait(30)

    with ConnectionPool(dsn_of(postgres_url), min_size=1, max_size=3, open=True, reset=reset) as pool:
        guard = PsycopgGuard(pool)
        may_reset.set()
        guard.create_tables()
        put = pool.putconn
        may_reset.clear()

        def interrupted(connection: psycopg.Connection[Any]) -> None:
            monkeypatch.setattr(pool, "putconn", put)
            put(connection)
            raise KeyboardInterrupt

        monkeypatch.setattr(pool, "putconn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            guard.claim(MINE)
        may_reset.set()
        lent = [pool.getconn() for _ in range(3)]
        with suppress(PoolTimeout):
            lent.append(pool.getconn(0.2))
        assert len(set(map(id, lent))) == len(lent)
        for each in lent:
            pool.putconn(each)
        assert guard.mark("orders:1") is not None
