"""The kept form of the table of locks; and what a coordinator does that meets another one, on every database."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.schema import CreateTable

from fencing import CoordinatorUnavailable
from fencing.sql.dialects import MySQL, PostgreSQL, SQLite
from fencing.sql.statements import LOCKS
from tests.support.formats import unchanged
from tests.support.sql_locks import LockDatabase, through

_COLUMNS = (
    "CREATE TABLE fencing_locks ( resource {exact} NOT NULL, number BIGINT NOT NULL, token {exact_token} NOT NULL, "
    "owner {text} NOT NULL, granted_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, ttl BIGINT {zero}, "
    "waited_until BIGINT {zero}, released_at BIGINT {zero}, version SMALLINT {one}, PRIMARY KEY (resource), "
    "CONSTRAINT fencing_locks_number CHECK (number BETWEEN 1 AND 9007199254740991) )"
)


def _golden(exact: str, exact_token: str, owner: str, default: str = "DEFAULT {} NOT NULL") -> str:
    zero, one = default.format("'0'"), default.format("1")
    return _COLUMNS.format(exact=exact, exact_token=exact_token, text=owner, zero=zero, one=one)


_POSTGRESQL: Any = postgresql.dialect
GOLDEN: dict[Any, tuple[DefaultDialect, str]] = {
    PostgreSQL: (
        _POSTGRESQL(),
        _golden('TEXT COLLATE "C"', 'TEXT COLLATE "C"', "TEXT") + " WITH (fillfactor = 50)",
    ),
    SQLite: (sqlite.dialect(), _golden('TEXT COLLATE "BINARY"', 'TEXT COLLATE "BINARY"', "TEXT")),
    MySQL: (
        mysql.dialect(),
        _golden("VARBINARY(512)", "VARBINARY(128)", "VARBINARY(800)", "NOT NULL DEFAULT {}") + "ENGINE=InnoDB",
    ),
}


@pytest.mark.parametrize("database", GOLDEN)
def test_the_table_is_as_it_was(database: Any) -> None:
    dialect, golden = GOLDEN[database]
    locks = LOCKS[database](None, dialect)
    [table] = locks.metadata.tables.values()
    found = str(CreateTable(table).compile(dialect=dialect))
    unchanged(f"the table of locks on {database.__name__}", " ".join(found.split()), golden)


OLD = ("ALTER TABLE fencing_locks DROP COLUMN released_at", "ALTER TABLE fencing_locks DROP COLUMN version")
EACH = ("psycopg", "pymysql", "aiosqlite")


@through(*EACH)
def test_a_row_is_as_it_was(locks: LockDatabase) -> None:
    coordinator = locks.coordinator(direct=True, ttl=10, owner="me")
    lease = locks.side.call(coordinator.acquire, "a")
    columns = "number, token, ttl, waited_until, released_at, version"
    owner = "CONVERT(owner USING utf8mb4)" if locks.driver.database == "mariadb" else "owner"
    [(number, token, *rest, label, until)] = locks.sql(
        f"SELECT {columns}, {owner}, expires_at - granted_at FROM fencing_locks"
    )
    assert number == lease.fence.number
    assert (token.decode() if isinstance(token, bytes) else token) == lease.fence.token
    unchanged("the row of a lock", rest, [10_000_000, 0, 0, 1])
    unchanged("its owner", label, "me")
    assert until >= 10_000_000
    locks.side.call(lease.release)


@through("psycopg", "pymysql", "aiosqlite")
def test_a_table_of_an_earlier_program(locks: LockDatabase) -> None:
    """The refusal says what to do, and what it says is done."""
    side = locks.side
    held = side.call(locks.coordinator(direct=True, ttl=60).acquire, "a")
    for statement in OLD:
        locks.sql(statement)
    coordinator = locks.coordinator(direct=True)
    for call in (coordinator.acquire, coordinator.holder, coordinator.force_release):
        error = side.expect(CoordinatorUnavailable, call, "b")
        assert "the table fencing_locks is of an earlier program: as its owner, execute" in str(error)
    side.expect(CoordinatorUnavailable, coordinator.create_tables)
    assert len(locks.sql("SELECT 1 FROM fencing_locks")) == 1, "nothing was written"
    first, second = str(error).partition("nothing was written. ")[2].split("; ")
    locks.sql(first)
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "b")
    assert str(error).endswith(f"nothing was written. {second}"), "what is left is told"
    locks.sql(second)
    side.call(coordinator.create_tables)
    later = side.call(coordinator.acquire, "b")
    assert later.fence.number > held.fence.number
    assert side.call(coordinator.holder, "a").number == held.fence.number
    assert side.call(later.release) is True
    assert side.call(held.release) is True


@pytest.mark.thorough
@through("psycopg", "pymysql", "psycopg-async", "asyncpg", "aiomysql", of=("psycopg", "pymysql", "asyncpg", "aiomysql"))
def test_a_table_of_a_newer_version(locks: LockDatabase) -> None:
    locks.sql("ALTER TABLE fencing_locks ALTER COLUMN version SET DEFAULT 2")
    coordinator = locks.coordinator(direct=True)
    for call in (coordinator.acquire, coordinator.holder, coordinator.force_release):
        error = locks.side.expect(CoordinatorUnavailable, call, "b")
        assert "is of version 2, and this library knows 1: upgrade this library; nothing was written" in str(error)
    locks.side.expect(CoordinatorUnavailable, coordinator.create_tables)
    assert not locks.sql("SELECT 1 FROM fencing_locks")
    locks.sql("ALTER TABLE fencing_locks ALTER COLUMN version SET DEFAULT 1")
    locks.side.call(locks.side.call(coordinator.acquire, "b").release)


@through(*EACH)
def test_a_lock_that_its_holder_has_released_already(locks: LockDatabase) -> None:
    """``hold(at_least=...)`` leaves it so. Each version shows it, and the next grant forgets it."""
    side, coordinator = locks.side, locks.coordinator(direct=True, ttl=60)
    side.call(side.call(coordinator.acquire, "a").detach)
    assert side.call(coordinator.holder, "a").released is False
    locks.sql("UPDATE fencing_locks SET released_at = granted_at + 1, token = 'x'")
    assert side.call(coordinator.holder, "a").released is True
    assert side.call(coordinator.try_acquire, "a") is None
    locks.sql("UPDATE fencing_locks SET expires_at = granted_at")
    lease = side.call(coordinator.acquire, "a")
    assert side.call(coordinator.holder, "a").released is False
    side.call(lease.release)
