"""What a user sees: lines that stay and, on a terminal, lines that are removed again."""

import itertools
import os
import shutil
import sys
import textwrap
from typing import TextIO

from examples.drawing.terminal import Look

WIDEST = 100


class Screen:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self.look = Look(
            colour=self._live and not os.environ.get("NO_COLOR"),
            unicode=_can_encode(self._stream, "┃╹░─·…✗✓→≠"),
        )
        size = shutil.get_terminal_size((WIDEST, 24))
        self.width = min(WIDEST, max(40, size.columns))
        self._height = size.lines
        self._spinner = itertools.cycle("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" if _can_encode(self._stream, "⠋") else "|/-\\")
        self._waiting = False
        self._passing = 0

    def say(self, text: str = "", colour: str = "") -> None:
        """Print a paragraph that stays."""
        self.draw([self.look.paint(line, colour) for line in textwrap.wrap(self.look.plain(text), self.width)])

    def draw(self, lines: list[str]) -> None:
        """Print painted lines that stay; an empty list is an empty line."""
        self._print("\n".join(lines))

    def pass_by(self, text: str) -> None:
        """Print a line that `wipe` removes again; where this is no terminal, it stays."""
        self._print(self.look.paint(self.look.plain(text)[: self.width - 1], "2"))
        self._passing += 1

    def wipe(self) -> None:
        self._stop_waiting()
        if self._live and 0 < self._passing < self._height:
            print(f"\x1b[{self._passing}F\x1b[J", end="", file=self._stream, flush=True)
        elif self._passing:
            self.say()
        self._passing = 0

    def wait(self, text: str) -> None:
        """Show on a terminal what the demo waits for, in a line that is removed. Call it repeatedly."""
        if self._live:
            line = self.look.plain(f"{next(self._spinner)} {text}")[: self.width - 1]
            print(f"\r\x1b[K{self.look.paint(line, '2')}", end="", file=self._stream, flush=True)
            self._waiting = True

    def _print(self, text: str) -> None:
        self._stop_waiting()
        print(text, file=self._stream, flush=True)

    def _stop_waiting(self) -> None:
        if self._waiting:
            print("\r\x1b[K", end="", file=self._stream)
            self._waiting = False


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
