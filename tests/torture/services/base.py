"""What the services of a run have in common: servers, counters and locks on them, and faults that befall them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tests.support.servers import Proxy
from tests.torture.history import Event
from tests.torture.ways import Way

__all__ = ["CONNECT_SECONDS", "GUARD_SECONDS", "SLOTS", "Given", "Kit", "Place", "Service", "Sides"]

GUARD_SECONDS = 3.0
SLOTS = 2
"""Few, so that several workers want the same one."""
CONNECT_SECONDS = 2
"""The bound of a new connection, which the user's engine must have: docs/guards/databases.md."""

Given = dict[str, Any]
"""What workers need to know of a service, as JSON."""


class Place(NamedTuple):
    """A counter: its name, what it is kept in, and what its locks are kept in.

    Args:
        use: who adds to it. lock: holders of its lock. once: those, with keys that they share. election: leaders.
            slots: it is a few counters, one for each slot.
    """

    name: str
    storage: str
    coordinator: str
    use: str = "lock"

    def counters(self) -> list[Place]:
        """Return the counters that it is, each with the name of a resource."""
        if self.use != "slots":
            return [self]
        return [self._replace(name=f"{{{self.name}}}#{slot}") for slot in range(SLOTS)]


class Kit(NamedTuple):
    """A guard, what its bodies read through, and its ways.

    Args:
        claims: whether locks claim at the guard.
    """

    guard: Any
    source: Any
    ways: Sequence[Way]
    asynchronous: bool
    sessions: Any = None
    claims: bool = True


class Sides(NamedTuple):
    """How a worker is: sync or async, with which time to live, and whether numbers start from a clock."""

    asynchronous: bool
    ttl: float = 1.5
    clock_floor: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of a coordinator on Redis."""
        return {"ttl": self.ttl, "clock_floor": self.clock_floor}


class Service:
    """Servers of one kind. The director starts them, and looks past all guards; workers connect to them.

    Args:
        stack: closes at the end what it has opened, whenever that was.
        folder: for files.
        places: the counters that it keeps.
    """

    name: ClassVar[str]
    storages: ClassVar[tuple[str, ...]] = ()
    done_once: ClassVar[tuple[str, ...]] = ()
    """The storages whose guards know what was done once per key."""
    has_locks: ClassVar[bool] = False
    important: ClassVar[bytes] = b""
    """What is in the requests that write: they are lost more often than others."""
    late: ClassVar[bytes] = b""
    """What is in the requests that may arrive late."""

    def __init__(self, stack: ExitStack, folder: Path, places: Sequence[Place], ttl: float) -> None:
        self.stack, self.folder, self.ttl = stack, folder / self.name, ttl
        self.folder.mkdir()
        self.places = [place for place in places if place.storage in self.storages]
        self.locked = [place.name for place in places if place.coordinator == self.name]
        self.proxies: list[Proxy] = []
        self.events: list[Event] = []
        self.began = time.monotonic()
        self.busy = threading.Lock()
        """Held while a fault happens to it."""

    @classmethod
    def why_not(cls) -> str:
        """Return why it cannot be started here; empty: it can."""
        return ""

    def start(self) -> Given:
        """Start it, and return what workers need."""
        raise NotImplementedError

    def proxy(self, server: Any) -> Proxy:
        """Put a proxy before a server."""
        self.proxies.append(self.stack.enter_context(Proxy(server.host, server.port)))
        return self.proxies[-1]

    def direct(self) -> Given:
        """Return what is other for a worker that goes past the proxies."""
        return {}

    def restore(self) -> None:
        """Let everything pass again."""
        for proxy in self.proxies:
            proxy.restore()

    def is_able(self, fault: str) -> bool:
        """Whether a fault of its kind can happen here."""
        return True

    def was_rewound(self, since: float, start: float) -> None:
        """Note that it went back to what it was at ``since``, or a little later; this began at ``start``."""
        now = time.monotonic()
        self.events += [Event("rewound", start, now, counter=place.name, since=since) for place in self.places]

    def locks(self) -> Any:
        """Return a sync coordinator, past all proxies, that sees the locks."""
        raise NotImplementedError

    def final(self, place: Place) -> dict[str, Any]:
        """Return a counter as it is, and what was ever written to it if that is known."""
        raise NotImplementedError

    # In workers

    @staticmethod
    def coordinator(given: Given, sides: Sides) -> Any:
        raise NotImplementedError

    @staticmethod
    def kits(given: Given, storage: str, sides: Sides) -> list[Kit]:
        raise NotImplementedError
