"""A disk that is full: an error in time, held locks that go on, and work that goes on when there is room again."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event

from fencing import CoordinatorUnavailable, SQLCoordinator
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.sql_locks import OVER_A_NETWORK, LockDatabase, through

TIMEOUT = 1.0
MOST_SECONDS = TIMEOUT + 3
"""The machine may be busy."""

MOST_NAMES = 1000
"""More than fit into the pages that the table has: 500 characters each."""


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


@contextmanager
def table_on(disk: SmallDisk, locks: LockDatabase) -> Iterator[None]:
    """Move the table, which is empty, to the disk; what else the server writes stays where it is."""
    if locks.server.pid is None:
        pytest.skip("the server does not see the folders of this machine")
    os.chown(disk.folder, os.stat(f"/proc/{locks.server.pid}").st_uid, -1)
    if locks.driver.database == "postgres":
        space = f"small_{time.monotonic_ns()}"
        locks.sql(f"CREATE TABLESPACE {space} LOCATION '{disk.folder}'")
        after = [f"DROP TABLESPACE {space}"]
        locks.sql(f"ALTER TABLE fencing_locks SET TABLESPACE {space}")
    else:
        [[_, definition]] = locks.sql("SHOW CREATE TABLE fencing_locks")
        after = []
        locks.sql("DROP TABLE fencing_locks")
        locks.sql(f"{definition} DATA DIRECTORY='{disk.folder}'")
    try:
        yield
    finally:
        for statement in ("DROP TABLE fencing_locks", *after):
            locks.sql(statement)


@pytest.mark.thorough
@through("psycopg", of=OVER_A_NETWORK)
def test_a_full_disk(locks: LockDatabase, disk: SmallDisk) -> None:
    """A lock without a row cannot be taken; a lease goes on, because its row is changed in its place."""
    side, coordinator = locks.side, locks.coordinator(direct=True)
    with table_on(disk, locks):
        held = side.call(coordinator.acquire, "held")
        disk.fill()
        lasted: list[float] = []

        def fill_up() -> None:
            for i in range(MOST_NAMES):
                lasted.append(time.monotonic())
                side.call(side.call(coordinator.acquire, f"{i:0500}", timeout=TIMEOUT).release)

        error = side.expect(CoordinatorUnavailable, fill_up)
        assert time.monotonic() - lasted[-1] < MOST_SECONDS
        assert re.search("No space left on device|is full", str(error))
        side.call(held.renew)
        assert side.call(held.release) is True
        again = side.call(coordinator.acquire, "held", timeout=5)
        assert again.fence.number > held.fence.number
        assert side.call(again.release) is True
        disk.make_room()
        side.call(side.call(coordinator.acquire, f"{len(lasted) - 1:0500}", timeout=5).release)
