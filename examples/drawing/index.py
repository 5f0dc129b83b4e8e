"""One page that leads to the pages of several stories, with the outcomes of each side by side."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from examples.drawing.markup import element, text
from examples.drawing.page import STYLE, document

_STYLE = STYLE + Path(__file__).with_name("index.css").read_text(encoding="utf-8")


class Entry(NamedTuple):
    """A story that was played."""

    title: str
    """As its page has it, already escaped."""
    page: str
    """The file of its page, beside this one."""
    bad: Sequence[str]
    """The verdicts of acts in which something went wrong."""
    good: Sequence[str]
    as_expected: bool


def index(title: str, introduction: str, entries: Sequence[Entry]) -> str:
    """Return the file's content."""
    parts = [element("h1", text(title)), element("p", text(introduction)), *map(_entry, entries)]
    return document(title, _STYLE, element("main", *parts))


def _entry(entry: Entry) -> str:
    title = element("a", text(html.unescape(entry.title)), href=entry.page)
    note = [] if entry.as_expected else [element("p", text("This time it did not come out as it should."))]
    columns = element("div", _column("✗", "bad", entry.bad), _column("✓", "good", entry.good), class_="beside")
    return element("article", element("h2", title), *note, columns)


def _column(sign: str, tone: str, verdicts: Sequence[str]) -> str:
    unique = list(dict.fromkeys(verdicts))
    lines = [element("p", text(f"{sign} {verdict}"), class_=f"verdict tone-{tone}") for verdict in unique]
    return element("div", *lines)
