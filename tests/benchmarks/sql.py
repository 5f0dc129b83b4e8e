"""Guarded writes to SQL databases, compared with the same write in its own BEGIN … COMMIT.

The mark is already claimed. Both writes go through the same library and the same source of connections, on one core
with the server. Commits are durable here (fsync): that is a large part of the time of a write.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool
from sqlalchemy import Engine, create_engine, text

from examples.servers import start_postgres
from fencing import Fence
from storage_guards import PsycopgGuard, SQLAlchemyGuard
from tests.benchmarks.contenders import AGAIN
from tests.benchmarks.duel import Contenders
from tests.benchmarks.pair import CPU
from tests.benchmarks.parts import Run
from tests.support.servers import MariaDBServer, find_mariadb_binary, start_mariadb
from tests.support.servers.mysql import find_unpacked_mysql, start_mysql

PLAIN, WRITE, BEGIN, CLAIM = "plain", "guard.write", "guard.begin", "guard.claim"
TIME = "time, µs"
AGAINST = {TIME: (PLAIN,), CPU: ()}
LIMIT = 120.0

PSYCOPG, SQLALCHEMY = "PostgreSQL, psycopg", "PostgreSQL, SQLAlchemy"
SQLITE, MARIADB = "SQLite, SQLAlchemy", "MariaDB, SQLAlchemy and PyMySQL"
MYSQL = "MySQL, SQLAlchemy and PyMySQL"
HEADLINE = (PSYCOPG, SQLALCHEMY, SQLITE, MARIADB, MYSQL)
NO_WAIT = "without waiting for the disk"

MINE = Fence("orders:1", 1, "a" * 22)
TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, total BIGINT NOT NULL)"
ROW = "INSERT INTO orders VALUES (1, 0)"
ADD = text("UPDATE orders SET total = total + :more WHERE id = :id")
ADD_PSYCOPG = "UPDATE orders SET total = total + %s WHERE id = %s"

_DURABLE = {"innodb-flush-log-at-trx-commit": "1", "innodb-flush-method": "fsync"}

Kinds = dict[str, Callable[[], object]]


def part(run: Run) -> None:
    for scenario in _SCENARIOS if run.everything else HEADLINE:
        if scenario == MARIADB and find_mariadb_binary() is None:
            run.failed(scenario, "all", "there is no mariadbd here")
            continue
        if scenario == MYSQL and find_unpacked_mysql() is None:
            run.say(f"{scenario}: left out, because there is no mysqld here. `make thorough-mysql` unpacks one")
            continue
        kinds = [PLAIN, WRITE, WRITE + AGAIN, *((BEGIN, CLAIM) if run.everything else ())]
        options = {"scenario": scenario, "kinds": kinds}
        run.duel(scenario, "sql.opened", AGAINST, rounds=500, seconds=LIMIT, **options)


@contextmanager
def opened(scenario: str, kinds: list[str]) -> Iterator[Contenders]:
    """Open the kinds of writes."""
    with _SCENARIOS[scenario]() as functions:
        functions[WRITE + AGAIN] = functions[WRITE]
        yield Contenders({kind: functions[kind] for kind in kinds})


@contextmanager
def _postgres() -> Iterator[str]:
    """Yield the address of a new database with the table, on a server that waits for the disk."""
    with start_postgres(settings={"fsync": "on", "full_page_writes": "on"}, local=True) as server:
        url = server.create_database()
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as admin:
            admin.execute(TABLE)
            admin.execute(ROW)
        yield url


@contextmanager
def _psycopg(synchronous: str) -> Iterator[Kinds]:
    options: Mapping[str, Any] = {"options": f"-c synchronous_commit={synchronous}"}
    with _postgres() as url, psycopg.connect(url.replace("+psycopg", ""), **options) as connection:

        def plain() -> None:
            connection.execute(ADD_PSYCOPG, (1, 1))
            connection.commit()

        yield _psycopg_kinds(connection, plain)


@contextmanager
def _psycopg_pool() -> Iterator[Kinds]:
    with _postgres() as url, ConnectionPool(url.replace("+psycopg", ""), min_size=1, max_size=1, open=True) as pool:

        def plain() -> None:
            with pool.connection() as connection:
                connection.execute(ADD_PSYCOPG, (1, 1))

        yield _psycopg_kinds(pool, plain)


def _psycopg_kinds(source: Any, plain: Callable[[], object]) -> Kinds:
    guard = PsycopgGuard(source)
    guard.create_tables()
    guard.claim(MINE)

    def begin() -> None:
        with guard.begin(MINE) as connection:
            connection.execute(ADD_PSYCOPG, (1, 1))

    others = _newer_fences()
    return {
        PLAIN: plain,
        WRITE: lambda: guard.write(MINE, ADD_PSYCOPG, (1, 1)),
        BEGIN: begin,
        CLAIM: lambda: guard.claim(next(others)),
    }


@contextmanager
def _postgres_engine(synchronous: str) -> Iterator[Kinds]:
    arguments = {"options": f"-c synchronous_commit={synchronous}"}
    with _postgres() as url, _engine(url, connect_args=arguments) as engine:
        yield _kinds(engine)


@contextmanager
def _mariadb_engine() -> Iterator[Kinds]:
    with start_mariadb(settings=_DURABLE, local=True) as server, _engine_of_mysql(server) as kinds:
        yield kinds


@contextmanager
def _mysql_engine() -> Iterator[Kinds]:
    with start_mysql(find_unpacked_mysql(), _DURABLE) as server, _engine_of_mysql(server) as kinds:
        yield kinds


@contextmanager
def _engine_of_mysql(server: MariaDBServer) -> Iterator[Kinds]:
    with _engine(server.create_database()) as engine:
        with engine.begin() as connection:
            connection.execute(text(TABLE))
            connection.execute(text(ROW))
        yield _kinds(engine)


@contextmanager
def _sqlite_engine() -> Iterator[Kinds]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        engine = stack.enter_context(_engine(f"sqlite:///{Path(directory, 'orders.sqlite')}"))
        with engine.begin() as connection:
            connection.execute(text(TABLE))
            connection.execute(text(ROW))
        yield _kinds(engine)


@contextmanager
def _engine(url: str, **options: Any) -> Iterator[Engine]:
    engine = create_engine(url, pool_size=1, max_overflow=0, **options)
    try:
        yield engine
    finally:
        engine.dispose()


def _kinds(engine: Engine) -> Kinds:
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    guard.claim(MINE)
    more = {"more": 1, "id": 1}

    def plain() -> None:
        with engine.begin() as connection:
            connection.execute(ADD, more)

    def begin() -> None:
        with guard.begin(MINE) as connection:
            connection.execute(ADD, more)

    others = _newer_fences()
    return {
        PLAIN: plain,
        WRITE: lambda: guard.write(MINE, ADD, more),
        BEGIN: begin,
        CLAIM: lambda: guard.claim(next(others)),
    }


def _newer_fences() -> Iterator[Fence]:
    """Return ever newer fences of another resource."""
    return (Fence("orders:2", number, f"{number:022d}") for number in itertools.count(1))


_SCENARIOS: Mapping[str, Callable[[], Any]] = {
    PSYCOPG: lambda: _psycopg("on"),
    SQLALCHEMY: lambda: _postgres_engine("on"),
    SQLITE: _sqlite_engine,
    MARIADB: _mariadb_engine,
    MYSQL: _mysql_engine,
    f"{PSYCOPG}, {NO_WAIT}": lambda: _psycopg("off"),
    f"{PSYCOPG} with a pool": _psycopg_pool,
    f"{SQLALCHEMY}, {NO_WAIT}": lambda: _postgres_engine("off"),
}
