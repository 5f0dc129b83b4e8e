"""A Redis in a dict, with a clock that stands still: the commands the scripts use, and the scripts in Python.

Each script follows its file in ``fencing/lua`` line by line, to be read side by side. ``test_simulated_redis.py``
compares it with real servers, reply by reply and key by key.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["EMPTY", "Reply", "ScriptError", "SimulatedRedis", "Snapshot", "kind_of"]

MAX_NUMBER = 9007199254740991
PLAUSIBLE_STEP = 1125899906842624

ACCEPT_MS = 250
SPREAD_MS = 50
BEHIND_MS = 5
NEW_MS = 250
OFFERED_MS = 2500
QUEUE_MS = 30000
LONGEST_RECHECK_MS = 10000
FOREIGN_RECHECK_MS = 1000
MAX_PASSED = 5000
DRAWN = 8
NOTIFIED = 2
NOTIFIED_AFTER_LONG = 8
LONG_MS = 25

_RECORD = re.compile(rb"(\d+) (\S+) (\d+)(|-\d+) (.*)", re.DOTALL)
_OFFER = re.compile(rb"offer (\S+)")
_ENTRY = re.compile(rb"(\S+) (\S+)")
_LISTENER = re.compile(rb"(\S+) ")
_INTEGER = re.compile(rb"0|-?[1-9]\d*")

Reply = tuple[bytes | int, ...] | bytes | int
"""An array, a string or an integer."""

Scored = tuple[tuple[float, bytes], ...]
Counts = tuple[tuple[bytes, int], ...]


class Entry(NamedTuple):
    """One key: a string, a sorted set (by score), or a hash of integers (by field). None: another kind, say a list."""

    key: str
    value: bytes | Scored | Counts | None
    expires_ms: int | None


class Snapshot(NamedTuple):
    """All of a Redis, hashable; and which listeners listen."""

    entries: tuple[Entry, ...]
    clock_us: int
    listening: frozenset[bytes] = frozenset()


class Sizes(NamedTuple):
    """How many entries a queue has, and how many listeners; or how many have left it."""

    entries: int
    listeners: int

    def without(self, gone: Sizes) -> Sizes:
        return Sizes(self.entries - gone.entries, self.listeners - gone.listeners)


EMPTY = Snapshot((), 0)


class ScriptError(Exception):
    """What Redis answers instead of a reply. What the script wrote before stays written."""


def _is_dead(listener: bytes, receivers: int) -> bool:
    return receivers == 0 and not listener.startswith(b"s{")


class SimulatedRedis:
    """Redis as far as the scripts know it. Time passes only where the caller moves ``clock_us``."""

    excludes = True
    """Whether at most one client holds the lock at a time."""

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

    def set(self, key: str, value: bytes | Scored | Counts | None, px: bytes | int | None = None) -> None:
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

    def incrby(self, key: str, by: bytes) -> int:
        entry = self._alive(key) or Entry(key, b"0", None)
        value = self.get(key) if self._alive(key) else b"0"
        if value is None or not _INTEGER.fullmatch(value) or not -(2**63) <= int(value) < 2**63 - int(by):
            raise ScriptError("ERR value is not an integer or out of range")
        self._entries[key] = entry._replace(value=b"%d" % (int(value) + int(by)))
        return int(value) + int(by)

    def exists(self, *keys: str) -> int:
        return sum(self._alive(key) is not None for key in keys)

    def sorted_set(self, key: str) -> Scored:
        """ZRANGE key 0 -1 WITHSCORES"""
        return self._members(key, float)  # type: ignore[return-value]

    def zadd_nx(self, key: str, score: bytes, member: bytes) -> int:
        scored = self.sorted_set(key)
        if member in [each for _, each in scored]:
            return 0
        self._replace(key, tuple(sorted((*scored, (float(score), member)))))
        return 1

    def zrem(self, key: str, *members: bytes) -> int:
        before = self.sorted_set(key)
        if before:
            self._replace(key, tuple(each for each in before if each[1] not in members))
        return len(before) - len(self.sorted_set(key))

    def hash(self, key: str) -> dict[bytes, int]:
        return dict(self._members(key, bytes))  # type: ignore[arg-type]

    def hincrby(self, key: str, field: bytes, by: int) -> int:
        counts = self.hash(key)
        counts[field] = counts.get(field, 0) + by
        self._replace(key, tuple(sorted(counts.items())))
        return counts[field]

    def hdel(self, key: str, field: bytes) -> int:
        counts = self.hash(key)
        if counts.pop(field, None) is None:
            return 0
        self._replace(key, tuple(sorted(counts.items())))
        return 1

    def publish(self, listener: bytes, text: bytes) -> int:
        if listener not in self.listening:
            return 0
        self.published.append((listener, text))
        return 1

    def _members(self, key: str, kind: type) -> Scored | Counts:
        entry = self._alive(key)
        if entry is None:
            return ()
        if not isinstance(entry.value, tuple) or not isinstance(entry.value[0][0], kind):
            raise _wrong_kind()
        return entry.value

    def _replace(self, key: str, value: Scored | Counts) -> None:
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
            "acquire_any": self._acquire_any,
            "renew": self._renew,
            "release": self._release,
            "release_later": self._release_later,
            "release_several": self._release_several,
            "remint": self._remint,
            "force_release": self._force_release,
            "forced_by": self._forced_by,
            "holder": self._holder,
        }
        return scripts[script](keys, [arg.encode() if isinstance(arg, str) else b"%d" % arg for arg in args])

    def _acquire(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        number = self._acquire_free(keys, args) if len(args) < 4 or len(args) > 6 else None
        if number is not None:
            return number
        token, listener = args[0], args[5] if len(args) > 5 else b""
        own_entry = listener + b" " + token
        holder = self.get(keys[0])
        queued = 1 if holder is not None else len(self.sorted_set(keys[3]))
        if holder == token:
            number = self._granted_before(keys, token, args[1])
            if number is not None:
                return number
        if holder == token or queued == 0:
            if listener != b"":
                self._leave_queue(keys[3], keys[4], listener, own_entry)
            if holder is None and len(args) > 6 and args[6] != b"":
                self.publish(listener, b"passed * %b" % keys[0].encode())
            return self._mint(keys, args)
        if holder is None:
            following, refused = self._check_mint(keys[2], *_floors(args), float(self.clock_us))
            if following is None:
                assert isinstance(refused, tuple)
                return refused
            if listener != b"":
                self._enqueue(keys, args, listener, own_entry)
            sizes = self._sizes_of(keys[3], keys[4])
            sizes = sizes.without(self._drop_silent(keys[0], keys[1], keys[3], keys[4], listener))
            offered = self._hand_over(keys[0], keys[1], keys[3], keys[4], own_entry, sizes)
            if offered is None or offered == own_entry:
                if listener != b"":
                    self._leave_queue(keys[3], keys[4], listener, own_entry)
                return self._mint(keys, args)
            holder = self.get(keys[0])
        assert holder is not None
        its_number, _, owner, _ = self._record_of(keys[1], holder)
        left = self.pttl(keys[0])
        if listener == b"":
            return b"taken", left, owner or b"", *self._offered(keys[1], its_number, left)
        self._counter_of(keys[2])
        self._enqueue(keys, args, listener, own_entry)
        recheck = LONGEST_RECHECK_MS
        if left >= 0:
            recheck = min(recheck, left + 2)
        if its_number is None:
            recheck = min(recheck, FOREIGN_RECHECK_MS)
        before, ticket = next(
            (rank, score) for rank, (score, member) in enumerate(self.sorted_set(keys[3])) if member == own_entry
        )
        recheck += self._behind_ms(before, its_number)
        recheck = min(recheck, self._recheck_of_new(ticket) or recheck)
        return b"queued", _text_of(ticket), recheck, owner or b"", *self._offered(keys[1], its_number, left)

    def _acquire_any(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        token, first, slots = args[0], int(args[5]), (len(keys) - 1) // 4

        def keys_of(slot: int) -> tuple[str, str, str]:
            return keys[4 * slot], keys[4 * slot + 1], keys[-1]

        def with_slot(number: Reply, slot: int) -> Reply:
            return b"%b %d" % (number, slot) if isinstance(number, bytes) else number

        holders: list[bytes | None] = []
        for slot in range(slots):
            holders.append(self._held_by(keys[4 * slot]))
            if holders[slot] == token:
                number = self._granted_before(keys_of(slot), token, args[1])
                return with_slot(self._mint(keys_of(slot), args[:5]) if number is None else number, slot)
        waited_for, least, soonest = -1, -1, -1
        for i in range(slots):
            slot = (first + i) % slots
            if holders[slot] is None:
                if not self.exists(keys[4 * slot + 2]):
                    return with_slot(self._mint(keys_of(slot), args[:5]), slot)
                if waited_for < 0:
                    waited_for = slot
            else:
                left = self.pttl(keys[4 * slot])
                if soonest < 0 or (left >= 0 and (least < 0 or left < least)):
                    least, soonest = left, slot
        owner = None
        if soonest >= 0:
            owner = self._record_of(keys[4 * soonest + 1], holders[soonest] or b"")[2]
        return b"taken", least, owner or b"", waited_for

    def _held_by(self, key: str) -> bytes | None:
        """Return who holds a lock; other data under its name has it, too."""
        try:
            return self.get(key)
        except ScriptError:
            return b""

    def _offered(self, holder_key: str, its_number: bytes | None, left: int) -> tuple[bytes, ...]:
        is_offer = its_number is None and 0 <= left <= ACCEPT_MS
        return (b"offered",) if is_offer and _OFFER.fullmatch(self.get(holder_key) or b"") else ()

    def _behind_ms(self, before: int, its_number: bytes | None) -> int:
        if before > 0 and its_number is not None:
            return ACCEPT_MS
        return min(before * BEHIND_MS, SPREAD_MS)

    def _recheck_of_new(self, ticket: float) -> int | None:
        new_for = self._new_for_ms(ticket)
        return new_for + 1 if new_for > 0 else None

    def _acquire_free(self, keys: Sequence[str], args: Sequence[bytes]) -> bytes | None:
        if len(args) > 6:  # it has a ticket: an offer is accepted
            if args[3:5] != [b"0", b"1"] or args[1] == b"" or self.get(keys[0]) != args[0]:
                return None
            if not (self.get(keys[1]) or b"").startswith(b"offer "):
                return None
        elif self.exists(keys[0], keys[3]) > 0:
            return None
        try:
            last = self.incrby(keys[2], b"1")
        except ScriptError:
            return None
        clock = _text_of(float(self.clock_us))
        number = _text_of(float(last)) if 0 < last <= MAX_NUMBER else None
        if 0 < last < float(clock) <= MAX_NUMBER:
            number = clock
            self.set(keys[2], clock)
        if number is None:
            self.incrby(keys[2], b"-1")
            return None
        self.set(keys[0], args[0], px=args[1])
        self.set(keys[1], b"%b %b %b %b" % (number, args[0], clock, args[2]), px=args[1])
        return number

    def _enqueue(self, keys: Sequence[str], args: Sequence[bytes], listener: bytes, own_entry: bytes) -> None:
        ticket = args[6]
        if ticket == b"":
            queue = self.sorted_set(keys[3])
            ticket = _text_of(max(float(self.clock_us), (queue[-1][0] if queue else 0) + 1))
        if self._join_queue(keys[3], keys[4], listener, own_entry, ticket) and args[6] != b"":
            self.publish(listener, b"passed * %b" % keys[0].encode())

    def _remint(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        holder = self.get(keys[0])
        if holder == args[0]:
            number = self._granted_before(keys, args[0], args[1])
            if number is not None:
                return number
        elif holder != args[5] or not _is_of_grant(self.get(keys[1]), args[5], args[6] + b" " + args[5] + b" "):
            return (b"gone",)
        return self._mint(keys, args)

    def _force_release(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        former = self.get(keys[0])
        if former == args[0]:
            number = self._granted_before(keys, args[0], args[1])
            if number is not None:
                return number
        elif former is None or _digest_of(former) != args[5]:
            return (b"gone",)
        reply = self._mint(keys, args)
        if isinstance(reply, bytes):
            self.set(keys[3], former + b" " + args[2], px=b"60000")
        return reply

    def _forced_by(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        token, _, owner = (self.get(keys[0]) or b"").partition(b" ")
        return owner if token == args[0] else b""

    def _granted_before(self, keys: Sequence[str], token: bytes, ttl: bytes) -> bytes | None:
        number = self._record_of(keys[1], token)[0]
        if number is not None and ttl != b"":
            self.pexpire(keys[0], ttl)
            self.pexpire(keys[1], ttl)
        return number

    def _renew(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        results = []
        for i in range(len(keys) // 2):
            (lock, holder), (ttl, token, own) = keys[2 * i : 2 * i + 2], args[3 * i : 3 * i + 3]
            if self._read(lock) == token:
                if _is_of_grant(self._read(holder), token, own):
                    results.append(b"r")
                    self.pexpire(lock, ttl)
                    self.pexpire(holder, ttl)
                else:
                    results.append(b"o")
            else:
                results.append(b"g")
        return b"".join(results)

    def _read(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except ScriptError:
            return None

    def _release(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        if len(args) < 2 and self.get(keys[0]) == args[0] and not self.exists(keys[2]):
            freed = self.exists(keys[0], keys[1])
            self.delete(keys[0], keys[1])
            return freed
        holds = self.get(keys[0]) == args[0]
        if holds and len(args) > 2:
            holds = (self.get(keys[1]) or b"").startswith(b"offer ")
        sizes = self._sizes_of(keys[2], keys[3])
        if len(args) > 1:
            sizes = sizes.without(self._leave_queue(keys[2], keys[3], args[1], args[1] + b" " + args[0]))
        if not holds:
            return 0
        return 1 if self._hand_over(keys[0], keys[1], keys[2], keys[3], None, sizes) is None else 3

    def _release_later(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        token, new_token, left = args
        holder = self.get(keys[0])
        if holder == new_token:
            return 1
        if holder != token:
            return 0
        first = self.sorted_set(keys[2])[:NOTIFIED_AFTER_LONG]
        number, granted, owner, _ = self._record_of(keys[1], token)
        self.set(keys[0], new_token, px=left)
        if number is not None and granted is not None and owner is not None:
            now = _text_of(float(self.clock_us))
            self.set(keys[1], b"%b %b %b-%b %b" % (number, new_token, granted, now, owner), px=left)
        else:
            self.delete(keys[1])
        recheck = b"recheck %b %b" % (_text_of(min(float(left) + 2, LONGEST_RECHECK_MS)), keys[0].encode())
        notified = [match[1] for _, entry in first if (match := _LISTENER.match(entry))]
        for listener in dict.fromkeys(notified):
            self.publish(listener, recheck)
        return 1

    def _release_several(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        results = []
        for i, token in enumerate(args):
            lock, holder, queue, listeners = keys[4 * i : 4 * i + 4]
            if self._read(lock) != token:
                results.append(b"g")
            else:
                sizes = self._sizes_of(queue, listeners)
                offered = self._hand_over(lock, holder, queue, listeners, None, sizes)
                results.append(b"f" if offered is None else b"o")
        return b"".join(results)

    def _holder(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        token = self.get(keys[0])
        if token is None:
            return (b"free",)
        number, granted, owner, released = self._record_of(keys[1], token)
        held = -1
        if granted is not None:
            held = math.floor((float(self.clock_us) - float(granted)) / 1000)
        left = self.pttl(keys[0])
        try:
            waiting = len(self.sorted_set(keys[2]))
        except ScriptError:
            waiting = -1
        return b"held", left, held, number or b"", owner or b"", _digest_of(token), released or b"", waiting

    # queue.lua

    def _count_down(self, listeners_key: str, listener: bytes) -> int:
        left = self.hincrby(listeners_key, listener, -1)
        if left < 1:
            self.hdel(listeners_key, listener)
        return left

    def _join_queue(self, queue_key: str, listeners_key: str, listener: bytes, entry: bytes, ticket: bytes) -> bool:
        is_first = listener not in self.hash(listeners_key)
        is_new = self.zadd_nx(queue_key, ticket, entry) == 1
        if is_new or is_first:
            self.hincrby(listeners_key, listener, 1)
        self.pexpire(queue_key, QUEUE_MS)
        self.pexpire(listeners_key, QUEUE_MS)
        return is_new and is_first

    def _leave_queue(self, queue_key: str, listeners_key: str, listener: bytes, entry: bytes) -> Sizes:
        if self.zrem(queue_key, entry) == 0:
            return Sizes(0, 0)
        return Sizes(1, int(self._count_down(listeners_key, listener) < 1))

    def _drop(self, queue_key: str, listeners_key: str, listener: bytes) -> Sizes:
        found = [entry for _, entry in self.sorted_set(queue_key) if entry.startswith(listener + b" ")]
        if found:
            self.zrem(queue_key, *found)
        return Sizes(len(found), self.hdel(listeners_key, listener))

    def _drop_silent(
        self, lock_key: str, holder_key: str, queue_key: str, listeners_key: str, own_listener: bytes
    ) -> Sizes:
        match = _OFFER.fullmatch(self.get(holder_key) or b"")
        if match is None:
            return Sizes(0, 0)
        silent = match[1]
        self.delete(holder_key)
        if silent == own_listener:
            return Sizes(0, 0)
        left = self.hash(listeners_key).get(silent, 0)
        dropped = self._drop(queue_key, listeners_key, silent) if left > 0 else Sizes(0, 0)
        self.publish(silent, b"passed * %b" % lock_key.encode())
        return dropped

    def _sizes_of(self, queue_key: str, listeners_key: str) -> Sizes:
        return Sizes(len(self.sorted_set(queue_key)), len(self.hash(listeners_key)))

    def _new_for_ms(self, ticket: float) -> int:
        return NEW_MS - math.floor((self.clock_us - ticket) / 1000)

    def _are_all_new(self, queue_key: str) -> bool:
        return 0 < self._new_for_ms(self.sorted_set(queue_key)[0][0]) <= NEW_MS + 1

    def _how_many_to_notify(self, holder_key: str) -> int:
        match = _RECORD.fullmatch(self._read(holder_key) or b"")
        return NOTIFIED if match and self.clock_us - float(match[3]) < LONG_MS * 1000 else NOTIFIED_AFTER_LONG

    def _send_rechecks(
        self, lock_key: str, queue_key: str, listeners_key: str, grantee: bytes, token: bytes, sizes: Sizes, most: int
    ) -> None:
        """As long as there are at most DRAWN listeners, all are drawn."""
        notified = 0
        if sizes.listeners < 1:
            return
        drawn = sorted(self.hash(listeners_key))
        assert len(drawn) < DRAWN
        others = [each for each in drawn if each != grantee]
        for place in range(1, len(others) + 1):
            listener = others[(place + token[-1]) % len(others)]
            after = ACCEPT_MS + 2 + notified * SPREAD_MS // (most - 1)
            receivers = self.publish(listener, b"recheck %d %b" % (after, lock_key.encode()))
            if _is_dead(listener, receivers) and sizes.entries > 0 and sizes.listeners > 0:
                sizes = sizes.without(self._drop(queue_key, listeners_key, listener))
            notified += receivers
            if notified == most:
                return

    def _hand_over(
        self,
        lock_key: str,
        holder_key: str,
        queue_key: str,
        listeners_key: str,
        own_entry: bytes | None,
        sizes: Sizes,
    ) -> bytes | None:
        for _ in range(MAX_PASSED):
            if sizes.entries < 1:
                break
            first = self.sorted_set(queue_key)[0][1]
            match = _ENTRY.fullmatch(first)
            listener, token = match.groups() if match else (None, b"")
            receivers = 0
            if listener is not None and first != own_entry:
                self.set(lock_key, token, px=ACCEPT_MS)
                receivers = self.publish(listener, b"grant %b %b" % (token, lock_key.encode()))
            sizes = sizes.without(Sizes(self.zrem(queue_key, first), 0))
            left = 0
            if listener is not None and sizes.listeners > 0:
                left = self._count_down(listeners_key, listener)
                if left < 1:
                    sizes = sizes.without(Sizes(0, 1))
            if first == own_entry:
                return own_entry
            if listener is not None and not _is_dead(listener, receivers):
                must_notify = sizes.entries < 1 or not self._are_all_new(queue_key)
                most = self._how_many_to_notify(holder_key) if must_notify else 0
                self.set(holder_key, b"offer " + listener, px=OFFERED_MS)
                if must_notify:
                    self._send_rechecks(lock_key, queue_key, listeners_key, listener, token, sizes, most)
                return first
            if listener is not None and left != 0 and sizes.entries > 0:
                sizes = sizes.without(self._drop(queue_key, listeners_key, listener))
        self.delete(lock_key, holder_key)
        return None

    # common.lua

    def _record_of(self, holder_key: str, token: bytes) -> tuple[bytes | None, ...]:
        record = self.get(holder_key)
        match = _RECORD.fullmatch(record) if record is not None else None
        if match is None or match[2] != token:
            return None, None, None, None
        return match[1], match[3], match[5], match[4]

    def _counter_of(self, counter_key: str) -> float:
        counter = self._number_at(counter_key)
        if counter is None:
            raise ScriptError(f"FENCING the counter {counter_key} does not hold a number")
        return counter

    def _number_at(self, counter_key: str) -> float | None:
        text = self.get(counter_key)
        if text is not None and text != b"0" and not re.fullmatch(rb"[1-9]\d*", text):
            return None
        return float(text or b"0")  # as Lua: a double

    def _check_mint(
        self, counter_key: str, floor: float, clock_floor: bytes, clock: float
    ) -> tuple[float | None, float | tuple[bytes | int, ...]]:
        counter = self._counter_of(counter_key)
        ceiling = max(counter, clock) + PLAUSIBLE_STEP
        if floor > ceiling:
            return None, (b"implausible", _text_of(floor), _text_of(ceiling))
        number = max(counter, floor) + 1
        if clock_floor == b"1":
            number = max(number, clock)
        if number > MAX_NUMBER:
            return None, (b"implausible", _text_of(number - 1), _text_of(MAX_NUMBER - 1))
        return number, counter

    def _set(self, key: str, value: bytes, ttl: bytes) -> None:
        if ttl == b"":
            self.set(key, value)
        else:
            self.set(key, value, px=ttl)

    def _mint(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        token, ttl, owner = args[0], args[1], args[2]
        clock = float(self.clock_us)
        following, counter = self._check_mint(keys[2], *_floors(args), clock)
        if following is None or isinstance(counter, tuple):
            assert isinstance(counter, tuple)
            return counter
        self.incrby(keys[2], _text_of(following - counter))
        number = _text_of(following)
        self._set(keys[0], token, ttl)
        self._set(keys[1], b"%b %b %b %b" % (number, token, _text_of(clock), owner), ttl)
        return number


def _floors(args: Sequence[bytes]) -> tuple[float, bytes]:
    return (float(args[3]), args[4]) if len(args) > 3 else (0.0, b"1")


def _is_of_grant(record: bytes | None, token: bytes, own: bytes) -> bool:
    if record is None or record.startswith(own):
        return True
    return not record.startswith(b"offer ") and b" " + token + b" " not in record


def _digest_of(token: bytes) -> bytes:
    return hashlib.sha1(token, usedforsecurity=False).hexdigest()[:16].encode()


def kind_of(reply: Reply) -> bytes:
    """The first word of an array; empty: the reply is none."""
    return reply[0] if isinstance(reply, tuple) and isinstance(reply[0], bytes) else b""


def _text_of(number: float) -> bytes:
    return b"%.0f" % number


def _wrong_kind() -> ScriptError:
    return ScriptError("WRONGTYPE Operation against a key holding the wrong kind of value")
