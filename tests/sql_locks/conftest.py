"""A database for locks, through each driver, and behind a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import ProxyFactory
from tests.support.sides import Side
from tests.support.sql_locks import DRIVERS, LockDatabase


@pytest.fixture
def locks(request: pytest.FixtureRequest, tmp_path: Path, proxy: ProxyFactory) -> Iterator[LockDatabase]:
    """An empty database with the table of locks, through the driver that the parameter names."""
    driver = DRIVERS[request.param]
    if driver.database == "sqlite":
        url, through = f"sqlite:///{tmp_path}/locks.db", None
    else:
        server: Any = request.getfixturevalue(f"{driver.database}_server")
        url, through = request.getfixturevalue(f"{driver.database}_url"), proxy(server)
    database = LockDatabase(driver, url, through, Side(driver.asynchronous))
    database.side.call(database.coordinator().create_tables)
    yield database
    database.close()
