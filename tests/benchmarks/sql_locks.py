"""Locks on PostgreSQL, compared with two autocommit UPDATEs of one row, and with other locks on the same server.

Each UPDATE takes its connection from the pool of an engine, as each request of a lock takes one from a pool.

A pair is an acquire and a release, on one core with the server, through SQLAlchemy and psycopg. With durable commits
the disk decides; without waiting for it, the requests do. The other libraries take part where they are installed.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import text

from fencing import SQLCoordinator
from fencing.sql.table import Request
from tests.benchmarks.contenders import AGAIN, OURS, Way
from tests.benchmarks.duel import WARM_UP, Contenders
from tests.benchmarks.measure import SEED, turns
from tests.benchmarks.parts import Found, Run
from tests.benchmarks.servers import cpu_seconds
from tests.benchmarks.sql_contenders import (
    ADVISORY,
    DLOCK,
    FOR_UPDATE,
    PALS,
    POLLING,
    TWO_UPDATES,
    Database,
    Requests,
    database,
    installed,
)

PAIR, HAND_OFF = "pair, µs", "hand-off, ms"
REQUESTS, WAL = "requests, n", "WAL, bytes"
CLIENT, SERVER = "client CPU, µs", "server CPU, µs"
DEAD, HOT, SIZE = "dead rows, n", "updates in their page, %", "table, kB"
PAIRS, VACUUMS = "pairs, n", "autovacuums, n"
CLIENT_A_SECOND, SERVER_A_SECOND = "client CPU a second, ms", "server CPU a second, ms"
REQUESTS_A_SECOND, WAL_A_SECOND = "requests a second, n", "WAL a second, kB"

DURABLE, NO_WAIT = "PostgreSQL locks", "PostgreSQL locks, without waiting for the disk"
WAITING, LEASES, UPKEEP = "PostgreSQL locks, waiting", "PostgreSQL locks, renewal", "PostgreSQL locks, vacuum"
SYNCHRONOUS = {DURABLE: True, NO_WAIT: False}
COUNTS = (1_000, 10_000)
MANY_PAIRS = 1_000_000
BATCH = 100
OPENING = 4
"""The first rounds of hand-offs open connections, and do not count."""

TTL = 10.0
LIMIT = 150.0
LONGEST_WAIT = 20.0
LIMIT_OF_PAIRS = 600.0
"""The pairs of many pairs end after so many seconds, however many they are by then."""

STATISTICS = (DEAD, HOT, VACUUMS, SIZE)
LEFT_BEHIND = text(
    "SELECT n_dead_tup, 100.0 * n_tup_hot_upd / n_tup_upd, autovacuum_count, pg_total_relation_size(relid) / 1024.0 "
    "FROM pg_stat_user_tables WHERE relname = 'fencing_locks'"
)


def leases_of(count: int) -> str:
    return f"{count:,} leases"


def part(run: Run) -> None:
    kinds = installed([OURS, OURS + AGAIN, TWO_UPDATES, ADVISORY, FOR_UPDATE, DLOCK, PALS])
    for scenario in SYNCHRONOUS:
        options = {"scenario": scenario, "kinds": kinds}
        run.duel(scenario, "sql_locks.opened", {PAIR: (TWO_UPDATES,), CLIENT: ()}, rounds=500, seconds=LIMIT, **options)
        if run.other:
            continue
        found = run.child(scenario, "all", "sql_locks.costs", seconds=LIMIT, rounds=run.rounds(10), **options)
        run.compare(scenario, found or {}, {})
    if run.other:
        return
    run.say(WAITING)
    waiting = installed([OURS, OURS + AGAIN, POLLING, ADVISORY, FOR_UPDATE, DLOCK, PALS])
    found = run.child(WAITING, "all", "sql_locks.hand_offs", seconds=LIMIT, rounds=run.rounds(40), kinds=waiting)
    run.compare(WAITING, found or {}, {HAND_OFF: (ADVISORY,)})
    for count in COUNTS:
        run.say(f"{LEASES}: {count:,}")
        found = run.child(LEASES, leases_of(count), "sql_locks.renewals", seconds=LIMIT, count=count, cycles=3)
        run.compare(LEASES, {leases_of(count): found or {}}, {})
    run.say(UPKEEP)
    pairs = MANY_PAIRS if run.everything else run.rounds(20_000)
    found = run.child(UPKEEP, OURS, "sql_locks.left_behind", seconds=LIMIT_OF_PAIRS + LIMIT, pairs=pairs)
    run.compare(UPKEEP, {OURS: found or {}}, {})


@contextmanager
def opened(scenario: str, kinds: list[str]) -> Iterator[Contenders]:
    """Open the locks."""
    with database(synchronous=SYNCHRONOUS[scenario]) as its:
        yield Contenders({kind: partial(_pair, way) for kind, way in _ways(its, kinds).items()})


def costs(scenario: str, rounds: int, kinds: list[str]) -> Found:
    """Return what each kind of pair costs the client and the server. Runs in a child."""
    found: dict[str, dict[str, list[float]]] = {kind: {WAL: [], CLIENT: [], SERVER: []} for kind in kinds}
    with database(synchronous=SYNCHRONOUS[scenario]) as its:
        ways = _ways(its, kinds)
        sessions = its.sessions()
        for kind in turns(kinds, rounds):
            before = its.wal_bytes(), time.process_time(), _cpu(sessions)
            for _ in range(BATCH):
                _pair(ways[kind])
            spent = time.process_time(), _cpu(sessions)
            after = its.wal_bytes(), *spent
            for values, unit, begin, end in zip(found[kind].values(), (1, 1e6, 1e6), before, after, strict=True):
                values.append((end - begin) * unit / BATCH)
        return {kind: {REQUESTS: [_requests(its, kind)], **measured} for kind, measured in found.items()}


def _requests(its: Database, kind: str) -> float:
    with Requests() as requests:
        [way] = _ways(its, [kind]).values()
        before = requests.count
        for _ in range(BATCH):
            _pair(way)
        return (requests.count - before) / BATCH


def hand_offs(rounds: int, kinds: list[str]) -> Found:
    """Return the milliseconds from a release to the return of the waiter's acquire. Runs in a child."""
    random_turns = random.Random(SEED)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    with database(synchronous=True) as its:
        ways = {kind: (its.way(kind), its.way(kind)) for kind in kinds if not kind.endswith(AGAIN)}
        for kind in turns(kinds, rounds + OPENING):
            holder, waiter = random_turns.sample(ways[kind.removesuffix(AGAIN)], 2)
            holder.acquire()
            granted: list[float] = []

            def wait(waiter: Way = waiter, granted: list[float] = granted) -> None:
                waiter.acquire()
                granted.append(time.perf_counter())
                waiter.release()

            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(random_turns.uniform(0.05, 0.25))  # at any moment between two polls, but after a request
            released = time.perf_counter()
            holder.release()
            thread.join()
            times[kind].append((granted[0] - released) * 1e3)
    return {kind: {HAND_OFF: found[OPENING:]} for kind, found in times.items()}


class _Counting(SQLCoordinator):
    """A coordinator that counts its requests. On PostgreSQL each renewal is one round trip."""

    requests = 0

    def __init__(self, engine: Any, **options: Any) -> None:
        super().__init__(engine, **options)
        self._perform, self._backend.perform = self._backend.perform, self._counted  # type: ignore[method-assign]

    def _counted(self, effect: Any) -> Any:
        self.requests += isinstance(effect, Request)
        return self._perform(effect)


def renewals(count: int, cycles: int) -> dict[str, list[float]]:
    """Return what it costs each second to keep so many leases, cycle by cycle. Runs in a child.

    Each lease is renewed once in a cycle: 0.4 of the ttl. Commits wait for the disk, except those of the grants.
    """
    found: dict[str, list[float]] = {}
    with database(synchronous=False) as its, _Counting(its.engine(), ttl=TTL) as coordinator:
        leases = [coordinator.acquire(f"orders:{number}", timeout=5) for number in range(count)]
        its.set_synchronous(True)
        time.sleep(TTL / 2)  # the first renewals do some things for the only time
        sessions = its.sessions()
        for _ in range(cycles):
            started = time.perf_counter()
            before = its.wal_bytes(), coordinator.requests, time.process_time(), _cpu(sessions)
            time.sleep(0.4 * TTL)
            spent = coordinator.requests, time.process_time(), _cpu(sessions)
            after = its.wal_bytes(), *spent
            seconds = time.perf_counter() - started
            units = {WAL_A_SECOND: 1 / 1024, REQUESTS_A_SECOND: 1, CLIENT_A_SECOND: 1e3, SERVER_A_SECOND: 1e3}
            for (what, unit), begin, end in zip(units.items(), before, after, strict=True):
                found.setdefault(what, []).append((end - begin) * unit / seconds)
        lost = [lease for lease in leases if not lease.held]
        if lost:
            raise RuntimeError(f"{len(lost)} leases were lost: {lost[0]!r}")
        for lease in leases:
            lease.detach()  # else they would all be released at the end
    return found


def left_behind(pairs: int) -> dict[str, list[float]]:
    """Return what so many pairs of one lock leave in the table, with autovacuum on. Runs in a child."""
    with database(synchronous=False) as its:
        way, until, done = its.way(OURS), time.monotonic() + LIMIT_OF_PAIRS, 0
        while done < pairs and time.monotonic() < until:
            _pair(way)
            done += 1
        its.close()
        _wait_for(lambda: not its.sessions())  # the statistics of a session are complete when it has ended
        with its.engine().connect() as connection:
            row = connection.execute(LEFT_BEHIND).one()
        return {PAIRS: [done], **{what: [float(value)] for what, value in zip(STATISTICS, row, strict=True)}}


def _ways(its: Database, kinds: list[str]) -> dict[str, Way]:
    """Return the ways of these kinds, warmed up. The A/A comparison shares that of what it is compared with."""
    ways: dict[str, Way] = {}
    for kind in kinds:
        ways[kind] = ways.get(kind.removesuffix(AGAIN)) or its.way(kind)
        for _ in range(WARM_UP):
            _pair(ways[kind])
    return ways


def _pair(way: Way) -> None:
    way.acquire()
    way.release()


def _wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + LONGEST_WAIT
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.001)


def _cpu(pids: list[int]) -> float:
    return sum(map(cpu_seconds, pids))
