"""docs/benchmarks.md for users, docs/benchmarks/numbers.md for developers, and a chart, made of one run.

Nothing on these pages is typed by hand. The run itself is stored beside them, in docs/benchmarks/results.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import contended, crowd, failures, redlock, sql_locks, zookeeper
from tests.benchmarks.charts import Panel, lines
from tests.benchmarks.contenders import THREADS
from tests.benchmarks.etcd_contenders import TTL
from tests.benchmarks.pair import scenario_of
from tests.benchmarks.parts import PARTS, Figure, figures_of
from tests.benchmarks.rows import verdicts
from tests.benchmarks.sql_contenders import POLLING, TWO_UPDATES
from tests.benchmarks.tables import figure_rows, markdown, scenarios, verdict_rows
from tests.benchmarks.user_page import user_page, where

DOCS = Path(__file__).resolve().parents[2] / "docs"
FOLDER = "benchmarks"

HEAD = """# All numbers

All figures of one run on one machine, for developers of this library. [Benchmarks](../benchmarks.md) has the ratios for
users, and how they were measured.

Each figure is a median, with the 10th and the 90th percentile in brackets. Absolute times depend on the machine and on
the hour. Compare ratios, and only within one table.

- *One core*: client and server share one processor. *All cores*: the system places them; this has more noise.
- *A/A*: the ratio of the same measurement to itself, in the same run. A difference within this spread means nothing.
- *Raw commands*: a blocking socket that sends the bytes which this library sends today, and reads the replies.
- *Raw PING pair*: the same with two PINGs. No library can be faster.
- *Above raw commands, share of redis-py Lock*: our time above raw commands, divided by its time above them.
- *Hand-off*: from the start of a release to the next grant, also to the same worker. It is short if the releaser takes
  the lock again at once. Then the *longest wait* is long.
- *Commands*: the commands that clients send, counted with MONITOR after the timed window.
- *Fairness (Jain)*: 1 if all get the lock equally often, 1/n if one of n gets it every time.
"""

TARGETS = """## Targets

{met} of {all} met. The median decides. In a row with several scenarios, the worst one decides. A missed row is an open
fault. *Medians* are the two of a ratio, in the unit of the measure. The judge of a pair is its ratio to raw commands:
redis-py's times change from hour to hour."""

TEXTS = {
    "pair": "A round is a batch of pairs of each contender, shuffled. With threads, each thread has a lock of its own.",
    "tasks": "The same with asyncio. With many tasks, the time is that of all tasks, divided by the number of pairs. "
    "*Raw commands* are those of a bare Protocol, on one connection.",
    "contended": "A closed loop: each worker takes the lock, holds it for 1 ms, frees it, and wants it again.",
    "failures": "A holder and two waiters, one process each. The first waiter is killed or frozen before the release, "
    f"or the holder is killed. In two tables, {failures.CROWD:,} tasks of one process wait in front of the second "
    f"waiter. The ttl is {failures.TTL} s. The time starts at the release, or at the expiry of the lock.",
    "redlock": "A majority of five servers grants. *raw fan-out*: our bytes to five sockets, until three have replied. "
    "*elsewhere*: the client does not share the servers' processor; nodes are other machines. A turn has "
    f"{redlock.BATCH} pairs: one that returns at the quorum leaves replies behind, and the next would pay for them. "
    "*Frozen*: single tries, turn about. The clients of the other libraries give up on a node after "
    f"{redlock.NODE_SECONDS * 1000:.0f} ms, as ours do.",
    "renewal": "In one cycle, every lease is renewed once. A cycle is a third of the ttl. The bare script compares the "
    "tokens and sets the ttls.",
    "cluster": "The nodes have no replicas. The server's CPU is that of all nodes, less what they use when idle. A "
    "cycle is a third of the ttl. 10,000 leases lie in some 7,500 slots.",
    "sql": "*plain*: the statement in its own BEGIN … COMMIT. The mark is already claimed; *guard.claim* raises one.",
    "guards": "*plain*: the same write without a check: in one script, by an fsynced rename, by the same request.",
    "sql_locks": "The server waits for the disk, except where it says otherwise. A *pair* is an acquire and a release. "
    "What it takes beyond the CPU of client and server is the disk's, so ratios depend on the disk. "
    f"Of {TWO_UPDATES}, each takes its connection from a pool, as the requests of our locks do. "
    "*requests* are round trips. The server's CPU is that of the sessions. The *hand-off* is the time from a "
    "release to the end of the acquire of a second client, which has waited 50 ms at least. With "
    f"*{POLLING}* there are no notifications. The ttl of renewed leases is {sql_locks.TTL:.0f} s. *dead rows* and the "
    "table's size are read at the end, with autovacuum on.",
    "etcd": "A *pair* is an acquire and a release. *etcd's recipe* sends what the lock of etcd's client for Go sends. "
    "It uses the connections of our client: one transaction, one deletion, with a lease that is kept. Its waiter "
    "watches the key before its own. */v3/lock* is the server's own service. *etcdctl lock* starts two processes for "
    "each pair, which is most of its time. "
    "A *hand-off* is the time from the start of a release to the return of the next holder's acquire. "
    f"{crowd.CROWD} wait, and each holds the lock for 1 ms. A value is the median of a round. "
    f"The ttl of renewed leases is {TTL} s, and what an idle server takes is left out.",
    "zookeeper": "A *pair* is an acquire and a release, on a server that does not wait for its disk. *kazoo's Lock* is "
    "the recipe of the same client library. The *hand-off* is as for etcd. "
    f"The ttl of renewed leases is {zookeeper.TTL} s, and what an idle server takes is left out.",
    "object_store": "A store in memory that answers each request after 10 ms. *requests* are counted.",
    "calls": "Counted, not timed, so they do not depend on the machine. A *module crossing* is a call from a function "
    "of one module to a function of another. Each step of a generator counts as a call.",
    "live": "A second server with ten locks is the neighbour. A name was *ever locked* if its lock is gone. Of many "
    "names, at most one key stays for each of the 16,384 slots. It has no expiry.",
    "start": "The coordinator is imported after `import redis`, in fresh processes. The memory of a lease is what the "
    "process grows by for each that it holds.",
    "enforced_guard": "The same writes on a database that enforces, and on one that does not. `fsync` is off.",
}


def write_pages(results: Mapping[str, Any], docs: Path = DOCS) -> list[Path]:
    """Write the two pages, the chart and the run; return the files."""
    chart = contention_chart(figures_of(results).get("contended", ()))
    files = {
        docs / "benchmarks.md": user_page(results, chart=bool(chart)),
        docs / FOLDER / "numbers.md": numbers_page(results),
        docs / FOLDER / "results.json": json.dumps(results, ensure_ascii=False).replace("}, {", "},\n{") + "\n",
    }
    if chart:
        files[docs / FOLDER / "contended.svg"] = f"{chart}\n"
    (docs / FOLDER).mkdir(exist_ok=True)
    for file, content in files.items():
        file.write_text(content, "utf-8")
    return list(files)


def numbers_page(results: Mapping[str, Any]) -> str:
    """Return the page of all numbers as Markdown."""
    figures = figures_of(results)
    found = verdicts(figures)
    limited = [verdict for verdict in found if verdict.row.limit is not None]
    targets = TARGETS.format(met=sum(verdict.met for verdict in limited), all=len(limited))
    blocks = [HEAD.rstrip(), f"## Where\n\n{where(results)}", targets, markdown(verdict_rows(found))]
    for name, part in results["parts"].items():
        blocks.append(f"## {name}: {PARTS[name]}\n\n{TEXTS[name]}")
        for scenario in scenarios(figures[name]):
            blocks.append(f"**{scenario}**\n\n{markdown(figure_rows(figures[name], scenario))}")
        for failure in part["failures"]:
            blocks.append(f"Failed: *{failure['scenario']}*, {failure['of']}: {_one_line(failure['said'])}")
    return "\n\n".join(blocks) + "\n"


def _one_line(said: str) -> str:
    return " ".join(said.split()).replace("|", r"\|")


def contention_chart(figures: Sequence[Figure]) -> str:
    """Return an SVG of contention by the number of threads; nothing if it was not measured."""
    counts = [2, 8, 32, 128]

    def series(what: str) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {name: {} for name in THREADS}
        for figure in figures:
            for count in counts:
                if figure.what == what and figure.scenario == scenario_of("threads", count, True):
                    found[figure.of][count] = figure.median
        return {name: its for name, its in found.items() if its}

    panels = [
        Panel("hand-off, 99th percentile, µs", series(contended.P99)),
        Panel("longest wait, ms", series(contended.WAIT)),
        Panel("fairness (Jain)", series(contended.FAIRNESS), logarithmic=False),
        Panel("grants per second", series(contended.GRANTS), logarithmic=False),
    ]
    return lines("Contention for one lock, by the number of threads", counts, panels) if panels[0].series else ""
