"""The signals of this process, while it waits for a lock and while a command runs."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections import deque
from types import FrameType, TracebackType
from typing import Any, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""They go to the command's whole group, as a terminal would send them."""

TELLING = (signal.SIGUSR1, signal.SIGUSR2)
"""They go to the command alone: another process of its group may not know them, and would end."""

_NOTED = (signal.SIGWINCH, signal.SIGCHLD, signal.SIGCONT)


REPEAT_SECONDS = 0.02
"""How soon a signal is sent again that was swallowed."""


class Ended(BaseException):
    """A signal has come while no command ran."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


class Signals:
    """The handlers of a ``with`` block. Before :attr:`are_noted` is set, a signal raises :class:`Ended`.

    Attributes:
        are_noted: signals are put into ``came``, and raise nothing.
        came: the numbers of those that came.
        ending: the last one that came, of those that end a program.
    """

    def __init__(self) -> None:
        self.are_noted = False
        self.came: deque[int] = deque()
        self.ending: int | None = None
        self._before: dict[int, Any] = {}
        self._repeats: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        for number in (*ENDING, *TELLING, *_NOTED):
            # What we were told to ignore, as by nohup, the command ignores as well. SIGCHLD says how it ends.
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                self._before[number] = signal.signal(number, self._on_signal)
        # What we were told to block, the command blocks as well, but for these: without them its end is not seen.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.are_noted = True
        sys.unraisablehook = self._hook_before
        for each in self._repeats:
            each.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number in ENDING:
            self.ending = number
        if self.are_noted:
            self.came.append(number)
        elif number not in _NOTED:
            raise Ended(number)

    def _on_unraisable(self, unraisable: Any) -> None:
        """Send a signal again whose exception was swallowed, as it came in a finalizer: what waits would go on."""
        error = unraisable.exc_value
        if not isinstance(error, Ended):
            self._hook_before(unraisable)
            return
        repeat = threading.Thread(target=self._repeat, args=(error.number,), daemon=True)
        self._repeats.append(repeat)
        repeat.start()

    def _repeat(self, number: int) -> None:
        time.sleep(REPEAT_SECONDS)  # by then the finalizer is over, mostly; else this is done once more
        if not self.are_noted:
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def note(self) -> None:
        """Raise nothing from now on; but raise for one that was not heeded, as it came in a finalizer."""
        self.are_noted = True
        if self.ending is not None:  # read after the line above
            raise Ended(self.ending)

    def raise_again(self) -> None:
        """Let signals raise from now on, and raise for one that has come and ends a program."""
        self.are_noted = False
        self.came.clear()  # they were for a command that has ended
        if self.ending is not None:  # read after the line above
            raise Ended(self.ending)

    def note_stops(self) -> None:
        """Note also the signal of Ctrl-Z, from now on."""
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._on_signal)

    def allow_stops(self) -> None:
        """Let Ctrl-Z stop this process."""
        if signal.getsignal(signal.SIGTSTP) == self._on_signal:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def wake(self) -> None:
        """End the wait of the main thread. Any thread may call this."""
        try:
            os.write(self._writer, b"\0")
        except OSError:
            pass  # it is full of other calls, or the block has ended

    def wait(self, seconds: float | None) -> None:
        """Wait for a signal, or for :meth:`wake`."""
        select.select([self._reader], [], [], seconds)
        try:
            os.read(self._reader, 4096)
        except BlockingIOError:
            pass
