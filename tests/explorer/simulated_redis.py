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

ACCEPT_MS = 250
SPREAD_MS = 50
OFFERED_MS = 2500
QUEUE_MS = 30000
LONGEST_RECHECK_MS = 10000
FOREIGN_RECHECK_MS = 1000
MOST_PASSED = 1000
MOST_SEARCHED = 128

_RECORD = re.compile(rb"(\d+) (\d+) (\S+) (.*)", re.DOTALL)
_ENTRY = re.compile(rb"(\S+) (\S+)")
_FIRST_WORD = re.compile(rb"\S+")
_INTEGER = re.compile(rb"0|-?[1-9]\d*")

Reply = list[bytes | int]

Scored = tuple[tuple[float, bytes], ...]
Members = tuple[bytes, ...]


class Entry(NamedTuple):
    """One key: a string, a sorted set (by score), or a set (sorted). None stands for another kind (a list, say)."""

    key: str
    value: bytes | Scored | Members | None
    expires_ms: int | None


class Snapshot(NamedTuple):
    """All of a Redis, hashable; and which listeners listen."""

    entries: tuple[Entry, ...]
    clock_us: int
    listening: frozenset[bytes] = frozenset()


EMPTY = Snapshot((), 0)


class ScriptError(Exception):
    """What Redis answers instead of a reply. What the script wrote before stays written."""


class SimulatedRedis:
    """Redis as far as the scripts know it. Time passes only where the caller moves ``clock_us``."""

    def __init__(self, snapshot: Snapshot = EMPTY) -> None:
        self.clock_us = snapshot.clock_us
        self.listening = snapshot.listening
        self.published: list[tuple[bytes, bytes]] = []  # what was received: to which listener, and the text
        self._entries = {entry.key: entry for entry in snapshot.entries}

    def snapshot(self) -> Snapshot:
        alive = sorted(filter(None, map(self._alive, self._entries)), key=lambda entry: entry.key)
        return Snapshot(tuple(alive), self.clock_us, self.listening)

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
        if not isinstance(entry.value, bytes):
            raise _wrong_kind()
        return entry.value

    def set(self, key: str, value: bytes | Scored | Members | None, px: bytes | int | None = None) -> None:
        self._entries[key] = Entry(key, value, None if px is None else self.clock_us // 1000 + int(px))

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._entries.pop(key, None)

    def pexpire(self, key: str, px: bytes | int) -> None:
        entry = self._alive(key)
        if entry is not None:
            self._entries[key] = entry._replace(expires_ms=self.clock_us // 1000 + int(px))

    def pttl(self, key: str) -> int:
        entry = self._alive(key)
        if entry is None:
            return -2
        return -1 if entry.expires_ms is None else entry.expires_ms - self.clock_us // 1000

    def incrby(self, key: str, by: bytes) -> None:
        entry = self._alive(key) or Entry(key, b"0", None)
        value = self.get(key) if self._alive(key) else b"0"
        if value is None or not _INTEGER.fullmatch(value) or not -(2**63) <= int(value) < 2**63 - int(by):
            raise ScriptError("ERR value is not an integer or out of range")
        self._entries[key] = entry._replace(value=b"%d" % (int(value) + int(by)))

    def sorted_set(self, key: str) -> Scored:
        """ZRANGE key 0 -1 WITHSCORES"""
        return tuple(each for each in self._members(key, tuple) if isinstance(each, tuple))

    def zadd_nx(self, key: str, score: bytes, member: bytes) -> None:
        scored = self.sorted_set(key)
        if member not in [each for _, each in scored]:
            self._replace(key, tuple(sorted((*scored, (float(score), member)))))

    def zrem(self, key: str, member: bytes) -> None:
        self._replace(key, tuple(each for each in self.sorted_set(key) if each[1] != member))

    def smembers(self, key: str) -> Members:
        return tuple(each for each in self._members(key, bytes) if isinstance(each, bytes))

    def sadd(self, key: str, member: bytes) -> None:
        self._replace(key, tuple(sorted({*self.smembers(key), member})))

    def srem(self, key: str, member: bytes) -> None:
        self._replace(key, tuple(each for each in self.smembers(key) if each != member))

    def publish(self, listener: bytes, text: bytes) -> int:
        if listener not in self.listening:
            return 0
        self.published.append((listener, text))
        return 1

    def _members(self, key: str, kind: type) -> Scored | Members:
        entry = self._alive(key)
        if entry is None:
            return ()
        if not isinstance(entry.value, tuple) or not isinstance(entry.value[0], kind):
            raise _wrong_kind()
        return entry.value

    def _replace(self, key: str, value: Scored | Members) -> None:
        """Keeps the time it expires; one without members is gone."""
        entry = self._alive(key)
        self._entries[key] = Entry(key, value, entry.expires_ms if entry else None)
        if not value:
            del self._entries[key]

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
        holder = self.get(keys[0])
        if holder == args[0]:
            number = self._granted_before(keys, args[0], args[1])
            if number is not None:
                return [b"granted", number]
        listener = args[5]
        me = listener + b" " + args[0]
        if holder == args[0]:
            return self._take(keys, args, me)
        if holder is None:
            if not self.sorted_set(keys[3]):
                return self._take(keys, args, me)
            last, refused = self._check_mint(keys[2], float(args[2]), args[3], float(self.clock_us))
            if last is None or isinstance(refused, list):
                assert isinstance(refused, list)
                return refused
            self._received_from(listener, keys[4])
            if listener != b"":
                self._queue_up(keys, args, me)
            following = self._hand_over(keys[0], keys[1], keys[3], keys[4], me)
            if following is None or following == me:
                return self._take(keys, args, me)
            holder = self.get(keys[0])
        assert holder is not None
        its_number, _, owner = self._record_of(keys[1], holder)
        left = self.pttl(keys[0])
        if listener == b"":
            return [b"taken", left, owner or b""]
        self._received_from(listener, keys[4])
        self._queue_up(keys, args, me)
        recheck = LONGEST_RECHECK_MS
        if left >= 0:
            recheck = min(recheck, left + 2)
        if its_number is None:
            recheck = min(recheck, FOREIGN_RECHECK_MS)
        queue = self.sorted_set(keys[3])
        if queue[0][1] != me:
            recheck += ACCEPT_MS
        ticket = next(score for score, member in queue if member == me)
        return [b"queued", _text_of(ticket), recheck, owner or b""]

    def _take(self, keys: Sequence[str], args: Sequence[bytes], me: bytes) -> Reply:
        if args[5] != b"":
            self._received_from(args[5], keys[4])
            self.zrem(keys[3], me)
        return self._mint(keys, args)

    def _queue_up(self, keys: Sequence[str], args: Sequence[bytes], me: bytes) -> None:
        ticket = args[6]
        if ticket == b"":
            queue = self.sorted_set(keys[3])
            ticket = _text_of(max(float(self.clock_us), (queue[-1][0] if queue else 0) + 1))
        self.zadd_nx(keys[3], ticket, me)
        self.pexpire(keys[3], QUEUE_MS)

    def _remint(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        holder = self.get(keys[0])
        if holder == args[0]:
            number = self._granted_before(keys, args[0], args[1])
            if number is not None:
                return [b"granted", number]
        elif holder != args[5]:
            return [b"gone"]
        return self._mint(keys, args)

    def _force_release(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        if self.get(keys[0]) == args[0]:
            number = self._granted_before(keys, args[0], args[1])
            if number is not None:
                return [b"granted", number]
        return self._mint(keys, args)

    def _granted_before(self, keys: Sequence[str], token: bytes, ttl: bytes) -> bytes | None:
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
        if args[1] != b"":
            self.zrem(keys[2], args[1] + b" " + args[0])
            self._received_from(args[1], keys[3])
        if self.get(keys[0]) != args[0]:
            return [b"gone"]
        self._hand_over(keys[0], keys[1], keys[2], keys[3], None)
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

    # queue.lua

    def _received_from(self, listener: bytes, offered_key: str) -> None:
        if listener != b"":
            self.srem(offered_key, listener)

    def _notify_next(self, lock_key: str, queue_key: str, offered_key: str, grantee: bytes) -> None:
        notified = {grantee}
        after = ACCEPT_MS + 2
        for _, entry in self.sorted_set(queue_key)[:MOST_SEARCHED]:
            match = _FIRST_WORD.match(entry)
            listener = match[0] if match else b""
            if listener not in notified:
                notified.add(listener)
                text = b"recheck %d %b" % (after, lock_key.encode())
                if listener not in self.smembers(offered_key) and self.publish(listener, text) > 0:
                    if after > ACCEPT_MS + 2:
                        return
                    after += SPREAD_MS

    def _hand_over(
        self, lock_key: str, holder_key: str, queue_key: str, offered_key: str, me: bytes | None
    ) -> bytes | None:
        for _ in range(MOST_PASSED):
            queue = self.sorted_set(queue_key)
            if not queue:
                break
            first = queue[0][1]
            if first == me:
                return me
            match = _ENTRY.fullmatch(first)
            listener, token = match.groups() if match else (None, b"")
            receivers = 0
            if listener is not None and listener in self.smembers(offered_key):
                self.publish(listener, b"passed %b %b" % (token, lock_key.encode()))
            elif listener is not None:
                self.set(lock_key, token, px=ACCEPT_MS)
                receivers = self.publish(listener, b"grant %b %b" % (token, lock_key.encode()))
            self.zrem(queue_key, first)
            if listener is not None and receivers > 0:
                self.delete(holder_key)
                self.sadd(offered_key, listener)
                self.pexpire(offered_key, OFFERED_MS)
                self._notify_next(lock_key, queue_key, offered_key, listener)
                return first
        self.delete(lock_key, holder_key)
        return None

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
        if text != b"0" and not re.fullmatch(rb"[1-9]\d*", text):
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
        self.incrby(keys[2], _text_of(last + 1 - counter))
        number = _text_of(last + 1)
        self._set(keys[0], token, ttl)
        self._set(keys[1], b"%b %b %b %b" % (number, _text_of(clock), token, owner), ttl)
        return [b"granted", number]


def _text_of(number: float) -> bytes:
    return b"%.0f" % number


def _wrong_kind() -> ScriptError:
    return ScriptError("WRONGTYPE Operation against a key holding the wrong kind of value")
