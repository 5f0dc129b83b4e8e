"""Coordinators on every SQL database, driver by driver."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import AsyncSQLCoordinator, SQLCoordinator
from tests.support.servers import Proxy
from tests.support.sides import Side, close_engine


class Driver(NamedTuple):
    database: str
    scheme: str
    asynchronous: bool

    def engine(self, url: str, **options: Any) -> Any:
        """An engine with this driver, for the database of a URL."""
        make: Any = create_async_engine if self.asynchronous else create_engine
        return make(f"{self.scheme}:{url.split(':', 1)[1]}", **options)

    @property
    def kind(self) -> Any:
        return AsyncSQLCoordinator if self.asynchronous else SQLCoordinator

    def coordinator(self, url: str, **options: Any) -> Any:
        return self.kind(self.engine(url), **options)


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


def through(*often: str, of: tuple[str, ...] = tuple(DRIVERS)) -> pytest.MarkDecorator:
    """Run a test through each driver: always through those named first, through the others in the thorough run."""
    names = [name if name in often else pytest.param(name, marks=pytest.mark.thorough) for name in of]
    return pytest.mark.parametrize("locks", names, indirect=True)


class LockDatabase:
    """A database with the table of locks, seen with and without the proxy before it."""

    def __init__(self, driver: Driver, url: str, proxy: Proxy | None, side: Side, server: Any = None) -> None:
        self.server = server
        self.driver, self.side = driver, side
        self._url, self._proxy = url, proxy
        self._direct = create_engine(url, isolation_level="AUTOCOMMIT")
        self._beside = create_engine(url)
        self._engines: list[Any] = []

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None, "SQLite has no network"
        return self._proxy

    def coordinator(self, *, direct: bool = False, **options: Any) -> Any:
        """A coordinator, through the proxy if there is one, until the end of the test."""
        url = self._url if direct or self._proxy is None else self._proxy.url(self._url)
        made = self.driver.coordinator(url, **options)
        self.side.made.append(made)
        return made

    def coordinator_of(self, user: str, password: str) -> Any:
        """A coordinator of another user of the server, which the test closes."""
        parts = urlsplit(self._url)
        host = parts.netloc.rpartition("@")[2]
        return self.driver.coordinator(parts._replace(netloc=f"{user}:{password}@{host}").geturl(), ttl=5)

    @property
    def direct_url(self) -> str:
        """The URL of the database, not through the proxy."""
        return self._url

    def as_administrator(self, statement: str) -> None:
        """One statement of the server's administrator, in this database."""
        if self.driver.database == "postgres":  # its user is one
            self.sql(statement)
        else:
            self.server.execute(statement)

    @property
    def name(self) -> str:
        """The name of the database."""
        return urlsplit(self._url).path.removeprefix("/")

    def engine(self, **options: Any) -> Any:
        """An engine with the driver, until the end of the test."""
        made = self.driver.engine(self._url, **options)
        self._engines.append(made)
        return made

    def sql(self, statement: str, **values: Any) -> list[Any]:
        """One statement, committed; its rows."""
        with self._direct.connect() as connection:
            result = connection.execute(text(statement), values)
            return list(result.all()) if result.returns_rows else []

    def transaction(self) -> Any:
        """A transaction of somebody else, as a context manager; its value is the connection."""
        return self._beside.begin()

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.restore()
        for coordinator in self.side.made:
            self.side.call(coordinator.close)
        for engine in (*self._engines, self._direct, self._beside):
            close_engine(self.side, engine)
