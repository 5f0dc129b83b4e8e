"""A command under a lock, as a process that a test talks with."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

from tests.support.commands import COMMAND, environment

SOON = 60.0
"""Seconds: a limit of the test. What is right takes much less."""


class Started:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._printed = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def line(self) -> str:
        """Return the next line that the command under the lock prints; empty: there is none any more."""
        while b"\n" not in self._printed and self._read():
            pass
        line, _, self._printed = self._printed.partition(b"\n")
        return line.decode().strip()

    def write(self, text: str) -> None:
        """Give the command a line, and no other."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.close()

    def rest(self) -> str:
        """Return what is printed until the last process with this standard output has ended."""
        while self._read():
            pass
        return self._printed.decode()

    def _read(self) -> bool:
        """Read something within the limit of the test. Return False at the end."""
        ready, _, _ = select.select([self.stdout], [], [], SOON)
        assert ready, f"a process is left, or stands still; so far it has printed {self._printed[-200:]!r}"
        found = self.stdout.read(65536)
        self._printed += found
        return bool(found)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def status(self) -> int:
        return self.process.wait(SOON)

    def errors(self) -> str:
        """Return what the ended command has printed to standard error."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()


@contextmanager
def started(*words: str) -> Iterator[Started]:
    """Start a command. It is killed at the end."""
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        process = subprocess.Popen(
            [*COMMAND, *words], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=environment()
        )
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stack.callback(stream.close)
        stack.callback(process.wait, SOON)
        stack.callback(process.kill)
        yield Started(process)
