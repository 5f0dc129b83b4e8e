"""A guarded transaction on psycopg's connection: its own stories. The others are in tests/sql/test_transactions.py."""

# ruff: noqa: PT012 - what raises is a guarded block, and the statements in it are the story

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from psycopg.errors import IdleInTransactionSessionTimeout
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine, text

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, StaleFence, UnclaimedFence
from storage_guards import AsyncPsycopgGuard, PsycopgGuard, SQLAlchemyGuard
from storage_guards.psycopg.statements import texts_in
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.psycopg_database import MINE, NEWER, OTHER, dsn_of

READ = "SELECT total FROM orders WHERE id = 1"
ADD = "UPDATE orders SET total = total + 1 WHERE id = 1"


class Orders:
    """A table of data, the guard beside it, and more connections to the same database."""

    def __init__(self, url: str) -> None:
        self.url, self.dsn = url, dsn_of(url)
        self.made: list[Connection[Any]] = []
        self.direct = self.connect(autocommit=True)
        self.direct.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
        self.direct.execute("INSERT INTO orders VALUES (1, 0)")
        self.guard = PsycopgGuard(self.dsn)
        self.guard.create_tables()

    def connect(self, **settings: Any) -> Connection[Any]:
        self.made.append(psycopg.connect(self.dsn, **settings))
        return self.made[-1]

    @property
    def total(self) -> int:
        row = self.direct.execute(READ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def orders(postgres_url: str) -> Iterator[Orders]:
    orders = Orders(postgres_url)
    yield orders
    for connection in orders.made:
        connection.close()


autocommit = pytest.mark.parametrize("autocommit", [False, True], ids=["default", "autocommit"])


# What is kept from a block


@autocommit
def test_what_is_kept_from_a_block_writes_nothing_in_the_next_one(orders: Orders, autocommit: bool) -> None:
    """With the connection of a pool, it would be a write of the next holder's checked transaction."""
    with ConnectionPool(orders.dsn, kwargs={"autocommit": autocommit}, min_size=1, max_size=1) as pool:
        guard = PsycopgGuard(pool)
        guard.claim(MINE)
        with guard.begin(MINE) as kept:
            cursor = kept.cursor()
            cursor.execute(READ)
            copy = kept.cursor().copy("COPY orders FROM STDIN")
        guard.claim(NEWER)
        with guard.begin(NEWER) as connection:
            connection.execute(ADD)
            assert connection.pgconn is kept.pgconn
            uses: list[Callable[[], Any]] = [
                lambda: kept.execute(ADD),
                lambda: cursor.execute(ADD),
                lambda: list(kept.cursor().stream(READ)),
                copy.__enter__,
                lambda: kept.transaction().__enter__(),
                kept.cancel,
                kept.cancel_safe,
                lambda: next(kept.notifies(timeout=0.1)),
                lambda: setattr(kept, "autocommit", True),
            ]
            for use in uses:
                with pytest.raises(psycopg.InterfaceError, match="begin another"):
                    use()
            for use in (kept.commit, kept.rollback, kept.close):
                with pytest.raises(GuardNotEnforceable):
                    use()
            with pytest.raises(ValueError, match="can't return connection"):
                pool.putconn(kept)
        assert orders.total == 1
        guard.write(NEWER, ADD)
    assert orders.total == 2


def test_a_task_that_outlives_its_block_writes_nothing_in_the_next_one(orders: Orders) -> None:
    """As `gather` leaves it after an error of another one."""

    async def story() -> None:
        async with AsyncConnectionPool(orders.dsn, min_size=1, max_size=1, open=False) as pool:
            guard, resumed = AsyncPsycopgGuard(pool), asyncio.Event()

            async def late(connection: AsyncConnection[Any]) -> None:
                await resumed.wait()
                await connection.execute("UPDATE orders SET total = 100 WHERE id = 1")

            await guard.claim(MINE)
            async with guard.begin(MINE) as kept:
                task = asyncio.create_task(late(kept))
            await guard.claim(NEWER)
            async with guard.begin(NEWER) as connection:
                await connection.execute(ADD)
                resumed.set()
                with pytest.raises(psycopg.InterfaceError, match="begin another"):
                    await task
                with pytest.raises(GuardNotEnforceable):
                    await kept.commit()
        assert orders.total == 1

    asyncio.run(story())


# What the transaction holds


@autocommit
def test_the_data_is_read_under_the_marks_lock(orders: Orders, autocommit: bool) -> None:
    orders.guard.claim(MINE)
    impatient = PsycopgGuard(orders.dsn, timeout=0.1)
    connection = orders.connect(autocommit=autocommit)
    guard = PsycopgGuard(connection)
    for claim in (False, True):
        with guard.begin(MINE, claim=claim) as inside:
            assert inside.pgconn is connection.pgconn
            inside.execute(READ)
            with pytest.raises(GuardUnavailable):
                impatient.claim(NEWER)
        assert connection.autocommit is autocommit
        assert connection.info.transaction_status.name == "IDLE"
    impatient.claim(NEWER)


@pytest.mark.thorough
def test_sqlalchemys_guard_and_this_one_exclude_each_other(orders: Orders) -> None:
    engine = create_engine(orders.dsn.replace("postgresql:", "postgresql+psycopg:"))
    other = SQLAlchemyGuard(engine)
    other.claim(MINE)
    with orders.guard.begin(MINE), pytest.raises(GuardUnavailable):
        other.claim(NEWER, timeout=0.1)
    with other.begin(MINE), pytest.raises(GuardUnavailable):
        orders.guard.claim(NEWER, timeout=0.1)
    orders.guard.claim(NEWER)
    with pytest.raises(StaleFence):
        other.write(MINE, text(ADD))
    with pytest.raises(UnclaimedFence):
        other.write(Fence("orders:1", 7, "d" * 22), text(ADD))
    assert other.write(NEWER, text(ADD)) == 1
    assert orders.guard.write(NEWER, ADD) == 1
    assert other.mark("orders:1") == orders.guard.mark("orders:1")
    engine.dispose()


TABLE = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), c.collname
    FROM pg_attribute a LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
    LEFT JOIN pg_collation c ON c.oid = a.attcollation
    WHERE a.attrelid = 'fencing_marks'::regclass AND a.attnum > 0 ORDER BY 1
"""
CONSTRAINTS = """
    SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = 'fencing_marks'::regclass ORDER BY 1
"""


def test_the_table_is_sqlalchemys(orders: Orders) -> None:
    def described() -> Any:
        return [orders.direct.execute(query).fetchall() for query in (TABLE, CONSTRAINTS)]

    ours = described()
    orders.direct.execute("DROP TABLE fencing_marks")
    engine = create_engine(orders.dsn.replace("postgresql:", "postgresql+psycopg:"))
    SQLAlchemyGuard(engine).create_tables()
    engine.dispose()
    assert described() == ours


def test_the_connections_own_isolation_level(orders: Orders) -> None:
    connection = orders.connect()
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    connection.deferrable = False
    with PsycopgGuard(connection).begin(MINE, claim=True) as inside:
        assert inside.execute("SHOW transaction_isolation").fetchone() == ("serializable",)


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_a_claim_that_waited_is_judged_by_what_it_waited_for(orders: Orders, level: psycopg.IsolationLevel) -> None:
    """Whatever the isolation level: a serialization failure would say nothing of the fence."""
    connection = orders.connect()
    connection.isolation_level = level
    guard = PsycopgGuard(connection)
    orders.guard.claim(MINE)
    with ThreadPoolExecutor() as pool:
        with orders.guard.begin(MINE):
            waiting = pool.submit(guard.claim, NEWER)
            until_locks_are_waited_for(orders.url)
            assert not waiting.done()
        waiting.result()


def test_marks_of_names_never_seen_stay_above_the_floor(orders: Orders) -> None:
    orders.direct.execute("UPDATE fencing_marks SET number = 5 WHERE resource = 'fencing:floor'")
    with pytest.raises(StaleFence) as refused:
        orders.guard.claim(MINE)
    assert refused.value.floor == 5
    with pytest.raises(StaleFence):
        orders.guard.claim(MINE, OTHER)
    orders.guard.claim(NEWER)
    orders.direct.execute("UPDATE fencing_marks SET number = 50 WHERE resource = 'fencing:floor'")
    orders.guard.claim(Fence("orders:1", 7, "d" * 22))  # a mark that is there counts, whatever the floor


def test_a_claim_waits_while_the_floor_is_raised(orders: Orders) -> None:
    pruning = orders.connect()
    pruning.execute("UPDATE fencing_marks SET number = 5 WHERE resource = 'fencing:floor'")
    with ThreadPoolExecutor() as pool:
        claim = pool.submit(orders.guard.claim, MINE)
        until_locks_are_waited_for(orders.url)
        assert not claim.done()
        pruning.commit()
        assert isinstance(claim.exception(), StaleFence)


# What it refuses


@autocommit
@pytest.mark.parametrize("method", ["commit", "rollback", "close"])
def test_what_would_end_the_transaction_is_refused_at_once(orders: Orders, method: str, autocommit: bool) -> None:
    orders.guard.claim(MINE)
    connection = orders.connect(autocommit=autocommit)
    with PsycopgGuard(connection).begin(MINE) as inside:
        inside.execute(ADD)
        with pytest.raises(GuardNotEnforceable, match="leaves commit"):
            getattr(inside, method)()
        inside.execute(ADD)
    assert orders.total == 2
    getattr(connection, method)()  # as ever


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN"])
def test_a_transaction_that_the_block_ended_in_autocommit_mode(orders: Orders, end: str) -> None:
    """What was read before that is old by the time it is written: the lost update is refused."""
    orders.guard.claim(MINE)
    guard = PsycopgGuard(orders.connect(autocommit=True))
    with pytest.raises(GuardNotEnforceable, match="not sound"), guard.begin(MINE) as connection:
        row = connection.execute(READ).fetchone()
        connection.execute(end)
        orders.guard.claim(NEWER)
        orders.guard.write(NEWER, ADD)
        connection.execute("UPDATE orders SET total = %s WHERE id = 1", [row[0] + 10 if row else None])
    assert orders.total == 1
    with pytest.raises(GuardNotEnforceable, match="not sound"), guard.begin(NEWER) as connection:
        connection.execute(end)
    assert guard.write(NEWER, ADD) == 1


def test_several_statements_in_one_write(orders: Orders) -> None:
    orders.guard.claim(MINE)
    for query in ("COMMIT; BEGIN; UPDATE orders SET total = 7", b"COMMIT; BEGIN; UPDATE orders SET total = 7"):
        with pytest.raises(GuardNotEnforceable, match="not sound"):
            orders.guard.write(MINE, query)
        with pytest.raises(GuardNotEnforceable, match="not sound"):
            orders.guard.write(MINE, psycopg.sql.SQL("COMMIT; BEGIN; UPDATE orders SET total = 7"))
    with pytest.raises(GuardNotEnforceable, match="not sound"):
        orders.guard.write(MINE, "COMMIT")
    assert orders.total == 0
    assert orders.guard.write(MINE, psycopg.sql.SQL(ADD)) == 1


def test_a_block_that_leaves_a_pipeline_or_a_copy_open(orders: Orders) -> None:
    orders.guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="pipeline"), orders.guard.begin(MINE) as connection:
        connection.execute(ADD)
        connection.pgconn.enter_pipeline_mode()
    with pytest.raises(GuardNotEnforceable, match="not sound"), orders.guard.begin(MINE) as connection:
        connection.execute(ADD)
        connection.pgconn.send_query(b"COPY orders FROM STDIN")
        connection.pgconn.get_result()
    assert orders.total == 0
    with orders.guard.begin(MINE) as connection, connection.pipeline():
        connection.execute(ADD)
    assert orders.total == 1


def test_a_connection_that_is_not_idle(orders: Orders) -> None:
    orders.guard.claim(MINE)
    connection = orders.connect()
    guard = PsycopgGuard(connection)
    uses: list[Callable[[], Any]] = [
        lambda: guard.claim(NEWER),
        lambda: guard.write(MINE, ADD),
        guard.begin(MINE).__enter__,
        lambda: guard.mark("orders:1"),
        guard.create_tables,
    ]
    connection.execute("UPDATE orders SET total = 5")
    for use in uses:
        with pytest.raises(ValueError, match="in a transaction already"):
            use()
    connection.commit()  # it was left alone
    assert orders.total == 5
    with pytest.raises(psycopg.Error):
        connection.execute("SELECT nothing")
    for use in uses[:2]:
        with pytest.raises(ValueError, match="failed"):
            use()
    connection.rollback()
    with connection.pipeline(), pytest.raises(ValueError, match="pipeline"):
        guard.write(MINE, ADD)
    assert guard.write(MINE, ADD) == 1
    connection.close()
    with pytest.raises(GuardUnavailable, match="is closed"):
        guard.claim(MINE)


def test_a_read_only_connection(orders: Orders) -> None:
    connection = orders.connect()
    connection.read_only = True
    with pytest.raises(GuardNotEnforceable, match="primary"):
        PsycopgGuard(connection).claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="primary"):
        PsycopgGuard(orders.connect(options="-c default_transaction_read_only=on")).claim(MINE)


def test_a_client_encoding_that_cannot_say_the_name(orders: Orders) -> None:
    connection = orders.connect(client_encoding="LATIN1")
    guard = PsycopgGuard(connection)
    name = "orders:ä'\\"
    guard.claim(Fence(name, 5, "a" * 22))
    assert orders.guard.mark(name) == guard.mark(name)
    with pytest.raises(GuardNotEnforceable, match="client_encoding"):
        guard.claim(Fence("orders:\U0001f512", 5, "a" * 22))
    assert connection.info.transaction_status.name == "IDLE"


@pytest.mark.parametrize("setting", ["on", "off"])
def test_names_are_no_sql(orders: Orders, setting: str) -> None:
    connection = orders.connect(options=f"-c standard_conforming_strings={setting}")
    guard = PsycopgGuard(connection)
    for number, name in enumerate(["'; DROP TABLE orders; --", "\\'; DROP TABLE orders; --", "%s {x} $1 :a"], 1):
        fence = Fence(name, number, "a" * 22)
        guard.claim(fence)
        guard.claim(fence, MINE)
        assert guard.write(fence, ADD) == 1
        mark = orders.guard.mark(name)
        assert mark is not None
        assert mark.number == number


# Prepared statements come and go


def test_a_table_made_anew_under_a_connection_that_has_prepared(orders: Orders) -> None:
    guard = PsycopgGuard(orders.connect())
    for _ in range(8):
        guard.claim(MINE)
    orders.direct.execute("DROP TABLE fencing_marks")
    with pytest.raises(GuardNotEnforceable, match="missing"):
        guard.claim(MINE)
    guard.create_tables()
    guard.claim(NEWER)
    assert guard.write(NEWER, ADD) == 1


def test_prepared_statements_that_vanish_or_are_there_already(orders: Orders) -> None:
    """Behind a pooler each transaction may run in another session."""
    connection = orders.connect()
    first, second = PsycopgGuard(connection), PsycopgGuard(connection)
    first.claim(MINE)
    for vanish in ("DEALLOCATE ALL", "DISCARD ALL"):
        connection.autocommit = True
        connection.execute(vanish)
        connection.autocommit = False
        assert second.write(MINE, ADD) == 1
        first.claim(MINE)
    elsewhere = orders.connect()
    elsewhere.execute("; ".join(texts_in("public").prepare))
    elsewhere.commit()
    assert PsycopgGuard(elsewhere).write(MINE, ADD) == 1


# Waits


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"claim": True}], ids=["checked", "claimed"])
def test_a_holder_frozen_in_its_block_loses_its_session(orders: Orders, options: dict[str, Any]) -> None:
    guard = PsycopgGuard(orders.dsn, timeout=1.0)
    guard.claim(MINE)
    started = time.monotonic()
    with pytest.raises(IdleInTransactionSessionTimeout), guard.begin(MINE, **options) as connection:
        connection.execute(ADD)
        orders.guard.claim(NEWER)  # waits for it
        assert time.monotonic() - started > 0.9
    assert orders.total == 0


def test_no_server() -> None:
    guard = PsycopgGuard("postgresql://127.0.0.1:1/nowhere")
    uses: list[Callable[[], Any]] = [guard.create_tables, lambda: guard.claim(MINE), guard.begin(MINE).__enter__]
    for use in uses:
        with pytest.raises(GuardUnavailable, match=r"did not answer.*is it running"):
            use()


@pytest.mark.thorough
def test_a_pool_without_a_free_connection(orders: Orders) -> None:
    with ConnectionPool(orders.dsn, min_size=1, max_size=1, open=True) as pool:
        guard = PsycopgGuard(pool, timeout=1.0)
        with pool.connection():
            started = time.monotonic()
            with pytest.raises(GuardUnavailable, match="pool"):
                guard.claim(MINE)
            assert time.monotonic() - started < 60
        guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="give a guard a new pool"):
        guard.claim(MINE)


def test_the_only_connection_in_use(orders: Orders) -> None:
    connection = orders.connect()
    guard = PsycopgGuard(connection)
    with guard.begin(MINE, claim=True), pytest.raises(GuardUnavailable, match="in use"):
        guard.claim(OTHER, timeout=0.1)
    guard.claim(OTHER)

    async def scenario() -> None:
        async_connection = await AsyncConnection.connect(orders.dsn)
        async with async_connection:
            async_guard = AsyncPsycopgGuard(async_connection)
            async with async_guard.begin(MINE):
                with pytest.raises(GuardUnavailable, match="in use"):
                    await async_guard.claim(OTHER, timeout=0.1)
            await async_guard.claim(OTHER)

    asyncio.run(scenario())


class _Lease:
    fence = MINE

    def remaining(self) -> float:
        return 3.0


BOUNDS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "tcp_user_timeout")


@autocommit
def test_bounds_end_with_the_transaction(orders: Orders, autocommit: bool) -> None:
    connection = orders.connect(autocommit=autocommit)
    guard = PsycopgGuard(connection)
    with guard.begin(_Lease(), claim=True) as inside:
        assert [inside.execute(f"SHOW {name}").fetchone() for name in BOUNDS] == [("3s",), ("3s",), ("3s",), ("3000",)]
    assert [connection.execute(f"SHOW {name}").fetchone() for name in BOUNDS] == [("0",)] * 4


@pytest.mark.thorough
def test_a_block_without_a_bound_for_statements_has_one_for_locks(orders: Orders) -> None:
    guard, other = PsycopgGuard(orders.connect(), timeout=1.0), orders.connect(autocommit=False)
    guard.claim(MINE)
    other.execute("SELECT total FROM orders FOR UPDATE")
    with pytest.raises(psycopg.errors.LockNotAvailable), guard.begin(MINE) as inside:
        inside.execute("SET LOCAL statement_timeout = 0")
        inside.execute("UPDATE orders SET total = total + 1")


# advance: the check in a transaction of the caller's own


@autocommit
def test_advance_checks_and_locks_and_never_commits(orders: Orders, autocommit: bool) -> None:
    orders.guard.claim(MINE)
    connection = orders.connect(autocommit=autocommit)
    if autocommit:
        with pytest.raises(GuardNotEnforceable, match="autocommit"):
            orders.guard.advance(connection, MINE)
    with connection.transaction(force_rollback=True):
        orders.guard.advance(connection, MINE)
        connection.execute("UPDATE orders SET total = 7")
        with pytest.raises(GuardUnavailable):
            orders.guard.claim(NEWER, timeout=0.05)
    mark = orders.guard.mark("orders:1")
    assert mark is not None
    assert (orders.total, mark.seq) == (0, 0)
    with connection.transaction():
        orders.guard.advance(connection, MINE)
        connection.execute("UPDATE orders SET total = 7")
    assert orders.total == 7


def test_advance_begins_a_transaction_as_the_driver_would(orders: Orders) -> None:
    orders.guard.claim(MINE)
    connection = orders.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    orders.guard.advance(connection, MINE)
    assert connection.execute("SHOW transaction_isolation").fetchone() == ("repeatable read",)
    connection.execute(ADD)
    connection.commit()
    assert orders.total == 1


def test_the_rule_of_advance_is_the_same(orders: Orders) -> None:
    with orders.connect() as connection, pytest.raises(UnclaimedFence):
        orders.guard.advance(connection, MINE)
    orders.guard.claim(NEWER)
    with orders.connect() as connection, pytest.raises(StaleFence):
        orders.guard.advance(connection, MINE)


@pytest.mark.parametrize("how", ["transaction", "text", "implicit"])
def test_advance_in_a_savepoint_is_refused(orders: Orders, how: str) -> None:
    """A rollback to it would drop the check."""
    orders.guard.claim(MINE)
    connection = orders.connect()
    if how == "text":
        connection.execute("SAVEPOINT mine")
        with pytest.raises(ValueError, match="savepoint"):
            orders.guard.advance(connection, MINE)
    elif how == "implicit":
        connection.execute(READ)
        with connection.transaction(force_rollback=True), pytest.raises(ValueError, match="savepoint"):
            orders.guard.advance(connection, MINE)
    else:
        with (
            connection.transaction(),
            connection.transaction(force_rollback=True),
            pytest.raises(ValueError, match="savepoint"),
        ):
            orders.guard.advance(connection, MINE)
    connection.rollback()
    orders.guard.advance(connection, MINE)
    with connection.transaction():  # afterwards a savepoint is welcome
        connection.execute(ADD)
    connection.commit()
    assert orders.total == 1


def test_advance_on_a_connection_that_cannot(orders: Orders) -> None:
    orders.guard.claim(MINE)
    connection = orders.connect()
    with connection.pipeline(), pytest.raises(ValueError, match="pipeline"):
        orders.guard.advance(connection, MINE)
    with pytest.raises(psycopg.Error):
        connection.execute("SELECT nothing")
    with pytest.raises(ValueError, match="failed"):
        orders.guard.advance(connection, MINE)


def test_with_asyncio(orders: Orders) -> None:
    orders.guard.claim(MINE)

    async def scenario() -> None:
        async with AsyncConnectionPool(orders.dsn, kwargs={"autocommit": True}, min_size=1, open=False) as pool:
            guard = AsyncPsycopgGuard(pool)
            async with pool.connection() as connection:
                with pytest.raises(GuardNotEnforceable, match="autocommit"):
                    await guard.advance(connection, MINE)
                async with connection.transaction():
                    await guard.advance(connection, MINE)
                    await connection.execute(ADD)
                with pytest.raises(TypeError, match="psycopg Connection"):
                    orders.guard.advance(connection, MINE)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="AsyncConnection"):
                await guard.advance(orders.direct, MINE)  # type: ignore[arg-type]
            with pytest.raises(GuardNotEnforceable, match="not sound"):
                async with guard.begin(MINE) as connection:
                    with pytest.raises(GuardNotEnforceable, match="leaves commit"):
                        await connection.commit()
                    await connection.execute("COMMIT")
                    await connection.execute(ADD)
            async with pool.connection() as connection:
                assert connection.autocommit
            async with guard.begin(MINE) as connection:
                await connection.execute(ADD)

    asyncio.run(scenario())
    assert orders.total == 2
