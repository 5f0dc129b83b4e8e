"""What the counters are kept in, and how a process of the run connects to it."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg_pool
import redis
import redis.asyncio
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from fencing import AsyncRedisCoordinator, AsyncSQLCoordinator, RedisCoordinator, SQLCoordinator
from storage_guards import (
    AsyncFileGuard,
    AsyncObjectStoreGuard,
    AsyncPsycopgGuard,
    AsyncSQLAlchemyGuard,
    FileGuard,
    ObjectStoreGuard,
    PsycopgGuard,
    SQLAlchemyGuard,
)
from tests.torture.ways import FILES, IN_PLACE, OBJECTS, PSYCOPG, SQLALCHEMY, Way

__all__ = ["GUARD_SECONDS", "Connections", "Kit", "Place", "Sessions", "create_counters", "open_store"]

GUARD_SECONDS = 3.0

COLUMNS = "name TEXT PRIMARY KEY, value BIGINT DEFAULT 0, last TEXT DEFAULT '', fence BIGINT DEFAULT 0"
COUNTERS = f"CREATE TABLE counters ({COLUMNS})"
TABLES = {
    "postgresql": (
        COUNTERS,
        "CREATE TABLE effects (position BIGSERIAL PRIMARY KEY, name TEXT NOT NULL, write TEXT NOT NULL)",
        (
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN INSERT INTO effects (name, write) VALUES (NEW.name, NEW.last); RETURN NULL; END'"
        ),
        "CREATE TRIGGER note AFTER UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION note()",
    ),
    "sqlite": (
        COUNTERS,
        "CREATE TABLE effects (position INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, write TEXT NOT NULL)",
        (
            "CREATE TRIGGER note AFTER UPDATE ON counters "
            "BEGIN INSERT INTO effects (name, write) VALUES (NEW.name, NEW.last); END"
        ),
    ),
}
"""A trigger lists every write that is committed, so that what was overwritten is known, too."""


class Place(NamedTuple):
    """A counter: its name, what it is kept in, and what its locks are kept in."""

    name: str
    storage: str
    coordinator: str


class Kit(NamedTuple):
    """A guard, what its bodies read through, and its ways."""

    guard: Any
    source: Any
    ways: Sequence[Way]
    asynchronous: bool
    sessions: Any = None
    claims: bool = True


class Sessions:
    """ORM sessions of one thread or task, used again by later turns."""

    def __init__(self) -> None:
        self._open: dict[int, Any] = {}

    def of(self, kit: Kit) -> Any:
        if id(kit.guard) not in self._open:
            self._open[id(kit.guard)] = kit.sessions()
        return self._open[id(kit.guard)]

    def clear(self) -> None:
        """Use them no more: a turn has failed."""
        self._open.clear()


def create_counters(engine: Engine, places: Sequence[Place]) -> None:
    """Make the tables of a database, with these counters at 0."""
    with engine.begin() as connection:
        for statement in TABLES[engine.dialect.name]:
            connection.execute(text(statement))
        for place in places:
            connection.execute(text("INSERT INTO counters (name) VALUES (:name)"), {"name": place.name})


def open_store(url: str, bucket: str) -> Any:
    from obstore.store import S3Store

    return S3Store(
        bucket,
        endpoint=url,
        region="us-east-1",
        access_key_id="any",
        secret_access_key="any",
        client_options={"allow_http": True, "timeout": "3s", "connect_timeout": "1s"},
    )


class Connections:
    """What one process has: its coordinators and its guards, sync or async, made when they are first asked for."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup = setup
        self.asynchronous: bool = setup["mode"] == "tasks"
        self._kits: dict[str, list[Kit]] = {}
        self._coordinators: dict[str, Any] = {}

    async def open(self) -> None:
        """Open the pools that need a loop."""
        for kit in self.kits("postgresql") if "postgresql" in self._setup else ():
            if isinstance(kit.source, psycopg_pool.AsyncConnectionPool):
                await kit.source.open(wait=False)

    def kits(self, storage: str) -> list[Kit]:
        if storage not in self._kits:
            self._kits[storage] = _KITS[storage](self._setup, self.asynchronous)
        return self._kits[storage]

    def coordinator(self, kind: str) -> Any:
        if kind not in self._coordinators:
            self._coordinators[kind] = self._new_coordinator(kind)
        return self._coordinators[kind]

    def _new_coordinator(self, kind: str) -> Any:
        ttl = self._setup["ttl"]
        if kind == "redis":
            floor = self._setup["seed"] % 2 == 1  # without it, numbers begin at 1 again after a loss of data
            if self.asynchronous:
                client = redis.asyncio.Redis.from_url(self._setup["redis"])
                return AsyncRedisCoordinator(client, ttl=ttl, clock_floor=floor)
            return RedisCoordinator(redis.Redis.from_url(self._setup["redis"]), ttl=ttl, clock_floor=floor)
        if self.asynchronous:
            return AsyncSQLCoordinator(create_async_engine(self._setup["postgresql"]), ttl=ttl)
        return SQLCoordinator(create_engine(self._setup["postgresql"]), ttl=ttl)

    async def close_async(self) -> None:
        for coordinator in self._coordinators.values():
            await coordinator.close()

    def close(self) -> None:
        for coordinator in self._coordinators.values():
            coordinator.close()


def _sqlalchemy(url: str, asynchronous: bool) -> Kit:
    if asynchronous:
        engine: Any = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        guard: Any = AsyncSQLAlchemyGuard(engine, timeout=GUARD_SECONDS)
        sessions: Any = async_sessionmaker(engine, expire_on_commit=False)
    else:
        engine = create_engine(url)
        guard = SQLAlchemyGuard(engine, timeout=GUARD_SECONDS)
        sessions = sessionmaker(engine, expire_on_commit=False)
    return Kit(guard, engine, SQLALCHEMY, asynchronous, sessions)


def _sqlite(setup: dict[str, Any], asynchronous: bool) -> list[Kit]:
    return [_sqlalchemy(setup["sqlite"], asynchronous)]


def _postgresql(setup: dict[str, Any], asynchronous: bool) -> list[Kit]:
    url = setup["postgresql"]
    dsn = url.replace("postgresql+psycopg:", "postgresql:")
    if asynchronous:
        pool: Any = psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=4, open=False, timeout=GUARD_SECONDS)
        guard: Any = AsyncPsycopgGuard(pool, timeout=GUARD_SECONDS)
    else:
        pool = psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=4, open=True, timeout=GUARD_SECONDS)
        guard = PsycopgGuard(pool, timeout=GUARD_SECONDS)
    return [_sqlalchemy(url, asynchronous), Kit(guard, pool, PSYCOPG, asynchronous)]


def _objects(ways: Sequence[Way]) -> Callable[[dict[str, Any], bool], list[Kit]]:
    def kits(setup: dict[str, Any], asynchronous: bool) -> list[Kit]:
        store = open_store(setup["objects"], setup["bucket"])
        guard: Any = (AsyncObjectStoreGuard if asynchronous else ObjectStoreGuard)(store, timeout=GUARD_SECONDS)
        guard._report = pickle.loads(base64.b64decode(setup["probe"]))  # the director has tried the store out
        return [Kit(guard, store, ways, asynchronous)]

    return kits


def _files(setup: dict[str, Any], asynchronous: bool) -> list[Kit]:
    guard: Any = (AsyncFileGuard if asynchronous else FileGuard)(setup["files"], timeout=GUARD_SECONDS)
    return [Kit(guard, None, FILES, asynchronous)]


_KITS: dict[str, Callable[[dict[str, Any], bool], list[Kit]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "files": _files,
    "objects": _objects(OBJECTS),
    "in-place": _objects(IN_PLACE),
}
