"""Locks that people write by hand. Only the last one is right, as far as a lock in one Redis can be. Compare yours.

`step` belongs to the demo: it stops there, where a crash or a pause can happen as well.
"""

import secrets
import time
from collections.abc import Callable

import redis


class Lock:
    """A lock with a name. Its `release` says whether this process had it until then; None: it does not know."""

    def __init__(self, client: redis.Redis, key: str, ttl: float, step: Callable[[], None]) -> None:
        self.client = client
        self.key = key
        self.ttl_ms = int(ttl * 1000)
        self.step = step
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
    """WRONG: two processes that see the same old value both take over."""

    def acquire(self) -> bool:
        now = time.time()
        if self.client.setnx(self.key, now + self.ttl_ms / 1000):
            return True
        if float(self.client.get(self.key) or 0) > now:
            return False
        self.step()
        self.client.getset(self.key, now + self.ttl_ms / 1000)
        return True


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


class AlwaysTrue(Right):
    """WRONG: the release says True, whatever happened."""

    def release(self) -> bool | None:
        super().release()
        return True


class WrongType(Right):
    """WRONG: redis-py answers True and not "OK". So a lock that it got counts as refused."""

    def acquire(self) -> bool:
        return self.client.set(self.key, self.token, nx=True, px=self.ttl_ms) == "OK"
