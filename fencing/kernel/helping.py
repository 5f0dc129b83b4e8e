"""Calls that no time-out of their own bounds: a helper thread makes each, and its caller waits for its own time."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fencing.kernel import process
from fencing.kernel.opening import MOST_OVERDUE
from fencing.kernel.waking import SafeEvent
from fencing.kernel.workers import DaemonThread

RECENT_SECONDS = 300.0
"""How long an overdue call counts: so what never ends delays others only for a while, and threads stay few."""

T = TypeVar("T")


class Overdue(TimeoutError):
    """A call was not over in the caller's time. It may still go on."""


class Helpers:
    """The helper threads of one object. A forked child has its own.

    Args:
        name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._overdue: set[_Call[Any]] = set()

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """Return the result of a function, which runs in a helper thread, in the context of the caller.

        An exception that interrupts the caller leaves the function running. So may several overdue ones.

        Raises:
            Overdue: it was not over within ``seconds``; or it was not called, because too many others still go on.
            Exception: the function's.
        """
        now = process.now()
        recent = [call for call in list(self._overdue) if call.began > now - RECENT_SECONDS]
        if len(recent) >= MOST_OVERDUE:
            raise Overdue(f"{len(recent)} earlier calls still hang")
        call = _Call(function, self._overdue)
        try:
            DaemonThread(contextvars.copy_context().run, self._name, call.run).start()
        except RuntimeError:  # no thread can be started; mostly because the interpreter is ending
            call.run()
        try:
            if not call.over.wait(seconds):
                raise Overdue(f"no answer within {seconds:.3g} s")
        except BaseException:
            self._overdue.add(call)
            if call.over.is_set():  # read after the line above: a call that ends takes itself out
                self._overdue.discard(call)
            raise
        return call.result()


class _Call(Generic[T]):
    """A function that a helper calls."""

    def __init__(self, function: Callable[[], T], overdue: set[_Call[Any]]) -> None:
        self._function, self._overdue = function, overdue
        self._results: list[T] = []
        self._error: BaseException | None = None
        self.began = process.now()
        self.over = SafeEvent()

    def run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._error = error
        finally:
            self.over.set()
            self._overdue.discard(self)

    def result(self) -> T:
        """Return the function's result, or raise its error."""
        error, self._error = self._error, None  # its traceback refers to the frames that have this
        if error is not None:
            raise error
        return self._results.pop()
