"""Lines over numbers as SVG pictures, with colours for light and for dark. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import examples.drawing
from examples.drawing.markup import element, text
from tests.benchmarks.measure import number

WIDTH = 760
HEAD = 34
PANEL = 170
TICKS_ROOM = 22

_COLOURS = (Path(examples.drawing.__path__[0]) / "colours.css").read_text("utf-8")
_STYLE = """
svg { font: 13px/1.3 system-ui, sans-serif; }
.ground { fill: var(--ground); }
text { fill: var(--ink); paint-order: stroke; stroke: var(--ground); stroke-width: 4px; }
.title { font-size: 15px; font-weight: 700; }
.quiet { fill: var(--quiet); font-size: 12px; }
.group { font-weight: 600; }
.grid { stroke: var(--rule); }
.line { fill: none; stroke: var(--hue); stroke-width: 2; }
.dot { fill: var(--hue); }
.hue-0 { --hue: var(--hue-1); } .hue-1 { --hue: var(--hue-3); } .hue-2 { --hue: var(--hue-2); }
.hue-3 { --hue: var(--good); } .hue-4 { --hue: var(--quiet); } .hue-5 { --hue: var(--bad); }
.hue-0 .line { stroke-width: 3; }
.hue-1 .line { stroke-dasharray: 7 3; } .hue-2 .line { stroke-dasharray: 2 3; }
.hue-3 .line { stroke-dasharray: 9 3 2 3; } .hue-4 .line { stroke-dasharray: 4 4; }
.hue-5 .line { stroke-dasharray: 1 2; }
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over the same ``xs``; each series has a value for some of them."""

    title: str
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    logarithmic: bool = True


def lines(title: str, xs: Sequence[int], panels: Sequence[Panel]) -> str:
    """Return panels one below the other, over the same numbers at equal distances."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    drawn = [_legend(names, HEAD + 12)]
    y = float(HEAD) + 30
    for panel in panels:
        drawn += _panel(panel, names, xs, y)
        y += PANEL + TICKS_ROOM + 14
    described = "; ".join(
        f"{panel.title}, {name}: " + ", ".join(f"{x}: {number(value)}" for x, value in its.items())
        for panel in panels
        for name, its in panel.series.items()
    )
    return drawing(title, described, y, drawn)


def _legend(names: Sequence[str], y: float) -> str:
    parts = []
    x = 12.0
    for place, name in enumerate(names):
        line = element("polyline", class_="line", points=f"{x:.0f},{y - 4:.0f} {x + 26:.0f},{y - 4:.0f}")
        label = element("text", text(name), x=x + 32, y=y)
        parts.append(element("g", line, label, class_=f"hue-{place}"))
        x += 50 + 7.2 * len(name)
    return "".join(parts)


def _panel(panel: Panel, names: Sequence[str], xs: Sequence[int], top: float) -> list[str]:
    left, right, bottom = 70, WIDTH - 30, top + PANEL
    values = [value for its in panel.series.values() for value in its.values()]
    if panel.logarithmic:
        positive = [value for value in values if value > 0]
        place = _scale(min(positive, default=1) / 1.2, max(positive, default=1) * 1.2, bottom, top + 22)
        ticks = _ticks(min(positive, default=1), max(positive, default=1))
    else:
        highest = max(values, default=1) * 1.05
        place = _linear(0, highest, bottom, top + 22)
        step = 10.0 ** math.floor(math.log10(highest))
        step = step if highest / step >= 4 else step / 5
        ticks = [step * count for count in range(int(highest / step) + 1)]
    at = {x: left + (right - left) * number_ / max(1, len(xs) - 1) for number_, x in enumerate(xs)}
    drawn = [element("text", text(panel.title), class_="group", x=12, y=top + 10)]
    for tick in ticks:
        drawn.append(element("line", class_="grid", x1=left, x2=right, y1=place(tick), y2=place(tick)))
        drawn.append(
            element("text", text(number(tick)), class_="quiet", x=left - 8, y=place(tick) + 4, text_anchor="end")
        )
    for x, where in at.items():
        drawn.append(element("text", text(f"{x:,}"), class_="quiet", x=where, y=bottom + 16, text_anchor="middle"))
    for name, its in panel.series.items():
        points = [(at[x], place(value)) for x, value in its.items() if value > 0 or not panel.logarithmic]
        line = element("polyline", class_="line", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points))
        dots = "".join(element("circle", class_="dot", cx=x, cy=y, r=3.5) for x, y in points)
        drawn.append(element("g", line, dots, class_=f"hue-{names.index(name)}"))
    return drawn


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return a logarithmic scale; a value below its low end is drawn there."""
    span = math.log(high / low) or 1.0
    return lambda value: start + (end - start) * max(0.0, math.log(max(value, low) / low)) / span


def _linear(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1.0)


def _ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten between two values, with 2 and 5 times each if there are fewer than two."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    fine = [power * step for power in powers for step in (1, 2, 5)]
    inside = [tick for tick in powers if low <= tick <= high]
    return inside if len(inside) > 1 else [tick for tick in fine if low <= tick <= high]


def drawing(title: str, described: str, height: float, drawn: Sequence[str]) -> str:
    """Return a whole picture: its title, its description for those who cannot see it, and what is drawn."""
    return element(
        "svg",
        element("title", text(title), id="title"),
        element("desc", text(described), id="desc"),
        element("style", text(_COLOURS + _STYLE)),
        element("rect", class_="ground", x=0, y=0, width=WIDTH, height=height),
        element("text", text(title), class_="title", x=12, y=22),
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_labelledby="title desc",
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        width=WIDTH,
        height=f"{height:.0f}",
    )
