"""docs/benchmarks.md: a page of ratios for users that choose a lock, made of one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.benchmarks import (
    contended,
    crowd,
    enforced_guard,
    etcd,
    failures,
    live,
    object_store,
    pair,
    renewal,
    sql,
    sql_locks,
)
from tests.benchmarks.contenders import AGAIN, OURS, REDIS_PY, THREADS
from tests.benchmarks.etcd_contenders import KINDS, RECIPE, SERVICE, TTL
from tests.benchmarks.measure import number
from tests.benchmarks.parts import Figure, figures_of, ratio_to
from tests.benchmarks.rows import verdicts
from tests.benchmarks.sql_contenders import ADVISORY, DLOCK, FOR_UPDATE, PALS, POLLING, TWO_UPDATES
from tests.benchmarks.tables import Cells, markdown, scenarios

HEAD = """# Benchmarks

How long locks and guarded writes take, compared with other libraries and with unguarded writes.

Most numbers are **ratios**: x 0.50 means half as much, x 2.00 means twice as much. Other numbers have their unit.
Absolute times depend on the machine. [All numbers](benchmarks/numbers.md) has the times, the spreads, raw sockets and
our own targets.
"""

COMPARED = f"""## What was compared

- **{OURS}**, this library. It mints a fence with each grant, and its leases renew themselves.
- **{REDIS_PY}**, **python-redis-lock**, **pottery** and **redlock-py** for threads. For asyncio: {REDIS_PY},
  **coredis** and **pottery**. Their locks have the same time-out. They mint no fences, and do not renew themselves.
- **plain**, for guarded writes: the same statement in its own BEGIN … COMMIT, through the same driver.
"""

METHOD = """## How it was measured

The contenders ran in turn, shuffled in each round. A ratio is the median of the ratios of all rounds. All locks of a
process share one client, with a pool that is large enough. Client and server share one core, which has the least noise.
Rows with "all cores" are the exception.
"""

END = (
    """Made by `make bench ARGS=all` and `python -m tests.benchmarks report`. Nothing on this page is typed by hand."""
)


def user_page(results: Mapping[str, Any], *, chart: bool) -> str:
    """Return the page as Markdown. A section whose first table is empty is left out."""
    its = _Medians(figures_of(results))
    blocks = [HEAD, _short(its), COMPARED, METHOD, f"## Machine and versions\n\n{where(results)}"]
    for section in (_locks, _contention, _failures, _sql, _sql_locks, _etcd, _objects, _enforcement, _scale, _targets):
        title, text, table, *rest = section(its)
        if table:
            blocks.append("\n\n".join([f"## {title}", *filter(None, [text, table, *rest])]))
            if title == "Contention" and chart:
                blocks.append("![Contention for one lock, by the number of threads](benchmarks/contended.svg)")
    return "\n\n".join(block.strip() for block in [*blocks, END]) + "\n"


def where(results: Mapping[str, Any]) -> str:
    """Return the machine, the versions and the noise."""
    machine = results["machine"]
    noises = [noise for part in results["parts"].values() for noise in part["noise"]]
    lines = [
        f"- **Machine:** {', '.join(str(machine[name]) for name in ('processor', 'system', 'python', 'date'))}.",
        f"- **Cores:** {machine['cores']}.",
        *(
            f"- **{kind.capitalize()}:** {', '.join(f'{name} {version}' for name, version in machine[kind].items())}."
            for kind in ("servers", "packages")
        ),
    ]
    if noises:
        loads, spins = ([noise[kind] for noise in noises] for kind in ("load", "spin"))
        lines.append(
            f"- **Noise:** the load average was {number(min(loads))} to {number(max(loads))}. At its 90th percentile, "
            f"a short computation took {number(min(spins))} to {number(max(spins))} times as long as at its 10th."
        )
    if results["quick"]:
        lines.append("- **A quick run**, with few rounds. It shows that everything works, and little else.")
    return "\n".join(lines)


class _Medians:
    """The medians of a run, as text: "-" is what was not measured."""

    def __init__(self, figures: Mapping[str, Sequence[Figure]]) -> None:
        self.figures = figures
        self._medians = {
            (part, each.scenario, each.of, each.what): each.median for part, its in figures.items() for each in its
        }

    def value(self, part: str, scenario: str, of: str, what: str) -> float | None:
        return self._medians.get((part, scenario, of, what))

    def number(self, *place: str) -> str:
        value = self.value(*place)
        return "-" if value is None else number(value)

    def ratio(self, part: str, scenario: str, of: str, what: str, to: str) -> str:
        return _ratio(self.value(part, scenario, of, ratio_to(to, what)))

    def scenarios(self, part: str) -> list[str]:
        return scenarios(self.figures.get(part, ()))


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    return f"x {value:.2f}" if 0.1 <= value < 10 else f"x {value:.2g}"


def _label(scenario: str) -> str:
    return scenario.replace(", one core", "")


def _table(head: Cells, rows: Iterable[Cells]) -> str:
    """Return a table of the rows in which anything was measured; nothing if there is none."""
    measured = [row for row in rows if any(cell != "-" for cell in row[1:])]
    return markdown([head, *measured]) if measured else ""


def _short(its: _Medians) -> str:
    def said(*place: str) -> str:
        found = its.ratio(*place)
        return "(not measured)" if found == "-" else found

    one = said("pair", "one thread, one core", OURS, pair.TIME, REDIS_PY)
    tasks = said("tasks", "64 tasks, one core", OURS, pair.TIME, REDIS_PY)
    eight = ("contended", "8 threads, one core", OURS)
    grants, wait = (said(*eight, what, REDIS_PY) for what in (contended.GRANTS, contended.WAIT))
    write = said("sql", sql.PSYCOPG, sql.WRITE, sql.TIME, sql.PLAIN)
    return f"""## In short

- **Acquire and release**, without contention: {one} of the time of {REDIS_PY}, and {tasks} with 64 asyncio tasks. The
  fence is included.
- **Eight threads that want one lock:** {grants} of the grants per second of {REDIS_PY}. The longest wait is {wait}:
  waiters get the lock in order.
- **A guarded write** to PostgreSQL through psycopg: {write} of the time of the same write in a transaction of its own.
"""


def _locks(its: _Medians) -> Cells:
    names = [OURS, pair.HOLD, *(name for name in THREADS if name not in (OURS, REDIS_PY)), "coredis"]

    def table(head: str, what: str) -> str:
        rows = [
            [
                _label(scenario) if part == "pair" else f"asyncio, {_label(scenario)}",
                *(its.ratio(part, scenario, name, what, REDIS_PY) for name in names),
            ]
            for part in ("pair", "tasks")
            for scenario in its.scenarios(part)
        ]
        return _table([head, *names], rows)

    text = f"One acquire and one release, without contention. Compared with {REDIS_PY}; lower is better."
    return "Acquire and release", text, table("time", pair.TIME), table("CPU time", pair.CPU)


def _contention(its: _Medians) -> Cells:
    compared = {
        "grants per second": contended.GRANTS,
        "longest wait": contended.WAIT,
        "hand-off, median": contended.P50,
        "hand-off, 99th percentile": contended.P99,
        "CPU per grant": contended.CPU,
    }
    rows = [
        [
            _label(scenario),
            *(its.ratio("contended", scenario, OURS, what, REDIS_PY) for what in compared.values()),
            *(its.number("contended", scenario, of, contended.FAIRNESS) for of in (OURS, REDIS_PY)),
        ]
        for scenario in its.scenarios("contended")
    ]
    text = f"""All want one lock, hold it for 1 ms, and want it again. {OURS} compared with {REDIS_PY}.

- *Hand-off* is the time from the start of a release to the next grant. It is short if the releaser takes the lock
  again at once. Then the longest wait is long.
- *Fairness* (Jain) is 1 if all get the lock equally often, and 1/n if one of n gets it every time."""
    return "Contention", text, _table(["", *compared, f"fairness, {OURS}", f"fairness, {REDIS_PY}"], rows)


def _failures(its: _Medians) -> Cells:
    rows = [
        [scenario, *(its.number("failures", scenario, name, failures.WHAT) for name in THREADS)]
        for scenario in failures.SCENARIOS
    ]
    text = (
        "Milliseconds until the next waiter has the lock, after a release or an expiry. Frozen means SIGSTOP. "
        f"The ttl is {failures.TTL} s."
    )
    return "Waiters and holders that die", text, _table(["ms", *THREADS], rows)


def _sql(its: _Medians) -> Cells:
    kinds = (sql.WRITE, sql.BEGIN, sql.CLAIM)
    rows = [
        [scenario, *(its.ratio("sql", scenario, kind, sql.TIME, sql.PLAIN) for kind in kinds)]
        for scenario in its.scenarios("sql")
    ]
    text = (
        "One guarded statement, compared with the same statement in its own BEGIN … COMMIT. A claim comes once "
        "for each lease, when it is acquired."
    )
    return "Guarded writes to SQL databases", text, _table(["time", *(f"`{kind}`" for kind in kinds)], rows)


def _sql_locks(its: _Medians) -> Cells:
    part = "sql_locks"
    pairs = [
        [
            kind,
            *(its.ratio(part, scenario, kind, sql_locks.PAIR, TWO_UPDATES) for scenario in sql_locks.SYNCHRONOUS),
            its.number(part, sql_locks.NO_WAIT, kind, sql_locks.REQUESTS),
            its.number(part, sql_locks.WAITING, kind, sql_locks.HAND_OFF),
        ]
        for kind in (OURS, POLLING, ADVISORY, FOR_UPDATE, DLOCK, PALS)
    ]
    columns = (sql_locks.REQUESTS_A_SECOND, sql_locks.CLIENT_A_SECOND, sql_locks.SERVER_A_SECOND)
    leases = [
        [of, *(its.number(part, sql_locks.LEASES, of, what) for what in columns)]
        for of in map(sql_locks.leases_of, sql_locks.COUNTS)
    ]
    done, dead, size = (
        its.value(part, sql_locks.UPKEEP, OURS, what) for what in (sql_locks.PAIRS, sql_locks.DEAD, sql_locks.SIZE)
    )
    left = (
        ""
        if done is None or dead is None or size is None
        else f"After {done:,.0f} pairs of one lock, with autovacuum on, the table had {dead:,.0f} dead rows and "
        f"{size:,.0f} kB."
    )
    text = f"""One acquire and one release, compared with {TWO_UPDATES} of one row. Only {OURS} has leases and fences.
The others keep a connection, or a transaction, while they hold the lock.

- The *pair* depends on the disk. The slower its commits are, the closer is {OURS} to x 1.
- *Hand-off* is the time from a release to the next grant. With {OURS} two commits in it wait for the disk.
- With *{POLLING}* there are no notifications, as on the other databases."""
    head = ["", "pair", "pair, not waiting for the disk", "requests a pair", "hand-off, ms"]
    upkeep = _table([f"renewal, ttl {sql_locks.TTL:.0f} s", *columns], leases)
    return "Locks on PostgreSQL", text, _table(head, pairs), upkeep, left


def _etcd(its: _Medians) -> Cells:
    part = "etcd"
    pairs = [
        [
            kind,
            *(its.ratio(part, scenario, kind, etcd.PAIR, RECIPE) for scenario in etcd.ON_DISK),
            *(its.ratio(part, scenario, kind, etcd.HAND_OFF, SERVICE) for scenario in etcd.PATIENCE),
        ]
        for kind in KINDS
        if not kind.endswith(AGAIN)
    ]
    columns = (etcd.REQUESTS_A_SECOND, etcd.CLIENT_A_SECOND, etcd.SERVER_A_SECOND)
    leases = [
        [of, *(its.number(part, etcd.LEASES, of, what) for what in columns)] for of in map(etcd.leases_of, etcd.COUNTS)
    ]
    text = f"""One acquire and one release, compared with {RECIPE} of a lock, sent over the same connections. Only
{OURS} has numbers, and tells who holds a lock.

- The *hand-off* is the time from a release to the next grant, with {crowd.CROWD} waiters. It is compared with
  {SERVICE}: the lock within the server. They have just come, or have waited for more than a tenth of the ttl.
- *etcdctl lock* starts two processes for each pair."""
    head = ["", "pair", "pair, not waiting for the disk", "hand-off, just come", "hand-off, waited"]
    upkeep = _table([f"renewal, ttl {TTL} s", *columns], leases)
    return "Locks in etcd", text, _table(head, pairs), upkeep


def _objects(its: _Medians) -> Cells:
    start = f"{object_store.TIME.partition(',')[0]} x "
    rows = [
        [figure.of, figure.what.removeprefix(start), _ratio(figure.median)]
        for figure in its.figures.get("object_store", ())
        if figure.what.startswith(start)
    ]
    text = (
        "Compared with plain puts of the same data, in a store that answers each request after 10 ms. A publication "
        "also reads and writes a small pointer object."
    )
    return "Guarded writes to object stores", text, _table(["", "compared with", "time"], rows)


def _enforcement(its: _Medians) -> Cells:
    rows = [
        [figure.of, _ratio(figure.median)]
        for figure in its.figures.get("enforced_guard", ())
        if figure.what == enforced_guard.RATIO
    ]
    text = (
        "PostgreSQL with [enforcement](guards/enforcement.md), compared with PostgreSQL without it. `fsync` is off, so "
        "nothing hides the difference."
    )
    return "Enforcement", text, _table(["time", "ratio"], rows)


def _scale(its: _Medians) -> Cells:
    many, leases = live.MANY.format(live.LEVELS[-1]), renewal.scenario_of(renewal.LEASES)
    cpu = its.ratio("renewal", leases, OURS, renewal.CPU, renewal.THREAD_EACH)
    pairs = _ratio(its.value("live", many, OURS, f"pair x with {live.FEW}"))
    rows = [
        [f"CPU to renew {renewal.LEASES:,} leases", renewal.THREAD_EACH, cpu],
        [f"time of a pair, with {many}", f"with {live.FEW} live locks", pairs],
    ]
    slot = its.number("live", live.LEFT, OURS, live.SLOT)
    memory = (
        ""
        if slot == "-"
        else f"A name that was locked once leaves nothing of its own in Redis. One key of {slot} bytes stays "
        "for each hash slot that was used. There are 16,384 slots."
    )
    measured = [row for row in rows if row[2] != "-"]
    table = markdown([["", "compared with", "ratio"], *measured]) if measured else ""
    return "Scale", "Many leases, many locks.", table or memory, memory if table else ""


def _targets(its: _Medians) -> Cells:
    found = [verdict for verdict in verdicts(its.figures) if verdict.row.limit is not None]
    met = sum(verdict.met for verdict in found)
    text = (
        f"We set {len(found)} targets for ourselves. {met} of them are met. "
        "[All of them](benchmarks/numbers.md#targets) are with the numbers."
    )
    return "Our own targets", "", text if found else ""
