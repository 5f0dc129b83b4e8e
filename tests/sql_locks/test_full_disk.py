"""A disk that is full: an error in time, held locks that go on, and work that goes on when there is room again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event

from fencing import CoordinatorUnavailable, SQLCoordinator
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.sql_locks import OVER_A_NETWORK, LockDatabase, through

TIMEOUT = 0.3
MOST_SECONDS = TIMEOUT + 3
"""The machine may be busy."""

NAMES = 2000
"""More than fit on the disk: 500 characters each."""

def test_a_full_disk_is_named_in_time(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db")
    coordinator = SQLCoordinator(engine)
    coordinator.acquire("a").release()

    def fill(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1")

    event.listen(engine, "connect", fill)
    full = SQLCoordinator(engine)

    def fill_up() -> None:
        for i in range(100):
            full.acquire(f"{i}" * 200, timeout=0.3).release()

    with pytest.raises(CoordinatorUnavailable, match="full"):
        fill_up()
    full.close()
    coordinator.close()
    engine.dispose()



@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(2) as made:
        yield made


def put_on(disk: SmallDisk, locks: LockDatabase) -> Callable[[], None]:
    """Move the table to the disk; the result moves it away again."""
    if locks.driver.database == "postgres":
        if locks.server.is_elsewhere:
            pytest.skip("the server does not see the folders of this machine")
        name = f"small_{time.monotonic_ns()}"
        locks.sql(f"CREATE TABLESPACE {name} LOCATION '{disk.folder}'")
        locks.sql(f"ALTER TABLE fencing_locks SET TABLESPACE {name}, SET (autovacuum_enabled = off)")

        def away() -> None:
            locks.sql("DROP TABLE fencing_locks")
            locks.sql(f"DROP TABLESPACE {name}")

        return away
    raise AssertionError


@through("psycopg", of=OVER_A_NETWORK)
def test_a_full_disk(locks: LockDatabase, disk: SmallDisk) -> None:
    side, coordinator = locks.side, locks.coordinator(direct=True)
    away = put_on(disk, locks)
    try:
        held = side.call(coordinator.acquire, "held")
        disk.fill()

        def fill_up() -> None:
            for i in range(NAMES):
                side.call(coordinator.acquire, f"{i:0500}", timeout=TIMEOUT)

        started = time.monotonic()
        error = side.expect(CoordinatorUnavailable, fill_up)
        assert False, (str(error), time.monotonic() - started)
    finally:
        away()
