"""docs/benchmarks.md and its pictures, of what a run has found. Nothing on that page is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.charts import Bar, Group, Panel, bars, lines
from tests.benchmarks.contenders import OURS, REDIS_PY, THREADS
from tests.benchmarks.failures import TTL
from tests.benchmarks.failures import WHAT as UNTIL_THE_NEXT
from tests.benchmarks.parts import PARTS, Figure
from tests.benchmarks.tables import figure_rows, markdown, number, scenarios, verdict_rows
from tests.benchmarks.targets import TARGETS, judge

__all__ = ["page", "pictures", "write_page"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
FOLDER = "benchmarks"

Figures = Mapping[str, Sequence[Figure]]

HEAD = """# Benchmarks

Made by `make bench` and `python -m tests.benchmarks report`; the numbers are of one run, on one machine, at one hour.

**Not promised:** any absolute time. What can be compared are ratios, within a table: contenders ran turn about, and a
ratio is that of neighbours. Each figure is a median, in brackets the 10th and the 90th percentile.

- *One core*: client and server share one processor, so that nothing has to be woken on another one and nothing runs
  beside. *All cores*: as the system likes it; the same figures, more noise.
- *raw*: a blocking socket (for asyncio: a protocol) that sends the very bytes this library sends.
- Every lock expires after the same time, and only ours renews itself and mints fences. All share one client in a
  process, with a pool that is large enough for everybody.
- *Hand-off*: from the moment the holder begins to release until the next one has the lock, be it the same one: short
  where the releaser takes the lock again at once, and then the *longest wait* is long. *Idle round trip*: one command
  over a raw connection on which nothing happened for a millisecond. *Commands*: what clients send, counted with MONITOR
  in a window of its own.
- *Fairness (Jain)*: 1 if all got the lock equally often, 1/n if one got it every time.
"""

TEXTS = {
    "pair": "A round is a batch of pairs of each contender; with threads, each has a lock of its own.",
    "tasks": "The same with asyncio. With many tasks the time is that of all of them over the number of pairs.",
    "contended": "A closed loop: everybody takes the lock, holds it for 1 ms, frees it, and wants it again.",
    "failures": "A holder and two waiters, a process each. The first waiter is killed or frozen before the release; or "
    f"the holder is killed. The ttl is {TTL} s.",
    "renewal": "A cycle is the time in which every lease is renewed once, a third of its ttl.",
    "processes": "Pairs of several processes at once, each with its own lock; all of them together.",
    "live": "A second server with ten locks is the neighbour. A name was *ever locked* if its lock is gone: what stays "
    "is what has no expiry, divided by the names. It has a ceiling, however many names there are: one key for each of "
    "16,384 slots.",
    "sql": "*plain*: the statement in its own BEGIN … COMMIT. The mark is already claimed; *guard.claim* raises one.",
    "enforced_guard": "The same writes on a database that enforces, and on one that does not; no fsync.",
    "object_store": "Guarded writes against plain puts.",
    "redlock": "A quorum of independent servers.",
}


def write_page(results: Mapping[str, Any], docs: Path = DOCS) -> list[Path]:
    """Write the page and its pictures; returns the files."""
    drawn = pictures(_figures(results))
    folder = docs / FOLDER
    folder.mkdir(exist_ok=True)
    written = [docs / "benchmarks.md"]
    for name, picture in drawn.items():
        written.append(folder / f"{name}.svg")
        written[-1].write_text(picture + "\n", "utf-8")
    written[0].write_text(page(results, drawn), "utf-8")
    return written


def page(results: Mapping[str, Any], drawn: Mapping[str, str]) -> str:
    """The page as Markdown."""
    figures = _figures(results)
    verdicts = [judge(target, figures) for target in TARGETS]
    met = sum(verdict.met for verdict in verdicts)
    blocks = [HEAD.rstrip(), _where(results)]
    blocks += [f"## Targets\n\n{met} of {len(TARGETS)} met; the median decides.", markdown(verdict_rows(verdicts))]
    for name, part in results["parts"].items():
        blocks.append(f"## {name}: {PARTS[name]}\n\n{TEXTS[name]}")
        if name in drawn:
            blocks.append(f"![{PARTS[name]}]({FOLDER}/{name}.svg)")
        for scenario in scenarios(figures[name]):
            blocks.append(f"**{scenario}**\n\n{markdown(figure_rows(figures[name], scenario))}")
        if part["text"]:
            blocks.append(f"```text\n{part['text']}\n```")
        for failure in part["failures"]:
            blocks.append(f"Failed: *{failure['scenario']}*, {failure['of']}: {_one_line(failure['said'])}")
    return "\n\n".join(blocks) + "\n"


def _where(results: Mapping[str, Any]) -> str:
    """The machine, the versions, the noise."""
    machine = results["machine"]
    noises = [noise for part in results["parts"].values() for noise in part["noise"]]
    loads, spins = ([noise[kind] for noise in noises] for kind in ("load", "spin"))
    others = {**machine["servers"], **machine["packages"]}
    text = (
        f"## Where\n\n{machine['processor']}, {machine['cores']} cores, {machine['system']}, {machine['python']}, "
        f"{machine['date']}. " + ", ".join(f"{name} {version}" for name, version in others.items()) + "."
    )
    if noises:
        text += (
            f"\n\nNoise: the load average was {number(min(loads))} to {number(max(loads))} before and after parts. The "
            f"same short computation took {number(min(spins))} to {number(max(spins))} times as long at its 90th "
            "percentile as at its 10th (1.0 is a quiet machine)."
        )
    if results["quick"]:
        text += "\n\n**A quick run**, with few rounds: it shows that everything works, and little else."
    return text


def pictures(figures: Figures) -> dict[str, str]:
    """An SVG for each part that has something to draw."""
    return {name: picture for name, draw in _DRAWN.items() if (picture := draw(figures.get(name, ())))}


def _figures(results: Mapping[str, Any]) -> dict[str, list[Figure]]:
    return {name: [Figure(**figure) for figure in part["figures"]] for name, part in results["parts"].items()}


def _one_line(said: str) -> str:
    return " ".join(said.split()).replace("|", r"\|")


def _groups(figures: Sequence[Figure], what: str, ours: str = OURS) -> list[Group]:
    """A group for each scenario, a bar for each contender."""
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
        Panel("commands a grant", series("commands a grant"), mark=3.2),
        Panel("grants a second", series("grants/s"), logarithmic=False),
    ]
    return (
        lines("Waiting for one lock, by the number of threads that want it", counts, panels) if panels[0].series else ""
    )


def _live(figures: Sequence[Figure]) -> str:
    ratio = {
        int(figure.scenario.split()[0].replace(",", "")): figure.median
        for figure in figures
        if figure.what.startswith("x with")
    }
    panel = Panel("a pair's time, of that with ten", {OURS: ratio}, logarithmic=False, mark=1.15)
    return lines("Many live locks in Redis", list(ratio), [panel]) if ratio else ""


_DRAWN: Mapping[str, Callable[[Sequence[Figure]], str]] = {
    "pair": _bars("Acquire and release: time, of redis-py Lock's", f"x {REDIS_PY}", "x", 1.0, REDIS_PY),
    "tasks": _bars("Acquire and release with asyncio: time, of redis-py Lock's", f"x {REDIS_PY}", "x", 1.0, REDIS_PY),
    "contended": _contended,
    "failures": _bars("Until the next one has the lock", UNTIL_THE_NEXT, "ms"),
    "renewal": _bars("Renewing: client CPU a cycle", "client CPU a cycle, ms", "ms"),
    "processes": _bars("Pairs a second of several processes, of redis-py Lock's", f"x {REDIS_PY}", "x", 1.0, REDIS_PY),
    "live": _live,
    "sql": _bars("Guarded writes: time, of the plain ones'", "x plain", "x", 1.0, "plain", ours="guard.write"),
}
