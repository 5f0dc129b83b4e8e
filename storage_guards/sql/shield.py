"""The end of a guarded transaction under asyncio. It runs until it has an answer, however often its task is cancelled.

No driver is known here. Cancellations are delivered afterwards. A ``CancelledError`` whose ``__cause__`` is None means
that the commit happened, or was never begun. Otherwise the cause is the outcome: an ``OutcomeUnknown``, or the error by
which the database refused the commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

GRACE = 1.0
"""Extra seconds for the end of a transaction, so that the database's own refusal comes first. A connection that was
closed gets as many to finish."""

Ended = tuple["asyncio.CancelledError | None", "BaseException | None"]


async def finish_within(end: Coroutine[Any, Any, None], seconds: float, hang_up: Callable[[], None]) -> Ended:
    """Run ``end`` for as long as the transaction's bound allows. Then close the connection.

    Returns:
        The last cancellation that came meanwhile, and the error of ``end``. Each is None where there was none.
    """
    task = asyncio.ensure_future(end)
    cancelled = await _wait_despite_cancellation(task, seconds + GRACE)
    if not task.done():
        hang_up()
        task.cancel()
        cancelled = await _wait_despite_cancellation(task, GRACE) or cancelled
    return cancelled, _failure(task)


def raise_outcome(
    ended: Ended,
    error: BaseException | None,
    explain: Callable[[BaseException], BaseException | None],
) -> None:
    """Raise the error that the caller must see, if there is one.

    Args:
        ended: the result of :func:`finish_within`.
        error: the error of the block. It propagates by itself unless another one is raised here.
        explain: returns what a failed end means for the transaction.
    """
    cancelled, failure = ended
    if cancelled is not None and (failure is None or error is not None):
        raise cancelled
    if failure is None:
        return
    if isinstance(failure, Exception) and cancelled is None:
        raise failure
    explained = explain(failure)
    if cancelled is not None:
        raise cancelled from explained
    if explained is not None and explained is not error:
        raise explained from failure


async def _wait_despite_cancellation(task: asyncio.Future[Any], seconds: float) -> asyncio.CancelledError | None:
    """Wait for ``task`` at most so many seconds, whatever is cancelled, and return the last cancellation."""
    cancelled = None
    deadline = time.monotonic() + seconds
    while not task.done() and (left := deadline - time.monotonic()) > 0:
        try:
            await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


def _failure(end: asyncio.Future[Any]) -> BaseException | None:
    if not end.done():
        return asyncio.CancelledError("the driver did not end the transaction")
    if end.cancelled():
        return asyncio.CancelledError("the connection was closed, or the end was cancelled from elsewhere")
    return end.exception()
