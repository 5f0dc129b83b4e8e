"""The picture of the README is one SVG file that needs no page around it, and shows what the README says."""

from __future__ import annotations

import xml.etree.ElementTree as Xml
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "act-2.svg"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_readmes_picture_stands_alone_and_shows_a_lost_update() -> None:
    text = PICTURE.read_text("utf-8")
    tree = Xml.fromstring(text)
    assert tree.tag == f"{SVG}svg"
    assert tree.findtext(f"{SVG}title") == "Act 2: textbook fencing of writes"
    assert "prefers-color-scheme: dark" in str(tree.findtext(f"{SVG}style"))
    assert "LOST UPDATE: 10" in text
