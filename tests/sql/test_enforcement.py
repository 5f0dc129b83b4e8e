"""A database that enforces, and every attempt to write past the check with the application's role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation, InsufficientPrivilege, LockNotAvailable, RaiseException
from psycopg.sql import SQL, Identifier

from examples.servers import PostgresServer, find_postgres_binaries, start_postgres
from fencing import Fence
from tests.support.enforced import Roles, two_roles

MINE = Fence("orders:1", 5, "a" * 22)
OTHER = Fence("orders:2", 5, "b" * 22)
CHECK = "SELECT * FROM fencing_check(%s, %s, %s, 'w')"
ADD = "UPDATE orders SET total = total + 1 WHERE id = 1"


def check(fence: Fence) -> tuple[str, tuple[str, int, str]]:
    """Return what a guard sends, as a user of psql would write it."""
    return CHECK, (fence.resource, fence.number, fence.token)


@pytest.fixture
def roles(postgres_url: str) -> Iterator[Roles]:
    """Two orders, and both their resources claimed."""
    with two_roles(postgres_url) as roles:
        roles.owners_guard().create_tables()
        with roles.as_owner() as owner:
            owner.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL DEFAULT 0)")
            owner.execute("INSERT INTO orders VALUES (1), (2)")
        enforce(roles)
        roles.apps_guard().claim(MINE, OTHER)
        yield roles


def enforce(roles: Roles, table: str = "orders", resource: str = "'orders:' || id") -> None:
    roles.owners_guard().enforce(table, resource=resource, role=roles.app)


@pytest.fixture
def app(roles: Roles) -> Iterator[psycopg.Connection[Any]]:
    with roles.as_app() as connection:
        yield connection


def assert_refused(
    connection: psycopg.Connection[Any], *statements: Any, resource: str = "orders:1", table: str = "orders"
) -> None:
    """In one transaction: all but the last are fine, and the last is refused, with the whole story."""
    with connection.transaction(force_rollback=True):
        for statement in statements[:-1]:
            run(connection, statement)
        with pytest.raises(InsufficientPrivilege) as caught:
            run(connection, statements[-1])
    said = caught.value.diag
    assert said.message_primary == (
        f"fencing: public.{table} is enforced, and this transaction has not passed the check for the resource "
        f"'{resource}'"
    )
    assert "guard.begin(lease)" in str(said.message_hint)


def run(connection: psycopg.Connection[Any], statement: Any) -> psycopg.Cursor[Any]:
    text, values = statement if isinstance(statement, tuple) else (statement, None)
    return connection.execute(text, values)


def assert_accepted(connection: psycopg.Connection[Any], *statements: Any) -> None:
    with connection.transaction():
        for statement in statements:
            run(connection, statement)


WRITES = {
    "INSERT": "INSERT INTO orders VALUES (3)",
    "UPDATE": ADD,
    "DELETE": "DELETE FROM orders WHERE id = 1",
    "MERGE": "MERGE INTO orders USING (VALUES (1)) AS source (id) ON orders.id = source.id "
    "WHEN MATCHED THEN UPDATE SET total = 7",
    "ON CONFLICT": "INSERT INTO orders VALUES (1) ON CONFLICT (id) DO UPDATE SET total = 7",
    "in a CTE": f"WITH written AS ({ADD} RETURNING total) SELECT * FROM written",
    "in a DO block": f"DO $$ BEGIN {ADD}; END $$",
}


def test_raw_sql(roles: Roles, app: psycopg.Connection[Any]) -> None:
    """An old worker, psql, an ORM that forgot: none of the ways to write gets through unchecked."""
    for write, statement in WRITES.items():
        assert_refused(app, statement, resource="orders:3" if write == "INSERT" else "orders:1")
    for write, statement in WRITES.items():
        if write == "INSERT":
            continue
        with app.transaction(force_rollback=True):
            for each in (check(MINE), statement):
                run(app, each)


def test_copy(app: psycopg.Connection[Any]) -> None:
    def copy() -> None:
        with app.cursor() as cursor, cursor.copy("COPY orders FROM STDIN") as rows:
            rows.write_row((3, 0))

    with pytest.raises(InsufficientPrivilege, match="the resource 'orders:3'"):
        copy()


def test_truncate(roles: Roles, app: psycopg.Connection[Any]) -> None:
    with pytest.raises(InsufficientPrivilege, match="TRUNCATE is of no single resource"):
        assert_accepted(app, check(MINE), "TRUNCATE orders")


def test_what_the_database_refuses_a_guard_does(roles: Roles) -> None:
    """A guard whose holder forgot one of two resources gets the database's error, and nothing is written."""
    guard = roles.apps_guard()
    with pytest.raises(InsufficientPrivilege, match="'orders:2'"):
        guard.write(MINE, "UPDATE orders SET total = 1")
    with guard.begin(MINE, OTHER) as connection:
        assert connection.execute("UPDATE orders SET total = 1").rowcount == 2


def test_several_resources_in_one_statement(app: psycopg.Connection[Any]) -> None:
    assert_refused(app, check(MINE), "UPDATE orders SET total = 1", resource="orders:2")
    assert_refused(app, check(OTHER), "UPDATE orders SET total = 1")
    assert_accepted(app, check(MINE), check(OTHER), "UPDATE orders SET total = 1")


def test_an_update_that_changes_the_resource_needs_both(app: psycopg.Connection[Any]) -> None:
    three = Fence("orders:3", 5, "c" * 22)
    move = "UPDATE orders SET id = 3 WHERE id = 1"
    first_claim = ("SELECT * FROM fencing_first_claim(%s, %s, %s, 'w', 1)", check(three)[1])
    assert_refused(app, check(MINE), move, resource="orders:3")
    assert_refused(app, first_claim, move, resource="orders:1")
    assert_accepted(app, check(MINE), first_claim, move)


def test_a_check_elsewhere_is_none(roles: Roles, app: psycopg.Connection[Any]) -> None:
    """In the transaction before, in another session's, of another resource, or with a fence that is not the mark's."""
    assert_accepted(app, check(MINE))
    assert_refused(app, ADD)
    with roles.as_app() as another, another.transaction():
        run(another, check(OTHER))
        assert_refused(app, "UPDATE orders SET total = 1 WHERE id = 2", resource="orders:2")
    with app.transaction():  # this transaction is older than that check, which it sees
        app.execute("SELECT pg_current_xact_id()")
        with roles.as_app() as another:
            assert_accepted(another, check(MINE))
        assert_refused(app, ADD)
    assert_refused(app, check(OTHER), ADD)
    assert_refused(app, check(Fence("orders:1", 4, "a" * 22)), ADD)
    assert_refused(app, check(Fence("orders:1", 5, "x" * 22)), ADD)


def test_a_check_that_was_rolled_back_to_a_savepoint(app: psycopg.Connection[Any]) -> None:
    assert_refused(app, "SAVEPOINT before", check(MINE), ADD, "ROLLBACK TO SAVEPOINT before", ADD)
    assert_accepted(app, "SAVEPOINT before", check(MINE), "RELEASE SAVEPOINT before", ADD)
    assert_accepted(app, check(MINE), "SAVEPOINT after", "ROLLBACK TO SAVEPOINT after", ADD)


def test_a_check_in_the_statement_that_writes(app: psycopg.Connection[Any]) -> None:
    """What that statement read is older than the wait for the mark: the update in between would be lost."""
    call = "fencing_check('orders:1', 5, 'aaaaaaaaaaaaaaaaaaaaaa', 'w')"
    assert_refused(
        app, f"WITH checked AS (SELECT * FROM {call}) UPDATE orders SET total = total + 1 FROM checked WHERE id = 1"
    )
    assert_refused(app, f"UPDATE orders SET total = total + 1 WHERE id = 1 AND EXISTS (SELECT * FROM {call})")


FORBIDDEN = [
    "UPDATE fencing_marks SET xact = pg_current_xact_id() WHERE resource = 'orders:1'",
    "INSERT INTO fencing_marks (resource, number, token, seq, xact) VALUES ('x', 1, 'x', 0, pg_current_xact_id())",
    "DELETE FROM fencing_marks",
    "TRUNCATE fencing_marks",
    "SELECT * FROM fencing_marks FOR UPDATE",
    "ALTER TABLE orders DISABLE TRIGGER fencing_enforced",
    "ALTER TABLE orders DISABLE TRIGGER USER",
    "DROP TRIGGER fencing_enforced ON orders",
    "CREATE TRIGGER zzz BEFORE INSERT ON orders EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE RULE zzz AS ON UPDATE TO orders DO INSTEAD NOTHING",
    "DROP FUNCTION fencing_require(text, regclass) CASCADE",
    "CREATE OR REPLACE FUNCTION fencing_require(text, regclass) RETURNS void LANGUAGE sql AS ''",
    "ALTER FUNCTION fencing_require(text, regclass) SECURITY INVOKER",
    "SET LOCAL session_replication_role = replica",
    "SET ROLE postgres",
]


def test_what_the_role_may_not(app: psycopg.Connection[Any]) -> None:
    for statement in FORBIDDEN:
        with pytest.raises(InsufficientPrivilege):
            app.execute(statement.encode())


def test_a_setting_by_hand(app: psycopg.Connection[Any]) -> None:
    assert_refused(
        app,
        "SET LOCAL fencing.checked = 'orders:1'",
        "SELECT set_config('fencing.xact', pg_current_xact_id()::text, true)",
        ADD,
    )


def test_the_session_as_a_replica(roles: Roles, app: psycopg.Connection[Any]) -> None:
    """With the privilege to say so it silences ordinary triggers. Not these."""
    with roles.as_admin() as admin:
        if admin.info.server_version < 150000:
            pytest.skip("only superusers may, before PostgreSQL 15")
        admin.execute(SQL("GRANT SET ON PARAMETER session_replication_role TO {}").format(Identifier(roles.app)))
        try:
            assert_refused(app, "SET LOCAL session_replication_role = replica", ADD)
        finally:
            admin.execute(SQL("REVOKE SET ON PARAMETER session_replication_role FROM {}").format(Identifier(roles.app)))


def test_names_earlier_in_the_path(roles: Roles, app: psycopg.Connection[Any]) -> None:
    """Its own table, functions and operators, found first wherever a name is not qualified."""
    with roles.as_admin() as admin:
        admin.execute(SQL("CREATE SCHEMA mine AUTHORIZATION {}").format(Identifier(roles.app)))
    for statement in (
        "GRANT USAGE ON SCHEMA mine TO PUBLIC",
        "CREATE TEMPORARY TABLE fencing_marks AS SELECT * FROM public.fencing_marks",
        "CREATE TABLE mine.fencing_marks AS SELECT * FROM public.fencing_marks",
        "CREATE FUNCTION mine.fencing_require(text, regclass) RETURNS void LANGUAGE sql AS ''",
        "CREATE FUNCTION mine.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS 'SELECT ''1''::xid8'",
        "CREATE FUNCTION mine.age(xid) RETURNS integer LANGUAGE sql AS 'SELECT 0'",
        "CREATE FUNCTION mine.other(text, integer) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT ''orders:2'''",
        "CREATE OPERATOR mine.|| (LEFTARG = text, RIGHTARG = integer, FUNCTION = mine.other)",
        "SET search_path = mine, pg_temp, public, pg_catalog",
    ):
        app.execute(statement)
    forged = "UPDATE fencing_marks SET xact = pg_catalog.pg_current_xact_id()"
    assert app.execute("SELECT 'orders:' || 1").fetchone() == ("orders:2",), "the operator is found first, indeed"
    assert_refused(app, forged, "UPDATE pg_temp.fencing_marks SET xact = pg_catalog.pg_current_xact_id()", ADD)
    assert_refused(app, check(OTHER), ADD)
    assert_accepted(app, check(MINE), ADD)


def test_a_mark_from_another_server(roles: Roles, app: psycopg.Connection[Any]) -> None:
    """A dump brings marks with the transaction ids of the server that it comes from, where they were counted on."""
    with roles.as_owner() as owner:
        for _ in range(50):  # until no other test takes that id
            [(now,)] = owner.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
            owner.execute("UPDATE fencing_marks SET xact = (%s::bigint + 2)::text::xid8", [now])
            try:
                with app.transaction():
                    [(mine,)] = app.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
                    app.execute(ADD)
            except InsufficientPrivilege:
                is_refused = True
            else:
                is_refused = False
            assert is_refused, "the check of another server was taken for this transaction's"
            if mine == now + 2:
                break
    assert mine == now + 2, "no transaction got the id of the restored mark"


def test_the_functions_obey_the_rule(roles: Roles, app: psycopg.Connection[Any]) -> None:
    """Called by hand, out of order: no way to lower a mark, to pass the floor, or to become the floor."""
    with roles.as_owner() as owner:
        owner.execute("UPDATE fencing_marks SET number = 100 WHERE resource = 'fencing:floor'")
    older = ("orders:1", 4, "x" * 22)
    below = ("orders:9", 100, "x" * 22)
    with app.transaction():
        for name, values in (("claim", older), ("first_claim", older), ("claim", below), ("first_claim", below)):
            assert not app.execute(f"SELECT * FROM fencing_{name}(%s, %s, %s, 'w', 1)", values).fetchall()
        assert app.execute("SELECT * FROM fencing_lock_absence(%s, %s, %s)", below).fetchone()
    assert roles.apps_guard().mark("orders:9") is None
    assert app.execute("SELECT * FROM fencing_first_claim(%s, %s, %s, 'w', 1)", ("orders:9", 101, "x")).fetchone()
    with app.transaction(), roles.as_owner() as owner:
        app.execute("SELECT * FROM fencing_first_claim('orders:8', 101, 'x', 'w', 1)")
        with pytest.raises(LockNotAvailable):  # nobody raises the floor before this claim is committed
            owner.execute("SELECT * FROM fencing_marks WHERE resource = 'fencing:floor' FOR UPDATE NOWAIT")
    for name in ("claim", "first_claim"):
        with pytest.raises(RaiseException, match="is no fence"):
            app.execute(f"SELECT * FROM fencing_{name}('fencing:floor', 999, 'x', 'w', 1)")
    with pytest.raises(CheckViolation):
        app.execute("SELECT * FROM fencing_claim('orders:1', 9007199254740992, 'x', 'w', 1)")


def test_nobody_else_may_call_them(roles: Roles) -> None:
    stranger = Identifier(f"{roles.app}_2")
    with roles.as_admin() as admin:
        admin.execute(SQL("CREATE ROLE {}").format(stranger))
        admin.execute(SQL("GRANT UPDATE ON fencing_marks TO {}").format(stranger))
        try:
            enforce(roles)  # what others may is taken from them, too
            for statement in ("UPDATE fencing_marks SET seq = seq", "SELECT * FROM fencing_lock_floor()"):
                with pytest.raises(InsufficientPrivilege, match="permission denied"):
                    assert_accepted(admin, SQL("SET LOCAL ROLE {}").format(stranger), statement)
        finally:
            admin.execute(SQL("DROP OWNED BY {}").format(stranger))
            admin.execute(SQL("DROP ROLE {}").format(stranger))


def test_a_foreign_key_cascades(roles: Roles, app: psycopg.Connection[Any]) -> None:
    """From a parent that is not enforced: what the database changes by itself is checked."""
    with roles.as_owner() as owner:
        owner.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY)")
        owner.execute("INSERT INTO customers VALUES (7)")
        owner.execute(
            "ALTER TABLE orders ADD customer INTEGER REFERENCES customers ON DELETE CASCADE ON UPDATE CASCADE"
        )
    roles.past_the_trigger("orders", "UPDATE orders SET customer = 7 WHERE id = 1")
    for statement in ("DELETE FROM customers", "UPDATE customers SET id = 8"):
        assert_refused(app, statement)
        assert_accepted(app, check(MINE), statement)
        if statement.startswith("DELETE"):
            app.execute("INSERT INTO customers VALUES (7)")
            assert_accepted(app, check(MINE), "INSERT INTO orders (id, customer) VALUES (1, 7)")


def test_a_writable_view(roles: Roles, app: psycopg.Connection[Any]) -> None:
    """Also one of the owner's, which writes with its owner's rights."""
    with roles.as_owner() as owner:
        owner.execute("CREATE VIEW some_orders AS SELECT id AS number, total FROM orders")
    assert_refused(app, "UPDATE some_orders SET total = 1 WHERE number = 1")
    assert_accepted(app, check(MINE), "UPDATE some_orders SET total = 1 WHERE number = 1")


def test_a_trigger_that_changes_the_row(roles: Roles, app: psycopg.Connection[Any]) -> None:
    """What counts is the row that is stored, with its generated columns."""
    with roles.as_owner() as owner:
        owner.execute(
            "CREATE FUNCTION to_two() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := 2; RETURN NEW; END'"
        )
        owner.execute("CREATE TRIGGER zzz_last BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION to_two()")
        owner.execute("DROP TRIGGER fencing_enforced ON orders")
        owner.execute("DELETE FROM orders WHERE id = 2")
        owner.execute("ALTER TABLE orders ADD name TEXT GENERATED ALWAYS AS ('orders:' || id) STORED")
    enforce(roles, resource="name")
    assert_refused(app, check(MINE), ADD, resource="orders:2")
    assert_accepted(app, check(MINE), check(OTHER), ADD)


def test_a_row_without_a_resource(roles: Roles, app: psycopg.Connection[Any]) -> None:
    enforce(roles, resource="CASE WHEN id < 3 THEN 'orders:' || id END")
    assert_accepted(app, check(MINE), ADD)
    with pytest.raises(InsufficientPrivilege, match="the resource of a row that was written is NULL"):
        app.execute("INSERT INTO orders VALUES (3)")


@pytest.mark.thorough
def test_partitions(roles: Roles, app: psycopg.Connection[Any]) -> None:
    """Through the parent or directly, from one to the other, and a new one. Their columns differ in order."""
    with roles.as_owner() as owner:
        for statement in (
            "CREATE TABLE parts (id INTEGER, total INTEGER, region TEXT) PARTITION BY LIST (region)",
            "CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a')",
            "CREATE TABLE parts_b (region TEXT, dropped TEXT, total INTEGER, id INTEGER)",
            "ALTER TABLE parts_b DROP dropped",
            "ALTER TABLE parts ATTACH PARTITION parts_b FOR VALUES IN ('b')",
            "INSERT INTO parts VALUES (1, 0, 'a'), (2, 0, 'b')",
        ):
            owner.execute(statement)
        enforce(roles, "parts")
        owner.execute("CREATE TABLE parts_c PARTITION OF parts FOR VALUES IN ('c')")
    for table in ("parts_a", "parts"):
        assert_refused(app, f"UPDATE {table} SET total = 1 WHERE id = 1", table="parts_a")
    for table in ("parts_b", "parts"):
        assert_refused(app, check(MINE), f"DELETE FROM {table} WHERE id = 2", resource="orders:2", table="parts_b")
    move = "UPDATE parts SET region = 'b' WHERE id = 1"
    assert_refused(app, move, table="parts_a")
    assert_accepted(app, check(MINE), move)
    assert_refused(
        app, check(MINE), "UPDATE parts SET region = 'c', id = 2 WHERE id = 1", resource="orders:2", table="parts_c"
    )
    assert_refused(app, "INSERT INTO parts_c VALUES (1, 0, 'c')", table="parts_c")
    assert_accepted(app, check(MINE), "INSERT INTO parts_c VALUES (1, 0, 'c')")
    for table in ("parts", "parts_a"):
        with pytest.raises(InsufficientPrivilege, match="TRUNCATE is of no single resource"):
            app.execute(f"TRUNCATE {table}")
    enforce(roles, "parts")  # again, for the new one
    with pytest.raises(InsufficientPrivilege, match="TRUNCATE is of no single resource"):
        app.execute("TRUNCATE parts_c")
    roles.owners_guard().unenforce("parts")
    app.execute("UPDATE parts SET total = 2")
    app.execute("TRUNCATE parts")


@pytest.mark.thorough
def test_a_prepared_transaction(postgres_url: str) -> None:
    """It keeps the mark locked until it is committed, in any session. What comes after it is another transaction."""
    if not find_postgres_binaries():
        pytest.skip("needs a server of its own, with max_prepared_transactions")
    with start_postgres(settings={"max_prepared_transactions": "2"}, own=True, local=True) as server:
        assert_checked_when_prepared(server)


def assert_checked_when_prepared(server: PostgresServer) -> None:
    with two_roles(server.create_database()) as roles:
        roles.owners_guard().create_tables()
        with roles.as_owner() as owner:
            owner.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL DEFAULT 0)")
        enforce(roles)
        guard = roles.apps_guard(timeout=1)
        guard.claim(MINE)
        with roles.as_app() as app:
            app.execute("BEGIN")
            run(app, check(MINE))
            app.execute("INSERT INTO orders VALUES (1)")
            app.execute("PREPARE TRANSACTION 'first'")
            with pytest.raises(Exception, match="stayed locked"):
                guard.claim(Fence("orders:1", 6, "b" * 22))
            app.execute("COMMIT PREPARED 'first'")
            assert_refused(app, ADD)
            guard.claim(Fence("orders:1", 6, "b" * 22))
