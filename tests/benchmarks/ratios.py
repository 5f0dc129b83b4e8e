"""docs/benchmarks.md: one page of ratios for users, made of what a run has found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks.contenders import OURS, REDIS_PY, THREADS
from tests.benchmarks.failures import SCENARIOS as FAILURES
from tests.benchmarks.failures import TTL
from tests.benchmarks.failures import WHAT as UNTIL_THE_NEXT
from tests.benchmarks.live import MEMORY
from tests.benchmarks.parts import Figure
from tests.benchmarks.renewal import AGAINST, THREADED
from tests.benchmarks.tables import Row, markdown, missed_rows, number
from tests.benchmarks.targets import TARGETS, Verdict, assess

__all__ = ["figures_of", "ratios_page", "where"]

Figures = Mapping[str, Sequence[Figure]]
Place = tuple[str, str, str, str]
"""Part, scenario, of, what: where a figure is found."""

HEAD = """# Benchmarks

How long locks and guarded writes take, compared with other libraries and with unguarded writes.

Most numbers are **ratios**: x 0.50 means half as much, x 2.00 means twice as much. Other numbers have their unit.
Absolute times depend on the machine. [All numbers](benchmarks/numbers.md) has the times, the spreads and the charts.
"""

COMPARED = f"""## What was compared

- **{OURS}**, this library. It mints a fence with each grant, and its leases renew themselves.
- **{REDIS_PY}**, **python-redis-lock**, **pottery** and **redlock-py** for threads. For asyncio: {REDIS_PY},
  **coredis** and **pottery**. Their locks have the same time-out. They mint no fences, and do not renew themselves.
- **plain**, for guarded writes: the same statement in its own BEGIN … COMMIT, through the same driver.
"""

METHOD = """## How it was measured

The contenders ran in turn. A ratio is the median of the ratios of neighbours. All locks of a process share one client,
with a pool that is large enough.

- **One core:** client and server share one processor. This has the least noise.
- **All cores:** the system places them.
"""

LOCKS: tuple[tuple[str, str, str], ...] = (
    ("one thread", "pair", "one thread, one core, with hiredis"),
    ("one thread, all cores", "pair", "one thread, all cores, with hiredis"),
    ("one thread, without hiredis", "pair", "one thread, one core, without hiredis"),
    ("8 threads", "pair", "8 threads, one core, with hiredis"),
    ("8 threads, all cores", "pair", "8 threads, all cores, with hiredis"),
    ("asyncio, one task", "tasks", "one task, one core"),
    ("asyncio, 64 tasks", "tasks", "64 tasks, one core"),
)
"""Label, part, scenario."""

CONTENDED = (
    ("2 threads", "2 threads, one core"),
    ("8 threads", "8 threads, one core"),
    ("32 threads", "32 threads, one core"),
    ("128 threads", "128 threads, one core"),
    ("8 processes, all cores", "8 processes, all cores"),
    ("100 asyncio tasks", "100 tasks, one core"),
    ("1000 asyncio tasks", "1000 tasks, one core"),
)

SQL = (
    ("PostgreSQL, psycopg", "PostgreSQL, psycopg, synchronous_commit on"),
    ("PostgreSQL, psycopg, without waiting for the disk", "PostgreSQL, psycopg, synchronous_commit off"),
    ("PostgreSQL, psycopg with a pool", "PostgreSQL, psycopg pool, synchronous_commit on"),
    ("PostgreSQL, SQLAlchemy", "PostgreSQL, SQLAlchemy, synchronous_commit on"),
    ("PostgreSQL, SQLAlchemy, without waiting for the disk", "PostgreSQL, SQLAlchemy, synchronous_commit off"),
    ("MariaDB, SQLAlchemy and PyMySQL", "MariaDB, SQLAlchemy and PyMySQL"),
    ("SQLite, SQLAlchemy", "SQLite, SQLAlchemy"),
)


def figures_of(results: Mapping[str, Any]) -> dict[str, list[Figure]]:
    """Return the figures of each part."""
    return {name: [Figure(**figure) for figure in part["figures"]] for name, part in results["parts"].items()}


def ratios_page(results: Mapping[str, Any], drawn: Mapping[str, str]) -> str:
    """Return the page as Markdown."""
    figures = figures_of(results)
    texts = {name: part["text"] for name, part in results["parts"].items()}
    blocks = [
        HEAD,
        _short(figures),
        COMPARED,
        METHOD,
        f"## Machine and versions\n\n{where(results)}",
        _locks(figures),
        _contention(figures, drawn),
        _failures(figures),
        _sql(figures),
        _objects(texts.get("object_store", "")),
        _enforcement(texts.get("enforced_guard", "")),
        _size(figures),
        _targets([assess(target, figures) for target in TARGETS]),
        "Made by `make bench` and `python -m tests.benchmarks report`. Nothing on this page is typed by hand.",
    ]
    return "\n\n".join(block.strip() for block in blocks if block) + "\n"


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


def _median(figures: Figures, place: Place) -> float | None:
    part, *rest = place
    for figure in figures.get(part, ()):
        if [figure.scenario, figure.of, figure.what] == rest:
            return figure.median
    return None


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    return f"x {value:.2f}" if 0.1 <= value < 10 else f"x {value:.2g}"


def _number(value: float | None) -> str:
    return "-" if value is None else number(value)


def _table(head: Row, rows: Sequence[Row]) -> str:
    """Return a table of the rows in which anything was measured; nothing if there is none."""
    measured = [row for row in rows if any(cell != "-" for cell in row[1:])]
    return markdown([head, *measured]) if measured else ""


def _section(title: str, text: str, *blocks: str) -> str:
    return "\n\n".join([f"## {title}", text, *filter(None, blocks)]) if blocks[0] else ""


def _short(figures: Figures) -> str:
    def said(part: str, scenario: str, what: str, of: str = OURS) -> str:
        value = _median(figures, (part, scenario, of, what))
        return "(not measured)" if value is None else _ratio(value)

    pair = said("pair", LOCKS[0][2], f"x {REDIS_PY}")
    tasks = said("tasks", "64 tasks, one core", f"x {REDIS_PY}")
    grants = said("contended", "8 threads, one core", f"grants/s, x {REDIS_PY}")
    waits = said("contended", "8 threads, one core", f"longest wait, x {REDIS_PY}")
    write = said("sql", SQL[0][1], "x plain", of="guard.write")
    return f"""## In short

- **Acquire and release**, without contention: {pair} of the time of {REDIS_PY}, and {tasks} with 64 asyncio tasks. The
  fence is included.
- **Eight threads that want one lock:** {grants} of the grants per second of {REDIS_PY}. The longest wait is {waits}:
  waiters get the lock in order.
- **A guarded write** to PostgreSQL through psycopg: {write} of the time of the same write in a transaction of its own.
"""


def _locks(figures: Figures) -> str:
    others = [*dict.fromkeys([*THREADS, "coredis"])]
    others.remove(REDIS_PY)

    def rows(what: str) -> list[Row]:
        return [
            [label, *(_ratio(_median(figures, (part, scenario, name, what))) for name in others)]
            for label, part, scenario in LOCKS
        ]

    time, cpu = (
        _table(["time", *others], rows(f"x {REDIS_PY}")),
        _table(["CPU time", *others], rows(f"CPU x {REDIS_PY}")),
    )
    text = (
        f"One acquire and one release, without contention. Compared with {REDIS_PY}; lower is better. "
        "One core, unless the row says otherwise."
    )
    return _section("Acquire and release", text, time, cpu)


def _contention(figures: Figures, drawn: Mapping[str, str]) -> str:
    def figure(scenario: str, what: str, of: str = OURS) -> float | None:
        return _median(figures, ("contended", scenario, of, what))

    rows = [
        [
            label,
            _ratio(figure(scenario, f"grants/s, x {REDIS_PY}")),
            _ratio(figure(scenario, f"longest wait, x {REDIS_PY}")),
            _ratio(figure(scenario, f"hand-off p99, x {REDIS_PY}")),
            _ratio(figure(scenario, f"CPU a grant, x {REDIS_PY}")),
            _number(figure(scenario, "fairness (Jain)")),
            _number(figure(scenario, "fairness (Jain)", REDIS_PY)),
        ]
        for label, scenario in CONTENDED
    ]
    head = ["", "grants per second", "longest wait", "hand-off, 99th percentile", "CPU per grant"]
    text = f"""All want one lock, hold it for 1 ms, and want it again. {OURS} compared with {REDIS_PY}.

- *Hand-off* is the time from the start of a release to the next grant. It is short if the releaser takes the lock
  again at once. Then the longest wait is long.
- *Fairness* (Jain) is 1 if all get the lock equally often, and 1/n if one of n gets it every time."""
    table = _table([*head, f"fairness, {OURS}", f"fairness, {REDIS_PY}"], rows)
    chart = (
        "![Contention for one lock, by the number of threads](benchmarks/contended.svg)" if "contended" in drawn else ""
    )
    return _section("Contention", text, table, chart)


def _failures(figures: Figures) -> str:
    titles = {
        "head waiter killed": "the first waiter is killed",
        "head waiter frozen": "the first waiter is frozen (SIGSTOP)",
        "holder killed": "the holder is killed, after its lock expired",
    }
    rows = [
        [
            titles[happening],
            *(
                _number(_median(figures, ("failures", f"{happening}: {since}", name, UNTIL_THE_NEXT)))
                for name in THREADS
            ),
        ]
        for happening, since in FAILURES.items()
    ]
    text = f"Milliseconds until the next waiter has the lock, after a release or an expiry. The ttl is {TTL} s."
    return _section("Waiters and holders that die", text, _table(["ms", *THREADS], rows))


def _sql(figures: Figures) -> str:
    kinds = ("guard.write", "guard.begin", "guard.claim")
    rows = [
        [label, *(_ratio(_median(figures, ("sql", scenario, kind, "x plain"))) for kind in kinds)]
        for label, scenario in SQL
    ]
    text = (
        "One guarded statement, compared with the same statement in its own BEGIN … COMMIT. A claim comes once "
        "for each lease, when it is acquired."
    )
    return _section("Guarded writes to SQL databases", text, _table(["time", *(f"`{kind}`" for kind in kinds)], rows))


def _objects(printed: str) -> str:
    found = re.findall(r"(?m)^((?:publish|write)\b.*?)\s{2,}.*? x ([\d.]+) \(", printed)
    text = (
        "Compared with plain puts of the same data, on moto's S3 on the same machine. A publication also reads "
        "and writes a small pointer object."
    )
    table = _table(["time", "ratio"], [[label, _ratio(float(value))] for label, value in found])
    return _section("Guarded writes to object stores", text, table)


def _enforcement(printed: str) -> str:
    labels = {
        "one guarded write": "a guarded write",
        "a claim": "a claim",
        "1000 rows in one statement, a row": "each row of a statement with 1000 rows",
    }
    found = re.findall(r"(?m)^(.+?): .*?([\d.]+) times$", printed)
    rows = [[labels.get(label, label), _ratio(float(value))] for label, value in found]
    text = (
        "PostgreSQL with [enforcement](guards/enforcement.md), compared with PostgreSQL without it. `fsync` is off, so "
        "nothing hides the difference."
    )
    return _section("Enforcement", text, _table(["time", "ratio"], rows))


def _size(figures: Figures) -> str:
    def our(part: str, scenario: str, what: str) -> float | None:
        return _median(figures, (part, scenario, OURS, what))

    cpu, most = f"CPU x {AGAINST}, at {THREADED:,}", MEMORY.format(1_000_000)
    rows = [
        [
            "pairs per second of 2 processes, all cores",
            REDIS_PY,
            _ratio(our("processes", "2 processes, all cores", f"x {REDIS_PY}")),
        ],
        [
            "pairs per second of 8 processes, all cores",
            REDIS_PY,
            _ratio(our("processes", "8 processes, all cores", f"x {REDIS_PY}")),
        ],
        [
            "time of a pair, with 1,000,000 live locks",
            "with 10 live locks",
            _ratio(our("live", "1,000,000 live locks", "x with 10")),
        ],
        [
            f"CPU to renew {THREADED:,} leases",
            f"{REDIS_PY} with a thread for each lock",
            _ratio(our("renewal", f"{THREADED:,} leases", cpu)),
        ],
    ]
    rows = [row for row in rows if row[2] != "-"]
    left = our("live", most, "bytes a name ever locked")
    memory = (
        ""
        if left is None
        else (
            f"A name that was locked once leaves {number(left)} bytes in Redis, on average over 1,000,000 names. "
            "However many names there are, at most one small key stays for each of the 16,384 hash slots."
        )
    )
    text = "Many processes, many locks, many leases."
    return _section("Scale", text, markdown([["", "compared with", "ratio"], *rows]) if rows else "", memory)


def _targets(verdicts: Sequence[Verdict]) -> str:
    met = sum(verdict.met for verdict in verdicts)
    missed = [verdict for verdict in verdicts if not verdict.met and verdict.figure is not None]
    measured = sum(verdict.figure is not None for verdict in verdicts)
    open_ = [verdict.target.what for verdict in verdicts if verdict.figure is None]
    text = (
        f"We set {len(verdicts)} targets for ourselves. {measured} were measured, and {met} of them are met. "
        "[All of them](benchmarks/numbers.md#targets) are with the numbers."
    )
    table = f"These are missed:\n\n{markdown(missed_rows(missed))}" if missed else "None is missed."
    return _section("Our own targets", text, table, f"Not measured: {'; '.join(open_)}." if open_ else "")
