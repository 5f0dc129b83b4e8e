"""The blocks of ``hold`` that the current thread and task are in: re-entry, and holders that would wait for themselves.

Each block is noted in the context (``contextvars``) in which it began. Tasks, and threads of ``asyncio.to_thread``,
start with a copy of the context of the code that started them. So a note says two things: the block is around the
current code, or around the code that started it.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
import weakref
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import fields
from typing import Any, ClassVar, Literal, Protocol, Self

from fencing.kernel import process, quirks
from fencing.kernel.errors import NotAcquired
from fencing.locks.settings import Settings, check_timeout

MOST_DEPTH = 1000
"""How deep the blocks of one lease may be nested. Deeper ones are a recursion without an end."""

Notes = tuple["weakref.ref[Block]", ...]

blocks: ContextVar[Notes] = ContextVar("fencing_blocks", default=())
"""The blocks of this context, the latest first. Those that have ended, or are collected, stay until the next begins."""

_running_loop = quirks.running_loop_getter()


class HeldLock(Protocol):
    """The parts of a sync or async lock that its blocks use."""

    resource: str
    _key: tuple[int, str]  # the id of the coordinator, which is not reused while it has leases; and the resource
    _settings: Settings
    _is_reentrant: bool

    def acquire(self, timeout: float | None = None) -> Any:
        """Wait for the lock. Return its lease, or an awaitable of it."""


class Block(process.OfThisProcess):
    """The base of the context managers of ``hold``: one block, with its lease.

    A block inside a block of the same re-entrant lock shares its lease. The lock is released when the last one ends.
    """

    __slots__ = (
        "__weakref__",
        "_at_least",
        "_inside",
        "_lease",
        "_lock",
        "_outermost",
        "_task",
        "_thread",
        "_timeout",
        "_used",
    )

    _waiter: ClassVar[Literal["thread", "task"]]  # a thread that waits stops all its tasks

    _lock: HeldLock
    _timeout: float | None
    _at_least: float | None
    _used: bool
    _lease: Any  # None: the block has not begun, or has ended
    _thread: int
    _task: weakref.ref[asyncio.Task[Any]] | None  # unused by plain sync blocks
    _inside: set[int] | None  # the ids of the blocks that share the lease, and have not ended; None: it is not shared
    _outermost: Block | None  # the block whose lease this one shares

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._lock.resource!r}>"

    def _begin(self, around: Notes) -> None:
        """Note that the block has begun, inside of these blocks."""
        if self._lock._is_reentrant:
            self._inside = self._lease._inside = {id(self)}
        self._thread = threading.get_ident()
        if self._waiter == "task" or self._inside is not None:
            self._task = this_task()
        self._lease._block = note = weakref.ref(self)
        blocks.set((note, *around) if around else (note,))

    def entered_with_others(self) -> Self:
        """Return the block. It is not entered by itself: its lock is acquired together with others."""
        self._used = True
        return self

    def begin_with(self, lease: Any) -> None:
        """Begin the block with a lease that was acquired together with others."""
        self._lease = lease
        self._begin(begun(blocks.get()))

    @property
    def begun_by(self) -> tuple[int, weakref.ref[asyncio.Task[Any]] | None]:
        """The thread that began the block, and its task; None: it has none, or may have changed it."""
        return self._thread, self._task

    def holds(self, key: tuple[int, str]) -> bool:
        """Return whether the block is believed to hold this lock: the id of its coordinator, and the resource."""
        return self._lock._key == key and not self._is_over and self._lease._newest._keeps_lock

    def require_not_held(self) -> None:
        """Raise RuntimeError if a block around the current code holds the lock: it would wait for itself."""
        outer = self._surrounding(blocks.get())
        if outer is not None and outer._lease._newest._keeps_lock:
            raise RuntimeError(
                f"this {self._waiter} holds {self._lock.resource!r} already, in a block around this one, and would "
                f"wait for itself; hold all locks in the outer block"
            )

    @property
    def is_last(self) -> bool:
        """Whether no other block uses the lease, so that the end of this one releases it."""
        return self._inside is None or self._inside == {id(self)}

    def _leave(self) -> bool:
        """Note the end of the block. Return whether it was the last of its lease, so that the lock must be released."""
        if self._inside is None:
            return True
        self._inside.discard(id(self))
        return not self._inside

    @property
    def _is_over(self) -> bool:
        lease = self._lease
        return lease is None or lease._pid != process.pid() or (self._inside is not None and not self._inside)

    def _surrounding(self, around: Notes) -> Block | None:
        """Return the block around the current code that holds the lock's resource; None: there is none.

        Raises:
            RuntimeError: the code that started this task or thread is in a re-entrant block. Pass the lease on.
        """
        key, thread, task = self._lock._key, threading.get_ident(), this_task()
        for note in around:
            block = note()
            if block is None or block._lock._key != key or block._is_over:
                continue
            both = self._lock._is_reentrant and block._inside is not None
            if block._thread == thread and (block._task == task or (self._waiter == "thread" and not both)):
                return block
            if both and block._lease._newest._keeps_lock:
                starter = "thread" if block._task is None else "task"
                raise RuntimeError(
                    f"{self._lock.resource!r} is held by the {starter} that started this one; pass it the lease: "
                    f"if it waited for the lock, both could wait for each other"
                )
        return None

    def _holds_all(self, keys: Collection[tuple[int, str]]) -> bool:
        """Return whether blocks around the current code hold all these locks: a wait for one would be for itself."""
        thread, task, held = threading.get_ident(), this_task(), set()
        for note in blocks.get():
            block = note()
            if block is None or block._lock._key not in keys or block._is_over or block._thread != thread:
                continue
            is_own = self._waiter == "thread" or block._task == task
            if is_own and block._lease._newest._keeps_lock:
                held.add(block._lock._key)
        return len(held) == len(keys)

    def _reenter(self, outer: Block) -> Any:
        """Return the lease of the block around this one; None: this one must acquire the lock.

        Raises:
            LeaseLost: the lease was lost or ended in the block. Stop, and leave the block.
            RuntimeError: this one would wait for itself for ever. Correct the program as the message says.
            ValueError: the lock has other options than that of the outer block. Use the same ones.
            RecursionError: it is nested too deep.
        """
        lock, lease, inside = self._lock, outer._lease._newest, outer._inside
        if not lock._is_reentrant or inside is None:
            if self._timeout is None and lease._keeps_lock:
                raise RuntimeError(
                    f"this {self._waiter} holds {lock.resource!r} already, in a block around this one, and would wait "
                    f"for itself for ever; pass the lease on, or use lock.reentrant() for both blocks"
                )
            return None
        check_timeout(self._timeout)
        lease.ensure_held()
        settings = lease._holding.settings
        if lock._settings is not settings and lock._settings != settings:
            raise ValueError(
                f"the block around this one holds {lock.resource!r} with another "
                f"{_difference(settings, lock._settings)}; use the same options for both"
            )
        if len(inside) >= MOST_DEPTH:
            raise RecursionError(f"{lock.resource!r} is held {MOST_DEPTH} times, one block inside the other")
        try:
            self._outermost, self._inside = outer, inside
            inside.add(id(self))
            self._lease = lease
            return lease
        except BaseException:
            inside.discard(id(self))  # an interruption; its traceback may keep this object for long
            raise

    def _explain(self, error: NotAcquired, outer: Block) -> NotAcquired:
        """Return the error that says that the waiter itself has the lock, if it does."""
        if outer._is_over or not outer._lease._newest._keeps_lock or error.reason != "held":
            return error
        return NotAcquired(
            resource=error.resource, reason="held", waited=error.waited, owner=error.owner, held_by_this=self._waiter
        )

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)
        if lease is not None and self._leave():  # an interruption skipped the end of the block
            lease._release_later(lease._newest._free_at)
        elif not getattr(self, "_used", True):
            warn_of_unused("hold()", self._lock.resource, self._waiter)


def this_task() -> weakref.ref[asyncio.Task[Any]] | None:
    """Return the asyncio task that runs in this thread; None: there is none."""
    loop = _running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    return None if task is None else weakref.ref(task)


def warn_of_unused(name: str, resources: str, waiter: Literal["thread", "task"]) -> None:
    """Warn that a block was made, and never entered. So the lock was not taken, and the code after it ran without."""
    statement = "with" if waiter == "thread" else "async with"
    warnings.warn(
        f"{name} of {resources!r} was never entered, so nothing was locked; write `{statement} … as lease:`",
        RuntimeWarning,
        stacklevel=3,
    )


def begun(notes: Notes) -> Notes:
    """Return the notes of the blocks that have not ended."""
    return tuple(note for note in notes if (block := note()) is not None and not block._is_over)


def _difference(outer: Settings, inner: Settings) -> str:
    names = [each.name for each in fields(Settings) if each.compare]
    return ", ".join(name for name in names if getattr(outer, name) != getattr(inner, name))
