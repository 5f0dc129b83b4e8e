"""What is done once per key: the keys, and the error for one that was done. Guards share this."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from fencing.kernel.admission import as_fence
from fencing.kernel.errors import AlreadyDone
from fencing.kernel.fence import Fence, HasFence

MOST_KEY_BYTES = 255
"""The longest key of something that is done once."""


def refuse_once(key: object, subject: str) -> None:
    """Raise TypeError where a guard that does nothing once is given a key. ``subject``: what was to be done."""
    if key is not None:
        raise TypeError(
            f"this guard cannot do {subject} once per key: SQLAlchemyGuard, PsycopgGuard, RedisGuard, the publish() of "
            f"ObjectStoreGuard, MemoryGuard, and their asyncio twins can (docs/guards/once.md)"
        )


def check_once(key: object, holders: Sequence[Fence | HasFence]) -> None:
    """Raise TypeError or ValueError where a block cannot be done once under this key."""
    check_key(key, "once")
    if len(holders) != 1:
        raise ValueError(
            f"once= takes exactly one lease, not {len(holders)}: what is done once is kept under the name of one "
            f"resource; begin the block with that lease alone, or hold one lock for all of it"
        )


def check_key(key: object, name: str) -> str:
    """Return a key of something that is done once. Raise TypeError or ValueError where it is none."""
    if not isinstance(key, str):
        raise TypeError(f'{name} is a str such as "2026-11-23", not {type(key).__name__}')
    if not key or "\0" in key:
        raise ValueError(f"{name} is a text that is not empty, and has no NUL in it, such as 2026-11-23")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is no text that can be encoded as UTF-8: {key!r}") from error
    if size > MOST_KEY_BYTES:
        raise ValueError(f"{name} has {size} bytes, and {MOST_KEY_BYTES} are the most: use a digest of it")
    return key


def already_done(holder: Fence | HasFence, key: str, number: int, second: float) -> AlreadyDone:
    """Return the error for a key that was done before.

    Args:
        holder: the lease or fence that the caller passed.
        key: of what was done.
        number: of the fence under which it was done.
        second: when, since 1970.
    """
    fence = as_fence(holder)
    own = (fence.number, *getattr(holder, "_earlier_numbers", ()))
    at = datetime.fromtimestamp(int(second), UTC)
    return AlreadyDone(resource=fence.resource, key=key, number=number, at=at, is_own=number in own)
