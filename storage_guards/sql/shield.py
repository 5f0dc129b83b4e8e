"""The end of a guarded transaction under asyncio. It runs until it has an answer, however often its task is cancelled.

No driver is known here. Interruptions are delivered afterwards, by ``GuardedTransaction.raise_outcome``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fencing.kernel.effects import Unbroken, wake
from storage_guards.sql.transaction import NoAnswer

GRACE = 1.0
"""Extra seconds for the end of a transaction, so that the database's own refusal comes first. A connection that was
closed gets as many to finish."""

Ended = tuple["BaseException | None", "BaseException | None"]


async def finish_within(end: Coroutine[Any, Any, None], seconds: float, hang_up: Callable[[], None]) -> Ended:
    """Run ``end`` for as long as the transaction's bound allows. Then end its connection.

    Args:
        end: is cancelled if it does not end with its connection. A driver that is cancelled may ask the server first.
        seconds: the bound.
        hang_up: ends what waits on the connection.

    Returns:
        The last cancellation or other interruption that came meanwhile, and the error of ``end``. Each is None where
        there was none.
    """
    task = asyncio.ensure_future(end)
    try:
        interruption = await _wait_despite_interruption(task, seconds + GRACE)
        if not task.done():
            hang_up()
            interruption = await _wait_despite_interruption(task, GRACE / 2) or interruption
        if not task.done():
            task.cancel()
            interruption = await _wait_despite_interruption(task, GRACE / 2) or interruption
        return interruption, _failure(task)
    finally:
        if not task.done():  # it is not waited for any more: let it do nothing late
            hang_up()
            task.cancel()


async def _wait_despite_interruption(task: asyncio.Future[Any], seconds: float) -> BaseException | None:
    """Wait for ``task`` at most so many seconds, whatever is raised, and return the last interruption."""
    loop = asyncio.get_running_loop()
    interruption: BaseException | None = None
    deadline = time.monotonic() + seconds
    while not task.done() and (left := deadline - time.monotonic()) > 0:
        waiter = Unbroken(loop=loop)
        woken = partial(wake, waiter)
        task.add_done_callback(woken)
        handle = loop.call_later(left, woken)
        try:
            await waiter
        except GeneratorExit:  # this coroutine is being closed: nothing can be awaited any more
            raise
        except BaseException as error:  # noqa: BLE001 - a cancellation, or what a signal handler raises
            interruption = error
        finally:
            handle.cancel()
            task.remove_done_callback(woken)
    return interruption


def _failure(end: asyncio.Future[Any]) -> BaseException | None:
    if not end.done():
        return NoAnswer("the driver did not end the transaction")
    if end.cancelled():
        return NoAnswer("the connection was closed, or the end was cancelled from elsewhere")
    return end.exception()
