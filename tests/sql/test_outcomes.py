"""The outcome of a write whose commit got no answer: ``landed`` tells it, on real databases, and is never wrong."""

from __future__ import annotations

import asyncio
import gc
import pickle
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from examples.servers import ServerError, start_postgres
from fencing import GuardNotEnforceable, GuardUnavailable, OutcomeUnknown
from storage_guards import AsyncSQLAlchemyGuard, MemoryGuard, PsycopgGuard, SQLAlchemyGuard
from storage_guards.sql.outcome import FLOOR
from tests.support import wait_until
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.loops import until
from tests.support.psycopg_database import dsn_of
from tests.support.sql_ways import (
    ALL,
    DONE,
    EACH_DATABASE,
    MINE,
    NEWER,
    OTHER,
    TO_POSTGRES,
    FlakyCommit,
    Way,
    WayLender,
    ways,
)


@pytest.fixture(params=ways(*EACH_DATABASE))
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        yield way


every_way = pytest.mark.parametrize("way", ALL, indirect=True)
on_postgresql = pytest.mark.parametrize(
    "way", ways("psycopg", "PsycopgGuard", "AsyncPsycopgGuard", of=TO_POSTGRES), indirect=True
)
on_sqlite = pytest.mark.parametrize("way", ways("sqlite", "aiosqlite", of=("sqlite", "aiosqlite")), indirect=True)
both = pytest.mark.parametrize(("lost", "happened"), [("reply", True), ("request", False)])


# The rule


@both
@every_way
def test_a_lost_commit(way: Way, lost: str, happened: bool) -> None:
    way.beside.claim(MINE)
    unknown = way.lost_write(lost, 1)
    before = way.beside.mark("orders:1")
    assert way.landed(unknown) is happened
    assert way.beside.landed(pickle.loads(pickle.dumps(unknown))) is happened  # another process, another guard
    assert way.done == ({1} if happened else set())
    assert way.beside.mark("orders:1") == before, "landed has changed the mark"
    assert before is not None
    assert (before.seq, unknown.seq) == (int(happened), 1)
    if way.database == "postgres":
        status = way.sql("SELECT pg_xact_status(CAST(CAST(:xact AS text) AS xid8))", xact=unknown.transaction)
        assert status == [("committed" if happened else "aborted",)]


@both
def test_the_next_write_gets_the_same_seq(way: Way, lost: str, happened: bool) -> None:
    """The mark has then reached the unknown write's seq, whether that write happened or not."""
    way.beside.claim(MINE)
    unknown = way.lost_write(lost, 1)
    way.write_beside(MINE, DONE, id=2)
    mark = way.beside.mark("orders:1")
    assert mark is not None
    assert mark.seq >= unknown.seq
    assert way.landed(unknown) is happened


@both
def test_it_is_known_after_a_newer_claim_too(way: Way, lost: str, happened: bool) -> None:
    way.beside.claim(MINE)
    unknown = way.lost_write(lost, 1)
    way.beside.claim(NEWER)
    for id_ in (2, 3):
        way.write_beside(NEWER, DONE, id=id_)
        assert way.landed(unknown) is happened


@both
def test_after_many_writes_it_is_not_known_any_more(way: Way, lost: str, happened: bool) -> None:
    way.beside.claim(MINE)
    way.write_beside(MINE, DONE, id=100)
    unknown = way.lost_write(lost, 1)
    answers = []
    for id_ in range(2, 20):
        way.write_beside(MINE, DONE, id=id_)
        answers.append(way.landed(unknown))
    assert answers == [happened] * answers.index(None) + [None] * (len(answers) - answers.index(None))
    assert answers.index(None) >= 14


@both
def test_the_first_write_of_a_mark(way: Way, lost: str, happened: bool) -> None:
    unknown = way.lost_write(lost, 1, claim=True)
    assert way.landed(unknown) is happened
    assert (way.beside.mark("orders:1") is not None) is happened, "landed has left a mark"
    way.write_beside(NEWER, DONE, id=2, claim=True)
    assert way.landed(unknown) is happened


@both
def test_a_write_that_claims_over_an_older_mark(way: Way, lost: str, happened: bool) -> None:
    way.beside.claim(MINE)
    unknown = way.lost_write(lost, 1, fence=NEWER, claim=True)
    assert way.landed(unknown) is happened
    way.write_beside(NEWER, DONE, id=2, claim=True)
    assert way.landed(unknown) is happened


@both
def test_a_pruned_mark_leaves_nothing_to_know(way: Way, lost: str, happened: bool) -> None:
    unknown = way.lost_write(lost, 1, claim=True)
    way.sql("DELETE FROM fencing_marks WHERE resource = 'orders:1'")
    way.sql("UPDATE fencing_marks SET number = 5 WHERE resource = :floor", floor=FLOOR)
    assert way.landed(unknown) is None
    way.write_beside(NEWER, DONE, id=2, claim=True)
    assert way.landed(unknown) is None


@both
def test_several_fences(way: Way, lost: str, happened: bool) -> None:
    way.beside.claim(MINE, OTHER)
    way.lose(lost)
    with pytest.raises(OutcomeUnknown) as raised, way.begin(OTHER, MINE) as block:
        block.execute(DONE, id=1)
    assert way.landed(raised.value) is happened
    assert way.done == ({1} if happened else set())


def test_another_database_knows_nothing(way: Way, tmp_path: Path) -> None:
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    guard = SQLAlchemyGuard(other)
    guard.create_tables()
    for fence, options in ((OTHER, {"claim": True}), (MINE, {})):
        way.beside.claim(MINE)
        unknown = way.lost_write("reply", fence.number + len(options), fence=fence, **options)
        assert guard.landed(unknown) is None
        guard.claim(fence)
        assert guard.landed(unknown) is None
    assert MemoryGuard().landed(unknown) is None
    other.dispose()


def test_landed_takes_what_a_guard_raised(way: Way) -> None:
    unknown = OutcomeUnknown(fence=MINE, seq=1)
    assert way.landed(unknown) is None
    outer = ValueError()
    outer.__cause__ = unknown
    assert "pass its __cause__" in str(way.side.expect(TypeError, way.guard.landed, outer))
    assert way.beside.mark("orders:2") is None


def test_landed_on_an_autocommit_engine(way: Way) -> None:
    autocommit = create_engine(way.url, isolation_level="AUTOCOMMIT")
    with pytest.raises(GuardNotEnforceable, match="AUTOCOMMIT"):
        SQLAlchemyGuard(autocommit).landed(OutcomeUnknown(fence=OTHER, seq=1))
    autocommit.dispose()
    assert way.beside.mark("orders:2") is None


# PostgreSQL: sessions that live on, sessions that are killed, servers that crash


@pytest.mark.parametrize("options", [{}, {"claim": True}], ids=["claimed", "first write"])
@pytest.mark.parametrize(("end", "isolation_level"), [("commit", "SERIALIZABLE"), ("rollback", "READ COMMITTED")])
@on_postgresql
def test_while_it_is_under_way_landed_waits(way: Way, options: dict[str, Any], end: str, isolation_level: str) -> None:
    """The COMMIT is stuck, and the server's session is open: nothing is decided yet. Whatever the isolation level of
    its own connection, ``landed`` sees what it has waited for."""
    if not options:
        way.beside.claim(MINE)
    level = isolation_level.lower().replace(" ", r"\%20")
    url = f"{dsn_of(way.url)}?options=-c%20default_transaction_isolation%3D{level}"
    engine = None if way.is_psycopg else create_engine(way.url, isolation_level=isolation_level)
    asked: Any = PsycopgGuard(url) if engine is None else SQLAlchemyGuard(engine)
    with ThreadPoolExecutor() as pool:
        with suppress(ZeroDivisionError), way.beside.begin(MINE, **options) as connection:
            connection.execute(text(DONE), {"id": 1})
            recent = text("SELECT recent_writes FROM fencing_marks WHERE resource = 'orders:1'")
            unknown = OutcomeUnknown(fence=MINE, seq=1, recent_writes=connection.execute(recent).scalar_one())
            refused = way.side.expect(GuardUnavailable, way.guard.landed, unknown, timeout=0.2)
            assert "ask again" in str(refused)
            assert "no data was written" not in str(refused)
            answer = pool.submit(asked.landed, unknown)
            until_locks_are_waited_for(way.url)
            assert not answer.done()
            if end == "rollback":
                raise ZeroDivisionError
        assert answer.result() is way.landed(unknown) is (end == "commit")
    if engine is not None:
        engine.dispose()


@on_postgresql
def test_a_session_killed_in_the_body(way: Way) -> None:
    way.beside.claim(MINE)
    # The block's own error: nothing was written.
    with pytest.raises((DBAPIError, psycopg.OperationalError)), way.begin(MINE) as block:  # noqa: PT012
        block.execute(DONE, id=1)
        way.kill(block)
        block.execute(DONE, id=2)
    assert way.done == set()
    assert way.write(MINE, DONE, id=3) == 1


SLOW_COMMIT = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON done DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()
"""


@on_postgresql
def test_a_session_killed_during_the_commit(way: Way) -> None:
    way.spoil()
    way.beside.claim(MINE)
    way.sql(SLOW_COMMIT)

    def kill_the_commit() -> None:
        find = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        wait_until(lambda: way.sql(f"{find} AND datname = current_database()"))

    def write() -> OutcomeUnknown:
        return way.side.expect(OutcomeUnknown, way.guard.write, MINE, *way.statement(DONE, id=1))

    unknown, _ = way.side.race([write, kill_the_commit])
    assert way.landed(unknown) is False
    assert way.done == set()


@pytest.mark.thorough
def test_a_crashed_server_gives_the_transaction_id_to_another() -> None:
    """Why ``landed`` does not ask pg_xact_status: it says of the lost transaction that it was committed."""
    try:
        server = start_postgres(local=True)
    except ServerError as error:
        pytest.skip(str(error))
    with server:
        url = server.create_database()
        engine = create_engine(url)
        guard, psycopg_guard = SQLAlchemyGuard(engine), PsycopgGuard(dsn_of(url))
        guard.create_tables()
        guard.claim(MINE)
        event.listen(engine, "commit", lambda _: server.kill(), once=True)
        with pytest.raises(OutcomeUnknown) as raised:
            guard.write(MINE, text("CREATE TABLE done (id INTEGER)"))
        server.restart()
        engine.dispose()
        unknown = raised.value
        xact = {"xact": unknown.transaction}
        for _ in range(5):
            with engine.begin() as connection:
                connection.execute(text("CREATE TABLE IF NOT EXISTS other (id INTEGER)"))
                given = connection.execute(text("SELECT pg_current_xact_id()::text")).scalar_one()
            if given == unknown.transaction:
                break
        with engine.connect() as connection:
            status = connection.execute(text("SELECT pg_xact_status(CAST(CAST(:xact AS text) AS xid8))"), xact)
            assert status.scalar_one() == "committed"
        assert guard.landed(unknown) is False
        psycopg_guard.claim(NEWER)
        with pytest.raises(psycopg.OperationalError) as refused, psycopg_guard.begin(NEWER) as inside:  # noqa: PT012
            inside.execute("CREATE TABLE done (id INTEGER)")
            server.kill()
        server.restart()
        engine.dispose()
        assert "nothing was written" in "".join(refused.value.__notes__)
        assert guard.write(NEWER, text("CREATE TABLE done (id INTEGER)")) is not None
        engine.dispose()


# Interrupted commits


def test_an_interrupted_commit_of_sqlalchemy_tells_its_outcome(sql_ways: WayLender) -> None:
    with sql_ways.lend("sqlite") as way:
        way.beside.claim(MINE)
        FlakyCommit.fault = "interrupt"
        with pytest.raises(KeyboardInterrupt) as raised:
            way.write(MINE, DONE, id=1)
        assert isinstance(raised.value.__cause__, OutcomeUnknown)
        assert way.landed(raised.value.__cause__) is True
        with pytest.raises(KeyboardInterrupt) as raised, way.begin(MINE):
            raise KeyboardInterrupt
        assert raised.value.__cause__ is None


def test_an_interrupted_commit_of_psycopg_tells_its_outcome(
    sql_ways: WayLender, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = psycopg.Connection.wait
    plans: list[Any] = []

    def interrupted(self: Any, plan: Any, *args: Any, **options: Any) -> Any:
        plans.append(plan)
        if len(plans) < 3:  # the check, the statement, the commit
            return wait(self, plan, *args, **options)
        next(plan)  # the request is out
        raise KeyboardInterrupt

    with sql_ways.lend("PsycopgGuard") as way:
        way.beside.claim(MINE)
        with pytest.raises(KeyboardInterrupt) as raised, way.begin(MINE):
            raise KeyboardInterrupt
        assert raised.value.__cause__ is None
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt) as raised:
                way.write(MINE, DONE, id=1)
        assert isinstance(raised.value.__cause__, OutcomeUnknown)
        assert way.landed(raised.value.__cause__) is (way.done == {1})
        assert way.write(MINE, DONE, id=2) == 1


# SQLite


@pytest.mark.thorough
@on_sqlite
def test_a_database_error_that_says_no(way: Way) -> None:
    """A reader keeps SQLite from committing: that is a refusal, and nothing is unknown."""
    way.beside.claim(MINE)
    guard = way.new_guard(timeout=1.0)
    with way.outside.connect() as reader:
        reader.exec_driver_sql("BEGIN")
        reader.execute(text("SELECT * FROM done")).all()
        error = way.side.expect(OperationalError, guard.write, MINE, *way.statement(DONE, id=1))
        assert "is locked" in str(error)
    assert way.done == set()


@on_sqlite
def test_what_breaks_after_the_commit_is_no_error(way: Way) -> None:
    """The connection's own time-out cannot be put back: it leaves the pool, and the write stays acknowledged."""
    way.beside.claim(MINE)
    FlakyCommit.fault = "breaks afterwards"
    assert way.write(MINE, DONE, id=1) == 1
    assert way.write(MINE, DONE, id=2) == 1
    assert way.done == {1, 2}


@pytest.mark.thorough
def test_a_cancelled_statement_leaves_no_lock_behind(tmp_path: Path) -> None:
    """SQLite's connection lives on, with its locks, while an unfinished statement of it does: not until the garbage
    collector comes."""
    url = f"sqlite:///{tmp_path}/data.db"
    direct = create_engine(url)
    beside = SQLAlchemyGuard(direct, timeout=10.0)
    beside.create_tables()
    beside.claim(MINE)

    async def scenario() -> None:
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        guard = AsyncSQLAlchemyGuard(engine)

        async def read() -> None:
            async with guard.begin(MINE) as connection:
                (await connection.execute(text("SELECT * FROM fencing_marks"))).all()

        async def ask() -> None:
            await guard.landed(OutcomeUnknown(fence=MINE, seq=1, recent_writes="a b"))

        before = set(threading.enumerate())
        cancelled = 0
        for step in range(240):
            task = asyncio.ensure_future(read() if step % 2 else ask())
            await asyncio.sleep(step % 40 / 10_000)
            task.cancel()
            await asyncio.wait([task])
            cancelled += task.cancelled()
            del task
            beside.claim(MINE)  # refused, after its 10 s, where a lock was left
        assert cancelled > 100
        await engine.dispose()
        # A connection that is closed in a cancelled task has a thread that still answers to this loop.
        await until(lambda: set(threading.enumerate()) <= before)

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
    direct.dispose()


def test_the_sqlite_of_this_python_has_what_the_guard_uses() -> None:
    assert sqlite3.sqlite_version_info >= (3, 35)
