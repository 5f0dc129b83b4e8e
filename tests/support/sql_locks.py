"""Coordinators on every SQL database, driver by driver."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import AsyncSQLCoordinator, SQLCoordinator


class Driver(NamedTuple):
    database: str
    scheme: str
    asynchronous: bool

    def engine(self, url: str, **options: Any) -> Any:
        """An engine with this driver, for the database of a URL."""
        make: Any = create_async_engine if self.asynchronous else create_engine
        return make(f"{self.scheme}:{url.split(':', 1)[1]}", **options)

    def coordinator(self, url: str, **options: Any) -> Any:
        kind: Any = AsyncSQLCoordinator if self.asynchronous else SQLCoordinator
        return kind(self.engine(url), **options)


DRIVERS = {
    "psycopg": Driver("postgres", "postgresql+psycopg", False),
    "psycopg-async": Driver("postgres", "postgresql+psycopg", True),
    "asyncpg": Driver("postgres", "postgresql+asyncpg", True),
    "pymysql": Driver("mariadb", "mysql+pymysql", False),
    "aiomysql": Driver("mariadb", "mysql+aiomysql", True),
    "sqlite": Driver("sqlite", "sqlite", False),
    "aiosqlite": Driver("sqlite", "sqlite+aiosqlite", True),
}
OVER_A_NETWORK = tuple(name for name, driver in DRIVERS.items() if driver.database != "sqlite")
