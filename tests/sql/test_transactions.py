"""A guarded SQL transaction on real databases: what it holds, what it refuses, and that it never waits for ever."""

# ruff: noqa: PT012 - what raises is a guarded block, and the statements in it are the story

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from examples.servers import PostgresServer
from fencing import Fence, GuardNotEnforceable, GuardUnavailable, StaleFence
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.sql_ways import asyncio_url

MINE = Fence("orders:1", 5, "a" * 22)
NEWER = Fence("orders:1", 6, "b" * 22)
OTHER = Fence("orders:2", 5, "c" * 22)
READ = text("SELECT total FROM orders WHERE id = 1")
ADD = text("UPDATE orders SET total = total + 1 WHERE id = 1")


class Orders:
    """A table of data, the guard beside it, and more engines on the same database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engines: list[Engine] = []
        self.engine = self.connect()
        self.guard = SQLAlchemyGuard(self.engine)
        self.guard.create_tables()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)"))
            connection.execute(text("INSERT INTO orders VALUES (1, 0)"))

    def connect(self, **settings: Any) -> Engine:
        self.engines.append(create_engine(self.url, **settings))
        return self.engines[-1]

    @property
    def total(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(READ).scalar_one())


def begin_with(engine: Engine, form: str) -> None:
    """The recipe of SQLAlchemy's documentation for SQLite: the driver begins nothing, an event does."""
    if form != "driver default":
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(form))


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Orders]:
    orders = Orders(postgres_url)
    yield orders
    for engine in orders.engines:
        engine.dispose()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(f"sqlite:///{tmp_path}/data.db")
    yield orders
    for engine in orders.engines:
        engine.dispose()


@pytest.fixture
def mariadb(mariadb_url: str) -> Iterator[Orders]:
    orders = Orders(mariadb_url)
    yield orders
    for engine in orders.engines:
        engine.dispose()


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def orders(request: pytest.FixtureRequest) -> Orders:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Orders)
    return found


# What the transaction holds


def test_the_data_is_read_under_the_marks_lock(orders: Orders) -> None:
    """Also with sqlite3's default settings, where a first SELECT would be outside any transaction."""
    orders.guard.claim(MINE)
    impatient = SQLAlchemyGuard(orders.connect(), timeout=0.1)
    for options in ({}, {"claim": True}):
        with orders.guard.begin(MINE, **options) as connection:
            connection.execute(READ)
            with pytest.raises(GuardUnavailable):
                impatient.claim(NEWER)
    impatient.claim(NEWER)


def test_a_check_that_waited_for_a_newer_claim_is_refused(postgres: Orders) -> None:
    postgres.guard.claim(MINE)
    claiming, commit = threading.Event(), threading.Event()

    def claim_slowly() -> None:
        with postgres.guard.begin(NEWER, claim=True):
            claiming.set()
            commit.wait(10)

    with ThreadPoolExecutor() as pool:
        slow = pool.submit(claim_slowly)
        claiming.wait(10)
        late = pool.submit(postgres.guard.write, MINE, ADD)
        until_locks_are_waited_for(postgres.url)
        assert not late.done()
        commit.set()
        slow.result()
        assert isinstance(late.exception(), StaleFence)
    assert postgres.total == 0


def test_two_fences_in_either_order_do_not_deadlock(orders: Orders) -> None:
    orders.guard.claim(MINE, OTHER)

    def add(*fences: Fence) -> None:
        for _ in range(15):
            with orders.guard.begin(*fences) as connection:
                connection.execute(ADD)

    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(add, MINE, OTHER), pool.submit(add, OTHER, MINE)]:
            future.result()
    assert orders.total == 30


def test_an_orm_session_joins_the_transaction(orders: Orders) -> None:
    with pytest.raises(ZeroDivisionError), orders.guard.begin(MINE, claim=True) as connection:
        with Session(connection) as session:
            session.execute(ADD)
            session.commit()
        raise ZeroDivisionError
    assert orders.total == 0


# What it refuses


def test_an_autocommit_engine(orders: Orders) -> None:
    orders.guard.claim(MINE)
    guard = SQLAlchemyGuard(orders.connect(isolation_level="AUTOCOMMIT"))
    with pytest.raises(GuardNotEnforceable, match="AUTOCOMMIT"):
        guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="AUTOCOMMIT"), guard.begin(MINE):
        raise AssertionError("the block has run")
    with pytest.raises(GuardNotEnforceable), guard.begin(MINE, claim=True):
        raise AssertionError("the block has run")


def test_sqlite_without_the_second_half_of_the_recipe(sqlite: Orders) -> None:
    engine = sqlite.connect()
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    with pytest.raises(GuardNotEnforceable, match="autocommit"):
        SQLAlchemyGuard(engine).write(MINE, ADD, claim=True)
    assert sqlite.total == 0


def test_statements_after_a_commit_inside(orders: Orders) -> None:
    with pytest.raises(InvalidRequestError), orders.guard.begin(MINE, claim=True) as connection:
        connection.execute(ADD)
        connection.commit()
        connection.execute(ADD)
    assert orders.total == 1


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_the_block_ended_in_sql(orders: Orders, end: str) -> None:
    with pytest.raises(GuardNotEnforceable, match="not sound"), orders.guard.begin(MINE, claim=True) as connection:
        connection.exec_driver_sql(end)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_another_transaction_in_the_place_of_the_checked_one(orders: Orders, end: str) -> None:
    """What was read before the block ended its transaction is old by the time it writes: the lost update is refused."""
    orders.guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="not sound"), orders.guard.begin(MINE) as connection:
        total = connection.execute(text("SELECT total FROM orders WHERE id = 1")).scalar_one()
        connection.exec_driver_sql(end)
        orders.guard.claim(NEWER)
        with orders.guard.begin(NEWER) as other:
            other.execute(ADD)
        connection.execute(text("UPDATE orders SET total = :total WHERE id = 1"), {"total": total + 10})
    assert orders.total == 1


@pytest.mark.parametrize("form", ["BEGIN", "BEGIN IMMEDIATE"])
def test_statements_after_a_commit_where_no_driver_begins_anew(sqlite: Orders, form: str) -> None:
    """Each would be committed by itself, the lost update too."""
    engine = sqlite.connect()
    begin_with(engine, form)
    guard = SQLAlchemyGuard(engine)
    guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="not sound"), guard.begin(MINE) as connection:
        total = connection.execute(READ).scalar_one()
        connection.exec_driver_sql("COMMIT")
        sqlite.guard.claim(NEWER)
        sqlite.guard.write(NEWER, ADD)
        connection.execute(text("UPDATE orders SET total = :total WHERE id = 1"), {"total": total + 10})
    assert sqlite.total == 1


def roll_back_in_a_session(connection: Connection) -> None:
    session = Session(connection)
    session.execute(READ)
    session.rollback()


def test_several_statements_in_one_write(postgres: Orders) -> None:
    postgres.guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="not sound"):
        postgres.guard.write(MINE, text("COMMIT; BEGIN; UPDATE orders SET total = 7"))
    assert postgres.total == 0


ENDS_BY_SQLALCHEMY: dict[str, Callable[[Connection], None]] = {
    "rollback": Connection.rollback,
    "close": Connection.close,
    "commit": Connection.commit,
    "session": roll_back_in_a_session,
}


@pytest.mark.parametrize("end", ENDS_BY_SQLALCHEMY)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])
def test_a_transaction_that_the_block_ended_by_sqlalchemy(orders: Orders, end: str, asynchronous: bool) -> None:
    """As the block's last act: nothing after it fails, and the block's writes must not be acknowledged."""
    orders.guard.claim(MINE)

    def block() -> None:
        with orders.guard.begin(MINE) as connection:
            connection.execute(ADD)
            ENDS_BY_SQLALCHEMY[end](connection)

    async def async_block() -> None:
        engine = create_async_engine(asyncio_url(orders.url))
        try:
            async with AsyncSQLAlchemyGuard(engine).begin(MINE) as connection:
                await connection.execute(ADD)
                if end == "close":
                    await connection.close()
                else:
                    await connection.run_sync(ENDS_BY_SQLALCHEMY[end])
        finally:
            await engine.dispose()

    with pytest.raises(GuardNotEnforceable, match="ended the checked transaction itself"):
        asyncio.run(async_block()) if asynchronous else block()
    assert orders.total == (1 if end == "commit" else 0)
    assert orders.guard.write(MINE, ADD) == 1


def test_a_transaction_that_sqlite_ended_by_itself(sqlite: Orders) -> None:
    """ON CONFLICT ROLLBACK, the error swallowed: sqlite3 begins another transaction with the next write."""
    sqlite.guard.claim(MINE)
    with sqlite.engine.begin() as connection:
        connection.execute(text("CREATE TABLE done (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)"))
        connection.execute(text("INSERT INTO done VALUES (1)"))
    with pytest.raises(GuardNotEnforceable, match="not sound"), sqlite.guard.begin(MINE) as connection:
        connection.execute(ADD)
        with pytest.raises(IntegrityError):
            connection.execute(text("INSERT INTO done VALUES (1)"))
        connection.execute(text("INSERT INTO done VALUES (2)"))
    assert sqlite.total == 0
    with sqlite.engine.connect() as connection:
        assert connection.execute(text("SELECT id FROM done")).scalars().all() == [1]


def test_a_rollback_that_fails_too_keeps_the_cause_of_the_blocks_error(postgres: Orders) -> None:
    cause = KeyError("root")
    with pytest.raises(ValueError, match="mine") as raised, postgres.guard.begin(MINE, claim=True) as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with postgres.engine.connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        raise ValueError("mine") from cause
    assert raised.value.__cause__ is cause


def test_a_failed_statement_whose_error_was_swallowed(postgres: Orders) -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, and no error: a false acknowledgement."""
    with pytest.raises(GuardNotEnforceable, match="swallowed"), postgres.guard.begin(MINE, claim=True) as connection:
        connection.execute(ADD)
        with pytest.raises(IntegrityError):
            connection.execute(text("INSERT INTO orders VALUES (1, 0)"))
    with postgres.guard.begin(MINE, claim=True) as connection:
        connection.execute(ADD)
        with pytest.raises(IntegrityError), connection.begin_nested():
            connection.execute(text("INSERT INTO orders VALUES (1, 0)"))
    assert postgres.total == 1


def test_a_database_without_the_table(orders: Orders) -> None:
    with orders.engine.begin() as connection:
        connection.execute(text("DROP TABLE fencing_marks"))
    for use in (orders.guard.claim, orders.guard.begin(MINE).__enter__, lambda *_: orders.guard.mark("orders:1")):
        with pytest.raises(GuardNotEnforceable, match=r"guard\.create_tables\(\).*guard\.metadata"):
            use(*[MINE] if use == orders.guard.claim else [])


def test_a_read_only_connection(postgres: Orders, sqlite: Orders) -> None:
    options = {"options": "-c default_transaction_read_only=on"}
    with pytest.raises(GuardNotEnforceable, match="primary"):
        SQLAlchemyGuard(postgres.connect(connect_args=options)).claim(MINE)
    path = sqlite.engine.url.database
    read_only = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    with pytest.raises(GuardNotEnforceable, match="primary"):
        SQLAlchemyGuard(read_only).claim(MINE)
    read_only.dispose()


def test_a_role_without_the_privilege(postgres: Orders) -> None:
    engine = postgres.connect()
    with postgres.engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS fencing_reader"))
        connection.execute(text("CREATE ROLE fencing_reader"))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("SET LOCAL ROLE fencing_reader"))
    with pytest.raises(GuardNotEnforceable, match="permission denied"):
        SQLAlchemyGuard(engine).claim(MINE)
    with postgres.engine.begin() as connection:
        connection.execute(text("DROP ROLE fencing_reader"))


# What passes through untouched


def test_the_blocks_own_error(orders: Orders) -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as raised, orders.guard.begin(MINE, claim=True) as connection:
        connection.execute(ADD)
        raise error
    assert raised.value is error
    with pytest.raises(IntegrityError), orders.guard.begin(MINE, claim=True) as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 0)"))
    assert orders.total == 0


def test_the_blocks_own_error_when_the_rollback_fails_too(postgres: Orders) -> None:
    with pytest.raises(ValueError, match="mine"), postgres.guard.begin(MINE, claim=True) as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with postgres.engine.connect() as killer:
            killer.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        raise ValueError("mine")
    assert postgres.guard.mark("orders:1") is None


def test_a_commit_that_the_database_refuses(postgres: Orders) -> None:
    with postgres.engine.begin() as connection:
        connection.execute(text("ALTER TABLE orders ADD CONSTRAINT one UNIQUE (total) DEFERRABLE INITIALLY DEFERRED"))
    with pytest.raises(IntegrityError), postgres.guard.begin(MINE, claim=True) as connection:
        connection.execute(text("INSERT INTO orders VALUES (2, 0)"))
    assert postgres.guard.mark("orders:1") is None


# Waits


def test_a_frozen_session_that_holds_the_mark(orders: Orders) -> None:
    orders.guard.claim(MINE)
    guard = SQLAlchemyGuard(orders.connect(), timeout=0.3)
    with orders.engine.connect() as frozen:
        frozen.execute(text("UPDATE fencing_marks SET seq = seq WHERE resource = 'orders:1'"))
        started = time.monotonic()
        with pytest.raises(GuardUnavailable, match="'orders:1' stayed locked") as refused:
            guard.claim(NEWER)
        with pytest.raises(GuardUnavailable), guard.begin(MINE):
            raise AssertionError("the block has run")
        with pytest.raises(GuardUnavailable):
            guard.claim(NEWER, timeout=0)
        assert 0.5 < time.monotonic() - started < 3
        assert refused.value.resource == "orders:1"
    guard.claim(NEWER)


def test_no_server(orders: Orders) -> None:
    url = orders.engine.url
    nowhere = url.set(database="/nowhere/data.db") if url.drivername.startswith("sqlite") else url.set(port=1)
    guard = SQLAlchemyGuard(create_engine(nowhere, connect_args={}))
    for use in (guard.create_tables, lambda: guard.claim(MINE), guard.begin(MINE).__enter__):
        with pytest.raises(GuardUnavailable, match="did not answer"):
            use()


def test_a_pool_without_a_free_connection(orders: Orders) -> None:
    engine = orders.connect(pool_size=1, max_overflow=0, pool_timeout=0.1)
    with engine.connect(), pytest.raises(GuardUnavailable, match="pool"):
        SQLAlchemyGuard(engine).claim(MINE)


class _Lease:
    fence = MINE

    def remaining(self) -> float:
        return 3.0


def test_postgresql_bounds_end_with_the_transaction(postgres: Orders) -> None:
    show = text(
        "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'), "
        "current_setting('idle_in_transaction_session_timeout')"
    )
    with postgres.guard.begin(_Lease(), claim=True) as connection:
        assert connection.execute(show).one() == ("3s", "3s", "3s")
    with postgres.engine.connect() as connection:
        assert connection.execute(show).one() == ("0", "0", "0")


@pytest.mark.parametrize("form", ["driver default", "BEGIN", "BEGIN IMMEDIATE"])
def test_sqlite_connections_come_back_unchanged(sqlite: Orders, form: str) -> None:
    engine = sqlite.connect(pool_size=1, max_overflow=0, connect_args={"timeout": 1.234})
    begin_with(engine, form)
    guard = SQLAlchemyGuard(engine, timeout=0.2)

    def busy_timeout() -> Any:
        connection = engine.raw_connection()
        try:
            return connection.cursor().execute("PRAGMA busy_timeout").fetchone()[0]
        finally:
            connection.close()

    guard.claim(MINE)
    assert busy_timeout() == 1234
    with guard.begin(MINE) as inside:
        assert inside.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 200
    assert busy_timeout() == 1234
    with pytest.raises(ZeroDivisionError), guard.begin(MINE):
        raise ZeroDivisionError
    assert busy_timeout() == 1234
    with sqlite.guard.begin(MINE):
        started = time.monotonic()
        with pytest.raises(GuardUnavailable):
            guard.claim(NEWER)
        assert time.monotonic() - started < 1
    assert busy_timeout() == 1234


@pytest.mark.parametrize("url", ["postgres", "mariadb", "sqlite"])
def test_a_cancelled_claim_gives_its_connection_back(request: pytest.FixtureRequest, url: str) -> None:
    orders: Orders = request.getfixturevalue(url)
    orders.guard.claim(MINE)

    async def scenario() -> None:
        engine = create_async_engine(asyncio_url(orders.url), pool_size=1, max_overflow=0)
        guard = AsyncSQLAlchemyGuard(engine, timeout=1.0)
        with orders.guard.begin(MINE):
            claim = asyncio.ensure_future(guard.claim(NEWER))
            await asyncio.to_thread(until_locks_are_waited_for, orders.url)
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
        await guard.claim(NEWER)  # the pool has one connection: it is free again, and clean
        async with engine.connect() as connection:
            if url == "sqlite":
                assert (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar_one() == 5000
        await engine.dispose()

    asyncio.run(scenario())


# The table


@pytest.mark.parametrize("form", ["driver default", "BEGIN", "BEGIN IMMEDIATE"])
def test_create_tables_from_many_processes_at_once(orders: Orders, form: str) -> None:
    engines = [orders.connect() for _ in range(6)]
    for engine in engines if orders.engine.dialect.name == "sqlite" else ():
        begin_with(engine, form)
    guards = [SQLAlchemyGuard(engine) for engine in engines]
    start = threading.Barrier(len(guards))

    def create(guard: SQLAlchemyGuard) -> None:
        start.wait(10)
        guard.create_tables()

    for number in range(5):
        with orders.engine.begin() as connection:
            connection.execute(text("DROP TABLE fencing_marks"))
        with ThreadPoolExecutor(len(guards)) as pool:
            for future in [pool.submit(create, guard) for guard in guards]:
                future.result()  # none fails, which is the point: CREATE TABLE IF NOT EXISTS alone may
        fence = Fence("orders:1", 5 + number, "a" * 22)
        orders.guard.claim(fence)
        assert orders.guard.write(fence, ADD) == 1


def test_postgresql_keeps_the_transaction_of_the_last_write(postgres: Orders, postgres_server: PostgresServer) -> None:
    with postgres.guard.begin(MINE, claim=True) as connection:
        mine = connection.execute(text("SELECT pg_current_xact_id()::text")).scalar_one()
    with postgres.engine.connect() as connection:
        kept = connection.execute(text("SELECT xact::text FROM fencing_marks WHERE resource = 'orders:1'")).scalar_one()
    assert kept == mine


def test_the_sqlite_of_this_python_has_what_the_guard_uses() -> None:
    assert sqlite3.sqlite_version_info >= (3, 35)
