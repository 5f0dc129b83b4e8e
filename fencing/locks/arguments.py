"""The arguments of a lock and of its methods, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fencing.kernel.fence import Fence, check_number
from fencing.locks.backend import Backend, Holder
from fencing.locks.capabilities import check_capabilities
from fencing.locks.settings import AsyncLockOptions, LockOptions, Settings

Options = TypeVar("Options", LockOptions, AsyncLockOptions)

NOT_PICKLED = (
    "a lock has connections, and is neither pickled nor copied; "
    "for another process send the name, and make the lock there"
)


def settings_of(backend: Backend, options: Mapping[str, Any], *, asynchronous: bool) -> Settings:
    """Return the settings of a lock: the coordinator's, with these options."""
    return check_capabilities(
        backend, backend.settings.changed(options, asynchronous=asynchronous), backend.settings.ttl
    )


def without_reentrant(options: Options, method: str) -> Options:
    """Return the options; raise TypeError if ``reentrant`` is among them, which only blocks can be."""
    if "reentrant" in options:
        raise TypeError(f"{method} is never re-entrant: only blocks are; write hold(..., reentrant=True)")
    return options


def check_adoptable(fence: object) -> Fence:
    """Return ``fence`` if it is a Fence; raise TypeError otherwise."""
    if not isinstance(fence, Fence):
        hint = "pass what its detach() returns" if hasattr(fence, "detach") else "convert its text with Fence.parse"
        raise TypeError(f"adopt takes a Fence, not {type(fence).__name__}; {hint}")
    return fence


def check_resource_of(fence: Fence, resource: str) -> Fence:
    """Return ``fence`` if it is a Fence of this resource; raise TypeError or ValueError otherwise."""
    if check_adoptable(fence).resource != resource:
        raise ValueError(
            f"this is the lock of {resource!r}, but the fence is of {fence.resource!r}; adopt it with that lock"
        )
    return fence


def check_forced(number: object, holder: object) -> int | Holder | None:
    """Return what names the grant that is forced out: its number, or a holder without one; None: any grant.

    Raises:
        TypeError, ValueError: it is no fencing number, no Holder, or both were given.
    """
    if holder is None:
        return None if number is None else check_number(number, "the number of a grant, as in holder().number,")
    if number is not None:
        raise TypeError("pass the number of a grant or the holder, not both")
    if not isinstance(holder, Holder):
        raise TypeError(f"holder is what holder() or holders() returned, not {type(holder).__name__}")
    return holder if holder.number is None else holder.number
