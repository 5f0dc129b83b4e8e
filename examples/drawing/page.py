"""One HTML file that needs nothing else: no network, no scripts, no fonts.

It adapts to light and dark, to narrow screens and to paper.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from examples.drawing.events import Event
from examples.drawing.markup import element, text
from examples.drawing.picture import STYLE as PICTURE_STYLE

STYLE = PICTURE_STYLE + Path(__file__).with_name("page.css").read_text(encoding="utf-8")

HOW_TO_READ = (
    "Time runs downwards, with a row for each recorded moment and its seconds at the left. The rows are not to scale. "
    "A zigzag stands for a longer time without events; beside it are the seconds that passed, with a plus."
)


def write_page(path: Path | None, name: str, content: str) -> Path:
    """Write it there, or under its name into a new temporary directory, and return its path."""
    path = path or Path(tempfile.mkdtemp(prefix="fencing-demo-")) / name
    path.write_text(content, encoding="utf-8")
    return path.absolute()


class Section(NamedTuple):
    """A part of the page, with a picture."""

    name: str
    """For links and ids."""
    title: str
    setting: str
    picture: str
    """An <svg> element."""
    narrow: str
    """The same for narrow screens."""
    verdict: str
    good: bool
    notes: Sequence[str] = ()


class Table(NamedTuple):
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    """The first cell is a link to the section of the row, if there is one."""
    good: Sequence[bool]


def page(title: str, introduction: str, table: Table, sections: Sequence[Section]) -> str:
    """Return the file's content."""
    main = element(
        "main",
        element("h1", text(title)),
        element("p", text(introduction)),
        _table(table, [section.name for section in sections]),
        element("p", text(HOW_TO_READ), class_="note"),
        *(_section(section) for section in sections),
    )
    return document(title, STYLE, main)


def document(title: str, style: str, content: str) -> str:
    """Return a file with this content that may load nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", text(title)),
        element("style", text(style)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', content), lang='en')}\n"


def _table(table: Table, names: Sequence[str]) -> str:
    head = element("tr", *(element("th", text(cell), scope="col") for cell in table.head))
    rows = []
    for number, (cells, good) in enumerate(zip(table.rows, table.good, strict=True)):
        first = text(cells[0])
        if number < len(names):
            first = element("a", first, href=f"#{names[number]}")
        rest = (element("td", text(cell)) for cell in cells[1:])
        rows.append(element("tr", element("th", first, scope="row"), *rest, class_=_tone(good)))
    return element("table", element("thead", head), element("tbody", *rows))


def _section(section: Section) -> str:
    verdict = f"{'✓' if section.good else '✗'} {section.verdict}"
    return element(
        "section",
        element("h2", text(section.title)),
        element("p", text(section.setting)),
        element("p", text(verdict), class_=f"verdict {_tone(section.good)}"),
        element("div", section.picture, class_="picture wide"),
        element("div", section.narrow, class_="picture narrow"),
        *(element("p", text(note), class_="note") for note in section.notes),
        id=section.name,
    )


def _tone(good: bool) -> str:
    return "tone-good" if good else "tone-bad"


def legend(events: Sequence[Event]) -> str:
    """Return the fencing numbers that the labels of the arrows stand for."""
    numbers = {event.data["label"]: event.data["number"] for event in events if {"label", "number"} <= set(event.data)}
    return ", ".join(f"{label} = {number}" for label, number in numbers.items())


def reasons(events: Sequence[Event], kind: str) -> list[str]:
    """Return the full reasons of events of this kind."""
    return [event.data["reason"] for event in events if event.kind == kind and event.data.get("reason")]
