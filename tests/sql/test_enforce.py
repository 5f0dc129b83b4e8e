"""``enforce`` itself: whom it refuses, what it takes for a table and for a resource, and how guards find out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RaiseException
from psycopg.sql import SQL, Identifier
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from examples.servers import PostgresServer
from fencing import Fence, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown, StaleFence
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from tests.support.enforced import Roles, connect, dsn, two_roles
from tests.support.servers import Proxy
from tests.support.sides import Side
from tests.support.sql_ways import Wire

MINE = Fence("orders:1", 5, "a" * 22)
RESOURCE = "'orders:' || id"
ADD = "UPDATE orders SET total = total + 1 WHERE id = 1"


@pytest.fixture
def roles(postgres_url: str) -> Iterator[Roles]:
    with two_roles(postgres_url) as roles:
        roles.owners_guard().create_tables()
        with roles.as_owner() as owner:
            owner.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL DEFAULT 0)")
            owner.execute("INSERT INTO orders VALUES (1)")
        yield roles


def assert_refused(
    roles: Roles, why: str, table: str = "orders", resource: str = RESOURCE, by: str | None = None
) -> None:
    guard = PsycopgGuard(dsn(by or roles.owner_url))
    with pytest.raises(GuardNotEnforceable, match=why):
        guard.enforce(table, resource=resource, role=roles.app)
    with connect(roles.admin_url) as admin:
        triggers = admin.execute("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'fencing%'").fetchall()
    assert triggers == [], "nothing was changed"


RIGHTS = {
    "GRANT {owner} TO {app}": "owns the table (orders|fencing_marks), or is a member of its owner",
    "ALTER TABLE orders OWNER TO {app}": "owns the table orders",
    "ALTER TABLE fencing_marks OWNER TO {app}": "owns the table fencing_marks",
    "ALTER SCHEMA public OWNER TO {app}": "owns the schema public",
    "ALTER ROLE {app} SUPERUSER": "is a superuser, or can become one",
    "GRANT postgres TO {app}": "is a superuser, or can become one",
    "GRANT pg_write_server_files TO {app}": "pg_write_server_files",
    "GRANT TRIGGER ON orders TO {app}": "has the privilege TRIGGER on orders",
    "GRANT pg_write_all_data TO {app}": "may still change public.fencing_marks itself",
    "CREATE FUNCTION fencing_require(text, regclass) RETURNS void LANGUAGE sql AS ''; "
    "ALTER FUNCTION fencing_require OWNER TO {app}": "owns the function fencing_require",
}


@pytest.mark.parametrize("right", RIGHTS)
def test_a_role_that_could_get_round_it(roles: Roles, right: str) -> None:
    names = {"app": Identifier(roles.app), "owner": Identifier(roles.owner)}
    with roles.as_admin() as admin:
        for statement in right.split("; "):
            admin.execute(SQL(statement).format(**names))
        try:
            assert_refused(roles, RIGHTS[right], by=roles.admin_url)  # a superuser, to find what others could do
        finally:
            for statement in ("ALTER ROLE {app} NOSUPERUSER", "REVOKE {owner} FROM {app}"):
                admin.execute(SQL(statement).format(**names))
            for group in ("postgres", "pg_write_server_files", "pg_write_all_data"):
                admin.execute(SQL("REVOKE {} FROM {}").format(Identifier(group), names["app"]))
            admin.execute("ALTER SCHEMA public OWNER TO postgres")


def test_a_role_that_can_make_itself_a_member(roles: Roles) -> None:
    with roles.as_admin() as admin:
        if admin.info.server_version >= 160000:
            pytest.skip("since PostgreSQL 16 it needs the ADMIN option for that")
        admin.execute(SQL("ALTER ROLE {} CREATEROLE").format(Identifier(roles.app)))
        assert_refused(roles, "has CREATEROLE")


EXPRESSIONS = {
    "'orders:' || idd": 'column "idd" does not exist',
    "'orders:' || now()": "must be marked IMMUTABLE",
    "'orders:' || current_setting('application_name')": "must be marked IMMUTABLE",
    "'orders:' || (SELECT 1)": "cannot use subquery",
    "row_number() OVER ()": "window functions are not allowed",
    "'orders:' || id) , (id": "syntax error",
    "name_of(id)": "function name_of.integer. does not exist",
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_is_no_resource(roles: Roles, expression: str) -> None:
    with roles.as_owner() as owner:
        owner.execute("CREATE FUNCTION name_of(integer) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1::text'")
    assert_refused(roles, EXPRESSIONS[expression], resource=expression)


def test_a_virtual_generated_column(roles: Roles) -> None:
    """A trigger finds NULL in it, so all rows would have one resource."""
    with roles.as_owner() as owner:
        if owner.info.server_version < 180000:
            pytest.skip("since PostgreSQL 18")
        owner.execute("ALTER TABLE orders ADD name TEXT GENERATED ALWAYS AS ('orders:' || id) VIRTUAL")
    assert_refused(roles, "virtual generated columns are not supported", resource="COALESCE(name, 'orders:0')")
    roles.owners_guard().enforce("orders", resource=RESOURCE, role=roles.app)


def test_an_expression_with_a_function(roles: Roles) -> None:
    """The owner's, with its schema; not one that the application could replace."""
    with roles.as_owner() as owner:
        owner.execute("CREATE FUNCTION name_of(integer) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1::text'")
    with roles.as_admin() as admin:
        admin.execute(SQL("ALTER FUNCTION name_of OWNER TO {}").format(Identifier(roles.app)))
        assert_refused(roles, r"owns the function name_of\(integer\)", resource="public.name_of(id)")
        admin.execute(SQL("ALTER FUNCTION name_of OWNER TO {}").format(Identifier(roles.owner)))
    roles.owners_guard().enforce("orders", resource="public.name_of(id)", role=roles.app)
    with roles.as_app() as app, pytest.raises(InsufficientPrivilege, match="the resource '1'"):
        app.execute(ADD)


@pytest.mark.thorough
def test_what_is_no_table(roles: Roles) -> None:
    with roles.as_owner() as owner:
        owner.execute("CREATE VIEW some_orders AS SELECT * FROM orders")
        owner.execute("CREATE TABLE late_orders () INHERITS (orders)")
    assert_refused(roles, "there is no table nothing", "nothing")
    assert_refused(roles, "some_orders is neither an ordinary table", "some_orders")
    assert_refused(roles, "the check itself writes fencing_marks", "fencing_marks")
    assert_refused(roles, "late_orders inherits from orders, and its rows would not be checked: enforce it first")
    guard = roles.owners_guard()
    for table in ("late_orders", "orders"):
        guard.enforce(table, resource=RESOURCE, role=roles.app)
    with pytest.raises(GuardNotEnforceable, match='there is no role "No One"'):
        guard.enforce("orders", resource=RESOURCE, role="No One")
    with roles.as_admin() as admin:
        admin.execute("DROP TABLE fencing_marks")
    with pytest.raises(GuardNotEnforceable, match="the table fencing_marks is missing"):
        guard.enforce("orders", resource=RESOURCE, role=roles.app)


def test_not_by_the_application(roles: Roles) -> None:
    with pytest.raises(GuardNotEnforceable, match=r"must be owner of|permission denied"):
        roles.apps_guard().enforce("orders", resource=RESOURCE, role=roles.app)


@pytest.mark.parametrize("wrong", [{"table": 1}, {"table": ""}, {"resource": None}, {"role": "a\0b"}])
def test_misuse(wrong: dict[str, Any]) -> None:
    arguments = {"table": "orders", "resource": "id", "role": "app", **wrong}
    with pytest.raises((TypeError, ValueError)):
        PsycopgGuard("postgresql://").enforcement_sql(arguments.pop("table"), **arguments)


def test_sqlite_cannot(tmp_path: Path) -> None:
    guard = SQLAlchemyGuard(create_engine(f"sqlite:///{tmp_path}/data.db", poolclass=NullPool))
    with pytest.raises(GuardNotEnforceable, match="sqlite cannot enforce"):
        guard.enforce("orders", resource="id", role="app")


@pytest.mark.thorough
def test_awkward_names(roles: Roles) -> None:
    """A schema, capitals, quotes, dollars and percent signs; a table that is called as a variable is."""
    with roles.as_owner() as owner:
        owner.execute('CREATE SCHEMA "My ""Shop"')
        owner.execute(SQL('GRANT USAGE ON SCHEMA "My ""Shop" TO {}').format(Identifier(roles.app)))
        owner.execute('CREATE TABLE "My ""Shop"."New$fencing$%s" ("Id" INTEGER, fencing_old INTEGER, resource TEXT)')
    table = '"My ""Shop"."New$fencing$%s"'
    expression = '\'%I \\ $body$ :x \' || "New$fencing$%s"."Id" || fencing_old -- why'
    for guard in (roles.owners_guard(), SQLAlchemyGuard(create_engine(roles.owner_url, poolclass=NullPool))):
        guard.enforce(table, resource=expression, role=roles.app)
        with roles.as_app() as app, pytest.raises(InsufficientPrivilege) as caught:
            app.execute(f"INSERT INTO {table} VALUES (1, 2, 'x')".encode())
        assert caught.value.diag.message_primary is not None
        assert r"resource E'%I \\ $body$ :x 12'" in caught.value.diag.message_primary
        guard.unenforce(table)
        with roles.as_app() as app:
            app.execute(f"INSERT INTO {table} VALUES (1, 2, 'x')".encode())


def test_the_migration(roles: Roles) -> None:
    """What is printed does the same, makes the same demands, and may be run again."""
    statement = roles.owners_guard().enforcement_sql("orders", resource=RESOURCE, role=roles.app)
    with roles.as_owner() as owner, roles.as_app() as app:
        for _ in range(2):
            owner.execute(statement.encode())
        with pytest.raises(InsufficientPrivilege):
            app.execute(ADD)
        functions = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'fencing_enforced%'"
        assert owner.execute(functions).fetchone() == (1,)
        owner.execute(SQL("GRANT TRIGGER ON orders TO {}").format(Identifier(roles.app)))
        with pytest.raises(RaiseException, match="has the privilege TRIGGER"):
            owner.execute(statement.encode())


def test_operators(roles: Roles) -> None:
    """While the owner's transaction has the trigger off, nobody else gets through; then it is on again, as it was."""
    roles.owners_guard().enforce("orders", resource=RESOURCE, role=roles.app)
    with roles.as_owner() as owner, roles.as_app() as app:
        with owner.transaction():
            owner.execute("ALTER TABLE orders DISABLE TRIGGER fencing_enforced")
            app.execute("SET lock_timeout = 100")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                app.execute(ADD)
            owner.execute(ADD)
            owner.execute("ALTER TABLE orders ENABLE ALWAYS TRIGGER fencing_enforced")
        for connection in (owner, app):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(ADD)


KINDS = ["sqlalchemy", "asyncpg", "psycopg"]


@pytest.fixture(params=KINDS)
def guards(request: pytest.FixtureRequest, side: Side, roles: Roles) -> Iterator[tuple[Any, Any, Any]]:
    """The owner's guard, the application's, and the statement as it takes it."""
    if request.param == "asyncpg" and not side.asynchronous:
        pytest.skip("asyncpg is for asyncio")
    made = []
    for url in (roles.owner_url, roles.app_url):
        guard: Any
        if request.param == "psycopg":
            guard = (AsyncPsycopgGuard if side.asynchronous else PsycopgGuard)(dsn(url))
        elif side.asynchronous:
            url = url.replace("+psycopg", "+asyncpg") if request.param == "asyncpg" else url
            guard = AsyncSQLAlchemyGuard(create_async_engine(url))
        else:
            guard = SQLAlchemyGuard(create_engine(url))
        made.append(guard)
    yield made[0], made[1], ADD if request.param == "psycopg" else text(ADD)
    for guard in made:
        if hasattr(guard, "_engine"):
            side.call(guard._engine.dispose)


@pytest.mark.thorough
def test_guards_find_out_by_themselves(side: Side, roles: Roles, guards: tuple[Any, Any, Any]) -> None:
    """The same guards, before, while and after the database enforces; also if the functions are taken away again."""
    owners, apps, add = guards
    call = side.call
    call(apps.claim, MINE)
    call(apps.write, MINE, add)
    call(owners.enforce, "orders", resource=RESOURCE, role=roles.app)
    call(apps.create_tables)  # at each start, as ever
    assert call(apps.write, MINE, add) == 1
    call(apps.claim, Fence("orders:1", 6, "b" * 22))
    side.expect(StaleFence, apps.write, MINE, add)
    assert call(owners.mark, "orders:1").number == 6
    call(owners.write, Fence("orders:1", 6, "b" * 22), add)  # the owner, too, has to pass the check
    lost = OutcomeUnknown(fence=MINE, seq=3, recent_writes="never written")
    assert call(apps.landed, lost) is None
    call(owners.unenforce, "orders")
    with roles.as_app() as app, roles.as_owner() as owner:
        app.execute(ADD)
        call(apps.write, Fence("orders:1", 6, "b" * 22), add)
        owner.execute(SQL("GRANT INSERT, UPDATE ON fencing_marks TO {}").format(Identifier(roles.app)))
        owner.execute("DROP FUNCTION fencing_check, fencing_claim")
        call(apps.write, Fence("orders:1", 6, "b" * 22), add)
    assert call(apps.mark, "orders:1").seq == 3


def test_advance_in_a_transaction_of_ones_own(roles: Roles) -> None:
    """Here a guard must know before it asks, as a refusal would undo the caller's transaction."""
    roles.owners_guard().enforce("orders", resource=RESOURCE, role=roles.app)
    guard = roles.apps_guard()
    roles.apps_guard().claim(MINE)
    with roles.as_app() as app:
        with app.transaction():
            guard.advance(app, MINE)
            app.execute(ADD)
        with app.transaction(), pytest.raises(ValueError, match="outside nested transactions"), app.transaction():
            guard.advance(app, MINE)
    engine = create_engine(roles.app_url)
    with engine.begin() as connection:
        SQLAlchemyGuard(engine).advance(connection, MINE)
        connection.execute(text(ADD))
    engine.dispose()


def test_advance_when_it_changed_meanwhile(roles: Roles) -> None:
    guard = roles.apps_guard()
    with roles.as_app() as app:
        guard.claim(MINE)
        with app.transaction():
            guard.advance(app, MINE)
        roles.owners_guard().enforce("orders", resource=RESOURCE, role=roles.app)
        with pytest.raises(GuardNotEnforceable, match="permission denied"), app.transaction():
            guard.advance(app, MINE)
        with app.transaction():
            guard.advance(app, MINE)
            app.execute(ADD)


def test_a_role_with_neither_way(roles: Roles) -> None:
    """It is told what it lacks: on a database that does not enforce, the table; on one that does, the functions."""
    with roles.as_owner() as owner:
        owner.execute(SQL("REVOKE ALL ON fencing_marks FROM {}").format(Identifier(roles.app)))
        with pytest.raises(GuardNotEnforceable, match="permission denied for table fencing_marks"):
            roles.apps_guard().claim(MINE)
        roles.owners_guard().enforce("orders", resource=RESOURCE, role=roles.app)
        owner.execute(SQL("REVOKE ALL ON FUNCTION fencing_claim FROM {}").format(Identifier(roles.app)))
    for guard in (roles.apps_guard(), SQLAlchemyGuard(create_engine(roles.app_url, poolclass=NullPool))):
        with pytest.raises(GuardNotEnforceable, match="permission denied for function fencing_claim"):
            guard.claim(MINE)


@pytest.mark.thorough
def test_a_table_in_use(roles: Roles) -> None:
    with roles.as_app() as app, app.transaction():
        app.execute(ADD)
        with pytest.raises(GuardUnavailable):
            PsycopgGuard(dsn(roles.owner_url), timeout=0.5).enforce("orders", resource=RESOURCE, role=roles.app)


def test_as_many_round_trips_as_before(
    side: Side, roles: Roles, postgres_server: PostgresServer, proxy: Callable[[PostgresServer], Proxy]
) -> None:
    """Once a guard has found out; its first request costs three more."""
    roles.owners_guard().enforce("orders", resource=RESOURCE, role=roles.app)
    network = proxy(postgres_server)
    url = network.url(dsn(roles.app_url))
    connection: Any = side.call((psycopg.AsyncConnection if side.asynchronous else psycopg.Connection).connect, url)
    guard: Any = (AsyncPsycopgGuard if side.asynchronous else PsycopgGuard)(connection)
    wire = Wire(network)
    assert wire.count(side, guard.claim, MINE) == 5
    assert wire.count(side, guard.claim, MINE) == 1
    assert wire.count(side, guard.write, MINE, ADD) == 3
    assert wire.count(side, guard.claim, Fence("orders:2", 5, "b" * 22)) == 2  # there is no mark yet
    assert wire.count(side, guard.landed, OutcomeUnknown(fence=MINE, seq=1, recent_writes="x y")) == 1
    side.call(connection.close)
