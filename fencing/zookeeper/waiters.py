"""A waiter, and what wakes it. No I/O."""

from __future__ import annotations

from typing import Any


class Watch:
    """A waiter, with its watch on the node before its own.

    Attributes:
        request: the one that has set the watch; None: no node is watched.
    """

    __slots__ = ("__weakref__", "request")

    def __init__(self) -> None:
        self.request: Any = None
