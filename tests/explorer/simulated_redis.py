"""A Redis in a dict, with a clock that stands still: the commands the scripts use, and the scripts in Python.

Each script follows its file in ``fencing/lua`` line by line, to be read side by side. ``test_simulated_redis.py``
compares it with real servers, reply by reply and key by key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["EMPTY", "Reply", "ScriptError", "SimulatedRedis", "Snapshot"]

MAX_NUMBER = 9007199254740991
PLAUSIBLE_STEP = 1125899906842624

_RECORD = re.compile(rb"(\d+) (\d+) (\S+) (.*)", re.DOTALL)
_INTEGER = re.compile(rb"0|-?[1-9]\d*")

Reply = list[bytes | int]


class Entry(NamedTuple):
    """One key. A value of None stands for one that is no string (a list, say)."""

    key: str
    value: bytes | None
    expires_ms: int | None


class Snapshot(NamedTuple):
    """All of a Redis, hashable."""

    entries: tuple[Entry, ...]
    clock_us: int


EMPTY = Snapshot((), 0)


class ScriptError(Exception):
    """What Redis answers instead of a reply. What the script wrote before stays written."""


class SimulatedRedis:
    """Redis as far as the scripts know it. Time passes only where the caller moves ``clock_us``."""

    def __init__(self, snapshot: Snapshot = EMPTY) -> None:
        self.clock_us = snapshot.clock_us
        self._entries = {entry.key: entry for entry in snapshot.entries}

    def snapshot(self) -> Snapshot:
        return Snapshot(tuple(sorted(filter(None, map(self._alive, self._entries)))), self.clock_us)

    # The commands

    def _alive(self, key: str) -> Entry | None:
        entry = self._entries.get(key)
        if entry is None or (entry.expires_ms is not None and entry.expires_ms * 1000 <= self.clock_us):
            return None
        return entry

    def get(self, key: str) -> bytes | None:
        entry = self._alive(key)
        if entry is None:
            return None
        if entry.value is None:
            raise ScriptError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return entry.value

    def set(self, key: str, value: bytes | None, px: bytes | None = None) -> None:
        self._entries[key] = Entry(key, value, None if px is None else self.clock_us // 1000 + int(px))

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._entries.pop(key, None)

    def pexpire(self, key: str, px: bytes) -> None:
        entry = self._alive(key)
        if entry is not None:
            self._entries[key] = entry._replace(expires_ms=self.clock_us // 1000 + int(px))

    def pttl(self, key: str) -> int:
        entry = self._alive(key)
        if entry is None:
            return -2
        return -1 if entry.expires_ms is None else entry.expires_ms - self.clock_us // 1000

    def incr(self, key: str) -> None:
        entry = self._alive(key) or Entry(key, b"0", None)
        value = self.get(key) if self._alive(key) else b"0"
        if value is None or not _INTEGER.fullmatch(value) or not -(2**63) <= int(value) < 2**63 - 1:
            raise ScriptError("ERR value is not an integer or out of range")
        self._entries[key] = entry._replace(value=b"%d" % (int(value) + 1))

    # The scripts

    def run(self, script: str, keys: Sequence[str], args: Sequence[str | int]) -> Reply:
        """Run a script by its name. Raises ScriptError where Redis would answer with an error."""
        scripts: dict[str, Callable[[Sequence[str], Sequence[bytes]], Reply]] = {
            "acquire": self._acquire,
            "renew": self._renew,
            "release": self._release,
            "remint": self._remint,
            "force_release": self._force_release,
            "holder": self._holder,
        }
        return scripts[script](keys, [arg.encode() if isinstance(arg, str) else b"%d" % arg for arg in args])

    def _acquire(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        number = self._granted_before(keys, args[0], args[1])
        if number is not None:
            return [b"granted", number]
        holder = self.get(keys[0])
        if holder is not None and holder != args[0]:
            _, _, owner = self._record_of(keys[1], holder)
            return [b"taken", self.pttl(keys[0]), owner or b""]
        return self._mint(keys, args)

    def _remint(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        number = self._granted_before(keys, args[0], args[1])
        if number is not None:
            return [b"granted", number]
        if self.get(keys[0]) not in (args[5], args[0]):
            return [b"gone"]
        return self._mint(keys, args)

    def _force_release(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        number = self._granted_before(keys, args[0], args[1])
        if number is not None:
            return [b"granted", number]
        return self._mint(keys, args)

    def _granted_before(self, keys: Sequence[str], token: bytes, ttl: bytes) -> bytes | None:
        if self.get(keys[0]) != token:
            return None
        number = self._record_of(keys[1], token)[0]
        if number is not None and ttl != b"":
            self.pexpire(keys[0], ttl)
            self.pexpire(keys[1], ttl)
        return number

    def _renew(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        said = []
        for i in range(len(keys) // 2):
            lock, holder, token = keys[2 * i], keys[2 * i + 1], args[i + 1]
            if self.get(lock) == token:
                said.append(self._record_of(holder, token)[0] or b"-")
                self.pexpire(lock, args[0])
                self.pexpire(holder, args[0])
            else:
                said.append(b"gone")
        return [b"renewed", b" ".join(said)]

    def _release(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        if self.get(keys[0]) != args[0]:
            return [b"gone"]
        self.delete(keys[0], keys[1])
        return [b"released"]

    def _holder(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        token = self.get(keys[0])
        if token is None:
            return [b"free"]
        number, granted, owner = self._record_of(keys[1], token)
        held = -1
        if granted is not None:
            held = math.floor((float(self.clock_us) - float(granted)) / 1000)
        return [b"held", self.pttl(keys[0]), held, number or b"", owner or b""]

    # common.lua

    def _record_of(self, holder_key: str, token: bytes) -> tuple[bytes | None, bytes | None, bytes | None]:
        record = self.get(holder_key)
        match = _RECORD.fullmatch(record) if record is not None else None
        if match is None or match[3] != token:
            return None, None, None
        return match[1], match[2], match[4]

    def _check_mint(
        self, counter_key: str, floor: float, clock_floor: bytes, clock: float
    ) -> tuple[float | None, float | Reply]:
        text = self.get(counter_key)
        if text is None:
            text = b"0"
        if not re.fullmatch(rb"\d+", text):
            raise ScriptError(f"FENCING the counter {counter_key} does not hold a number")
        counter = float(text)  # as Lua: a double
        ceiling = max(counter, clock) + PLAUSIBLE_STEP
        if floor > ceiling:
            return None, [b"implausible", _text_of(floor), _text_of(ceiling)]
        last = max(counter, floor)
        if clock_floor == b"1":
            last = max(last, clock)
        if last >= MAX_NUMBER:
            return None, [b"implausible", _text_of(last), _text_of(MAX_NUMBER - 1)]
        return last, counter

    def _set(self, key: str, value: bytes, ttl: bytes) -> None:
        if ttl == b"":
            self.set(key, value)
        else:
            self.set(key, value, px=ttl)

    def _mint(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        token, ttl, owner = args[0], args[1], args[4]
        clock = float(self.clock_us)
        last, counter = self._check_mint(keys[2], float(args[2]), args[3], clock)
        if last is None or isinstance(counter, list):
            assert isinstance(counter, list)
            return counter
        if last > counter:
            self.set(keys[2], _text_of(last))
        self.incr(keys[2])
        number = self.get(keys[2])
        assert number is not None
        self._set(keys[0], token, ttl)
        self._set(keys[1], b"%b %b %b %b" % (number, _text_of(clock), token, owner), ttl)
        return [b"granted", number]


def _text_of(number: float) -> bytes:
    return b"%.0f" % number
