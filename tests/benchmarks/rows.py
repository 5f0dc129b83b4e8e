"""The rows of `make bench`: what is measured, and its target. A row whose target is missed is an open fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks import (
    calls,
    cluster,
    contended,
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
)
from tests.benchmarks.contenders import OURS, REDIS_PY
from tests.benchmarks.pair import scenario_of
from tests.benchmarks.parts import Figure, ratio_to
from tests.benchmarks.raw import PINGS, RAW
from tests.benchmarks.sql_contenders import ADVISORY, TWO_UPDATES

Place = tuple[str, str, str, str]
"""Part, scenario, of, what: where a figure is found."""


@dataclass(frozen=True, slots=True)
class Instead:
    """A second way to meet a target, if the figure at ``place`` is above ``above``: the one at ``then`` decides."""

    place: Place
    above: float
    then: Place
    limit: float


@dataclass(frozen=True, slots=True)
class Row:
    """A limit for the worst of some figures: at most ``limit``, or at least. None: no target."""

    name: str
    limit: float | None
    places: tuple[Place, ...]
    unit: str = "x"
    at_least: bool = False
    instead: Instead | None = None


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
    if not met and row.instead is not None:
        met, said = _second_way(row.instead, figures)
    if not met:
        said = "MISSED" + (f" ({worst.scenario})" if len(there) > 1 else "")
    if len(there) < len(found):
        met, said = False, f"{len(found) - len(there)} of {len(found)} not measured"
    return Verdict(row, worst, met, said)


def verdicts(figures: Mapping[str, Sequence[Figure]]) -> list[Verdict]:
    """Return the results of the rows of the parts that were run."""
    return [assess(row, figures) for row in ROWS if any(place[0] in figures for place in row.places)]


def _second_way(instead: Instead, figures: Mapping[str, Sequence[Figure]]) -> tuple[bool, str]:
    condition, then = _find(instead.place, figures), _find(instead.then, figures)
    if condition is None or then is None or condition.median <= instead.above or then.median > instead.limit:
        return False, ""
    return True, f"met ({instead.then[3]} {then.median:.2f})"


def _find(place: Place, figures: Mapping[str, Sequence[Figure]]) -> Figure | None:
    part, *rest = place
    for figure in figures.get(part, ()):
        if [figure.scenario, figure.of, figure.what] == rest:
            return figure
    return None


ONE_THREAD = scenario_of("threads", 1, True)
TIME_X, CPU_X = ratio_to(REDIS_PY, pair.TIME), ratio_to(REDIS_PY, pair.CPU)


def _pair(name: str, limit: float, what: str, scenario: str = ONE_THREAD, of: str = OURS, part: str = "pair") -> Row:
    return Row(name, limit, ((part, scenario, of, what),))


def _first_row() -> Row:
    raw = ("pair", ONE_THREAD, RAW, TIME_X), 0.30
    then = ("pair", ONE_THREAD, OURS, ratio_to(RAW, pair.TIME)), 1.25
    places = (("pair", ONE_THREAD, OURS, TIME_X),)
    return Row(f"pair / {REDIS_PY}", 0.40, places, instead=Instead(*raw, *then))


THREADS = tuple(scenario_of("threads", count, True) for count in (2, 8, 32))
PROCESSES = (scenario_of("processes", 8, True),)
TASKS = tuple(scenario_of("tasks", count, True) for count in (100, 1000))


def _contended(
    name: str, limit: float, what: str, scenarios: Iterable[str], unit: str = "x", at_least: bool = False
) -> Row:
    places = tuple(("contended", scenario, OURS, what) for scenario in scenarios)
    return Row(f"contention, {name}", limit, places, unit, at_least)


def _dies(scenario: str, limit: float) -> Row:
    return Row(f"{scenario}: until the next has it", limit, (("failures", scenario, OURS, failures.WHAT),), "ms")


def _write(scenario: str, limit: float) -> Row:
    return Row(
        f"{scenario}: guard.write / plain", limit, (("sql", scenario, sql.WRITE, ratio_to(sql.PLAIN, sql.TIME)),)
    )


def _guarded(scenario: str, limit: float | None) -> Row:
    what = ratio_to(guards.PLAIN, guards.TIME)
    return Row(f"{scenario}: guard.write / plain", limit, (("guards", scenario, guards.WRITE, what),))


def _sql_pair(scenario: str, limit: float) -> Row:
    of, what = OURS, ratio_to(TWO_UPDATES, sql_locks.PAIR)
    return Row(f"{scenario}: pair / {TWO_UPDATES}", limit, (("sql_locks", scenario, of, what),))


def _sql_locks(name: str, scenario: str, what: str, unit: str, of: str = OURS) -> Row:
    return Row(f"{sql_locks.DURABLE}, {name}", None, (("sql_locks", scenario, of, what),), unit)


def _publish(name: str, limit: float, of: str, what: str, unit: str) -> Row:
    return Row(f"objects, {name}", limit, (("object_store", object_store.SCENARIO, of, what),), unit)


def _cluster(name: str, limit: float, what: str, *scenarios: str) -> Row:
    of = cluster.CLUSTER.format(cluster.NODES)
    places = tuple(("cluster", scenario, of, ratio_to(cluster.ONE, what)) for scenario in scenarios)
    return Row(f"Cluster, {name} / {cluster.ONE}", limit, places)


def _redlock_pairs() -> Iterator[Row]:
    for where, scenario in (("", redlock.PAIR), (" elsewhere", redlock.ELSEWHERE)):
        for peer, limit in ((redlock.REDLOCK_PY, 0.6), (redlock.RAW, 1.15)):
            place = ("redlock", scenario, OURS, ratio_to(peer, redlock.TIME))
            yield Row(f"five nodes{where}, pair / {peer}", limit, (place,))


def _calls(of: str, what: str) -> Row:
    return Row(f"{of}: {what}", None, (("calls", calls.SCENARIO, of, what),), "")


LEASES = ("renewal", renewal.scenario_of(renewal.LEASES), OURS)
MANY = live.MANY.format(live.LEVELS[-1])
RENEWALS = tuple(cluster.renewals_of(10_000, kind) for kind in ("sync", "async"))
ROUND_TRIPS, UNIT = contended.ROUND_TRIPS, "idle round trips"
GRANTS_X, P99_X, WAIT_X = (ratio_to(REDIS_PY, what) for what in (contended.GRANTS, contended.P99, contended.WAIT))
BARE_X = ratio_to(renewal.BARE, renewal.PACED)
START_X = ratio_to(start.REDIS, start.TIME)
PUT_X = ratio_to(object_store.PUT, object_store.TIME)

ROWS = (
    _first_row(),
    _pair(f"pair / {RAW}", 1.25, ratio_to(RAW, pair.TIME)),
    _pair(f"own {RAW} / {PINGS}", 1.45, ratio_to(PINGS, pair.TIME), of=RAW),
    _pair(f"pair, {pair.SHARE}", 0.15, pair.SHARE),
    _pair(f"hold() inside its own hold() / {PINGS}", 0.15, ratio_to(PINGS, pair.TIME), of=pair.INNER),
    _pair("locked() / hold()", 1.1, ratio_to(pair.HOLD, pair.TIME), of=pair.LOCKED),
    _pair(f"pair, client CPU / {REDIS_PY}", 0.25, CPU_X),
    _pair(f"pair, {pair.COMPAT} / {REDIS_PY}", 0.60, TIME_X, of=pair.COMPAT),
    _pair(f"pair without hiredis / {REDIS_PY}", 0.38, TIME_X, scenario_of("threads", 1, True, hiredis=False)),
    _pair(f"pair, 8 threads / {REDIS_PY}", 0.42, TIME_X, scenario_of("threads", 8, True)),
    _pair(f"asyncio pair, one task / {REDIS_PY}", 0.38, TIME_X, scenario_of("tasks", 1, True), part="tasks"),
    _pair(f"asyncio pair, 64 tasks / {REDIS_PY}", 0.18, TIME_X, scenario_of("tasks", 64, True), part="tasks"),
    _contended("fairness (Jain)", 0.98, contended.FAIRNESS, (*THREADS, *PROCESSES, *TASKS), "", at_least=True),
    _contended("commands a grant", 3.1, contended.COMMANDS, (*THREADS, *PROCESSES, *TASKS), ""),
    _contended(f"2 to 32 threads: grants/s / {REDIS_PY}", 1.05, GRANTS_X, THREADS, at_least=True),
    _contended(f"8 processes: grants/s / {REDIS_PY}", 0.95, GRANTS_X, PROCESSES, at_least=True),
    _contended("2 to 32 threads: hand-off p50", 3.2, ROUND_TRIPS, THREADS, UNIT),
    _contended("8 processes: hand-off p50", 4.0, ROUND_TRIPS, PROCESSES, UNIT),
    _contended("100 tasks: hand-off p50", 3.8, ROUND_TRIPS, TASKS[:1], UNIT),
    _contended("1000 tasks: hand-off p50", 4.5, ROUND_TRIPS, TASKS[1:], UNIT),
    _contended(f"2 to 32 threads: hand-off p99 / {REDIS_PY}", 0.8, P99_X, THREADS),
    _contended(f"2 to 32 threads: longest wait / {REDIS_PY}", 0.05, WAIT_X, THREADS),
    _dies(failures.WAITER_KILLED, 5.0),
    _dies(failures.WAITER_FROZEN, 270.0),
    _dies(failures.CROWD_KILLED, 5.0),
    _dies(failures.CROWD_FROZEN, 270.0),
    _dies(failures.HOLDER_KILLED, 20.0),
    Row("renewal, client CPU / 1,000 threads", 0.10, ((*LEASES, ratio_to(renewal.THREAD_EACH, renewal.CPU)),)),
    Row("renewal, server time of 100 leases", 350.0, ((*LEASES, renewal.SERVER),), "µs"),
    Row(f"renewal, server time of 100 leases / {renewal.BARE}", 1.25, (("renewal", renewal.SCRIPT, OURS, BARE_X),)),
    Row("renewal, requests a second of 100 leases", 2.0, (("renewal", renewal.SPREAD, OURS, renewal.REQUESTS),), ""),
    _cluster("pair", 1.15, pair.TIME, cluster.PAIRS),
    _cluster("renewals: server CPU", 1.7, cluster.SERVER, *RENEWALS),
    _cluster("renewals: client CPU", 3.0, cluster.CLIENT, *RENEWALS),
    *_redlock_pairs(),
    Row("five nodes, two frozen: acquire", 5000.0, (("redlock", redlock.FROZEN, OURS, redlock.ACQUIRED),), "µs"),
    _write(sql.PSYCOPG, 1.35),
    _write(sql.SQLALCHEMY, 1.35),
    _write(sql.SQLITE, 1.2),
    _write(sql.MARIADB, 1.8),
    _guarded(guards.REDIS, 1.5),
    _guarded(guards.FILES, 1.2),
    _guarded(guards.HTTP, None),
    _sql_pair(sql_locks.DURABLE, 1.1),
    _sql_pair(sql_locks.NO_WAIT, 1.8),
    _sql_locks("requests of a pair", sql_locks.NO_WAIT, sql_locks.REQUESTS, ""),
    _sql_locks(f"hand-off / {ADVISORY}", sql_locks.WAITING, ratio_to(ADVISORY, sql_locks.HAND_OFF), "x"),
    _sql_locks("hand-off", sql_locks.WAITING, sql_locks.HAND_OFF, "ms"),
    *(
        _sql_locks(f"{of}: {what}", sql_locks.LEASES, what, "", of)
        for of in map(sql_locks.leases_of, sql_locks.COUNTS)
        for what in (sql_locks.REQUESTS_A_SECOND, sql_locks.CLIENT_A_SECOND, sql_locks.SERVER_A_SECOND)
    ),
    *(
        _sql_locks(f"one lock again and again: {what}", sql_locks.UPKEEP, what, "")
        for what in (sql_locks.PAIRS, sql_locks.DEAD)
    ),
    _publish("requests of a publication", 3, object_store.PUBLISH, object_store.REQUESTS, ""),
    _publish("publish / put", 3.3, object_store.PUBLISH, PUT_X, "x"),
    _publish(f"{object_store.MANY} objects at once", 250.0, object_store.PUBLISH_MANY, object_store.TIME, "ms"),
    _publish("write in place / put", 2.2, object_store.WRITE, PUT_X, "x"),
    Row(f"import of RedisCoordinator / {start.REDIS}", 0.5, (("start", start.IMPORT, OURS, START_X),)),
    Row("memory of a lease", None, (("start", start.LEASE, OURS, start.MEMORY),), "bytes"),
    *(_calls(of, what) for of in (calls.PAIR, calls.HOLD, calls.WRITE) for what in (calls.PYTHON, calls.CROSSINGS)),
    Row("memory of a slot with names ever locked", 110.0, (("live", live.LEFT, OURS, live.SLOT),), "bytes"),
    Row("keys that stay of names ever locked", 16_384.0, (("live", live.LEFT, OURS, live.KEYS),), ""),
    Row(f"pair with {MANY} / with {live.FEW}", 1.15, (("live", MANY, OURS, f"pair x with {live.FEW}"),)),
)
