"""What became of a write through psycopg whose commit got no answer; and what is no unknown outcome."""

# ruff: noqa: PT012 - what raises is a guarded block, and the statements in it are the story

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from examples.servers import PostgresServer, ServerError, start_postgres
from fencing import Fence, GuardUnavailable, OutcomeUnknown
from storage_guards import PsycopgGuard, SQLAlchemyGuard
from storage_guards.sql.outcome import FLOOR
from tests.support import wait_until
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.psycopg_database import ADD, MINE, NEWER, OTHER, Database, dsn_of
from tests.support.servers import Proxy
from tests.support.sides import Side


@pytest.fixture
def database(
    side: Side, postgres_url: str, postgres_server: PostgresServer, proxy: Callable[[PostgresServer], Proxy]
) -> Iterator[Database]:
    database = Database(side, postgres_url, proxy(postgres_server))
    yield database
    database.close()


DRIVER = tuple(map(int, psycopg.__version__.split(".")[:2]))

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
    assert unknown.transaction is not None
    status = database.direct.execute("SELECT pg_xact_status(%s::xid8)", [unknown.transaction]).fetchone()
    assert status == ("committed" if happened else "aborted",)


@both
def test_sqlalchemys_guard_knows_it_too(database: Database, lost: str, happened: bool) -> None:
    database.beside.claim(MINE)
    unknown = database.lost_write(lost, 1)
    engine = create_engine(database.dsn.replace("postgresql:", "postgresql+psycopg:"))
    assert SQLAlchemyGuard(engine).landed(unknown) is happened
    engine.dispose()


@both
def test_the_next_write_gets_the_same_seq(database: Database, lost: str, happened: bool) -> None:
    database.beside.claim(MINE)
    unknown = database.lost_write(lost, 1)
    database.beside.write(MINE, ADD, [2])
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
        database.beside.write(NEWER, ADD, [id_])
        assert database.landed(unknown) is happened


@both
def test_after_many_writes_it_is_not_known_any_more(database: Database, lost: str, happened: bool) -> None:
    database.beside.claim(MINE)
    database.beside.write(MINE, ADD, [100])
    unknown = database.lost_write(lost, 1)
    answers = []
    for id_ in range(2, 20):
        database.beside.write(MINE, ADD, [id_])
        answers.append(database.landed(unknown))
    assert answers == [happened] * answers.index(None) + [None] * (len(answers) - answers.index(None))
    assert answers.index(None) >= 14


@both
def test_the_first_write_of_a_mark(database: Database, lost: str, happened: bool) -> None:
    unknown = database.lost_write(lost, 1, claim=True)
    assert database.landed(unknown) is happened
    assert (database.beside.mark("orders:1") is not None) is happened, "landed has left a mark"
    database.beside.write(NEWER, ADD, [2], claim=True)
    assert database.landed(unknown) is happened


@both
def test_a_write_that_claims_over_an_older_mark(database: Database, lost: str, happened: bool) -> None:
    database.beside.claim(MINE)
    unknown = database.lost_write(lost, 1, fence=NEWER, claim=True)
    assert database.landed(unknown) is happened
    database.beside.write(NEWER, ADD, [2], claim=True)
    assert database.landed(unknown) is happened


@both
def test_a_pruned_mark_leaves_nothing_to_know(database: Database, lost: str, happened: bool) -> None:
    unknown = database.lost_write(lost, 1, claim=True)
    database.direct.execute("DELETE FROM fencing_marks WHERE resource = 'orders:1'")
    database.direct.execute("UPDATE fencing_marks SET number = 5 WHERE resource = %s", [FLOOR])
    assert database.landed(unknown) is None
    database.beside.write(NEWER, ADD, [2], claim=True)
    assert database.landed(unknown) is None


@both
def test_several_fences(database: Database, lost: str, happened: bool) -> None:
    database.beside.claim(MINE, OTHER)
    database.lose(lost)
    block = database.block(OTHER, MINE, body=lambda connection: connection.execute(ADD, [1]))
    unknown = database.side.expect(OutcomeUnknown, block)
    assert database.landed(unknown) is happened
    assert database.done == ({1} if happened else set())


def test_another_database_knows_nothing(database: Database, postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    guard = PsycopgGuard(dsn_of(url))
    guard.create_tables()
    database.beside.claim(MINE)
    unknown = database.lost_write("reply", 1)
    assert guard.landed(unknown) is None
    guard.claim(MINE)
    assert guard.landed(unknown) is None
    postgres_server.drop_database(url)


# Sessions that live on, sessions that are killed, servers that crash


@pytest.mark.parametrize("options", [{}, {"claim": True}], ids=["claimed", "first write"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_while_it_is_under_way_landed_waits(database: Database, options: dict[str, Any], end: str) -> None:
    """The COMMIT is stuck somewhere, and the server's session is open: nothing is decided yet. Whatever the isolation
    level of its connection, landed sees what it has waited for."""
    if not options:
        database.beside.claim(MINE)
    asked = PsycopgGuard(f"{database.dsn}?options=-c%20default_transaction_isolation%3Dserializable")
    with ThreadPoolExecutor() as pool:
        with suppress(ZeroDivisionError), database.beside.begin(MINE, **options) as connection:
            connection.execute(ADD, [1])
            row = connection.execute("SELECT recent_writes FROM fencing_marks WHERE resource = 'orders:1'").fetchone()
            assert row is not None
            unknown = OutcomeUnknown(fence=MINE, seq=1, recent_writes=row[0])
            refused = database.side.expect(GuardUnavailable, database.guard.landed, unknown, timeout=0.2)
            assert "ask again" in str(refused)
            assert "no data was written" not in str(refused)
            answer = pool.submit(asked.landed, unknown)
            until_locks_are_waited_for(database.url)
            assert not answer.done()
            if end == "rollback":
                raise ZeroDivisionError
        assert answer.result() is database.landed(unknown) is (end == "commit")


def test_a_session_killed_in_the_body(database: Database) -> None:
    database.beside.claim(MINE)

    def block() -> None:
        with database.guard.begin(MINE) as connection:
            connection.execute(ADD, [1])
            database.kill(connection.info.backend_pid)
            connection.execute(ADD, [2])

    async def async_block() -> None:
        async with database.guard.begin(MINE) as connection:
            await connection.execute(ADD, [1])
            database.kill(connection.info.backend_pid)
            await connection.execute(ADD, [2])

    run = async_block if database.side.asynchronous else block
    database.side.expect(psycopg.OperationalError, run)  # the block's own error: nothing was written
    assert database.done == set()
    assert database.write(3) == 1


def test_a_session_killed_before_the_commit(database: Database) -> None:
    database.beside.claim(MINE)

    def body(connection: Any) -> None:
        database.kill(connection.info.backend_pid)

    unknown = database.side.expect(OutcomeUnknown, database.block(MINE, body=body))
    assert database.landed(unknown) is False
    assert database.write(3) == 1


SLOW_COMMIT = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON done DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()
"""


def test_a_session_killed_during_the_commit(database: Database) -> None:
    database.beside.claim(MINE)
    database.direct.execute(SLOW_COMMIT)

    def kill_the_commit() -> None:
        find = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        wait_until(lambda: database.direct.execute(find).fetchone())

    def write() -> OutcomeUnknown:
        return database.side.expect(OutcomeUnknown, database.guard.write, MINE, ADD, [1])

    unknown, _ = database.side.race([write, kill_the_commit])
    assert database.landed(unknown) is False
    assert database.done == set()


def test_a_crashed_server_has_lost_it() -> None:
    try:
        server = start_postgres(local=True)
    except ServerError as error:
        pytest.skip(str(error))
    with server:
        guard = PsycopgGuard(dsn_of(server.create_database()))
        guard.create_tables()
        guard.claim(MINE)
        with pytest.raises(OutcomeUnknown) as raised, guard.begin(MINE) as connection:
            connection.execute("CREATE TABLE done (id INTEGER)")
            server.kill()
        server.restart()
        assert guard.landed(raised.value) is False
        guard.write(MINE, "CREATE TABLE done (id INTEGER)")


def test_an_interrupted_commit_says_so(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    if database.side.asynchronous:
        pytest.skip("asyncio: see the cancelled commits")
    database.beside.claim(MINE)
    wait = psycopg.Connection.wait
    plans: list[Any] = []

    def interrupted(self: Any, plan: Any, *args: Any, **options: Any) -> Any:
        plans.append(plan)
        if len(plans) < 3:  # the check, the statement, the commit
            return wait(self, plan, *args, **options)
        next(plan)  # the request is out
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised, database.guard.begin(MINE):
        raise KeyboardInterrupt
    assert raised.value.__cause__ is None
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as raised:
        patch.setattr(psycopg.Connection, "wait", interrupted)
        database.guard.write(MINE, ADD, [1])
    assert isinstance(raised.value.__cause__, OutcomeUnknown)
    assert database.landed(raised.value.__cause__) is (database.done == {1})
    assert database.write(2) == 1


# The network breaks elsewhere


@pytest.mark.parametrize("first", [True, False], ids=["first claim", "later claim"])
def test_a_lost_claim_may_be_repeated(database: Database, first: bool) -> None:
    if not first:
        database.beside.claim(Fence("orders:1", 1, "d" * 22))
    assert database.proxy is not None
    loss = database.proxy.drop_reply_when(lambda request: b"fencing_marks" in request or b"EXECUTE" in request)
    database.side.expect(GuardUnavailable, database.guard.claim, MINE)
    assert loss.fired == 1
    database.side.call(database.guard.claim, MINE)
    assert database.write(1) == 1


@pytest.mark.skipif(DRIVER < (3, 3), reason="older drivers do not say that nothing has come")
def test_silence_ends(database: Database) -> None:
    """Also where nobody cancels anything, and without asyncio."""
    database.beside.claim(MINE)
    assert database.proxy is not None
    guard = type(database.guard)(database.pool, timeout=0.3)
    started = time.monotonic()
    for request, error in ((b"EXECUTE fencing_claim", GuardUnavailable), (b"COMMIT", OutcomeUnknown)):
        database.proxy.hold_reply_when(lambda passed, request=request: request in passed)  # type: ignore[misc]
        use = guard.claim if error is GuardUnavailable else guard.write
        database.side.expect(error, use, *([MINE] if use == guard.claim else [MINE, ADD, [1]]))
        database.proxy.restore()
    assert time.monotonic() - started < 10


def test_a_lost_check_has_written_nothing(database: Database) -> None:
    database.beside.claim(MINE)
    assert database.proxy is not None
    database.proxy.drop_reply_when(lambda request: b"EXECUTE" in request)
    database.side.expect(GuardUnavailable, database.guard.write, MINE, ADD, [1])
    assert database.done == set()


def test_a_lost_statement_is_the_blocks_own_error(database: Database) -> None:
    database.beside.claim(MINE)
    assert database.proxy is not None
    database.proxy.drop_reply_when(lambda request: b"INSERT INTO done" in request)
    database.side.expect(psycopg.OperationalError, database.guard.write, MINE, ADD, [1])
    assert database.done == set()


def test_a_server_that_refuses(database: Database) -> None:
    database.beside.claim(MINE)
    assert database.proxy is not None
    database.proxy.refuse()
    database.side.expect(GuardUnavailable, database.guard.claim, MINE, timeout=0.3)  # on the pool's broken connection
    error = database.side.expect(GuardUnavailable, database.guard.claim, MINE, timeout=0.3)  # there is none any more
    assert "pool" in str(error)
    database.proxy.restore()
    wait_until(lambda: _claims(database), 30)


def _claims(database: Database) -> bool:
    try:
        database.side.call(database.guard.claim, MINE)
        return True
    except GuardUnavailable:
        return False
