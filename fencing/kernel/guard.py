"""What a coordinator asks of a storage guard. Part of the kernel: no I/O, no dependency."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from fencing.kernel.fence import Fence, HasFence, Mark


class Guard(Protocol):
    """The storage side of a lock: keeps one mark per resource, beside the data, and refuses stale fences.

    ``storage_guards.testing`` has the contract every implementation passes, which asks for ``landed``, too;
    writing and reading are each storage's own.
    """

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark to each fence, all or none. Idempotent. Only after it has returned may the holder read.

        Args:
            holders: leases or fences of different resources.
            timeout: seconds the storage may take; None: the guard's own bound.

        Raises:
            StaleFence: a newer fence was admitted; nothing was changed.
            GuardUnavailable: no answer in time; the claim may have happened, and may be repeated.
        """

    def mark(self, resource: str) -> Mark | None:
        """The newest fence admitted for ``resource``; None: none yet. For people and tests: no basis for a write."""


class AsyncGuard(Protocol):
    """:class:`Guard` for asyncio; its methods are ``async def``."""

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """See :meth:`Guard.claim`."""

    async def mark(self, resource: str) -> Mark | None:
        """See :meth:`Guard.mark`."""


G = TypeVar("G")


def check_guards(guards: Iterable[G], *, asynchronous: bool) -> tuple[G, ...]:
    """The guards as a tuple; TypeError where one is none, or is async where a sync one is needed, or the reverse."""
    if isinstance(guards, (str, bytes)) or not isinstance(guards, Iterable):
        raise TypeError(f"guards is a list of guards, not {type(guards).__name__}; write guards=[guard]")
    checked = tuple(guards)
    for guard in checked:
        claim: Any = getattr(guard, "claim", None)
        if isinstance(guard, type):
            raise TypeError(f"{guard.__name__} is no guard, but a class: make a guard of it first")
        if not callable(claim):
            raise TypeError(f"{guard!r} is no guard: it has no claim(); make one, such as SQLAlchemyGuard(engine)")
        if inspect.iscoroutinefunction(claim) is not asynchronous:
            ours, theirs = ("an async", "a sync") if asynchronous else ("a sync", "an async")
            raise TypeError(
                f"{type(guard).__name__} is {theirs} guard, this is {ours} lock; "
                f"use the guard {'with' if asynchronous else 'without'} the Async prefix"
            )
    return checked
