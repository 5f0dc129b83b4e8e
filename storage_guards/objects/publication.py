"""Publications for readers, and streams of their bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from fencing.kernel.effects import Plan
from fencing.kernel.errors import GuardUnavailable, StaleRead
from storage_guards.objects.keys import Directory
from storage_guards.objects.pointer import Entry, Published
from storage_guards.objects.requests import Lost, Open, Read


class PublicationBase(Mapping[str, Entry]):
    """All objects that one ``publish`` made current.

    It does **not** follow later publications: read again for that. All of it is of one publication, and immutable. Two
    are equal if they are the same publication, not if they have the same names.

    Attributes:
        resource: the name of the lock.
        id: unique.
        number: of the fence that published it.
        token: of that fence.
        published_at: when, by the publisher's clock. For people.
    """

    __slots__ = ("_directory", "_objects", "_perform", "_seconds", "id", "number", "published_at", "resource", "token")

    def __init__(
        self,
        resource: str,
        published: Published,
        directory: Directory,
        perform: Callable[[Plan[Any]], Any],
        seconds: float,
    ) -> None:
        self.resource = resource
        self.id = published.id
        self.number = published.number
        self.token = published.token
        self.published_at: datetime = published.at
        self._objects = dict(published.objects)
        self._directory = directory
        self._perform = perform
        self._seconds = seconds

    def __getitem__(self, name: str) -> Entry:
        return self._objects[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PublicationBase):
            return NotImplemented
        return (self.resource, self.id) == (other.resource, other.id)

    def __hash__(self) -> int:
        return hash((self.resource, self.id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.resource!r} by fence {self.number}: {len(self)} objects>"

    def _plan_open(self, name: str) -> Plan[_Reading]:
        entry = self._objects[name]
        key = self._directory.full(entry.key)
        try:
            stream = yield Open(key, self._seconds)
        except Lost as error:
            raise GuardUnavailable(
                f"the object store did not answer about {name!r} of {self.resource!r}: {error}; retry",
                resource=self.resource,
            ) from error
        if stream is None:
            raise StaleRead(resource=self.resource, key=key)
        return _Reading(stream, key, entry.size, self._seconds, self.resource)


class _Reading:
    """The reading of one object's bytes in order, with a check that all of them come."""

    def __init__(self, stream: Any, key: str, size: int, seconds: float, resource: str) -> None:
        self._stream = stream
        self._key = key
        self._size = size
        self._seconds = seconds
        self._resource = resource
        self._received = 0
        self._rest = b""
        self._failure = ""

    def plan_chunk(self) -> Plan[bytes]:
        """Read some bytes; none at the end. After an error every call fails, because bytes may have been lost."""
        if self._failure:
            raise self._broken(self._failure)
        if self._rest:
            chunk, self._rest = self._rest, b""
            return chunk
        if self._stream is None:
            return b""
        piece: bytes | None = b""
        while piece == b"":  # an empty piece is not the end
            try:
                piece = yield Read(self._stream, self._key, self._seconds)
            except Lost as error:
                raise self._broken(str(error)) from error
            except BaseException:
                self._broken("it was interrupted")
                raise
        if piece is not None:
            self._received += len(piece)
            return piece
        if self._received != self._size:
            raise self._broken(f"{self._received} bytes came instead of {self._size}")
        self.close()
        return b""

    def plan_read(self, size: int) -> Plan[bytes]:
        """Read so many bytes, fewer only at the end. A negative size reads all."""
        parts: list[bytes] = []
        left = size
        while left and (chunk := (yield from self.plan_chunk())):
            parts.append(chunk if size < 0 else chunk[:left])
            self._rest = chunk[len(parts[-1]) :]
            left -= len(parts[-1])
        return b"".join(parts)

    def close(self) -> None:
        self._stream, self._rest = None, b""

    def _broken(self, reason: str) -> GuardUnavailable:
        self.close()
        self._failure = reason
        return GuardUnavailable(f"reading {self._key!r} broke off: {reason}; open it again", resource=self._resource)


class Stream:
    """The bytes of one object: iterate for chunks, or :meth:`read` as from a binary file. It is a context manager.

    An end without an error means that all bytes came. After an error, also Ctrl-C, it cannot be continued: open the
    object again.
    """

    def __init__(self, reading: _Reading, perform: Callable[[Plan[bytes]], bytes]) -> None:
        self._reading = reading
        self._perform = perform

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._perform(self._reading.plan_chunk()):
            yield chunk

    def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes, fewer only at the end. A negative size reads all that are left.

        Raises:
            GuardUnavailable: the reading broke off. Open the object again.
        """
        return self._perform(self._reading.plan_read(size))

    def close(self) -> None:
        """Drop the rest. The stream gives no more bytes."""
        self._reading.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream:
    """The bytes of one object for asyncio: iterate for chunks, or :meth:`read` as from a binary file. It is an async
    context manager.

    An end without an error means that all bytes came. After an error, also a cancellation, it cannot be continued: open
    the object again.
    """

    def __init__(self, reading: _Reading, perform: Callable[[Plan[bytes]], Awaitable[bytes]]) -> None:
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


class Publication(PublicationBase):
    __doc__ = PublicationBase.__doc__

    __slots__ = ()

    def open(self, name: str) -> Stream:
        """Open the bytes of one object, as a stream.

        Raises:
            KeyError: there is no such object.
            StaleRead: it has been replaced since, and its data were collected. Read the publication again.
            GuardUnavailable: the store did not answer. Retry.
        """
        return Stream(self._perform(self._plan_open(name)), self._perform)

    def read(self, name: str) -> bytes:
        """Read all bytes of one object into memory.

        Raises:
            KeyError, StaleRead: as :meth:`open`.
            GuardUnavailable: the store did not answer, or the reading broke off. Retry.
        """
        with self.open(name) as stream:
            return stream.read()


class AsyncPublication(PublicationBase):
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
        async with await self.open(name) as stream:
            return await stream.read()
