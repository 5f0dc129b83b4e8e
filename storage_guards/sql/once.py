"""What is done once per key: the rule as plans. No I/O; no driver is known here.

A block with ``once=`` inserts a row for its key, in its own transaction, under its one fence. So the row is there if
and only if the block's writes are. Four rules make that exact:

- **The mark is locked first.** Whoever has done the same has ended then. A look before the lock misses one that is
  about to commit.
- **A conflict at the insert is AlreadyDone.** It is never ignored, and raises no error of the database, which would end
  a transaction of the caller's own.
- **The row is inserted first, and the floor of the keys read second.** Pruning raises the floor and deletes rows in one
  transaction. So a key whose row is gone meets the floor.
- **Pruning locks the mark, too.** A block at REPEATABLE READ may have a snapshot in which the floor is the old one.
  Pruning has changed the mark since, so PostgreSQL refuses that block's check.
"""

from __future__ import annotations

from typing import Literal

from fencing.kernel.errors import GuardUnavailable, TooOld
from fencing.kernel.fence import Fence, HasFence
from storage_guards.once import already_done
from storage_guards.sql.outcome import FLOOR, Admitted
from storage_guards.sql.plans import Ask, Plan, Statement
from storage_guards.sql.pruning import BATCH


def plan_once(admitted: Admitted, key: str, holder: Fence | HasFence) -> Plan[None]:
    """Note that the key is done, in the transaction that has just admitted the fence, and so has its mark locked.

    Args:
        admitted: the only fence of the block.
        key: of what is done once.
        holder: the lease or fence that the caller passed.

    Raises:
        AlreadyDone: it was done before.
        TooOld: keys up to a higher one were pruned.
    """
    fence = admitted.fence

    def on(name: str, after: Literal["", "refused"] = "") -> Statement:
        return Statement(name, fence.resource, fence.number, fence.token, admitted.write_id, after=after, key=key)

    noted, done, floor = yield Ask([on("note_done"), on("read_done", after="refused"), on("key_floor")])
    if noted is None:
        if done is not None:
            raise already_done(holder, key, int(done[0]), int(done[2]))
        if floor is None:  # somebody deletes rows by hand
            raise GuardUnavailable(f"what is noted of {key!r} has just gone; retry", resource=fence.resource)
    if floor is not None:
        raise TooOld(resource=fence.resource, key=key, floor=floor[0])


def plan_prune_done(resource: str, below: str) -> Plan[int]:
    """Delete what is noted of the keys below this one, in one transaction after the other. Return how many went.

    Where there is no mark, its floor is locked, for a first claim locks that; then the mark again, which may have come
    meanwhile.
    """

    def on(name: str, key: str = "") -> Statement:
        return Statement(name, resource, key=key)

    deleted = 0
    while True:
        [mark] = yield Ask([on("lock_mark")], begins=True, read_committed=True)
        if mark is None:
            yield Ask([Statement("lock_mark", FLOOR), on("lock_mark")])
        [found] = yield Ask([on("last_done", below)])
        last, count = found[0], int(found[1])
        if not count:
            yield Ask([], ends="ROLLBACK")
            return deleted
        yield Ask([on("raise_key_floor", last), on("delete_done", last)], ends="COMMIT")
        deleted += count
        if count < BATCH:
            return deleted
