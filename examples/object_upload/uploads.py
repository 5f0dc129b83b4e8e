"""Three ways to replace a dataset of three files under a lock, and how each is read. Copy the third.

`show` belongs to the demo and can be left out. It reports what has happened. `show.slowly` stands for data that
arrives slowly, as the rows of a long query. The demo pauses the process there, in the middle of an upload.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from obstore.store import ObjectStore

from fencing import FencedLock, Lease
from storage_guards import ObjectStoreGuard

NAMES = ("north", "south", "total")


class Day(NamedTuple):
    """The sales of a day: the files must agree."""

    north: int
    south: int


class Seen(NamedTuple):
    """What a reader sees."""

    north: int
    south: int
    total: int

    @property
    def torn(self) -> bool:
        """Whether the files are from different days: only those of one day add up."""
        return self.north + self.south != self.total

    def __str__(self) -> str:
        return f"{self.north} + {self.south} {'≠' if self.torn else '='} {self.total}"


class Show(Protocol):
    """The demo's reports."""

    def acquired(self, lease: Lease) -> None: ...
    def slowly(self, body: bytes) -> Iterable[bytes]:
        """Yield the same bytes, with a long pause in the middle."""

    def sent(self, name: str) -> None: ...
    def wrote(self) -> None: ...


class ObjectHasNewerFence(Exception):
    """The check before a put found a higher number; its argument is the file."""


def files(day: Day, show: Show) -> dict[str, Iterable[bytes]]:
    return {
        "north": [b"%d\n" % day.north],
        "south": show.slowly(b"%d\n" % day.south),
        "total": [b"%d\n" % (day.north + day.south)],
    }


def lock_only(lock: FencedLock, store: ObjectStore, day: Day, show: Show) -> None:
    """Act 1. A lock that expires, and one put after the other."""
    with lock.hold(timeout=10) as lease:
        show.acquired(lease)
        for name, body in files(day, show).items():
            store.put(f"{lock.resource}/{name}", body)
            show.sent(name)
        show.wrote()


def textbook(lock: FencedLock, store: ObjectStore, day: Day, show: Show) -> None:
    """Act 2. Every object carries the lock's fencing number; an uploader that finds a higher one than its own stops."""
    with lock.hold(timeout=10) as lease:
        show.acquired(lease)
        for name, body in files(day, show).items():
            key = f"{lock.resource}/{name}"
            if number_of(store, key) > lease.fence.number:
                raise ObjectHasNewerFence(name)
            store.put(key, body, attributes={"fence": str(lease.fence.number)})
            show.sent(name)
        show.wrote()


def guarded(lock: FencedLock, guard: ObjectStoreGuard, day: Day, show: Show) -> None:
    """Act 3. The lock was made with the guard: `FencedLock(redis.Redis(), "sales", ttl=10, guards=[guard])`.
    So it claims its fence in the store first. All files become current at once, or none does.
    """
    with lock.hold(timeout=10) as lease:
        show.acquired(lease)
        guard.publish(lease, files(day, show), progress=lambda name, *_: show.sent(name))
        show.wrote()


def number_of(store: ObjectStore, key: str) -> int:
    return int(store.get(key).attributes.get("fence", "0"))


def read(store: ObjectStore, resource: str) -> Seen:
    """Acts 1 and 2: read one file after the other."""
    return Seen(*(int(bytes(store.get(f"{resource}/{name}").bytes())) for name in NAMES))


def read_published(guard: ObjectStoreGuard, resource: str) -> Seen:
    """Act 3: read the pointer once, then its files."""
    current = guard.read(resource)
    if current is None:
        raise LookupError(f"nothing is published for {resource}")
    return Seen(*(int(current.read(name)) for name in NAMES))
