"""A guarded write, its mark already claimed, against the same write in its own BEGIN … COMMIT through psycopg.

    python -m tests.benchmarks.psycopg_guard [rounds]

Both take their connection from the same kind of source, turn about, on one core with the server's process (or else the
scheduler decides what is measured), with fsync and synchronous_commit on. Printed: medians of the ratios of neighbours,
with the 10th and the 90th percentile.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from examples.servers import start_postgres
from fencing import Fence
from storage_guards import PsycopgGuard

TARGET = 1.35
ROUNDS = 2_000
WARM_UP = 100
MINE = Fence("orders:1", 1, "a" * 22)
ADD = "UPDATE orders SET total = total + %s WHERE id = %s"


def main(rounds: int) -> None:
    with start_postgres(settings={"fsync": "on", "full_page_writes": "on"}, local=True) as server:
        dsn = server.create_database().replace("+psycopg", "")
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total BIGINT NOT NULL)")
            admin.execute("INSERT INTO orders VALUES (1, 0)")
        print(f"PostgreSQL {'.'.join(map(str, server.version))}, psycopg {psycopg.__version__} ({psycopg.pq.__impl__})")
        for synchronous in ("on", "off"):
            options: dict[str, Any] = {"options": f"-c synchronous_commit={synchronous}"}
            with psycopg.connect(dsn, **options) as connection:
                guard = PsycopgGuard(connection)
                guard.create_tables()
                guard.claim(MINE)

                def plain(connection: psycopg.Connection[Any] = connection) -> None:
                    connection.execute(ADD, (1, 1))
                    connection.commit()

                compare(f"connection, sync {synchronous}", connection, plain, guard, rounds)
            with ConnectionPool(dsn, kwargs=options, min_size=1, max_size=1, open=True) as pool:

                def pooled(pool: ConnectionPool = pool) -> None:
                    with pool.connection() as connection:
                        connection.execute(ADD, (1, 1))

                with pool.connection() as connection:
                    pass
                compare(f"pool, sync {synchronous}", connection, pooled, PsycopgGuard(pool), rounds)


def compare(
    name: str, connection: psycopg.Connection[Any], plain: Callable[[], None], guard: PsycopgGuard, rounds: int
) -> None:
    pin(connection.info.backend_pid)

    def write() -> None:
        guard.write(MINE, ADD, (1, 1))

    def begin() -> None:
        with guard.begin(MINE) as inside:
            inside.execute(ADD, (1, 1))

    kinds = {"plain": plain, "write": write, "begin": begin}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(-WARM_UP, rounds):
        for kind, function in kinds.items():
            started = time.perf_counter()
            function()
            if turn >= 0:
                times[kind].append(time.perf_counter() - started)
    print(f"{name:22} plain {statistics.median(times['plain']) * 1e6:4.0f} µs", end="")
    for kind in ("write", "begin"):
        ratios = [one / other for one, other in zip(times[kind], times["plain"], strict=True)]
        low, *_, high = statistics.quantiles(ratios, n=10)
        print(f"   {kind} x {statistics.median(ratios):.2f} ({low:.2f} … {high:.2f})", end="")
    print(f"   target x {TARGET}" if name.endswith("on") else "")


def pin(pid: int) -> None:
    with suppress(AttributeError, PermissionError):  # not on every system
        for each in (0, pid):
            os.sched_setaffinity(each, {0})


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)
