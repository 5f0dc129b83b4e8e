"""Recorded events for the terminal: a column for each lane, time runs downwards.

Each row is a moment at which something was recorded. A bar shows something that lasts, from its start to its end.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from examples.drawing.events import Event, Lane

LONG_SILENCE = 0.3
MOST_SILENCES = 3
"""A row without events stands for about so many seconds without events; there are at most so many such rows."""

GAP = "  "


class Style(NamedTuple):
    colour: str = ""
    """The number of an ANSI colour, or several."""
    bar: str = ""
    end: str = ""


class Look(NamedTuple):
    """What the terminal can do."""

    colour: bool = False
    unicode: bool = True

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colour and colour and text else text

    def plain(self, text: str) -> str:
        return text if self.unicode else text.translate(_ASCII).encode("ascii", "replace").decode()


_ASCII = str.maketrans(
    {"┃": "|", "╹": "'", "░": "#", "─": "-", "·": ".", "…": "...", "✗": "x", "✓": "+", "→": "->", "≠": "!=", "⠿": "*"}
)

STYLES: Mapping[str, Style] = {
    "held": Style("33", "┃", "╹"),
    "claimed": Style("33"),
    "paused": Style("1;36", "░", ""),
    "written": Style("32"),
    "damaged": Style("1;31"),
    "refused": Style("1;31"),
    "lost": Style("31"),
    "killed": Style("1;31"),
    "delayed": Style("1;36", "░", ""),
    "at-work": Style("35", "┃", "╹"),
}

DIM = "2"
BOLD = "1"


@dataclass
class Cell:
    bars: list[Event] = field(default_factory=list)
    """What lasts over this row."""
    ended: list[Event] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)
    """Texts, each with its kind."""


@dataclass
class Row:
    at: float | None
    """None: a time without events."""
    cells: dict[str, Cell]


def rows_of(events: Sequence[Event], lanes: Sequence[Lane]) -> list[Row]:
    """Return the rows of a timeline."""
    names = {lane.name for lane in lanes}
    shown = [event for event in events if event.lane in names]
    moments = [(event.start if event.because is None else event.because, False, event) for event in shown]
    moments += [(event.end, True, event) for event in shown if event.end is not None]
    moments.sort(key=lambda moment: moment[0])
    rows: list[Row] = []
    for at, is_end, event in moments:
        row = rows[-1] if rows else None
        if row is None or at != row.at or event.lane in row.cells:
            if row is not None and row.at is not None:
                silences = min(MOST_SILENCES, int((at - row.at) / LONG_SILENCE))
                rows += [Row(None, {}) for _ in range(silences)]
            row = Row(at, {})
            rows.append(row)
        cell = row.cells.setdefault(event.lane, Cell())
        cell.texts.append((event.end_text if is_end else event.text, event.kind))
        if event.lasting:
            (cell.ended if is_end else cell.bars).append(event)
    _extend_bars(rows, [event for event in shown if event.lasting])
    return rows


def _extend_bars(rows: Sequence[Row], lasting: Sequence[Event]) -> None:
    """Add each bar to the rows between its start and its end."""
    for event in lasting:
        inside = False
        for row in rows:
            cell = row.cells.get(event.lane, Cell())
            if event in cell.ended:
                break
            if inside:
                row.cells.setdefault(event.lane, cell).bars.append(event)
            inside = inside or event in cell.bars


def draw(
    events: Sequence[Event],
    lanes: Sequence[Lane],
    *,
    width: int = 80,
    look: Look | None = None,
    styles: Mapping[str, Style] = STYLES,
) -> list[str]:
    """Return the timeline as lines of text."""
    look = look or Look()
    rows = rows_of(events, lanes)
    if not rows:
        return []
    begin = next(row.at for row in rows if row.at is not None)
    columns = [[_render(row.cells.get(lane.name, Cell()), styles) for row in rows] for lane in lanes]
    natural = [
        max(len(lane.title), *(len(bar) + _longest(texts) for bar, _, texts in column))
        for lane, column in zip(lanes, columns, strict=True)
    ]
    widths = _fit(natural, width - 9)
    head = " " * 9 + GAP.join(lane.title.ljust(size) for lane, size in zip(lanes, widths, strict=True))
    lines = [
        look.paint(look.plain(head.rstrip()), BOLD),
        look.plain("─" * min(width, 9 + sum(widths) + 2 * len(widths) - 2)),
    ]
    for number, row in enumerate(rows):
        cells = [_wrap(column[number], size, look) for column, size in zip(columns, widths, strict=True)]
        for line in range(max(len(cell) for cell in cells)):
            stamp = f"{row.at - begin:6.3f} s " if row.at is not None and line == 0 else " " * 9
            if row.at is None:
                stamp = look.plain("      ·  ")
            parts = [
                cell[line] if line < len(cell) else _blank(column[number], size, look)
                for cell, column, size in zip(cells, columns, widths, strict=True)
            ]
            lines.append((look.paint(stamp, DIM) + GAP.join(parts)).rstrip())
    return lines


class _Drawn(NamedTuple):
    bar: str
    bar_colour: str
    texts: list[tuple[str, str]]
    """Each with its colour."""


def _render(cell: Cell, styles: Mapping[str, Style]) -> _Drawn:
    running = [styles.get(event.kind, Style()) for event in cell.bars]
    ended = [styles.get(event.kind, Style()) for event in cell.ended]
    bar = "".join(style.bar for style in running) or "".join(style.end for style in ended)
    colour = next((style.colour for style in [*running, *ended] if style.colour), "")
    texts = [(text, styles.get(kind, Style()).colour) for text, kind in cell.texts if text]
    return _Drawn(f"{bar} " if bar else "", colour, texts)


def _longest(texts: Sequence[tuple[str, str]]) -> int:
    return max((len(text) for text, _ in texts), default=0)


def _fit(natural: Sequence[int], width: int) -> list[int]:
    """Return column widths that fit; the widest columns shrink first, and their texts are wrapped."""
    widths = list(natural)
    while sum(widths) + len(GAP) * (len(widths) - 1) > width and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    return widths


def _wrap(drawn: _Drawn, size: int, look: Look) -> list[str]:
    lines = []
    bar = look.plain(drawn.bar)
    room = max(1, size - len(bar))
    for text, colour in drawn.texts or [("", "")]:
        for line in textwrap.wrap(look.plain(text), room) or [""]:
            padding = " " * (room - len(line))
            lines.append(look.paint(bar, drawn.bar_colour) + look.paint(line, colour) + padding)
    return lines


def _blank(drawn: _Drawn, size: int, look: Look) -> str:
    """Return the rest of a cell, in a row that another cell makes taller: only the bar."""
    bar = look.plain(drawn.bar)
    return look.paint(bar, drawn.bar_colour) + " " * (size - len(bar))
