"""Locks that people write by hand. Only `Right` is right, as far as a lock in one Redis can be. Compare yours.

`step` and `clock` belong to the demo. `step` stops there, where a crash or a pause can happen as well. `clock` is the
wall clock of the client's machine, which may differ from that of another.
"""

import secrets
import time
from collections.abc import Callable

import redis


class Lock:
    """A lock with a name. Its `release` says whether this process had it until then; None: it does not know."""

    def __init__(
        self,
        client: redis.Redis,
        key: str,
        ttl: float,
        step: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.client = client
        self.key = key
        self.ttl_ms = int(ttl * 1000)
        self.step = step
        self.clock = clock
        self.token = secrets.token_hex(16).encode()

    def acquire(self) -> bool:
        return bool(self.client.set(self.key, self.token, nx=True, px=self.ttl_ms))

    def release(self) -> bool | None:
        self.client.delete(self.key)
        return None


class SetOnly(Lock):
    """WRONG: without an expiry, the lock of a process that crashed stays."""

    def acquire(self) -> bool:
        return bool(self.client.setnx(self.key, self.token))


class SetThenExpire(Lock):
    """WRONG: two requests, and a crash between them leaves a lock without an expiry."""

    def acquire(self) -> bool:
        if not self.client.setnx(self.key, self.token):
            return False
        self.step()
        self.client.pexpire(self.key, self.ttl_ms)
        return True


class ExpiryAsValue(Lock):
    """WRONG: the clients' clocks say when it ends, a refused client replaces the end, and the value names no owner.

    As it is published: with the comparison of GETSET's reply, and with a look at the clock before the DEL.
    """

    def acquire(self) -> bool:
        self.ends = self.clock() + self.ttl_ms / 1000
        if self.client.setnx(self.key, self.ends):
            return True
        before = self.client.get(self.key)
        if before is None or float(before) > self.clock():
            return False
        self.step()
        return bool(self.client.getset(self.key, self.ends) == before)

    def release(self) -> bool | None:
        if self.ends <= self.clock():
            return False
        self.step()
        return super().release()


class DeletedByAnyone(Lock):
    """WRONG: the DEL of a late process frees the lock of the next one."""


class CompareThenDelete(Lock):
    """WRONG: between the GET and the DEL, the lock can expire and become another's."""

    def release(self) -> bool | None:
        if self.client.get(self.key) != self.token:
            return False
        self.step()
        self.client.delete(self.key)
        return True


class Right(Lock):
    """One request takes it, with an expiry and a token. One script compares the token and frees it."""

    SCRIPT = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

    def release(self) -> bool | None:
        return bool(self.client.eval(self.SCRIPT, 1, self.key, self.token))


class AlwaysTaken(Right):
    """WRONG: after the last try, the acquire says True as well."""

    def acquire(self) -> bool:
        for _ in range(3):
            if super().acquire():
                break
        return True


class AlwaysFreed(Right):
    """WRONG: the release says True, whatever happened."""

    def release(self) -> bool | None:
        super().release()
        return True


class TakenAsText(Right):
    """WRONG: redis-py answers True and not "OK". So a lock that it got counts as refused."""

    def acquire(self) -> bool:
        return self.client.set(self.key, self.token, nx=True, px=self.ttl_ms) == "OK"


class FreedAsText(Right):
    """WRONG: the script's reply is a number. Compared with a text, it is never equal: nothing ever counts as freed."""

    def release(self) -> bool | None:
        return bool(self.client.eval(self.SCRIPT, 1, self.key, self.token) == b"1")
