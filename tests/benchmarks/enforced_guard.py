"""What enforcement costs: the same guarded writes on a database that does not enforce, and on one that does.

Run it as ``python -m tests.benchmarks.enforced_guard``. The data are not forced to the disk, so a real commit makes the
ratio smaller.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import psycopg

from examples.servers import start_postgres
from fencing import Fence
from storage_guards import PsycopgGuard
from tests.support.enforced import Roles, dsn, two_roles

ROUNDS, TIMES, ROWS = 9, 200, 1000
MINE = Fence("orders:1", 1, "a" * 22)


def main() -> None:
    with start_postgres() as server, two_roles(server.create_database()) as roles:
        roles.owners_guard().create_tables()
        with roles.as_owner() as owner:
            owner.execute(
                "CREATE TABLE plain (id INTEGER PRIMARY KEY, total INTEGER, resource TEXT DEFAULT 'orders:1')"
            )
            owner.execute("INSERT INTO plain SELECT n, 0 FROM generate_series(1, 1000) AS n")
        before = measure(roles)
        roles.owners_guard().enforce("plain", resource="resource", role=roles.app)
        after = measure(roles)
        for name, seconds in before.items():
            ratio = after[name] / seconds
            print(f"{name}: {seconds * 1e6:.0f} us, enforced {after[name] * 1e6:.0f} us: {ratio:.2f} times")


def measure(roles: Roles) -> dict[str, float]:
    """Seconds for each of several writes, the median of some rounds."""
    with psycopg.connect(dsn(roles.app_url)) as connection:
        guard = PsycopgGuard(connection)
        guard.claim(MINE)

        def all_rows() -> None:
            guard.write(MINE, "UPDATE plain SET total = total + 1")

        return {
            "one guarded write": typical(lambda: guard.write(MINE, "UPDATE plain SET total = 1 WHERE id = 1"), TIMES),
            "a claim": typical(lambda: guard.claim(MINE), TIMES),
            f"{ROWS} rows in one statement, a row": typical(all_rows, 3) / ROWS,
        }


def typical(function: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(times):
            function()
        found.append((time.perf_counter() - began) / times)
    return statistics.median(found)


if __name__ == "__main__":
    main()
