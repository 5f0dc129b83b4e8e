"""The moments at which renewals are due, chosen so that leases share them. No I/O."""

from __future__ import annotations

import os

from fencing.kernel import process

PER_SECOND = 2**20
"""How fine the grid is."""

_origin: int
"""Where this process' grid begins. Processes of one host, which have one clock, do not renew at the same moments."""


def shared_moment(after: float, until: float) -> float:
    """Return the roundest moment of the grid after one moment, and up to another one.

    That is the one with the highest power of two as a divisor. Windows that overlap mostly have the same one: so leases
    that were granted at different moments, even with different ttls, are soon renewed together. Of windows that are
    equally wide, no two moments lie closer together than half of that width.

    Args:
        after: a moment, in seconds.
        until: a later one.
    """
    first, last = int(after * PER_SECOND) + _origin, int(until * PER_SECOND) + _origin
    lower_bits = max((first ^ last).bit_length() - 1, 0)  # those below the highest one in which the two differ
    return ((last >> lower_bits << lower_bits) - _origin) / PER_SECOND


def _draw_origin() -> None:
    global _origin
    # 42 bits: the moments of the longest ttl lie no farther apart. A float is exact beyond.
    _origin = int.from_bytes(os.urandom(6)) >> 6


_draw_origin()
process.after_fork(_draw_origin)
