"""An exception at every single step of the library's code, as a signal handler raises it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fencing import FencingError

FOLDER = str(sys.modules["fencing"].__file__).removesuffix("__init__.py")


class Failure(Exception):
    """An exception of a signal handler that is caught by `except Exception`."""


class Exit(BaseException):
    """One that is not."""


@contextmanager
def interruption(step: int, kind: type[BaseException]) -> Iterator[list[int]]:
    """Raise an exception at one step of the library's code in this thread, where Python runs signal handlers.

    That is where a function begins, and where a call of C returns. The list has the number of steps that are left.
    From Python 3.15 on, a profiler is also called as ``with`` has called an ``__enter__`` of C. No signal handler runs
    there: 0 of 16,946 locks stayed taken.
    """
    left = [step]

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") or not code.co_filename.startswith(FOLDER):
            return
        if sys.version_info >= (3, 15) and getattr(argument, "__name__", "") == "__enter__":
            return
        left[0] -= 1
        if left[0] == -1:
            where.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {event} {argument}")
            raise kind

    sys.setprofile(profile)
    try:
        yield left
    finally:
        sys.setprofile(None)


where: list[str] = []


def at_every_step(work: Callable[[], object], check: Callable[[], object], stride: int = 1) -> int:
    """Interrupt the work at its first step, at its second, and so on. Return how many steps it has."""
    for step in range(0, 3000, stride):
        left = [0]
        try:
            with interruption(step, Failure if step // stride % 2 else Exit) as left:
                work()
        except (Failure, Exit, FencingError):
            pass
        try:
            check()
        except AssertionError as error:
            raise AssertionError(f"an interruption at {where[-1]}") from error
        if left[0] >= 0:
            gc.collect()  # here, where warnings about what was interrupted are ignored
            return step
    raise AssertionError("it never ends")


def is_idle(coordinator: Any) -> bool:
    return not coordinator._renewal.held()
