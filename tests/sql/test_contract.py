"""Every guard behaviour on SQL databases: each kind of guard, driver, isolation level and source of connections.

The classes are made from one table, ``ROWS``. A class has one database for all its tests, which name resources of
their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import AsyncConnection, IsolationLevel
from psycopg.errors import InsufficientPrivilege, SerializationFailure
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.fence import Fence
from fencing.testing.contract import Contract
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from storage_guards.testing import GuardContract
from tests.support.enforced import Roles, dsn, two_roles
from tests.support.sides import Side, close_engine

CREATE = "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL)"
CREATE_MARIADB = "CREATE TABLE IF NOT EXISTS counters (name VARBINARY(512) PRIMARY KEY, value INT NOT NULL)"
READ = text("SELECT value FROM counters WHERE name = :name")
WRITE = text("INSERT INTO counters VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value")
WRITE_MARIADB = text("INSERT INTO counters VALUES (:name, :value) ON DUPLICATE KEY UPDATE value = VALUES(value)")
READ_PSYCOPG = "SELECT value FROM counters WHERE name = %s"
WRITE_PSYCOPG = "INSERT INTO counters VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"


class Row(NamedTuple):
    """A class of tests."""

    name: str
    source: str
    """SQLAlchemy's driver, or what a psycopg guard takes its connections from."""
    level: str = ""
    thorough: bool = False
    is_async: bool = False
    enforced: bool = False
    begin: str = ""
    """The statement with which an event begins SQLite's transactions; the driver does where it is empty."""
    settings: dict[str, Any] = {}  # noqa: RUF012 - of a psycopg connection; nobody changes it
    second: str = ""
    """The second guard on the same storage, if it is of another kind."""

    @property
    def is_psycopg(self) -> bool:
        return self.source in ("pool", "connection", "string")

    @property
    def database(self) -> str:
        return {"sqlite": "sqlite", "aiosqlite": "sqlite", "pymysql": "mariadb", "aiomysql": "mariadb"}.get(
            self.source, "postgres"
        )


REPEATABLE, SERIALIZABLE = "REPEATABLE READ", "SERIALIZABLE"
THOROUGH = True

ROWS = [
    # SQLAlchemyGuard
    Row("PostgreSQL", "psycopg", "READ COMMITTED"),
    Row("PostgreSQLRepeatableRead", "psycopg", REPEATABLE, THOROUGH),
    Row("PostgreSQLSerializable", "psycopg", SERIALIZABLE, THOROUGH),
    Row("AsyncPostgreSQL", "psycopg", "READ COMMITTED", THOROUGH, is_async=True),
    Row("Asyncpg", "asyncpg", "READ COMMITTED", is_async=True),
    Row("AsyncpgRepeatableRead", "asyncpg", REPEATABLE, THOROUGH, is_async=True),
    Row("AsyncpgSerializable", "asyncpg", SERIALIZABLE, THOROUGH, is_async=True),
    Row("MariaDB", "pymysql", "READ COMMITTED"),
    Row("MariaDBRepeatableRead", "pymysql", REPEATABLE, THOROUGH),  # its default
    Row("MariaDBSerializable", "pymysql", SERIALIZABLE, THOROUGH),
    Row("AsyncMariaDB", "aiomysql", "READ COMMITTED", THOROUGH, is_async=True),
    Row("AsyncMariaDBRepeatableRead", "aiomysql", REPEATABLE, THOROUGH, is_async=True),
    Row("AsyncMariaDBSerializable", "aiomysql", SERIALIZABLE, THOROUGH, is_async=True),
    Row("SQLite", "sqlite"),
    Row("SQLiteBegin", "sqlite", "", THOROUGH, begin="BEGIN"),
    Row("SQLiteBeginImmediate", "sqlite", "", THOROUGH, begin="BEGIN IMMEDIATE"),
    Row("AsyncSQLite", "aiosqlite", "", THOROUGH, is_async=True),
    Row("AsyncSQLiteBegin", "aiosqlite", "", THOROUGH, is_async=True, begin="BEGIN"),
    Row("AsyncSQLiteBeginImmediate", "aiosqlite", "", THOROUGH, is_async=True, begin="BEGIN IMMEDIATE"),
    Row("SQLAlchemyGuardBesidePsycopgGuard", "psycopg", "READ COMMITTED", THOROUGH, second="psycopg"),
    # PsycopgGuard
    Row("Pool", "pool"),
    Row("PoolInAutocommit", "pool", "", THOROUGH, settings={"autocommit": True}),
    Row("PoolWithoutPreparedStatements", "pool", "", THOROUGH, settings={"prepare_threshold": None}),
    Row("PoolRepeatableRead", "pool", REPEATABLE, THOROUGH),
    Row("PoolSerializable", "pool", SERIALIZABLE, THOROUGH),
    Row(
        "PoolSerializableByTheServersSetting",
        "pool",
        "",
        THOROUGH,
        settings={"options": "-c default_transaction_isolation=serializable"},
    ),
    Row("OneConnection", "connection", "", THOROUGH),  # its threads take turns
    Row("ConnectionString", "string", "", THOROUGH),
    Row("AsyncPool", "pool", is_async=True),
    Row("AsyncOneConnection", "connection", "", THOROUGH, is_async=True),
    Row("AsyncConnectionString", "string", "", THOROUGH, is_async=True),
    Row("PsycopgGuardBesideSQLAlchemyGuard", "pool", "", THOROUGH, second="sqlalchemy"),
    # The database enforces: the role has no other way than the functions
    Row("EnforcedPostgreSQL", "psycopg", "READ COMMITTED", enforced=True),
    Row("EnforcedPostgreSQLSerializable", "psycopg", SERIALIZABLE, THOROUGH, enforced=True),
    Row("EnforcedAsyncPostgreSQL", "psycopg", "READ COMMITTED", THOROUGH, is_async=True, enforced=True),
    Row("EnforcedAsyncpg", "asyncpg", "READ COMMITTED", THOROUGH, is_async=True, enforced=True),
    Row("EnforcedAsyncpgRepeatableRead", "asyncpg", REPEATABLE, THOROUGH, is_async=True, enforced=True),
    Row("EnforcedPool", "pool", "", THOROUGH, enforced=True),
    Row("EnforcedPoolSerializable", "pool", SERIALIZABLE, THOROUGH, enforced=True),
    Row("EnforcedOneConnection", "connection", "", THOROUGH, enforced=True),
    Row("EnforcedConnectionString", "string", "", THOROUGH, enforced=True),
    Row("EnforcedAsyncPool", "pool", "", THOROUGH, is_async=True, enforced=True),
    Row("EnforcedBesideSQLAlchemyGuard", "pool", "", THOROUGH, enforced=True, second="sqlalchemy"),
    Row("EnforcedBesideTheOwner", "pool", "", THOROUGH, enforced=True, second="the owner's"),
]

RETRIED = {"40001", "40P01", 1020, 1205, 1213}
"""What the transaction's isolation level makes a database refuse, because of others at the same time."""


@contextmanager
def _what_may_be_retried() -> Iterator[None]:
    """The application, too, must be ready for these refusals, which undo the whole transaction."""
    try:
        yield
    except SerializationFailure as error:
        raise GuardUnavailable("the transaction was undone; retry") from error
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or (error.orig.args[0] if error.orig else None)
        if state not in RETRIED:
            raise
        raise GuardUnavailable("the transaction was undone; retry") from error


class SQLContract(GuardContract):
    """What all rows share: ``past`` is a sync engine on the same database, for what goes past the guard."""

    row: Row
    url: str
    past: Engine
    roles: Roles | None
    source: Any

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _database(cls, request: pytest.FixtureRequest) -> Iterator[None]:
        with ExitStack() as stack:
            _prepare(cls, request, stack)
            yield

    @pytest.fixture(autouse=True)
    def _connections(self) -> Iterator[None]:
        self.made: list[Any] = []
        yield
        for connection in self.made:
            self.call(connection.close)

    def read(self, resource: str) -> int:
        with self.past.connect() as connection:
            return connection.execute(READ, {"name": resource}).scalar() or 0

    def write_unguarded(self, resource: str, value: int) -> None:
        if self.roles is not None:
            self.roles.past_the_trigger("counters", WRITE_PSYCOPG, [resource, value])
            return
        with self.past.begin() as connection:
            connection.execute(self._write_statement, {"name": resource, "value": value})

    @property
    def _write_statement(self) -> Any:
        return WRITE_MARIADB if self.row.database == "mariadb" else WRITE

    def _second(self) -> GuardContract:
        if not self.row.second:
            return super()._second()  # type: ignore[return-value]
        assert self.guard is not None
        kind = _SQLAlchemy if self.row.second == "sqlalchemy" else _Psycopg
        second: Any = kind()
        second.row, second.roles, second.past, second.made = self.row, self.roles, self.past, self.made
        url = self.url if self.row.second != "the owner's" or self.roles is None else self.roles.owner_url
        second.source = self.past if kind is _SQLAlchemy and self.roles is None else create_engine(url)
        if kind is _SQLAlchemy:
            second.made.append(_Closing(second.source))
        else:
            second.source = partial(psycopg.connect, dsn(url))
        return second  # type: ignore[no-any-return]


class _Closing:
    """An engine that is closed as connections are."""

    def __init__(self, engine: Engine) -> None:
        self.close = engine.dispose


class _SQLAlchemy(SQLContract):
    def make(self) -> Any:
        return SQLAlchemyGuard(self.source)

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        with _what_may_be_retried():
            rows = self.guard.write(fence, self._write_statement, {"name": resource, "value": value}, **options)
        assert rows == 1 or self.row.database == "mariadb"  # there an updated row may count as two, or none

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> Any:
        with _what_may_be_retried(), self.guard.begin(fence, **options) as connection:
            value = connection.execute(READ, {"name": resource}).scalar() or 0
            between()
            connection.execute(self._write_statement, {"name": resource, "value": value + 1})


class _AsyncSQLAlchemy(SQLContract):
    def make(self) -> Any:
        return AsyncSQLAlchemyGuard(self.source)

    async def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        with _what_may_be_retried():
            rows = await self.guard.write(fence, self._write_statement, {"name": resource, "value": value}, **options)
        assert rows == 1 or self.row.database == "mariadb"

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with _what_may_be_retried():
            async with self.guard.begin(fence, **options) as connection:
                value = (await connection.execute(READ, {"name": resource})).scalar() or 0
                await asyncio.to_thread(between)
                await connection.execute(self._write_statement, {"name": resource, "value": value + 1})


class _Psycopg(SQLContract):
    def make(self) -> Any:
        if self.row.source != "connection" or self.row.second:
            return PsycopgGuard(self.source)
        self.made.append(psycopg.connect(self.source, **self.row.settings))
        return PsycopgGuard(self.made[-1])

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        with _what_may_be_retried():
            assert self.guard.write(fence, WRITE_PSYCOPG, [resource, value], **options) == 1

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> Any:
        with _what_may_be_retried(), self.guard.begin(fence, **options) as connection:
            row = connection.execute(READ_PSYCOPG, [resource]).fetchone()
            between()
            connection.execute(WRITE_PSYCOPG, [resource, (row[0] if row else 0) + 1])


class _AsyncPsycopg(SQLContract):
    async def make(self) -> Any:
        if self.row.source != "connection":
            return AsyncPsycopgGuard(self.source)
        self.made.append(await AsyncConnection.connect(self.source, **self.row.settings))
        return AsyncPsycopgGuard(self.made[-1])

    async def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        with _what_may_be_retried():
            assert await self.guard.write(fence, WRITE_PSYCOPG, [resource, value], **options) == 1

    async def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with _what_may_be_retried():
            async with self.guard.begin(fence, **options) as connection:
                row = await (await connection.execute(READ_PSYCOPG, [resource])).fetchone()
                await asyncio.to_thread(between)
                await connection.execute(WRITE_PSYCOPG, [resource, (row[0] if row else 0) + 1])


class _Enforced:
    """What the rows of an enforcing database have besides."""

    roles: Roles

    def test_the_database_enforces(self) -> None:
        """Or else all the others prove nothing."""
        with self.roles.as_app() as connection:
            with pytest.raises(InsufficientPrivilege, match="has not passed the check for the resource 'r'"):
                connection.execute(WRITE_PSYCOPG, ["r", 1])
            with pytest.raises(InsufficientPrivilege, match="permission denied for table fencing_marks"):
                connection.execute("UPDATE fencing_marks SET seq = seq")


# What a class has


def _prepare(cls: Any, request: pytest.FixtureRequest, stack: ExitStack) -> None:
    """Make the database, its tables, and the engine or the pool."""
    row: Row = cls.row
    if row.database == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path_factory').mktemp('contract')}/data.db"
    else:
        url = stack.enter_context(request.getfixturevalue(f"{row.database}_databases").one())
    cls.past = create_engine(url)
    stack.callback(cls.past.dispose)
    cls.roles = None
    if row.enforced:
        cls.roles = stack.enter_context(two_roles(url))
        url = cls.roles.app_url
    _make_tables(cls)
    cls.url = url
    cls.source = staticmethod(_psycopg_source(row, url, stack)) if row.is_psycopg else _engine(row, url, stack)


def _make_tables(cls: Any) -> None:
    if cls.roles is None:
        SQLAlchemyGuard(cls.past).create_tables()
        with cls.past.begin() as connection:
            connection.execute(text(CREATE_MARIADB if cls.row.database == "mariadb" else CREATE))
        return
    guard = cls.roles.owners_guard()
    guard.create_tables()
    with cls.roles.as_owner() as connection:
        connection.execute(CREATE)
    guard.enforce("counters", resource="name", role=cls.roles.app)


def _engine(row: Row, url: str, stack: ExitStack) -> Any:
    scheme = {"postgres": "postgresql", "mariadb": "mysql", "sqlite": "sqlite"}[row.database]
    driver = "" if row.source == "sqlite" else f"+{row.source}"
    url = f"{scheme}{driver}:{url.split(':', 1)[1]}"
    settings = {"isolation_level": row.level} if row.level else {}
    engine: Any = (create_async_engine if row.is_async else create_engine)(url, **settings)
    stack.callback(close_engine, Side(row.is_async), engine)
    if row.database == "sqlite":
        _begin_with(getattr(engine, "sync_engine", engine), row.begin)
    return engine


def _begin_with(engine: Engine, form: str) -> None:
    """The recipe of SQLAlchemy's documentation: the driver begins nothing, an event does."""
    if form:
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(form))


def _psycopg_source(row: Row, url: str, stack: ExitStack) -> Any:
    if row.source != "pool":
        return dsn(url)
    level = IsolationLevel[row.level.replace(" ", "_")] if row.level else None

    def configure(connection: Any) -> None:
        connection.isolation_level = level

    async def configure_async(connection: Any) -> None:
        await connection.set_isolation_level(level)

    options: dict[str, Any] = {"kwargs": row.settings, "min_size": 2, "max_size": 8, "open": False}
    pool: Any
    if row.is_async:
        pool = AsyncConnectionPool(dsn(url), configure=configure_async, **options)
    else:
        pool = ConnectionPool(dsn(url), configure=configure, **options)
    Contract().call(pool.open)
    stack.callback(Contract().call, pool.close)
    return pool


for _row in ROWS:
    _sync, _async = (_Psycopg, _AsyncPsycopg) if _row.is_psycopg else (_SQLAlchemy, _AsyncSQLAlchemy)
    _bases: tuple[Any, ...] = (*([_Enforced] if _row.enforced else []), _async if _row.is_async else _sync)
    _made = type(f"Test{_row.name}", _bases, {"row": _row, "__module__": __name__})
    globals()[_made.__name__] = pytest.mark.thorough(_made) if _row.thorough else _made
