"""Pictures of recorded events: what is in them, that it stays text, that nothing covers anything else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples.drawing.events import Event, Lane
from examples.drawing.layout import BREAK_HEIGHT, NARROW, lay_out
from examples.drawing.page import Section, Table, page
from examples.drawing.picture import picture
from tests.support.browser import render, require_browser

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script> & \"quoted\" 'x' \x00\x1b[31m\ud800 ]]>"

LANES = [Lane("p", "PROCESS P", hue=1), Lane("lock", "LOCK"), Lane("q", "PROCESS Q", hue=2), Lane("row", "ROW")]
EVENTS = [
    Event("row", "found", "100", 9.9),
    Event("p", "acquired", "takes it", 10.0, data={"source": "lock", "label": "#1", "number": 7}),
    Event("lock", "held", "p #1", 10.0, 11.0, "expires", lasting=True, data={"holder": "p"}),
    Event("row", "claimed", "claimed: p", 10.004, because=10.0, data={"source": "p", "label": "#1"}),
    Event("p", "paused", "PAUSED", 10.1, 12.0, "resumes", lasting=True),
    Event("q", "wrote", "writes 7", 11.5, data={"target": "row", "label": "#2"}),
    Event("row", "damaged", "7, not 8", 11.501, because=11.5, data={"flag": "LOST UPDATE: 1"}),
    Event("p", "tried", "tries to write", 12.5, data={"target": "row", "label": "#1", "reason": "stale"}),
    Event("row", "refused", "REFUSED", 12.5),
    Event("q", "napping", "an unknown kind that does not end", 12.6, lasting=True),
    Event("elsewhere", "noted", "not in these lanes", 12.7, data={"target": "row"}),
    Event("q", "noted", "goes elsewhere", 12.8, data={"target": "elsewhere"}),
]


def parse(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(markup.removeprefix("<!DOCTYPE html>"))


def by_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if name in element.get("class", "").split()]


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def page_with(*pictures: tuple[str, str], verdict: str = "It is so.") -> str:
    """A section for each pair of a wide and a narrow picture."""
    sections = [
        Section(f"part-{number}", "A part", "It was thus.", wide, narrow, verdict, False, ["a note"])
        for number, (wide, narrow) in enumerate(pictures)
    ]
    return page("A page", "It begins.", Table(["Part", "Lost"], [["1", verdict]], [False]), sections)


def test_what_is_in_a_picture() -> None:
    root = parse(picture(EVENTS, LANES, name="one", title="The picture"))
    written = texts(root)
    for text in (
        "PROCESS P",
        "takes it",
        "p #1",
        "expires",
        "PAUSED",
        "resumes",
        "LOST UPDATE: 1",
        "0.100 s",
        "2.600 s",
    ):
        assert text in written
    assert "not in these lanes" not in written

    arrows = [
        (arrow.get("data-source"), arrow.get("data-target"), texts(arrow), arrow.get("class"))
        for arrow in by_class(root, "arrow")
    ]
    assert arrows == [
        ("lock", "p", ["#1"], "arrow hue-1"),
        ("p", "row", ["#1"], "arrow hue-1"),
        ("q", "row", ["#2"], "arrow hue-2"),
        ("p", "row", ["#1"], "arrow tone-bad"),
    ]
    assert len(by_class(root, "cross")) == 1
    [refused] = [event for event in by_class(root, "event") if event.get("data-kind") == "refused"]
    assert "tone-bad" in refused.get("class", "")
    bars = [(bar.get("data-lane"), bar.get("data-kind"), bar.get("class")) for bar in by_class(root, "lasting")]
    assert bars == [
        ("lock", "held", "lasting hue-1"),  # in the colour of its holder
        ("p", "paused", "lasting hue-1"),
        ("q", "napping", "lasting hue-2"),
    ]
    assert [bar.get("style") for bar in by_class(root, "bar")] == [None, "fill:url(#one-hatch)", None]
    description = root.findtext(f"{SVG}desc")
    assert description
    assert "2.600 s ROW: REFUSED." in description


def test_long_times_are_breaks_that_say_how_long() -> None:
    root = parse(picture(EVENTS, LANES, name="one", title="The picture"))
    assert [texts(gap) for gap in by_class(root, "break")] == [["+ 0.90 s"], ["+ 0.50 s"], ["+ 0.50 s"], ["+ 0.50 s"]]
    assert [text for text in texts(root) if text.startswith("lasted")] == ["lasted 1.000 s", "lasted 1.900 s"]
    layout = lay_out(EVENTS, LANES)
    for row, later in zip(layout.rows, layout.rows[1:], strict=False):
        assert later.at >= row.at
        assert later.y - row.y == later.height + (BREAK_HEIGHT if later.silence else 0)


def test_what_does_not_end_goes_on_to_the_bottom() -> None:
    layout = lay_out(EVENTS, LANES)
    assert layout.bars[-1].event.kind == "napping"
    assert layout.bars[-1].bottom == layout.height


def test_two_that_last_in_one_lane_stand_side_by_side() -> None:
    both = [
        Event("p", "held", "one", 1.0, 3.0, lasting=True),
        Event("p", "paused", "two", 2.0, 4.0, lasting=True),
        Event("p", "held", "three", 5.0, 6.0, lasting=True),
    ]
    assert [bar.level for bar in lay_out(both, LANES).bars] == [0, 1, 0]


def test_texts_stay_texts() -> None:
    hostile = [Event("p", HOSTILE, HOSTILE, 1.0, data={"target": "row", "label": HOSTILE, "flag": HOSTILE})]
    lanes = [Lane("p", HOSTILE), Lane("row", "ROW")]
    drawn = picture(hostile, lanes, name="one", title=HOSTILE)
    narrow = picture(hostile, lanes, name="two", title=HOSTILE, narrow=True)
    alone = picture(hostile, lanes, name="three", title=HOSTILE, alone=True)
    for markup in (drawn, narrow, alone, page_with((drawn, narrow), verdict=HOSTILE)):
        root = parse(markup)
        assert not [element for element in root.iter() if str(element.tag).endswith("script")]
        assert markup.encode()  # no halves of surrogate pairs
        assert "&amp; &quot;quoted&quot;" in markup
        assert not re.search("[\x00-\x08\x0b-\x1f]", markup)


@pytest.mark.parametrize("narrow", [False, True])
def test_nothing_to_draw(narrow: bool) -> None:
    empty = picture([], LANES, name="one", title="Nothing", narrow=narrow)
    assert texts(parse(empty)) == [lane.title for lane in LANES]
    assert parse(picture([], [], name="one", title="Nothing", narrow=narrow)).tag == f"{SVG}svg"


def test_a_narrow_picture_has_all_texts_in_one_column() -> None:
    root = parse(picture(EVENTS, LANES, name="one", title="The picture", narrow=True))
    assert float(root.get("width", "")) == NARROW
    written = texts(root)
    for text in ("ROW", "p: takes it (#1)", "lock: p #1", "LOST UPDATE: 1", "row: REFUSED", "0.100 s"):
        assert text in written
    assert "lock: expires after 1.000\N{NO-BREAK SPACE}s" in " ".join(written)
    events = by_class(root, "event")
    columns = {text.get("x") for event in events for text in event.findall(f"{SVG}text")}
    boxes = {box.get("x") for event in events for box in event.iter(f"{SVG}rect")}
    assert len(columns) == 1
    assert boxes == columns
    arrows = [(arrow.get("data-source"), arrow.get("data-target")) for arrow in by_class(root, "arrow")]
    assert arrows == [("lock", "p"), ("p", "row"), ("q", "row"), ("p", "row")]


def test_a_picture_of_its_own_needs_nothing_else() -> None:
    markup = picture(EVENTS, LANES, name="one", title="The picture", alone=True)
    root = parse(markup)
    assert root.tag == f"{SVG}svg"
    assert_self_contained(root)
    assert len(by_class(root, "paper")) == 1
    style = root.findtext(f"{SVG}style")
    assert style
    assert "prefers-color-scheme: dark" in style


def pair(events: Sequence[Event], name: str, width: float = 0) -> tuple[str, str]:
    return (
        picture(events, LANES, name=name, title="The picture", width=width),
        picture(events, LANES, name=f"{name}-narrow", title="The picture", narrow=True),
    )


def test_a_page_needs_nothing_else() -> None:
    markup = page_with(*(pair(EVENTS, name) for name in ("one", "two")))
    root = parse(markup)
    assert_self_contained(root)
    assert markup.index("prefers-color-scheme: dark") < markup.index("</style>")
    policies = [meta.get("content") for meta in root.iter("meta") if meta.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def assert_self_contained(root: ElementTree.Element) -> None:
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        for key, value in element.attrib.items():
            assert key not in {"src", "srcset", "data", "xlink:href"}
            if key == "href":
                assert value.removeprefix("#") in ids
        for place in re.findall(r"url\((.*?)\)", f"{element.get('style')} {element.text}"):
            assert place.removeprefix("#") in ids
        assert "@import" not in (element.text or "")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("--quiet: #59636e", "--quiet: #b0b0b0", "faint"),
        ("--quiet: #9aa4b0", "--quiet: #3a3a3a", "faint"),  # in the dark
        ("</h1>", '</h1><img src="http://127.0.0.1:1/x.png"/>', "request"),
    ],
)
def test_the_browser_notices(before: str, after: str, problem: str, tmp_path: Path) -> None:
    require_browser()
    markup = page_with(pair(EVENTS, "one"))
    assert before in markup
    rendered = render(markup.replace(before, after, 1), tmp_path)
    assert problem in {kind for _, kind, *_ in rendered.problems} | {"request" for line in rendered.console}


@pytest.mark.thorough
def test_nothing_covers_anything_else(tmp_path: Path) -> None:
    """In a browser, with texts of all widths, as wide as can be and as narrow as can be."""
    require_browser()
    wide = [
        Event(lane.name, kind, text, 1.0 + number * 0.1, data={"target": other.name, "label": "#1234", "flag": "FLAG"})
        for number, (lane, other, kind, text) in enumerate(
            (lane, other, kind, text)
            for lane in LANES
            for other in LANES
            for kind, text in (("found", "MMMM WWWW @@@@ %%%%"), ("refused", "数え上げる番号が古い"), ("x", "x" * 70))
        )
    ]
    bars = [
        Event(name, "held", "twice", at, at + 1.5, "ends", lasting=True) for name in "pq" for at in (1.05, 1.55, 2.05)
    ]
    pictures = [
        pair(events, f"number-{number}", width)
        for number, (events, width) in enumerate([(EVENTS, 0), (EVENTS, 1100), ([*wide, *bars], 0)])
    ]
    rendered = render(page_with(*pictures), tmp_path)
    assert rendered.problems == []
    assert rendered.console == []
    assert all(count > 100 for count in rendered.texts.values())
