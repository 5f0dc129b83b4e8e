"""What both sides of a publication share: its plans, and the reading of one object."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from inspect import GEN_RUNNING, GEN_SUSPENDED, getgeneratorstate
from typing import Any

from fencing.kernel.effects import Plan
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable, StaleRead
from storage_guards.objects.batch import BYTES_AT_ONCE
from storage_guards.objects.changes import plan_gets
from storage_guards.objects.errors import other_object
from storage_guards.objects.history import GONE
from storage_guards.objects.keys import Directory
from storage_guards.objects.locations import can_sign, can_sign_key, key_in_bucket, url_in
from storage_guards.objects.pointer import Entry, Published
from storage_guards.objects.requests import Get, Lost, Open, Read, Sign

MOST_SHOWN = 10
"""How many names an error shows."""

FIRST_AHEAD = 256 * 2**10
"""The least bytes of a request that reads a part of an object: they take no longer than the answer itself."""

MOST_PEEKED = 8192

OTHER_BYTES = "other bytes of the same number"

MOST_VALID = 7 * 86400
"""Seconds: stores sign nothing for longer."""


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

    It can be pickled, where its store can: with the store's arguments, secrets among them, and without the data.

    Attributes:
        resource: the name of the lock.
        id: unique.
        number: of the fence that published it.
        token: of that fence.
        published_at: when, by the publisher's clock. For people.
    """

    __slots__ = ("_guard", "_objects", "id", "number", "published_at", "resource", "token")

    def __init__(self, resource: str, published: Published, guard: Any) -> None:
        self.resource = resource
        self.id = published.id
        self.number = published.number
        self.token = published.token
        self.published_at: datetime = published.at
        assert published.objects is not None
        self._objects = published.objects
        self._guard = guard

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

    def bucket_keys(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Return the key of each object in its bucket, for programs that use the store themselves. It asks for nothing.

        Args:
            names: of the objects. None: all of the publication.

        Raises:
            KeyError: there is no such object.
        """
        return self._located(names, key_in_bucket(self._store))

    def urls(self, names: Iterable[str] | None = None, *, base: str | None = None) -> dict[str, str]:
        """Return the URL of each object: ``s3://``, ``gs://``, ``az://`` or ``file://``. It asks for nothing.

        Whoever reads them all reads this one publication. They stay the same, until the publication is replaced and its
        data are collected. Then there is nothing at them, and never something else. Only a URL of a file is escaped:
        the others have the key as it is.

        Args:
            names: of the objects. None: all of the publication.
            base: the URL of the bucket, if it has another one: ``"s3a://acme-data"``, or that of a CDN.

        Raises:
            KeyError: there is no such object.
            ValueError: the store has no URL that others know. Pass ``base``.
        """
        if base is None:
            return self._located(names, url_in(self._store))
        key_of = key_in_bucket(self._store)
        return self._located(names, lambda key: f"{base.rstrip('/')}/{key_of(key)}")

    @property
    def _store(self) -> Any:
        return self._guard._io.store

    @property
    def _seconds(self) -> float:
        return self._guard._upload_timeout  # type: ignore[no-any-return]

    def _perform(self, plan: Plan[Any]) -> Any:
        return self._guard._run(plan)

    @property
    def _directory(self) -> Directory:
        return self._guard._layout.directory(self.resource)  # type: ignore[no-any-return]

    def _full_key(self, entry: Entry) -> str:
        return self._directory.full(entry.key)

    def _located(self, names: Iterable[str] | None, place: Callable[[str], str]) -> dict[str, str]:
        directory = self._directory
        return {name: place(directory.full(entry.key)) for name, entry in self._entries(names).items()}

    def _entries(self, names: Iterable[str] | None) -> dict[str, Entry]:
        if isinstance(names, str):
            raise TypeError(f"names are several names, not a str; for one object, pass [{names!r}]")
        return {name: self._entry(name) for name in (self if names is None else names)}

    def _entry(self, name: str) -> Entry:
        try:
            return self._objects[name]
        except KeyError:
            known = ", ".join(map(repr, list(self._objects)[:MOST_SHOWN])) or "nothing"
            raise KeyError(f"{name!r} is not in the publication of {self.resource!r}, which has {known}") from None

    def _reading(self, name: str) -> Reading:
        entry = self._entry(name)
        return Reading(self._full_key(entry), entry, self._seconds, self.resource)

    def _plan_read(self, name: str) -> Plan[bytes]:
        return self._reading(name).plan_read(-1)

    def _plan_sign(self, seconds: float, names: Iterable[str] | None) -> Plan[dict[str, str]]:
        if not can_sign(self._store):
            raise ValueError(f"the guard's {type(self._store).__name__} cannot sign URLs; use urls()")
        if not 1 <= seconds <= MOST_VALID:
            raise ValueError(f"seconds is {seconds}; URLs can be signed for 1 to {MOST_VALID} seconds")
        keys = self._located(names, str)
        for name, key in keys.items():
            if not can_sign_key(self._store, key):
                raise ValueError(
                    f"the key of {name!r} has a '%', and obstore signs such keys wrongly for Azure; use a name of "
                    f"other characters, or urls()"
                )
        try:
            signed = yield Sign(list(keys.values()), seconds, self._seconds)
        except Lost as error:
            raise self._unavailable("signed URLs", error) from error
        return dict(zip(keys, signed, strict=True))

    def _plan_read_all(self, names: Iterable[str] | None) -> Plan[dict[str, bytes]]:
        """Read objects: small ones several at a time, big ones one after the other."""
        entries = self._entries(names)
        small = {name: entry for name, entry in entries.items() if entry.size <= BYTES_AT_ONCE}
        data = dict.fromkeys(entries, b"")
        gets = [Get(self._full_key(entry), entry.size, self._seconds) for entry in small.values()]
        try:
            replies = yield from plan_gets(gets, self._seconds)
        except Lost as error:
            raise self._unavailable("objects", error) from error
        for (name, entry), found in zip(small.items(), replies, strict=True):
            if found is None:
                raise StaleRead(resource=self.resource, key=self._full_key(entry), hint=GONE)
            if found.size != entry.size:
                raise other_object(self._full_key(entry), f"{found.size} bytes instead of {entry.size}")
            if hashlib.sha256(found.data).hexdigest() != entry.sha256:
                raise other_object(self._full_key(entry), OTHER_BYTES)
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
    """The reading of one object's bytes, with a check that they are this object's, and that all of them come.

    The last bytes of an object that is read from its beginning come only if the SHA-256 of all is right. What is read
    in another order is checked by the object's size alone.

    A request is for what a read wants. At least 256 KiB are read ahead, and twice as many each time where reads follow
    one another. It is read piece by piece, so what is not needed mostly is not sent.

    After an error every read fails until :meth:`seek`, because bytes may have been lost.
    """

    def __init__(self, key: str, entry: Entry, seconds: float, resource: str) -> None:
        self.size = entry.size
        self._sha256 = entry.sha256
        self._hashed = 0, hashlib.sha256()  # so many bytes from the beginning, and their hash
        self._key = key
        self._seconds = seconds
        self._resource = resource
        self._piece = b""
        self._given = 0  # bytes of the piece
        self._at = 0  # where the piece ends, and the stream goes on
        self._stream: Any = None
        self._end = 0  # of the stream
        self._ahead = FIRST_AHEAD
        self._failure = ""
        self._last_plan: Plan[bytes] | None = None
        self._is_closed = False

    @property
    def position(self) -> int:
        """Of the next byte."""
        self._check_usable()
        return self._at - len(self._piece) + self._given

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte, also behind the end, and return its position. What has come there already is kept.

        Raises:
            ValueError: it is before the beginning, or ``whence`` is unknown.
        """
        self._check_usable()
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"whence is os.SEEK_SET, os.SEEK_CUR or os.SEEK_END, not {whence!r}")
        position = offset + (0, self.position, self.size)[whence]
        if position < 0:
            raise ValueError(f"there is no byte {position}")
        begin = self._at - len(self._piece)
        if not self._failure and begin <= position <= self._at:
            self._given = position - begin
        else:
            self._drop()
            self._at, self._ahead, self._failure = position, FIRST_AHEAD, ""
        return position

    def plan_begin(self) -> Plan[None]:
        """Begin to read all of it. Otherwise that is done where the first bytes are needed."""
        if self.size:
            yield from self._plan_open(self.size)

    def plan_chunk(self) -> Plan[bytes]:
        """Read some bytes, by a request for all that are left; none at the end."""
        return self._plan_whole(self._plan_take(self.size, self.size))

    def plan_some(self, size: int) -> Plan[bytes]:
        """Read some bytes, ``size`` at most; none at the end. A negative size: as many as have come."""
        return self._plan_whole(self._plan_take(size if size >= 0 else self.size, max(size, 0)))

    def plan_read(self, size: int) -> Plan[bytes]:
        """Read so many bytes, fewer only at the end. A negative size reads all."""
        return self._plan_whole(self._plan_read(size if size >= 0 else self.size))

    def plan_peek(self) -> Plan[bytes]:
        """Return some bytes that come next, and do not go on; none at the end."""
        return self._plan_whole(self._plan_peek())

    def close(self) -> None:
        self._drop()
        self._is_closed = True

    def _plan_whole(self, plan: Plan[bytes]) -> Plan[bytes]:
        """Read by a plan. What has come is lost with its failure, so nothing is read after that."""
        self._check_usable()
        if self._failure:
            raise self._broken(self._failure)
        try:
            self._last_plan = plan
            return (yield from plan)
        except (GuardUnavailable, GuardNotEnforceable, StaleRead):
            raise
        except BaseException:
            self._broken("it was interrupted")
            raise

    def _plan_read(self, size: int) -> Plan[bytes]:
        parts = []
        while size and (part := (yield from self._plan_take(size, size))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _plan_peek(self) -> Plan[bytes]:
        yield from self._plan_fill(1)
        return self._piece[self._given : self._given + MOST_PEEKED]

    def _plan_take(self, most: int, wanted: int) -> Plan[bytes]:
        yield from self._plan_fill(wanted)
        begin = self._given
        self._given = min(begin + most, len(self._piece))
        return self._piece[begin : self._given]

    def _plan_fill(self, wanted: int) -> Plan[None]:
        """Have the bytes that come next, unless it is the end.

        Args:
            wanted: how many are wanted together.
        """
        if self._given < len(self._piece) or self._at >= self.size:
            return
        if self._stream is None:
            yield from self._plan_open(wanted)
        piece: bytes | None = b""
        while piece == b"":  # an empty piece is not the end
            try:
                piece = yield Read(self._stream, self._key, self._seconds)
            except Lost as error:
                raise self._broken(str(error)) from error
        if piece is None:
            raise self._broken(f"{self._end - self._at} bytes are missing")
        if self._at + len(piece) > self._end:
            raise self._broken(f"more bytes came than the {self._end} up to there")
        self._check_bytes(piece)
        self._piece, self._given = piece, 0
        self._at += len(piece)
        if self._at == self._end:
            self._stream = None

    def _plan_open(self, wanted: int) -> Plan[None]:
        length = max(wanted, self._ahead)
        end = min(self._at + length, self.size)
        part = self._at, end
        try:
            stream = yield Open(self._key, self._seconds, self.size, None if part == (0, self.size) else part)
        except Lost as error:
            raise self._broken(str(error)) from error
        if stream is None:
            raise StaleRead(resource=self._resource, key=self._key, hint=GONE)
        self._stream, self._end, self._ahead = stream, end, 2 * length

    def _check_bytes(self, piece: bytes) -> None:
        """Raise GuardNotEnforceable where this piece is the last one, and the object has other bytes.

        It may be read again from anywhere. Once it was read from its beginning without a gap, its bytes are known.
        """
        hashed, digest = self._hashed if self._at else (0, hashlib.sha256())
        known = hashed - self._at
        if not 0 <= known < len(piece):
            return
        digest = digest.copy()  # an interruption must not leave a hash of other bytes than it says
        digest.update(memoryview(piece)[known:])
        self._hashed = self._at + len(piece), digest
        if self._hashed[0] == self.size and digest.hexdigest() != self._sha256:
            self._broken(OTHER_BYTES)
            raise other_object(self._key, OTHER_BYTES)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ValueError(f"the stream of {self._key!r} is closed; open it again")
        if self._last_plan is not None and getgeneratorstate(self._last_plan) in (GEN_RUNNING, GEN_SUSPENDED):
            raise RuntimeError(f"a read of the stream of {self._key!r} is under way; open one for each task")

    def _drop(self) -> None:
        self._stream, self._piece, self._given = None, b"", 0

    def _broken(self, reason: str) -> GuardUnavailable:
        self._drop()
        self._failure = reason
        return _broken(self._key, reason, self._resource)


def _broken(key: str, reason: str, resource: str) -> GuardUnavailable:
    return GuardUnavailable(f"reading {key!r} broke off: {reason}; open it again", resource=resource)
