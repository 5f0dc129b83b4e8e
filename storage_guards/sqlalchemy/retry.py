"""Retries of a whole block that concurrent transactions have undone: how often, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from fencing.kernel.admission import sorted_fences
from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.fence import Fence, HasFence
from fencing.kernel.retry import Backoff

_BACKOFF = Backoff(first=0.04, longest=0.5, least=0.0)

LEAST_SHARE = 0.05
"""The share of the time that an attempt must have left to begin: a shorter one would end by the guard's own limit."""


def split_arguments(arguments: Sequence[Any]) -> tuple[tuple[Fence | HasFence, ...], Callable[..., Any]]:
    """Return the leases or fences, and the function, which comes last."""
    if len(arguments) < 2 or not callable(arguments[-1]):
        raise TypeError("run takes leases or fences, and then a function: call guard.run(lease, function)")
    return tuple(arguments[:-1]), arguments[-1]


class Retries:
    """The retries of one ``run``, bounded in attempts and in time.

    Args:
        holders: leases or fences.
        attempts: how often the block runs at most.
        seconds: how long, from now on.
    """

    def __init__(self, holders: Sequence[Fence | HasFence], attempts: object, seconds: float) -> None:
        if isinstance(attempts, bool) or not isinstance(attempts, int):
            raise TypeError(f"attempts is a number of attempts, not {type(attempts).__name__}")
        if attempts < 1:
            raise ValueError(f"attempts is {attempts}; pass at least 1")
        self._fences = sorted_fences(holders)
        self._attempts = attempts
        self._begun = time.monotonic()
        self._deadline = self._begun + seconds
        self._least = seconds * LEAST_SHARE
        self._failed = 0

    def left(self) -> float:
        """Return the seconds left."""
        return self._deadline - time.monotonic()

    def pause(self, error: BaseException) -> float:
        """Return the seconds to wait before the next attempt. Raise GuardUnavailable from ``error`` if there is
        none."""
        self._failed += 1
        pause = _BACKOFF.pause(self._failed)
        if self._failed >= self._attempts or pause >= self.left() - self._least:
            names = ", ".join(repr(fence.resource) for fence in self._fences)
            took = time.monotonic() - self._begun
            raise GuardUnavailable(
                f"concurrent transactions undid the block under {names} {self._failed} of at most "
                f"{self._attempts} times in {took:.3g} s; nothing was written, retry later",
                resource=self._fences[0].resource if len(self._fences) == 1 else None,
            ) from error
        return pause
