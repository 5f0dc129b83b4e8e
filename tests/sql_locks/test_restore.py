"""Locks, marks and data in one database: one backup has all, and one restore brings all back, under living holders."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import create_engine, text

from fencing import FencingError, LeaseLost, NotAcquired, SQLCoordinator, UnclaimedFence
from fencing.sql.direct import ConnectionToFile
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.support import wait_until
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.sides import Side, close_engine
from tests.support.sql_locks import DRIVERS, Driver

ADD = text("UPDATE orders SET total = total + 1")
DRIVERS_OF_RUN = [
    name if name == "sqlite" else pytest.param(name, marks=pytest.mark.thorough)
    for name in ("psycopg", "asyncpg", "sqlite", "aiosqlite")
]


class Shop:
    """Orders, and what guards and locks them, on one engine."""

    def __init__(self, driver: Driver, url: str, backup: Callable[[], Callable[[], None]]) -> None:
        self.side, self.url = Side(driver.asynchronous), url
        self.engine = driver.engine(url, pool_pre_ping=True)  # a restore ends all sessions
        self.guard: Any = (AsyncSQLAlchemyGuard if driver.asynchronous else SQLAlchemyGuard)(self.engine)
        self.coordinator = driver.coordinator(url, ttl=2, guards=[self.guard])
        self.another = driver.coordinator(url, ttl=2, guards=[self.guard])
        self.side.made += [self.coordinator, self.another]
        self.side.call(self.guard.create_tables)
        self.side.call(self.coordinator.create_tables)
        self.sql("CREATE TABLE orders (total INTEGER)")
        self.sql("INSERT INTO orders VALUES (0)")
        self.backup = backup

    def sql(self, statement: str) -> list[Any]:
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            result = connection.execute(text(statement))
            rows = list(result.all()) if result.returns_rows else []
        engine.dispose()
        return rows

    @property
    def total(self) -> int:
        [[total]] = self.sql("SELECT total FROM orders")
        return int(total)

    def write(self, lease: Any) -> None:
        self.side.call(self.guard.write, lease, ADD)

    def release(self, lease: Any) -> bool:
        try:
            return bool(self.side.call(lease.release))
        except LeaseLost:
            return False


@pytest.fixture(params=DRIVERS_OF_RUN)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    driver = DRIVERS[request.param]
    server: Any = None
    if driver.database == "sqlite":
        path, kept = tmp_path / "shop.db", tmp_path / "backup.db"
        url, backup = f"sqlite:///{path}", lambda: copy_file(path, kept)
        made = Shop(driver, url, backup)
    else:
        server = request.getfixturevalue("postgres_server")
        url = server.create_database()
        made = Shop(driver, url, lambda: copy_database(server, url))
    yield made
    for coordinator in made.side.made:
        made.side.call(coordinator.close)
    close_engine(made.side, made.engine)
    if driver.database == "postgres":
        server.drop_database(url)


def copy_file(path: Path, kept: Path) -> Callable[[], None]:
    def copy(source: Path, target: Path) -> None:
        old, new = sqlite3.connect(source), sqlite3.connect(target)
        old.backup(new)
        old.close()
        new.close()

    copy(path, kept)
    return lambda: copy(kept, path)


def copy_database(server: Any, url: str) -> Callable[[], None]:
    """The files of the database as they are: sessions are ended for it, as for a restore."""
    name = urlsplit(url).path.removeprefix("/")
    kept = f"{name}_backup"

    def copy(source: str, target: str) -> None:
        with server.connect() as administrator:
            administrator.execute(f'ALTER DATABASE "{source}" ALLOW_CONNECTIONS false')
            administrator.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{source}'")
            wait_until(
                lambda: (
                    not administrator.execute(f"SELECT 1 FROM pg_stat_activity WHERE datname = '{source}'").fetchone()
                )
            )
            administrator.execute(f'DROP DATABASE IF EXISTS "{target}" WITH (FORCE)')
            administrator.execute(f'CREATE DATABASE "{target}" TEMPLATE "{source}"')
            administrator.execute(f'ALTER DATABASE "{source}" ALLOW_CONNECTIONS true')

    copy(name, kept)

    def restore() -> None:
        copy(kept, name)
        server.drop_database(urlsplit(url)._replace(path=f"/{kept}").geturl())

    return restore


def test_a_restore_under_the_holder_that_is_in_the_backup(shop: Shop) -> None:
    """It has written since, and that is gone: it may not go on from what it remembers."""
    lease = shop.side.call(shop.coordinator.acquire, "orders", timeout=5)
    shop.write(lease)
    restore = shop.backup()
    shop.write(lease)
    assert shop.total == 2
    restore()
    shop.side.expect(UnclaimedFence, shop.guard.write, lease, ADD)
    assert shop.total == 1
    shop.release(lease)
    newer = shop.side.call(shop.another.acquire, "orders", timeout=20)
    assert newer.fence.number > lease.fence.number
    shop.write(newer)
    assert shop.total == 2
    assert shop.release(newer)


@pytest.mark.thorough
def test_a_restore_under_a_holder_that_came_after_the_backup(shop: Shop) -> None:
    """The restored row knows nothing of it. So the lock is granted twice, and the guard refuses the older one."""
    side = shop.side
    first = side.call(shop.coordinator.acquire, "orders", timeout=5)
    shop.write(first)
    shop.release(first)
    restore = shop.backup()
    lost = side.call(shop.coordinator.acquire, "orders", timeout=5)
    shop.write(lost)
    restore()
    newer = side.call(shop.another.acquire, "orders", timeout=20)
    assert newer.fence.number > lost.fence.number
    shop.write(newer)
    side.expect(FencingError, shop.guard.write, lost, ADD)
    wait_until(lambda: not lost.held)
    assert shop.total == 2
    shop.release(lost)  # if its connection breaks, it cannot tell whether it has freed the lock
    assert side.call(shop.another.holder, "orders").number == newer.fence.number, "it has not"
    assert shop.release(newer)


def test_a_restored_mark_that_is_ahead_of_the_clock(shop: Shop) -> None:
    """One refusal repairs the number."""
    side = shop.side
    lease = side.call(shop.coordinator.acquire, "orders", timeout=5)
    shop.write(lease)
    shop.release(lease)
    shop.sql("UPDATE fencing_marks SET number = number + 1000000000000 WHERE resource = 'orders'")
    restore = shop.backup()
    restore()
    again = side.call(shop.another.acquire, "orders", timeout=20)
    assert again.fence.number > lease.fence.number + 10**12
    shop.write(again)
    assert shop.release(again)


@pytest.mark.parametrize("name", ["sqlite", pytest.param("aiosqlite", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["restored", "deleted"])
def test_a_file_that_is_replaced_under_a_holder(tmp_path: Path, name: str, is_deleted: bool) -> None:
    """In WAL mode SQLite goes on in the old file: both holders would stay renewed for ever."""
    path, kept = tmp_path / "locks.db", tmp_path / "backup.db"
    driver = DRIVERS[name]
    side = Side(driver.asynchronous)
    late, newer = (driver.coordinator(f"sqlite:///{path}", ttl=0.6) for _ in range(2))
    side.call(side.call(late.acquire, "other", timeout=5).release)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.close()
    copy_file(path, kept)
    lost = side.call(late.acquire, "orders", timeout=5)
    for end in ("-wal", "-shm", ""):
        Path(f"{path}{end}").unlink(missing_ok=True)
    if not is_deleted:
        kept.rename(path)
    lease = side.call(newer.acquire, "orders", timeout=5)
    wait_until(lambda: not lost.held)
    assert side.call(late.holder, "orders").number == lease.fence.number
    assert side.call(lease.release)
    assert side.call(side.call(late.acquire, "orders", timeout=5).release)
    for coordinator in (late, newer):
        side.call(coordinator.close)


def test_a_file_that_is_replaced_during_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was granted in the old file is no grant."""
    path, kept = tmp_path / "locks.db", tmp_path / "backup.db"
    execute = ConnectionToFile.execute

    def execute_and_replace(*args: Any) -> Any:
        result = execute(*args)
        if kept.exists():
            kept.rename(path)
        return result

    with SQLCoordinator(create_engine(f"sqlite:///{path}")) as coordinator:
        assert coordinator.acquire("other", timeout=5).release()
        copy_file(path, kept)
        monkeypatch.setattr(ConnectionToFile, "execute", execute_and_replace)
        with coordinator.hold("orders", timeout=5), sqlite3.connect(path) as others:
            assert others.execute("SELECT token <> '' FROM fencing_locks WHERE resource = 'orders'").fetchall() == [
                (1,)
            ]


def test_a_claim_that_waits_for_the_mark_does_not_block_the_row_of_the_lock(postgres_url: str) -> None:
    """Only PostgreSQL locks rows one by one. The claim is a transaction of its own, and begins after the grant's."""
    shop = Shop(DRIVERS["psycopg"], postgres_url, lambda: lambda: None)
    shop.side.call(shop.side.call(shop.coordinator.acquire, "orders", timeout=5).release)
    engine = create_engine(postgres_url)
    granted: list[Any] = []
    waiting = threading.Thread(target=lambda: granted.append(shop.coordinator.acquire("orders", timeout=20)))
    with engine.begin() as connection:
        connection.execute(text("SELECT 1 FROM fencing_marks WHERE resource = 'orders' FOR UPDATE"))
        waiting.start()
        until_locks_are_waited_for(postgres_url)
        shop.side.expect(NotAcquired, shop.another.acquire, "orders", timeout=0)
        with engine.begin() as other:  # a renewal, or a release
            other.execute(text("SELECT 1 FROM fencing_locks WHERE resource = 'orders' FOR UPDATE NOWAIT"))
    waiting.join(20)
    assert granted[0].release()
    for coordinator in shop.side.made:
        coordinator.close()
    shop.engine.dispose()
    engine.dispose()
