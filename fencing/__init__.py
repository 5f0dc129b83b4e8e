"""Locks whose grants carry fences, which storage guards enforce.

Names are loaded at their first use (PEP 562). So a storage service that imports only a guard does not load redis.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

__version__: str

if TYPE_CHECKING:
    from fencing.coordinator import Coordinator as Coordinator
    from fencing.coordinator_async import AsyncCoordinator as AsyncCoordinator
    from fencing.election.election import Election as Election
    from fencing.election.election_async import AsyncElection as AsyncElection
    from fencing.election.terms import Leader as Leader
    from fencing.etcd.coordinator import EtcdCoordinator as EtcdCoordinator
    from fencing.etcd.coordinator_async import AsyncEtcdCoordinator as AsyncEtcdCoordinator
    from fencing.kernel.errors import AlreadyDone as AlreadyDone
    from fencing.kernel.errors import CoordinatorUnavailable as CoordinatorUnavailable
    from fencing.kernel.errors import FencingError as FencingError
    from fencing.kernel.errors import GuardNotEnforceable as GuardNotEnforceable
    from fencing.kernel.errors import GuardUnavailable as GuardUnavailable
    from fencing.kernel.errors import LeaseLost as LeaseLost
    from fencing.kernel.errors import MarkImplausible as MarkImplausible
    from fencing.kernel.errors import NotAcquired as NotAcquired
    from fencing.kernel.errors import OutcomeUnknown as OutcomeUnknown
    from fencing.kernel.errors import StaleFence as StaleFence
    from fencing.kernel.errors import StaleRead as StaleRead
    from fencing.kernel.errors import TooOld as TooOld
    from fencing.kernel.errors import UnclaimedFence as UnclaimedFence
    from fencing.kernel.fence import Fence as Fence
    from fencing.kernel.fence import Mark as Mark
    from fencing.locks.backend import ForcedRelease as ForcedRelease
    from fencing.locks.backend import Holder as Holder
    from fencing.locks.hold_all import hold_all as hold_all
    from fencing.locks.lease import Lease as Lease
    from fencing.locks.lease_async import AsyncLease as AsyncLease
    from fencing.locks.lock import FencedLock as FencedLock
    from fencing.locks.lock_async import AsyncFencedLock as AsyncFencedLock
    from fencing.locks.settings import AsyncCoordinatorOptions as AsyncCoordinatorOptions
    from fencing.locks.settings import AsyncLockOptions as AsyncLockOptions
    from fencing.locks.settings import CoordinatorOptions as CoordinatorOptions
    from fencing.locks.settings import LockOptions as LockOptions
    from fencing.locks.slots import Slots as Slots
    from fencing.locks.slots_async import AsyncSlots as AsyncSlots
    from fencing.memory.coordinator import MemoryCoordinator as MemoryCoordinator
    from fencing.memory.coordinator_async import AsyncMemoryCoordinator as AsyncMemoryCoordinator
    from fencing.memory.table import LockTable as LockTable
    from fencing.redis.coordinator import RedisCoordinator as RedisCoordinator
    from fencing.redis.coordinator_async import AsyncRedisCoordinator as AsyncRedisCoordinator
    from fencing.redlock.coordinator import RedlockCoordinator as RedlockCoordinator
    from fencing.redlock.coordinator_async import AsyncRedlockCoordinator as AsyncRedlockCoordinator
    from fencing.sigterm import on_sigterm as on_sigterm
    from fencing.sql.coordinator import SQLCoordinator as SQLCoordinator
    from fencing.sql.coordinator_async import AsyncSQLCoordinator as AsyncSQLCoordinator
    from fencing.urls import connect as connect
    from fencing.urls import connect_async as connect_async
    from fencing.zookeeper.coordinator import ZooKeeperCoordinator as ZooKeeperCoordinator
    from fencing.zookeeper.coordinator_async import AsyncZooKeeperCoordinator as AsyncZooKeeperCoordinator

_HOME = {
    "kernel.errors": (
        "AlreadyDone",
        "CoordinatorUnavailable",
        "FencingError",
        "GuardNotEnforceable",
        "GuardUnavailable",
        "LeaseLost",
        "MarkImplausible",
        "NotAcquired",
        "OutcomeUnknown",
        "StaleFence",
        "StaleRead",
        "TooOld",
        "UnclaimedFence",
    ),
    "kernel.fence": ("Fence", "Mark"),
    "coordinator": ("Coordinator",),
    "coordinator_async": ("AsyncCoordinator",),
    "election.election": ("Election",),
    "election.election_async": ("AsyncElection",),
    "election.terms": ("Leader",),
    "etcd.coordinator": ("EtcdCoordinator",),
    "etcd.coordinator_async": ("AsyncEtcdCoordinator",),
    "locks.backend": ("ForcedRelease", "Holder"),
    "locks.lease": ("Lease",),
    "locks.lease_async": ("AsyncLease",),
    "locks.lock": ("FencedLock",),
    "locks.lock_async": ("AsyncFencedLock",),
    "locks.hold_all": ("hold_all",),
    "locks.settings": ("AsyncCoordinatorOptions", "AsyncLockOptions", "CoordinatorOptions", "LockOptions"),
    "locks.slots": ("Slots",),
    "locks.slots_async": ("AsyncSlots",),
    "memory.coordinator": ("MemoryCoordinator",),
    "memory.coordinator_async": ("AsyncMemoryCoordinator",),
    "memory.table": ("LockTable",),
    "redis.coordinator": ("RedisCoordinator",),
    "redis.coordinator_async": ("AsyncRedisCoordinator",),
    "redlock.coordinator": ("RedlockCoordinator",),
    "redlock.coordinator_async": ("AsyncRedlockCoordinator",),
    "sigterm": ("on_sigterm",),
    "sql.coordinator": ("SQLCoordinator",),
    "sql.coordinator_async": ("AsyncSQLCoordinator",),
    "urls": ("connect", "connect_async"),
    "zookeeper.coordinator": ("ZooKeeperCoordinator",),
    "zookeeper.coordinator_async": ("AsyncZooKeeperCoordinator",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

_OF_GUARDS = ("FencingMiddleware", "WSGIFencingMiddleware", "fenced")

__all__ = [*sorted(_MODULE_OF)]  # noqa: PLE0604 - pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("fencing")
    if name.endswith("Guard") or name in _OF_GUARDS:  # an ImportError: `from … import` replaces an AttributeError
        raise ImportError(f"{name} is in another package: from storage_guards import {name}", name=__name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        from fencing.kernel.extras import raise_missing

        raise_missing(name, error)
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
