"""How kinds of events look in a picture; the others have the default style."""

from collections.abc import Mapping
from typing import NamedTuple


class Style(NamedTuple):
    tone: str = ""
    """good, bad or mark."""
    chip: bool = False
    """The text stands in a box."""
    hatched: bool = False
    dashed: bool = False
    stopped: bool = False
    """The arrow ends in a cross."""


KINDS: Mapping[str, Style] = {
    "claimed": Style("mark", chip=True),
    "damaged": Style("bad", chip=True),
    "delayed": Style(hatched=True),
    "down": Style("bad", hatched=True),
    "found": Style(chip=True),
    "paused": Style(hatched=True),
    "killed": Style("bad"),
    "lost": Style("bad"),
    "read": Style(dashed=True),
    "refused": Style("bad", chip=True),
    "tried": Style("bad", stopped=True),
    "written": Style("good", chip=True),
}
