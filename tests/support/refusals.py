"""Locks that somebody holds."""

from __future__ import annotations

from collections.abc import Callable

from fencing import CoordinatorUnavailable, NotAcquired
from tests.support import wait_until


def refused_as_held(ask: Callable[[], object]) -> None:
    """Ask for a lock that is held, until this is the answer. A slow machine may have no connection in time."""

    def refused() -> bool:
        try:
            ask()
        except NotAcquired:
            return True
        except CoordinatorUnavailable:
            return False
        raise AssertionError("it was granted twice")

    wait_until(refused)
