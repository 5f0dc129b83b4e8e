"""What a process of the run notes: the beginning of each operation before it is sent, and its end."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["Log"]


class Log:
    """A file of one process. Each line is one write of the system, so a killed process leaves whole lines.

    No lock is held: a signal's handler may raise at any line, and SIGKILL may come.
    """

    def __init__(self, path: Path, process: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._process = process
        self._ops = itertools.count(1)

    def begin(self, kind: str, **values: Any) -> int:
        """Note the beginning of an operation; return its number."""
        op = next(self._ops)
        self._line({"op": op, "kind": kind, "start": time.monotonic(), "process": self._process, **values})
        return op

    def end(self, op: int, outcome: str = "", **values: Any) -> None:
        self._line({"op": op, "end": time.monotonic(), "outcome": outcome, **values})

    def add(self, kind: str, **values: Any) -> None:
        """Note a moment, or what is over."""
        now = time.monotonic()
        self._line({"kind": kind, "start": now, "end": now, "process": self._process, **values})

    def _line(self, values: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(values).encode() + b"\n")
