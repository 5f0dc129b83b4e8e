"""Publications for readers, and streams of their bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from fencing.kernel.effects import Plan
from storage_guards.objects.reading import PublicationBase, Reading


class AsyncStream:
    """The bytes of one object for asyncio: iterate for chunks, or :meth:`read` as from a binary file. It is an async
    context manager.

    An end without an error means that all bytes came. After an error, also a cancellation, it cannot be continued: open
    the object again.
    """

    # SYNC "also a cancellation": also Ctrl-C

    __module__ = "storage_guards"

    def __init__(self, reading: Reading, perform: Callable[[Plan[bytes]], Awaitable[bytes]]) -> None:
        self._reading = reading
        self._perform = perform

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._perform(self._reading.plan_chunk()):
            yield chunk

    async def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes, fewer only at the end. A negative size reads all that are left.

        Raises:
            GuardUnavailable: the reading broke off. Open the object again.
        """
        return await self._perform(self._reading.plan_read(size))

    async def close(self) -> None:
        """Drop the rest. The stream gives no more bytes."""
        self._reading.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.close()


class AsyncPublication(PublicationBase):
    __module__ = "storage_guards"

    __doc__ = PublicationBase.__doc__

    __slots__ = ()

    async def open(self, name: str) -> AsyncStream:
        """Open the bytes of one object, as a stream.

        Raises:
            KeyError: there is no such object.
            StaleRead: it has been replaced since, and its data were collected. Read the publication again.
            GuardUnavailable: the store did not answer. Retry.
        """
        return AsyncStream(await self._perform(self._plan_open(name)), self._perform)

    async def read(self, name: str) -> bytes:
        """Read all bytes of one object into memory.

        Raises:
            KeyError, StaleRead: as :meth:`open`.
            GuardUnavailable: the store did not answer, or the reading broke off. Retry.
        """
        return await self._perform(self._plan_read(name))  # type: ignore[no-any-return]

    async def read_all(self, names: Iterable[str] | None = None) -> dict[str, bytes]:
        """Read the bytes of several objects into memory: up to 16 at the same time, or one of more than 8 MiB.

        Args:
            names: of the objects. None: all of the publication.

        Returns:
            Their bytes by name.

        Raises:
            KeyError, StaleRead: as :meth:`open`.
            GuardUnavailable: the store did not answer, or a reading broke off. Retry.
        """
        return await self._perform(self._plan_read_all(names))  # type: ignore[no-any-return]
