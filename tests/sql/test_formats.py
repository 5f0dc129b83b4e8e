"""The kept form of the guards' tables; and what a guard does that meets another one, on every database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha1
from typing import Any

import pytest
from psycopg.errors import RaiseException
from sqlalchemy import inspect, text

from fencing import Fence, GuardNotEnforceable, Mark, StaleFence, UnclaimedFence
from fencing.kernel.fence import MAX_NUMBER
from storage_guards import SQLAlchemyGuard
from storage_guards.sql.functions import CREATE_FUNCTIONS
from storage_guards.sql.table import TABLES, DatabaseName, create_table
from tests.support.enforced import Roles, two_roles
from tests.support.formats import unchanged
from tests.support.sql_ways import TO_POSTGRES, Way, new_way, ways

ADD = "UPDATE orders SET total = total + 1"
OLDER, MINE, NEWER = (Fence("orders:1", number, letter * 22) for number, letter in ((4, "a"), (6, "b"), (9, "c")))
WAYS = ("psycopg", "pymysql", "aiosqlite", "AsyncPsycopgGuard")

MARKS = {
    "postgresql": (
        'CREATE TABLE IF NOT EXISTS s.fencing_marks (resource TEXT COLLATE "C" NOT NULL, number BIGINT NOT NULL, '
        'token TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, readers BIGINT DEFAULT 0 NOT NULL, '
        "recent_writes TEXT COLLATE \"C\" DEFAULT '' NOT NULL, "
        "claimed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL, xact xid8, version SMALLINT DEFAULT 1 NOT NULL, "
        "PRIMARY KEY (resource), "
        "CONSTRAINT fencing_marks_number CHECK "
        "(number BETWEEN 1 AND 9007199254740991 OR (number = 0 AND token = '')), "
        "CONSTRAINT fencing_marks_seq CHECK (seq >= 0), "
        "CONSTRAINT fencing_marks_readers CHECK (readers BETWEEN 0 AND 9007199254740991))"
    ),
    "sqlite": (
        'CREATE TABLE IF NOT EXISTS s.fencing_marks (resource TEXT COLLATE "BINARY" NOT NULL, number BIGINT NOT NULL, '
        'token TEXT COLLATE "BINARY" NOT NULL, seq BIGINT NOT NULL, readers BIGINT DEFAULT 0 NOT NULL, '
        "recent_writes TEXT COLLATE \"BINARY\" DEFAULT '' NOT NULL, "
        "claimed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, version SMALLINT DEFAULT 1 NOT NULL, "
        "PRIMARY KEY (resource), "
        "CONSTRAINT fencing_marks_integers CHECK (typeof(number) = 'integer' AND typeof(seq) = 'integer' AND "
        "typeof(readers) = 'integer'), "
        "CONSTRAINT fencing_marks_number CHECK "
        "(number BETWEEN 1 AND 9007199254740991 OR (number = 0 AND token = '')), "
        "CONSTRAINT fencing_marks_seq CHECK (seq >= 0), "
        "CONSTRAINT fencing_marks_readers CHECK (readers BETWEEN 0 AND 9007199254740991))"
    ),
    "mysql": (
        "CREATE TABLE IF NOT EXISTS s.fencing_marks (resource VARBINARY(512) NOT NULL, number BIGINT NOT NULL, "
        "token VARBINARY(128) NOT NULL, seq BIGINT NOT NULL, readers BIGINT DEFAULT 0 NOT NULL, "
        "recent_writes VARBINARY(208) DEFAULT '' NOT NULL, "
        "claimed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, version SMALLINT DEFAULT 1 NOT NULL, "
        "PRIMARY KEY (resource), "
        "CONSTRAINT fencing_marks_number CHECK "
        "(number BETWEEN 1 AND 9007199254740991 OR (number = 0 AND token = '')), "
        "CONSTRAINT fencing_marks_seq CHECK (seq >= 0), "
        "CONSTRAINT fencing_marks_readers CHECK (readers BETWEEN 0 AND 9007199254740991)) "
        "ENGINE = InnoDB PARTITION BY KEY (resource) (PARTITION fencing)"
    ),
}
DONE = {
    "postgresql": (
        'CREATE TABLE IF NOT EXISTS s.fencing_done (resource TEXT COLLATE "C" NOT NULL, '
        'once_key TEXT COLLATE "C" NOT NULL, number BIGINT NOT NULL, '
        "done_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL, write_id TEXT COLLATE \"C\" DEFAULT '' NOT NULL, "
        "floor TEXT COLLATE \"C\" DEFAULT '' NOT NULL, "
        "version SMALLINT DEFAULT 1 NOT NULL, PRIMARY KEY (resource, once_key), "
        "CONSTRAINT fencing_done_number CHECK (number BETWEEN 0 AND 9007199254740991))"
    ),
    "sqlite": (
        'CREATE TABLE IF NOT EXISTS s.fencing_done (resource TEXT COLLATE "BINARY" NOT NULL, '
        'once_key TEXT COLLATE "BINARY" NOT NULL, number BIGINT NOT NULL, '
        "done_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, write_id TEXT COLLATE \"BINARY\" DEFAULT '' NOT NULL, "
        "floor TEXT COLLATE \"BINARY\" DEFAULT '' NOT NULL, "
        "version SMALLINT DEFAULT 1 NOT NULL, PRIMARY KEY (resource, once_key), "
        "CONSTRAINT fencing_done_integers CHECK (typeof(number) = 'integer'), "
        "CONSTRAINT fencing_done_number CHECK (number BETWEEN 0 AND 9007199254740991))"
    ),
    "mysql": (
        "CREATE TABLE IF NOT EXISTS s.fencing_done (resource VARBINARY(512) NOT NULL, "
        "once_key VARBINARY(255) NOT NULL, number BIGINT NOT NULL, "
        "done_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, write_id VARBINARY(12) DEFAULT '' NOT NULL, "
        "floor VARBINARY(255) DEFAULT '' NOT NULL, "
        "version SMALLINT DEFAULT 1 NOT NULL, PRIMARY KEY (resource, once_key), "
        "CONSTRAINT fencing_done_number CHECK (number BETWEEN 0 AND 9007199254740991)) "
        "ENGINE = InnoDB PARTITION BY KEY (resource) (PARTITION fencing)"
    ),
}

_OLD_CHECKS = (
    "PRIMARY KEY (resource), CONSTRAINT fencing_marks_number CHECK (number BETWEEN 1 AND 9007199254740991 OR "
    "(resource = 'fencing:floor' AND number BETWEEN 0 AND 9007199254740991)), "
    "CONSTRAINT fencing_marks_seq CHECK (seq >= 0))"
)
OLD = {
    "postgres": (
        'CREATE TABLE fencing_marks (resource TEXT COLLATE "C" NOT NULL, number BIGINT NOT NULL, '
        'token TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, recent_writes TEXT COLLATE "C" DEFAULT \'\' NOT NULL, '
        f"claimed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL, xact xid8, {_OLD_CHECKS}"
    ),
    "sqlite": (
        'CREATE TABLE fencing_marks (resource TEXT COLLATE "BINARY" NOT NULL, number BIGINT NOT NULL, '
        'token TEXT COLLATE "BINARY" NOT NULL, seq BIGINT NOT NULL, '
        "recent_writes TEXT COLLATE \"BINARY\" DEFAULT '' NOT NULL, "
        "claimed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, "
        "CONSTRAINT fencing_marks_integers CHECK (typeof(number) = 'integer' AND typeof(seq) = 'integer'), "
        f"{_OLD_CHECKS}"
    ),
    "mariadb": (
        "CREATE TABLE fencing_marks (resource VARBINARY(512) NOT NULL, number BIGINT NOT NULL, "
        "token VARBINARY(128) NOT NULL, seq BIGINT NOT NULL, recent_writes VARBINARY(208) DEFAULT '' NOT NULL, "
        f"claimed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, {_OLD_CHECKS} "
        "ENGINE = InnoDB PARTITION BY KEY (resource) (PARTITION fencing)"
    ),
}


COLUMNS = ("resource", "number", "token", "seq", "readers", "recent_writes", "claimed_at", "version")
READ = "SELECT resource, number, token, seq, readers, version, recent_writes FROM fencing_marks ORDER BY resource"


@pytest.mark.parametrize("database", MARKS)
def test_the_tables_are_as_they_were(database: DatabaseName) -> None:
    found = [create_table("s", definition, database) for definition in TABLES]
    unchanged(f"the tables on {database}", found, [MARKS[database], DONE[database]])


def test_the_functions_are_as_they_were() -> None:
    unchanged("the functions", sha1(CREATE_FUNCTIONS.encode()).hexdigest(), "c6ce3c2fb577f21b71884fc7d1ff440c597fcf29")


class Tables:
    """A database with tables of this version, or of another one."""

    def __init__(self, way: Way) -> None:
        self.way, self.side = way, way.side
        way.sql("CREATE TABLE orders (id integer PRIMARY KEY, total integer NOT NULL)")
        way.sql("INSERT INTO orders VALUES (1, 0)")

    def new_guard(self) -> Any:
        return self.way.new_guard()

    def is_refused(self, operation: str, *args: Any) -> str:
        error = self.side.expect(GuardNotEnforceable, getattr(self.new_guard(), operation), *args)
        assert "nothing was written" in str(error)
        return str(error)

    def set_version(self, version: int, table: str = "fencing_marks") -> None:
        if self.way.database != "sqlite":
            self.way.sql(f"ALTER TABLE {table} ALTER COLUMN version SET DEFAULT {version}")
            return
        with self.way.outside.connect() as connection:
            connection.exec_driver_sql("PRAGMA writable_schema = ON")
            connection.exec_driver_sql(
                f"UPDATE sqlite_master SET sql = replace(sql, 'SMALLINT DEFAULT 1', 'SMALLINT DEFAULT {version}') "
                f"WHERE name = '{table}'"
            )
            connection.commit()
        self.way.outside.dispose()  # a connection remembers what it has read of it

    def key(self, name: str) -> str:
        return f"UNHEX('{name.encode().hex()}')" if self.way.is_mariadb else f"'{name}'"

    def rows(self) -> list[tuple[Any, ...]]:
        key = "CONVERT(resource USING utf8mb4), number, CONVERT(token USING utf8mb4), seq"
        columns = key if self.way.is_mariadb else "resource, number, token, seq"
        return [tuple(row) for row in self.way.sql(f"SELECT {columns} FROM fencing_marks ORDER BY resource")]


@pytest.fixture(params=ways(*WAYS))
def tables(request: pytest.FixtureRequest) -> Iterator[Tables]:
    way = new_way(request, request.param)
    yield Tables(way)
    way.close()


def test_a_row_is_as_it_was(tables: Tables) -> None:
    guard, side = tables.new_guard(), tables.side
    side.call(guard.create_tables)
    side.call(guard.claim, MINE)
    side.call(guard.write, MINE, tables.way.statement(ADD)[0])
    with tables.way.outside.connect() as connection:
        names = {column["name"] for column in inspect(connection).get_columns("fencing_marks")}
        rows = connection.execute(text(READ)).all()
    floor, mark = [[each.decode() if isinstance(each, bytes) else each for each in row] for row in rows]
    unchanged("the row of a mark", mark[:-1], ["orders:1", 6, "b" * 22, 1, 0, 1])
    assert re.fullmatch(r"[0-9A-Za-z+/]{12}( [0-9A-Za-z+/]{12}){2}", mark[-1]), "of the write, the claim and the table"
    unchanged("the row of the floor", floor[:-1], ["fencing:floor", 0, "", 0, 0, 1])
    assert mark[-1].endswith(f" {floor[-1]}")
    unchanged("the columns", sorted(names - {"xact"}), sorted(COLUMNS))


@pytest.mark.thorough
def test_tables_of_an_earlier_program(tables: Tables) -> None:
    """The refusal says what to do; what it says is done; and the marks are there."""
    way, side = tables.way, tables.side
    way.sql(OLD[way.database])
    for name, number, token in (("fencing:floor", 3, ""), ("orders:1", 6, "b" * 22)):
        way.sql(
            f"INSERT INTO fencing_marks (resource, number, token, seq, recent_writes) "
            f"VALUES ({tables.key(name)}, {number}, '{token}', 0, 'abcdefghijkl')"
        )
    before = tables.rows()
    while True:
        for operation, *args in (("claim", NEWER), ("write", MINE, way.statement(ADD)[0]), ("mark", "orders:1")):
            tables.is_refused(operation, *args)
        refused = tables.is_refused("create_tables")
        statements = refused.partition("nothing was written. ")[2].split("; ")
        with way.outside.connect() as connection:
            assert SQLAlchemyGuard(way.outside).upgrade_sql(connection) == statements
        assert tables.rows() == before
        way.sql(statements[0])  # one after the other: what is left is told each time
        if len(statements) == 1:
            break
    assert way.sql("SELECT total FROM orders") == [(0,)]
    with way.outside.connect() as connection:
        assert SQLAlchemyGuard(way.outside).upgrade_sql(connection) == []
    guard = tables.new_guard()
    side.call(guard.create_tables)
    found = side.call(guard.verify).findings
    assert not [each for each in found if "CHECK" in each.problem or each.threatens == "safety"], found
    assert tables.rows() == before
    assert side.call(guard.mark, "orders:1") == Mark(6, "b" * 22)
    side.expect(StaleFence, guard.claim, OLDER)
    side.expect(StaleFence, guard.claim, Fence("orders:2", 3, "d" * 22))
    assert side.call(guard.write, MINE, way.statement(ADD)[0]) == 1
    side.call(guard.claim, NEWER)
    side.expect(StaleFence, guard.write, MINE, way.statement(ADD)[0])


@pytest.mark.thorough
@pytest.mark.parametrize("table", ["fencing_marks", "fencing_done"])
def test_tables_of_a_newer_version(tables: Tables, table: str) -> None:
    way, side = tables.way, tables.side
    side.call(tables.new_guard().create_tables)
    side.call(tables.new_guard().claim, OLDER)
    tables.set_version(2, table)
    before = tables.rows()
    for operation, *args in (
        ("claim", NEWER),
        ("write", OLDER, way.statement(ADD)[0]),
        ("mark", "orders:1"),
        ("prune",),
        ("create_tables",),
        ("verify",),
    ):
        options = {"below": MAX_NUMBER} if operation == "prune" else {}
        error = side.expect(GuardNotEnforceable, getattr(tables.new_guard(), operation), *args, **options)
        assert f"{table} is of version 2, and this library knows 1: upgrade this library" in str(error)
        assert "nothing was written" in str(error)
    assert tables.rows() == before
    assert way.sql("SELECT total FROM orders") == [(0,)]


@pytest.mark.thorough
def test_tables_without_that_of_what_was_done_once(tables: Tables) -> None:
    """Nothing but verify misses it."""
    guard, side = tables.new_guard(), tables.side
    side.call(guard.create_tables)
    tables.way.sql("DROP TABLE fencing_done")
    side.call(guard.claim, MINE)
    [finding] = [each for each in side.call(guard.verify).findings if "fencing_done" in each.problem]
    assert str(finding) == ("upkeep: the table fencing_done is missing; call guard.create_tables() once, as the owner")
    side.call(guard.create_tables)
    assert not [each for each in side.call(guard.verify).findings if "fencing_done" in each.problem]


def test_readers_and_marks_without_a_holder(tables: Tables) -> None:
    """No version makes them yet. Each guard heeds them."""
    way, side, guard = tables.way, tables.side, tables.new_guard()
    side.call(guard.create_tables)
    side.call(guard.claim, MINE)
    way.sql(f"UPDATE fencing_marks SET readers = 8 WHERE resource = {tables.key('orders:1')}")
    refused = side.expect(StaleFence, guard.write, MINE, way.statement(ADD)[0])
    assert refused.mark == Mark(6, "b" * 22, 0, 8)
    for late in (MINE, Fence("orders:1", 8, "d" * 22)):
        mark = side.expect(StaleFence, guard.claim, late).mark
        assert mark is not None
        assert mark.newest == 8
    side.call(guard.claim, NEWER)
    assert side.call(guard.mark, "orders:1") == Mark(9, "c" * 22, 0, 8)
    assert side.call(guard.write, NEWER, way.statement(ADD)[0]) == 1

    way.sql(
        f"INSERT INTO fencing_marks (resource, number, token, seq, readers) VALUES ({tables.key('x')}, 0, '', 0, 5)"
    )
    assert side.call(guard.mark, "x") is None
    side.expect(UnclaimedFence, guard.write, Fence("x", 5, "d" * 22), way.statement(ADD)[0])
    stale = side.expect(StaleFence, guard.claim, Fence("x", 5, "d" * 22))
    assert (stale.mark, stale.floor) == (None, 5)
    side.call(guard.verify)
    way.sql(
        f"INSERT INTO fencing_marks (resource, number, token, seq, readers) VALUES ({tables.key('y')}, 2, '', 0, 7)"
    )
    assert side.call(guard.prune, below=7) == 1, "of y, the readers are newer; of orders:1, the number is"
    assert tables.rows()[0][:2] == ("fencing:floor", 5)
    assert side.call(guard.prune, below=8) == 1
    assert tables.rows()[0][:2] == ("fencing:floor", 7), "the floor is raised to the readers"
    side.call(guard.claim, Fence("x", 8, "d" * 22))


@pytest.fixture
def roles(request: pytest.FixtureRequest) -> Iterator[Roles]:
    with two_roles(request.getfixturevalue("postgres_url")) as roles:
        yield roles


@pytest.mark.thorough
@pytest.mark.parametrize("made_by", ["an earlier program", "a newer version"])
def test_functions_of_another_version(roles: Roles, made_by: str) -> None:
    with roles.as_owner() as owner:
        owner.execute("CREATE TABLE orders (id integer PRIMARY KEY, total integer NOT NULL)")
        guard = roles.owners_guard()
        guard.create_tables()

        def enforce() -> None:
            guard.enforce("orders", resource="'orders:' || id", role=roles.app)

        enforce()
        roles.apps_guard().claim(MINE)
        another = {"an earlier program": "", "a newer version": "-- fencing 2"}[made_by]
        source = owner.execute("SELECT pg_get_functiondef('fencing_claim'::regproc)").fetchone()
        assert source is not None
        assert "-- fencing 1" in source[0]
        owner.execute(source[0].replace("-- fencing 1", another))
        says = "are of an earlier program: call guard.enforce() again for each table, as the owner"
        if made_by == "a newer version":
            says = "are of version 2, and this library knows 1: upgrade this library"
        refused = roles.apps_guard()
        for call in (lambda: refused.claim(NEWER), lambda: refused.write(MINE, ADD), lambda: refused.mark("orders:1")):
            with pytest.raises(GuardNotEnforceable, match=re.escape(says)):
                call()
        assert owner.execute("SELECT number FROM fencing_marks WHERE resource = 'orders:1'").fetchone() == (6,)
        if made_by == "an earlier program":
            enforce()
            refused.claim(NEWER)
            return
        for call in (enforce, lambda: guard.unenforce("orders")):
            with pytest.raises(GuardNotEnforceable, match="the functions that enforce are of version 2, and this"):
                call()
        source = owner.execute("SELECT pg_get_functiondef('fencing_claim'::regproc)").fetchone()
        assert source is not None
        assert "-- fencing 2" in source[0]
        assert owner.execute("SELECT 1 FROM pg_trigger WHERE tgname = 'fencing_enforced'").fetchone() == (1,)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("ALTER COLUMN version SET DEFAULT 2", "is of version 2, and this library knows 1: upgrade"),
        ("DROP COLUMN version", "is of an earlier program: bring it up to date first"),
    ],
)
def test_nothing_is_enforced_over_a_table_of_another_version(roles: Roles, change: str, says: str) -> None:
    with roles.as_owner() as owner:
        owner.execute("CREATE TABLE orders (id integer PRIMARY KEY, total integer NOT NULL)")
        guard = roles.owners_guard()
        guard.create_tables()
        owner.execute(f"ALTER TABLE fencing_marks {change}")
        with pytest.raises(GuardNotEnforceable, match=says):
            guard.enforce("orders", resource="'orders:' || id", role=roles.app)
        assert owner.execute("SELECT 1 FROM pg_proc WHERE proname = 'fencing_check'").fetchone() is None


def test_a_function_admits_no_empty_token(roles: Roles) -> None:
    with roles.as_owner() as owner:
        owner.execute("CREATE TABLE orders (id integer PRIMARY KEY, total integer NOT NULL)")
        guard = roles.owners_guard()
        guard.create_tables()
        guard.enforce("orders", resource="'orders:' || id", role=roles.app)
    with roles.as_app() as app:
        for call in ("check('x', 0, '', 'i')", "claim('x', 5, '', 'i', 1)", "first_claim('x', 5, '', 'i', 1)"):
            with pytest.raises(RaiseException, match="an empty token, is no fence"):
                app.execute(f"SELECT * FROM fencing_{call}")


@pytest.mark.parametrize("tables", ways("aiosqlite", of=("sqlite", "aiosqlite", "psycopg", "pymysql")), indirect=True)
def test_a_joined_transaction_writes_nothing_of_a_newer_version(tables: Tables) -> None:
    """The caller may commit in spite of the refusal."""
    way = tables.way
    SQLAlchemyGuard(way.outside).create_tables()
    SQLAlchemyGuard(way.outside).claim(MINE)
    tables.set_version(2)
    before = way.sql("SELECT seq, recent_writes FROM fencing_marks")
    with way.outside.connect() as connection:
        with pytest.raises(GuardNotEnforceable, match="of version 2"):
            SQLAlchemyGuard(way.outside).advance(connection, MINE)
        connection.commit()
    assert way.sql("SELECT seq, recent_writes FROM fencing_marks") == before


@pytest.mark.thorough
def test_a_table_of_what_was_done_once_that_is_newer_is_not_joined(tables: Tables) -> None:
    way, side = tables.way, tables.side
    side.call(tables.new_guard().create_tables)
    tables.set_version(2, "fencing_done")
    way.sql("DROP TABLE fencing_marks")
    guard = tables.new_guard()
    error = side.expect(GuardNotEnforceable, guard.create_tables)
    assert "fencing_done is of version 2" in str(error)
    if not way.is_mariadb:  # there, CREATE TABLE commits
        assert "fencing_marks is missing" in str(side.expect(GuardNotEnforceable, tables.new_guard().claim, MINE))


@pytest.mark.thorough
@pytest.mark.parametrize("tables", ways("psycopg", of=TO_POSTGRES), indirect=True)
def test_a_view_tells_no_version(tables: Tables) -> None:
    side = tables.side
    side.call(tables.new_guard().create_tables)
    tables.way.sql("ALTER TABLE fencing_marks RENAME TO real_marks")
    tables.way.sql("CREATE VIEW fencing_marks AS SELECT * FROM real_marks")
    for operation, *args in (("claim", MINE), ("mark", "orders:1"), ("create_tables",)):
        assert "no plain table" in tables.is_refused(operation, *args)
