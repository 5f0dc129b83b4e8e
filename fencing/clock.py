"""The clock that leases are measured by: seconds since some fixed moment, also counting while the machine is
suspended."""

from __future__ import annotations

import time

__all__ = ["now"]

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

if _BOOTTIME is None:
    now = time.monotonic
else:

    def now() -> float:
        """CLOCK_BOOTTIME where there is one (Linux); CLOCK_MONOTONIC would stand still in suspend: clock_gettime(2)."""
        return time.clock_gettime(_BOOTTIME)  # type: ignore[arg-type]
