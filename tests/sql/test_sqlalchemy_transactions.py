"""A guarded transaction of SQLAlchemy's: what its engines, its connections and its recipes could do to the check."""

# ruff: noqa: PT012 - what raises is a guarded block, and the statements in it are the story

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from fencing import GuardNotEnforceable, GuardUnavailable, OutcomeUnknown
from fencing.sql import dialects
from storage_guards import SQLAlchemyGuard
from tests.support.guarded_block import Block
from tests.support.sql_ways import ADD, MINE, NEWER, READ, THROUGH_SQLALCHEMY, TO_POSTGRES, Way, WayLender, ways

LONG_SECONDS = 60.0
FORMS = ["driver default", "BEGIN", "BEGIN IMMEDIATE"]


def begin_with(engine: Engine, form: str) -> None:
    """The recipe of SQLAlchemy's documentation for SQLite: the driver begins nothing, an event does."""
    if form != "driver default":
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(form))


def in_sync(way: Way, block: Block, function: Callable[[Connection], Any]) -> Any:
    """Call a function of a sync connection inside the block."""
    return block.call(lambda it: it.run_sync(function) if way.side.asynchronous else function(it))


@pytest.fixture(params=ways("psycopg", "aiomysql", "sqlite", of=THROUGH_SQLALCHEMY))
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        yield way


each_driver = pytest.mark.parametrize(
    "way",
    ways("psycopg", "asyncpg", "pymysql", "aiomysql", "sqlite", "aiosqlite", of=THROUGH_SQLALCHEMY),
    indirect=True,
)
on_sqlite = pytest.mark.parametrize("way", ["sqlite"], indirect=True)
to_postgresql = pytest.mark.parametrize(
    "way", ways("psycopg", "asyncpg", of=[name for name in TO_POSTGRES if name in THROUGH_SQLALCHEMY]), indirect=True
)


def test_an_orm_session_joins_the_transaction(way: Way) -> None:
    def commit_in_a_session(connection: Connection) -> None:
        with Session(connection) as session:
            session.execute(text(ADD))
            session.commit()

    with pytest.raises(ZeroDivisionError), way.begin(MINE, claim=True) as block:
        in_sync(way, block, commit_in_a_session)
        raise ZeroDivisionError
    assert way.total == 0


@each_driver
def test_an_autocommit_engine(way: Way) -> None:
    way.claim(MINE)
    guard = way.new_guard(isolation_level="AUTOCOMMIT")
    assert "AUTOCOMMIT" in str(way.side.expect(GuardNotEnforceable, guard.claim, MINE))
    for options in ({}, {"claim": True}):
        with pytest.raises(GuardNotEnforceable, match="AUTOCOMMIT"), way.begin(MINE, guard=guard, **options):
            raise AssertionError("the block has run")


def leave_open(way: Way, guard: Any, statement: str) -> None:
    """Execute a statement, and give the connection back to the pool without an end of its transaction."""

    def execute(connection: Connection) -> None:
        cursor = connection.connection.cursor()
        cursor.execute(statement)
        if cursor.description:
            cursor.fetchall()
        cursor.close()

    async def execute_async() -> None:
        async with guard._engine.connect() as connection:
            await connection.run_sync(execute)

    if way.side.asynchronous:
        way.side.call(execute_async)
    else:
        with guard._engine.connect() as connection:
            execute(connection)


@each_driver
def test_an_open_transaction_in_the_pool_is_not_joined(way: Way) -> None:
    """Its writes are not the guard's to commit."""
    guard = way.new_guard(size=1, pool_reset_on_return=None)
    way.side.call(guard.claim, MINE)
    leave_open(way, guard, "INSERT INTO done VALUES (9)")
    assert way.write(MINE, ADD, guard=guard) == 1
    assert way.done == set()
    for use in (lambda: guard.claim(NEWER), lambda: guard.prune(below=1)):
        leave_open(way, guard, "INSERT INTO done VALUES (9)")
        way.side.call(use)
        assert way.done == set()


@to_postgresql
def test_an_open_snapshot_in_the_pool_is_not_read(way: Way) -> None:
    """MariaDB refuses its isolation level there, and SQLite takes none for a SELECT alone."""
    guard = way.new_guard(size=1, pool_reset_on_return=None, isolation_level="REPEATABLE READ")
    way.side.call(guard.claim, MINE)
    leave_open(way, guard, READ)
    way.write_beside(MINE, ADD)
    with way.begin(MINE, guard=guard) as block:
        assert block.scalar(READ) == 1


@on_sqlite
def test_sqlite_without_the_second_half_of_the_recipe(way: Way) -> None:
    engine = way.new_engine()
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    with pytest.raises(GuardNotEnforceable, match="autocommit"):
        SQLAlchemyGuard(engine).write(MINE, text(ADD), claim=True)
    assert way.total == 0


def test_statements_after_a_commit_inside(way: Way) -> None:
    with pytest.raises(InvalidRequestError), way.begin(MINE, claim=True) as block:
        block.execute(ADD)
        block.call(lambda connection: connection.commit())
        block.execute(ADD)
    assert way.total == 1


@on_sqlite
@pytest.mark.parametrize("form", ["BEGIN", "BEGIN IMMEDIATE"])
def test_statements_after_a_commit_where_no_driver_begins_anew(way: Way, form: str) -> None:
    """Each would be committed by itself, the lost update too."""
    engine = way.new_engine()
    begin_with(engine, form)
    guard = SQLAlchemyGuard(engine)
    guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="not sound"), way.begin(MINE, guard=guard) as block:
        total = block.scalar(READ)
        block.execute("COMMIT")
        way.beside.claim(NEWER)
        way.write_beside(NEWER, ADD)
        block.execute("UPDATE orders SET total = :total WHERE id = 1", total=total + 10)
    assert way.total == 1


def roll_back_in_a_session(connection: Connection) -> None:
    session = Session(connection)
    session.execute(text(READ))
    session.rollback()


ENDS: dict[str, Callable[[Connection], None]] = {
    "rollback": Connection.rollback,
    "close": Connection.close,
    "commit": Connection.commit,
    "session": roll_back_in_a_session,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_transaction_that_the_block_ended_by_sqlalchemy(way: Way, end: str) -> None:
    """As the block's last act: nothing after it fails, and the block's writes must not be acknowledged."""
    way.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="ended the checked transaction itself"), way.begin(MINE) as block:
        block.execute(ADD)
        if end == "close":
            block.call(lambda connection: connection.close())
        else:
            in_sync(way, block, ENDS[end])
    assert way.total == (1 if end == "commit" else 0)
    assert way.write(MINE, ADD) == 1


@on_sqlite
def test_a_transaction_that_sqlite_ended_by_itself(way: Way) -> None:
    """ON CONFLICT ROLLBACK, the error swallowed: sqlite3 begins another transaction with the next write."""
    way.spoil()
    way.claim(MINE)
    way.sql("CREATE TABLE once (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)")
    way.sql("INSERT INTO once VALUES (1)")
    with pytest.raises(GuardNotEnforceable, match="not sound"), way.begin(MINE) as block:
        block.execute(ADD)
        with pytest.raises(IntegrityError):
            block.execute("INSERT INTO once VALUES (1)")
        block.execute("INSERT INTO once VALUES (2)")
    assert way.total == 0
    assert way.sql("SELECT id FROM once") == [(1,)]


@on_sqlite
def test_a_read_only_sqlite(way: Way) -> None:
    engine = create_engine(f"sqlite:///file:{way.outside.url.database}?mode=ro&uri=true")
    with pytest.raises(GuardNotEnforceable, match="primary"):
        SQLAlchemyGuard(engine).claim(MINE)
    engine.dispose()


@pytest.mark.parametrize("way", ["psycopg"], indirect=True)
def test_a_role_without_the_privilege(way: Way) -> None:
    engine = way.new_engine()
    role = f"reader_of_{way.outside.url.database}"
    way.sql(f'DROP ROLE IF EXISTS "{role}"')
    way.sql(f'CREATE ROLE "{role}"')
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(f'SET LOCAL ROLE "{role}"'))
    with pytest.raises(GuardNotEnforceable, match="permission denied"):
        SQLAlchemyGuard(engine).claim(MINE)
    way.sql(f'DROP ROLE "{role}"')


def test_the_hint_for_a_missing_table_names_alembic_too(way: Way) -> None:
    way.spoil()
    way.sql("DROP TABLE fencing_marks")
    error = way.side.expect(GuardNotEnforceable, way.guard.claim, MINE)
    assert "guard.create_tables()" in str(error)
    assert "guard.metadata" in str(error)


def test_a_pool_without_a_free_connection(way: Way) -> None:
    guard = way.new_guard(size=1, pool_timeout=0.1)
    way.claim(MINE)
    with way.begin(MINE, guard=guard):
        error = way.side.expect(GuardUnavailable, guard.claim, NEWER)
    assert "pool" in str(error)


class _Lease:
    fence = MINE

    def remaining(self) -> float:
        return 3.0


BOUNDS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "tcp_user_timeout")


@to_postgresql
def test_postgresql_bounds_end_with_the_transaction(way: Way) -> None:
    show = "SELECT " + ", ".join(f"current_setting('{name}')" for name in BOUNDS)
    guard = way.new_guard(size=1)

    def outside() -> Any:
        with guard._engine.connect() as connection:
            return tuple(connection.execute(text(show)).one())

    async def outside_async() -> Any:
        async with guard._engine.connect() as connection:
            return tuple((await connection.execute(text(show))).one())

    settings = outside_async if isinstance(guard._engine, AsyncEngine) else outside
    before = way.side.call(settings)
    with way.begin(_Lease(), guard=guard, claim=True) as block:
        assert block.execute(show) == [("3s", "3s", "3s", "3000")]
    assert way.side.call(settings) == before == ("0", "0", "0", "0")


@pytest.mark.parametrize("way", ["asyncpg"], indirect=True)
@pytest.mark.parametrize(("own", "expected"), [(None, "1h"), ("90s", "90s")])
def test_a_transaction_through_asyncpg_has_a_longest_time(way: Way, own: str | None, expected: str) -> None:
    """asyncpg sends a new statement in two parts. No other bound ends a client that stops between them, so the mark
    would stay locked for ever. A bound of the user's own counts instead."""
    if int(way.sql("SHOW server_version_num")[0][0]) < 170000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    settings: dict[str, Any] = (
        {} if own is None else {"connect_args": {"server_settings": {"transaction_timeout": own}}}
    )
    guard = way.new_guard(size=1, **settings)
    show = "SELECT current_setting('transaction_timeout')"
    with way.begin(MINE, guard=guard, claim=True) as block:
        assert block.execute(show) == [(expected,)]


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["asyncpg"], indirect=True)
def test_a_transaction_through_asyncpg_that_takes_too_long_is_ended(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while its client has sent only the first part of a statement."""
    if int(way.sql("SHOW server_version_num")[0][0]) < 170000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    monkeypatch.setattr(dialects, "LONGEST_SECONDS", 1.5)
    guard = way.new_guard(timeout=1.0, size=1)

    async def stop() -> None:
        async with guard.begin(MINE, claim=True) as connection:
            way.proxy.stall_connection_when(lambda request: request[:1] == b"B")
            await connection.execute(text("UPDATE orders SET total = total + 1"))

    error = way.side.expect(Exception, stop)
    assert not isinstance(error, OutcomeUnknown)
    way.proxy.restore()
    way.side.call(guard.claim, NEWER)
    assert way.total == 0


@pytest.mark.thorough
@on_sqlite
@pytest.mark.parametrize("form", FORMS)
def test_sqlite_connections_come_back_unchanged(way: Way, form: str) -> None:
    engine = way.new_engine(pool_size=1, max_overflow=0, connect_args={"timeout": 1.234})
    begin_with(engine, form)
    guard = SQLAlchemyGuard(engine, timeout=1.0)

    def busy_timeout() -> Any:
        connection = engine.raw_connection()
        try:
            return connection.cursor().execute("PRAGMA busy_timeout").fetchone()[0]
        finally:
            connection.close()

    guard.claim(MINE)
    assert busy_timeout() == 1234
    with guard.begin(MINE) as inside:
        assert inside.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 1000
    assert busy_timeout() == 1234
    with pytest.raises(ZeroDivisionError), guard.begin(MINE):
        raise ZeroDivisionError
    assert busy_timeout() == 1234
    with way.beside.begin(MINE):
        started = time.monotonic()
        with pytest.raises(GuardUnavailable):
            guard.claim(NEWER)
        assert time.monotonic() - started < LONG_SECONDS
    assert busy_timeout() == 1234


@on_sqlite
@pytest.mark.parametrize("form", FORMS[1:])
def test_create_tables_at_once_where_an_event_begins(way: Way, form: str) -> None:
    """None fails, which is the point: CREATE TABLE IF NOT EXISTS alone may."""
    way.spoil()
    engines = [way.new_engine() for _ in range(6)]
    for engine in engines:
        begin_with(engine, form)
    for _ in range(3):
        way.drop_marks()
        way.side.race([SQLAlchemyGuard(engine).create_tables for engine in engines])
        way.claim(MINE)
        assert way.write(MINE, ADD) == 1


@pytest.mark.parametrize("way", ways("psycopg", "asyncpg", of=TO_POSTGRES), indirect=True)
def test_postgresql_keeps_the_transaction_of_the_last_write(way: Way) -> None:
    with way.begin(MINE, claim=True) as block:
        mine = block.scalar("SELECT pg_current_xact_id()::text")
    assert way.sql("SELECT CAST(xact AS text) FROM fencing_marks WHERE resource = 'orders:1'") == [(mine,)]
