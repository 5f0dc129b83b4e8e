"""The arguments that all guards share, above all the time-outs.

Every wait has a bound. No wait is longer than the lease that it serves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from fencing.kernel.admission import as_fence, sorted_fences
from fencing.kernel.errors import FencingError, OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence
from fencing.kernel.retry import LEAST_SECONDS

MOST_SECONDS = (2**31 - 1) / 1000
"""The longest bound, 24 days: databases keep it as milliseconds in 32 bits."""

LEAST_LEASE_SECONDS = 1.0
"""The least time for a lease near its end: the mark decides whether it may write, not the clock."""

LEAST_CONNECT_SECONDS = 1.0
"""The least time to get a connection. So a call that may not wait for locks can be the first one, which connects."""


def check_timeout(timeout: object, name: str = "timeout") -> float:
    """Return ``timeout`` as seconds if it is a finite number above 0. Raise TypeError or ValueError otherwise."""
    seconds = _number(timeout, name)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} is {timeout}, but every wait needs a bound: pass a finite number of seconds above 0")
    if seconds > MOST_SECONDS:
        raise ValueError(f"{name} is {timeout}: pass at most {MOST_SECONDS} seconds (2**31 - 1 milliseconds)")
    return seconds


def fences_of(holders: Sequence[Fence | HasFence]) -> list[Fence]:
    """Return the fences of ``holders``, sorted by resource. One fence needs no sorting, so it is returned at once."""
    return [as_fence(holders[0])] if len(holders) == 1 else sorted_fences(holders)


def wait_seconds(holders: Iterable[Fence | HasFence], own: float, timeout: object = None) -> float:
    """Return the seconds that a guard may wait for its storage.

    Args:
        holders: leases or fences. The smallest ``remaining()`` of the leases counts, unless ``timeout`` is given.
        own: the guard's own bound in seconds. The result is never above it.
        timeout: the seconds that the caller of a claim has left. At or below 0 the storage is still asked once, without
            waiting.

    Raises:
        TypeError, ValueError: ``timeout`` is no number of seconds.
    """
    if timeout is not None:
        return min(own, max(_number(timeout, "timeout"), LEAST_SECONDS))
    seconds = own
    for holder in holders:
        if not isinstance(holder, Fence):
            remaining: Any = getattr(holder, "remaining", None)
            if callable(remaining):
                seconds = min(seconds, max(float(remaining()), LEAST_LEASE_SECONDS))
    return seconds


def check_unknown(error: object) -> OutcomeUnknown:
    """Return ``error`` if ``landed`` can answer for it. Raise TypeError otherwise."""
    if isinstance(error, OutcomeUnknown):
        return error
    hint = ""
    if isinstance(error, BaseException) and isinstance(error.__cause__, OutcomeUnknown):
        hint = "; pass its __cause__"
    elif isinstance(error, FencingError):
        hint = "; a write that raised another error of a guard has not happened"
    raise TypeError(f"landed takes an OutcomeUnknown, not {type(error).__name__}{hint}")


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of seconds, not {type(value).__name__}")
    if math.isnan(value):
        raise ValueError(f"{name} is a number of seconds, not NaN")
    return float(value)
