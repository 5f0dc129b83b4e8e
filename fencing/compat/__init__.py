"""The interfaces of other lock libraries, with a fence. Names are loaded at their first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencing.compat.redis_py import RedisPyLock as RedisPyLock
    from fencing.compat.redis_py_async import AsyncRedisPyLock as AsyncRedisPyLock

_MODULE_OF = {"AsyncRedisPyLock": "redis_py_async", "RedisPyLock": "redis_py"}

__all__ = [*sorted(_MODULE_OF)]  # noqa: PLE0604 - pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
