"""``verify``: what is wrong with the table or the settings is named, and what breaks safety is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text

from fencing import Fence, GuardNotEnforceable, GuardUnavailable
from storage_guards import AsyncPsycopgGuard, PsycopgGuard
from storage_guards.sql.verify import VerifyReport
from tests.support.psycopg_database import dsn_of
from tests.support.servers import MariaDBServer
from tests.support.sides import Side, close_engine
from tests.support.sql_ways import ALL, THROUGH_SQLALCHEMY, TO_MARIADB, TO_POSTGRES, Way, new_way, ways


class Checked:
    """A guard of one kind, and its database."""

    def __init__(self, way: Way, **settings: Any) -> None:
        self.way, self.side = way, way.side
        self.direct = way.outside
        way.beside.create_tables()
        self.engine: Any = None if way.is_psycopg else way.new_engine(**settings)
        self.guard: Any = way.guard_class(self.engine or way.direct)

    def sql(self, *statements: str) -> None:
        with self.direct.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                connection.execute(text(statement))

    def verify(self) -> VerifyReport:
        report = self.side.call(self.guard.verify)
        assert isinstance(report, VerifyReport)
        return report

    def threats(self) -> list[tuple[str, str]]:
        return [(finding.threatens, finding.problem) for finding in self.verify().findings]


@pytest.fixture(params=ways("psycopg", "aiomysql", "sqlite", "AsyncPsycopgGuard"))
def checked(request: pytest.FixtureRequest) -> Iterator[Checked]:
    way = new_way(request, request.param)
    yield Checked(way)
    way.close()


on_postgresql = pytest.mark.parametrize("checked", ways("psycopg", "AsyncPsycopgGuard", of=TO_POSTGRES), indirect=True)
through_psycopg = pytest.mark.parametrize(
    "checked",
    ways("psycopg", "AsyncPsycopgGuard", of=[name for name in TO_POSTGRES if name != "asyncpg"]),
    indirect=True,
)
on_mariadb = pytest.mark.parametrize("checked", ways("aiomysql", of=TO_MARIADB), indirect=True)
on_sqlite = pytest.mark.parametrize("checked", ways("sqlite", of=("sqlite", "aiosqlite")), indirect=True)


@pytest.mark.thorough
@pytest.mark.parametrize("checked", ALL, indirect=True)
def test_what_create_tables_made_is_as_it_should_be(checked: Checked) -> None:
    checked.sql("DROP TABLE fencing_marks")
    checked.side.call(checked.guard.create_tables)
    report = checked.verify()
    names = {"postgres": "PostgreSQL", "mariadb": "MariaDB", "sqlite": "SQLite"}
    assert report.database.startswith("MySQL" if checked.way.is_mysql else names[checked.way.database])
    assert {finding.threatens for finding in report.findings} <= {"durability", "waiting"}, str(report)
    assert str(report).startswith(report.database)
    assert pickle.loads(pickle.dumps(report)) == report
    with pytest.raises(FrozenInstanceError):
        report.database = "other"  # type: ignore[misc]


@pytest.mark.thorough
def test_it_changes_nothing(checked: Checked) -> None:
    def rows() -> list[Any]:
        with checked.direct.connect() as connection:
            return list(connection.execute(text("SELECT * FROM fencing_marks ORDER BY resource")).all())

    checked.side.call(checked.guard.claim, Fence("a", 5, "a" * 22))
    before = rows()
    checked.verify()
    assert rows() == before


def test_a_missing_table(checked: Checked) -> None:
    checked.sql("DROP TABLE fencing_marks")
    with pytest.raises(GuardNotEnforceable, match=r"table fencing_marks is missing.*create_tables"):
        checked.verify()


def test_a_database_that_does_not_answer(side: Side) -> None:
    kind = AsyncPsycopgGuard if side.asynchronous else PsycopgGuard
    side.expect(GuardUnavailable, kind("postgresql://127.0.0.1:1/none", timeout=2.0).verify)


@pytest.mark.thorough
def test_a_missing_floor(checked: Checked) -> None:
    checked.sql("DELETE FROM fencing_marks")
    with pytest.raises(GuardNotEnforceable, match="floor row of fencing_marks is missing, so no new name"):
        checked.verify()


@pytest.mark.thorough
@pytest.mark.parametrize("checked", ways("psycopg", "aiomysql", "sqlite", of=THROUGH_SQLALCHEMY), indirect=True)
def test_an_autocommit_engine(checked: Checked) -> None:
    """The psycopg guard begins its transactions itself. The claim that is tried would stay, with the highest of all
    numbers: pruned one day, it would shut out every new name."""
    other = Checked(checked.way, isolation_level="AUTOCOMMIT")
    with pytest.raises(GuardNotEnforceable, match="autocommit"):
        other.verify()
    assert checked.way.sql("SELECT COUNT(*), MAX(number) FROM fencing_marks") == [(1, 0)]


# PostgreSQL

BROKEN_POSTGRES = {
    "ALTER TABLE fencing_marks SET UNLOGGED": "unlogged: after a crash",
    "ALTER TABLE fencing_marks ALTER number TYPE double precision": "number is double precision, not bigint",
    "ALTER TABLE fencing_marks ALTER resource TYPE char(600)": "resource is character",
    "ALTER TABLE fencing_marks DROP COLUMN recent_writes": "recent_writes is missing",
    "ALTER TABLE fencing_marks DROP CONSTRAINT fencing_marks_pkey": "primary key is not",
    "ALTER TABLE fencing_marks DROP CONSTRAINT fencing_marks_pkey, ADD PRIMARY KEY (resource) DEFERRABLE": "at once",
    "ALTER TABLE fencing_marks DROP CONSTRAINT fencing_marks_pkey, ADD PRIMARY KEY (resource, token)": "primary key is",
    "ALTER TABLE fencing_marks ALTER token TYPE text COLLATE blind": "different names as equal",
    "ALTER TABLE fencing_marks RENAME TO m; CREATE VIEW fencing_marks AS SELECT * FROM m": "no plain table",
}


@on_postgresql
@pytest.mark.parametrize("change", BROKEN_POSTGRES)
def test_what_breaks_a_table_of_postgresql(checked: Checked, change: str) -> None:
    # Not every build has ICU, whose collations can be so.
    blind = "CREATE COLLATION blind (provider = libc, locale = 'C')"
    checked.sql(blind, "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'blind'")
    checked.sql(*change.split("; "))
    with pytest.raises(GuardNotEnforceable, match=BROKEN_POSTGRES[change]):
        checked.verify()


@pytest.mark.thorough
@on_postgresql
def test_row_security_that_hides_marks(checked: Checked) -> None:
    with checked.direct.connect() as connection:
        owner = connection.execute(text("SELECT current_user")).scalar_one()
    checked.sql(
        "DROP ROLE IF EXISTS plain",
        "CREATE ROLE plain",
        f"GRANT plain TO {owner}",
        "GRANT ALL ON fencing_marks TO plain",
        "ALTER TABLE fencing_marks ENABLE ROW LEVEL SECURITY",
    )
    dsn = psycopg.conninfo.make_conninfo(
        dsn_of(checked.direct.url.render_as_string(hide_password=False)), options="-c role=plain"
    )
    kind: Any = AsyncPsycopgGuard if checked.side.asynchronous else PsycopgGuard
    error = checked.side.expect(GuardNotEnforceable, kind(dsn).verify)
    assert "row security hides rows" in str(error)
    checked.sql("DROP OWNED BY plain", "DROP ROLE plain")


@on_postgresql
def test_a_read_only_connection_of_postgresql(checked: Checked) -> None:
    with checked.direct.connect() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar_one()
    checked.sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with pytest.raises(GuardNotEnforceable, match="read-only"):
        checked.verify()
    with psycopg.connect(dsn_of(checked.direct.url.render_as_string(hide_password=False)), autocommit=True) as direct:
        direct.execute("SET default_transaction_read_only = off")
        direct.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


@pytest.mark.thorough
@on_postgresql
def test_what_postgresql_could_do_better(checked: Checked) -> None:
    with checked.direct.connect() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar_one()
    checked.sql(
        f'ALTER DATABASE "{name}" SET synchronous_commit = off',
        "ALTER TABLE fencing_marks DROP CONSTRAINT fencing_marks_seq",
        "ALTER TABLE fencing_marks ALTER token DROP NOT NULL",
    )
    found = checked.threats()
    assert ("durability", "synchronous_commit is off: a crash may lose acknowledged writes and marks") in found
    assert ("upkeep", "the CHECK fencing_marks_seq is missing or not validated") in found
    assert ("upkeep", "the column token may be NULL") in found


@through_psycopg
def test_client_side_bounds_over_a_network(checked: Checked) -> None:
    assert "tcp_user_timeout is not set" in str(checked.verify())
    options = "?connect_timeout=5&tcp_user_timeout=5000"
    bounded = checked.way.guard_at(checked.way.direct + options)
    assert "waiting" not in {finding.threatens for finding in checked.side.call(bounded.verify).findings}


@through_psycopg
def test_a_pooler_in_between(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells the client of a process of its own, as the client has no single one at the server."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda _: 7))
    assert "there is a pooler between this client and the server (it names process 7" in str(checked.verify())


# MariaDB

UNPARTITIONED = "ALTER TABLE fencing_marks REMOVE PARTITIONING"
BROKEN_MARIADB = {
    "ALTER TABLE fencing_marks ENGINE = Aria": "Aria",
    "ALTER TABLE fencing_marks MODIFY resource VARCHAR(512) CHARACTER SET latin1": "have one mark",
    "ALTER TABLE fencing_marks MODIFY resource VARBINARY(600)": "resource is varbinary.600., not",
    "ALTER TABLE fencing_marks MODIFY number DOUBLE NOT NULL": "number is double",
    "ALTER TABLE fencing_marks DROP PRIMARY KEY": "primary key is not",
    f"{UNPARTITIONED}; ALTER TABLE fencing_marks DROP PRIMARY KEY, ADD PRIMARY KEY (resource(9))": "primary key is not",
    UNPARTITIONED: "a temporary table fencing_marks would hide",
}


@pytest.mark.thorough
@on_mariadb
@pytest.mark.parametrize("change", BROKEN_MARIADB)
def test_what_breaks_a_table_of_mariadb(checked: Checked, change: str) -> None:
    if "Aria" in change:
        checked.way.needs_mariadb("engine Aria")
    checked.sql(*change.split("; "))
    with pytest.raises(GuardNotEnforceable, match=BROKEN_MARIADB[change]):
        checked.verify()


@pytest.mark.thorough
@on_mariadb
def test_what_mariadb_could_do_better(checked: Checked) -> None:
    checked.sql("ALTER TABLE fencing_marks DROP CONSTRAINT fencing_marks_seq")
    server = checked.way.server
    assert isinstance(server, MariaDBServer)
    server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        found = checked.threats()
    finally:
        server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    assert ("upkeep", "the CHECK fencing_marks_seq is missing") in found
    what = "innodb_flush_log_at_trx_commit is 2: a crash may lose acknowledged writes and marks"
    assert ("durability", what) in found
    assert checked.side.asynchronous or any("read_timeout is not set" in what for _, what in found)


# SQLite


def remade(checked: Checked, *changes: tuple[str, str]) -> None:
    """The table as it was, but for these texts in its CREATE TABLE."""
    with checked.direct.begin() as connection:
        made = connection.execute(text("SELECT sql FROM sqlite_master WHERE name = 'fencing_marks'")).scalar_one()
        for old, new in changes:
            assert old in made
            made = made.replace(old, new)
        connection.execute(text("CREATE TABLE kept AS SELECT * FROM fencing_marks"))
        connection.execute(text("DROP TABLE fencing_marks"))
        connection.exec_driver_sql(made)
        connection.execute(text("INSERT INTO fencing_marks SELECT * FROM kept"))


@on_sqlite
@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('resource TEXT COLLATE "BINARY"', "resource TEXT COLLATE NOCASE", "have one mark"),
        ('resource TEXT COLLATE "BINARY"', "resource TEXT COLLATE RTRIM", "have one mark"),
        ('token TEXT COLLATE "BINARY"', "token TEXT COLLATE NOCASE", "tokens that differ only in case"),
        ("number BIGINT", "number REAL", "number is REAL, not BIGINT|is read differently"),
    ],
)
def test_what_breaks_a_table_of_sqlite(checked: Checked, old: str, new: str, match: str) -> None:
    loose = ("typeof(number) = 'integer'", "typeof(number) <> 'text'")
    remade(checked, (old, new), loose)
    with pytest.raises(GuardNotEnforceable, match=match):
        checked.verify()


@on_sqlite
def test_what_sqlite_could_do_better(checked: Checked) -> None:
    remade(checked, ("fencing_marks_integers", "other_name"))
    pragmas = {"synchronous": "OFF", "journal_mode": "MEMORY"}
    target = getattr(checked.engine, "sync_engine", checked.engine)

    @event.listens_for(target, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        for name, value in pragmas.items():
            cursor.execute(f"PRAGMA {name} = {value}")
        cursor.close()

    found = checked.threats()
    assert [threatens for threatens, _ in found] == ["upkeep", "durability", "durability"]
    pragmas["journal_mode"] = "OFF"
    close_engine(checked.side, checked.engine)
    with pytest.raises(GuardNotEnforceable, match="journal_mode is off"):
        checked.verify()


@on_sqlite
def test_a_read_only_sqlite(checked: Checked) -> None:
    target = getattr(checked.engine, "sync_engine", checked.engine)
    event.listen(target, "connect", lambda connection, _: connection.execute("PRAGMA query_only = ON"))
    with pytest.raises(GuardNotEnforceable, match="read-only"):
        checked.verify()
