"""A waiter, and what wakes it. No I/O."""

from __future__ import annotations

from typing import Any


class Watch:
    """A waiter, with its watch on the node before its own.

    Attributes:
        request: the one that has set the watch; None: no node is watched.
        is_notified: whether it was told to ask again.
    """

    __slots__ = ("__weakref__", "is_notified", "request")

    def __init__(self) -> None:
        self.request: Any = None
        self.is_notified = False

    def notify(self) -> None:
        """Tell a thread that waits to ask again. It notices within ``RECHECK_SECONDS`` of ``kernel/waking.py``."""
        self.is_notified = True
