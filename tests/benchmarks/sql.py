"""A guarded write, its mark already claimed, against the same write in its own BEGIN … COMMIT through the same library.

psycopg and SQLAlchemy, each from the same source of connections, turn about, on one core with the server. Databases
make commits durable here (fsync), for that is a large part of what a write takes.
"""

from __future__ import annotations

import itertools
import tempfile
import time
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
from tests.benchmarks.measure import ratios, turns
from tests.benchmarks.parts import Run
from tests.support.servers import find_mariadb_binary, start_mariadb

PLAIN = "plain"
WARM_UP = 30
LIMIT = 120.0

MINE = Fence("orders:1", 1, "a" * 22)
TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, total BIGINT NOT NULL)"
ROW = "INSERT INTO orders VALUES (1, 0)"
ADD = text("UPDATE orders SET total = total + :more WHERE id = :id")
ADD_PSYCOPG = "UPDATE orders SET total = total + %s WHERE id = %s"

Kinds = dict[str, Callable[[], object]]


def part(run: Run) -> None:
    for scenario in _WAYS:
        run.say(scenario)
        if scenario.startswith("MariaDB") and find_mariadb_binary() is None:
            run.failed(scenario, "all", "there is no mariadbd here")
            continue
        rounds = 60 if run.quick else 500
        times = run.child(scenario, "all", "sql.measure", seconds=LIMIT, scenario=scenario, rounds=rounds)
        if times is None:
            continue
        for kind, its in times.items():
            run.add(scenario, kind, "each, µs", [seconds * 1e6 for seconds in its])
            if kind != PLAIN:
                run.add(scenario, kind, f"x {PLAIN}", ratios(its, times[PLAIN]))


def measure(scenario: str, rounds: int) -> dict[str, list[float]]:
    """In a child: seconds of each kind of write, round by round."""
    with _WAYS[scenario]() as kinds:
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(WARM_UP):
            for function in kinds.values():
                function()
        for kind in turns(list(kinds), rounds):
            started = time.perf_counter()
            kinds[kind]()
            times[kind].append(time.perf_counter() - started)
        return times


@contextmanager
def _postgres() -> Iterator[str]:
    """The address of a new database with the table, on a server that writes through."""
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
        "guard.write": lambda: guard.write(MINE, ADD_PSYCOPG, (1, 1)),
        "guard.begin": begin,
        "guard.claim": lambda: guard.claim(next(others)),
    }


@contextmanager
def _postgres_engine(synchronous: str) -> Iterator[Kinds]:
    arguments = {"options": f"-c synchronous_commit={synchronous}"}
    with _postgres() as url, _engine(url, connect_args=arguments) as engine:
        yield _kinds(engine)


@contextmanager
def _mariadb_engine() -> Iterator[Kinds]:
    settings = {"innodb-flush-log-at-trx-commit": "1", "innodb-flush-method": "fsync"}
    with start_mariadb(settings=settings, local=True) as server, _engine(server.create_database()) as engine:
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
        "guard.write": lambda: guard.write(MINE, ADD, more),
        "guard.begin": begin,
        "guard.claim": lambda: guard.claim(next(others)),
    }


def _newer_fences() -> Iterator[Fence]:
    """Ever newer holders of something else."""
    return (Fence("orders:2", number, f"{number:022d}") for number in itertools.count(1))


_WAYS: Mapping[str, Callable[[], Any]] = {
    "PostgreSQL, psycopg, synchronous_commit on": lambda: _psycopg("on"),
    "PostgreSQL, psycopg, synchronous_commit off": lambda: _psycopg("off"),
    "PostgreSQL, psycopg pool, synchronous_commit on": _psycopg_pool,
    "PostgreSQL, SQLAlchemy, synchronous_commit on": lambda: _postgres_engine("on"),
    "PostgreSQL, SQLAlchemy, synchronous_commit off": lambda: _postgres_engine("off"),
    "MariaDB, SQLAlchemy and PyMySQL": _mariadb_engine,
    "SQLite, SQLAlchemy": _sqlite_engine,
}
