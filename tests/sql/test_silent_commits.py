"""COMMITs without an answer, as where PostgreSQL waits for a synchronous standby that is gone: a call ends all the
same, and says that the outcome is not known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError

from examples.servers import start_postgres
from fencing import GuardUnavailable, OutcomeUnknown
from fencing.kernel import process
from fencing.kernel.timer import timer
from storage_guards import SQLAlchemyGuard
from storage_guards.sqlalchemy import waits as waits_module
from storage_guards.sqlalchemy.transaction import SQLAlchemyTransaction
from storage_guards.sqlalchemy.waits import Waits, waits
from tests.support import wait_until
from tests.support.sql_ways import (
    DONE,
    MINE,
    NEWER,
    OVER_A_NETWORK,
    TO_SERVERS,
    Way,
    WayLender,
    is_commit,
    ways,
)

TIMEOUT = 1.0
WITH_THREADS = ("psycopg", "pymysql")


@pytest.fixture
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        yield way


def write(guard: Any) -> None:
    guard.write(MINE, text(DONE), {"id": 1})


def write_in_a_block(guard: Any) -> None:
    with guard.begin(MINE) as connection:
        connection.execute(text(DONE), {"id": 1})


def write_in_a_session(guard: Any) -> None:
    with guard.session(MINE) as session:
        session.execute(text(DONE), {"id": 1})


@pytest.mark.thorough
@pytest.mark.parametrize("way", WITH_THREADS, indirect=True)
@pytest.mark.parametrize("use", [write, write_in_a_block, write_in_a_session])
def test_a_write_ends(way: Way, use: Callable[[Any], None]) -> None:
    guard = way.new_guard(timeout=TIMEOUT, size=1)
    guard.claim(MINE)
    silence = way.proxy.hold_reply_when(is_commit)
    with pytest.raises(OutcomeUnknown) as caught:
        use(guard)
    assert silence.fired == 1
    seconds = "3 s" if way.is_mariadb else "2 s"  # MariaDB counts whole seconds, and refuses a little later
    assert f"There was no answer for {seconds}" in "".join(getattr(caught.value.__cause__, "__notes__", ()))
    way.proxy.restore()
    assert way.landed(caught.value) is True, "the request had arrived"
    guard.claim(NEWER)
    wait_until(lambda: guard._engine.pool.checkedout() == 0)


def claim(guard: Any) -> None:
    guard.claim(MINE)


@pytest.mark.parametrize("way", WITH_THREADS, indirect=True)
@pytest.mark.parametrize("use", [claim, write, write_in_a_block, write_in_a_session])
def test_an_answer_that_came_too_late_for_the_timer_is_no_answer(
    way: Way, use: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where the process was frozen between the answer and the look at it.
    guard = way.new_guard(timeout=TIMEOUT, size=1)
    guard.claim(MINE)
    admit = SQLAlchemyTransaction.admit

    def admit_late(self: SQLAlchemyTransaction, *args: Any) -> None:
        admit(self, *args)
        waits[self] = -math.inf, waits[self][1]
        waits._check()

    with monkeypatch.context() as patches:
        patches.setattr(SQLAlchemyTransaction, "admit", admit_late)
        with pytest.raises(GuardUnavailable, match="the connection broke after the check"):
            use(guard)
    use(guard)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ways("psycopg", "psycopg-async", "pymysql", of=OVER_A_NETWORK), indirect=True)
def test_the_tables_are_made_in_time(way: Way) -> None:
    guard = way.new_guard(timeout=TIMEOUT)
    way.side.call(guard.mark, "r")  # and is connected now
    way.drop_marks()
    way.spoil()
    way.proxy.hold_reply_when(is_commit)
    error = way.side.expect(GuardUnavailable, guard.create_tables)
    assert "retry" in str(error)
    way.proxy.restore()

    def create() -> bool:
        try:
            way.side.call(guard.create_tables)
        except GuardUnavailable:  # MariaDB and MySQL: the session that was left has their lock until its end
            return False
        return True

    wait_until(create)
    way.side.call(guard.claim, MINE)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ways("psycopg", of=TO_SERVERS), indirect=True)
def test_marks_are_pruned_in_time(way: Way) -> None:
    guard = way.new_guard(timeout=TIMEOUT)
    way.side.call(guard.claim, MINE)
    way.proxy.hold_reply_when(is_commit)
    way.side.expect(GuardUnavailable, guard.prune, below=2)
    way.proxy.restore()
    way.side.call(guard.prune, below=2)


TO_THE_POOL = b"\t\0\0\0\x03ROLLBACK"
"""PyMySQL and aiomysql send it as a connection goes back: length and number of the packet, COM_QUERY, and no more. None
comes behind the guard's own commit, so a hook has the engine commit."""


def begin(way: Way, guard: Any, *, fails: bool = False) -> None:
    with way.begin(MINE, guard=guard) as block:
        block.execute(DONE, id=1)
        if fails:
            raise ZeroDivisionError


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["pymysql", "aiomysql"], indirect=True)
@pytest.mark.parametrize(
    ("use", "part"),
    [
        ("claim with a hook", TO_THE_POOL),
        ("mark", TO_THE_POOL),
        ("begin with a hook", TO_THE_POOL),
        ("begin", b"RELEASE SAVEPOINT"),
        ("begin", b"SET SESSION"),
        ("begin and fail", b"ROLLBACK"),
        ("begin and fail", b"SET SESSION"),
        ("prune", b"SET @FENCING"),
        ("prune", b"SET SESSION"),
        ("create", b"SET @FENCING"),
        ("create", TO_THE_POOL),
    ],
)
def test_each_request_around_a_transaction_has_a_bound(way: Way, use: str, part: bytes) -> None:
    error = ends(way, use, part)
    if use == "begin with a hook":
        assert error is None, "its COMMIT was answered before"
        assert way.done == {1}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "way", ["psycopg", "psycopg-async", "asyncpg", "PsycopgGuard", "AsyncPsycopgGuard"], indirect=True
)
def test_the_rollback_of_a_block_that_failed_has_a_bound(way: Way) -> None:
    ends(way, "begin and fail", b"ROLLBACK")


def ends(way: Way, use: str, part: bytes) -> BaseException | None:
    """Use a guard while the reply to a request with this part does not come. Return the error of that."""
    guard = way.new_guard(timeout=TIMEOUT, size=1)
    use, _, hook = use.partition(" with a ")
    if hook:
        event.listen(guard._sync_engine, "commit", lambda _: None)
    way.side.call(guard.claim, MINE)
    uses: dict[str, Callable[[], Any]] = {
        "claim": lambda: way.side.call(guard.claim, MINE),
        "mark": lambda: way.side.call(guard.mark, MINE.resource),
        "begin": lambda: begin(way, guard),
        "begin and fail": lambda: begin(way, guard, fails=True),
        "prune": lambda: way.side.call(guard.prune, below=2),
        "create": lambda: way.side.call(guard.create_tables),
    }
    silence = way.proxy.hold_reply_when(lambda request: part in request.upper())
    began = time.monotonic()
    ended: BaseException | None = None
    try:
        uses[use]()
    except (GuardUnavailable, OutcomeUnknown, DBAPIError, psycopg.Error, ZeroDivisionError) as error:
        ended = error
    assert time.monotonic() - began < 60
    assert silence.fired
    way.proxy.restore()
    wait_until(lambda: way.serves(guard, NEWER))  # it has one connection
    return ended


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["psycopg"], indirect=True)
def test_commits_that_are_answered_leave_nothing(way: Way) -> None:
    """No socket of a later transaction is shut by what watched an earlier one."""
    guard = way.new_guard(timeout=1.0)
    guard.claim(MINE)
    for id_ in range(40):  # for longer than each is watched
        guard.write(MINE, text(DONE), {"id": id_})
        time.sleep(0.06)
    assert way.done == set(range(40))
    assert not waits


def test_each_commit_has_its_own_end() -> None:
    """One call of the timer is for all of them."""
    own = Waits()
    shut: list[str] = []
    for name, seconds in (("later", 0.4), ("first", 0.1), ("answered", 60)):
        until = process.now() + seconds
        own[name] = until, partial(shut.append, name)
        if until < own.checks_at:
            own.check_at(until)
    wait_until(lambda: shut == ["first", "later"])
    assert list(own) == ["answered"]


@pytest.mark.thorough
def test_a_standby_that_is_gone() -> None:
    with start_postgres(own=True, local=True) as server:
        engine = create_engine(server.create_database())
        guard = SQLAlchemyGuard(engine, timeout=TIMEOUT)
        guard.create_tables()
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE done (id INTEGER PRIMARY KEY)"))
        guard.claim(MINE)
        with server.connect() as admin:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'gone'")
            admin.execute("SELECT pg_reload_conf()")

            def write_until_it_waits() -> None:  # the server's other processes read the setting a moment later
                for id_ in range(1000):
                    guard.write(MINE, text(DONE), {"id": id_})

            with pytest.raises(OutcomeUnknown) as caught:
                write_until_it_waits()
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
        assert guard.landed(caught.value, timeout=TIMEOUT) is True
        guard.claim(NEWER)
        engine.dispose()


def test_an_interruption_leaves_the_next_wait_to_ask_for_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no later wait would have a bound."""
    own = Waits()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(timer(), "call_at", interrupt)
        own["interrupted"] = process.now() + 60, lambda: None
        with pytest.raises(KeyboardInterrupt):
            own.check_at(process.now() + 60)
    assert own.checks_at == math.inf


@pytest.mark.parametrize("way", WITH_THREADS, indirect=True)
def test_a_connection_that_was_given_back_is_not_shut(way: Way) -> None:
    """An interruption may leave a wait behind. By its end, the socket is another transaction's."""
    guard = way.new_guard(size=1)
    guard.claim(MINE)
    connection = guard._engine.connect()
    connection.close()
    with guard._engine.connect() as another:
        waits_module.shut(connection, guard._marks.dialect)
        assert another.execute(text("SELECT 1")).scalar_one() == 1
        waits_module.shut(another, guard._marks.dialect)
        with pytest.raises(DBAPIError):
            another.execute(text("SELECT 1"))
