"""The coordinators of clients, so that a lock can be made from a client alone.

A backend is imported when a client of its service is first used.
"""

from __future__ import annotations

import importlib
import inspect
import threading
import weakref
from typing import Any, Protocol

from fencing.kernel import process
from fencing.locks.backend import Backend

_COORDINATORS = {
    "redis": ("fencing.redis.coordinator", "RedisCoordinator"),
}
"""From the package of a client's class to the module of its coordinators, and the name of the sync one."""

_HINTS = {"str": "; write redis.Redis.from_url(...)", "Sentinel": "; pass what sentinel.master_for(...) returns"}


class Client(Protocol):
    """The part of a client that tells it from a URL, for type checkers. Each of redis-py's clients has it."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class _Shared:
    """The coordinators that were made from clients. Each lives as long as its client."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: weakref.WeakKeyDictionary[Any, Backend] = weakref.WeakKeyDictionary()

    def get(self, client: Any, kind: Any) -> Backend:
        with self._lock:
            found: Any = self._made.get(client)
            if not isinstance(found, kind) or found.closed:
                found = self._made[client] = kind(client)
            made: Backend = found
            return made

    def remake_lock(self) -> None:
        self._lock = threading.RLock()


_shared = _Shared()
process.after_fork(_shared.remake_lock)


def coordinator_of(given: Any, *, asynchronous: bool) -> Backend:
    """Return the given coordinator, or the one that all locks of the given client share.

    Raises:
        TypeError: ``given`` is neither, or is async where a sync one is needed, or the reverse.
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
