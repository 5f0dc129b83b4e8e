"""The interface between coordinators and storage guards. Part of the kernel: no I/O, no dependency."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from fencing.kernel.fence import Fence, HasFence, Mark


class Guard(Protocol):
    """The storage side of a lock: it keeps one mark per resource, beside the data, and refuses stale fences.

    Every implementation passes the contract in ``storage_guards.testing``, which also requires ``landed``. How a guard
    reads and writes depends on its storage.
    """

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark to each fence: all of them or none. Idempotent.

        The holder may read only after this has returned.

        Args:
            holders: leases or fences of different resources.
            timeout: the time limit in seconds; None: the guard's own.

        Raises:
            StaleFence: a newer fence was admitted; nothing was changed. Stop.
            GuardUnavailable: no answer in time; the claim may have happened. Repeat it.
        """

    def mark(self, resource: str) -> Mark | None:
        """Return the newest fence admitted for ``resource``; None: there is none yet.

        For people and tests. It may change at once, so it is no basis for a write.
        """


class AsyncGuard(Protocol):
    """The storage side of a lock for asyncio. The same as :class:`Guard`, with ``async def`` methods."""

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark to each fence: all of them or none. Idempotent.

        The holder may read only after this has been awaited.

        Args:
            holders: leases or fences of different resources.
            timeout: the time limit in seconds; None: the guard's own.

        Raises:
            StaleFence: a newer fence was admitted; nothing was changed. Stop.
            GuardUnavailable: no answer in time; the claim may have happened. Repeat it.
        """

    async def mark(self, resource: str) -> Mark | None:
        """Return the newest fence admitted for ``resource``; None: there is none yet.

        For people and tests. It may change at once, so it is no basis for a write.
        """


G = TypeVar("G")


def check_guards(guards: Iterable[G], *, asynchronous: bool) -> tuple[G, ...]:
    """Return the guards as a tuple.

    Raises:
        TypeError: one of them is not a guard, or is async where a sync one is needed, or the reverse.
    """
    if isinstance(guards, (str, bytes)) or not isinstance(guards, Iterable):
        raise TypeError(f"guards must be a list of guards, not {type(guards).__name__}; write guards=[guard]")
    checked = tuple(guards)
    for guard in checked:
        claim: Any = getattr(guard, "claim", None)
        if isinstance(guard, type):
            raise TypeError(f"{guard.__name__} is a class, not a guard; make an instance of it first")
        if not callable(claim):
            raise TypeError(
                f"an object of type {type(guard).__name__} is not a guard: it has no claim(); "
                f"make one, such as SQLAlchemyGuard(engine)"
            )
        if inspect.iscoroutinefunction(claim) is not asynchronous:
            lock_kind, guard_kind = ("an async", "a sync") if asynchronous else ("a sync", "an async")
            raise TypeError(
                f"{type(guard).__name__} is {guard_kind} guard, but this is {lock_kind} lock; "
                f"use the guard {'with' if asynchronous else 'without'} the Async prefix"
            )
    return checked
