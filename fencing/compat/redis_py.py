# Made from redis_py_async.py by `make faces`: change that file, not this one.
"""The sync lock of redis-py with a fence: the same class, methods and errors, over the locks of this library."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal

import redis.lock

from fencing.compat.redis_py_base import (
    FROM_LEASE,
    QUEUE_SLEEP,
    DroppableLease,
    FromLease,
    RedisPyLockBase,
    raise_unavailable,
)
from fencing.kernel.effects import run
from fencing.kernel.errors import CoordinatorUnavailable, NotAcquired
from fencing.kernel.guard import Guard
from fencing.locks.clients import coordinator_of
from fencing.locks.lease import Lease


class RedisPyLock(RedisPyLockBase, redis.lock.Lock):
    """redis-py's ``Lock`` with a fence: ``client.lock("orders:42", timeout=10, lock_class=RedisPyLock)``.

    It has the methods, attributes and errors of ``redis.lock.Lock``, and is one. The lock is the same key with the same
    kind of value, so both exclude each other. Waiters stand in a queue; with a ``sleep`` other than 0.1 they poll, as
    redis-py's do.

    The lock does not make data safe: two clients can hold it at the same time. A guard does: pass ``guards``, and write
    with ``guard.begin(lock.lease)``. For new code prefer :class:`fencing.FencedLock`.

    Args:
        redis: a ``redis.Redis``. The locks of one client share a few connections of their own, with its settings.
        name: the name of what is protected, and the key.
        timeout: seconds after which the lock frees itself, 0.01 or more; None: never, as in redis-py.
        sleep: seconds between two tries. With 0.1, the default, the lock does not poll.
        blocking: whether ``acquire`` waits.
        blocking_timeout: seconds that ``acquire`` waits; None: for ever.
        thread_local: whether each thread sees only the lock that it acquired itself.
        raise_on_release_error: whether a loss that is noticed at the end of a block is raised, or only logged.
        guards: the guards at which each fence is claimed before ``acquire`` returns.
        renew: whether the lock is renewed automatically, every third of its timeout.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    _lease_class = DroppableLease

    def __init__(
        self,
        redis: Any,
        name: Any,
        timeout: float | None = None,
        sleep: float = QUEUE_SLEEP,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        *,
        guards: Iterable[Guard] = (),
        renew: bool = False,
    ) -> None:
        # First: it refuses what is no client.
        self.coordinator = coordinator_of(redis, asynchronous=False, lock="RedisPyLock")
        self._backend = self.coordinator._backend
        super().__init__(redis, name, timeout, sleep, blocking, blocking_timeout, thread_local)
        self._prepare(guards, renew, raise_on_release_error)

    @property
    def lease(self) -> Lease:
        """The lease of this lock while it is held, for guards.

        Raises:
            LockError: the lock is not held, or with a token of the caller's own. It is a ValueError. Acquire the lock
                without ``token``.
        """
        lease: Lease = self._held_lease()
        return lease

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: Any = None,
    ) -> bool:
        """Take the lock, and claim its fence at every guard. Only data that is read after this is protected.

        Args:
            sleep: seconds between two tries, as for the class.
            blocking: whether to wait.
            blocking_timeout: seconds to wait, claims included; None waits for ever.
            token: a token of your own, as in redis-py. The lock then has no fence, no lease and no queue. Use another
                one after an error: requests under the old one may still arrive.

        Returns:
            Whether the lock was acquired.

        Raises:
            CoordinatorUnavailable: no answer; the lock was given back. It is a ``redis.ConnectionError``. Retry.
            GuardUnavailable: no answer in time; the lock was given back. Retry.
            MarkImplausible, GuardNotEnforceable: the set-up is broken. Change it as the message says.
            ValueError: the arguments exclude each other. Change them as the message says.
        """
        if token is not None:
            self._check_token(token)
            return bool(super().acquire(sleep, blocking, blocking_timeout, token))
        if (self.sleep if sleep is None else sleep) == QUEUE_SLEEP:
            return self._acquire(self._wait_seconds(blocking, blocking_timeout))
        acquired = bool(super().acquire(sleep, blocking, blocking_timeout, FROM_LEASE))
        if acquired:
            self.local.token = self.local.lease.fence.token.encode()
        return acquired

    def do_acquire(self, token: Any) -> bool:
        """Try once to take the lock. redis-py's polling calls this."""
        if isinstance(token, FromLease):
            return self._acquire(0.0)
        return bool(super().do_acquire(token))

    def _acquire(self, seconds: float) -> bool:
        try:
            run(self._plan_acquire(seconds), self._backend.perform)
        except NotAcquired:
            return False
        except CoordinatorUnavailable as error:
            raise_unavailable(error)
        return True

    def release(self) -> None:
        """Free the lock. If this is interrupted or gets no answer, the lock object still holds it: call it again.

        Raises:
            LockNotOwnedError: the lock was lost before. It is a LeaseLost, too. Writes that guards acknowledged count.
            LockError: this thread does not hold the lock.
            CoordinatorUnavailable: no answer. It is a ``redis.ConnectionError``. Call it again.
        """
        held = token, lease = self._take_out()
        try:
            if lease is not None:
                freed = lease.release()
            else:
                freed = run(self._plan_release_token(token), self._backend.perform)
        except BaseException as error:
            self._put_back(held)
            if isinstance(error, CoordinatorUnavailable):
                raise_unavailable(error)
            raise
        if not freed:
            raise self._not_owned(lease)

    def register_scripts(self) -> None:
        """Do nothing: only the extension of a lock with a token of the caller's own needs the scripts of redis-py."""

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        """Set the ttl of the lock. ``extend`` and ``reacquire`` call this."""
        lease = self._held()[1]
        if lease is None:
            self._check_not_asked()
            super().register_scripts()
            return super().do_extend(additional_time, replace_ttl)
        try:
            return run(self._plan_extend(lease, additional_time, replace_ttl), self._backend.perform)
        except CoordinatorUnavailable as error:
            raise_unavailable(error)

    def do_reacquire(self) -> Literal[True]:
        """Give the lock its full timeout again."""
        if self._held()[1] is None:
            self._check_not_asked()
            super().register_scripts()
            return super().do_reacquire()
        return self.do_extend(self.timeout, True)

    def __enter__(self) -> RedisPyLock:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock. An error of the block is never masked."""
        try:
            lease = self._held()[1]
            if lease is None:
                self.release()
            else:
                self._take_out()
                lease.__exit__(kind, error, trace)
        except Exception as failure:  # noqa: BLE001 - it is raised, or logged beside the error of the block
            self._at_exit(failure, error)
