"""How a transaction ended whose commit got no answer: what ``landed`` says, and why it is never wrong. No I/O.

Each guarded write puts a random id of its own in front of the mark's ``recent_writes``, in its own transaction, under
the mark's row lock. So what is committed there is the end of the history of the mark's writes, without a gap, and an
:class:`~fencing.OutcomeUnknown` carries what it would be if the write had been the last. At any later time:

- **Locked means over.** The unknown transaction has held the lock of the mark's row since its check, whose reply came
  before anything else was sent. Who gets that lock later knows that it has ended, and cannot land any more.
- **Its id is there: True.** Nobody else has used that id.
- **An older write is there, but not its id: False.** Had it landed, it would stand between the two.
- **Neither: None.** Too many writes came after it, or this is not the database that it was sent to.

The oldest entry of all is the table's id, for the first write of a mark. It counts only above the floor: below, the
mark may have been pruned with the write in it, and begun anew.

Nothing else is used. Not ``seq``: after a rollback the next write gets the same one. Not ``pg_xact_status``: a server
that crashes gives the transaction ids it had not yet flushed to others, and so does a replica that takes over without
them; "committed" is then said of another transaction.
"""

from __future__ import annotations

import os
from binascii import b2a_base64
from typing import NamedTuple

from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence

TABLE = "fencing_marks"

FLOOR = "fencing:floor"
"""The one row that is no mark (no fence can have the name): the highest number among the marks that were pruned."""

_REMEMBERED = 16
"""How many writes a mark remembers: enough for whoever asks soon, and 208 bytes at most."""

_ID_BYTES = 9
REMEMBERED_CHARACTERS = _REMEMBERED * (_ID_BYTES * 4 // 3 + 1)


class Admitted(NamedTuple):
    """A fence that the storage has admitted, and what it answered."""

    fence: Fence
    seq: int
    recent_writes: str
    transaction: str | None

    def unknown(self) -> OutcomeUnknown:
        """The error to raise if the answer to this write's commit is lost."""
        return OutcomeUnknown(
            fence=self.fence, seq=self.seq, transaction=self.transaction, recent_writes=self.recent_writes
        )


class Settled(NamedTuple):
    """What is known of a resource's mark while it is locked, and so while no transaction that wrote it is open.

    Args:
        recent_writes: of the mark; None: there is no mark.
        table: the id of this very table, from its floor row: the oldest entry of each mark that remembers all of its
            writes. "" where it has none.
        floor: the highest number among marks that were pruned.
    """

    recent_writes: str | None
    table: str
    floor: int


def new_id() -> str:
    """A random id for a write, or for a table: letters, digits, + and /. (``secrets`` takes thrice as long.)"""
    return b2a_base64(os.urandom(_ID_BYTES), newline=False).decode()


def verdict(unknown: OutcomeUnknown, settled: Settled) -> bool | None:
    """Whether the write has landed, from what is stored now that its transaction is over; None: it cannot be known."""
    if not unknown.recent_writes:
        return None
    mine, *older = unknown.recent_writes.split()
    now = [settled.table] if settled.recent_writes is None else settled.recent_writes.split()
    if mine in now:
        return True
    shared = set(older) & set(now)
    if shared == {settled.table}:
        return False if unknown.fence.number > settled.floor else None
    return False if shared else None
