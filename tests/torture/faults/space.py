"""Faults of disks."""

from __future__ import annotations

from tests.torture.faults.base import Strike, fault

LONGEST = 0.5


@fault("fill", "files", "sqlite", "http")
def fill(strike: Strike) -> None:
    """Leave no byte free on the disk, for a moment."""
    strike.service.disk.fill()
    strike.after(min(strike.seconds, LONGEST), strike.service.disk.clear)
