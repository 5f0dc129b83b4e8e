"""Waits for a lock that may never end, because the holder may wait for the waiter. They are logged, never refused.

A child task or thread that asks for the lock of its parent waits for ever if the parent waits for the child. It gets
the lock if the parent leaves its block. Nobody can tell these apart, so the wait is not an error. After a second the
log names the block that it waits for.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import weakref
from collections import deque
from types import FrameType
from typing import Any

from fencing.kernel import process
from fencing.kernel.timer import timer
from fencing.locks.backend import Backend
from fencing.locks.callbacks import call_in_thread
from fencing.locks.reentrant import Block, blocks, this_task

logger = logging.getLogger("fencing")

WARNING_SECONDS = 1.0
"""How long a wait lasts before it is looked at, once."""

STEP_SECONDS = 0.25
"""How often waits are looked at: one call of the timer serves all that have become long meanwhile."""

_WAITING = frozenset(("concurrent", "multiprocessing", "queue", "threading"))
"""The packages in which a thread stands that waits for other threads."""

_PASSED_BY = _WAITING | {"asyncio", "fencing"}


_reported: weakref.WeakSet[Block] = weakref.WeakSet()
"""The blocks whose threads were logged to stand in a wait."""


class LongWait:
    """One call that waits for a lock. It exists until the call ends."""

    __slots__ = ("__weakref__", "_backend", "_notes", "_resource", "_resources", "_task", "_thread", "began")

    def __init__(self, backend: Backend, resource: str) -> None:
        self._resource = resource
        self._backend, self._resources = backend.locks_behind(resource)
        self._notes = blocks.get()
        self._thread, self._task = threading.get_ident(), this_task()
        self.began = process.now()

    def report(self) -> None:
        """Log the wait if it may never end."""
        text = self._inside_holder() or self._stops_loop() or self._awaited_by_holder()
        if text is not None:
            logger.warning(
                "%s has waited %.1f s for the %s %r, %s",
                _name(self._thread, self._task),
                process.now() - self.began,
                "lock on" if len(self._resources) == 1 else f"{len(self._resources)} slots of",
                self._resource,
                text,
            )

    def _inside_holder(self) -> str | None:
        """Say that blocks around the caller, or around the code that started it, hold the lock, or all slots."""
        around = [block for note in self._notes if (block := note()) is not None]
        holders = [
            next((block for block in around if block.holds((id(self._backend), each))), None)
            for each in self._resources
        ]
        block = holders[0]
        if block is None or not all(holders):  # another slot may become free
            return None
        held = "a block that holds it" if len(holders) == 1 else "blocks that hold all of them"
        return (
            f"inside {held}, which {_name(*block.begun_by)} began; if that block waits for this "
            f"code, neither ever ends: pass it the lease, or leave the block first"
        )

    def _stops_loop(self) -> str | None:
        """Say that a sync lock blocks an event loop."""
        if self._task is None or self._backend.asynchronous:
            return None
        block = self._holder()
        held = "" if block is None else f"; the holder is in this process: a block that {_name(*block.begun_by)} began"
        return f"and stops the event loop of its thread: use an asyncio coordinator, or asyncio.to_thread{held}"

    def _awaited_by_holder(self) -> str | None:
        """Say that the thread that holds the lock waits for a thread, perhaps for this one."""
        block = self._holder()
        if block is None or self._backend.asynchronous:
            return None
        thread, _ = block.begun_by
        frame = sys._current_frames().get(thread)
        if thread == self._thread or frame is None or _package(frame) not in _WAITING or block in _reported:
            return None
        _reported.add(block)  # once for all that wait for it: mostly its thread waits for something else
        function, place = frame.f_code.co_name, frame
        while place.f_back is not None and _package(place) in _PASSED_BY:
            place = place.f_back
        held = "which is held by a block of" if len(self._resources) == 1 else "all held by blocks of"
        return (
            f"{held} {_name(thread, None)}; that one stands in {_package(frame)}'s {function} at "
            f"{place.f_code.co_filename}:{place.f_lineno}, and if it waits for this thread, neither ever ends: pass it "
            f"the lease, or leave the block first"
        )

    def _holder(self) -> Block | None:
        """Return the block of this process that holds the lock, or one of the thread that holds all slots."""
        found: dict[str, Block] = {}
        for holding in self._backend.held():
            lease = holding.lease() if holding.fence.resource in self._resources else None
            find = getattr(lease, "_block", None)
            block: Block | None = None if find is None else find()
            if block is not None:
                found[holding.fence.resource] = block
        threads = {block.begun_by[0] for block in found.values()}
        return next(iter(found.values())) if len(found) == len(self._resources) and len(threads) == 1 else None


class _Watch:
    """The waits of this process, in the order in which they began."""

    def __init__(self) -> None:
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._waits: deque[weakref.ref[LongWait]] = deque()
        self._is_called = False

    def add(self, waiting: LongWait) -> None:
        self._waits.append(weakref.ref(waiting))
        if not self._is_called:  # read after the line above: _inspect first says that it is called no more
            self._call_in(WARNING_SECONDS)

    def _call_in(self, seconds: float) -> None:
        self._is_called = True
        try:
            timer().call_at(process.now() + seconds, self._inspect, self._is_wanted)
        except RuntimeError:
            self._is_called = False  # no thread could be started: nothing is logged

    def _is_wanted(self) -> bool:
        while self._waits and self._waits[0]() is None:
            self._waits.popleft()
        return bool(self._waits)

    def _inspect(self) -> None:
        self._is_called = False
        now = process.now()
        while self._waits:
            waiting = self._waits[0]()
            if waiting is not None and now - waiting.began < WARNING_SECONDS:
                self._call_in(max(STEP_SECONDS, waiting.began + WARNING_SECONDS - now))
                return
            self._waits.popleft()
            if waiting is not None:
                call_in_thread(LongWait.report, waiting)  # a slow handler of the log must not delay the timer


_watch = _Watch()


def begin_wait(backend: Backend, resource: str) -> LongWait:
    """Watch a call that begins to wait for a lock, until the result is collected."""
    waiting = LongWait(backend, resource)
    _watch.add(waiting)
    return waiting


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _name(thread: int, task: weakref.ref[asyncio.Task[Any]] | None) -> str:
    if task is not None:
        found = task()
        return "a task that has ended" if found is None else f"task {found.get_name()!r}"
    names = [each.name for each in threading.enumerate() if each.ident == thread]
    return f"thread {names[0] if names else thread!r}"
