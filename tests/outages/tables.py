"""What was measured, as tables for a page, and as a picture. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from examples.drawing.markup import element, text
from tests.benchmarks.charts import drawing
from tests.benchmarks.measure import number
from tests.outages.deployments import CUT_OFF, DEPLOYMENTS, FROZEN, KILLED, REPLACED, TWO_KILLED
from tests.outages.faults import HOLDER_FROZEN, HOLDER_KILLED

FAULTS = (HOLDER_KILLED, HOLDER_FROZEN, KILLED, FROZEN, CUT_OFF, TWO_KILLED, REPLACED)
NOT_APPLICABLE = "-"

ROW, NAME, BAR_WIDTH, PANEL_HEAD = 18, 170, 440, 34

Results = Mapping[str, Mapping[str, Any]]
"""By deployment: "loads", by the name of the lock; and "faults", by the name of the fault."""


def load_table(results: Results) -> Iterator[str]:
    """Yield the lines of the table of contenders: the pair alone, then each crowd."""
    crowds = list(next(iter(results.values()))["loads"]["fencing"]["crowds"])
    heads = [f"{crowd} threads: grants a second; wait, median and longest, ms; Jain" for crowd in crowds]
    yield from _head(["service", "lock", "pair alone, µs", *heads])
    for name, found in results.items():
        for lock, its in found["loads"].items():
            cells = [
                f"{load['grants']:.0f}; {number(load['median'])}, {number(load['longest'])}; {load['jain']:.2f}"
                for load in (its["crowds"][crowd] for crowd in crowds)
            ]
            title = DEPLOYMENTS[name].title if lock == "fencing" else ""
            yield _line([title, f"**{lock}**" if lock == "fencing" else lock, number(its["pair"]), *cells])


def fault_table(results: Results) -> Iterator[str]:
    """Yield the lines of the table of faults: seconds without a grant, and of two holders at once."""
    yield from _head(["service", *FAULTS])
    for name, found in results.items():
        if found["faults"]:
            yield _line([DEPLOYMENTS[name].title, *(_gap(found["faults"].get(fault)) for fault in FAULTS)])


def _gap(outcome: Mapping[str, Any] | None) -> str:
    if outcome is None:
        return NOT_APPLICABLE
    double = f", **two holders** for {outcome['double']:.1f} s" if outcome["double"] > 0 else ""
    return f"{outcome['gap']:.1f} s{double}"


def loss_table(results: Results) -> Iterator[str]:
    """Yield the lines of the table of updates that were acknowledged and lost, without a guard and with one."""
    yield from _head(["fault", "runs", "numbers that fell", "lost without a guard", "lost with a guard", "refused"])
    for fault in FAULTS:
        outcomes = [found["faults"][fault] for found in results.values() if fault in found["faults"]]
        sums = (sum(each[what] for each in outcomes) for what in ("fell", "lost", "lost_guarded", "refused"))
        yield _line([fault, str(len(outcomes)), *map(str, sums)])


def _head(cells: Sequence[str]) -> Iterator[str]:
    yield _line(cells)
    yield "|---" * len(cells) + "|"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def picture(results: Results) -> str:
    """Return an SVG: for each fault, the seconds without a grant of each service."""
    longest = max(outcome["gap"] for found in results.values() for outcome in found["faults"].values())
    drawn: list[str] = []
    described: list[str] = []
    y = PANEL_HEAD + 10.0
    for fault in FAULTS:
        gaps = {
            DEPLOYMENTS[name].title: found["faults"][fault]
            for name, found in results.items()
            if fault in found["faults"]
        }
        drawn.append(element("text", text(fault), class_="group", x=12, y=y + 12))
        y += ROW + 4
        for title, outcome in gaps.items():
            width = max(BAR_WIDTH * outcome["gap"] / longest, 1)
            hue = "hue-5" if outcome["double"] > 0 else "hue-0"
            said = f"{outcome['gap']:.1f} s" + (", two holders" if outcome["double"] > 0 else "")
            drawn += [
                element("text", text(title), class_="quiet", x=24, y=y + 12),
                element("rect", class_=f"dot {hue}", x=NAME, y=y + 2, width=width, height=ROW - 5),
                element("text", text(said), class_="quiet", x=NAME + width + 6, y=y + 12),
            ]
            described.append(f"{fault}, {title}: {said}")
            y += ROW
        y += 8
    return drawing("Seconds without a grant, by fault", "; ".join(described), y + 6, drawn)
