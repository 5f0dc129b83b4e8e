"""Recorded events as an SVG picture, to be read downwards: lanes, bars for what lasts, arrows between lanes.

`Event` says what a drawing knows of events, kinds.py how their kinds look; the colours are in colours.css.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from examples.drawing.events import Event, Lane
from examples.drawing.kinds import KINDS, Style
from examples.drawing.layout import (
    BAR,
    BAR_STEP,
    INDENT,
    LINE,
    Arrow,
    Bar,
    Entry,
    Layout,
    Row,
    lay_out,
    lay_out_narrow,
    text_width,
    usual_width,
)
from examples.drawing.markup import element, text

STYLE = "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("colours.css", "picture.css"))
"""What a picture needs; a page has it once, a stand-alone picture inside."""


def picture(
    events: Sequence[Event],
    lanes: Sequence[Lane],
    *,
    name: str,
    title: str,
    width: float = 0,
    kinds: Mapping[str, Style] = KINDS,
    narrow: bool = False,
    alone: bool = False,
) -> str:
    """Return an <svg> element.

    Args:
        name: for ids; each picture of a page needs its own.
        title: for screen readers; the events follow as a list.
        width: pixels, at least.
        narrow: for narrow screens; then `width` is not considered.
        alone: a file of its own, with its style and a background. It adapts to light and dark.
    """
    layout = lay_out_narrow(events, lanes) if narrow else lay_out(events, lanes, width=width)
    return _Picture(layout, name, kinds).svg(title, alone=alone)


_FULL = {"width": "100%", "height": "100%", "rx": 6}


class _Picture:
    def __init__(self, layout: Layout, name: str, kinds: Mapping[str, Style]) -> None:
        self._layout = layout
        self._name = name
        self._kinds = kinds
        self._titles = {lane.name: lane.title for lane in layout.lanes}
        self._hues = {lane.name: lane.hue for lane in layout.lanes}

    def svg(self, title: str, *, alone: bool = False) -> str:
        layout, name = self._layout, self._name
        hatch = element(
            "pattern",
            element("rect", class_="hatch-ground", width=8, height=8),
            element("rect", class_="hatch-stripe", width=4, height=8),
            id=f"{name}-hatch",
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        )
        return element(
            "svg",
            element("title", text(title), id=f"{name}-title"),
            element("desc", text(self._description()), id=f"{name}-desc"),
            element("defs", hatch),
            *([element("style", text(STYLE)), element("rect", class_="paper", **_FULL)] if alone else []),
            *(self._lane(lane) for lane in layout.lanes),
            *(self._time(row) for row in layout.rows),
            *(self._bar(bar) for bar in layout.bars),
            *(self._break(row) for row in layout.rows if row.silence),
            *(self._length(bar) for bar in layout.bars),
            *(self._arrow(arrow, row) for row in layout.rows for arrow in row.arrows),
            *(self._entry(entry, row) for row in layout.rows for entry in row.entries.values()),
            xmlns="http://www.w3.org/2000/svg",
            class_="timeline" if layout.texts is None else "timeline narrow",
            role="img",
            aria_labelledby=f"{name}-title {name}-desc",
            viewBox=f"0 0 {layout.width:.0f} {layout.height:.0f}",
            width=f"{layout.width:.0f}",
            height=f"{layout.height:.0f}",
        )

    def _description(self) -> str:
        sentences = []
        for row in self._layout.rows:
            for entry in row.entries.values():
                said = " ".join([*entry.lines, entry.flag]).strip()
                if said:
                    sentences.append(f"{self._stamp(row)} {self._titles[entry.event.lane]}: {said}.")
        return " ".join(sentences)

    def _stamp(self, row: Row) -> str:
        return f"{row.at - self._layout.begin:.3f} s"

    def _style(self, event: Event) -> Style:
        return self._kinds.get(event.kind, Style())

    def _hue(self, *lanes: str) -> str:
        """Return the first colour of these lanes, as a class."""
        return f"hue-{next((self._hues[lane] for lane in lanes if self._hues.get(lane)), 0)}"

    def _lane(self, lane: Lane) -> str:
        x, head = self._layout.x[lane.name], self._layout.heads[lane.name]
        return element(
            "g",
            element("line", class_="lifeline", x1=x, x2=x, y1=head + 10, y2=self._layout.height),
            element("text", text(lane.title), class_="head", x=x - BAR / 2, y=head),
            class_=f"lane {self._hue(lane.name)}",
        )

    def _time(self, row: Row) -> str:
        if not row.stamped:
            return ""
        x = self._layout.left
        right = self._layout.width if self._layout.texts is None else self._layout.texts - 6
        tick = element("line", class_="grid", x1=x - 16, x2=right, y1=row.y, y2=row.y)
        return tick + element("text", text(self._stamp(row)), class_="time", x=x - 22, y=row.y + 4)

    def _bar(self, bar: Bar) -> str:
        event = bar.event
        hatched = self._style(event).hatched
        body = element(
            "rect",
            element("title", text(_details(event))),
            class_="bar",
            x=self._layout.x[event.lane] - BAR / 2 - bar.level * BAR_STEP,
            y=bar.top,
            width=BAR,
            height=bar.bottom - bar.top,
            rx=3,
            style=f"fill:url(#{self._name}-hatch)" if hatched else None,
        )
        owner = str(event.data.get("holder", event.lane))
        return element("g", body, class_=f"lasting {self._hue(owner)}", data_kind=event.kind, data_lane=event.lane)

    def _length(self, bar: Bar) -> str:
        event = bar.event
        if event.end is None or bar.length_y is None or bar.level or self._layout.texts is not None:
            return ""
        length = f"lasted {event.end - event.start:.3f} s"
        return element("text", text(length), class_="length", x=self._layout.x[event.lane] + INDENT, y=bar.length_y)

    def _break(self, row: Row) -> str:
        """Draw a zigzag through the lanes, where a long time is left out."""
        left, right = self._layout.left - 16, self._layout.width
        y = row.break_y
        teeth = range(int((right - left) / 8) + 1)
        points = " ".join(f"{left + 8 * tooth:.0f},{y + (4 if tooth % 2 else -4):.0f}" for tooth in teeth)
        return element(
            "g",
            element("polyline", class_="gap", points=points),
            *(element("polyline", class_="zigzag", points=points, transform=f"translate(0 {d})") for d in (-4, 4)),
            element("text", text(f"+ {row.silence:.2f} s"), class_="time long", x=left - 6, y=y + 4),
            class_="break",
        )

    def _arrow(self, arrow: Arrow, row: Row) -> str:
        layout, event = self._layout, arrow.event
        style = self._style(event)
        rightwards = layout.x[arrow.source] < layout.x[arrow.target]
        step = 1 if rightwards else -1
        start = layout.edge(arrow.source, row.y, right=rightwards)
        tip = layout.edge(arrow.target, row.y, right=not rightwards) - 2 * step
        if style.stopped:
            cross = tip - 10 * step
            shape = f"M{cross - 6:.1f} {row.y - 6:.1f}l12 12m0 -12l-12 12"
            head = element("path", class_="cross", d=shape)
        else:
            head = element("path", class_="tip", d=f"M{tip:.1f} {row.y:.1f}l{-10 * step} -5v10z")
        tone = f"tone-{style.tone}" if style.tone == "bad" else self._hue(event.lane, arrow.source, arrow.target)
        return element(
            "g",
            element("title", text(_details(event))),
            element("line", class_="dashed" if style.dashed else None, x1=start, x2=tip - 6 * step, y1=row.y, y2=row.y),
            head,
            self._label(arrow, max(start, tip) - (24 if rightwards else 8), row.y),
            class_=f"arrow {tone}",
            data_kind=event.kind,
            data_source=arrow.source,
            data_target=arrow.target,
        )

    def _label(self, arrow: Arrow, right: float, y: float) -> str:
        """Draw the label at the right end of the arrow, where there is room for it and no text."""
        if not arrow.label or self._layout.texts is not None:
            return ""
        width = text_width(arrow.label) + 8
        return element("rect", class_="tag", x=right - width, y=y - 9, width=width, height=18, rx=9) + element(
            "text", text(arrow.label), class_="label", x=right - width / 2, y=y + 4.5
        )

    def _entry(self, entry: Entry, row: Row) -> str:
        event = entry.event
        style = Style() if entry.is_end else self._style(event)
        tone = f"tone-{style.tone}" if style.tone else self._hue(event.lane)
        x = self._layout.x[event.lane]
        dot = "" if event.lasting else element("circle", class_="dot", cx=x, cy=row.y, r=3.5)
        if self._layout.texts is None:
            left, first = x + INDENT, row.y - entry.height + LINE - 7
        else:
            left, first = self._layout.texts, row.y + 4.5
        if style.chip:
            lines = [_boxed(entry.lines, left, first, "chip", bold=style.tone in ("good", "bad"))]
        else:
            lines = [
                element("text", text(line), x=left, y=first + number * LINE) for number, line in enumerate(entry.lines)
            ]
        if entry.flag:
            y = first + len(entry.lines) * LINE
            lines.append(_boxed([entry.flag], left, y, "flag-box", bold=True, kind="flag"))
        return element(
            "g",
            element("title", text(_details(event))),
            dot,
            *lines,
            class_=f"event {'strong ' if style.hatched else ''}{tone}",
            data_kind=event.kind,
            data_lane=event.lane,
        )


def _boxed(
    lines: Sequence[str], x: float, first: float, box: str, *, bold: bool = False, kind: str | None = None
) -> str:
    """Draw lines in the middle of a box. So in a narrower font, both sides of the box have the same space."""
    if not lines:
        return ""
    width = max(usual_width(line, bold=bold) for line in lines) + 12
    return element(
        "g",
        element("rect", class_=box, x=x, y=first - 12, width=width, height=len(lines) * LINE - 1, rx=3),
        *(
            element("text", text(line), class_=kind, x=x + width / 2, y=first + number * LINE)
            for number, line in enumerate(lines)
        ),
        class_="boxed",
    )


def _details(event: Event) -> str:
    """Return what is shown when the pointer rests on it."""
    parts = [event.text, event.end_text]
    if event.end is not None:
        parts.append(f"{event.end - event.start:.3f} s")
    parts += [f"{key}: {event.data[key]}" for key in sorted(event.data)]
    return "\n".join(part for part in parts if part)
