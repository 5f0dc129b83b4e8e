"""The locks of ``fencing.compat``, sync or async, for the tests of both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
from redis.exceptions import LockError

from fencing.compat import AsyncRedisPyLock, RedisPyLock
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support.sides import Side

E = TypeVar("E", bound=BaseException)

BEYOND = ("guards", "renew")
"""The arguments that redis-py's own lock does not take."""


class Locks:
    """Makes locks through ``client.lock``, and calls them where their state is: with asyncio, on the loop's thread."""

    def __init__(self, side: Side, url: str) -> None:
        self.side = side
        self._clients: list[Any] = []
        self.client = self.connect(url)
        self.kind: Any = AsyncRedisPyLock if side.asynchronous else RedisPyLock
        self.made: list[Any] = []

    def make(self, name: Any = "r", *, client: Any = None, **options: Any) -> Any:
        beyond = {option: options.pop(option) for option in BEYOND if option in options}
        kind = partial(self.kind, **beyond) if beyond else self.kind
        lock = (client or self.client).lock(name, lock_class=kind, **options)
        self.made.append(lock.coordinator)
        return lock

    def connect(self, url: str, **options: Any) -> Any:
        """Return a client, which is closed with the locks."""
        self._clients.append(self.side.client(url, **options))
        return self._clients[-1]

    def guard(self) -> Any:
        return AsyncMemoryGuard() if self.side.asynchronous else MemoryGuard()

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a plain function on the thread of the locks."""

        async def run() -> Any:
            return function()

        return self.side.call(run) if self.side.asynchronous else function()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of a lock, and await its result if it is async."""

        async def call() -> Any:
            return await function(*args, **kwargs)

        return self.side.call(call) if self.side.asynchronous else function(*args, **kwargs)

    def expect(self, error: type[E], function: Callable[..., Any], *args: Any, **kwargs: Any) -> E:
        """Call a method of a lock, and return the error that it raises."""
        with pytest.raises(error) as caught:
            self.call(function, *args, **kwargs)
        return caught.value

    def token(self, lock: Any) -> Any:
        return self.run(lambda: lock.local.token)

    def lease(self, lock: Any) -> Any:
        return self.run(lambda: lock.lease)

    def has_lease(self, lock: Any) -> bool:
        try:
            return self.lease(lock) is not None
        except LockError:
            return False

    def fence(self, lock: Any) -> Any:
        return self.run(lambda: lock.fence)

    def block(self, lock: Any, body: Callable[[], Any]) -> Any:
        """Run a plain function in a ``with`` block of the lock."""

        async def run() -> Any:
            async with lock as entered:
                assert entered is lock
                return body()

        if self.side.asynchronous:
            return self.side.call(run)
        with lock as entered:
            assert entered is lock
            return body()

    def close(self) -> None:
        for coordinator in self.made:
            self.side.call(coordinator.close)
        for client in self._clients:
            self.side.call(client.aclose if self.side.asynchronous else client.close)
