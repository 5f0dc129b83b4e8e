"""A thread, or a task, in a guarded block that asks its guard for a second transaction of the same fence: refused.
The second would wait for the first, and the first waits for the second, until one of them runs out of time.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from fencing.kernel.fence import Fence
from fencing.kernel.process import current_owner


class Holder(Protocol):
    """What holds marks: a transaction."""

    def is_over(self) -> bool:
        """Whether it holds them no more, though it has not been left yet: hooks may run then."""


class _OpenTransaction:
    """A transaction that holds marks, or is about to."""

    __slots__ = ("fences", "holder", "marks", "owner")

    def __init__(self, owner: object, marks: object, fences: Sequence[Fence], holder: Holder) -> None:
        self.owner: object = owner  # None: it is over
        self.marks = id(marks)
        self.fences = fences
        self.holder = weakref.ref(holder)  # weakly: one that is interrupted as it begins ends with its object

    def is_over(self) -> bool:
        holder = self.holder()
        return self.owner is None or holder is None or holder.is_over()


# Of this context; children inherit it, and are told apart by their owner.
_open: ContextVar[tuple[_OpenTransaction, ...]] = ContextVar("fencing_open_transactions", default=())


@contextmanager
def refuse_nested(marks: object, fences: Sequence[Fence], holder: Holder) -> Iterator[None]:
    """Around a transaction. Not noticed: the block of another guard object, and another fence of the same name.

    Args:
        marks: whose they are: one object of the guard's.
        fences: whose marks it will hold.
        holder: the transaction.

    Raises:
        RuntimeError: it would wait for a block of the same thread, or task.
    """
    owner = current_owner()
    others = tuple(each for each in _open.get() if not each.is_over())
    for each in others:
        same = [fence for fence in fences if fence in each.fences]
        if same and each.owner == owner and each.marks == id(marks):
            raise RuntimeError(
                f"a guarded block around this call holds the mark of {same[0].resource!r}, so this would wait for "
                f"itself; use the connection or session that the block gave, or end the block first"
            )
    mine = _OpenTransaction(owner, marks, fences, holder)
    del holder  # which keeps this generator
    _open.set((*others, mine))
    try:
        yield
    finally:
        mine.owner = None
