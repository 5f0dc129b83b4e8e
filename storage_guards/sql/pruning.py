"""Deleting marks under a floor, as SQL. No I/O, and no driver is known here.

A mark that is gone admits whoever comes next, unless something remembers how new its fences were. That is the floor:
one row with the highest number among deleted marks, which each claim on an absent mark locks FOR SHARE and must exceed.
So one transaction locks the floor, raises it, and only then deletes, nothing above it:

- A claim on an absent mark that came first has the floor locked, and this waits for it.
- One that comes later waits in turn, and sees the new floor.
- A mark that an open transaction has locked is skipped: it is in use. And whoever holds a mark may be waiting for the
  floor, so waiting for marks here would be a deadlock.

The floor is never above the marks that were there: however high the number that is asked for, no later fence is shut
out that would not have been anyway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from fencing.kernel.fence import MAX_NUMBER, check_number
from storage_guards.sql.outcome import FLOOR, TABLE

BATCH = 1000
"""Marks in one transaction, so that claims on absent marks do not wait long for the floor."""

_MOST_SECONDS = 10**9
"""Thirty years: every database can subtract that from its clock."""

NO_FLOOR = "the floor row of fencing_marks is missing: call guard.create_tables() once, which makes it, and prune then"


@dataclass(frozen=True)
class Pruning:
    """Which marks may go.

    Args:
        highest: their highest number.
        seconds: since their last claim, at the least.
    """

    highest: int
    seconds: float

    def next_batch(self, floor: int, deleted: int) -> Pruning | None:
        """What is left for the next transaction; None: nothing is.

        Args:
            floor: as the last one raised it; under it no mark is added any more, so these transactions end.
            deleted: by the last one.
        """
        return None if deleted < BATCH else replace(self, highest=min(self.highest, floor))

    def condition(self, age_condition: str) -> str:
        """The condition on a row, as SQL.

        Args:
            age_condition: the same for ``claimed_at`` alone: each database compares its own clock with what it has written.
        """
        numbers = f"resource <> '{FLOOR}' AND number <= {self.highest}"
        return f"{numbers} AND {age_condition}" if self.seconds else numbers


def check_pruning(below: object, older_than: object) -> Pruning:
    """What the arguments of ``prune`` say; TypeError or ValueError where they say nothing."""
    if below is None and older_than is None:
        raise TypeError("prune needs below=number or older_than=seconds, or both")
    highest = MAX_NUMBER if below is None else check_number(below, "below") - 1
    if older_than is None:
        return Pruning(highest, 0.0)
    if isinstance(older_than, bool) or not isinstance(older_than, (int, float)):
        raise TypeError(f"older_than is a number of seconds, not {type(older_than).__name__}")
    if not 0 < older_than <= _MOST_SECONDS:
        raise ValueError(f"older_than is a number of seconds above 0, and not above {_MOST_SECONDS}, not {older_than}")
    return Pruning(highest, math.ceil(older_than * 1000) / 1000)


class PruningStatements(NamedTuple):
    """One pruning transaction. Only numbers are in it, as they are.

    Args:
        raise_floor: takes the floor's lock and raises it to the highest number that may go: one row, the new floor.
        delete: deletes what may go, BATCH at the most.
    """

    raise_floor: str
    delete: str


def on_postgresql(pruning: Pruning) -> PruningStatements:
    """For the marks of a PostgreSQL."""
    old = pruning.condition(f"claimed_at < clock_timestamp() - interval '{pruning.seconds:.3f} seconds'")
    return _statements(old, "greatest", " FOR UPDATE SKIP LOCKED")


def on_sqlite(pruning: Pruning) -> PruningStatements:
    """For the marks of a SQLite."""
    old = pruning.condition(f"claimed_at < strftime('%Y-%m-%d %H:%M:%S', 'now', '-{pruning.seconds:.3f} seconds')")
    return _statements(old, "max", "")


def _statements(old: str, largest: str, skip: str) -> PruningStatements:
    return PruningStatements(
        f"UPDATE {TABLE} SET number = {largest}(number, "
        f"COALESCE((SELECT max(number) FROM {TABLE} WHERE {old}), 0)) "
        f"WHERE resource = '{FLOOR}' RETURNING number",
        f"DELETE FROM {TABLE} WHERE resource IN (SELECT resource FROM {TABLE} WHERE {old} "
        f"AND number <= (SELECT number FROM {TABLE} WHERE resource = '{FLOOR}') LIMIT {BATCH}{skip})",
    )
