"""Sessions that the server ends before a COMMIT is sent: nothing was written, and the error says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from fencing import Fence, GuardUnavailable
from storage_guards.sql.transaction import NoAnswer
from storage_guards.sqlalchemy.errors import SQLAlchemyErrors
from storage_guards.sqlalchemy.transaction import SQLAlchemyTransaction
from tests.support import wait_until
from tests.support.lock_waits import innodb_sessions
from tests.support.sql_ways import DONE, MINE, OVER_A_NETWORK, TO_SERVERS, Way, WayLender, ways

REFUSED = (DBAPIError, psycopg.Error)
"""The driver's error. OutcomeUnknown is none of them."""

_ON_POSTGRES = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in trans%'"
_END = {"postgres": "SELECT pg_terminate_backend(:session, 5000)", "mariadb": "KILL :session"}


@pytest.fixture(params=ways("psycopg", "asyncpg", "pymysql", "aiomysql", "PsycopgGuard", of=OVER_A_NETWORK))
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        way.beside.claim(MINE)
        yield way


def idle_transactions(way: Way) -> list[Any]:
    if way.database == "postgres":
        return [row[0] for row in way.sql(_ON_POSTGRES)]
    with way.outside.connect() as connection:
        return [session for session, is_waiting in innodb_sessions(connection).items() if not is_waiting]


def end_idle_transactions(way: Way, is_ended: Callable[[], bool]) -> None:
    """End all that there are, until the one that is meant has ended."""

    def end_all() -> bool:
        for session in idle_transactions(way):
            with suppress(DBAPIError):  # it has ended by itself
                way.sql(_END[way.database], session=session)
        return is_ended()

    wait_until(end_all)


def has_unread(way: Way, guard: Any) -> Callable[[Any], bool]:
    """The question of whether the end of the session has come to this machine, about a connection."""
    if way.is_psycopg:
        return lambda connection: guard_wire().has_unread(connection)
    return lambda connection: guard._marks.has_unread(getattr(connection, "sync_connection", connection))


def guard_wire() -> Any:
    from storage_guards.psycopg import wire

    return wire


def expect_refusal(way: Way, error: BaseException) -> None:
    assert "nothing was written" in "".join(error.__notes__).lower()
    assert way.done == set()
    assert way.write(MINE, DONE, id=2) == 1, "the next write has a sound connection"


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["by the guard's time-out", "by the server"])
def test_a_block_whose_session_is_ended_while_it_stands_still(way: Way, end: str) -> None:
    guard = way.new_guard(timeout=1.0 if "guard" in end else 10.0)
    with pytest.raises(REFUSED) as raised, way.begin(MINE, guard=guard) as block:  # noqa: PT012
        block.execute(DONE, id=1)
        if "server" in end:
            way.kill(block)
        wait_until(lambda: block.call(has_unread(way, guard)))
    expect_refusal(way, raised.value)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ways("asyncpg", "pymysql", of=TO_SERVERS), indirect=True)
def test_a_write_whose_session_is_ended_before_its_commit(way: Way) -> None:
    """As that of a process that was frozen between its statement and its COMMIT."""
    guard = way.new_guard()
    way.side.call(guard.claim, MINE)

    def end(connection: Any, _: Any, statement: str, *__: Any) -> None:
        if statement.startswith("INSERT INTO done") and not ended:
            ended.append(True)
            end_idle_transactions(way, lambda: guard._marks.has_unread(connection))

    ended: list[bool] = []
    engine = getattr(guard._engine, "sync_engine", guard._engine)
    event.listen(engine, "after_cursor_execute", end)
    error = way.side.expect(DBAPIError, guard.write, MINE, *way.statement(DONE, id=1))
    expect_refusal(way, error)


def test_a_driver_that_never_ends_the_block_before_its_commit() -> None:
    """The end was cancelled by the guard's bound, and nothing else: not the caller's task."""
    transaction = SQLAlchemyTransaction(object(), SQLAlchemyErrors([Fence("r", 1, "a" * 22)], 1.0), claim=False)  # type: ignore[arg-type]
    transaction.body_failed(RuntimeError("as the end is cancelled"))
    with pytest.raises(GuardUnavailable, match="no data was written"):
        transaction.raise_outcome(None, NoAnswer("cancelled"), None)
