"""PostgreSQL, through three drivers."""

from __future__ import annotations

import time
from typing import Any

import psycopg_pool

from examples.servers import find_faketime, start_postgres
from examples.servers.postgres import PostgresServer, find_postgres_binaries
from storage_guards import AsyncPsycopgGuard, PsycopgGuard
from tests.torture.services.base import CONNECT_SECONDS, GUARD_SECONDS, Given, Kit, Sides
from tests.torture.services.clock import Clock
from tests.torture.services.sql import SQL, sqlalchemy_kit, tables
from tests.torture.ways import PSYCOPG

__all__ = ["PostgreSQL"]


class PostgreSQL(SQL):
    name = "postgresql"
    storages = done_once = ("postgresql",)
    tables = tuple(
        tables(
            "BIGSERIAL PRIMARY KEY",
            "TEXT",
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN INSERT INTO effects (name, written) VALUES (NEW.name, NEW.last); RETURN NULL; END'",
            "CREATE TRIGGER note AFTER UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION note()",
        )
    )

    @classmethod
    def why_not(cls) -> str:
        return "" if find_postgres_binaries() else "no PostgreSQL is installed"

    def start(self) -> Given:
        self.clock = Clock(self.folder)
        environment = self.clock.environment()
        self.server = start_postgres(own=True, local=True, environment=environment)
        self.stack.callback(self.server.close)
        self.connect(self.server.url)
        self.create()
        url = self.proxy(self.server).url(self.server.url)
        return {"url": url, "async_url": url, "asyncpg_url": url.replace("+psycopg:", "+asyncpg:")}

    def is_able(self, fault: str) -> bool:
        return fault != "jump" or find_faketime() is not None

    def restore(self) -> None:
        super().restore()
        self.clock.set(0)

    def fail_over(self, standby: PostgresServer, since: float) -> None:
        """Have a standby take over. Whatever asks from now on asks that one; the old one is gone."""
        start = time.monotonic()
        [proxy] = self.proxies
        proxy.refuse()
        self.server.close()
        with standby.connect() as connection:
            connection.execute("SELECT pg_promote()")
        self.server = standby
        self.connect(standby.url)
        self.backup = None
        proxy.retarget(standby)
        proxy.restore()
        self.was_rewound(since, start)

    @staticmethod
    def kits(given: Given, storage: str, sides: Sides) -> list[Kit]:
        dsn = given["url"].replace("postgresql+psycopg:", "postgresql:")
        kits = SQL.kits(given, storage, sides)
        options: Any = {"min_size": 1, "max_size": 4, "timeout": GUARD_SECONDS}
        options["kwargs"] = {"connect_timeout": CONNECT_SECONDS}
        if sides.asynchronous:
            kits.append(sqlalchemy_kit(given["asyncpg_url"], sides))
            pool: Any = psycopg_pool.AsyncConnectionPool(dsn, open=False, **options)
            guard: Any = AsyncPsycopgGuard(pool, timeout=GUARD_SECONDS)
        else:
            pool = psycopg_pool.ConnectionPool(dsn, open=True, **options)
            guard = PsycopgGuard(pool, timeout=GUARD_SECONDS)
        return [*kits, Kit(guard, pool, PSYCOPG, sides.asynchronous)]
