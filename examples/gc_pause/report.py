"""The page with the pictures, made from the recorded events alone."""

from collections.abc import Sequence
from pathlib import Path

from examples.drawing.events import Event
from examples.drawing.page import Section, Table, legend, page, reasons, write_page
from examples.drawing.picture import picture
from examples.gc_pause.director import LANES

WIDTH = 980


TITLE = "A paused lock holder writes late"


def write_report(
    path: Path | None, introduction: str, events: Sequence[Event], *, name: str = "gc-pause.html", title: str = TITLE
) -> Path:
    """Write the page there, or into a new temporary directory, and return its path."""
    return write_page(path, name, report(introduction, events, title=title))


def report(introduction: str, events: Sequence[Event], *, title: str = TITLE) -> str:
    measured = [event for event in events if event.kind == "measured"]
    table = Table(
        ["Act", "", "Expected", "In the row", "Lost"],
        [_row(event) for event in measured],
        [not event.data["lost"] for event in measured],
    )
    sections = [_section(event, [other for other in events if other.act == event.act]) for event in measured]
    return page(title, introduction, table, sections)


def _row(measured: Event) -> list[str]:
    data = measured.data
    lost = f"✗ {data['lost']} ({data['loser']}'s)" if data["lost"] else "✓ nothing"
    return [f"Act {measured.act}", measured.text, str(data["expected"]), str(data["final"]), lost]


def draw_act(measured: Event, events: Sequence[Event], *, narrow: bool = False, alone: bool = False) -> str:
    """Return the picture of an act from its events; `alone`: as an SVG file of its own."""
    name = f"act-{measured.act}" + ("-narrow" if narrow else "")
    title = f"Act {measured.act}: {measured.text}"
    width = 0 if alone else WIDTH
    return picture(events, LANES, name=name, title=title, width=width, narrow=narrow, alone=alone)


def _section(measured: Event, events: Sequence[Event]) -> Section:
    name = f"act-{measured.act}"
    title = f"Act {measured.act}: {measured.text}"
    data = measured.data
    return Section(
        name,
        title,
        data["setting"],
        draw_act(measured, events),
        draw_act(measured, events, narrow=True),
        data["verdict"],
        not data["lost"],
        [note for note in (data["why"], legend(events), *reasons(events, "tried")) if note],
    )
