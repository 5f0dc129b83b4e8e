"""An exception at any line of the code under test, as a signal handler raises it."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.support.interruptions import no_garbage_collection


def _is_uninterrupted(frame: FrameType) -> bool:
    """Return whether no signal is delivered before the line.

    A tracer sees a with statement again when its block ends, before the lock is released. A try is no instruction, and
    the tracer's exception there is in no block. A pass is none either, and in an except, the tracer's exception there
    would leave the exception that is handled in place for ever. And nothing comes between a finally and the call of C
    that it begins with.
    """
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return "with " in line or line.partition("#")[0].strip() in ("try:", "pass") or "# one call of C" in line


def raise_at_line(
    number: int, error: BaseException, where: tuple[str, ...], call: Callable[[], Any]
) -> tuple[Any, bool]:
    """Run ``call``, and raise ``error`` before line ``number`` that it runs in this thread.

    Args:
        where: parts of the paths of files whose lines count.

    Returns:
        What it returned, and whether the error was raised. The call's own errors propagate.
    """
    left = number
    errors = [error]
    del error  # with its traceback, it would refer to this frame, and so to all that was interrupted

    def trace_lines(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line" and not _is_uninterrupted(frame):
            left -= 1
            if left == 0:
                raise errors.pop()
        return trace_lines

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        return trace_lines if any(part in frame.f_code.co_filename for part in where) else None

    before = sys.gettrace()
    with no_garbage_collection():
        sys.settrace(trace)
        try:
            return call(), left <= 0
        finally:
            sys.settrace(before)
