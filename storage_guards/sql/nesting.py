"""Nested transactions of one fence are refused, where one thread or task asks for them.

A guarded block that asks its guard for a second transaction of the same fence would wait for itself. The second waits
for the first, and the first for the second, until one of them runs out of time.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from fencing.kernel.fence import Fence
from fencing.kernel.process import current_owner


class Holder(Protocol):
    """A transaction that holds marks."""

    is_left: bool
    """Its context was left, so it certainly is over."""

    def is_over(self) -> bool:
        """Return whether it no longer holds the marks. Hooks may run before its context is left."""


class _OpenTransaction(NamedTuple):
    """A transaction that holds marks, or is about to."""

    owner: object
    marks: int
    fences: Sequence[Fence]
    holder: weakref.ref[Holder]  # a transaction that is interrupted as it begins ends with its object


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
    still_open: list[_OpenTransaction] = []
    for each in _open.get():
        held_by = each.holder()
        if held_by is None or held_by.is_left or held_by.is_over():
            continue
        still_open.append(each)
        same = [fence for fence in fences if fence in each.fences]
        if same and each.owner == owner and each.marks == id(marks):
            raise RuntimeError(
                f"a guarded block around this call holds the mark of {same[0].resource!r}, so this call would wait for "
                f"itself; use the connection or session of that block, or end the block first"
            )
    _open.set((*still_open, _OpenTransaction(owner, id(marks), fences, weakref.ref(holder))))
