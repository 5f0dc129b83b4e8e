"""What the library is compared with: a lock without fences, and a fence that is checked on writes only.

The third one is the library, used wrongly: half of its holders forget to claim. Its guards must refuse those.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import redis
from redis.lock import Lock
from sqlalchemy import text

from fencing import FencingError
from fencing.kernel.fence import new_token
from tests.torture.connections import Connections
from tests.torture.services.base import Kit
from tests.torture.steps import Steps
from tests.torture.turn import Turn
from tests.torture.ways import READ, SQLALCHEMY, WRITE, Way

__all__ = ["CONTENDERS"]


class Refused(FencingError):
    """A fence that is older than the newest write."""


def _read(turn: Turn) -> Steps[dict[str, Any]]:
    reading = turn.begin_read()
    connection = yield turn.kit.source.connect()
    try:
        row = (yield connection.execute(text(READ), {"name": turn.counter})).one()
    finally:
        yield connection.close()
    return turn.seen(reading, row.value, row.last)


def _update(turn: Turn, statement: str, **more: Any) -> Steps[None]:
    values = yield from _read(turn)
    yield turn.think()
    engine = turn.kit.source
    given = {**turn.begin_write(values), **more}
    with engine.begin() as connection:
        if connection.execute(text(statement), given).rowcount == 0:
            raise Refused("a newer fence has written")


def _plain(turn: Turn, _: None) -> Steps[None]:
    yield from _update(turn, WRITE)


def _checked(turn: Turn, _: None) -> Steps[None]:
    number = turn.lease.fence.number
    statement = WRITE.replace(" WHERE", ", fence = :fence WHERE") + " AND fence <= :fence"
    yield from _update(turn, statement, fence=number)


class Tag(NamedTuple):
    """In the place of a fence, where there is none."""

    number: int
    token: str


class Held(NamedTuple):
    fence: Tag


class RedisPyLocks:
    """redis-py's `Lock`, with the method that a turn needs."""

    def __init__(self, client: redis.Redis, ttl: float) -> None:
        self._client, self._ttl = client, ttl

    @contextmanager
    def hold(self, name: str, timeout: float, guards: Any = ()) -> Iterator[Held]:
        lock = Lock(self._client, name, timeout=self._ttl, blocking_timeout=timeout)
        if not lock.acquire():
            raise redis.exceptions.LockError("not acquired")
        try:
            yield Held(Tag(0, new_token()))
        finally:
            lock.release()

    def close(self) -> None:
        self._client.close()


class _Unguarded(Connections):
    way: Way

    def kits(self, storage: str) -> list[Kit]:
        changed: dict[str, Any] = {"guard": None, "ways": (self.way,), "claims": False}
        return [kit._replace(**changed) for kit in super().kits(storage) if kit.sessions]


class RedisPy(_Unguarded):
    way = Way("redis-py", _plain, own_commit=True)

    def _new_coordinator(self, kind: str) -> Any:
        return RedisPyLocks(redis.Redis.from_url(self._given["redis"]["url"], socket_timeout=1), self._sides.ttl)


class WriteChecked(_Unguarded):
    way = Way("checked on writes only", _checked, own_commit=True)


class Forgetful(Connections):
    """Half of the holders do not claim."""

    def kits(self, storage: str) -> list[Kit]:
        writes = [way for way in SQLALCHEMY if way.name == "write"]
        return [
            each
            for kit in super().kits(storage)
            if kit.sessions
            for each in (kit._replace(ways=writes), kit._replace(ways=writes, claims=False))
        ]


CONTENDERS: dict[str, type[Connections]] = {
    "redis-py": RedisPy,
    "write-checked": WriteChecked,
    "forgetful": Forgetful,
}
