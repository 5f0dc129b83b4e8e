"""The bytes of one object as a binary file, which pyarrow, pandas, zipfile and others read."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from typing import Any

from fencing.kernel.effects import Plan
from fencing.kernel.quirks import is_foreign_thread
from fencing.kernel.waking import safe_lock
from storage_guards.objects.reading import Reading


class Stream(io.BufferedIOBase):
    """The bytes of one object, as a binary file that can seek. It iterates over lines, as files do.

    It has one position, so threads that share it must not use it at the same time. A thread that Python has not started
    may: it reads where it has itself sought last. DuckDB reads so.

    It asks the store when bytes are needed, for as many as the read wants. At least 256 KiB are read ahead, and twice
    as many each time where reads follow one another. ``read()`` is one request for all that is left.

    An end without an error means that all bytes came. What was read from the beginning to the end, without a gap, also
    has the SHA-256 of what was published. Of what is read in another order only the object's size is checked. After an
    error, also Ctrl-C, it does not go on by itself:
    :meth:`seek` to where to go on, or open the object again.

    Attributes:
        name: of the object.
        size: in bytes.
        mode: ``"rb"``.
    """

    __module__ = "storage_guards"

    mode = "rb"

    def __init__(self, name: str, reading: Reading, perform: Callable[[Plan[Any]], Any]) -> None:
        self.name = name
        self.size = reading.size
        self._reading = reading
        self._perform = perform
        self._lock = safe_lock()
        self._sought: dict[int, int] = {}  # where each thread sought, and nobody has read since
        self._last_seek = 0, False  # the thread, and whether Python has not started it

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read ``size`` bytes, fewer only at the end. None, or a negative size, reads all that are left.

        Raises:
            StaleRead: the publication was replaced, and its data were collected. Read the publication again.
            GuardUnavailable: the reading broke off. Seek, or open the object again.
            GuardNotEnforceable: the object has other bytes than were published. The text says what to do.
            ValueError: it is closed.
        """
        return self._run(self._reading.plan_read(-1 if size is None else size))

    def read1(self, size: int = -1, /) -> bytes:
        """Read some bytes, ``size`` at most: what has come, or else what comes next. It raises as :meth:`read` does."""
        return self._run(self._reading.plan_some(size))

    def peek(self, size: int = 0, /) -> bytes:
        """Return bytes that come next, at least one but at the end, and stay where it is. It raises as :meth:`read`
        does."""
        return self._run(self._reading.plan_peek())

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a byte, and return its position. It asks for nothing."""
        with self._lock:
            place = self._reading.seek(offset, whence)
            thread = threading.get_ident()
            self._sought[thread] = place
            self._last_seek = thread, is_foreign_thread()
            return place

    def tell(self) -> int:
        with self._lock:
            return self._reading.position

    def close(self) -> None:
        """Drop the rest."""
        self._reading.close()
        super().close()

    def _run(self, plan: Plan[bytes]) -> bytes:
        with self._lock:
            self._return_to_own_place()
            return self._perform(plan)  # type: ignore[no-any-return]

    def _return_to_own_place(self) -> None:
        """Go where this thread has sought, if another one has sought since, and one of both is not Python's.

        DuckDB 2.0.1 shares a file among its threads. Each seeks and then reads, by two calls. Threads of Python have
        one position, as with any file: a pool may seek in one thread, and read in the next.
        """
        thread = threading.get_ident()
        last, is_foreign = self._last_seek
        own = self._sought.pop(thread, None)
        if own is None:
            self._sought.pop(last, None)
        elif last != thread and (is_foreign or is_foreign_thread()):
            self._reading.seek(own)
            self._last_seek = thread, is_foreign_thread()
