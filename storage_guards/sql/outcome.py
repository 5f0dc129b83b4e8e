"""The outcome of a transaction whose commit got no answer: the verdict of ``landed``, and why it is never wrong. No
I/O.

Each guarded write puts a new random id in front of the mark's ``recent_writes``, in its own transaction, under the
mark's row lock. So the committed ids are the latest part of the mark's history, without a gap. An
:class:`~fencing.OutcomeUnknown` carries the ids that would be there if its write had been the last. At any later time:

- **Locked means over.** The unknown transaction has held the lock of the mark's row since its check. The check's reply
  came before any later statement was sent. So a later transaction that gets the lock knows that the unknown one
  has ended, and cannot land any more.
- **Its id is there: True.** No other write has used that id.
- **An older write is there, but not its id: False.** If it had landed, its id would stand in front of the older one.
- **Neither: None.** Too many writes came after it, or this is not the database that it was sent to.

A block with ``once=`` also has a row for its key, with the id of its write. That row stays. So it tells the verdict
for ever: its id is the write's (True), or another write has done it, or nobody has (False). Only where the key is at or
below the floor of the keys, a row that is not there says nothing.

The oldest entry of all is the table's id, for the first write of a mark. It counts only above the floor: below, the
mark may have been pruned with the write in it, and begun anew.

Two other values are not used. ``seq`` is not, because after a rollback the next write gets the same one. And
``pg_xact_status`` is not: a server that crashes gives transaction ids that it had not yet flushed to other
transactions, and so does a replica that takes over without them. "Committed" may then describe another transaction.
"""

from __future__ import annotations

from typing import NamedTuple

from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence
from storage_guards.continuity import ID_CHARACTERS

TABLE = "fencing_marks"

FLOOR = "fencing:floor"
"""The one row that is no mark: it has the highest number among pruned marks. No fence can have its name."""

_REMEMBERED = 16
"""How many writes a mark remembers: enough for a caller that asks soon, and 208 bytes at most."""

REMEMBERED_CHARACTERS = _REMEMBERED * (ID_CHARACTERS + 1)


class Admitted(NamedTuple):
    """A fence that the storage has admitted, with the storage's answer."""

    fence: Fence
    seq: int
    recent_writes: str
    transaction: str | None

    @property
    def write_id(self) -> str:
        """The id of this write."""
        return self.recent_writes.partition(" ")[0]

    def unknown(self, once: str | None = None) -> OutcomeUnknown:
        """Return the error to raise if the answer to this write's commit is lost.

        Args:
            once: the key of the block, if it has one.
        """
        return OutcomeUnknown(
            fence=self.fence, seq=self.seq, transaction=self.transaction, recent_writes=self.recent_writes, once=once
        )


class Settled(NamedTuple):
    """The state of a resource's mark while it is locked, and so while no transaction that wrote it is open.

    Args:
        recent_writes: of the mark. None: there is no mark.
        table: the table's id, from its floor row: the oldest entry of each mark that remembers all of its writes. ""
            where there is none.
        floor: the highest number among marks that were pruned.
        done_by: the id of the write that has done what the unknown one does once. "": it is not done. None: its row may
            have been pruned, or the unknown write has no key.
    """

    recent_writes: str | None
    table: str
    floor: int
    done_by: str | None = None


def verdict(unknown: OutcomeUnknown, settled: Settled) -> bool | None:
    """Return whether the write has landed, now that its transaction is over. None: it cannot be known."""
    if not unknown.recent_writes:
        return None
    own, *older = unknown.recent_writes.split()
    now = [settled.table] if settled.recent_writes is None else settled.recent_writes.split()
    if own in now:
        return True
    if settled.done_by is not None:
        return settled.done_by == own
    shared = set(older) & set(now)
    if shared == {settled.table}:
        return False if unknown.fence.number > settled.floor else None
    return False if shared else None
