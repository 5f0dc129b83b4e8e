"""Fencing tokens for Redis locks, and storage guards that enforce them.

Names are loaded when they are first used (PEP 562), so a storage service that imports only a guard does not import
redis.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencing.coordinator import AsyncCoordinator as AsyncCoordinator
    from fencing.coordinator import Coordinator as Coordinator
    from fencing.coordinator import ForcedRelease as ForcedRelease
    from fencing.coordinator import Holder as Holder
    from fencing.errors import CoordinatorUnavailable as CoordinatorUnavailable
    from fencing.errors import FencingError as FencingError
    from fencing.errors import GuardNotEnforceable as GuardNotEnforceable
    from fencing.errors import GuardUnavailable as GuardUnavailable
    from fencing.errors import LeaseLost as LeaseLost
    from fencing.errors import MarkImplausible as MarkImplausible
    from fencing.errors import NotAcquired as NotAcquired
    from fencing.errors import OutcomeUnknown as OutcomeUnknown
    from fencing.errors import StaleFence as StaleFence
    from fencing.errors import StaleRead as StaleRead
    from fencing.errors import UnclaimedFence as UnclaimedFence
    from fencing.fence import Fence as Fence
    from fencing.fence import Mark as Mark
    from fencing.lease import AsyncLease as AsyncLease
    from fencing.lease import Lease as Lease
    from fencing.lock import AsyncFencedLock as AsyncFencedLock
    from fencing.lock import FencedLock as FencedLock
    from fencing.redis_coordinator import AsyncRedisCoordinator as AsyncRedisCoordinator
    from fencing.redis_coordinator import RedisCoordinator as RedisCoordinator

_HOME = {
    "coordinator": ("AsyncCoordinator", "Coordinator", "ForcedRelease", "Holder"),
    "errors": (
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
        "UnclaimedFence",
    ),
    "fence": ("Fence", "Mark"),
    "lease": ("AsyncLease", "Lease"),
    "lock": ("AsyncFencedLock", "FencedLock"),
    "redis_coordinator": ("AsyncRedisCoordinator", "RedisCoordinator"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [*sorted(_MODULE_OF)]  # noqa: PLE0604 - pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
