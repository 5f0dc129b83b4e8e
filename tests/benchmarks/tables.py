"""Figures as tables: for the terminal, and in Markdown. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tests.benchmarks.parts import Figure
from tests.benchmarks.targets import Verdict

__all__ = ["figure_rows", "figure_text", "markdown", "number", "plain", "scenarios", "verdict_rows"]

Row = Sequence[str]


def number(value: float) -> str:
    """Three digits that count, or more where they stand before the point, with separators between thousands."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{min(max(0, 2 - math.floor(math.log10(abs(value)))), 4)}f}"


def figure_text(figure: Figure | None, unit: str = "") -> str:
    """The median, and from where to where it varied, if it did."""
    if figure is None:
        return "-"
    text = f"{number(figure.median)}{f' {unit}' if unit and unit != 'x' else ''}"
    if figure.low != figure.high:
        text += f" ({number(figure.low)} … {number(figure.high)})"
    return f"x {text}" if unit == "x" else text


def scenarios(figures: Iterable[Figure]) -> list[str]:
    """Their names, in the order of their first figure."""
    return list(dict.fromkeys(figure.scenario for figure in figures))


def figure_rows(figures: Sequence[Figure], scenario: str) -> list[Row]:
    """A scenario as a table: a row for each contender, a column for each thing measured; the first row is the head."""
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
        sign = "≥" if target.at_least else "≤"
        limit = f"{sign} {'x ' if target.unit == 'x' else ''}{number(target.limit)}"
        limit += f" {target.unit}" if target.unit not in ("", "x") else ""
        beside = figure_text(verdict.beside, target.unit) if target.beside else ""
        rows.append([target.what, limit, figure_text(verdict.figure, target.unit), beside, verdict.said])
    return rows


def plain(rows: Sequence[Row]) -> str:
    """Columns of equal width, for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def markdown(rows: Sequence[Row]) -> str:
    head, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
