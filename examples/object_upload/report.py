"""The page with the pictures, made from the recorded events alone."""

from collections.abc import Sequence
from pathlib import Path

from examples.drawing.events import Event
from examples.drawing.kinds import KINDS, Style
from examples.drawing.page import Section, Table, legend, page, reasons, write_page
from examples.drawing.picture import picture
from examples.object_upload.director import LANES

WIDTH = 1100
LOOKS = {
    **KINDS,
    "stopped": Style("bad", dashed=True),
    "torn": Style("bad", chip=True, dashed=True),
    "whole": Style(dashed=True),
}


def write_report(path: Path | None, introduction: str, events: Sequence[Event]) -> Path:
    """Write the page there, or into a new temporary directory, and return its path."""
    return write_page(path, "object-upload.html", report(introduction, events))


def report(introduction: str, events: Sequence[Event]) -> str:
    measured = [event for event in events if event.kind == "measured"]
    table = Table(
        ["Act", "", "In the store", "Torn reads"],
        [_row(event) for event in measured],
        [event.data["good"] for event in measured],
    )
    sections = [_section(event, [other for other in events if other.act == event.act]) for event in measured]
    return page("A paused uploader goes on late", introduction, table, sections)


def _row(measured: Event) -> list[str]:
    data = measured.data
    torn = f"{'✗' if data['torn'] else '✓'} {data['torn']} of {data['reads']}"
    return [f"Act {measured.act}", measured.text, data["final"], torn]


def draw_act(measured: Event, events: Sequence[Event], *, narrow: bool = False, alone: bool = False) -> str:
    """Return the picture of an act from its events; `alone`: as an SVG file of its own."""
    name = f"act-{measured.act}" + ("-narrow" if narrow else "")
    title = f"Act {measured.act}: {measured.text}"
    width = 0 if alone else WIDTH
    return picture(events, LANES, name=name, title=title, width=width, kinds=LOOKS, narrow=narrow, alone=alone)


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
        data["good"],
        [note for note in (data["why"], legend(events), *reasons(events, "tried")) if note],
    )
