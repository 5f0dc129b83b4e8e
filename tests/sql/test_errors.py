"""What the errors of SQL databases mean, told apart without a database or a driver."""

from __future__ import annotations

import sqlite3

import pytest

from fencing.sql.errors import (
    commit_was_refused,
    first_line,
    is_an_answer,
    lost_race,
    state_of,
    state_of_sqlite,
)


class ServerError(Exception):
    """As psycopg's and asyncpg's: with the server's state, or None where the driver speaks itself."""

    def __init__(self, state: object) -> None:
        self.sqlstate = state
        super().__init__("said so")


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ServerError("40001"), "40001"),
        (ServerError(None), None),
        (Exception(1205, "Lock wait timeout exceeded"), "55P03"),
        (Exception(1213, "Deadlock found"), "40P01"),
        (Exception(2013, "Lost connection"), None),
        (sqlite3.OperationalError("database is locked"), None),
        (None, None),
    ],
)
def test_the_state_of_an_error(error: BaseException | None, state: str | None) -> None:
    assert state_of(error) == state


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("no such table: fencing_marks", "42P01"),
        ("attempt to write a readonly database", "25006"),
        ("database is locked", "55P03"),
        ("disk I/O error", None),
    ],
)
def test_sqlite_has_messages_for_states(said: str, state: str | None) -> None:
    assert state_of_sqlite(said) == state


@pytest.mark.parametrize("state", ["08006", "08003", "57P01", "57P02", "40003"])
def test_a_connection_that_breaks_is_no_answer(state: str) -> None:
    assert not is_an_answer(state)
    assert not commit_was_refused(ServerError(state))


@pytest.mark.parametrize(
    "error",
    [
        ServerError("23505"),
        ServerError("40001"),
        Exception(1213, "Deadlock found"),
        sqlite3.IntegrityError("FOREIGN KEY constraint failed"),
        sqlite3.OperationalError("database is locked"),
    ],
)
def test_a_refused_commit(error: Exception) -> None:
    assert commit_was_refused(error)


@pytest.mark.parametrize(
    "error",
    [
        ServerError(None),
        Exception(2013, "Lost connection"),
        Exception(1205, "Lock wait timeout exceeded"),
        sqlite3.OperationalError("disk I/O error"),
    ],
)
def test_what_is_no_answer_to_a_commit(error: Exception) -> None:
    assert not commit_was_refused(error)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (ServerError("40001"), True),
        (ServerError("40P01"), True),
        (ServerError("55P03"), False),
        (Exception(1205, "Lock wait timeout exceeded"), True),
        (Exception(3024, "max_execution_time"), False),
        (sqlite3.OperationalError("database is locked"), True),
        (sqlite3.OperationalError("disk I/O error"), False),
    ],
)
def test_what_may_be_tried_again(error: Exception, lost: bool) -> None:
    assert lost_race(error) is lost


def test_the_first_line() -> None:
    assert first_line(Exception("a\nb")) == "a"
    assert first_line(Exception("")) == "no reason given"
