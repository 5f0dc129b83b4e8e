"""Which coordinator serves which client, so that a lock can be made from a client alone. No backend is imported before
a client of its service is seen.
"""

from __future__ import annotations

import importlib
import inspect
import threading
import weakref
from typing import Any

from fencing.kernel import process
from fencing.locks.backend import Backend

_COORDINATORS = {
    "redis": ("fencing.redis.coordinator", "RedisCoordinator"),
}
"""By the package that a client's class comes from: the module of its coordinators, and the sync one's name."""

_HINTS = {"str": "; write redis.Redis.from_url(...)", "Sentinel": "; give what sentinel.master_for(...) returns"}


class _Shared:
    """The coordinators that were made from clients; each is gone with its client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: weakref.WeakKeyDictionary[Any, Backend] = weakref.WeakKeyDictionary()

    def get(self, client: Any, kind: Any) -> Backend:
        with self._lock:
            found: Any = self._made.get(client)
            if not isinstance(found, kind) or found.closed:
                found = self._made[client] = kind(client)
            made: Backend = found
            return made

    def remake_lock(self) -> None:
        self._lock = threading.Lock()


_shared = _Shared()
process.after_fork(_shared.remake_lock)


def coordinator_of(given: Any, *, asynchronous: bool) -> Backend:
    """Return the coordinator itself, or the one that all locks of a client share.

    Raises:
        TypeError: it is neither, or for asyncio where this is not, or the reverse.
    """
    lock = "AsyncFencedLock" if asynchronous else "FencedLock"
    if isinstance(given, Backend):
        if inspect.iscoroutinefunction(given.perform) is not asynchronous:
            wanted = "an async" if asynchronous else "a sync"
            raise TypeError(f"{lock} takes {wanted} coordinator, not {type(given).__name__}")
        return given
    for kind in type(given).__mro__:
        home = _COORDINATORS.get(kind.__module__.partition(".")[0])
        if home is not None:
            module, name = home
            return _shared.get(
                given, getattr(importlib.import_module(module), f"Async{name}" if asynchronous else name)
            )
    kind_name = type(given).__name__
    raise TypeError(
        f"{lock} takes a client, such as a redis.Redis, or a coordinator, not {kind_name}{_HINTS.get(kind_name, '')}"
    )
