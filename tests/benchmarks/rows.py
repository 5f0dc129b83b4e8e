"""The rows of `make bench`: what is measured, and its target. A row whose target is missed is an open fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks import (
    calls,
    cluster,
    contended,
    etcd,
    failures,
    guards,
    live,
    object_store,
    pair,
    redlock,
    renewal,
    sql,
    sql_locks,
    start,
    zookeeper,
)
from tests.benchmarks.contenders import OURS, REDIS_PY
from tests.benchmarks.etcd_contenders import ASYNC, ASYNC_RECIPE, RECIPE, SERVICE
from tests.benchmarks.pair import scenario_of
from tests.benchmarks.parts import Figure, ratio_to
from tests.benchmarks.raw import PINGS, RAW
from tests.benchmarks.sql_contenders import ADVISORY, TWO_UPDATES

Place = tuple[str, str, str, str]
"""Part, scenario, of, what: where a figure is found."""


@dataclass(frozen=True, slots=True)
class Row:
    """A limit for the worst of some figures: at most ``limit``, or at least. None: no target.

    It is left out without figures if they ``need`` a server that not every machine has.
    """

    name: str
    limit: float | None
    places: tuple[Place, ...]
    unit: str = "x"
    at_least: bool = False
    need: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a row. ``figure`` is None if nothing was measured; ``said`` is the result in words."""

    row: Row
    figure: Figure | None
    met: bool
    said: str


def assess(row: Row, figures: Mapping[str, Sequence[Figure]]) -> Verdict:
    """Compare a row with the figures of a run. The median decides."""
    found = [_find(place, figures) for place in row.places]
    there = [figure for figure in found if figure is not None]
    if not there:
        return Verdict(row, None, False, "not measured")
    worst = (min if row.at_least else max)(there, key=lambda figure: figure.median)
    if row.limit is None:
        return Verdict(row, worst, True, "")
    met = worst.median >= row.limit if row.at_least else worst.median <= row.limit
    said = "met"
    if not met:
        said = "MISSED" + (f" ({worst.scenario})" if len(there) > 1 else "")
    if len(there) < len(found):
        met, said = False, f"{len(found) - len(there)} of {len(found)} not measured"
    return Verdict(row, worst, met, said)


def verdicts(figures: Mapping[str, Sequence[Figure]]) -> list[Verdict]:
    """Return the results of the rows of the parts that were run."""
    found = [assess(row, figures) for row in ROWS if any(place[0] in figures for place in row.places)]
    return [verdict for verdict in found if verdict.figure is not None or not verdict.row.need]


def _find(place: Place, figures: Mapping[str, Sequence[Figure]]) -> Figure | None:
    part, *rest = place
    for figure in figures.get(part, ()):
        if [figure.scenario, figure.of, figure.what] == rest:
            return figure
    return None


def _row(
    name: str,
    limit: float | None,
    part: str,
    scenarios: str | Iterable[str],
    what: str,
    of: str = OURS,
    *,
    unit: str = "x",
    at_least: bool = False,
) -> Row:
    scenarios = [scenarios] if isinstance(scenarios, str) else scenarios
    return Row(name, limit, tuple((part, scenario, of, what) for scenario in scenarios), unit, at_least)


ONE_THREAD, EIGHT_THREADS = scenario_of("threads", 1, True), scenario_of("threads", 8, True)
TASK, MANY_TASKS = scenario_of("tasks", 1, True), scenario_of("tasks", 64, True)
THREADS = tuple(scenario_of("threads", count, True) for count in (2, 8, 32))
PROCESSES = tuple(scenario_of("processes", count, True) for count in (8, 32))
TASKS = tuple(scenario_of("tasks", count, True) for count in (100, 1000))
TIME_X, CPU_X = ratio_to(REDIS_PY, pair.TIME), ratio_to(REDIS_PY, pair.CPU)
RAW_X, PINGS_X, OURS_X = (ratio_to(other, pair.TIME) for other in (RAW, PINGS, OURS))
GRANTS_X, P50_X, P99_X, WAIT_X = (
    ratio_to(REDIS_PY, what) for what in (contended.GRANTS, contended.P50, contended.P99, contended.WAIT)
)
LEASES = ("renewal", renewal.scenario_of(renewal.LEASES), OURS)
MANY = live.MANY.format(live.LEVELS[-1])
RENEWALS = tuple(cluster.renewals_of(10_000, kind) for kind in ("sync", "async"))
NODES = cluster.CLUSTER.format(cluster.NODES)
ONE_X = {what: ratio_to(cluster.ONE, what) for what in (pair.TIME, cluster.SERVER, cluster.CLIENT)}
PLAIN_X, UPDATES_X = ratio_to(sql.PLAIN, sql.TIME), ratio_to(TWO_UPDATES, sql_locks.PAIR)
HAND_OFF_X = ratio_to(SERVICE, etcd.HAND_OFF)
BARE_X = ratio_to(renewal.BARE, renewal.PACED)
START_X = ratio_to(start.REDIS, start.TIME)
PUT_X = ratio_to(object_store.PUT, object_store.TIME)
STORE, STORE_MANY = ("object_store", object_store.SCENARIO), object_store.PUBLISH_MANY

ROWS = (
    _row(f"pair / {RAW}", 1.45, "pair", ONE_THREAD, RAW_X),
    _row(f"pair / {REDIS_PY}", 0.44, "pair", ONE_THREAD, TIME_X),
    _row(f"own {RAW} / {PINGS}", 1.45, "pair", ONE_THREAD, PINGS_X, RAW),
    _row(f"pair, {pair.SHARE}", 0.15, "pair", ONE_THREAD, pair.SHARE),
    _row("hold() / acquire and release", 1.04, "pair", ONE_THREAD, OURS_X, pair.HOLD),
    _row("coordinator.hold() / acquire and release", 1.10, "pair", ONE_THREAD, OURS_X, pair.COORDINATOR_HOLD),
    _row(f"hold() inside its own hold() / {PINGS}", 0.15, "pair", ONE_THREAD, PINGS_X, pair.INNER),
    _row("locked() / hold()", 1.1, "pair", ONE_THREAD, ratio_to(pair.HOLD, pair.TIME), pair.LOCKED),
    _row(f"pair, client CPU / {REDIS_PY}", 0.30, "pair", ONE_THREAD, CPU_X),
    _row(f"pair, {pair.COMPAT} / {REDIS_PY}", 0.60, "pair", ONE_THREAD, TIME_X, pair.COMPAT),
    _row(f"pair without hiredis / {REDIS_PY}", 0.38, "pair", scenario_of("threads", 1, True, hiredis=False), TIME_X),
    _row(f"pair, 8 threads / {REDIS_PY}", 0.42, "pair", EIGHT_THREADS, TIME_X),
    _row(f"asyncio pair, one task / {REDIS_PY}", 0.43, "tasks", TASK, TIME_X),
    _row(f"asyncio pair, one task / {RAW}", None, "tasks", TASK, RAW_X),
    _row(f"asyncio pair, 64 tasks / {REDIS_PY}", 0.165, "tasks", MANY_TASKS, TIME_X),
    _row(f"asyncio pair, 64 tasks / {RAW}", None, "tasks", MANY_TASKS, RAW_X),
    *(
        _row(f"contention, {name}", limit, "contended", scenarios, what, unit=unit, at_least=at_least)
        for name, limit, scenarios, what, unit, at_least in (
            ("fairness (Jain)", 0.98, (*THREADS, *PROCESSES, *TASKS), contended.FAIRNESS, "", True),
            ("commands a grant", 3.1, (*THREADS, *PROCESSES, *TASKS), contended.COMMANDS, "", False),
            (f"2 to 32 threads: grants/s / {REDIS_PY}", 1.0, THREADS, GRANTS_X, "x", True),
            (f"8 processes: grants/s / {REDIS_PY}", 0.95, PROCESSES[:1], GRANTS_X, "x", True),
            (f"2 to 32 threads: hand-off p50 / {REDIS_PY}", 0.95, THREADS, P50_X, "x", False),
            (f"8 processes: hand-off p50 / {REDIS_PY}", 1.5, PROCESSES[:1], P50_X, "x", False),
            (f"32 processes: hand-off p50 / {REDIS_PY}", 1.6, PROCESSES[1:], P50_X, "x", False),
            (f"100 tasks: hand-off p50 / {REDIS_PY}", 0.43, TASKS[:1], P50_X, "x", False),
            (f"1000 tasks: hand-off p50 / {REDIS_PY}", 0.66, TASKS[1:], P50_X, "x", False),
            (f"2 to 32 threads: hand-off p99 / {REDIS_PY}", 0.8, THREADS, P99_X, "x", False),
            (f"2 to 32 threads: longest wait / {REDIS_PY}", 0.05, THREADS, WAIT_X, "x", False),
        )
    ),
    *(
        _row(f"{scenario}: until the next has it", limit, "failures", scenario, failures.WHAT, unit="ms")
        for scenario, limit in (
            (failures.WAITER_KILLED, 5.0),
            (failures.WAITER_FROZEN, 270.0),
            (failures.CROWD_KILLED, 5.0),
            (failures.CROWD_FROZEN, 270.0),
            (failures.HOLDER_KILLED, 20.0),
        )
    ),
    Row("renewal, client CPU / 1,000 threads", 0.10, ((*LEASES, ratio_to(renewal.THREAD_EACH, renewal.CPU)),)),
    Row("renewal, server time of 100 leases", 350.0, ((*LEASES, renewal.SERVER),), "µs"),
    Row(f"renewal, server time of 100 leases / {renewal.BARE}", 1.25, (("renewal", renewal.SCRIPT, OURS, BARE_X),)),
    Row("renewal, requests a second of 100 leases", 2.0, (("renewal", renewal.SPREAD, OURS, renewal.REQUESTS),), ""),
    _row(f"Cluster, pair / {cluster.ONE}", 1.15, "cluster", cluster.PAIRS, ONE_X[pair.TIME], NODES),
    _row(f"Cluster, renewals: server CPU / {cluster.ONE}", 1.7, "cluster", RENEWALS, ONE_X[cluster.SERVER], NODES),
    _row(f"Cluster, renewals: client CPU / {cluster.ONE}", 3.0, "cluster", RENEWALS, ONE_X[cluster.CLIENT], NODES),
    *(
        _row(f"five nodes{where}, pair / {peer}", limit, "redlock", scenario, ratio_to(peer, redlock.TIME))
        for where, scenario, peer, limit in (
            ("", redlock.PAIR, redlock.REDLOCK_PY, 0.70),
            ("", redlock.PAIR, redlock.RAW, 1.12),
            (" elsewhere", redlock.ELSEWHERE, redlock.REDLOCK_PY, 0.6),
            (" elsewhere", redlock.ELSEWHERE, redlock.RAW, 1.15),
        )
    ),
    _row("five nodes, two frozen: acquire", 5000.0, "redlock", redlock.FROZEN, redlock.ACQUIRED, unit="µs"),
    *(
        _row(f"{scenario}: guard.write / plain", limit, part, scenario, PLAIN_X, sql.WRITE)
        for part, scenario, limit in (
            ("sql", sql.PSYCOPG, 1.35),
            ("sql", sql.SQLALCHEMY, 1.35),
            ("sql", sql.SQLITE, 1.2),
            ("sql", sql.MARIADB, 1.8),
            ("guards", guards.REDIS, 1.5),
            ("guards", guards.FILES, 1.2),
            ("guards", guards.HTTP, None),
        )
    ),
    Row(f"{sql.MYSQL}: guard.write / plain", 2.1, (("sql", sql.MYSQL, sql.WRITE, PLAIN_X),), need="MySQL"),
    _row(f"{sql_locks.DURABLE}: pair / {TWO_UPDATES}", 1.1, "sql_locks", sql_locks.DURABLE, UPDATES_X),
    _row(f"{sql_locks.NO_WAIT}: pair / {TWO_UPDATES}", 1.8, "sql_locks", sql_locks.NO_WAIT, UPDATES_X),
    *(
        _row(f"{sql_locks.DURABLE}, {name}", None, "sql_locks", scenario, what, of, unit=unit)
        for name, scenario, what, of, unit in (
            ("requests of a pair", sql_locks.NO_WAIT, sql_locks.REQUESTS, OURS, ""),
            (f"hand-off / {ADVISORY}", sql_locks.WAITING, ratio_to(ADVISORY, sql_locks.HAND_OFF), OURS, "x"),
            ("hand-off", sql_locks.WAITING, sql_locks.HAND_OFF, OURS, "ms"),
            *(
                (f"{of}: {what}", sql_locks.LEASES, what, of, "")
                for of in map(sql_locks.leases_of, sql_locks.COUNTS)
                for what in (sql_locks.REQUESTS_A_SECOND, sql_locks.CLIENT_A_SECOND, sql_locks.SERVER_A_SECOND)
            ),
            *(
                (f"one lock again and again: {what}", sql_locks.UPKEEP, what, OURS, "")
                for what in (sql_locks.PAIRS, sql_locks.DEAD)
            ),
        )
    ),
    *(
        _row(f"{name}: pair / {peer}", limit, "etcd", scenario, ratio_to(peer, etcd.PAIR), of)
        for name, limit, scenario, of, peer in (
            (etcd.DURABLE, 1.1, etcd.DURABLE, OURS, RECIPE),
            (f"{etcd.DURABLE}, asyncio", 1.1, etcd.DURABLE, ASYNC, ASYNC_RECIPE),
            (etcd.NO_WAIT, None, etcd.NO_WAIT, OURS, RECIPE),
            (f"{etcd.NO_WAIT}, asyncio", None, etcd.NO_WAIT, ASYNC, ASYNC_RECIPE),
        )
    ),
    _row(f"{etcd.NO_WAIT}: CPU of both / {RECIPE}", None, "etcd", etcd.NO_WAIT, ratio_to(RECIPE, etcd.BOTH)),
    _row(f"{etcd.DURABLE}: requests of a pair", 2.05, "etcd", etcd.NO_WAIT, etcd.REQUESTS, unit=""),
    *(
        _row(f"{scenario}: hand-off / {SERVICE}{', asyncio' * (of == ASYNC)}", 2.0, "etcd", scenario, HAND_OFF_X, of)
        for scenario in etcd.PATIENCE
        for of in (OURS, ASYNC)
    ),
    *(
        _row(f"etcd, {of}: {what}", limit, "etcd", etcd.LEASES, what, of, unit="")
        for of, limits in zip(map(etcd.leases_of, etcd.COUNTS), ((4.0, 14.0, 50.0), (None,) * 3), strict=True)
        for what, limit in zip(
            (etcd.REQUESTS_A_SECOND, etcd.CLIENT_A_SECOND, etcd.SERVER_A_SECOND), limits, strict=True
        )
    ),
    *(
        _row(f"etcd: {what}", None, "etcd", etcd.KEPT, what, unit="bytes")
        for what in (etcd.SIZE_KEY, etcd.SIZE_PAIR, etcd.SIZE_LEFT)
    ),
    _row(
        "ZooKeeper locks: pair / kazoo's Lock",
        1.0,
        "zookeeper",
        zookeeper.PAIRS,
        ratio_to(zookeeper.RECIPE, zookeeper.PAIR),
    ),
    _row(
        "ZooKeeper locks: client CPU / kazoo's Lock",
        1.2,
        "zookeeper",
        zookeeper.PAIRS,
        ratio_to(zookeeper.RECIPE, zookeeper.CLIENT),
    ),
    _row(
        "ZooKeeper locks: hand-off / kazoo's Lock",
        1.0,
        "zookeeper",
        zookeeper.WAITING,
        ratio_to(zookeeper.RECIPE, zookeeper.HAND_OFF),
    ),
    *(
        _row(f"ZooKeeper, {of}: {what}", None, "zookeeper", zookeeper.LEASES, what, of, unit="")
        for of in map(zookeeper.leases_of, zookeeper.COUNTS)
        for what in (zookeeper.REQUESTS_A_SECOND, zookeeper.CLIENT_A_SECOND, zookeeper.SERVER_A_SECOND)
    ),
    _row("objects, requests of a publication", 3, *STORE, object_store.REQUESTS, object_store.PUBLISH, unit=""),
    _row("objects, publish / put", 3.3, *STORE, PUT_X, object_store.PUBLISH),
    _row(f"objects, {object_store.MANY} objects at once", 250.0, *STORE, object_store.TIME, STORE_MANY, unit="ms"),
    _row("objects, write in place / put", 2.2, *STORE, PUT_X, object_store.WRITE),
    Row(f"import of RedisCoordinator / {start.REDIS}", 0.5, (("start", start.IMPORT, OURS, START_X),)),
    Row("memory of a lease", None, (("start", start.LEASE, OURS, start.MEMORY),), "bytes"),
    *(
        _row(f"{of}: {what}", None, "calls", calls.SCENARIO, what, of, unit="")
        for of in (calls.PAIR, calls.HOLD, calls.WRITE)
        for what in (calls.PYTHON, calls.CROSSINGS)
    ),
    _row("memory of a slot with names ever locked", 110.0, "live", live.LEFT, live.SLOT, unit="bytes"),
    _row("keys that stay of names ever locked", 16_384.0, "live", live.LEFT, live.KEYS, unit=""),
    _row(f"pair with {MANY} / with {live.FEW}", 1.15, "live", MANY, f"pair x with {live.FEW}"),
)
