"""What does work beside its callers, and lives no longer than needed: objects of event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fencing.kernel import process

T = TypeVar("T")


class PerLoop(dict[asyncio.AbstractEventLoop, T]):
    """One object for each event loop.

    ``table[loop]`` is made at its first use, and ``table.get(loop)`` is None before. Objects of closed loops are
    dropped when another loop gets its object. A forked child has none of its parent's objects.

    Args:
        make: makes the object of a loop. It must not refer to the owner of the table, which would keep itself alive.
        stop: begins to end an object. It is called on the object's loop if the table is collected before the loop ends.
        keeps_inherited: whether a forked child keeps its parent's objects, unused: to collect them would do harm.
    """

    _stop: Callable[[T], object] | None = None  # also where an interruption left the object without its own

    def __init__(
        self,
        make: Callable[[asyncio.AbstractEventLoop], T],
        *,
        stop: Callable[[T], object] | None = None,
        keeps_inherited: bool = False,
    ) -> None:
        super().__init__()
        self._make = make
        self._stop = stop
        self._inherited: list[Any] | None = [] if keeps_inherited else None
        process.after_fork(self._in_child)

    def __missing__(self, loop: asyncio.AbstractEventLoop) -> T:
        self._drop_closed()
        return self.setdefault(loop, self._make(loop))

    def remove(self, loop: asyncio.AbstractEventLoop) -> T | None:
        """Remove the object of a loop, and return it; None: it has none. Objects of closed loops are dropped."""
        self._drop_closed()
        return self.pop(loop, None)

    def _drop_closed(self) -> None:
        for loop in [each for each in list(self) if each.is_closed()]:  # the list is made in one step of C
            self.pop(loop, None)

    def _in_child(self) -> None:
        if self._inherited is not None:
            self._inherited.extend(self.values())
        self.clear()

    def __del__(self) -> None:
        if self._stop is not None:
            for loop, found in self.items():
                try:
                    loop.call_soon_threadsafe(self._stop, found)
                except RuntimeError:
                    pass  # the loop is closed
