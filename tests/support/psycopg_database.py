"""A psycopg guard, sync or async, perhaps behind a proxy; and the database seen directly, without faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from fencing import Fence
from storage_guards import AsyncPsycopgGuard, PsycopgGuard
from tests.support.servers import Proxy
from tests.support.sides import Side

MINE = Fence("orders:1", 5, "a" * 22)
NEWER = Fence("orders:1", 6, "b" * 22)
OTHER = Fence("orders:2", 5, "c" * 22)
ADD = "INSERT INTO done VALUES (%s)"


def dsn_of(url: str) -> str:
    return url.replace("postgresql+psycopg:", "postgresql:")


class Database:
    """A guard on a pool, and another guard beside it.

    Args:
        side: whether the guard is sync or async.
        url: of the database.
        proxy: between the guard and it.
        size: of the guard's pool.
        guard_timeout: of the guard.
        settings: of the pool's connections.
    """

    def __init__(
        self,
        side: Side,
        url: str,
        proxy: Proxy | None = None,
        *,
        size: int = 2,
        guard_timeout: float = 10.0,
        **settings: Any,
    ) -> None:
        self.side, self.proxy = side, proxy
        self.url, self.dsn = url, dsn_of(url)
        self.direct = psycopg.connect(self.dsn, autocommit=True)
        self.direct.execute("CREATE TABLE done (id INTEGER PRIMARY KEY)")
        self.beside = PsycopgGuard(self.dsn)
        self.beside.create_tables()
        dsn = self.dsn if proxy is None else proxy.url(self.dsn)
        options: dict[str, Any] = {"min_size": 1, "max_size": size, "open": False, "reconnect_timeout": 30}
        if side.asynchronous:
            self.pool: Any = AsyncConnectionPool(dsn, kwargs=settings, **options)
            self.guard: Any = AsyncPsycopgGuard(self.pool, timeout=guard_timeout)
        else:
            self.pool = ConnectionPool(dsn, kwargs=settings, **options)
            self.guard = PsycopgGuard(self.pool, timeout=guard_timeout)
        side.call(self.pool.open)

    def write(self, id_: int, *, fence: Fence = MINE, **options: Any) -> int:
        return int(self.side.call(self.guard.write, fence, ADD, [id_], **options))

    def block(self, *fences: Fence, body: Callable[[Any], Any], **options: Any) -> Callable[[], Any]:
        """Return a guarded block as a function; ``body`` may return an awaitable, which is awaited in it."""

        def run() -> None:
            with self.guard.begin(*fences, **options) as connection:
                body(connection)

        async def run_async() -> None:
            async with self.guard.begin(*fences, **options) as connection:
                result = body(connection)
                if isinstance(result, Awaitable):
                    await result

        return run_async if self.side.asynchronous else run

    @property
    def done(self) -> set[int]:
        return {row[0] for row in self.direct.execute("SELECT id FROM done")}

    def close(self) -> None:
        self.side.call(self.pool.close)
        self.direct.close()
