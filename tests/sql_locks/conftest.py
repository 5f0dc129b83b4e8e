"""A database for locks, through each driver, and behind a proxy."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import ProxyFactory
from tests.support.sides import Side
from tests.support.sql_locks import DRIVERS, LockDatabase


@pytest.fixture(autouse=True)
def _patient_tries(patient_tries: None) -> None:
    """Real servers answer late on a busy machine."""


@pytest.fixture
def locks(request: pytest.FixtureRequest, tmp_path: Path, proxy: ProxyFactory) -> Iterator[LockDatabase]:
    """An empty database with the table of locks, through the driver that the parameter names."""
    driver = DRIVERS[request.param]
    if driver.database == "sqlite":
        server: Any = None
        url, through = f"sqlite:///{tmp_path}/locks.db", None
    else:
        server = request.getfixturevalue(f"{driver.database}_server")
        url, through = request.getfixturevalue(f"{driver.database}_url"), proxy(server)
    database = LockDatabase(driver, url, through, Side(driver.asynchronous), server)
    database.side.call(database.coordinator().create_tables)
    yield database
    database.close()


@pytest.fixture
def least() -> Any:
    """Makes a coordinator whose user has exactly these privileges on the table, and no others."""

    @contextmanager
    def make(locks: LockDatabase, privileges: str) -> Iterator[Any]:
        user = f"least_{os.getpid()}_{time.monotonic_ns()}"
        if locks.driver.database == "postgres":
            locks.as_administrator(f"CREATE ROLE {user} LOGIN")
            locks.as_administrator(f"GRANT {privileges} ON fencing_locks TO {user}")
            end = [f"DROP OWNED BY {user}", f"DROP ROLE {user}"]
        else:
            locks.as_administrator(f"CREATE USER {user}@'%' IDENTIFIED BY 'word'")
            locks.as_administrator(f"GRANT {privileges} ON `{locks.name}`.fencing_locks TO {user}@'%'")
            end = [f"DROP USER {user}@'%'"]
        coordinator = locks.coordinator_of(user, "word")
        try:
            yield coordinator
        finally:
            locks.side.call(coordinator.close)
            for statement in end:
                locks.as_administrator(statement)

    return make
