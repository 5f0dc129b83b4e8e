"""The names of the keys, protocol version 1. Pure functions.

Every key of a resource is in the resource's own slot of a Redis Cluster, even if the name contains braces. The
library's keys carry a hash tag of that slot. There is one counter per slot, not per name, so no key stays behind for
every name ever locked. See https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ (key
distribution, hash tags).
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from fencing.redis.resp import bulks

SLOTS = 16384


class Keys(NamedTuple):
    """The Redis keys of one resource; two of them also packed, for renewals."""

    lock: str
    holder: str
    counter: str
    queue: str
    listeners: str
    forced: str
    packed: bytes  # lock and holder
    slot: int


def slot_of(key: bytes) -> int:
    """Return the cluster slot of a key: CRC16 (XMODEM) of its hash tag, or of the key if it has none."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


class _Tags:
    """The hash tags: for each slot, the smallest decimal number whose text belongs to it.

    Numbers are tried in order, as far as needed: about 5 ms for the first slot, 40 ms for all. Threads that try the
    same numbers get the same result.
    """

    def __init__(self) -> None:
        self._found: dict[int, str] = {}
        self._tried = 0  # all numbers below this were tried

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
    """Return the hash tag that puts a key into the slot of ``resource``."""
    return _tags[slot_of(resource.encode())]


def holder_pattern(pattern: str) -> str:
    """Return SCAN's pattern for the holder records of the matching resources, and perhaps of some more.

    Args:
        pattern: ``*`` stands for any characters, ``?`` for one. A character may be several bytes at Redis.
    """
    return "fencing:1:{*}:holder:" + re.sub(r"([\[\]\\])", r"\\\1", pattern).replace("?", "*")


_HOLDER_KEY = re.compile(r"fencing:1:\{(\d+)\}:holder:(.*)", re.DOTALL)


def resources_of(keys: Iterable[bytes]) -> dict[str, str]:
    """Return the holder records among keys, by their resources. A key that only looks like one is left out."""
    found = {}
    for key in keys:
        text = key.decode("utf-8", "replace")
        match = _HOLDER_KEY.fullmatch(text)
        if match and match[2] and text.encode() == key and tag_of(match[2]) == match[1]:
            found[match[2]] = text
    return found


@lru_cache(maxsize=8192)  # names in use: renewals need the same ones every few seconds
def keys_of(resource: str) -> Keys:
    """Return the keys of a resource. The lock's key is the resource's name, the same as redis-py's ``Lock`` uses."""
    slot = slot_of(resource.encode())
    prefix = f"fencing:1:{{{_tags[slot]}}}"
    lock, holder, counter = resource, f"{prefix}:holder:{resource}", f"{prefix}:counter"
    queue, listeners = f"{prefix}:waiting:{resource}", f"{prefix}:listeners:{resource}"
    forced = f"{prefix}:forced:{resource}"
    return Keys(lock, holder, counter, queue, listeners, forced, packed=bulks((lock, holder)), slot=slot)
