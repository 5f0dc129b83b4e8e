"""Counters in a SQL database, and locks in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from fencing import AsyncSQLCoordinator, SQLCoordinator
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.torture.services.backup import Backup
from tests.torture.services.base import CONNECT_SECONDS, GUARD_SECONDS, Given, Kit, Place, Service, Sides
from tests.torture.ways import SQLALCHEMY

__all__ = ["SQL", "sqlalchemy_kit"]


BOUNDS: dict[str, dict[str, float]] = {
    "postgresql+psycopg": {"connect_timeout": CONNECT_SECONDS},
    "postgresql+asyncpg": {"timeout": CONNECT_SECONDS, "command_timeout": GUARD_SECONDS},
    "mysql+pymysql": {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": GUARD_SECONDS,
        "write_timeout": GUARD_SECONDS,
    },
    "mysql+aiomysql": {"connect_timeout": CONNECT_SECONDS},
    "sqlite": {},
    "sqlite+aiosqlite": {},
}
"""The drivers' own settings for a network that is silent."""


class SQL(Service):
    """A database with counters. A trigger lists every write, so what was overwritten is known, too."""

    has_locks = True
    important = b"COMMIT"
    tables: tuple[str, ...]
    backup: Backup | None = None

    def connect(self, url: str) -> None:
        """Work on this database from now on, past all proxies."""
        self.engine: Engine = create_engine(url, poolclass=NullPool)
        self.guard = SQLAlchemyGuard(self.engine, timeout=GUARD_SECONDS)

    def create(self) -> None:
        """Make the tables, with the counters at 0."""
        self.guard.create_tables()
        with SQLCoordinator(self.engine) as coordinator:
            coordinator.create_tables()
        with self.engine.begin() as connection:
            for statement in self.tables:
                connection.execute(text(statement))
            for place in self.places:
                connection.execute(text("INSERT INTO counters (name) VALUES (:name)"), {"name": place.name})

    def locks(self) -> Any:
        return SQLCoordinator(self.engine)

    def final(self, place: Place) -> dict[str, Any]:
        with self.engine.connect() as connection:
            named = {"name": place.name}
            row = connection.execute(text("SELECT value, last FROM counters WHERE name = :name"), named).one()
            listed = text("SELECT written FROM effects WHERE name = :name ORDER BY nr")
            effects = tuple(connection.execute(listed, named).scalars())
        return {"value": row.value, "write": row.last, "effects": effects}

    @staticmethod
    def coordinator(given: Given, sides: Sides) -> Any:
        if sides.asynchronous:
            return AsyncSQLCoordinator(engine_on(given["async_url"], sides), ttl=sides.ttl)
        return SQLCoordinator(engine_on(given["url"], sides), ttl=sides.ttl)

    @staticmethod
    def kits(given: Given, storage: str, sides: Sides) -> list[Kit]:
        return [sqlalchemy_kit(given["async_url"] if sides.asynchronous else given["url"], sides)]


def engine_on(url: str, sides: Sides) -> Any:
    """Return an engine as the documentation wants it: the driver's own waits have bounds."""
    make: Any = create_async_engine if sides.asynchronous else create_engine
    return make(url, connect_args=BOUNDS[url.partition(":")[0]])


def sqlalchemy_kit(url: str, sides: Sides) -> Kit:
    engine = engine_on(url, sides)
    if sides.asynchronous:
        guard: Any = AsyncSQLAlchemyGuard(engine, timeout=GUARD_SECONDS)
        sessions: Any = async_sessionmaker(engine, expire_on_commit=False)
    else:
        guard = SQLAlchemyGuard(engine, timeout=GUARD_SECONDS)
        sessions = sessionmaker(engine, expire_on_commit=False)
    return Kit(guard, engine, SQLALCHEMY, sides.asynchronous, sessions)


def tables(number: str, text_type: str, *trigger: str) -> Sequence[str]:
    """Return the statements that make the counters, and the list of what was written to them."""
    columns = (
        f"name {text_type} PRIMARY KEY, value BIGINT DEFAULT 0, last {text_type} DEFAULT '', fence BIGINT DEFAULT 0"
    )
    return (
        f"CREATE TABLE counters ({columns})",
        f"CREATE TABLE effects (nr {number}, name {text_type} NOT NULL, written {text_type} NOT NULL)",
        *trigger,
    )
