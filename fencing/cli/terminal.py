"""The terminal of this process: which process group has its keyboard."""

from __future__ import annotations

import os
import signal
import stat
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class Terminal:
    """The controlling terminal. Whoever gets the foreground gets its keys: input, Ctrl-C, Ctrl-Z, and window sizes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_lent = False
        self._modes: list[Any] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether the group of this process is in the foreground."""
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # it was hung up
            return False

    def lend(self, group: int) -> bool:
        """Put another group into the foreground, if it is ours to give. Return whether it was."""
        if self.is_ours:
            with suppress(OSError, termios.error), _as_foreground():
                if self._modes is None:
                    self._modes = termios.tcgetattr(self._descriptor)
                os.tcsetpgrp(self._descriptor, group)
                self._is_lent = True
        return self._is_lent

    def take_back(self, *, modes: bool = False) -> bool:
        """Put our group into the foreground, if we had lent that. Return whether we had.

        Args:
            modes: put back the modes as well: a command that was killed may have left the terminal without an echo.
        """
        if not self._is_lent:
            return False
        self._is_lent = False
        with suppress(OSError, termios.error), _as_foreground():
            os.tcsetpgrp(self._descriptor, os.getpgrp())
            if modes and self._modes is not None:
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._modes)
        return True


def own_terminal() -> Terminal | None:
    """Return the controlling terminal; None: there is none."""
    try:
        return Terminal(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return None


def is_in_pipeline() -> bool:
    """Return whether standard input or output is a pipe: the process at its other end may need the keyboard."""
    for descriptor in (0, 1):
        with suppress(OSError):
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                return True
    return False


@contextmanager
def _as_foreground() -> Iterator[None]:
    """Let the terminal obey, although a group in the background asks: the signal that it sends would stop us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
