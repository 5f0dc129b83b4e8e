"""docs/benchmarks.md, docs/benchmarks/numbers.md and the charts, made of what a run has found.

Nothing on these pages is typed by hand. The run itself is kept beside them, in docs/benchmarks/results.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.charts import Bar, Group, Panel, bars, lines
from tests.benchmarks.contenders import OURS, REDIS_PY, THREADS
from tests.benchmarks.failures import TTL
from tests.benchmarks.failures import WHAT as UNTIL_THE_NEXT
from tests.benchmarks.parts import PARTS, Figure
from tests.benchmarks.ratios import Figures, figures_of, ratios_page, where
from tests.benchmarks.tables import figure_rows, markdown, scenarios, verdict_rows
from tests.benchmarks.targets import TARGETS, assess

__all__ = ["numbers_page", "pictures", "write_pages"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
FOLDER = "benchmarks"

HEAD = """# All numbers

All figures of one run, on one machine. [Benchmarks](../benchmarks.md) has the ratios that matter, and how they were
measured.

Each figure is a median, with the 10th and the 90th percentile in brackets. Absolute times depend on the machine.
Compare ratios, and only within one table.

- *One core*: client and server share one processor. *All cores*: the system places them; this has more noise.
- *raw*: a blocking socket (for asyncio: a protocol) that sends the same bytes as this library.
- All locks have the same time-out. Only this library renews itself and mints fences. All locks of a process share one
  client, with a pool that is large enough.
- *Hand-off*: from the start of a release to the next grant, also to the same worker. It is short if the releaser takes
  the lock again at once. Then the *longest wait* is long.
- *Idle round trip*: one command over a raw connection that was idle for a millisecond.
- *Commands*: the commands that clients send, counted with MONITOR in a separate window.
- *Fairness (Jain)*: 1 if all get the lock equally often, 1/n if one of n gets it every time.
"""

TEXTS = {
    "pair": "A round is a batch of pairs of each contender. With threads, each thread has a lock of its own.",
    "tasks": "The same with asyncio. With many tasks, the time is that of all tasks, divided by the number of pairs.",
    "contended": "A closed loop: each worker takes the lock, holds it for 1 ms, frees it, and wants it again.",
    "failures": "A holder and two waiters, one process each. The first waiter is killed or frozen before the release, "
    f"or the holder is killed. The ttl is {TTL} s.",
    "renewal": "In one cycle, every lease is renewed once. A cycle is a third of the ttl.",
    "processes": "Pairs of several processes at once, each with its own lock. The figure counts all together.",
    "live": "A second server with ten locks is the neighbour. A name was *ever locked* if its lock is gone. What stays "
    "has no expiry, and is divided by the names. However many names there are, at most one key stays for each of the "
    "16,384 slots.",
    "sql": "*plain*: the statement in its own BEGIN … COMMIT. The mark is already claimed; *guard.claim* raises one.",
    "enforced_guard": "The same writes on a database that enforces, and on one that does not. `fsync` is off.",
    "object_store": "Guarded writes, compared with plain puts.",
    "redlock": "A quorum of independent servers.",
}


def write_pages(results: Mapping[str, Any], docs: Path = DOCS) -> list[Path]:
    """Write the two pages, the charts and the run; return the files."""
    drawn = pictures(figures_of(results))
    files = {
        docs / "benchmarks.md": ratios_page(results, drawn),
        docs / FOLDER / "numbers.md": numbers_page(results, drawn),
        docs / FOLDER / "results.json": json.dumps(results, ensure_ascii=False).replace("}, {", "},\n{") + "\n",
        **{docs / FOLDER / f"{name}.svg": f"{picture}\n" for name, picture in drawn.items()},
    }
    (docs / FOLDER).mkdir(exist_ok=True)
    for file, content in files.items():
        file.write_text(content, "utf-8")
    return list(files)


def numbers_page(results: Mapping[str, Any], drawn: Mapping[str, str]) -> str:
    """Return the page of all numbers as Markdown."""
    figures = figures_of(results)
    verdicts = [assess(target, figures) for target in TARGETS]
    met = sum(verdict.met for verdict in verdicts)
    blocks = [HEAD.rstrip(), f"## Where\n\n{where(results)}"]
    blocks += [f"## Targets\n\n{met} of {len(TARGETS)} met. The median decides.", markdown(verdict_rows(verdicts))]
    for name, part in results["parts"].items():
        blocks.append(f"## {name}: {PARTS[name]}\n\n{TEXTS[name]}")
        if name in drawn:
            blocks.append(f"![{PARTS[name]}]({name}.svg)")
        for scenario in scenarios(figures[name]):
            blocks.append(f"**{scenario}**\n\n{markdown(figure_rows(figures[name], scenario))}")
        if part["text"]:
            blocks.append(f"```text\n{part['text']}\n```")
        for failure in part["failures"]:
            blocks.append(f"Failed: *{failure['scenario']}*, {failure['of']}: {_one_line(failure['said'])}")
    return "\n\n".join(blocks) + "\n"


def pictures(figures: Figures) -> dict[str, str]:
    """Return an SVG for each part that has something to draw."""
    return {name: picture for name, draw in _DRAWN.items() if (picture := draw(figures.get(name, ())))}


def _one_line(said: str) -> str:
    return " ".join(said.split()).replace("|", r"\|")


def _groups(figures: Sequence[Figure], what: str, ours: str = OURS) -> list[Group]:
    """Return a group for each scenario, with a bar for each contender."""
    groups = []
    for scenario in scenarios(figures):
        its = [figure for figure in figures if figure.scenario == scenario and figure.what == what]
        if its:
            found = [Bar(each.of, each.median, each.low, each.high, each.of.startswith(ours)) for each in its]
            groups.append(Group(scenario, found))
    return groups


def _bars(
    title: str, what: str, unit: str, mark: float | None = None, marked: str = "", ours: str = OURS
) -> Callable[[Sequence[Figure]], str]:
    def draw(figures: Sequence[Figure]) -> str:
        groups = _groups(figures, what, ours)
        return bars(title, groups, unit=unit, mark=mark, marked=marked) if groups else ""

    return draw


def _contended(figures: Sequence[Figure]) -> str:
    counts = [2, 8, 32, 128]

    def series(what: str) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {name: {} for name in THREADS}
        for figure in figures:
            for count in counts:
                if figure.what == what and figure.scenario == f"{count} threads, one core":
                    found[figure.of][count] = figure.median
        return {name: its for name, its in found.items() if its}

    panels = [
        Panel("hand-off, 99th percentile, µs", series("hand-off p99, µs")),
        Panel("fairness (Jain)", series("fairness (Jain)"), logarithmic=False, mark=0.98),
        Panel("commands per grant", series("commands a grant"), mark=3.2),
        Panel("grants per second", series("grants/s"), logarithmic=False),
    ]
    return lines("Contention for one lock, by the number of threads", counts, panels) if panels[0].series else ""


def _live(figures: Sequence[Figure]) -> str:
    ratio = {
        int(figure.scenario.split()[0].replace(",", "")): figure.median
        for figure in figures
        if figure.what.startswith("x with")
    }
    panel = Panel("time of a pair, compared with ten locks", {OURS: ratio}, logarithmic=False, mark=1.15)
    return lines("Many live locks in Redis", list(ratio), [panel]) if ratio else ""


_DRAWN: Mapping[str, Callable[[Sequence[Figure]], str]] = {
    "pair": _bars("Acquire and release: time, compared with redis-py's Lock", f"x {REDIS_PY}", "x", 1.0, REDIS_PY),
    "tasks": _bars(
        "Acquire and release with asyncio: time, compared with redis-py's Lock", f"x {REDIS_PY}", "x", 1.0, REDIS_PY
    ),
    "contended": _contended,
    "failures": _bars("Until the next waiter has the lock", UNTIL_THE_NEXT, "ms"),
    "renewal": _bars("Renewal: client CPU per cycle", "client CPU a cycle, ms", "ms"),
    "processes": _bars(
        "Pairs per second of several processes, compared with redis-py's Lock", f"x {REDIS_PY}", "x", 1.0, REDIS_PY
    ),
    "live": _live,
    "sql": _bars("Guarded writes: time, compared with plain ones", "x plain", "x", 1.0, "plain", ours="guard.write"),
}
