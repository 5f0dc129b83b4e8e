"""Locks on PostgreSQL, compared with two autocommit UPDATEs of one row, and with other locks on the same server.

A pair is an acquire and a release, on one core with the server, through SQLAlchemy and psycopg. With durable commits
the disk decides; without waiting for it, the requests do. The other libraries take part where they are installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import create_engine, text

from examples.servers import start_postgres
from fencing import Fence, SQLCoordinator
from fencing.kernel.effects import run as run_plan
from fencing.locks.holding import Grant
from tests.benchmarks.contenders import AGAIN, OURS
from tests.benchmarks.measure import turns
from tests.benchmarks.parts import Found, Run

TWO_UPDATES = "two autocommit UPDATEs"
ADVISORY, FOR_UPDATE = "advisory lock", "SELECT FOR UPDATE"
DLOCK, PALS = "sqlalchemy-dlock", "PALs"
PAIR, HAND_OFF = "pair, µs", "hand-off, ms"
RENEWAL, DEAD, SIZE = "renewal, ms", "dead rows, n", "table, kB"

DURABLE, NO_WAIT = "PostgreSQL locks", "PostgreSQL locks, without waiting for the disk"
WAITING, LEASES, UPKEEP = "PostgreSQL locks, waiting", "PostgreSQL locks, renewal", "PostgreSQL locks, vacuum"
SYNCHRONOUS = {DURABLE: "on", NO_WAIT: "off"}
COUNTS = (1_000, 10_000)
PAIRS = 1_000_000
WARM_UP = 30
LIMIT = 150.0
LIMIT_OF_PAIRS = 1100.0

UPDATE = text("UPDATE plain SET total = total + 1 WHERE name = 'orders:42'")
SELECT_FOR_UPDATE = text("SELECT total FROM plain WHERE name = 'orders:42' FOR UPDATE")


def part(run: Run) -> None:
    kinds = [OURS, OURS + AGAIN, TWO_UPDATES, ADVISORY, FOR_UPDATE]
    kinds += [
        name for name, module in ((DLOCK, "sqlalchemy_dlock"), (PALS, "pals")) if importlib.util.find_spec(module)
    ]
    for scenario in SYNCHRONOUS:
        run.say(scenario)
        options = {"scenario": scenario, "rounds": run.rounds(500), "kinds": kinds}
        found = run.child(scenario, "all", "sql_locks.measure", seconds=LIMIT, **options)
        if found is not None:
            run.compare(scenario, found, {PAIR: (TWO_UPDATES,)})
    run.say(WAITING)
    times = run.child(WAITING, OURS, "sql_locks.hand_offs", seconds=LIMIT, rounds=run.rounds(300))
    run.add(WAITING, OURS, HAND_OFF, times or [])
    for count in COUNTS:
        run.say(f"{LEASES}: {count:,}")
        times = run.child(LEASES, f"{count:,} leases", "sql_locks.renewals", seconds=LIMIT, count=count)
        run.add(LEASES, f"{count:,} leases", RENEWAL, times or [])
    run.say(UPKEEP)
    pairs = PAIRS if run.everything else run.rounds(20_000)
    left = run.child(UPKEEP, f"{pairs:,} pairs", "sql_locks.left_behind", seconds=LIMIT_OF_PAIRS, pairs=pairs)
    if left is not None:
        run.add(UPKEEP, f"{pairs:,} pairs", DEAD, [left["dead"]])
        run.add(UPKEEP, f"{pairs:,} pairs", SIZE, [left["bytes"] / 1024])


def measure(scenario: str, rounds: int, kinds: list[str]) -> Found:
    """Return the time of each kind of pair, round by round. Runs in a child."""
    with _engine(SYNCHRONOUS[scenario]) as engine, SQLCoordinator(engine) as coordinator:
        pairs = {name: make(engine) for name, make in OTHERS.items() if name in kinds}
        pairs[OURS] = pairs[OURS + AGAIN] = partial(_pair, coordinator)
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for kind in kinds * WARM_UP:
            pairs[kind]()
        for kind in turns(kinds, rounds):
            started = time.perf_counter()
            pairs[kind]()
            times[kind].append((time.perf_counter() - started) * 1e6)
        return {kind: {PAIR: its} for kind, its in times.items()}


def hand_offs(rounds: int) -> list[float]:
    """Return the milliseconds from a release to the return of the waiter's acquire, in another coordinator."""
    times = []
    with _engine("on") as engine, SQLCoordinator(engine) as one, SQLCoordinator(engine) as other:
        lease = one.acquire("orders:42", timeout=5)
        for here, there in [(one, other), (other, one)] * (rounds // 2 + 2):
            got: list[Any] = []

            def wait(coordinator: SQLCoordinator = there, got: list[Any] = got) -> None:
                got += [coordinator.acquire("orders:42", timeout=20), time.perf_counter()]

            thread = threading.Thread(target=wait)
            thread.start()
            while not there.is_waited_for("orders:42"):
                time.sleep(0.001)
            time.sleep(0.01)  # until its request has been answered
            released = time.perf_counter()
            lease.release()
            thread.join()
            lease, granted = got
            times.append((granted - released) * 1e3)
            assert here is not there
        lease.release()
    return times[4:]  # the first ones wait for the listeners to connect


def renewals(count: int) -> list[float]:
    """Return the milliseconds of renewing so many leases, ten times."""
    with _engine("on") as engine, SQLCoordinator(engine, ttl=60) as coordinator:
        grants = [Grant(Fence(f"orders:{i}", 1, f"{i:022}"), 0.0) for i in range(count)]
        until = time.time_ns() // 1000 + 3_600_000_000
        with engine.begin() as connection:
            rows = [{"name": each.fence.resource, "token": each.fence.token, "until": until} for each in grants]
            columns = "resource, number, token, owner, granted_at, expires_at"
            insert = f"INSERT INTO fencing_locks ({columns}) VALUES (:name, 1, :token, '', 0, :until)"
            connection.execute(text(insert), rows)
        times = []
        for _ in range(11):
            started = time.perf_counter()
            for i in range(0, count, coordinator.max_renewals):
                some = grants[i : i + coordinator.max_renewals]
                plan = coordinator.plan_renew(some, coordinator.settings, deadline=coordinator.clock() + 30)
                assert all(run_plan(plan, coordinator.perform))
            times.append((time.perf_counter() - started) * 1e3)
        return times[1:]


def left_behind(pairs: int) -> dict[str, int]:
    """Return the dead rows, and the size of the table, after so many pairs of one lock, with autovacuum on."""
    with _engine("off") as engine, SQLCoordinator(engine) as coordinator:
        for _ in range(pairs):
            _pair(coordinator)
        time.sleep(1.0)  # the statistics are written once a second
        with engine.connect() as connection:
            dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'fencing_locks'"
            size = "SELECT pg_total_relation_size('fencing_locks')"
            return {
                "dead": int(connection.execute(text(dead)).scalar_one()),
                "bytes": int(connection.execute(text(size)).scalar_one()),
            }


def _pair(coordinator: SQLCoordinator) -> None:
    coordinator.acquire("orders:42", timeout=5).release()


def _two_updates(engine: Any) -> Callable[[], None]:
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def pair() -> None:
        connection.execute(UPDATE)
        connection.execute(UPDATE)

    return pair


def _advisory(engine: Any) -> Callable[[], None]:
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def pair() -> None:
        connection.execute(text("SELECT pg_advisory_lock(42)"))
        connection.execute(text("SELECT pg_advisory_unlock(42)"))

    return pair


def _for_update(engine: Any) -> Callable[[], None]:
    connection = engine.connect()

    def pair() -> None:
        with connection.begin():
            connection.execute(SELECT_FOR_UPDATE)

    return pair


def _dlock(engine: Any) -> Callable[[], None]:
    create_sadlock = importlib.import_module("sqlalchemy_dlock").create_sadlock
    connection = engine.connect()

    def pair() -> None:
        with create_sadlock(connection, "orders:42"):
            pass
        connection.rollback()

    return pair


def _pals(engine: Any) -> Callable[[], None]:
    locker = importlib.import_module("pals").Locker("bench", create_engine_callable=lambda: engine)

    def pair() -> None:
        with locker.lock("orders:42"):
            pass

    return pair


OTHERS = {TWO_UPDATES: _two_updates, ADVISORY: _advisory, FOR_UPDATE: _for_update, DLOCK: _dlock, PALS: _pals}


@contextmanager
def _engine(synchronous: str) -> Iterator[Any]:
    """An engine of a new database with the tables, on a server that waits for the disk, and vacuums."""
    with start_postgres(settings={"fsync": "on", "full_page_writes": "on"}, local=True) as server:
        arguments = {"options": f"-c synchronous_commit={synchronous}"}
        engine = create_engine(server.create_database(), connect_args=arguments)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE plain (name TEXT PRIMARY KEY, total BIGINT) WITH (fillfactor = 50)"))
            connection.execute(text("INSERT INTO plain VALUES ('orders:42', 0)"))
        with SQLCoordinator(engine) as coordinator:
            coordinator.create_tables()
        yield engine
        engine.dispose()
