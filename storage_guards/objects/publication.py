"""What readers get: a publication, and streams of its bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any

from fencing.kernel.effects import Plan
from fencing.kernel.errors import GuardUnavailable, StaleRead
from storage_guards.objects.keys import Directory
from storage_guards.objects.pointer import Entry, Published
from storage_guards.objects.requests import Await, Lost, Open

__all__ = ["AsyncPublication", "AsyncStream", "Publication", "PublicationBase", "Stream"]


class PublicationBase(Mapping[str, Entry]):
    """What both colours share.

    It does **not** follow what is published later: read again for that. All of it is of one publication, and immutable.
    Two are equal if they are the same publication, not if they have the same names.

    Attributes:
        resource: whose it is.
        id: unique.
        number: of the fence that published it.
        token: of that fence.
        published_at: when, by the clock of who published it. For people.
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

    def _open(self, name: str) -> Plan[_Reading]:
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
    """The bytes of one object, in order, however many there are to be."""

    def __init__(self, stream: Any, key: str, size: int, seconds: float, resource: str) -> None:
        self._stream = stream
        self._key = key
        self._size = size
        self._seconds = seconds
        self._resource = resource
        self._had = 0
        self._rest = b""
        self._failure = ""

    def next_chunk(self) -> Plan[bytes]:
        """Some bytes; none at the end. After an error none ever: some that were on their way may be lost."""
        if self._failure:
            raise self._broken(self._failure)
        if self._rest:
            chunk, self._rest = self._rest, b""
            return chunk
        if self._stream is None:
            return b""
        piece: bytes | None = b""
        while piece == b"":  # which says nothing, least of all that this is the end
            try:
                piece = yield Await(lambda io: io.next_piece(self._stream, self._seconds, self._key), self._seconds)
            except Lost as error:
                raise self._broken(str(error)) from error
            except BaseException:
                self._broken("it was interrupted")
                raise
        if piece is not None:
            self._had += len(piece)
            return piece
        if self._had != self._size:
            raise self._broken(f"{self._had} bytes came of {self._size}")
        self.close()
        return b""

    def read(self, size: int) -> Plan[bytes]:
        """So many bytes, fewer only at the end; all if negative."""
        parts: list[bytes] = []
        left = size
        while left and (chunk := (yield from self.next_chunk())):
            parts.append(chunk if size < 0 else chunk[:left])
            self._rest = chunk[len(parts[-1]) :]
            left -= len(parts[-1])
        return b"".join(parts)

    def close(self) -> None:
        self._stream, self._rest = None, b""

    def _broken(self, why: str) -> GuardUnavailable:
        self.close()
        self._failure = why
        return GuardUnavailable(f"reading {self._key!r} broke off: {why}; read it again", resource=self._resource)


class Stream:
    """The bytes of one object: iterate for chunks, or :meth:`read` as from a binary file. A context manager.

    An end without an error means that all of it came. After an error, a cancellation or Ctrl-C there is no going on.
    """

    def __init__(self, reading: _Reading, perform: Callable[[Plan[bytes]], bytes]) -> None:
        self._reading = reading
        self._perform = perform

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._perform(self._reading.next_chunk()):
            yield chunk

    def read(self, size: int = -1) -> bytes:
        """``size`` bytes, fewer only at the end; all that are left if negative."""
        return self._perform(self._reading.read(size))

    def close(self) -> None:
        """No more is wanted."""
        self._reading.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream:
    """:class:`Stream` for asyncio."""

    def __init__(self, reading: _Reading, perform: Callable[[Plan[bytes]], Awaitable[bytes]]) -> None:
        self._reading = reading
        self._perform = perform

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._perform(self._reading.next_chunk()):
            yield chunk

    async def read(self, size: int = -1) -> bytes:
        """See :meth:`Stream.read`."""
        return await self._perform(self._reading.read(size))

    async def close(self) -> None:
        """See :meth:`Stream.close`."""
        self._reading.close()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.close()


class Publication(PublicationBase):
    __doc__ = PublicationBase.__doc__

    __slots__ = ()

    def open(self, name: str) -> Stream:
        """The bytes of one object, as a stream.

        Raises:
            KeyError: there is no such object.
            StaleRead: it has been replaced since, and its data were collected. Read the publication again.
            GuardUnavailable: no answer. Retry.
        """
        return Stream(self._perform(self._open(name)), self._perform)

    def read(self, name: str) -> bytes:
        """The bytes of one object, all of them in memory; errors as :meth:`open`."""
        with self.open(name) as stream:
            return stream.read()


class AsyncPublication(PublicationBase):
    __doc__ = PublicationBase.__doc__

    __slots__ = ()

    async def open(self, name: str) -> AsyncStream:
        """See :meth:`Publication.open`."""
        return AsyncStream(await self._perform(self._open(name)), self._perform)

    async def read(self, name: str) -> bytes:
        """See :meth:`Publication.read`."""
        async with await self.open(name) as stream:
            return await stream.read()
