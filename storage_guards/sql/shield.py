"""The end of a guarded transaction under asyncio, run to an answer however often its task is cancelled.

No driver is known here. Cancellations are delivered afterwards. A ``CancelledError`` whose ``__cause__`` is None came
after a commit that happened; else the cause says what became of it: an ``OutcomeUnknown``, or the error by which the
database refused it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

GRACE = 1.0
"""Seconds that the end of a transaction gets beyond its bound, so that the database's own refusal comes first; and what
a connection gets that was hung up."""

Ended = tuple["asyncio.CancelledError | None", "BaseException | None"]


async def finish_within(end: Coroutine[Any, Any, None], seconds: float, hang_up: Callable[[], None]) -> Ended:
    """Run ``end`` for as long as the transaction's bound allows; then hang the connection up.

    Returns:
        The last cancellation that came meanwhile, and what ``end`` raised; None and None for the best.
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
    """Raise what there is to be raised.

    Args:
        ended: as :func:`finish_within` returned it.
        error: what the block raised, and what goes on by itself unless something is raised here.
        explain: what a failed end says of the transaction.
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
    """Wait for ``task`` whatever cancellations arrive, for so many seconds; the last of them."""
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
        return asyncio.CancelledError("not to be had back from the driver")
    if end.cancelled():
        return asyncio.CancelledError("hung up, or cancelled from elsewhere")
    return end.exception()
