"""Figures and rows as tables, for the terminal and in Markdown. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.benchmarks.measure import number
from tests.benchmarks.parts import Figure
from tests.benchmarks.rows import Row, Verdict

Cells = Sequence[str]


def figure_text(figure: Figure | None) -> str:
    """Return the median, and its spread if it has one."""
    return "-" if figure is None else _spread_text(figure.median, figure.low, figure.high)


def _spread_text(median: float, low: float, high: float) -> str:
    if low == high:
        return f"{median:,.0f}" if median == round(median) else number(median)
    return f"{number(median)} ({number(low)} … {number(high)})"


def scenarios(figures: Iterable[Figure]) -> list[str]:
    """Return the names of the scenarios, in the order of their first figure."""
    return list(dict.fromkeys(figure.scenario for figure in figures))


def figure_rows(figures: Sequence[Figure], scenario: str) -> list[Cells]:
    """Return a scenario as a table: a row for each contender, a column for each measure. The first row is the head."""
    mine = [figure for figure in figures if figure.scenario == scenario]
    columns = list(dict.fromkeys(figure.what for figure in mine))
    cells = {(figure.of, figure.what): figure for figure in mine}
    rows: list[Cells] = [["", *columns]]
    for of in dict.fromkeys(figure.of for figure in mine):
        rows.append([of, *(figure_text(cells.get((of, column))) for column in columns)])
    return rows


def verdict_rows(verdicts: Iterable[Verdict]) -> list[Cells]:
    rows: list[Cells] = [["row", "measured", "medians", "A/A", "target", ""]]
    for verdict in verdicts:
        its = verdict.figure
        cells = [figure_text(its), (its and its.both) or "-", _again_text(its), _limit_text(verdict.row), verdict.said]
        rows.append([verdict.row.name, *cells])
    return rows


def ratio_rows(figures: Mapping[str, Sequence[Figure]], other: str) -> list[Cells]:
    """Return the ratios to another revision."""
    rows: list[Cells] = [["part", "scenario", "", "", "medians", "A/A"]]
    for part, its in figures.items():
        for each in its:
            if each.what.endswith(f" x {other}"):
                what = each.what.removesuffix(f" x {other}")
                rows.append(
                    [part, each.scenario, f"{each.of}: {what}", figure_text(each), each.both, _again_text(each)]
                )
    return rows


def _again_text(figure: Figure | None) -> str:
    return _spread_text(*figure.again) if figure is not None and figure.again else "-"


def missed(verdicts: Iterable[Verdict]) -> list[str]:
    """Return a line for each row that is missed or was not measured."""
    return [
        f"{verdict.row.name}: {figure_text(verdict.figure)}, target {_limit_text(verdict.row)}"
        for verdict in verdicts
        if not verdict.met
    ]


def _limit_text(row: Row) -> str:
    if row.limit is None:
        return "-"
    unit = "" if row.unit == "x" else f" {row.unit}"
    limit = f"{row.limit:,.0f}" if row.limit >= 100 else f"{row.limit:g}"
    return f"{'≥' if row.at_least else '≤'} {limit}{unit}".rstrip()


def plain(rows: Sequence[Cells]) -> str:
    """Return columns of equal width, for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def markdown(rows: Sequence[Cells]) -> str:
    head, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
