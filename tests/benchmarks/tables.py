"""Figures as tables, for the terminal and in Markdown. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tests.benchmarks.parts import Figure
from tests.benchmarks.targets import Target, Verdict

__all__ = [
    "Row",
    "figure_rows",
    "figure_text",
    "markdown",
    "missed_rows",
    "number",
    "plain",
    "scenarios",
    "verdict_rows",
]

Row = Sequence[str]


def number(value: float) -> str:
    """Return three significant digits, or all digits before the point, with separators between thousands."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{min(max(0, 2 - math.floor(math.log10(abs(value)))), 4)}f}"


def figure_text(figure: Figure | None, unit: str = "") -> str:
    """Return the median, and its spread if it has one."""
    if figure is None:
        return "-"
    text = f"{number(figure.median)}{f' {unit}' if unit and unit != 'x' else ''}"
    if figure.low != figure.high:
        text += f" ({number(figure.low)} … {number(figure.high)})"
    return f"x {text}" if unit == "x" else text


def scenarios(figures: Iterable[Figure]) -> list[str]:
    """Return the names of the scenarios, in the order of their first figure."""
    return list(dict.fromkeys(figure.scenario for figure in figures))


def figure_rows(figures: Sequence[Figure], scenario: str) -> list[Row]:
    """Return a scenario as a table: a row for each contender, a column for each measure. The first row is the head."""
    mine = [figure for figure in figures if figure.scenario == scenario]
    columns = list(dict.fromkeys(figure.what for figure in mine))
    cells = {(figure.of, figure.what): figure for figure in mine}
    rows: list[Row] = [["", *columns]]
    for of in dict.fromkeys(figure.of for figure in mine):
        rows.append([of, *(figure_text(cells.get((of, column))) for column in columns)])
    return rows


def verdict_rows(verdicts: Sequence[Verdict]) -> list[Row]:
    rows: list[Row] = [["", "target", "measured", "all cores", ""]]
    for verdict in verdicts:
        target = verdict.target
        beside = figure_text(verdict.beside, target.unit) if target.beside else ""
        rows.append([target.what, _limit_text(target), figure_text(verdict.figure, target.unit), beside, verdict.said])
    return rows


def missed_rows(verdicts: Sequence[Verdict]) -> list[Row]:
    rows: list[Row] = [["missed", "target", "measured"]]
    for verdict in verdicts:
        target, figure = verdict.target, verdict.figure
        value = "-" if figure is None else _with_unit(figure.median, target.unit)
        rows.append([target.what, _limit_text(target), value])
    return rows


def _limit_text(target: Target) -> str:
    return f"{'≥' if target.at_least else '≤'} {_with_unit(target.limit, target.unit)}"


def _with_unit(value: float, unit: str) -> str:
    return f"x {number(value)}" if unit == "x" else f"{number(value)} {unit}".rstrip()


def plain(rows: Sequence[Row]) -> str:
    """Return columns of equal width, for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def markdown(rows: Sequence[Row]) -> str:
    head, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
