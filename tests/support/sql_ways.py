"""Every way to a guarded SQL database (guard, database, driver, sync or async), with one face for stories."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from examples.servers import PostgresServer
from fencing import Fence, GuardUnavailable, OutcomeUnknown
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from storage_guards.sql.outcome import FLOOR
from tests.support.guarded_block import AsyncBlock, Row, SyncBlock
from tests.support.servers import MariaDBServer, Proxy
from tests.support.sides import Side, close_engine

MINE = Fence("orders:1", 5, "a" * 22)
NEWER = Fence("orders:1", 6, "b" * 22)
OTHER = Fence("orders:2", 5, "c" * 22)
READ = "SELECT total FROM orders WHERE id = 1"
ADD = "UPDATE orders SET total = total + 1 WHERE id = 1"
DONE = "INSERT INTO done VALUES (:id)"


class _Row(NamedTuple):
    guard: str
    database: str
    driver: str
    asynchronous: bool


_WAYS = {
    "psycopg": _Row("sqlalchemy", "postgres", "postgresql+psycopg", False),
    "psycopg-async": _Row("sqlalchemy", "postgres", "postgresql+psycopg", True),
    "asyncpg": _Row("sqlalchemy", "postgres", "postgresql+asyncpg", True),
    "pymysql": _Row("sqlalchemy", "mariadb", "mysql+pymysql", False),
    "aiomysql": _Row("sqlalchemy", "mariadb", "mysql+aiomysql", True),
    "sqlite": _Row("sqlalchemy", "sqlite", "sqlite", False),
    "aiosqlite": _Row("sqlalchemy", "sqlite", "sqlite+aiosqlite", True),
    "PsycopgGuard": _Row("psycopg", "postgres", "postgresql", False),
    "AsyncPsycopgGuard": _Row("psycopg", "postgres", "postgresql", True),
}
ALL = tuple(_WAYS)
TO_SERVERS = tuple(name for name, row in _WAYS.items() if row.guard == "sqlalchemy" and row.database != "sqlite")
"""The drivers of SQLAlchemy that have a network between them and the database."""
TO_POSTGRES = tuple(name for name, row in _WAYS.items() if row.database == "postgres")
TO_MARIADB = tuple(name for name, row in _WAYS.items() if row.database == "mariadb")
OVER_A_NETWORK = tuple(name for name, row in _WAYS.items() if row.database != "sqlite")
SYNC = tuple(name for name, row in _WAYS.items() if not row.asynchronous)
ASYNC = tuple(name for name, row in _WAYS.items() if row.asynchronous)
THROUGH_SQLALCHEMY = tuple(name for name, row in _WAYS.items() if row.guard == "sqlalchemy")
EACH_DATABASE = ("psycopg", "aiomysql", "sqlite", "AsyncPsycopgGuard")
"""Each database and each kind of guard once, half of them async: enough where the driver matters little."""


def ways(*often: str, of: Sequence[str] = ALL) -> list[Any]:
    """Parameters for a fixture: the ways named first are always tried, the others in the thorough run."""
    return [name if name in often else pytest.param(name, marks=pytest.mark.thorough) for name in of]


SIDES_AND_DATABASES = [
    ("sync", "postgres"),
    ("async", "sqlite"),
    pytest.param("async", "postgres", marks=pytest.mark.thorough),
    pytest.param("sync", "sqlite", marks=pytest.mark.thorough),
]
"""Parameters for the fixtures ``side`` and ``account``."""

EACH_WAY = tuple(ways("psycopg", "psycopg-async", "pymysql", of=TO_SERVERS))

_ASYNCIO_DRIVERS = {"sqlite": "sqlite+aiosqlite", "mysql+pymysql": "mysql+aiomysql"}


def asyncio_url(url: str) -> str:
    """The same database through an asyncio driver; psycopg is one already."""
    scheme, rest = url.split(":", 1)
    return f"{_ASYNCIO_DRIVERS.get(scheme, scheme)}:{rest}"


def is_commit(request: bytes) -> bool:
    """Whether a request on the wire is a COMMIT, of any driver; AUTOCOMMIT and READ-COMMITTED are none."""
    return re.search(rb"\bCOMMIT\b", request) is not None


class FlakyCommit(sqlite3.Connection):
    """A driver whose COMMIT is not answered: ``fault`` says whether it happens all the same."""

    fault = ""
    broken = False

    def commit(self) -> None:
        fault, FlakyCommit.fault = FlakyCommit.fault, ""
        if fault != "request":
            super().commit()
        if fault == "interrupt":
            raise KeyboardInterrupt
        if fault == "breaks afterwards":
            self.broken = True
        elif fault:
            raise sqlite3.OperationalError("disk I/O error")

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        if self.broken:
            raise sqlite3.OperationalError("disk I/O error")
        return super().cursor(*args, **kwargs)


class Way:
    """One way: a guard, perhaps behind a proxy that loses messages, and the same database seen without faults.

    ``guard`` is the guard under test, ``beside`` another one on the same database. ``sql`` goes past both.
    ``url`` has a sync driver; ``direct`` has the guard's driver, and ``through`` leads through the proxy.
    """

    def __init__(self, name: str, url: str, server: Any = None, proxy: Proxy | None = None) -> None:
        self.kind, self.database, driver, asynchronous = _WAYS[name]
        self.name = name
        self.is_psycopg = self.kind == "psycopg"
        self.is_mariadb = self.database == "mariadb"
        self.side = Side(asynchronous)
        self._server, self._proxy = server, proxy
        self.url = url
        self.direct = f"{driver}:{url.split(':', 1)[1]}"
        self.through = self.direct if proxy is None else proxy.url(self.direct)
        if proxy is not None and driver == "mysql+pymysql":
            self.through += "?ssl_disabled=true"  # MySQL offers TLS, and a proxy must see a COMMIT
        self._close, self._close_after_the_test = ExitStack(), ExitStack()
        self.is_spoiled = False

    @property
    def has_network(self) -> bool:
        return self._proxy is not None

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None, "this way has no proxy"
        return self._proxy

    @property
    def server(self) -> PostgresServer | MariaDBServer:
        assert self._server is not None, "SQLite has no server"
        server: PostgresServer | MariaDBServer = self._server
        return server

    @property
    def is_mysql(self) -> bool:
        return isinstance(self._server, MariaDBServer) and not self._server.is_mariadb

    def needs_mysql(self, what: str) -> None:
        """Skip the test on MariaDB, which does not have this."""
        if not self.is_mysql:
            pytest.skip(f"MariaDB has no {what}")

    def needs_mariadb(self, what: str) -> None:
        """Skip the test on MySQL, which does not have this."""
        if self.is_mysql:
            pytest.skip(f"MySQL has no {what}")

    # Guards

    @cached_property
    def outside(self) -> Engine:
        engine = self._fast_if_sqlite(create_engine(self.url))
        self._close.callback(engine.dispose)
        return engine

    @cached_property
    def beside(self) -> SQLAlchemyGuard:
        """Another guard of the same database, always sync, through SQLAlchemy and without faults."""
        return SQLAlchemyGuard(self.outside)

    @cached_property
    def guard(self) -> Any:
        return self._new_guard(self._close, 10.0)

    @property
    def guard_class(self) -> Any:
        if self.is_psycopg:
            return AsyncPsycopgGuard if self.side.asynchronous else PsycopgGuard
        return AsyncSQLAlchemyGuard if self.side.asynchronous else SQLAlchemyGuard

    def new_guard(self, timeout: float = 10.0, *, size: int | None = None, **settings: Any) -> Any:
        """A guard on an engine, or a pool, of its own, until the end of the test.

        Args:
            timeout: the guard's.
            size: how many connections it may have.
            settings: the engine's, or those of psycopg's connections.
        """
        return self._new_guard(self._close_after_the_test, timeout, size, **settings)

    def _new_guard(self, stack: ExitStack, timeout: float, size: int | None = None, **settings: Any) -> Any:
        if self.is_psycopg:
            source = self._new_pool(stack, size or 2, **settings)
        else:
            bounds = {} if size is None else {"pool_size": size, "max_overflow": 0, "pool_timeout": 5}
            source = self._new_engine(stack, None, **{**bounds, **settings})
        return self.guard_class(source, timeout=timeout)

    def guard_at(self, url: str) -> Any:
        """A guard of another database, or without a pool."""
        return self.guard_class(url if self.is_psycopg else self.new_engine(url))

    def new_engine(self, url: str | None = None, **settings: Any) -> Any:
        """An engine with the guard's driver, until the end of the test."""
        return self._new_engine(self._close_after_the_test, url, **settings)

    def serves(self, guard: Any, fence: Fence = MINE) -> bool:
        """Claim. What was under way as a server came back may still have no answer, or have the mark."""
        try:
            self.side.call(guard.claim, fence)
        except GuardUnavailable:
            return False
        return True

    def new_checking_pool(self) -> Any:
        """A pool of psycopg's with one connection, which it tries out before it lends it, until the end of the test."""
        return self._new_pool(self._close_after_the_test, 1, checks=True)

    def _new_pool(self, stack: ExitStack, size: int, *, checks: bool = False, **settings: Any) -> Any:
        pool: Any = AsyncConnectionPool if self.side.asynchronous else ConnectionPool
        check = pool.check_connection if checks else None
        made = pool(
            self.through, kwargs=settings, min_size=1, max_size=size, open=False, reconnect_timeout=30, check=check
        )
        self.side.call(made.open)
        stack.callback(self.side.call, made.close)
        return made

    def _new_engine(self, stack: ExitStack, url: str | None, **settings: Any) -> Any:
        if self.database == "sqlite":
            settings.setdefault("connect_args", {}).setdefault("factory", FlakyCommit)
        create: Any = create_async_engine if self.side.asynchronous else create_engine
        engine = create(url or self.through, **settings)
        self._fast_if_sqlite(getattr(engine, "sync_engine", engine))
        stack.callback(close_engine, self.side, engine)
        return engine

    def _fast_if_sqlite(self, engine: Engine) -> Engine:
        if self.database == "sqlite":
            event.listen(engine, "connect", _do_not_sync)
        return engine

    # What stories do

    def statement(self, sql: str, **values: Any) -> tuple[Any, Any]:
        """The statement with ``:name`` parameters, and its values, as the guard takes them."""
        if not self.is_psycopg:
            return text(sql), values
        return (re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql), values) if values else (sql, None)

    def begin(self, *fences: Any, guard: Any = None, **options: Any) -> SyncBlock | AsyncBlock:
        context = (guard or self.guard).begin(*fences, **options)
        return (AsyncBlock if self.side.asynchronous else SyncBlock)(self, context)

    def claim(self, *fences: Any, **options: Any) -> None:
        self.side.call(self.guard.claim, *fences, **options)

    def write(self, fence: Any, sql: str, *, guard: Any = None, claim: bool = False, **values: Any) -> int:
        """Write through the guard under test."""
        return int(self.side.call((guard or self.guard).write, fence, *self.statement(sql, **values), claim=claim))

    def write_beside(self, fence: Any, sql: str, *, claim: bool = False, **values: Any) -> int:
        return self.beside.write(fence, text(sql), values, claim=claim)

    def landed(self, error: OutcomeUnknown, **options: Any) -> Any:
        return self.side.call(self.guard.landed, error, **options)

    def lose(self, what: str) -> None:
        """Lose the next commit's reply, or its request."""
        if self.database == "sqlite":
            FlakyCommit.fault = what
        elif what == "reply":
            self.proxy.drop_reply_when(is_commit)
        else:
            self.proxy.drop_request_when(is_commit)

    def lost_write(self, what: str, id_: int, *, fence: Fence = MINE, **options: Any) -> OutcomeUnknown:
        self.lose(what)
        return self.side.expect(OutcomeUnknown, self.guard.write, fence, *self.statement(DONE, id=id_), **options)

    # Past the guard

    def sql(self, statement: str, **values: Any) -> list[Row]:
        """One statement, committed; its rows."""
        with self.outside.begin() as connection:
            result = connection.execute(text(statement), values)
            return [tuple(row) for row in result.all()] if result.returns_rows else []

    @property
    def done(self) -> set[int]:
        return {row[0] for row in self.sql("SELECT id FROM done")}

    @property
    def total(self) -> int:
        [[total]] = self.sql(READ)
        return int(total)

    def kill(self, block: Any) -> None:
        """End the block's session at the server."""
        if self.is_mariadb:
            self.sql(f"KILL {block.scalar('SELECT CONNECTION_ID()')}")
        else:
            self.sql("SELECT pg_terminate_backend(:pid, 5000)", pid=block.scalar("SELECT pg_backend_pid()"))

    # Its life

    def set_up(self) -> None:
        """Make the tables: the marks, ``orders`` with a total of 0 under id 1, and ``done``, to leave traces in."""
        self.beside.create_tables()
        self.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
        self.sql("CREATE TABLE done (id INTEGER PRIMARY KEY)")
        self.sql("INSERT INTO orders VALUES (1, 0)")

    def spoil(self) -> None:
        """Say that this test changes what ``clear`` does not bring back: no other test gets this database."""
        self.is_spoiled = True

    def clear(self) -> None:
        """Bring the tables back to what ``set_up`` made."""
        FlakyCommit.fault = ""
        if self._proxy is not None:
            self._proxy.restore()
        self._close_after_the_test.close()
        with self.outside.begin() as connection:
            if self.database == "postgres":
                connection.execute(text("SET LOCAL lock_timeout = '10s'"))
            connection.execute(text("DELETE FROM fencing_marks WHERE resource <> :floor"), {"floor": FLOOR})
            connection.execute(text("UPDATE fencing_marks SET number = 0 WHERE number <> 0"))
            for statement in ("DELETE FROM done", "DELETE FROM orders", "INSERT INTO orders VALUES (1, 0)"):
                connection.execute(text(statement))
        self._forget_acknowledged()

    def drop_marks(self) -> None:
        """Drop the mark table. The same fences may be used again with a new one."""
        self.sql("DROP TABLE fencing_marks")
        self._forget_acknowledged()

    def _forget_acknowledged(self) -> None:
        for guard in (self.guard, self.beside):  # for them, the storage has lost what it acknowledged
            guard._continuity._fences.clear()

    def close(self) -> None:
        FlakyCommit.fault = ""
        if self._proxy is not None:
            self._proxy.restore()
        self._close_after_the_test.close()
        self._close.close()


def _do_not_sync(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = OFF")
    cursor.close()


def new_way(request: pytest.FixtureRequest, name: str, make_proxy: Callable[[Any], Proxy] | None = None) -> Way:
    """A way to an empty database of the test's own, through a proxy if one can be made."""
    database = _WAYS[name].database
    if database == "sqlite":
        return Way(name, f"sqlite:///{request.getfixturevalue('tmp_path')}/data.db")
    server = request.getfixturevalue(f"{database}_server")
    url: str = request.getfixturevalue(f"{database}_url")
    return Way(name, url, server, make_proxy(server) if make_proxy else None)


class SharedWays:
    """Ways to one database server, used by one test after the other: connecting and making tables costs more than most
    stories do."""

    def __init__(self, server: Any, database: Callable[[], AbstractContextManager[str]]) -> None:
        self._server, self._database = server, database
        self._free: dict[str, tuple[Way, ExitStack]] = {}

    @contextmanager
    def lend(self, name: str) -> Iterator[Way]:
        """A way with its tables as new, through a proxy where there is a network."""
        way, stack = self._free.pop(name) if name in self._free else self._make(name)
        try:
            yield way
            if not way.is_spoiled:
                way.clear()
        except BaseException:
            way.spoil()
            raise
        finally:
            if way.is_spoiled:
                stack.close()
            else:
                self._free[name] = way, stack

    def _make(self, name: str) -> tuple[Way, ExitStack]:
        with ExitStack() as stack:
            url = stack.enter_context(self._database())
            proxy = stack.enter_context(Proxy(self._server.host, self._server.port)) if self._server else None
            way = Way(name, url, self._server, proxy)
            stack.callback(way.close)
            way.set_up()
            return way, stack.pop_all()

    def close(self) -> None:
        for _, stack in self._free.values():
            stack.close()


class WayLender:
    """Lends shared ways to every database; starts only the servers that are asked for."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def lend(self, name: str) -> AbstractContextManager[Way]:
        shared: SharedWays = self._request.getfixturevalue(f"{_WAYS[name].database}_ways")
        return shared.lend(name)


class Wire:
    """Counts requests, each ended by a reply, that pass through a proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._requests: list[bytes] = []
        proxy.drop_request_when(self._passes)

    def _passes(self, request: bytes) -> bool:
        if self._requests and len(request) > len(self._requests[-1]) and request.startswith(self._requests[-1]):
            self._requests.pop()  # one more piece of it
        self._requests.append(request)
        return False

    def count(self, side: Side, function: Callable[..., Any], *args: Any, **options: Any) -> int:
        before = len(self._requests)
        side.call(function, *args, **options)
        return len(self._requests) - before
