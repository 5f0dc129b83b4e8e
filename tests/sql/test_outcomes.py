"""What became of a write whose commit got no answer: ``landed`` says so, on real databases, and is never wrong."""

from __future__ import annotations

import asyncio
import gc
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from examples.servers import ServerError, start_postgres
from fencing import Fence, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown
from storage_guards import AsyncSQLAlchemyGuard, MemoryGuard, SQLAlchemyGuard
from storage_guards.sql.outcome import FLOOR
from tests.support import wait_until
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.servers import Proxy
from tests.support.sides import Side
from tests.support.sql_ways import EACH_WAY, WAYS, Way, asyncio_url, is_commit

MINE = Fence("orders:1", 5, "a" * 22)
NEWER = Fence("orders:1", 6, "b" * 22)
OTHER = Fence("orders:2", 5, "c" * 22)
ADD = text("INSERT INTO done VALUES (:id)")


class FlakyCommit(sqlite3.Connection):
    """A driver whose COMMIT is not answered: ``fault`` says whether it happens all the same."""

    fault = ""
    broken = False

    def commit(self) -> None:
        fault, FlakyCommit.fault = FlakyCommit.fault, ""
        if fault != "request":
            super().commit()
        if fault == "interrupt":
            raise KeyboardInterrupt
        if fault == "breaks afterwards":
            self.broken = True
        elif fault:
            raise sqlite3.OperationalError("disk I/O error")

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        if self.broken:
            raise sqlite3.OperationalError("disk I/O error")
        return super().cursor(*args, **kwargs)


class Database:
    """A guard of either colour whose next commit can lose its answer, and another guard beside it, without faults."""

    def __init__(self, side: Side, url: str, way: Way | None = None, **settings: Any) -> None:
        proxy = None if way is None else way.proxy
        self.side, self.url, self.proxy = side, url, proxy
        self.direct = create_engine(url)
        self.beside = SQLAlchemyGuard(self.direct)
        self.beside.create_tables()
        with self.direct.begin() as connection:
            connection.execute(text("CREATE TABLE done (id INTEGER PRIMARY KEY)"))
        if way is None:
            settings["connect_args"] = {"factory": FlakyCommit}
            through = asyncio_url(url) if side.asynchronous else url
        else:
            through = way.through
        self.engine: Any
        self.guard: Any
        if side.asynchronous:
            self.engine = create_async_engine(through, **settings)
            self.guard = AsyncSQLAlchemyGuard(self.engine)
        else:
            self.engine = create_engine(through, **settings)
            self.guard = SQLAlchemyGuard(self.engine)

    def lose(self, what: str) -> None:
        """The next commit's reply, or its request."""
        if self.proxy is None:
            FlakyCommit.fault = what
        elif what == "reply":
            self.proxy.drop_reply_when(is_commit)
        else:
            self.proxy.drop_request_when(is_commit)

    def lost_write(self, what: str, id_: int, *, fence: Fence = MINE, **options: Any) -> OutcomeUnknown:
        self.lose(what)
        return self.side.expect(OutcomeUnknown, self.guard.write, fence, ADD, {"id": id_}, **options)

    def landed(self, error: OutcomeUnknown) -> Any:
        return self.side.call(self.guard.landed, error)

    @property
    def done(self) -> set[int]:
        with self.direct.connect() as connection:
            return set(connection.execute(text("SELECT id FROM done")).scalars())

    def sql(self, statement: str, **values: Any) -> None:
        with self.direct.begin() as connection:
            connection.execute(text(statement), values)

    def close(self) -> None:
        FlakyCommit.fault = ""
        self.side.call(self.engine.dispose)
        self.direct.dispose()


@pytest.fixture(params=EACH_WAY[:3])
def postgres(request: pytest.FixtureRequest, proxy: Callable[[Any], Proxy]) -> Iterator[Database]:
    way = Way(request, request.param, proxy)
    database = Database(way.side, way.url, way)
    yield database
    database.close()


@pytest.fixture
def sqlite(side: Side, tmp_path: Path) -> Iterator[Database]:
    database = Database(side, f"sqlite:///{tmp_path}/data.db")
    yield database
    database.close()


@pytest.fixture(params=[*EACH_WAY, "sqlite", "aiosqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path, proxy: Callable[[Any], Proxy]) -> Iterator[Database]:
    if request.param in WAYS:
        way = Way(request, request.param, proxy)
        database = Database(way.side, way.url, way)
    else:
        database = Database(Side(request.param == "aiosqlite"), f"sqlite:///{tmp_path}/data.db")
    yield database
    database.close()


both = pytest.mark.parametrize(("lost", "happened"), [("reply", True), ("request", False)])


# The rule


@both
def test_a_lost_commit(database: Database, lost: str, happened: bool) -> None:
    database.beside.claim(MINE)
    unknown = database.lost_write(lost, 1)
    before = database.beside.mark("orders:1")
    assert database.landed(unknown) is happened
    assert database.beside.landed(pickle.loads(pickle.dumps(unknown))) is happened  # another process may ask
    assert database.done == ({1} if happened else set())
    assert database.beside.mark("orders:1") == before, "landed has changed the mark"
    assert before is not None
    assert (before.seq, unknown.seq) == (int(happened), 1)


@both
def test_the_next_write_gets_the_same_seq(database: Database, lost: str, happened: bool) -> None:
    """So the mark has reached the unknown write's seq, whether that happened or not."""
    database.beside.claim(MINE)
    unknown = database.lost_write(lost, 1)
    database.beside.write(MINE, ADD, {"id": 2})
    mark = database.beside.mark("orders:1")
    assert mark is not None
    assert mark.seq >= unknown.seq
    assert database.landed(unknown) is happened


@both
def test_it_is_known_after_a_newer_claim_too(database: Database, lost: str, happened: bool) -> None:
    database.beside.claim(MINE)
    unknown = database.lost_write(lost, 1)
    database.beside.claim(NEWER)
    for id_ in (2, 3):
        database.beside.write(NEWER, ADD, {"id": id_})
        assert database.landed(unknown) is happened


@both
def test_after_many_writes_it_is_not_known_any_more(database: Database, lost: str, happened: bool) -> None:
    database.beside.claim(MINE)
    database.beside.write(MINE, ADD, {"id": 100})
    unknown = database.lost_write(lost, 1)
    answers = []
    for id_ in range(2, 20):
        database.beside.write(MINE, ADD, {"id": id_})
        answers.append(database.landed(unknown))
    assert answers == [happened] * answers.index(None) + [None] * (len(answers) - answers.index(None))
    assert answers.index(None) >= 14


@both
def test_the_first_write_of_a_mark(database: Database, lost: str, happened: bool) -> None:
    unknown = database.lost_write(lost, 1, claim=True)
    assert database.landed(unknown) is happened
    assert (database.beside.mark("orders:1") is not None) is happened, "landed has left a mark"
    database.beside.write(NEWER, ADD, {"id": 2}, claim=True)
    assert database.landed(unknown) is happened


@both
def test_a_write_that_claims_over_an_older_mark(database: Database, lost: str, happened: bool) -> None:
    database.beside.claim(MINE)
    unknown = database.lost_write(lost, 1, fence=NEWER, claim=True)
    assert database.landed(unknown) is happened
    database.beside.write(NEWER, ADD, {"id": 2}, claim=True)
    assert database.landed(unknown) is happened


@both
def test_a_pruned_mark_leaves_nothing_to_know(database: Database, lost: str, happened: bool) -> None:
    unknown = database.lost_write(lost, 1, claim=True)
    database.sql("DELETE FROM fencing_marks WHERE resource = 'orders:1'")
    database.sql("UPDATE fencing_marks SET number = 5 WHERE resource = :floor", floor=FLOOR)
    assert database.landed(unknown) is None
    database.beside.write(NEWER, ADD, {"id": 2}, claim=True)
    assert database.landed(unknown) is None


@both
def test_several_fences(database: Database, lost: str, happened: bool) -> None:
    database.beside.claim(MINE, OTHER)
    database.lose(lost)

    def transfer() -> None:
        with database.guard.begin(OTHER, MINE) as connection:
            connection.execute(ADD, {"id": 1})

    async def async_transfer() -> None:
        async with database.guard.begin(OTHER, MINE) as connection:
            await connection.execute(ADD, {"id": 1})

    unknown = database.side.expect(OutcomeUnknown, async_transfer if database.side.asynchronous else transfer)
    assert database.landed(unknown) is happened


def test_another_database_knows_nothing(database: Database, tmp_path: Path) -> None:
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    guard = SQLAlchemyGuard(other)
    guard.create_tables()
    for fence, options in ((OTHER, {"claim": True}), (MINE, {})):
        database.beside.claim(MINE)
        unknown = database.lost_write("reply", fence.number + len(options), fence=fence, **options)
        assert guard.landed(unknown) is None
        guard.claim(fence)
        assert guard.landed(unknown) is None
    assert MemoryGuard().landed(unknown) is None
    other.dispose()


def test_landed_takes_what_a_guard_raised(database: Database) -> None:
    unknown = OutcomeUnknown(fence=MINE, seq=1)
    assert database.landed(unknown) is None
    outer = ValueError()
    outer.__cause__ = unknown
    assert "pass its __cause__" in str(database.side.expect(TypeError, database.guard.landed, outer))
    autocommit = SQLAlchemyGuard(create_engine(database.url, isolation_level="AUTOCOMMIT"))
    with pytest.raises(GuardNotEnforceable, match="AUTOCOMMIT"):
        autocommit.landed(OutcomeUnknown(fence=OTHER, seq=1))
    autocommit._engine.dispose()
    assert database.beside.mark("orders:2") is None


# PostgreSQL: sessions that live on, sessions that are killed, servers that crash


@pytest.mark.parametrize("options", [{}, {"claim": True}], ids=["claimed", "first write"])
@pytest.mark.parametrize(("end", "isolation_level"), [("commit", "SERIALIZABLE"), ("rollback", "READ COMMITTED")])
def test_while_it_is_under_way_landed_waits(
    postgres: Database, options: dict[str, Any], end: str, isolation_level: str
) -> None:
    """The COMMIT is stuck somewhere, and the server's session is open: nothing is decided yet."""
    if not options:
        postgres.beside.claim(MINE)
    engine = create_engine(postgres.url, isolation_level=isolation_level)
    asked = SQLAlchemyGuard(engine)
    with ThreadPoolExecutor() as pool:
        with suppress(ZeroDivisionError), postgres.beside.begin(MINE, **options) as connection:
            connection.execute(ADD, {"id": 1})
            recent = text("SELECT recent_writes FROM fencing_marks WHERE resource = 'orders:1'")
            unknown = OutcomeUnknown(fence=MINE, seq=1, recent_writes=connection.execute(recent).scalar_one())
            refused = postgres.side.expect(GuardUnavailable, postgres.guard.landed, unknown, timeout=0.2)
            assert "ask again" in str(refused)
            assert "no data was written" not in str(refused)
            answer = pool.submit(asked.landed, unknown)
            until_locks_are_waited_for(postgres.url)
            assert not answer.done()
            if end == "rollback":
                raise ZeroDivisionError
        assert answer.result() is postgres.landed(unknown) is (end == "commit")
    engine.dispose()


def kill(database: Database, pid: int) -> None:
    with database.direct.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})


def test_a_session_killed_in_the_body(postgres: Database) -> None:
    postgres.beside.claim(MINE)
    pid = text("SELECT pg_backend_pid()")

    def block() -> None:
        with postgres.guard.begin(MINE) as connection:
            connection.execute(ADD, {"id": 1})
            kill(postgres, connection.execute(pid).scalar_one())
            connection.execute(ADD, {"id": 2})

    async def async_block() -> None:
        async with postgres.guard.begin(MINE) as connection:
            await connection.execute(ADD, {"id": 1})
            kill(postgres, (await connection.execute(pid)).scalar_one())
            await connection.execute(ADD, {"id": 2})

    run = async_block if postgres.side.asynchronous else block
    postgres.side.expect(DBAPIError, run)  # the block's own error: nothing was written
    assert postgres.done == set()
    assert postgres.side.call(postgres.guard.write, MINE, ADD, {"id": 3}) == 1


def test_a_session_killed_before_the_commit(postgres: Database) -> None:
    postgres.beside.claim(MINE)

    def kill_it(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        kill(postgres, driver.info.backend_pid if hasattr(driver, "info") else driver.get_server_pid())

    event.listen(getattr(postgres.engine, "sync_engine", postgres.engine), "commit", kill_it, once=True)
    unknown = postgres.side.expect(OutcomeUnknown, postgres.guard.write, MINE, ADD, {"id": 1})
    assert postgres.landed(unknown) is False
    assert postgres.done == set()
    assert postgres.side.call(postgres.guard.write, MINE, ADD, {"id": 3}) == 1


SLOW_COMMIT = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON done DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()
"""


def test_a_session_killed_during_the_commit(postgres: Database) -> None:
    postgres.beside.claim(MINE)
    postgres.sql(SLOW_COMMIT)

    def kill_the_commit() -> None:
        find = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
        with postgres.direct.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            wait_until(lambda: connection.execute(find).scalar())

    def write() -> OutcomeUnknown:
        return postgres.side.expect(OutcomeUnknown, postgres.guard.write, MINE, ADD, {"id": 1})

    unknown, _ = postgres.side.race([write, kill_the_commit])
    assert postgres.landed(unknown) is False
    assert postgres.done == set()


def test_a_crashed_server_gives_the_transaction_id_to_another() -> None:
    """Why ``landed`` does not ask pg_xact_status: there the lost transaction is committed then."""
    try:
        server = start_postgres(local=True)
    except ServerError as error:
        pytest.skip(str(error))
    with server:
        engine = create_engine(server.create_database())
        guard = SQLAlchemyGuard(engine)
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
        engine.dispose()


# What the driver does


def test_a_database_error_that_says_no(sqlite: Database) -> None:
    """A reader keeps SQLite from committing: that is a refusal, and nothing is unknown."""
    sqlite.beside.claim(MINE)
    guard = type(sqlite.guard)(sqlite.engine, timeout=0.2)
    with sqlite.direct.connect() as reader:
        reader.exec_driver_sql("BEGIN")
        reader.execute(text("SELECT * FROM done")).all()
        error = sqlite.side.expect(OperationalError, guard.write, MINE, ADD, {"id": 1})
        assert "is locked" in str(error)
    assert sqlite.done == set()


def test_what_breaks_after_the_commit_is_no_error(sqlite: Database) -> None:
    """The connection's own time-out cannot be put back: it leaves the pool, and the write stays acknowledged."""
    sqlite.beside.claim(MINE)
    FlakyCommit.fault = "breaks afterwards"
    assert sqlite.side.call(sqlite.guard.write, MINE, ADD, {"id": 1}) == 1
    assert sqlite.side.call(sqlite.guard.write, MINE, ADD, {"id": 2}) == 1
    assert sqlite.done == {1, 2}


def test_an_interrupted_commit_says_so(tmp_path: Path) -> None:
    database = Database(Side(False), f"sqlite:///{tmp_path}/data.db")
    database.beside.claim(MINE)
    FlakyCommit.fault = "interrupt"
    with pytest.raises(KeyboardInterrupt) as raised:
        database.guard.write(MINE, ADD, {"id": 1})
    assert isinstance(raised.value.__cause__, OutcomeUnknown)
    assert database.landed(raised.value.__cause__) is True
    with pytest.raises(KeyboardInterrupt) as raised, database.guard.begin(MINE):
        raise KeyboardInterrupt
    assert raised.value.__cause__ is None
    database.close()


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

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
    direct.dispose()
