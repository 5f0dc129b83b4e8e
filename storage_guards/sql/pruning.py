"""The deletion of marks under a floor, as SQL. No I/O, and no driver is known here.

A deleted mark admits any fence, unless something remembers how new its fences were. That is the floor: one row with the
highest number among deleted marks. Each claim on an absent mark locks the floor FOR SHARE, and must be above it. So one
transaction locks the floor, raises it, and only then deletes marks, none above the floor:

- It waits for a claim on an absent mark that came first, because that claim has the floor locked.
- A claim that comes later waits for it, and sees the new floor.
- It skips a mark that an open transaction has locked: that mark is in use. To wait for it would be a deadlock, because
  its holder may be waiting for the floor.

The floor is never above the marks that were there. So a high ``below`` shuts out no later fence that would otherwise be
admitted.

A mark whose number no coordinator can have minted is not pruned. Coordinators refuse to mint above it. As the floor it
would shut out every name without a mark, and not only its own.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, replace
from typing import NamedTuple

from fencing.kernel import admission
from fencing.kernel.fence import check_number
from storage_guards.sql.outcome import FLOOR

logger = logging.getLogger("fencing")

BATCH = 1000
"""Marks in one transaction, so that claims on absent marks do not wait long for the floor."""

_MOST_SECONDS = 10**9
"""Thirty years: every database can subtract this from its clock."""

NO_FLOOR = (
    "the floor row of fencing_marks is missing. If the table was emptied or restored without it, restore it with its "
    "data. If the table is new, or cannot be restored, call guard.create_tables() once: it makes the floor, which "
    "shuts out all fences that are older than that moment"
)


@dataclass(frozen=True)
class Pruning:
    """The marks that may be deleted.

    Args:
        highest: their highest number.
        seconds: the least time since their last claim.
    """

    highest: int
    seconds: float

    def next_batch(self, floor: int, deleted: int) -> Pruning | None:
        """Return what is left for the next transaction, or None.

        Args:
            floor: the floor as the last transaction raised it. No mark is added below it any more, so the transactions
                end.
            deleted: how many marks the last transaction deleted.
        """
        return None if deleted < BATCH else replace(self, highest=min(self.highest, floor))

    def condition(self, age_condition: str) -> str:
        """Return the condition on a row, as SQL.

        Args:
            age_condition: the condition on ``claimed_at``. Each database compares its own clock with the times that it
                has written.
        """
        numbers = f"resource <> '{FLOOR}' AND number <= {self.highest} AND readers <= {self.highest}"
        return f"{numbers} AND {age_condition}" if self.seconds else numbers


def check_pruning(below: object, older_than: object) -> Pruning:
    """Return the arguments of ``prune`` as one value. Raise TypeError or ValueError where they are missing or out of
    range."""
    if below is None and older_than is None:
        raise TypeError("prune needs below=number or older_than=seconds, or both")
    highest = highest_plausible()
    if below is not None:
        highest = min(check_number(below, "below") - 1, highest)
    if older_than is None:
        return Pruning(highest, 0.0)
    if isinstance(older_than, bool) or not isinstance(older_than, (int, float)):
        raise TypeError(f"older_than is a number of seconds, not {type(older_than).__name__}")
    if not 0 < older_than <= _MOST_SECONDS:
        raise ValueError(f"older_than is a number of seconds above 0, and not above {_MOST_SECONDS}, not {older_than}")
    return Pruning(highest, math.ceil(older_than * 1000) / 1000)


def count_implausible(table: str) -> str:
    """Return the query for the number of marks that stay because no coordinator can have minted their numbers."""
    return f"SELECT count(*) FROM {table} WHERE {is_implausible()} AND resource <> '{FLOOR}'"


def warn_of_implausible(count: int) -> None:
    """Log how many marks :func:`count_implausible` found."""
    if count:
        logger.warning(
            "%d mark(s) have numbers that no coordinator can have minted, and were not pruned; guard.verify() names "
            "them",
            count,
        )


def now_as_number() -> int:
    """Return the clock of this program in microseconds, which the numbers of fences follow."""
    return time.time_ns() // 1000


def highest_plausible() -> int:
    """Return the highest number that a coordinator can have minted by now, within the errors of clocks."""
    return admission.highest_plausible(now_as_number())


def is_implausible() -> str:
    """Return the condition on a row whose number, or whose reader's, no coordinator can have minted by now."""
    highest = highest_plausible()
    return f"(number > {highest} OR readers > {highest})"


class PruningStatements(NamedTuple):
    """The statements of one pruning transaction. Only numbers are in it, as they are.

    Args:
        raise_floor: locks the floor and raises it to the highest number that may go. It answers with one row: the new
            floor.
        delete: deletes the marks that may go, BATCH at most.
    """

    raise_floor: str
    delete: str


def on_postgresql(table: str, pruning: Pruning) -> PruningStatements:
    """Return the statements for this mark table of PostgreSQL."""
    old = pruning.condition(f"claimed_at < clock_timestamp() - interval '{pruning.seconds:.3f} seconds'")
    # Not IN: a plan may join with its query, and execute that once for each mark. Then BATCH bounds nothing.
    return _statements(table, old, "greatest", "= ANY (ARRAY({} FOR UPDATE SKIP LOCKED))")


def on_sqlite(table: str, pruning: Pruning) -> PruningStatements:
    """Return the statements for this mark table of SQLite."""
    old = pruning.condition(f"claimed_at < strftime('%Y-%m-%d %H:%M:%S', 'now', '-{pruning.seconds:.3f} seconds')")
    return _statements(table, old, "max", "IN ({})")


def lock_names_of_mysql(table: str, may_go: str) -> str:
    """Return the query of MariaDB and MySQL that locks marks, BATCH at most, and answers with their names in
    hexadecimal digits."""
    return f"SELECT HEX(resource) FROM {table} WHERE {may_go} LIMIT {BATCH} FOR UPDATE SKIP LOCKED"


def _statements(table: str, old: str, largest: str, is_one_of: str) -> PruningStatements:
    batch = (
        f"SELECT resource FROM {table} WHERE {old} "
        f"AND {largest}(number, readers) <= (SELECT number FROM {table} WHERE resource = '{FLOOR}') "
        f"LIMIT {BATCH}"
    )
    return PruningStatements(
        f"UPDATE {table} SET number = {largest}(number, "
        f"COALESCE((SELECT max({largest}(number, readers)) FROM {table} WHERE {old}), 0)) "
        f"WHERE resource = '{FLOOR}' RETURNING number",
        f"DELETE FROM {table} WHERE resource {is_one_of.format(batch)}",
    )
