"""The bytes of one object for asyncio, as a file that can seek."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from fencing.kernel.effects import Plan
from storage_guards.objects.reading import Reading


class AsyncStream:
    """The bytes of one object for asyncio: iterate for chunks, or :meth:`read` and :meth:`seek` as in a binary file. It
    is an async context manager, for one task at a time.

    It asks the store when bytes are needed, for as many as the read wants. At least 256 KiB are read ahead, and twice
    as many each time where reads follow one another. An iteration is one request for all that is left.

    An end without an error means that all bytes came. What was read from the beginning to the end, without a gap, also
    has the SHA-256 of what was published. Of what is read in another order only the object's size is checked. After an
    error, also a cancellation, it does not go on by itself:
    :meth:`seek` to where to go on, or open the object again.

    Attributes:
        name: of the object.
        size: in bytes.
    """

    __module__ = "storage_guards"

    def __init__(self, name: str, reading: Reading, perform: Callable[[Plan[Any]], Awaitable[Any]]) -> None:
        self.name = name
        self.size = reading.size
        self._reading = reading
        self._perform = perform

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._perform(self._reading.plan_chunk()):
            yield chunk

    async def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes, fewer only at the end. A negative size reads all that are left.

        Raises:
            StaleRead: the publication was replaced, and its data were collected. Read the publication again.
            GuardUnavailable: the reading broke off. Seek, or open the object again.
            GuardNotEnforceable: the object has other bytes than were published. The text says what to do.
            ValueError: it is closed.
        """
        return await self._perform(self._reading.plan_read(size))  # type: ignore[no-any-return]

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte, and return its position. It asks for nothing."""
        return self._reading.seek(offset, whence)

    async def tell(self) -> int:
        """Return the position of the next byte."""
        return self._reading.position

    async def close(self) -> None:
        """Drop the rest. The stream gives no more bytes."""
        self._reading.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.close()
