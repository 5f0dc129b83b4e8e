"""The picture of the README is one SVG file that needs no page around it."""

from __future__ import annotations

import xml.etree.ElementTree as Xml

import pytest

from examples.drawing.events import Event
from tests.docs.pictures import PICTURE, TITLE, stand_alone

SVG = "{http://www.w3.org/2000/svg}"


def drawn() -> str:
    return stand_alone([Event("A", "read", "reads 100", 1.0), Event("row", "damaged", "105", 2.0)])


@pytest.mark.parametrize("picture", [PICTURE.read_text("utf-8"), drawn()], ids=["committed", "drawn"])
def test_the_picture_carries_its_style(picture: str) -> None:
    tree = Xml.fromstring(picture)
    assert tree.tag == f"{SVG}svg"
    assert tree.findtext(f"{SVG}title") == TITLE
    style = str(tree.findtext(f"{SVG}style"))
    assert "prefers-color-scheme: dark" in style
    assert ".timeline .bar" in style
    assert ".ground" in style


def test_the_committed_picture_shows_the_lost_update() -> None:
    assert "LOST UPDATE: 10" in PICTURE.read_text("utf-8")
