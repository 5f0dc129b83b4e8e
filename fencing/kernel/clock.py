"""The clock that leases are measured by: seconds since some fixed moment, also counting while the machine is
suspended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

__all__ = ["now"]

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

# CLOCK_BOOTTIME where there is one (Linux); CLOCK_MONOTONIC would stand still in suspend: clock_gettime(2).
now: Callable[[], float] = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
