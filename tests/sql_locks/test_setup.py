"""The set-up of a SQL coordinator: its table, its errors, its isolation, and its use of the engine."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Engine, create_engine, event, inspect
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from fencing import (
    AsyncFencedLock,
    AsyncSQLCoordinator,
    CoordinatorUnavailable,
    Fence,
    FencedLock,
    GuardNotEnforceable,
    MarkImplausible,
    SQLCoordinator,
)
from fencing.kernel.fence import MAX_NUMBER, new_token
from fencing.sql.table import Request
from fencing.testing.contract import Contract
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from tests.support.sql_locks import LockDatabase, through

SERVERS = ("psycopg", "psycopg-async", "asyncpg", "pymysql", "aiomysql")


def create_table(engine: Engine) -> None:
    with SQLCoordinator(engine) as coordinator:
        coordinator.create_tables()


# The table


@through("asyncpg", of=SERVERS)
def test_a_missing_table_is_named_at_once(locks: LockDatabase) -> None:
    locks.sql("DROP TABLE fencing_locks")
    side, coordinator = locks.side, locks.coordinator(direct=True)
    started = time.monotonic()
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "a", timeout=20)
    assert time.monotonic() - started < 15
    assert "the table fencing_locks is missing: call coordinator.create_tables() once" in str(error)
    side.race([lambda: side.call(coordinator.create_tables) for _ in range(4)])
    side.call(side.call(coordinator.acquire, "a", timeout=5).release)


@pytest.mark.thorough
@through("pymysql", of=("psycopg", "pymysql", "sqlite"))
def test_the_table_is_as_the_metadata_says(locks: LockDatabase) -> None:
    coordinator = locks.coordinator(direct=True)
    [table] = coordinator.metadata.tables.values()
    columns = {each["name"]: each for each in inspect(locks.engine()).get_columns("fencing_locks")}
    assert list(columns) == [each.name for each in table.columns]
    assert not any(each["nullable"] for each in columns.values())


@through("pymysql", of=("psycopg", "pymysql", "sqlite"))
def test_names_are_exact(locks: LockDatabase) -> None:
    coordinator = locks.coordinator(direct=True)
    names = ["a", "A", "ä", "a ", "a\\", "a'b", 'a"b', "a:b", "a%b", "a%(b)s", "\U0001f512", "x" * 512]
    leases = [coordinator.acquire(name, timeout=0) for name in names]
    assert {resource for resource, _ in coordinator.holders()} == set(names)
    assert all(lease.release() for lease in leases)


@pytest.mark.parametrize("schema", ["Odd: name", "%", "%%s"])
@through("psycopg", of=SERVERS)
def test_a_schema_of_its_own(locks: LockDatabase, schema: str) -> None:
    """Some drivers take percent signs for parameters."""
    side = locks.side
    schema += locks.name  # a server may be shared
    on_mariadb = locks.driver.database == "mariadb"
    quoted = schema.join("``" if on_mariadb else '""')
    locks.as_administrator(f"CREATE SCHEMA {quoted}" if on_mariadb else f"CREATE SCHEMA {quoted}".replace(":", "\\:"))
    try:
        if on_mariadb:  # its schemas are databases of the server; a grant takes a pattern
            pattern = quoted.replace("%", r"\%").replace("_", r"\_")
            locks.as_administrator(f"GRANT ALL PRIVILEGES ON {pattern}.* TO '{locks.name}'@'%'")
        coordinator = locks.coordinator(direct=True, schema=schema)
        side.call(coordinator.create_tables)
        side.call(coordinator.create_tables)  # it finds what it has made
        lease = side.call(coordinator.acquire, "a", timeout=5)
        assert side.call(lease.release)
        assert len(locks.sql("SELECT 1 FROM information_schema.tables WHERE table_schema = :name", name=schema)) == 1
        assert locks.sql("SELECT 1 FROM fencing_locks WHERE resource = 'a'") == []
    finally:
        if on_mariadb:
            locks.as_administrator(f"DROP SCHEMA {quoted}")


def test_a_used_up_number_is_an_operators_job(postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    coordinator = SQLCoordinator(engine)
    coordinator.create_tables()
    with engine.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO fencing_locks VALUES ('a', {MAX_NUMBER}, '', '', 0, 0)")
    with pytest.raises(MarkImplausible):
        coordinator.acquire("a", timeout=5)
    with pytest.raises(MarkImplausible):
        coordinator.force_release("a")
    coordinator.close()
    engine.dispose()


# Refusals of the database


def test_missing_rights_are_named(postgres_url: str, postgres_server: Any) -> None:
    owner = create_engine(postgres_url)
    create_table(owner)
    role = f"reader_{os.getpid()}_{time.monotonic_ns()}"
    with owner.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role}")
        connection.exec_driver_sql(f"GRANT SELECT ON fencing_locks TO {role}")
    reader = create_engine(postgres_url, connect_args={"options": f"-c role={role}"})
    coordinator = SQLCoordinator(reader)
    with pytest.raises(CoordinatorUnavailable, match=r"permission denied .* needs SELECT, INSERT and UPDATE"):
        coordinator.acquire("a", timeout=20)
    assert coordinator.holder("a") is None
    coordinator.close()
    with owner.begin() as connection:
        connection.exec_driver_sql("DROP TABLE fencing_locks")
    coordinator = SQLCoordinator(reader)
    with pytest.raises(CoordinatorUnavailable, match=r"permission denied .* CREATE where create_tables\(\) makes it"):
        coordinator.create_tables()
    coordinator.close()
    with owner.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
        connection.exec_driver_sql(f"DROP ROLE {role}")
    reader.dispose()
    owner.dispose()


READ_ONLY = {
    "postgres": "SET default_transaction_read_only = on",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
    "sqlite": "PRAGMA query_only = ON",
}


@pytest.mark.thorough
@through("psycopg")
def test_a_read_only_server_is_named_in_time(locks: LockDatabase) -> None:
    """Locks can be read there. Requests to take one are repeated, because a replica may be promoted."""
    side, engine = locks.side, locks.engine()

    def set_read_only(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(READ_ONLY[locks.driver.database])
        cursor.close()
        connection.commit()

    held = side.call(locks.coordinator(direct=True).acquire, "held")
    event.listen(getattr(engine, "sync_engine", engine), "connect", set_read_only)
    coordinator = locks.driver.kind(engine)
    side.made.append(coordinator)
    started = time.monotonic()
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "a", timeout=1)
    assert time.monotonic() - started < 15
    assert re.search("read.?only", str(error), re.IGNORECASE)
    assert side.call(coordinator.holder, "held").number == held.fence.number
    side.call(held.release)


def test_errors_do_not_show_tokens_or_passwords(postgres_url: str) -> None:
    coordinator = SQLCoordinator(create_engine(postgres_url))
    with pytest.raises(CoordinatorUnavailable) as caught:
        coordinator.acquire("a")
    assert "INSERT" not in str(caught.value)
    assert "***" in repr(coordinator) or ":@" not in repr(coordinator)
    coordinator.close()


@pytest.mark.parametrize("wrong", ["database", "user"])
@through("psycopg", "pymysql", "sqlite")
def test_a_database_that_lets_nobody_in_is_a_set_up_fault(locks: LockDatabase, wrong: str, tmp_path: Path) -> None:
    """It has answered, so to retry never helps. Of SQLite, the folder is wrong, or may not be read."""
    side, parts = locks.side, urlsplit(locks.direct_url)
    if locks.driver.database == "sqlite":
        url, says = f"sqlite:///{tmp_path}/{wrong}/locks.db", "unable to open database file; does its folder exist"
    elif wrong == "database":
        url, says = parts._replace(path="/nothere").geturl(), "nothere"
    else:
        url, says = parts._replace(netloc=f"nobody:x@{parts.netloc.rpartition('@')[2]}").geturl(), "nobody"
    engine = locks.driver.engine(url)
    coordinator = locks.driver.kind(engine)
    side.made.append(coordinator)
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=30)
    assert says in str(error)
    assert " refused the request: " in str(error)
    assert "retry" not in str(error)
    guards: list[Any] = [(AsyncSQLAlchemyGuard if side.asynchronous else SQLAlchemyGuard)(engine)]
    if locks.driver.scheme == "postgresql+psycopg":
        guards.append((AsyncPsycopgGuard if side.asynchronous else PsycopgGuard)(url.replace("+psycopg", "")))
    for guard in guards:
        refused = side.expect(GuardNotEnforceable, guard.claim, Fence("r", 1, "a" * 22))
        assert says in str(refused)
        assert "retry" not in str(refused)
    if locks.driver.database == "sqlite":  # what was to be corrected is; the same objects go on
        (tmp_path / wrong).mkdir()
        assert side.call(side.call(coordinator.acquire, "r", timeout=30).release)
        side.call(guards[0].create_tables)
        side.call(guards[0].claim, Fence("r", 1, "a" * 22))
    side.call(engine.dispose)


def test_what_is_not_supported_is_refused_when_it_is_made() -> None:
    for engine in (create_engine("sqlite://"), create_engine("sqlite:///x", poolclass=StaticPool)):
        with pytest.raises(TypeError, match="use a database file"):
            SQLCoordinator(engine)
    with pytest.raises(TypeError, match="for asyncio use AsyncSQLCoordinator"):
        SQLCoordinator(create_async_engine("sqlite+aiosqlite:///x"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="for threads use SQLCoordinator"):
        AsyncSQLCoordinator(create_engine("sqlite:///x"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="write create_engine"):
        SQLCoordinator("sqlite:///x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="schema must be a str"):
        SQLCoordinator(create_engine("sqlite:///x"), schema=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="schema must not be empty"):
        SQLCoordinator(create_engine("sqlite:///x"), schema="")


# The engine


@pytest.mark.thorough
@through("pymysql", of=SERVERS)
@pytest.mark.parametrize("level", ["SERIALIZABLE", "AUTOCOMMIT"])
def test_the_engines_isolation_does_not_matter(locks: LockDatabase, level: str) -> None:
    kind: Any = AsyncSQLCoordinator if locks.side.asynchronous else SQLCoordinator
    side = locks.side
    coordinators = [kind(locks.engine(isolation_level=level)) for _ in range(8)]
    side.made.extend(coordinators)
    for each in coordinators:  # opens the connection: one try has not much time
        side.call(side.call(each.acquire, "a", timeout=20).release)
    for _ in range(5):
        leases = side.race([partial(side.call, each.try_acquire, "a") for each in coordinators])
        [lease] = [each for each in leases if each is not None]
        assert side.call(lease.release) is True


@pytest.mark.thorough
def test_a_roles_default_of_repeatable_read_does_not_matter(postgres_url: str) -> None:
    """A refusal is an answer, and no serialization failure that must be asked again."""
    engine = create_engine(postgres_url, connect_args={"options": "-c default_transaction_isolation=repeatable\\ read"})
    coordinators = [SQLCoordinator(engine) for _ in range(8)]
    coordinators[0].create_tables()

    def acquire(coordinator: SQLCoordinator) -> bool:
        token = new_token()
        values = {"resource": "a", "token": token, "ttl": 10_000_000, "floor": 0, "owner": "me"}
        granted = bool(coordinator._backend.perform(Request("acquire", values, 5.0)).token == token)
        if granted:
            coordinator._backend.perform(Request("release", values, 5.0))
        return granted

    for _ in range(20):
        assert any(Contract().race([partial(acquire, each) for each in coordinators]))
    for coordinator in coordinators:
        coordinator.close()
    engine.dispose()


@through("psycopg")
def test_an_exhausted_pool_of_the_user_does_not_matter(locks: LockDatabase) -> None:
    engine = locks.engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    kind: Any = AsyncSQLCoordinator if locks.side.asynchronous else SQLCoordinator
    coordinator = kind(engine)
    locks.side.made.append(coordinator)
    used = locks.side.call(engine.connect if not locks.side.asynchronous else engine.connect().start)
    locks.side.call(locks.side.call(coordinator.acquire, "a", timeout=5).release)
    locks.side.call(used.close)
    locks.side.call(engine.dispose)


@pytest.mark.thorough
def test_behind_a_pooler_of_transactions(pgbouncer_server: Any, postgres_url: str) -> None:
    """Nothing of ours is left in the sessions that others use next, and the races have one winner."""
    create_table(create_engine(postgres_url))
    engine = create_engine(pgbouncer_server.url(postgres_url), connect_args={"prepare_threshold": None})
    coordinators = [SQLCoordinator(engine) for _ in range(4)]
    side = Contract()
    for _ in range(5):
        leases = side.race([partial(each.try_acquire, "a") for each in coordinators])
        [lease] = [each for each in leases if each is not None]
        assert lease.release() is True
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "0"
    for coordinator in coordinators:
        coordinator.close()
    engine.dispose()


# Locks from engines


@pytest.mark.thorough
def test_a_lock_from_an_engine_works_between_processes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    code = f"""
from sqlalchemy import create_engine
from fencing import FencedLock
lease = FencedLock(create_engine({url!r}), "nightly", owner="another").try_acquire()
print(lease and lease.fence.number)
lease and lease.release()
"""

    def other() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300
        ).stdout.strip()

    engine = create_engine(url)
    lock = FencedLock(engine, "nightly")
    assert FencedLock(engine, "nightly").coordinator is lock.coordinator
    other_options = engine.execution_options(isolation_level="SERIALIZABLE").execution_options(shop=1)
    assert FencedLock(other_options, "nightly").coordinator is lock.coordinator
    with lock.hold(timeout=5) as lease:
        assert other() == "None"
    assert int(other()) > lease.fence.number


def test_an_async_lock_from_an_engine(tmp_path: Path) -> None:
    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/locks.db")
        lock = AsyncFencedLock(engine, "nightly")
        async with lock.hold(timeout=5) as lease:
            assert await AsyncFencedLock(engine, "nightly").try_acquire() is None
            assert lease.held
        await lock.coordinator.close()
        await engine.dispose()

    asyncio.run(main())


@through("psycopg", of=("psycopg", "pymysql", "sqlite"))
def test_a_forked_child_opens_its_own_connections(locks: LockDatabase) -> None:
    coordinator = locks.coordinator(direct=True)
    lease = coordinator.acquire("a")
    context: Any = multiprocessing.get_context("fork")
    queue = context.Queue()

    def child() -> None:
        for _ in range(100):
            assert coordinator.holder("a") is not None
        queue.put((coordinator.try_acquire("a"), coordinator.acquire("b", timeout=5).fence.number))

    process = context.Process(target=child)
    process.start()
    while queue.empty():  # on a shared connection, the two would take each other's replies
        assert coordinator.holder("c") is None
        assert process.exitcode in (None, 0)
    taken, number = queue.get(timeout=120)
    process.join(20)
    assert taken is None
    assert number > 0
    assert coordinator.try_acquire("b") is None, "the child ended without a release"
    assert lease.renew() is None
    assert lease.release() is True
