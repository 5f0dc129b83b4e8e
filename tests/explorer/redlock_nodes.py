"""A node of Redlock in a dict: the scripts of ``fencing/redlock/lua`` in Python, to be read side by side."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

from fencing.redlock.calls import MEMBER_KEYS
from tests.explorer.simulated_redis import MAX_NUMBER, Reply, ScriptError, SimulatedRedis

__all__ = ["BACK", "HIGHEST", "MEMBER", "SEED", "Node"]

MEMBER, BACK, SEED, HIGHEST = MEMBER_KEYS
PROPOSAL_AHEAD = 60_000_000

_WORDS = re.compile(rb"(\S+) (\d+) ([01])")
_BACK = re.compile(rb"(\S+) (\d+) us")


class Node(SimulatedRedis):
    """The scripts of one node. Time passes only where the caller moves ``clock_us``."""

    def run(self, script: str, keys: Sequence[str], args: Sequence[str | int]) -> Reply:
        scripts: dict[str, Callable[[Sequence[str], Sequence[bytes]], Reply]] = {
            "acquire": self._acquire_here,
            "remint": self._remint_here,
            "force_release": self._force_here,
            "renew": self._renew_here,
            "highest": self._highest,
            "join": self._join,
        }
        if script not in scripts:
            return super().run(script, keys, args)
        return scripts[script](keys, [arg.encode() if isinstance(arg, str) else b"%d" % arg for arg in args])

    # member.lua

    def _ms_to_wait(self, run_id: bytes, longest: bytes) -> int:
        now = self.clock_us
        match = _BACK.fullmatch(self.get(BACK) or b"")
        since = match[2] if match and match[1] == run_id else None
        if since is None:
            since = b"%d" % now
            self.set(BACK, run_id + b" " + since + b" us")
        return max(0, int(longest) - (now - int(since)) // 1000)

    def _refuse_stranger(self, args: Sequence[bytes]) -> tuple[bytes | int, ...] | None:
        given = args[-1]
        member = self.get(MEMBER)
        if member == given:
            return None
        for key in (MEMBER, BACK):
            if re.match(rb"\d+:", self.get(key) or b""):
                raise ScriptError(f"FENCING the key {key} does not hold what this version knows")
        words = _WORDS.fullmatch(given)
        assert words is not None
        run_id, longest, wait = words.groups()
        old = _WORDS.fullmatch(member) if member is not None else None
        if old is not None:
            if (old[2], old[3]) != (longest, wait):
                return b"setting", old[2], old[3]
            if wait == b"0" or old[1] == run_id:
                self.set(MEMBER, given)
                return None
        return b"back", self._ms_to_wait(run_id, longest), self.get(HIGHEST) or b"0"

    def _raise_numbers(self, counter_key: str, number: int) -> None:
        counter = self._number_at(counter_key)
        if counter is not None and counter < number:
            self.set(counter_key, b"%d" % number)
        self._raise_highest(number)

    def _raise_highest(self, number: int) -> None:
        if int(self.get(HIGHEST) or b"0") < number:
            self.set(HIGHEST, b"%d" % number)

    # grant.lua

    def _grant(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        token, ttl, owner = args[0], args[1], args[2]
        clock = float(self.clock_us)
        following, refused = self._check_mint(keys[2], float(args[3]), b"0", clock)
        if following is None:
            assert isinstance(refused, tuple)
            return refused
        proposal = float(args[4])
        if proposal > clock + PROPOSAL_AHEAD:
            proposal = 1
        following = max(following, float(self.get(SEED) or b"0") + 1, proposal)
        if following > MAX_NUMBER:
            return b"implausible", b"%.0f" % (following - 1), b"%d" % (MAX_NUMBER - 1)
        number = b"%.0f" % following
        self.set(keys[0], token, px=ttl)
        self.set(keys[1], b"%b %b %.0f %b" % (number, token, clock, owner), px=ttl)
        self._raise_numbers(keys[2], int(number))
        return number

    def _taken(self, keys: Sequence[str], holder: bytes) -> Reply:
        owner = self._record_of(keys[1], holder)[2]
        return b"taken", self.pttl(keys[0]), owner or b"", self._digest_of(holder)

    def _digest_of(self, token: bytes) -> bytes:
        return hashlib.sha1(token, usedforsecurity=False).hexdigest()[:16].encode()

    # The scripts

    def _acquire_here(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        refused = self._refuse_stranger(args)
        if refused is not None:
            return refused
        holder = self.get(keys[0])
        if holder == args[0]:
            number = self._granted_before(keys, args[0], args[1])
            if number is not None:
                return number
        elif holder is not None:
            return self._taken(keys, holder)
        return self._grant(keys, args)

    def _remint_here(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        refused = self._refuse_stranger(args)
        if refused is not None:
            return refused
        holder = self.get(keys[0])
        if holder == args[0]:
            number = self._granted_before(keys, args[0], args[1])
            if number is not None:
                return number
        elif holder != args[5] or int(self._record_of(keys[1], holder)[0] or b"0") > int(args[6]):
            return self._taken(keys, holder or b"")
        return self._grant(keys, args)

    def _force_here(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        refused = self._refuse_stranger(args)
        if refused is not None:
            return refused
        holder = self.get(keys[0])
        if holder == args[0]:
            number = self._granted_before(keys, args[0], args[1])
            if number is not None:
                return number
        elif holder is not None and self._digest_of(holder) != args[5]:
            return self._taken(keys, holder)
        elif holder is None and args[6] != b"1":
            return self._taken(keys, b"")
        return self._grant(keys, args)

    def _renew_here(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        refused = self._refuse_stranger(args)
        if refused is not None:
            return refused
        results = []
        for i in range((len(keys) - 4) // 3):
            lock, holder, counter = keys[3 * i : 3 * i + 3]
            ttl, token, start = args[3 * i : 3 * i + 3]
            number = start.split(b" ")[0]
            if self._read(lock) != token:
                results.append(b"g")
                continue
            own = granted = owner = released = None
            if self._read(holder) is not None:
                own, granted, owner, released = self._record_of(holder, token)
            if own is not None and self._is_newer(own, number):
                results.append(b"o")
                continue
            results.append(b"r")
            if own != number:
                times = (granted or b"%d" % self.clock_us) + (released or b"")
                self.set(holder, b"%b %b %b %b" % (number, token, times, owner or b""))
                self._raise_numbers(counter, int(number))
            self.pexpire(lock, ttl)
            self.pexpire(holder, ttl)
        return b"".join(results)

    def _is_newer(self, own: bytes, number: bytes) -> bool:
        return int(own) > int(number)

    def _highest(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        refused = self._refuse_stranger(args)
        highest = self.get(HIGHEST) or b"0"
        if refused is None:
            return b"member", highest
        if refused[0] == b"back":
            return b"stranger", highest, refused[1], self.get(BACK) or b""
        return refused

    def _join(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        refused = self._refuse_stranger(args)
        highest = self.get(HIGHEST) or b"0"
        if refused is None:
            return b"member", highest
        if refused[0] != b"back":
            return refused
        if self.get(BACK) not in args[2:-1]:
            return refused
        if args[1] == b"1":
            if highest != b"0" or self.exists(MEMBER):
                return b"used", highest
        elif int(refused[1]) > 0:
            return refused
        seed = max(int(args[0]), int(self.get(SEED) or b"0"))
        self.set(SEED, b"%d" % seed)
        if int(highest) < seed:
            self.set(HIGHEST, b"%d" % seed)
        self.set(MEMBER, args[-1])
        self.delete(BACK)
        return b"member", self.get(HIGHEST) or b"0"
