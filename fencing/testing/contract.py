"""The base of the contract suites of guards and coordinators: one test body for sync and async code, without pytest.

A suite is a class of ``test_…`` methods with plain asserts; pytest collects a subclass named ``Test…``. Each tested
operation goes through :meth:`Contract.call`. It runs a coroutine to its end on an event loop in another thread, and
returns a plain result unchanged. So the same test body, with racing threads too, drives sync and async code.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)

CALL_SECONDS = 60.0
"""The time limit of a single call or race of a suite. After it, the suite reports that the call hangs."""

_loop_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _shared_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all suites of this process, so that tests can share objects that are bound to a loop."""
    global _loop
    with _loop_lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(_loop,), name="fencing-contract-loop", daemon=True).start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop. A KeyboardInterrupt of one test would end it, and all later tests would hang; so it goes on."""
    while True:
        try:
            return loop.run_forever()
        except BaseException:  # noqa: BLE001 - it is reported as an unhandled exception of the thread
            threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), threading.current_thread()]))


class Contract:
    """The base of the contract suites."""

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function``, and return its result. If it is async, await it on the suite's loop. Thread-safe."""
        if not inspect.iscoroutinefunction(function):
            result = function(*args, **kwargs)
            if not inspect.isawaitable(result):
                return result
            return self._await(result)
        return self._await(function(*args, **kwargs))

    def _await(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), _shared_loop()).result(CALL_SECONDS)

    def expect(self, error: type[E], function: Callable[..., Any], *args: Any, **kwargs: Any) -> E:
        """Call ``function`` as :meth:`call` does, and return the error that it raises.

        Raises:
            AssertionError: the call raised no error of that type.
        """
        try:
            result = self.call(function, *args, **kwargs)
        except error as raised:
            return raised
        raise AssertionError(f"{error.__name__} was expected, but the call returned {result!r}")

    def race(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run the functions at the same time, each in a thread. Return their results, or raise the first error."""
        start = threading.Barrier(len(functions))

        def run(function: Callable[[], Any]) -> Any:
            start.wait(CALL_SECONDS)
            return function()

        with ThreadPoolExecutor(len(functions)) as pool:
            futures = [pool.submit(run, function) for function in functions]
            return [future.result(CALL_SECONDS) for future in futures]

    def wait_until(self, condition: Callable[[], Any], *, seconds: float = 10.0) -> None:
        """Call ``condition`` (sync or async) until it returns true; raise AssertionError after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not self.call(condition):
            assert time.monotonic() < deadline, f"still not true after {seconds} s: {condition}"
            time.sleep(0.005)
