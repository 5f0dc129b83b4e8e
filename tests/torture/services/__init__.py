"""The services of a run: which there are, and which counters are on them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.torture.services.base import Place, Service
from tests.torture.services.cluster import Cluster
from tests.torture.services.etcd import Etcd
from tests.torture.services.files import Files
from tests.torture.services.http import HTTP
from tests.torture.services.mariadb import MariaDB
from tests.torture.services.objects import GCS, S3, Azure
from tests.torture.services.postgresql import PostgreSQL
from tests.torture.services.redis import Redis, RedisData
from tests.torture.services.redlock import Redlock
from tests.torture.services.sentinel import Sentinel
from tests.torture.services.sqlite import SQLite
from tests.torture.services.zookeeper import ZooKeeper

__all__ = ["KINDS", "USES", "Place", "Service", "Services", "at_hand", "places_on"]

KINDS: dict[str, type[Service]] = {
    kind.name: kind
    for kind in (
        *(Redis, Sentinel, Cluster, Redlock, PostgreSQL, MariaDB, SQLite, Etcd, ZooKeeper),
        *(RedisData, Files, S3, GCS, Azure, HTTP),
    )
}
"""Those with locks come first."""

USES = {"once": 2, "election": 2, "slots": 1}
"""How many counters there are for each use besides plain locks."""

MOST_PLACES = 8
"""Above it, each storage has one counter only: more would seldom have two holders at a time."""


def at_hand() -> list[str]:
    """Return the names of those that can be started here."""
    return [name for name, kind in KINDS.items() if not kind.why_not()]


def places_on(names: Sequence[str], seed: int) -> list[Place]:
    """Return the counters: one for each storage and each kind of locks, and a few for other uses.

    Where these would be too many, each storage has one counter, and the seed chooses its locks. Consecutive seeds, as
    many as there are kinds of locks, have all combinations. It also chooses what the other uses are tried on.
    """
    kinds = [KINDS[name] for name in KINDS if name in names]
    locks = [kind.name for kind in kinds if kind.has_locks]
    storages = [storage for kind in kinds for storage in kind.storages]
    if len(locks) * len(storages) <= MOST_PLACES:
        pairs = [(storage, lock) for storage in storages for lock in locks]
    else:
        pairs = [(storage, locks[(seed + index) % len(locks)]) for index, storage in enumerate(storages)]
    places = [Place(f"{storage}/{lock}", storage, lock) for storage, lock in pairs]
    all_pairs = [(storage, lock) for storage in storages for lock in locks]
    knowing = {storage for kind in kinds for storage in kind.done_once}
    for use, count in USES.items():
        able = [pair for pair in all_pairs if use != "once" or pair[0] in knowing]
        chosen = dict.fromkeys(able[(seed + index * len(able) // count) % len(able)] for index in range(count) if able)
        places += [Place(f"{use}/{storage}/{lock}", storage, lock, use) for storage, lock in chosen]
    return places


def check_names(names: Sequence[str]) -> list[str]:
    """Return the names in the order of all; raise ValueError where one cannot take part, or none has locks."""
    unknown = set(names) - set(KINDS)
    if unknown:
        raise ValueError(f"there is no {', '.join(sorted(unknown))}; choose among {', '.join(KINDS)}")
    for name in names:
        if reason := KINDS[name].why_not():
            raise ValueError(f"{name} cannot take part: {reason}")
    chosen = [name for name in KINDS if name in names]
    if not any(KINDS[name].has_locks for name in chosen):
        chosen.insert(0, Redis.name)
    if not any(KINDS[name].storages for name in chosen):
        raise ValueError(f"{', '.join(chosen)} can hold locks, and no data: name a service for data, too")
    return chosen


class Services:
    """A context manager: the servers run inside.

    Args:
        names: of services. Where none of them has locks, Redis takes part.
        ttl: of the locks.
        seed: chooses the counters' locks.
        only: whether a counter takes part.
    """

    def __init__(
        self, names: Sequence[str], ttl: float, seed: int, only: Callable[[Place], bool] = lambda _: True
    ) -> None:
        self.names = check_names(names)
        places = list(filter(only, places_on(self.names, seed)))
        self.places = [counter for place in places for counter in place.counters()]
        self.setup: dict[str, Any] = {"ttl": ttl, "places": places, "services": {}}
        self._ttl = ttl
        self._stack = ExitStack()
        self._by_name: dict[str, Service] = {}

    def __enter__(self) -> Self:
        try:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="torture-")))
            folder.chmod(0o755)  # some servers run as another user
            for name in self.names:
                service = self._by_name[name] = KINDS[name](self._stack, folder, self.places, self._ttl)
                self.setup["services"][name] = service.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Service:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Service]:
        return iter(self._by_name.values())

    def restore(self) -> None:
        """Let everything pass again."""
        for service in self:
            service.restore()

    def left(self) -> list[str]:
        """Return the names of the counters whose lock is taken."""
        taken: list[str] = []
        for service in self:
            own = [place.name for place in self.places if place.coordinator == service.name]
            if own:
                with service.locks() as locks:
                    taken += [name for name in own if locks.holder(name)]
        return taken

    def final(self, place: Place) -> dict[str, Any]:
        """Return a counter as it is, and what was ever written to it if that is known."""
        return next(service for service in self if place.storage in service.storages).final(place)
