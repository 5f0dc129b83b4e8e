"""The servers of a run, each behind a proxy, and the data as it is past all guards."""

from __future__ import annotations

import base64
import pickle
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from examples.servers import PostgresServer, RedisServer, S3Server, start_postgres, start_redis, start_s3
from fencing import RedisCoordinator, SQLCoordinator
from storage_guards import FileGuard, ObjectStoreGuard, SQLAlchemyGuard
from tests.support.servers import Proxy
from tests.torture.storages import Place, create_counters, open_store
from tests.torture.ways import parsed

__all__ = ["Services"]

STORAGES = ("postgresql", "sqlite", "files", "objects", "in-place")
SERVICES = ("redis", "postgresql", "sqlite", "files", "objects")


def places_on(names: Sequence[str]) -> list[Place]:
    """Return one counter for each storage, under each coordinator."""
    storages = [name for name in STORAGES if name in names or (name == "in-place" and "objects" in names)]
    places = [Place(f"{storage}/redis", storage, "redis") for storage in storages]
    if "postgresql" in names:
        places.append(Place("postgresql/sql", "postgresql", "sql"))
    return places


class Services:
    """A context manager: the servers run inside.

    Args:
        names: of redis, postgresql, sqlite, files and objects. Redis is always there.
        ttl: of the locks.
    """

    redis: RedisServer
    postgres: PostgresServer

    def __init__(self, names: Sequence[str], ttl: float) -> None:
        unknown = set(names) - set(SERVICES)
        if unknown:
            raise ValueError(f"there is no {', '.join(sorted(unknown))}; choose among {', '.join(SERVICES)}")
        self.names = tuple(name for name in SERVICES if name in names or name == "redis")
        self.places = places_on(self.names)
        self.proxies: dict[str, Proxy] = {}
        self.setup: dict[str, Any] = {"ttl": ttl, "places": self.places}
        self.guards: dict[str, SQLAlchemyGuard] = {}
        self._engines: dict[str, Engine] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            self.redis = stack.enter_context(start_redis(own=True, local=True, extra_args=("--appendonly", "no")))
            self.setup["redis"] = self._proxy("redis", self.redis).url(self.redis.url)
            if "postgresql" in self.names:
                self.postgres = stack.enter_context(start_postgres(own=True, local=True))
                self.setup["postgresql"] = self._proxy("postgresql", self.postgres).url(self.postgres.url)
                self._set_up_database("postgresql", self.postgres.url)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torture-")))
            if "files" in self.names:
                self.setup["files"] = str(folder / "files")
                (folder / "files").mkdir()
            if "sqlite" in self.names:
                self.setup["sqlite"] = f"sqlite:///{folder / 'data.db'}"
                self._set_up_database("sqlite", self.setup["sqlite"])
            if "objects" in self.names:
                self._set_up_objects(stack.enter_context(start_s3()))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _proxy(self, name: str, server: Any) -> Proxy:
        proxy = self.proxies[name] = self._stack.enter_context(Proxy(server.host, server.port))
        return proxy

    def _set_up_database(self, name: str, url: str) -> None:
        engine = self._engines[name] = create_engine(url, poolclass=NullPool)
        guard = self.guards[name] = SQLAlchemyGuard(engine, timeout=3)
        guard.create_tables()
        create_counters(engine, [place for place in self.places if place.storage == name])
        if name == "postgresql":
            with SQLCoordinator(engine) as coordinator:
                coordinator.create_tables()

    def _set_up_objects(self, server: S3Server) -> None:
        proxy = self._proxy("objects", server)
        bucket = server.new_bucket()
        self._objects = ObjectStoreGuard(open_store(server.url, bucket))
        report = base64.b64encode(pickle.dumps(self._objects.verify())).decode()
        self.setup |= {"objects": proxy.url(server.url), "bucket": bucket, "probe": report}

    def only(self, storages: Sequence[str]) -> None:
        """Leave out the counters in other storages."""
        self.places = self.setup["places"] = [place for place in self.places if place.storage in storages]

    def restore(self) -> None:
        """Let everything pass again."""
        for proxy in self.proxies.values():
            proxy.restore()

    def left(self) -> list[str]:
        """Return the names of the counters whose lock is taken."""
        taken: list[str] = []
        with RedisCoordinator(self.redis.client()) as locks:
            taken += [place.name for place in self.places if place.coordinator == "redis" and locks.holder(place.name)]
        if "postgresql" in self._engines:
            with SQLCoordinator(self._engines["postgresql"]) as rows:
                taken += [place.name for place in self.places if place.coordinator == "sql" and rows.holder(place.name)]
        return taken

    def final(self, place: Place) -> dict[str, Any]:
        """Return a counter as it is, and what was ever written to it if that is known."""
        if place.storage in self._engines:
            with self._engines[place.storage].connect() as connection:
                named = {"name": place.name}
                row = connection.execute(text("SELECT value, last FROM counters WHERE name = :name"), named).one()
                listed = text("SELECT write FROM effects WHERE name = :name ORDER BY position")
                effects = tuple(connection.execute(listed, named).scalars())
            return {"value": row.value, "write": row.last, "effects": effects}
        body: bytes | None = None
        if place.storage == "files":
            body = FileGuard(self.setup["files"]).read(place.name)
        elif place.storage == "objects":
            current = self._objects.read(place.name)
            body = None if current is None else current.read("total")
        elif (stored := self._objects.get(place.name)) is not None:
            body = bytes(stored.data)
        value, last = parsed(body)
        return {"value": value, "write": last}
