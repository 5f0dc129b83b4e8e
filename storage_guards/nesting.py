"""Nested transactions of one fence are refused, where one thread or task asks for them.

A guarded block that asks its guard for a second transaction of the same fence would wait for itself. The second waits
for the first, and the first for the second, until one of them runs out of time.

Not noticed are the block of another guard object, and the block of another fence of the same name.

A fork copies an open transaction. Were the child to end its block, its COMMIT or ROLLBACK would end the parent's.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from fencing.kernel.fence import Fence
from fencing.kernel.process import after_fork, current_owner


class Holder(Protocol):
    """A transaction that holds marks."""

    is_left: bool
    """Its context was left, so it certainly is over."""

    def is_over(self) -> bool:
        """Return whether it no longer holds the marks. Hooks may run before its context is left."""

    def leave_to_parent(self) -> None:
        """End this child process's copy, without a message to the storage."""


class _OpenTransaction(NamedTuple):
    """A transaction that holds marks, or is about to."""

    owner: object
    marks: int
    fences: Sequence[Fence]
    holder: weakref.ref[Holder]  # a transaction that is interrupted as it begins ends with its object


# The open transactions of this context. Child contexts inherit them, so each has its owner.
_open: ContextVar[tuple[_OpenTransaction, ...]] = ContextVar("fencing_open_transactions", default=())

_all: set[weakref.ref[Holder]] = set()  # those of all threads and tasks, and some that are over


def note_open(marks: object, fences: Sequence[Fence], holder: Holder) -> None:
    """Note a transaction of this thread or task, until its end.

    Args:
        marks: the object that stands for the guard's marks, one for each guard.
        fences: the fences whose marks the transaction holds, or is about to hold.
        holder: the transaction.
    """
    alive = weakref.ref(holder, _all.discard)
    _all.add(alive)
    _open.set((*_still_open(), _OpenTransaction(current_owner(), id(marks), fences, alive)))


def refuse_nested(marks: object, fences: Sequence[Fence]) -> None:
    """Refuse a call inside a guarded block of the same thread or task and the same fence.

    Args:
        marks: as for :func:`note_open`.
        fences: the fences whose marks the call needs.

    Raises:
        RuntimeError: it would wait for a block of the same thread or task. Use what that block gives, or end it first.
    """
    owner = current_owner()
    for each in _still_open():
        same = [fence for fence in fences if fence in each.fences]
        if same and each.owner == owner and each.marks == id(marks):
            raise RuntimeError(
                f"a guarded block around this call holds the mark of {same[0].resource!r}, so this call would wait for "
                f"itself; use the connection or session of that block, or its data; or end the block first"
            )


def _still_open() -> list[_OpenTransaction]:
    found: list[_OpenTransaction] = []
    for each in _open.get():
        holder = each.holder()
        if not (holder is None or holder.is_left or holder.is_over()):
            found.append(each)
    return found


def _in_child() -> None:
    for each in list(_all):
        holder = each()
        if not (holder is None or holder.is_left or holder.is_over()):
            holder.leave_to_parent()


after_fork(_in_child)
