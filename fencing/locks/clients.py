"""The coordinators of clients, so that a lock can be made from a client alone.

A backend is imported when a client of its service is first used: see ``fencing/locks/registry.py``.
"""

from __future__ import annotations

import importlib
import weakref
from functools import cache
from types import ModuleType
from typing import Any, Protocol

from fencing.kernel import process
from fencing.kernel.waking import safe_lock
from fencing.locks.coordinator import CoordinatorBase

_HINTS = {
    "str": "; write redis.Redis.from_url(...), create_engine(...) of SQLAlchemy, or EtcdCoordinator([url]) for etcd",
    "Sentinel": "; pass what sentinel.master_for(...) returns",
    "list": "; of several servers, make a RedlockCoordinator or an EtcdCoordinator first, and use its locks",
}

_ATTRIBUTE = "_fencing_coordinator"


class _RedisClient(Protocol):
    """The part of redis-py's clients that tells them from a URL, for type checkers."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class _SQLEngine(Protocol):
    """The part of SQLAlchemy's engines that tells them from a URL, for type checkers."""

    @property
    def dialect(self) -> Any: ...


Client = _RedisClient | _SQLEngine


class _Shared:
    """The coordinators that were made from clients. Each lives as long as its client, or what several clients share.

    So it is kept in that object, because it may reference it: a weak dictionary would then hold both for ever. The
    dictionary is for objects without attributes, which their coordinators do not reference.
    """

    def __init__(self) -> None:
        self._lock = safe_lock()
        self._made: weakref.WeakKeyDictionary[Any, CoordinatorBase] = weakref.WeakKeyDictionary()

    def get(self, client: Any, kind: Any) -> CoordinatorBase:
        process.pid()  # it notices a fork
        with self._lock:
            shared = kind._shared_by_clients(client)
            attributes = getattr(shared, "__dict__", None)
            found: Any = self._made.get(shared) if attributes is None else attributes.get(_ATTRIBUTE)
            if not isinstance(found, kind) or found.closed:
                found = kind(client)
                if attributes is None:
                    self._made[shared] = found
                else:
                    attributes[_ATTRIBUTE] = found
            made: CoordinatorBase = found
            return made

    def remake_lock(self) -> None:
        self._lock = safe_lock()


_shared = _Shared()
process.after_fork(_shared.remake_lock)


@cache
def _registry() -> ModuleType:
    """Return the module of the registrations, which whoever has a coordinator does not need."""
    return importlib.import_module("fencing.locks.registry")


def coordinator_of(given: Any, *, asynchronous: bool, lock: str = "FencedLock") -> CoordinatorBase:
    """Return the given coordinator, or the one that all locks of the given client share.

    Args:
        given: a coordinator or a client.
        asynchronous: whether it must be an async one.
        lock: the name of the class that needs it, the sync one.

    Raises:
        TypeError: ``given`` is neither, or is async where a sync one is needed, or the reverse.
    """
    lock = f"Async{lock}" if asynchronous else lock
    if isinstance(given, CoordinatorBase):
        if given._backend.asynchronous is not asynchronous:
            wanted = "an async" if asynchronous else "a sync"
            raise TypeError(f"{lock} takes {wanted} coordinator, not {type(given).__name__}")
        return given
    registered = _registry().registration_of(given)
    if registered is not None:
        found = registered.load(asynchronous)
        if found is None:
            other = "asyncio" if asynchronous else "threads"
            raise TypeError(
                f"{lock} takes a client for {other}; there is no such coordinator for a {type(given).__qualname__}"
            )
        return _shared.get(given, found)
    kind = given if isinstance(given, type) else type(given)
    hint = _HINTS.get(kind.__name__, "")
    if kind.__module__.partition(".")[0] == "valkey":
        factory = importlib.import_module("fencing.redis.connection_factory")
        hint = factory.hint_of_valkey(given, "redis.asyncio.Redis" if asynchronous else "redis.Redis")
    elif isinstance(given, type):
        raise TypeError(f"{lock} takes a client or a coordinator, not the class {given.__name__}; make one of it")
    if asynchronous:
        hint = hint.replace("redis.Redis", "redis.asyncio.Redis").replace("create_engine", "create_async_engine")
        for name in ("EtcdCoordinator", "RedlockCoordinator"):
            hint = hint.replace(f"a {name}", f"an Async{name}").replace(f" {name}", f" Async{name}")
    clients = _registry().clients_in_words(asynchronous=asynchronous)
    raise TypeError(f"{lock} takes a client, such as {clients}, or a coordinator, not {kind.__name__}{hint}")
