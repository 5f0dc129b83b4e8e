"""Enforcement in the database: the same guarded writes on a PostgreSQL that enforces, and on one that does not.

The data are not forced to the disk. The commits of a real server make the ratios smaller.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg

from examples.servers import start_postgres
from fencing import Fence
from storage_guards import PsycopgGuard
from tests.benchmarks.measure import ratios
from tests.benchmarks.parts import Run
from tests.support.enforced import Roles, dsn, two_roles

ROUNDS, TIMES, ROWS = 9, 200, 1000
MINE = Fence("orders:1", 1, "a" * 22)
ENFORCED, TIME, RATIO = "enforced", "time, µs", "time x not enforced"
WRITE, CLAIM, EACH_ROW = "a guarded write", "a claim", f"each row of a statement with {ROWS} rows"

Times = dict[str, list[float]]


def part(run: Run) -> None:
    run.say(ENFORCED)
    found = run.child(ENFORCED, "all", "enforced_guard.measure", seconds=120, rounds=run.rounds(ROUNDS))
    if found is not None:
        for name, (before, after) in found.items():
            run.add(ENFORCED, name, TIME, after)
            run.add(ENFORCED, name, RATIO, ratios(after, before))


def measure(rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return the microseconds of several writes, before and after enforcement. Runs in a child."""
    with start_postgres(local=True) as server, two_roles(server.create_database()) as roles:
        roles.owners_guard().create_tables()
        with roles.as_owner() as owner:
            owner.execute(
                "CREATE TABLE plain (id INTEGER PRIMARY KEY, total INTEGER, resource TEXT DEFAULT 'orders:1')"
            )
            owner.execute("INSERT INTO plain SELECT n, 0 FROM generate_series(1, 1000) AS n")
        before = _writes(roles, rounds)
        roles.owners_guard().enforce("plain", resource="resource", role=roles.app)
        after = _writes(roles, rounds)
        return {name: (its, after[name]) for name, its in before.items()}


def _writes(roles: Roles, rounds: int) -> Times:
    with psycopg.connect(dsn(roles.app_url)) as connection:
        guard = PsycopgGuard(connection)
        guard.claim(MINE)

        def all_rows() -> None:
            guard.write(MINE, "UPDATE plain SET total = total + 1")

        return {
            WRITE: _timed(lambda: guard.write(MINE, "UPDATE plain SET total = 1 WHERE id = 1"), rounds, TIMES),
            CLAIM: _timed(lambda: guard.claim(MINE), rounds, TIMES),
            EACH_ROW: [its / ROWS for its in _timed(all_rows, rounds, 3)],
        }


def _timed(function: Callable[[], object], rounds: int, times: int) -> list[float]:
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(times):
            function()
        found.append((time.perf_counter() - began) / times * 1e6)
    return found
