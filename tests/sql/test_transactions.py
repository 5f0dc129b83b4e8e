"""A guarded transaction on real databases, with each guard: what it holds, what it refuses, and that it never waits for
ever. What is SQLAlchemy's own is in test_sqlalchemy_transactions.py, what is psycopg's own in tests/psycopg."""

# ruff: noqa: PT012 - what raises is a guarded block, and the statements in it are the story

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, StaleFence
from storage_guards import AsyncSQLAlchemyGuard
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.sql_ways import (
    ADD,
    ASYNC,
    EACH_DATABASE,
    MINE,
    NEWER,
    OVER_A_NETWORK,
    READ,
    SYNC,
    TO_POSTGRES,
    Way,
    WayLender,
    ways,
)

VIOLATION = (IntegrityError, psycopg.errors.IntegrityError)
AGAIN = "INSERT INTO orders VALUES (1, 0)"
LONG_SECONDS = 60.0
"""No wait of these stories may take so long; a guard's own bound, where nothing else is said, is 10 s."""


@pytest.fixture(params=ways(*EACH_DATABASE))
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        yield way


each_driver = pytest.mark.parametrize(
    "way",
    ways("asyncpg", "pymysql", "aiosqlite", "PsycopgGuard"),  # the tests of ``way`` have the others
    indirect=True,
)
to_postgresql = pytest.mark.parametrize(
    "way", ways("psycopg", "asyncpg", "PsycopgGuard", "AsyncPsycopgGuard", of=TO_POSTGRES), indirect=True
)


# What the transaction holds


@pytest.mark.thorough
@each_driver
def test_the_data_is_read_under_the_marks_lock(way: Way) -> None:
    """Also with sqlite3's default settings, where a first SELECT would be outside any transaction."""
    way.claim(MINE)
    for options in ({}, {"claim": True}):
        with way.begin(MINE, **options) as block:
            block.execute(READ)
            with pytest.raises(GuardUnavailable):
                way.beside.claim(NEWER, timeout=0.1)
    way.beside.claim(NEWER, timeout=10)


@to_postgresql
def test_a_check_that_waited_for_a_newer_claim_is_refused(way: Way) -> None:
    way.claim(MINE)
    claiming, commit = threading.Event(), threading.Event()

    def claim_slowly() -> None:
        with way.beside.begin(NEWER, claim=True):
            claiming.set()
            commit.wait(LONG_SECONDS)

    with ThreadPoolExecutor() as pool:
        slow = pool.submit(claim_slowly)
        assert claiming.wait(LONG_SECONDS)
        late = pool.submit(way.write, MINE, ADD)
        until_locks_are_waited_for(way.url)
        assert not late.done()
        commit.set()
        slow.result()
        assert isinstance(late.exception(), StaleFence)
    assert way.total == 0


def test_two_fences_in_either_order_do_not_deadlock(way: Way) -> None:
    def claim_and_add(*fences: Fence) -> None:
        way.claim(*fences)
        with way.begin(*fences) as block:
            block.execute(ADD)

    for number in range(5, 20):
        mine, other = (Fence(name, number, "a" * 22) for name in (f"orders:{number}", "orders:2"))
        way.side.race([lambda a=mine, b=other: claim_and_add(a, b), lambda a=mine, b=other: claim_and_add(b, a)])  # type: ignore[misc]
    assert way.total == 30


# What it refuses


@pytest.mark.parametrize("continues", [False, True], ids=["at its end", "and went on"])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@each_driver
def test_a_transaction_that_the_block_ended_in_sql(way: Way, end: str, continues: bool) -> None:
    """What was read before is old by the time it is written: the lost update is refused."""
    way.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="not sound"), way.begin(MINE) as block:
        total = block.scalar(READ)
        block.execute(end)
        if continues:
            way.beside.claim(NEWER)
            way.write_beside(NEWER, ADD)
            block.execute("UPDATE orders SET total = :total WHERE id = 1", total=total + 10)
    assert way.total == (1 if continues else 0), "the lost update was not refused"
    assert way.write(NEWER if continues else MINE, ADD) == 1


@pytest.mark.parametrize("end", ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN"])
@to_postgresql
def test_a_transaction_that_the_block_ended_and_began_anew(way: Way, end: str) -> None:
    """To the driver there is a transaction all the time."""
    way.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="not sound"), way.begin(MINE) as block:
        total = block.scalar(READ)
        block.execute(end)
        way.beside.claim(NEWER)
        way.write_beside(NEWER, ADD)
        block.execute("UPDATE orders SET total = :total WHERE id = 1", total=total + 10)
    assert way.total == 1, "the lost update was not refused"
    with pytest.raises(GuardNotEnforceable, match="not sound"), way.begin(NEWER) as block:
        block.execute(end)
    assert way.write(NEWER, ADD) == 1


@pytest.mark.parametrize(
    "way", ways("psycopg", "asyncpg", "pymysql", "PsycopgGuard", "AsyncPsycopgGuard", of=OVER_A_NETWORK), indirect=True
)
def test_several_statements_in_one_write(way: Way) -> None:
    """A driver that takes them would commit the checked transaction, and write in another one."""
    way.claim(MINE)
    with pytest.raises((GuardNotEnforceable, DBAPIError)) as raised:
        way.write(MINE, "COMMIT; BEGIN; UPDATE orders SET total = 7")
    assert isinstance(raised.value, GuardNotEnforceable) or way.name in ("asyncpg", "pymysql", "aiomysql")
    assert way.total == 0
    assert way.write(MINE, ADD) == 1


@each_driver
def test_a_failed_statement_whose_error_was_swallowed(way: Way) -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, and no error: a false acknowledgement. The
    others undo the statement alone."""

    def swallow() -> None:
        with way.begin(MINE, claim=True) as block:
            block.execute(ADD)
            with pytest.raises(VIOLATION):
                block.execute(AGAIN)

    if way.database == "postgres":
        with pytest.raises(GuardNotEnforceable, match="swallowed"):
            swallow()
    else:
        swallow()
    assert way.total == (0 if way.database == "postgres" else 1)


@each_driver
def test_a_failed_statement_in_a_savepoint(way: Way) -> None:
    with way.begin(MINE, claim=True) as block:
        block.execute(ADD)
        with pytest.raises(VIOLATION):
            block.executes_in_a_savepoint(AGAIN)
    assert way.total == 1


def test_a_database_without_the_table(way: Way) -> None:
    way.spoil()
    way.sql("DROP TABLE fencing_marks")
    uses: list[Callable[[], Any]] = [
        lambda: way.claim(MINE),
        lambda: way.begin(MINE).__enter__(),
        lambda: way.side.call(way.guard.mark, "orders:1"),
    ]
    for use in uses:
        with pytest.raises(GuardNotEnforceable, match=r"guard\.create_tables\(\)"):
            use()


@pytest.mark.parametrize(
    "way", ways("psycopg", "AsyncPsycopgGuard", of=[name for name in TO_POSTGRES if name != "asyncpg"]), indirect=True
)
def test_a_read_only_connection(way: Way) -> None:
    options = {"options": "-c default_transaction_read_only=on"}
    guard = way.new_guard(**(options if way.is_psycopg else {"connect_args": options}))
    assert "primary" in str(way.side.expect(GuardNotEnforceable, guard.claim, MINE))


# What passes through untouched


@each_driver
def test_the_blocks_own_error(way: Way) -> None:
    """Also one that a driver's socket could have raised."""
    for error in (ValueError("mine"), ConnectionResetError("mine"), TimeoutError("mine"), OSError("mine")):
        with pytest.raises(type(error), match="mine") as raised, way.begin(MINE, claim=True) as block:
            block.execute(ADD)
            raise error
        assert raised.value is error
    with pytest.raises(VIOLATION), way.begin(MINE, claim=True) as block:
        block.execute(AGAIN)
    assert way.total == 0


@to_postgresql
def test_the_blocks_own_error_when_the_rollback_fails_too(way: Way) -> None:
    cause = KeyError("root")
    with pytest.raises(ValueError, match="mine") as raised, way.begin(MINE, claim=True) as block:
        way.kill(block)
        raise ValueError("mine") from cause
    assert raised.value.__cause__ is cause
    assert way.beside.mark("orders:1") is None


@to_postgresql
def test_a_commit_that_the_database_refuses(way: Way) -> None:
    way.spoil()
    way.sql("ALTER TABLE orders ADD CONSTRAINT one UNIQUE (total) DEFERRABLE INITIALLY DEFERRED")
    with pytest.raises(VIOLATION), way.begin(MINE, claim=True) as block:
        block.execute("INSERT INTO orders VALUES (2, 0)")
    assert way.beside.mark("orders:1") is None
    assert way.write(MINE, ADD, claim=True) == 1


# Waits


@pytest.mark.thorough
@each_driver
def test_a_frozen_session_that_holds_the_mark(way: Way) -> None:
    way.claim(MINE)
    guard = way.new_guard(timeout=1.0)
    way.side.call(guard.mark, "orders:1")  # and is connected now
    with way.outside.connect() as frozen:
        frozen.execute(text("UPDATE fencing_marks SET seq = seq WHERE resource = 'orders:1'"))
        started = time.monotonic()
        refused = way.side.expect(GuardUnavailable, guard.claim, NEWER)
        assert "'orders:1' stayed locked" in str(refused)
        assert refused.resource == "orders:1"
        with pytest.raises(GuardUnavailable), way.begin(MINE, guard=guard):
            raise AssertionError("the block has run")
        way.side.expect(GuardUnavailable, guard.claim, NEWER, timeout=0)
        assert 0.5 < time.monotonic() - started < LONG_SECONDS
    way.claim(NEWER)


@each_driver
def test_no_server(way: Way) -> None:
    """asyncpg lets the error of its socket through as it is. A file that is nowhere is a fault of the set-up."""
    nowhere = re.sub(r":\d+/", ":1/", way.through) if way.has_network else f"{way.through}/nowhere/data.db"
    guard = way.guard_at(nowhere)
    kind, says = (GuardUnavailable, "did not answer") if way.has_network else (GuardNotEnforceable, "was not opened")
    for use in (guard.create_tables, lambda: guard.claim(MINE), lambda: guard.write(MINE, *way.statement(ADD))):
        assert says in str(way.side.expect(kind, use))
    with pytest.raises(kind, match=says), way.begin(MINE, guard=guard):
        raise AssertionError("the block has run")


@pytest.mark.thorough
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("way", ways("asyncpg", "aiomysql", "aiosqlite", "AsyncPsycopgGuard", of=ASYNC), indirect=True)
def test_a_cancelled_claim_gives_its_connection_back(way: Way, times: int) -> None:
    """Also where it is cancelled again while the driver stops it, so that nothing is left to roll back."""
    way.claim(MINE)
    # Stopping a claim on SQLite takes as long as it may wait.
    guard = way.new_guard(timeout=0.5 if way.database == "sqlite" else 10.0, size=1)

    async def scene() -> None:
        with way.beside.begin(MINE):
            claim = asyncio.ensure_future(guard.claim(NEWER))
            await asyncio.to_thread(until_locks_are_waited_for, way.url)
            for _ in range(times):
                claim.cancel()
                await asyncio.sleep(0)  # so that each cancellation is delivered by itself
            with pytest.raises(asyncio.CancelledError):
                await claim
        await unhurried(guard).claim(NEWER)  # the pool has one connection: it is free again, and clean

    way.side.call(scene)
    assert way.write(NEWER, ADD, guard=unhurried(guard)) == 1
    if way.database == "sqlite":
        assert way.side.call(_busy_timeout, guard._engine) == 5000


def unhurried(guard: Any) -> Any:
    """A guard on the same pool with time for a busy machine."""
    return AsyncSQLAlchemyGuard(guard._engine, timeout=60) if isinstance(guard, AsyncSQLAlchemyGuard) else guard


LONG_STATEMENT = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
aiosqlite_alone = pytest.mark.parametrize("way", ["aiosqlite"], indirect=True)


async def _cancel_twice(use: Coroutine[Any, Any, Any], begun: Callable[[], None]) -> None:
    """Cancel it again before its driver has stopped the statement, and wait for its end."""
    before = set(threading.enumerate())
    task = asyncio.ensure_future(use)
    await asyncio.to_thread(begun)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises((asyncio.CancelledError, TimeoutError)):
        await task
    left = [each for each in set(threading.enumerate()) - before if not each.name.startswith(("asyncio", "fencing-"))]
    assert left == [], "its statement may still be under way"


@pytest.mark.parametrize("use", ["claim", "prune", "advance"])
@aiosqlite_alone
def test_no_statement_of_a_cancelled_call_is_under_way_after_it(way: Way, use: str) -> None:
    """It would take the write lock later, and nobody but the event loop could end that."""
    way.claim(MINE)
    guard = way.new_guard(timeout=1.0, size=1)

    async def call() -> None:
        if use == "claim":
            await guard.claim(NEWER)
        elif use == "prune":
            await guard.prune(below=1)
        else:
            async with AsyncSession(guard._engine) as session:
                await guard.advance(session, MINE)

    async def scene() -> None:
        with way.beside.begin(MINE):
            await _cancel_twice(call(), lambda: until_locks_are_waited_for(way.url))

    way.side.call(scene)
    way.beside.claim(NEWER)


@pytest.mark.parametrize("raised", [asyncio.CancelledError, TimeoutError])
@aiosqlite_alone
def test_a_statement_of_a_cancelled_block_is_interrupted(way: Way, raised: type[BaseException]) -> None:
    """Also where the block raises another error in the cancellation's place, as ``asyncio.timeout`` does."""
    guard = way.new_guard(size=1)
    running = threading.Event()

    async def block() -> None:
        async with guard.begin(MINE, claim=True) as connection:
            raw = (await connection.get_raw_connection()).driver_connection
            await raw.set_progress_handler(running.set, 1000)
            try:
                await connection.execute(text(LONG_STATEMENT))
            except asyncio.CancelledError as error:
                if raised is asyncio.CancelledError:
                    raise
                raise raised from error

    way.side.call(_cancel_twice, block(), lambda: running.wait(LONG_SECONDS))
    way.beside.claim(NEWER, timeout=0.1)


async def _busy_timeout(engine: AsyncEngine) -> Any:
    async with engine.connect() as connection:
        return (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar_one()


# The table


@pytest.mark.thorough
@pytest.mark.parametrize("way", ways("psycopg", "pymysql", "sqlite", "PsycopgGuard", of=SYNC), indirect=True)
def test_create_tables_from_many_processes_at_once(way: Way) -> None:
    """None fails, which is the point: CREATE TABLE IF NOT EXISTS alone may."""
    way.spoil()
    guards = [way.new_guard() for _ in range(6)]
    for _ in range(3):
        way.drop_marks()
        way.side.race([guard.create_tables for guard in guards])
        way.beside.claim(MINE)
        assert way.write(MINE, ADD) == 1
