"""A waiter, and what wakes it. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Watch:
    """A waiter, with its watch on the node before its own.

    Attributes:
        path: the node that is watched; empty: none is.
        wake: is called by kazoo's thread when the node was deleted, or the connection is lost.
    """

    __slots__ = ("__weakref__", "path", "wake")

    def __init__(self) -> None:
        self.path = ""
        self.wake: Callable[[Any], object] | None = None
