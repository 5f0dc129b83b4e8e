"""The names of the keys, protocol version 1. Pure.

Every key of a resource lies in the resource's own slot of a Redis Cluster, whatever braces its name has: the
library's keys carry a hash tag that falls into that slot. One counter per slot, not per name, so no key is left
behind for every name ever locked. See https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ (key
distribution, hash tags).
"""

from __future__ import annotations

from binascii import crc_hqx
from dataclasses import dataclass, field
from functools import cache, lru_cache

from fencing.redis_wire import bulks

__all__ = ["SLOTS", "Keys", "keys_of", "slot_of", "tag_of"]

SLOTS = 16384


@dataclass(frozen=True, slots=True)
class Keys:
    """The Redis keys of one resource; two of them packed, as renewals need them."""

    lock: str
    holder: str
    counter: str
    queue: str
    offered: str
    packed: bytes = field(repr=False)  # lock and holder


def slot_of(key: bytes) -> int:
    """The cluster slot of a key: CRC16 (XMODEM) of its hash tag, or of all of it."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


@cache
def _tags() -> tuple[str, ...]:
    """For each slot the smallest decimal number whose text falls into it. Takes some 0.07 s, once."""
    tags = [""] * SLOTS
    missing = SLOTS
    number = 0
    while missing:
        tag = str(number)
        slot = crc_hqx(tag.encode(), 0) % SLOTS
        if not tags[slot]:
            tags[slot] = tag
            missing -= 1
        number += 1
    return tuple(tags)


def tag_of(resource: str) -> str:
    """The hash tag that puts a key into the slot of ``resource``."""
    return _tags()[slot_of(resource.encode())]


@lru_cache(maxsize=8192)  # of names in use: a renewal asks for the same ones every few seconds
def keys_of(resource: str) -> Keys:
    """The keys of a resource. The lock is the resource's own name, as redis-py's ``Lock`` uses it."""
    prefix = f"fencing:1:{{{tag_of(resource)}}}"
    lock, holder, counter = resource, f"{prefix}:holder:{resource}", f"{prefix}:counter"
    queue, offered = f"{prefix}:queue:{resource}", f"{prefix}:offered:{resource}"
    return Keys(lock, holder, counter, queue, offered, packed=bulks((lock, holder)))
