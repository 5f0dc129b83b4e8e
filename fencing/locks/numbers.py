"""Numbers from a log, such as that of etcd or ZooKeeper: the position of a write, on top of a base.

A log counts its writes, and never goes back. So ``base + position`` grows from grant to grant, without a counter of our
own. The base is one stored number for an installation. A grant is taken so:

1. Read the stored base and the position of the log.
2. Have :func:`log_base` decide which base the grant has.
3. Take the lock in one transaction. It compares the stored base with the one that was read, stores the new one where it
   differs, and keeps the base **with the grant**. If the comparison fails, begin again.
4. The number is that of the base and the position of this very write: :meth:`LogBase.number_at`.

A repeated request reads base and position of the grant: with the stored base it would get another number. The position
is never the one at which a waiter queued: behind a remint, an earlier waiter would come out lower.
"""

from __future__ import annotations

from typing import NamedTuple

from fencing.kernel.errors import MarkImplausible
from fencing.kernel.fence import MAX_NUMBER
from fencing.locks.backend import PLAUSIBLE_STEP


class LogBase(NamedTuple):
    """The base of a grant that is about to be taken.

    Attributes:
        stored: the base that was read, with which the transaction compares the stored one; None: there is none.
        base: what the transaction keeps with the grant, and stores where it differs.
    """

    stored: int | None
    base: int

    @property
    def is_new(self) -> bool:
        """Whether the transaction must store it."""
        return self.base != self.stored

    def number_at(self, position: int) -> int:
        """Return the number of the grant that was written at this position."""
        return self.base + position


def log_base(
    resource: str, *, stored: int | None, position: int, floor: int, clock_us: int, clock_floor: bool = True
) -> LogBase:
    """Return the base with which the number of the next write exceeds the floor.

    A floor lifts it to ``floor - position``. Lifted to the floor itself, each remint would jump by the position.

    Args:
        resource: the resource, for the error.
        stored: the base that was read; None: there is none yet.
        position: of the log, read with it or before it. The next write has a higher one.
        floor: a number to exceed, from a storage's mark; 0: none.
        clock_us: a clock in microseconds since 1970; the client's, if the service tells no time.
        clock_floor: whether the first number is the clock, so that numbers go on above those of other coordinators; or
            else the first base is 0.

    Raises:
        MarkImplausible: the base would be more than 2^50 above the clock, or the numbers are used up. It is compared
            with the clock, and not with the base: marks could raise that step by step, and all names share it.
    """
    first = stored if stored is not None else max(clock_us - position, 0) if clock_floor else 0
    base = max(first, floor - position)
    ceiling = min(clock_us + PLAUSIBLE_STEP + position, MAX_NUMBER - 1)
    if base + position > ceiling and (base > first or base + position >= MAX_NUMBER):
        raise MarkImplausible(resource=resource, number=base + position, ceiling=ceiling)
    return LogBase(stored, base)
