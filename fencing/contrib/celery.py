"""A busy lock in Celery: the task is tried later, or left out. See docs/recipes/celery.md.

Both functions are for ``busy`` of :meth:`fencing.Coordinator.locked`::

    @app.task
    @coordinator.locked("orders:{order_id}", busy=retry())
    def ship(lease: Lease, order_id: int) -> None: ...
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NoReturn

from fencing.kernel.errors import NotAcquired
from fencing.kernel.extras import raise_missing
from fencing.locks.settings import check_seconds

try:
    from celery import current_task
    from celery.exceptions import Retry
except ModuleNotFoundError as error:
    raise_missing("fencing.contrib.celery", error)

TRIES = "fencing_tries"
"""The header of a message that says how often its task has found the lock busy."""


def retry(*, first: float = 1.0, longest: float = 60.0, limit: int | None = None) -> Callable[[NotAcquired], NoReturn]:
    """Return a function that has Celery try the task again later, for ``busy`` of ``locked``.

    The worker is free meanwhile. The task keeps its id, its chain and its ``retries``: these tries are counted apart.
    Tasks that wait so have no order. Where there is no worker to try again, as in a plain call or with
    ``task_always_eager``, the call raises NotAcquired.

    Args:
        first: seconds until the second try. Each further one doubles them, up to ``longest``, and half of it is random.
        longest: seconds that a try is put off at most. Stay far below the broker's visibility time-out, or else the
            broker delivers a task that waits for a second time.
        limit: how often a task is put off. The next try then raises NotAcquired, and the task has failed. None: no
            limit.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """
    first, longest = check_seconds(first, "first"), check_seconds(longest, "longest")
    if not 0 < first <= longest:
        raise ValueError(f"first must be above 0 and at most longest, not {first} with {longest}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise TypeError(f"limit must be a number of tries, or None, not {type(limit).__name__}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative, not {limit}; None is no limit")

    def put_off(error: NotAcquired) -> NoReturn:
        request = _request()
        tries = int((request.headers or {}).get(TRIES, 0)) if request is not None else 0
        if request is None or (limit is not None and tries >= limit):
            raise error
        seconds = min(longest, first * 2.0 ** min(tries, 64)) * random.uniform(0.5, 1.0)
        # Not Task.retry: it counts the tries among those of failures, and keeps its limit for all calls of the task.
        headers = {**(request.headers or {}), TRIES: tries + 1}
        later = current_task.signature_from_request(request, countdown=seconds, headers=headers)
        later.apply_async()
        raise Retry(exc=error, when=seconds, sig=later)

    return put_off


def skip_unless_redelivered(
    *, first: float = 1.0, longest: float = 60.0, limit: int | None = None
) -> Callable[[NotAcquired], None]:
    """Return a function that leaves the task out, for ``busy`` of ``locked``: its result is None, and it succeeds.

    A message that the broker has delivered before may be the only one of its task. Its first worker may have died, and
    its lock stays taken until the ttl is over. Left out, that task would never be done. So it is put off, as by
    :func:`retry`, and so is what was put off before.

    Args:
        first: as of :func:`retry`, and so are the others.

    Raises:
        TypeError, ValueError: as :func:`retry`.
    """
    put_off = retry(first=first, longest=longest, limit=limit)

    def skip(error: NotAcquired) -> None:
        request = _request()
        if request is not None and (TRIES in (request.headers or {}) or _is_redelivered(request)):
            put_off(error)

    return skip


def _request() -> Any:
    """Return the request of the task that a worker runs here; None if there is none."""
    request = current_task.request if current_task else None
    return None if request is None or request.called_directly or request.is_eager else request


def _is_redelivered(request: Any) -> bool:
    return bool((request.delivery_info or {}).get("redelivered"))
