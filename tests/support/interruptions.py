"""Errors that are raised at a chosen line, as a signal handler can raise them at any line."""

from __future__ import annotations

import gc
import linecache
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_WATCHED = ("/storage_guards/", "/fencing/")


# CPython looks for signals neither before it takes nor before it releases a plain lock that is a with-target. And not
# before a return without a call.
_UNINTERRUPTIBLE = re.compile(r"with \S*(_mutex|lock):|return (rows|connection)")


class SoftTimeLimit(Exception):
    """An exception that a signal handler raises, such as Celery's."""


class Interruption:
    """Raises ``error`` at line number ``at`` of those that ``call`` runs in this library; counts them all the same.

    Args:
        at: from 0 on.
        error: None: nothing is raised.
        also: parts of paths of other files whose lines count.
        only: parts of the paths of the only files whose lines count.
    """

    def __init__(
        self,
        at: int = -1,
        error: BaseException | None = None,
        also: tuple[str, ...] = (),
        only: tuple[str, ...] = _WATCHED,
    ) -> None:
        self._at = at
        self._error = error
        self._watched = (*only, *also)
        self.lines = 0
        self.names: list[str] = []

    def run(self, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        with no_garbage_collection():
            sys.settrace(self._on_call)
            try:
                return call()
            finally:
                sys.settrace(before)

    async def run_async(self, running: Awaitable[Any]) -> Any:
        """Do the same for an awaitable. It must run in a task of its own."""
        with no_garbage_collection():
            sys.settrace(self._on_call)
            try:
                return await running
            finally:
                sys.settrace(None)

    @property
    def was_raised(self) -> bool:
        return self._error is None

    def _on_call(self, frame: FrameType, kind: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        return self._on_line if any(each in name for each in self._watched) else None

    def _on_line(self, frame: FrameType, kind: str, argument: object) -> Any:
        if kind == "line" and not _is_uninterruptible(frame):
            self.lines += 1
            self.names.append(frame.f_code.co_name)
            if self.lines - 1 == self._at and self._error is not None:
                error, self._error = self._error, None
                try:
                    raise error
                finally:
                    del error  # it keeps this frame, and all that it refers to
        return self._on_line


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect no garbage: a destructor of an earlier round would run at any line. An error of the trace there has
    crashed CPython 3.11 (it takes the trace from under the frames around it)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_uninterruptible(frame: FrameType) -> bool:
    return _UNINTERRUPTIBLE.search(linecache.getline(frame.f_code.co_filename, frame.f_lineno)) is not None


def outcome_of(error: BaseException) -> BaseException:
    """Return what ``landed`` takes, if the error has it: the error, or its cause."""
    return error.__cause__ if error.__cause__ is not None and not _is_unknown(error) else error


def _is_unknown(error: BaseException) -> bool:
    return type(error).__name__ == "OutcomeUnknown"
