"""Where everything goes in a picture of recorded events: a column for each lane, a row for each moment.

Nothing may cover anything else: each row has the height and each column the width that its texts need, and the label
of an arrow has a place of its own at the arrow's right end. Times are not to scale, and a break stands for a long one.

In a narrow picture the lanes are close together, and all texts are in one column to the right of them.
"""

import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from examples.drawing.events import Event, Lane

BREAK = 0.25
"""Seconds without an event from which a break is drawn; a shorter time takes the height of a row."""

FONT = 13.0
LINE = 17.0
"""Pixels: the size of the letters, from one line to the next."""

WRAP = 26
"""Characters."""

TIMES = 76.0
HEAD = 44.0
ROW = 20.0
BREAK_HEIGHT = 62.0
BAR = 14.0
BAR_STEP = 18.0
INDENT = 15.0
"""From a lane's line to its texts."""

NARROW = 400.0
"""Pixels: the width of a narrow picture."""

NARROW_LANE = 24.0
NARROW_ROW = 25.0


def text_width(text: str, size: float = FONT) -> float:
    """Return the most pixels that a text takes in a sans-serif font as wide as DejaVu Sans or Verdana, in bold."""
    return sum(_advance(letter) for letter in text) * size


def _advance(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.05
    if letter in "ijlI.,:;'|! ()[]frt-":
        return 0.49
    if letter in "mwMW@%#" or ord(letter) > 0x2000:
        return 1.05
    return 0.84 if letter.isupper() else 0.73


def usual_width(text: str, *, bold: bool = False) -> float:
    """Return about the pixels that a text takes in these fonts; others are up to a fifth narrower."""
    return sum(_usual_advance(letter) for letter in text) * FONT * (1.13 if bold else 1)


def _usual_advance(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    if letter in "ijlIJ .,:;'|":
        return 0.31
    if letter in "frt()[]-!":
        return 0.39
    if letter in "mMW@%":
        return 0.97
    if letter in "+<=>≠#w":
        return 0.83
    return 0.71 if letter.isupper() else 0.62


class Entry(NamedTuple):
    """An event in a row: its start, or its end."""

    event: Event
    is_end: bool
    lines: Sequence[str]

    @property
    def flag(self) -> str:
        return "" if self.is_end else str(self.event.data.get("flag", ""))

    @property
    def height(self) -> float:
        return (len(self.lines) + bool(self.flag)) * LINE

    @property
    def width(self) -> float:
        return max((text_width(line) for line in [*self.lines, self.flag]), default=0) + 12


class Arrow(NamedTuple):
    event: Event
    source: str
    target: str
    label: str


@dataclass
class Row:
    at: float
    stamped: bool
    """Whether its time is written beside it: not if the row before has the same time."""
    silence: float = 0
    """Seconds of the break before it; 0: there is none."""
    entries: dict[str, Entry] = field(default_factory=dict)
    arrows: list[Arrow] = field(default_factory=list)
    y: float = 0
    """The line of the row: arrows are on it, texts above it (in a narrow picture beside it)."""
    break_y: float = 0
    """The line of the break before it."""

    @property
    def height(self) -> float:
        return max((entry.height for entry in self.entries.values()), default=0) + ROW


class Bar(NamedTuple):
    """What lasts, in its lane."""

    event: Event
    top: float
    bottom: float
    level: int
    """How many earlier ones in its lane were not over; it is drawn to the left of them."""
    length_y: float | None
    """Where its length is written: in the first break that it covers."""

    def covers(self, lane: str, y: float) -> bool:
        return self.event.lane == lane and self.top <= y <= self.bottom


@dataclass
class Layout:
    rows: list[Row]
    bars: list[Bar]
    lanes: Sequence[Lane]
    x: dict[str, float]
    """The line of each lane."""
    heads: dict[str, float]
    """The height of each lane's title."""
    width: float
    height: float
    begin: float
    texts: float | None = None
    """Where all texts begin; None: each beside its lane."""

    @property
    def left(self) -> float:
        """Where the first lane begins: its line, or the leftmost of its bars."""
        x = min(self.x.values(), default=0)
        return x - BAR_STEP * max((bar.level for bar in self.bars if self.x[bar.event.lane] == x), default=0)

    def edge(self, lane: str, y: float, *, right: bool) -> float:
        """Return where an arrow meets a lane: beside its bars, if there are any."""
        levels = [bar.level for bar in self.bars if bar.covers(lane, y)]
        left = BAR / 2 + max(levels) * BAR_STEP if levels else 0
        return self.x[lane] + (BAR / 2 if levels else 0) if right else self.x[lane] - left


def lay_out(events: Sequence[Event], lanes: Sequence[Lane], *, width: float = 0) -> Layout:
    """Return the places of the events of these lanes; the picture is at least so wide."""
    rows = _rows(events, [lane.name for lane in lanes], _wrapped)
    y = HEAD
    for row in rows:
        if row.silence:
            row.break_y = y + BREAK_HEIGHT / 2 + 10
            y += BREAK_HEIGHT
        y += row.height
        row.y = y
    bars = _bars(rows, y + ROW)
    x, needed = _columns(rows, lanes, width, max((bar.level for bar in bars), default=0))
    heads = {lane.name: HEAD - 20 for lane in lanes}
    return Layout(rows, bars, lanes, x, heads, needed, y + ROW, rows[0].at if rows else 0)


def lay_out_narrow(events: Sequence[Event], lanes: Sequence[Lane]) -> Layout:
    """Return the places in a narrow picture. Each text has a row of its own, each title a height of its own."""
    names = [lane.name for lane in lanes]
    rows = _rows(events, names, lambda event, is_end: [_sentence(event, is_end, names)], shared=False)
    begin = rows[0].at if rows else 0
    for number, row in enumerate(rows):
        row.y = number
    step = NARROW_LANE + BAR_STEP * max((bar.level for bar in _bars(rows, len(rows), above=0)), default=0)
    left = 22 + max((text_width(f"{row.at - begin:.3f} s", 12) for row in rows), default=0) + step - NARROW_LANE
    x = {name: left + number * step for number, name in enumerate(names)}
    texts = max(x.values(), default=left) + INDENT + 4
    heads = {name: (number + 1) * LINE + 4 for number, name in enumerate(names)}
    y = (len(names) + 1) * LINE
    for row in rows:
        row.entries = {
            lane: entry._replace(lines=_fitting(entry.lines[0], NARROW - texts - 18))
            for lane, entry in row.entries.items()
        }
        if row.silence:
            row.break_y = y + NARROW_ROW
            y += NARROW_ROW + 6
        row.y = y + NARROW_ROW
        y = row.y + max(entry.height for entry in row.entries.values()) - LINE
    titles = max((x[lane.name] + text_width(lane.title, 14) for lane in lanes), default=0)
    bars = _bars(rows, y + ROW, above=6)
    return Layout(rows, bars, lanes, x, heads, max(NARROW, titles), y + ROW, begin, texts)


def _wrapped(event: Event, is_end: bool) -> list[str]:
    return textwrap.wrap(event.end_text if is_end else event.text, WRAP)


def _sentence(event: Event, is_end: bool, names: Sequence[str]) -> str:
    """Return the text with its lane, its length and the label of its arrow: a wide picture has them elsewhere."""
    text = event.end_text if is_end else event.text
    if is_end and event.end is not None and event.end - event.start >= BREAK:
        text = f"{text} after {event.end - event.start:.3f}\N{NO-BREAK SPACE}s"
    arrow = None if is_end else _arrow(event, names)
    if arrow and arrow.label and arrow.label not in text:
        text = f"{text} ({arrow.label})"
    return f"{event.lane}: {text}"


def _fitting(text: str, width: float) -> list[str]:
    """Return lines of at most this width; break words that are longer."""
    size = len(text)
    while True:
        lines = textwrap.wrap(text, size) or [""]
        widest = max(text_width(line) for line in lines)
        if widest <= width or size == 1:
            return lines
        size = min(size - 1, max(len(line) for line in lines))


def _rows(
    events: Sequence[Event],
    names: Sequence[str],
    lines: Callable[[Event, bool], Sequence[str]],
    *,
    shared: bool = True,
) -> list[Row]:
    """Return the rows; `shared`: events of one moment in different lanes share a row."""
    shown = [event for event in events if event.lane in names]
    moments = [(event.start if event.because is None else event.because, event, False) for event in shown]
    moments += [(event.end, event, True) for event in shown if event.end is not None]
    moments.sort(key=lambda moment: moment[0])
    rows: list[Row] = []
    for at, event, is_end in moments:
        arrow = None if is_end else _arrow(event, names)
        row = rows[-1] if rows else None
        if row is None or at != row.at or not shared or event.lane in row.entries or (arrow and row.arrows):
            gap = at - row.at if row else 0
            row = Row(at, stamped=row is None or at != row.at, silence=gap if gap >= BREAK else 0)
            rows.append(row)
        row.entries[event.lane] = Entry(event, is_end, lines(event, is_end))
        if arrow:
            row.arrows.append(arrow)
    return rows


def _arrow(event: Event, names: Sequence[str]) -> Arrow | None:
    """Return the arrow of an event to or from another lane of the picture."""
    source = event.data.get("source", event.lane)
    target = event.data.get("target", event.lane)
    if source == target or source not in names or target not in names:
        return None
    return Arrow(event, source, target, str(event.data.get("label", "")))


def _bars(rows: Sequence[Row], bottom: float, *, above: float | None = None) -> list[Bar]:
    """Return the bars: each from the row of its start to the row of its end, or to the bottom of the picture.

    `above`: how far above its row's line a bar begins; None: as far as its text.
    """
    bars: list[Bar] = []
    for first, row in enumerate(rows):
        for entry in row.entries.values():
            event = entry.event
            if not event.lasting or entry.is_end:
                continue
            rest = rows[first + 1 :]
            end = next((later for later in rest if _ends(event, later)), None)
            over = rest[: rest.index(end) + 1] if end else rest
            breaks = [later.break_y - BREAK_HEIGHT / 2 - 10 for later in over if later.silence]
            top = row.y - (entry.height if above is None else above)
            taken = {bar.level for bar in bars if bar.covers(event.lane, top)}
            level = min(set(range(len(taken) + 1)) - taken)
            bars.append(Bar(event, top, end.y if end else bottom, level, breaks[0] + LINE if breaks else None))
    return bars


def _ends(event: Event, row: Row) -> bool:
    entry = row.entries.get(event.lane)
    return entry is not None and entry.is_end and entry.event == event


def _columns(rows: Sequence[Row], lanes: Sequence[Lane], width: float, levels: int) -> tuple[dict[str, float], float]:
    """Return the line of each lane and the whole width. Space that is left over makes the arrows longer."""
    names = [lane.name for lane in lanes]
    labels: dict[str, float] = {}  # they are at the right ends of arrows: so wide is what stands before a lane
    for arrow in (arrow for row in rows for arrow in row.arrows if arrow.label):
        right = max(arrow.source, arrow.target, key=names.index)
        labels[right] = max(labels.get(right, 0), text_width(arrow.label))
    sizes = []
    for number, lane in enumerate(lanes):
        texts = [row.entries[lane.name].width for row in rows if lane.name in row.entries]
        size = INDENT + max([text_width(lane.title), *texts])
        if number < len(lanes) - 1:
            label = labels.get(names[number + 1])
            size += (label + 40 if label else 24) + levels * BAR_STEP
        sizes.append(size)
    x = TIMES + BAR + levels * BAR_STEP
    spare = max(0.0, width - x - sum(sizes) - BAR)
    places = {}
    for lane, size in zip(lanes, sizes, strict=True):
        places[lane.name] = x
        x += size + spare / max(1, len(lanes))
    return places, x + BAR
