"""Nested transactions of one fence are refused, where one thread or task asks for them.

A guarded block that asks its guard for a second transaction of the same fence would wait for itself. The second waits
for the first, and the first for the second, until one of them runs out of time.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

from fencing.kernel.fence import Fence
from fencing.kernel.process import current_owner


class Holder(Protocol):
    """A transaction that holds marks."""

    def is_over(self) -> bool:
        """Return whether it no longer holds the marks. Hooks may run before its context is left."""


class _OpenTransaction:
    """A transaction that holds marks, or is about to."""

    __slots__ = ("fences", "holder", "marks", "owner")

    def __init__(self, owner: object, marks: object, fences: Sequence[Fence], holder: Holder) -> None:
        self.owner: object = owner
        self.marks = id(marks)
        self.fences = fences
        self.holder = weakref.ref(holder)  # a transaction that is interrupted as it begins ends with its object

    def is_over(self) -> bool:
        holder = self.holder()
        return holder is None or holder.is_over()


# The open transactions of this context. Child contexts inherit them, so each has its owner.
_open: ContextVar[tuple[_OpenTransaction, ...]] = ContextVar("fencing_open_transactions", default=())


def refuse_nested(marks: object, fences: Sequence[Fence], holder: Holder) -> None:
    """Note a transaction until its end, and refuse it inside a guarded block of the same thread or task and the same
    fence.

    It does not notice the block of another guard object, or of another fence of the same name.

    Args:
        marks: the object that stands for the guard's marks, one for each guard.
        fences: the fences whose marks the transaction will hold.
        holder: the transaction.

    Raises:
        RuntimeError: it would wait for a block of the same thread or task. Use that block's connection, or end it
            first.
    """
    owner = current_owner()
    still_open = tuple(each for each in _open.get() if not each.is_over())
    for each in still_open:
        same = [fence for fence in fences if fence in each.fences]
        if same and each.owner == owner and each.marks == id(marks):
            raise RuntimeError(
                f"a guarded block around this call holds the mark of {same[0].resource!r}, so this call would wait for "
                f"itself; use the connection or session of that block, or end the block first"
            )
    _open.set((*still_open, _OpenTransaction(owner, marks, fences, holder)))
