"""What the commands for operators show: tables, durations, and what takes long."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fencing.cli import status
from fencing.cli.output import say, warn
from fencing.locks.urls import has_secret, redacted

if TYPE_CHECKING:
    from rich.text import Text

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
GAP = 2
"""Blanks between two columns."""

LONG = 1.0
"""After so many seconds a terminal is told what is going on."""


def shown(text: object) -> str:
    """Return a text as one line without control characters: whoever takes a lock chooses its name."""
    line = str(text)
    return line if line.isprintable() else repr(line)[1:-1]


def duration(seconds: float) -> str:
    """Return a duration for people."""
    whole = int(max(seconds, 0))
    if whole < 120:
        return f"{whole} s"
    if whole < 2 * 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def seconds_of(text: str) -> float:
    """Return a duration such as ``90d``, ``12h``, ``30m`` or ``45s`` in seconds. It needs its unit: 90 may mean days.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw])", text)
    if match is None:
        raise ValueError(f"{text!r:.100} is no duration with its unit, such as 90d, 12h, 30m or 45s")
    return float(match[1]) * _SECONDS[match[2]]


def stamp(moment: datetime | None = None) -> str:
    """Return a moment, or now, as UTC in the form of ISO 8601."""
    moment = datetime.now(UTC) if moment is None else moment
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def say_rows(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows: as a table on a terminal. Elsewhere each one is a line, as it comes, with tabs between the cells."""
    if not sys.stdout.isatty():
        for row in rows:
            say("\t".join(map(shown, row)))
        return
    from rich.console import Console

    found = list(rows)
    if found:
        # Soft: the terminal itself breaks a line that is too long, so what is copied has no break in it.
        Console().print(table(headers, found), soft_wrap=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Text:
    """Return a table for the terminal.

    If it is too wide for that, each row is a paragraph: its first cell, and below it the others that are not empty.
    Nothing is cut, for names are copied.
    """
    from rich.cells import cell_len as cell_width
    from rich.console import Console
    from rich.text import Text

    cells = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(cell_width, column)) for column in zip(headers, *cells, strict=True)]
    lines = []
    if sum(widths) + GAP * (len(widths) - 1) <= Console().width:
        pad = " " * GAP
        lines = [
            Text(
                pad.join(
                    cell + " " * (size - cell_width(cell)) for cell, size in zip(row, widths, strict=True)
                ).rstrip()
            )
            for row in (headers, *cells)
        ]
        lines[0].stylize("bold")
    else:
        size = max(map(len, headers)) + GAP
        for first, *others in cells:
            lines.append(Text(first, style="bold"))
            facts = zip(headers[1:], others, strict=True)
            lines += [Text(f"  {name.lower():<{size}}{cell}") for name, cell in facts if cell]
    return Text("\n").join(lines)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as an error does: a terminal gets its cursor back, and the service its connection."""

    def end(*_: object) -> None:
        raise SystemExit(status.OF_SIGNAL + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what the block does, and for how long, once it takes longer than a second.

    Its value is a function that changes the text.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    shows = Progress(*columns, console=console, transient=True)
    task = shows.add_task(shown(text))
    timer = threading.Timer(LONG, shows.start)
    timer.daemon = True
    timer.start()
    try:
        with ended_by_sigterm():
            yield lambda changed: shows.update(task, description=shown(changed))
    finally:
        timer.cancel()
        timer.join()
        shows.stop()


def url_of(text: str) -> str:
    """Return the URL that an argument names. ``-`` is the first line of standard input."""
    if text == "-":
        line = sys.stdin.readline().strip()
        if not line:
            raise ValueError("standard input has no URL: write it as its first line")
        return line
    if has_secret(text):
        warn(
            f"{redacted(text)} has a password, which every list of processes shows: pass - in its place, and the URL "
            f"on standard input"
        )
    return text
