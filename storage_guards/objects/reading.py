"""What both sides of a publication share: its plans, and the reading of one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fencing.kernel.effects import Plan
from fencing.kernel.errors import GuardUnavailable, StaleRead
from storage_guards.objects.batch import BYTES_AT_ONCE
from storage_guards.objects.changes import plan_gets
from storage_guards.objects.keys import Directory
from storage_guards.objects.pointer import Entry, Published
from storage_guards.objects.requests import Get, Lost, Open, Read

MOST_SHOWN = 10
"""How many names an error shows."""


@dataclass(frozen=True, slots=True)
class PublicationDiff:
    """What is different between two publications: the names of their objects, sorted.

    Args:
        added: the later one has them, the earlier one has not.
        removed: the earlier one has them, the later one has not.
        changed: both have them, with other bytes.
        unchanged: both have them, with the same bytes.
    """

    __module__ = "storage_guards"

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]


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
        assert published.objects is not None
        self._objects = published.objects
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

    def diff(self, earlier: Mapping[str, Entry]) -> PublicationDiff:
        """Compare with an earlier publication, without a request: by the keys of the objects, then by their SHA-256.

        Args:
            earlier: another publication, such as ``guard.read(resource, at=...)``.

        Returns:
            What this one has otherwise.
        """
        both = sorted(self.keys() & earlier.keys())
        same = [name for name in both if _are_same(self[name], earlier[name])]
        return PublicationDiff(
            tuple(sorted(self.keys() - earlier.keys())),
            tuple(sorted(earlier.keys() - self.keys())),
            tuple(sorted(set(both) - set(same))),
            tuple(same),
        )

    def _entry(self, name: str) -> Entry:
        try:
            return self._objects[name]
        except KeyError:
            known = ", ".join(map(repr, list(self._objects)[:MOST_SHOWN])) or "nothing"
            raise KeyError(f"{name!r} is not in the publication of {self.resource!r}, which has {known}") from None

    def _plan_open(self, name: str) -> Plan[Reading]:
        entry = self._entry(name)
        key = self._directory.full(entry.key)
        try:
            stream = yield Open(key, self._seconds)
        except Lost as error:
            raise self._unavailable(repr(name), error) from error
        if stream is None:
            raise StaleRead(resource=self.resource, key=key)
        return Reading(stream, key, entry.size, self._seconds, self.resource)

    def _plan_read(self, name: str) -> Plan[bytes]:
        return (yield from (yield from self._plan_open(name)).plan_read(-1))

    def _plan_read_all(self, names: Iterable[str] | None) -> Plan[dict[str, bytes]]:
        """Read objects: small ones several at a time, big ones one after the other."""
        if isinstance(names, str):
            raise TypeError(f"names are several names, not a str; for one object, call read({names!r})")
        entries = {name: self._entry(name) for name in (self if names is None else names)}
        small = {name: entry for name, entry in entries.items() if entry.size <= BYTES_AT_ONCE}
        data = dict.fromkeys(entries, b"")
        gets = [Get(self._directory.full(entry.key), entry.size, self._seconds) for entry in small.values()]
        try:
            replies = yield from plan_gets(gets, self._seconds)
        except Lost as error:
            raise self._unavailable("objects", error) from error
        for (name, entry), found in zip(small.items(), replies, strict=True):
            if found is None:
                raise StaleRead(resource=self.resource, key=self._directory.full(entry.key))
            if found.size != entry.size:
                raise _broken(entry.key, f"it has {found.size} bytes instead of {entry.size}", self.resource)
            data[name] = found.data
        for name in entries.keys() - small.keys():
            data[name] = yield from self._plan_read(name)
        return data

    def _unavailable(self, about: str, error: Lost) -> GuardUnavailable:
        return GuardUnavailable(
            f"the object store did not answer about {about} of {self.resource!r}: {error}; retry",
            resource=self.resource,
        )


def _are_same(one: Entry, other: Entry) -> bool:
    return one.key == other.key or (one.size, one.sha256) == (other.size, other.sha256)


class Reading:
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
        return _broken(self._key, reason, self._resource)


def _broken(key: str, reason: str, resource: str) -> GuardUnavailable:
    return GuardUnavailable(f"reading {key!r} broke off: {reason}; open it again", resource=resource)
