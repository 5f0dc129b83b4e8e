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
from tests.torture.services.base import GUARD_SECONDS, Given, Kit, Place, Service, Sides
from tests.torture.ways import SQLALCHEMY

__all__ = ["SQL", "sqlalchemy_kit"]


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
            return AsyncSQLCoordinator(create_async_engine(given["async_url"]), ttl=sides.ttl)
        return SQLCoordinator(create_engine(given["url"]), ttl=sides.ttl)

    @staticmethod
    def kits(given: Given, storage: str, sides: Sides) -> list[Kit]:
        return [sqlalchemy_kit(given["async_url"] if sides.asynchronous else given["url"], sides)]


def sqlalchemy_kit(url: str, sides: Sides) -> Kit:
    if sides.asynchronous:
        engine: Any = create_async_engine(url)
        guard: Any = AsyncSQLAlchemyGuard(engine, timeout=GUARD_SECONDS)
        sessions: Any = async_sessionmaker(engine, expire_on_commit=False)
    else:
        engine = create_engine(url)
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
