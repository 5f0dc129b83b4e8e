"""One mark table for one set of data: it is named with its schema, and a guard that can see two refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence, GuardNotEnforceable, StaleFence
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from storage_guards.sql.schema import Choice, Versions, VisibleTables, check_schema
from storage_guards.sql.table import ADDED
from tests.support.enforced import Roles, connect, dsn, two_roles
from tests.support.servers import MariaDBServer
from tests.support.sides import Side, close_engine
from tests.support.sql_ways import asyncio_url

HERE = Versions(marks="1", done="1")
OLD = Fence("orders:1", 5, "a" * 22)
NEW = Fence("orders:1", 6, "b" * 22)
ADD = "UPDATE public.orders SET total = total + 1"


class Opened:
    """Guards of one kind on URLs, closed at the end."""

    def __init__(self, side: Side, kind: str) -> None:
        self.side, self.kind = side, kind
        self.add: Any = ADD if kind == "psycopg" else text(ADD)
        self._engines: list[Any] = []

    def guard(self, url: str, *, schema: str | None = None, path: str | None = None, **execution_options: Any) -> Any:
        """Return a guard. ``path`` is the search path of its connections."""
        if path is not None:
            url = make_url(url).update_query_dict({"options": f"-csearch_path={path}"}).render_as_string(False)
        if self.kind == "psycopg":
            return (AsyncPsycopgGuard if self.side.asynchronous else PsycopgGuard)(dsn(url), schema=schema)
        options = {"execution_options": execution_options}
        if self.side.asynchronous:
            engine: Any = create_async_engine(asyncio_url(url), **options)
            guard: Any = AsyncSQLAlchemyGuard(engine, schema=schema)
        else:
            engine = create_engine(url, **options)
            guard = SQLAlchemyGuard(engine, schema=schema)
        self._engines.append(engine)
        return guard

    def call(self, method: Any, *args: Any, **options: Any) -> Any:
        return self.side.call(method, *args, **options)

    def refused(self, method: Any, *args: Any, **options: Any) -> str:
        return str(self.side.expect(GuardNotEnforceable, method, *args, **options))

    def close(self) -> None:
        for engine in self._engines:
            close_engine(self.side, engine)


_MORE = [pytest.param(name, marks=pytest.mark.thorough) for name in ("psycopg-asyncio", "sqlalchemy")]


@pytest.fixture(params=["psycopg", "sqlalchemy-asyncio", *_MORE])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    kind, _, asyncio = request.param.partition("-")
    opened = Opened(Side(bool(asyncio)), kind)
    yield opened
    opened.close()


@pytest.fixture
def roles(postgres_url: str) -> Iterator[Roles]:
    """The application's role may use the data of the other one, and may create in a schema of its own name."""
    with two_roles(postgres_url) as roles:
        with roles.as_admin() as admin:
            admin.execute(f'CREATE SCHEMA "{roles.app}" AUTHORIZATION "{roles.app}"')
        with roles.as_owner() as owner:
            owner.execute("CREATE TABLE public.orders (total INTEGER NOT NULL)")
            owner.execute("INSERT INTO public.orders VALUES (0)")
        yield roles


def tables(url: str) -> list[str]:
    with connect(url) as connection:
        query = "SELECT schemaname FROM pg_tables WHERE tablename = 'fencing_marks' ORDER BY 1"
        return [row[0] for row in connection.execute(query)]


def make_marks(url: str, schema: str) -> None:
    PsycopgGuard(dsn(url), schema=schema).create_tables()


# PostgreSQL: "$user", public


@pytest.mark.thorough
def test_a_schema_of_the_roles_own_name(opened: Opened, roles: Roles) -> None:
    """The roles' search paths lead to different schemas, but there is only one mark table."""
    opened.call(opened.guard(roles.owner_url).create_tables)
    late, newer = opened.guard(roles.owner_url), opened.guard(roles.app_url)
    opened.call(late.claim, OLD)
    opened.call(newer.create_tables)  # as at each start
    assert tables(roles.admin_url) == ["public"]
    opened.call(newer.claim, NEW)
    opened.side.expect(StaleFence, late.write, OLD, opened.add)
    assert opened.call(newer.write, NEW, opened.add) == 1


@pytest.mark.thorough
def test_two_that_were_made_by_others(opened: Opened, roles: Roles) -> None:
    make_marks(roles.owner_url, "public")
    with roles.as_admin() as admin:
        admin.execute(f'CREATE TABLE "{roles.app}".fencing_marks (LIKE public.fencing_marks INCLUDING ALL)')
    for url in (roles.owner_url, roles.app_url):
        guard = opened.guard(url)
        for use, args in ((guard.claim, [OLD]), (guard.verify, []), (guard.create_tables, []), (guard.mark, ["r"])):
            assert f"{roles.app}.fencing_marks, public.fencing_marks" in opened.refused(use, *args)
    # A name is no way round where the other one is on the search path.
    named = opened.guard(roles.app_url, schema="public")
    for use, args in ((named.claim, [OLD]), (named.verify, []), (named.create_tables, [])):
        assert f"{roles.app}.fencing_marks is visible to it too" in opened.refused(use, *args)
    # Elsewhere the name is enough, and the report tells of the other one.
    named = opened.guard(roles.owner_url, schema="public")
    opened.call(named.claim, OLD)
    report = opened.call(named.verify)
    assert report.table == "public.fencing_marks"
    assert f"there are other mark tables: {roles.app}.fencing_marks" in str(report)
    assert "public.fencing_marks" in str(report).splitlines()[0]


def test_a_table_that_the_search_path_does_not_lead_to(opened: Opened, roles: Roles) -> None:
    """It is neither used nor doubled: the caller must say which data these are."""
    make_marks(roles.admin_url, roles.app)
    guard = opened.guard(roles.owner_url)
    for use, args in ((guard.create_tables, []), (guard.claim, [OLD]), (guard.verify, [])):
        assert f'pass schema="{roles.app}"' in opened.refused(use, *args)
    assert tables(roles.admin_url) == [roles.app]


@pytest.mark.thorough
def test_a_search_path_that_changes(opened: Opened, roles: Roles) -> None:
    """The statements name the schema, so a guard keeps its table."""
    with roles.as_admin() as admin:
        admin.execute("CREATE SCHEMA elsewhere")
    make_marks(roles.admin_url, "public")
    guard = opened.guard(roles.admin_url)
    opened.call(guard.claim, NEW)
    with roles.as_admin() as admin:
        admin.execute("CREATE TABLE elsewhere.fencing_marks (LIKE public.fencing_marks INCLUDING ALL)")
        admin.execute("INSERT INTO elsewhere.fencing_marks VALUES ('orders:1', 5, %s, 0)", [OLD.token])
        name = admin.info.dbname
        admin.execute(f'ALTER DATABASE "{name}" SET search_path = elsewhere')
    if opened.kind == "sqlalchemy":
        opened.close()  # its next connection is a new one
    opened.side.expect(StaleFence, guard.write, OLD, opened.add)
    assert opened.call(guard.write, NEW, opened.add) == 1


def test_data_of_their_own(opened: Opened, postgres_url: str) -> None:
    """Named schemas are two sets of data, also on one connection that has prepared the statements of both."""
    with connect(postgres_url) as admin:
        admin.execute("CREATE SCHEMA one; CREATE SCHEMA two")
    one, two = (opened.guard(postgres_url, schema=schema) for schema in ("one", "two"))
    if opened.kind == "psycopg" and not opened.side.asynchronous:
        connection = psycopg.connect(dsn(postgres_url))
        one, two = (PsycopgGuard(connection, schema=schema) for schema in ("one", "two"))
    for guard in (one, two):
        opened.call(guard.create_tables)
    opened.call(one.claim, NEW)
    for _ in range(2):
        opened.call(two.claim, OLD)
        opened.side.expect(StaleFence, one.claim, OLD)
    assert opened.call(two.mark, "orders:1").number == 5
    assert opened.call(two.prune, below=9) == 1
    assert opened.call(one.mark, "orders:1").number == 6
    assert "there are other mark tables" in str(opened.call(one.verify))
    if opened.kind == "psycopg" and not opened.side.asynchronous:
        connection.close()


def test_it_is_missing_where_it_was_named(opened: Opened, postgres_url: str) -> None:
    with connect(postgres_url) as admin:
        admin.execute("CREATE SCHEMA one")
    guard = opened.guard(postgres_url, schema="one")
    for use, args in ((guard.claim, [OLD]), (guard.verify, []), (guard.prune, [])):
        options = {"below": 9} if use == guard.prune else {}
        assert "fencing_marks is missing in the schema one: call" in opened.refused(use, *args, **options)


def test_an_enforced_database(opened: Opened, roles: Roles) -> None:
    """The functions are in the schema of the table, and are found there by the application's guard."""
    with roles.as_owner() as owner:
        owner.execute("CREATE SCHEMA shop")
    guard = opened.guard(roles.owner_url, schema="shop")
    opened.call(guard.create_tables)
    opened.call(guard.enforce, "public.orders", resource="'orders:1'", role=roles.app)
    app = opened.guard(roles.app_url, schema="shop")
    opened.call(app.create_tables)
    opened.call(app.claim, OLD)
    assert opened.call(app.write, OLD, opened.add) == 1
    opened.call(app.claim, NEW)
    opened.side.expect(StaleFence, app.write, OLD, opened.add)
    opened.call(guard.unenforce, "public.orders")
    with roles.as_admin() as admin:
        admin.execute("CREATE TABLE public.fencing_marks (LIKE shop.fencing_marks INCLUDING ALL)")
    unnamed = opened.guard(roles.owner_url, path="shop")
    reason = opened.refused(unnamed.enforce, "public.orders", resource="'orders:1'", role=roles.app)
    assert "several mark tables" in reason


# create_tables


def test_a_role_that_may_not_create(opened: Opened, roles: Roles) -> None:
    """The table is there, and this is called at each start."""
    make_marks(roles.owner_url, "public")
    with roles.as_admin() as admin:
        admin.execute(f'DROP SCHEMA "{roles.app}"')
    guard = opened.guard(roles.app_url)
    opened.call(guard.create_tables)
    opened.call(guard.claim, OLD)


@pytest.mark.thorough
def test_an_engine_that_translates_schemas(side: Side, postgres_url: str) -> None:
    opened = Opened(side, "sqlalchemy")
    with connect(postgres_url) as admin:
        admin.execute("CREATE SCHEMA tenant; CREATE SCHEMA other")
    guard = opened.guard(postgres_url, schema_translate_map={None: "tenant"})
    for _ in range(2):
        opened.call(guard.create_tables)
    opened.call(guard.claim, NEW)
    assert tables(postgres_url) == ["tenant"]
    assert opened.call(guard.verify).table == "tenant.fencing_marks"
    named = opened.guard(postgres_url, schema="tenant", schema_translate_map={"tenant": "other"})
    opened.call(named.create_tables)
    opened.call(named.claim, OLD)
    assert tables(postgres_url) == ["other", "tenant"]
    opened.side.expect(StaleFence, guard.claim, OLD)
    opened.close()


def test_a_connection_that_translates_schemas_otherwise(postgres_url: str) -> None:
    """The block's data are another tenant's than the marks."""
    engine = create_engine(postgres_url)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    guard.claim(OLD)
    with (
        engine.connect().execution_options(schema_translate_map={None: "tenant"}) as connection,
        pytest.raises(ValueError, match="schema_translate_map leads to another mark table"),
    ):
        guard.advance(connection, OLD)
    engine.dispose()


# MariaDB: another database of the same server


@contextmanager
def second_database(server: MariaDBServer, first: str) -> Iterator[str]:
    """Another database that the account of the first one sees."""
    url = server.create_database()
    try:
        yield server.share_database(url, first)
    finally:
        server.drop_database(url)


@pytest.mark.thorough
def test_another_database_of_the_same_server(side: Side, mariadb_url: str, mariadb_server: MariaDBServer) -> None:
    opened = Opened(side, "sqlalchemy")
    mine = str(make_url(mariadb_url).database)
    with second_database(mariadb_server, mariadb_url) as url:
        theirs = str(make_url(url).database)
        opened.call(opened.guard(mariadb_url).create_tables)
        # The same account, through the other database: no second table without a word.
        assert f'pass schema="{mine}"' in opened.refused(opened.guard(url).create_tables)
        named = opened.guard(url, schema=mine)
        opened.call(named.claim, NEW)
        opened.side.expect(StaleFence, opened.guard(mariadb_url).claim, OLD)
        own = opened.guard(url, schema=theirs)
        opened.call(own.create_tables)
        opened.call(own.claim, OLD)
        guard = opened.guard(mariadb_url)
        for use, args in ((guard.claim, [OLD]), (guard.verify, []), (guard.create_tables, [])):
            assert "several mark tables" in opened.refused(use, *args)
        assert "visible to it too" in opened.refused(opened.guard(url, schema=mine).claim, NEW)
        guard = opened.guard(mariadb_url, schema=mine)
        opened.side.expect(StaleFence, guard.claim, OLD)
        report = opened.call(guard.verify)
        assert report.table == f"{mine}.fencing_marks"
        assert f"{theirs}.fencing_marks" in str(report)
        opened.close()


@pytest.mark.thorough
def test_a_block_that_uses_another_database(mariadb_url: str, mariadb_server: MariaDBServer) -> None:
    """USE stays in effect on the pool's connection. The guard's table stays the same."""
    engine = create_engine(mariadb_url, pool_size=1, max_overflow=0)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    guard.claim(NEW)
    with second_database(mariadb_server, mariadb_url) as url:
        with guard.begin(NEW) as connection:
            connection.exec_driver_sql(f"USE {make_url(url).database}")
        with pytest.raises(StaleFence):
            guard.claim(OLD)
        with guard.begin(NEW):
            pass
    engine.dispose()


# SQLite: attached files


def attached(folder: Path, schema: str | None = None) -> tuple[Engine, SQLAlchemyGuard]:
    engine = create_engine(f"sqlite:///{folder}/main.db")
    event.listen(engine, "connect", lambda c, _: c.execute(f"ATTACH '{folder}/second.db' AS second"))
    return engine, SQLAlchemyGuard(engine, schema=schema)


def test_an_attached_file(tmp_path: Path) -> None:
    engine, guard = attached(tmp_path)
    guard.create_tables()
    guard.claim(NEW)
    beside = SQLAlchemyGuard(create_engine(f"sqlite:///{tmp_path}/second.db"))
    beside.create_tables()
    for use in (guard.verify, guard.create_tables, lambda: attached(tmp_path)[1].claim(NEW)):
        with pytest.raises(GuardNotEnforceable, match="several mark tables"):
            use()
    named = attached(tmp_path, "main")[1]
    with pytest.raises(StaleFence):
        named.claim(OLD)
    assert "second.fencing_marks" in str(named.verify())
    with pytest.raises(GuardNotEnforceable, match=r"main\.fencing_marks is visible"):
        attached(tmp_path, "second")[1].claim(OLD)
    with pytest.raises(GuardNotEnforceable, match="no table fencing_marks in the schema third, or no such schema, and"):
        attached(tmp_path, "third")[1].verify()
    engine.dispose()


# The rule


@pytest.mark.parametrize("schema", ["", " ", 'a"b', "a`b", "a'b", "a%b", "a:b", "a{b", "a\\b", "a\nb"])
def test_names_that_are_no_schema(schema: str) -> None:
    with pytest.raises(ValueError, match="schema is"):
        check_schema(schema)
    if schema.strip():
        with pytest.raises(GuardNotEnforceable, match="unusual"):
            Choice("postgresql", None).of(VisibleTables({schema: HERE}, (schema,)))


@pytest.mark.parametrize("schema", [1, b"public", ["public"]])
def test_a_schema_that_is_no_text(schema: Any) -> None:
    with pytest.raises(TypeError, match="schema is a str"):
        PsycopgGuard("postgresql://localhost/x", schema=schema)


def test_where_it_is_created() -> None:
    assert Choice("postgresql", None).to_create(VisibleTables({}, ("mine", "public"))) == "mine"
    assert Choice("postgresql", "there").to_create(VisibleTables({}, ("mine",))) == "there"
    assert Choice("postgresql", "there").to_create(VisibleTables({"elsewhere": HERE}, ("mine",))) == "there"
    assert Choice("postgresql", None).to_create(VisibleTables({"public": HERE}, ("mine", "public"))) is None
    with pytest.raises(GuardNotEnforceable, match="pass schema="):
        Choice("postgresql", None).to_create(VisibleTables({}, ()))


@pytest.mark.parametrize("schema", ["temp", "TEMP", "pg_temp", "pg_temp_3", "pg_catalog", "information_schema"])
def test_a_schema_of_one_connection_or_of_the_database_is_refused(schema: str) -> None:
    """Each connection would have marks of its own, and an older fence would be admitted by the next one."""
    with pytest.raises(ValueError, match="name one of your own"):
        check_schema(schema)


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        (Versions("", None, lacks=ADDED), 'is of an earlier program: .* ALTER TABLE "public".fencing_marks ADD'),
        (
            Versions("", "1", lacks=["version"]),
            'earlier program: .* written. ALTER TABLE "public".fencing_marks ADD COLUMN v',
        ),
        (Versions("2", "1"), "fencing_marks is of version 2, and this library knows 1: upgrade this library"),
        (Versions("1", "2"), "fencing_done is of version 2, and this library knows 1: upgrade this library"),
        (Versions("1", "1", ""), "functions of public .* are of an earlier program: call guard.enforce"),
        (Versions("1", "1", "2"), "functions of public .* are of version 2, and this library knows 1: upgrade"),
    ],
)
def test_another_version_is_refused(versions: Versions, says: str) -> None:
    visible = VisibleTables({"public": versions}, ("public",))
    with pytest.raises(GuardNotEnforceable, match=says) as caught:
        Choice("postgresql", None).of(visible)
    assert "nothing was written" in str(caught.value)
    if versions.functions is None:
        with pytest.raises(GuardNotEnforceable, match=says):
            Choice("postgresql", None).to_create(visible)
    else:
        assert Choice("postgresql", None).to_create(visible) is None, "the owner may still call enforce"
