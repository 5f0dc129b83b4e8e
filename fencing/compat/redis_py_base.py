"""The part that the sync and the async lock of redis-py's interface share: state, settings, plans and errors."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError

from fencing.kernel import process
from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable, LeaseLost, LossReason
from fencing.kernel.fence import Fence, check_resource, granted_fence
from fencing.kernel.guard import check_guards
from fencing.locks import plans
from fencing.locks.backend import Backend
from fencing.locks.coordinator import CoordinatorBase
from fencing.locks.holding import Grant
from fencing.locks.lease import Lease
from fencing.locks.lease_async import AsyncLease
from fencing.locks.settings import MAX_TTL, MIN_TTL, Settings, check_flag, check_timeout
from fencing.locks.ttl import set_ttl

logger = logging.getLogger("fencing")

QUEUE_SLEEP = 0.1
"""The default of ``sleep``. With another one the lock polls, as redis-py's does."""

NOT_HELD = "Cannot release a lock that's not owned or is already unlocked."


class LockLost(LeaseLost, LockNotOwnedError):
    """A lock that is no longer its holder's, as an error of both libraries."""

    def __init__(self, *, fence: Fence, reason: LossReason, completed: bool = False, cause: str | None = None) -> None:
        super().__init__(fence=fence, reason=reason, completed=completed, cause=cause)
        self.lock_name = fence.resource


class LockUnavailable(CoordinatorUnavailable, RedisConnectionError):
    """A Redis that did not answer, as an error of both libraries."""


class FromLease(bytes):
    """The token that redis-py's polling passes on, in the place of the lease's own. See ``do_acquire``."""


FROM_LEASE: Any = FromLease(b"of the lease")


class _Local:
    token: bytes | None = None
    lease: Any = None
    asked: bytes | None = None  # a token of the caller's own whose release got no answer


Held = tuple[Any, Any]
"""What a lock object holds: token and lease. Without a lease, the token is the caller's own."""


class _Droppable:
    """A lease that may be dropped without a release, as a lock of redis-py, unless it is renewed."""

    _holding: Grant
    _freed: bool | None
    _pid: int

    def __del__(self) -> None:
        if self._freed is None:
            if not self._holding.settings.renew and self._pid == process.pid():
                self._holding.end("abandoned")
            super().__del__()  # type: ignore[misc]


class DroppableLease(_Droppable, Lease):
    pass


class AsyncDroppableLease(_Droppable, AsyncLease):
    pass


class RedisPyLockBase:
    """The part of both classes that needs no I/O."""

    redis: Any
    name: Any
    timeout: Any
    sleep: Any
    blocking: Any
    blocking_timeout: Any
    thread_local: bool
    raise_on_release_error: bool
    local: Any
    coordinator: CoordinatorBase
    _backend: Backend
    _lease_class: type[Lease] | type[AsyncLease]

    def _prepare(self, guards: Iterable[Any], renew: bool, raise_on_release_error: bool) -> None:
        asynchronous = issubclass(self._lease_class, AsyncLease)
        self.raise_on_release_error = raise_on_release_error
        every = SimpleNamespace(token=None, lease=None, asked=None)
        self.local = process.new_local(_Local) if self.thread_local else every
        self._resource = check_resource(_text_of(self._encode(self.name), "the name of a lock"))
        self._guards = check_guards(guards, asynchronous=asynchronous)
        self._renew = check_flag(renew, "renew")
        self._timeout, self._settings = self.timeout, self._settings_of(self.timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._resource!r}>"

    @property
    def fence(self) -> Fence:
        """The fence of this lock while it is held.

        Raises:
            LockError: as for ``lease``.
        """
        fence: Fence = self._held_lease().fence
        return fence

    def _held_lease(self) -> Any:
        token, lease = self._held()
        if lease is None:
            reason = "is not held" if token is None else "has a token of your own; acquire it without one"
            raise _named(LockError(f"there is no lease and no fence: the lock {reason}"), self._resource)
        return lease

    def _encode(self, value: Any) -> Any:
        encode = self.redis.get_encoder().encode
        return encode(value)

    def _settings_of(self, timeout: Any) -> Settings:
        if self._guards:
            return Settings(_seconds(timeout), self._guards, self._renew)
        return _unguarded(timeout, self._renew)

    def _check_token(self, token: Any) -> None:
        if self._guards or self._renew:
            raise ValueError(
                "a token of your own makes no fence, because it may be used twice; leave out token, or guards and renew"
            )
        _text_of(self._encode(token), "a token")

    def _wait_seconds(self, blocking: bool | None, blocking_timeout: float | None) -> float:
        if not (self.blocking if blocking is None else blocking):
            return 0.0
        seconds = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        return math.inf if seconds is None else check_timeout(max(seconds, 0))

    def _plan_acquire(self, seconds: float) -> Plan[Any]:
        if self._timeout != self.timeout:  # redis-py reads the attribute at each acquire, too
            self._settings, self._timeout = self._settings_of(self.timeout), self.timeout
        return plans.acquire(self._backend, self._resource, self._settings, seconds, self._granted)

    def _granted(self, holding: Grant) -> Any:
        """Make the lease of a grant. Called inside the plan, so that no interruption comes between."""
        lease = self._lease_class(self._backend, holding)
        local = self.local
        local.lease, local.token = lease, holding.fence.token.encode()
        return lease

    def _held(self) -> Held:
        """Return what is held. Programs may set ``local.token`` themselves; then it is not the lease's."""
        local = self.local
        token, lease = local.token, local.lease
        if lease is not None and lease._newest is not lease and lease._newest._is_claimed and token == _token_of(lease):
            local.lease = lease = lease._newest
            local.token = token = _token_of(lease)
        if lease is not None and token != _token_of(lease):
            lease = None
        return token, lease

    def owned(self) -> Any:
        """Return whether this lock object holds the lock at the server, as redis-py's does."""
        self._held()  # a lease that was reclaimed has another token
        return super().owned()  # type: ignore[misc]

    def _take_out(self) -> Held:
        """Return what is held, and forget it: another thread or task may acquire as soon as the lock is free."""
        held = token, _ = self._held()
        if token is None:
            raise _named(LockError(NOT_HELD), self._resource)
        self.local.token = self.local.lease = self.local.asked = None
        return held

    def _put_back(self, held: Held) -> None:
        """Restore what is held, because its release was not confirmed."""
        if self.local.token is None:
            self.local.token, self.local.lease = held
            self.local.asked = self.local.token

    def _check_not_asked(self) -> None:
        """Raise if a release of the caller's own token got no answer: it may arrive after an extension."""
        if self.local.token is not None and self.local.token == self.local.asked:
            text = "Cannot extend a lock whose release got no answer; release it again"
            raise _named(LockNotOwnedError(text), self._resource)

    def _plan_release_token(self, token: Any) -> Plan[bool]:
        text = token if isinstance(token, str) else _text_of(token, "a token")
        # Any number: a release is by the token alone.
        return plans.release(self._backend, granted_fence(self._resource, 1, text), self._settings)

    def _not_owned(self, lease: Any) -> LockError:
        """Return the error of a release that had nothing to free."""
        if lease is None:
            return _named(LockNotOwnedError("Cannot release a lock that's no longer owned"), self._resource)
        lost: LeaseLost = lease._lost(_loss_of(lease))
        return LockLost(fence=lost.fence, reason=lost.reason, cause=lost.cause)

    def _plan_extend(self, lease: Any, seconds: float, replace: bool) -> Plan[Literal[True]]:
        """Set the ttl. Reading it comes first, so that both requests can be repeated after a lost reply."""
        holding: Grant = lease._holding
        settings = holding.settings
        milliseconds = _extension(seconds, replace)
        if holding.lost is not None or lease._ended is not None:
            raise LockLost(fence=holding.fence, reason=lease._loss() or "gone")
        try:
            if not settings.renew:  # or else the next renewal sets the full ttl anyway
                if not replace:
                    holder = yield from plans.holder(self._backend, self._resource, settings)
                    if holder is None or holder.remaining is None:
                        raise LeaseLost(fence=holding.fence, reason="gone")
                    milliseconds += round(holder.remaining * 1000)
                    if milliseconds < MIN_TTL * 1000:
                        raise ValueError(
                            f"additional_time leaves less than {MIN_TTL} seconds; release the lock instead"
                        )
                settings = Settings(ttl=(milliseconds - 0.5) / 1000, renew=False)  # Settings rounds up
            yield from set_ttl(self._backend, holding, settings)
        except LeaseLost as lost:
            holding.lose("gone")
            raise LockLost(fence=lost.fence, reason="gone") from None
        return True

    def _at_exit(self, failure: Exception, error: BaseException | None) -> None:
        """Raise or log the failure of a release at the end of a block. It never masks the error of the block."""
        lost = isinstance(failure, (LockError, LeaseLost))
        if error is None and (not lost or self.raise_on_release_error):
            if isinstance(failure, LeaseLost) and not isinstance(failure, LockLost):
                raise LockLost(
                    fence=failure.fence, reason=failure.reason, completed=True, cause=failure.cause
                ) from None
            raise failure
        logger.warning("the lock on %r was not released at the end of its block: %s", self._resource, failure)


def _token_of(lease: Any) -> bytes:
    token: str = lease.fence.token
    return token.encode()


def _seconds(timeout: Any) -> float | None:
    """Return the ttl of a redis-py time-out; 0 means none there, too."""
    if not timeout:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, or None, not {type(timeout).__name__}")
    if not MIN_TTL <= timeout <= MAX_TTL:
        raise ValueError(f"timeout must be None, or between {MIN_TTL} seconds and a year, not {timeout}")
    return float(timeout)


@lru_cache(maxsize=64, typed=True)
def _unguarded(timeout: Any, renew: bool) -> Settings:
    return Settings(_seconds(timeout), renew=renew)


def _extension(seconds: Any, replace: bool) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"additional_time must be a number of seconds, not {type(seconds).__name__}")
    if not (MIN_TTL if replace else -MAX_TTL) <= seconds <= MAX_TTL:
        least = f"at least {MIN_TTL} seconds, and " if replace else ""
        raise ValueError(f"additional_time must be {least}at most a year, not {seconds}")
    return int(seconds * 1000)


def _text_of(encoded: Any, subject: str) -> str:
    try:
        return bytes(encoded).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{subject} must be UTF-8 text, not {bytes(encoded)!r:.80}") from None


def _named(error: LockError, resource: str) -> LockError:
    error.lock_name = resource  # older versions of redis-py do not take it
    return error


def _loss_of(lease: Any) -> LossReason:
    if lease._ended == "forked":
        return "forked"
    reason: LossReason = lease._holding.lost or ("expired" if lease._until_deadline() <= 0 else "gone")
    return reason


def raise_unavailable(error: CoordinatorUnavailable) -> NoReturn:
    raise LockUnavailable(str(error), resource=error.resource, address=error.address) from error
