"""A guard of either colour on psycopg, perhaps behind a proxy; and the database seen directly, without faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from fencing import Fence, OutcomeUnknown
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
    """A guard whose next commit can lose its answer, and another guard beside it.

    Args:
        side: the guard's colour.
        url: of the database.
        proxy: between the guard and it.
        size: of the guard's pool.
        connects: the guard has no pool, and connects for each operation.
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
        connects: bool = False,
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
            self.guard: Any = AsyncPsycopgGuard(dsn if connects else self.pool, timeout=guard_timeout)
        else:
            self.pool = ConnectionPool(dsn, kwargs=settings, **options)
            self.guard = PsycopgGuard(dsn if connects else self.pool, timeout=guard_timeout)
        if not connects:
            side.call(self.pool.open)

    def lose(self, what: str) -> None:
        """The next commit's reply, or its request."""
        assert self.proxy is not None
        drop = self.proxy.drop_reply_when if what == "reply" else self.proxy.drop_request_when
        drop(lambda request: b"COMMIT\0" in request)

    def lost_write(self, what: str, id_: int, *, fence: Fence = MINE, **options: Any) -> OutcomeUnknown:
        self.lose(what)
        return self.side.expect(OutcomeUnknown, self.guard.write, fence, ADD, [id_], **options)

    def write(self, id_: int, *, fence: Fence = MINE, **options: Any) -> int:
        return int(self.side.call(self.guard.write, fence, ADD, [id_], **options))

    def landed(self, error: OutcomeUnknown) -> Any:
        return self.side.call(self.guard.landed, error)

    def block(self, *fences: Fence, body: Callable[[Any], Any], **options: Any) -> Callable[[], Any]:
        """A guarded block of the guard's colour; ``body`` may return an awaitable, which is awaited in it."""

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

    def kill(self, pid: int) -> None:
        self.direct.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    def close(self) -> None:
        self.side.call(self.pool.close)
        self.direct.close()
