"""The bytes of one object as a binary file, which pyarrow, pandas, zipfile and others read."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from fencing.kernel.effects import Plan
from storage_guards.objects.reading import Reading


class Stream(io.BufferedIOBase):
    """The bytes of one object, as a binary file that can seek. It iterates over lines, as files do. Use it in one
    thread at a time.

    It asks the store when bytes are needed, for as many as the read wants. At least 256 KiB are read ahead, and twice
    as many each time where reads follow one another. ``read()`` is one request for all that is left.

    An end without an error means that all bytes came. After an error, also Ctrl-C, it does not go on by itself:
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

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read ``size`` bytes, fewer only at the end. None, or a negative size, reads all that are left.

        Raises:
            StaleRead: the publication was replaced, and its data were collected. Read the publication again.
            GuardUnavailable: the reading broke off. Seek, or open the object again.
            ValueError: it is closed.
        """
        return self._perform(self._reading.plan_read(-1 if size is None else size))  # type: ignore[no-any-return]

    def read1(self, size: int = -1, /) -> bytes:
        """Read some bytes, ``size`` at most: what has come, or else what comes next. It raises as :meth:`read` does."""
        return self._perform(self._reading.plan_some(size))  # type: ignore[no-any-return]

    def peek(self, size: int = 0, /) -> bytes:
        """Return bytes that come next, at least one but at the end, and stay where it is. It raises as :meth:`read`
        does."""
        return self._perform(self._reading.plan_peek())  # type: ignore[no-any-return]

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a byte, and return its position. It asks for nothing."""
        return self._reading.seek(offset, whence)

    def tell(self) -> int:
        return self._reading.position

    def close(self) -> None:
        """Drop the rest."""
        self._reading.close()
        super().close()
