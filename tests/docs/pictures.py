"""The picture of the README: act two of the demo, drawn from a real run.

    python -m tests.docs.pictures

It writes docs/images/act-2.svg. The picture has colours for light and for dark, and a ground of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import examples.drawing
from examples.drawing.events import Event
from examples.drawing.markup import element, text
from examples.drawing.picture import picture
from examples.gc_pause.director import LANES

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "images" / "act-2.svg"
ACT = "2"
TITLE = "Act two of the demo: a lock and a check of writes alone still lose an update"

_CSS = (Path(examples.drawing.__path__[0]) / "page.css").read_text("utf-8")
_COLOURS = _CSS.partition("\n* {")[0]
_SHAPES = "\n".join(re.findall(r"(?m)^\.timeline.*$", _CSS))
_GROUND = "\n.ground { fill: var(--panel); stroke: var(--rule); }\n"


def main() -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(stand_alone(played()) + "\n", "utf-8")
    print(PICTURE)


def played() -> list[Event]:
    """Play the act, and return what was recorded."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(folder) / "events.json"
        command = [sys.executable, "-m", "examples.gc_pause", "--act", ACT, "--json", str(recorded)]
        subprocess.run([*command, "--html", str(Path(folder) / "page.html")], cwd=ROOT, check=True, timeout=120)
        names = {field.name for field in fields(Event)}
        lines = [json.loads(line) for line in recorded.read_text("utf-8").splitlines()]
    return [Event(**{name: value for name, value in line.items() if name in names}) for line in lines]


def stand_alone(events: Sequence[Event]) -> str:
    """Return the picture as one SVG file: it carries its style, and needs no page around it."""
    drawn = picture(events, LANES, name="act-2", title=TITLE)
    ground = element("rect", class_="ground", width="100%", height="100%", rx=6)
    style = element("style", text(_COLOURS + _SHAPES + _GROUND))
    return drawn.replace("<defs>", f"{style}{ground}<defs>", 1)


if __name__ == "__main__":
    main()
