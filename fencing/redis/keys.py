"""The names of the keys, protocol version 1. Pure.

Every key of a resource lies in the resource's own slot of a Redis Cluster, whatever braces its name has: the
library's keys carry a hash tag that falls into that slot. One counter per slot, not per name, so no key is left
behind for every name ever locked. See https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ (key
distribution, hash tags).
"""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache
from typing import NamedTuple

from fencing.redis.resp import bulks

SLOTS = 16384


class Keys(NamedTuple):
    """The Redis keys of one resource; two of them packed, as renewals need them."""

    lock: str
    holder: str
    counter: str
    queue: str
    offered: str
    packed: bytes  # lock and holder


def slot_of(key: bytes) -> int:
    """The cluster slot of a key: CRC16 (XMODEM) of its hash tag, or of all of it."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


class _Tags:
    """For each slot the smallest decimal number whose text falls into it. They are tried in their order, as far as is
    needed: some 5 ms for the first slot, 40 ms for all. Threads may try the same ones, and find the same.
    """

    def __init__(self) -> None:
        self._found: dict[int, str] = {}
        self._tried = 0  # all below

    def __getitem__(self, slot: int) -> str:
        number = self._tried
        while slot not in self._found:
            text = b"%d" % number
            self._found.setdefault(crc_hqx(text, 0) % SLOTS, text.decode())
            number += 1
        self._tried = number
        return self._found[slot]


_tags = _Tags()


def tag_of(resource: str) -> str:
    """The hash tag that puts a key into the slot of ``resource``."""
    return _tags[slot_of(resource.encode())]


@lru_cache(maxsize=8192)  # of names in use: a renewal asks for the same ones every few seconds
def keys_of(resource: str) -> Keys:
    """The keys of a resource. The lock is the resource's own name, as redis-py's ``Lock`` uses it."""
    prefix = f"fencing:1:{{{tag_of(resource)}}}"
    lock, holder, counter = resource, f"{prefix}:holder:{resource}", f"{prefix}:counter"
    queue, offered = f"{prefix}:queue:{resource}", f"{prefix}:offered:{resource}"
    return Keys(lock, holder, counter, queue, offered, packed=bulks((lock, holder)))
