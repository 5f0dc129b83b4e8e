"""The options of coordinators and locks, and their checks."""

from __future__ import annotations

import inspect
import math
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypedDict

from fencing.kernel import process
from fencing.kernel.fence import MAX_RESOURCE_BYTES, check_resource
from fencing.kernel.guard import AsyncGuard, Guard, check_guards

MIN_TTL = 0.01
MAX_TTL = 365 * 24 * 3600.0
MAX_OWNER_CHARACTERS = 200
MAX_PREFIX_BYTES = MAX_RESOURCE_BYTES // 2

DRIFT_FACTOR = 0.01
DRIFT_SECONDS = 0.002
"""A lease is believed to end this much before its ttl. This allows for clocks that run at different rates, and for
Redis' expiry in whole milliseconds. The values are those of the reference implementations (clock drift):
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/"""

TRY_SECONDS = 1.0
"""The time limit of one request of a call that tries once, and of its claims, however long the ttl is."""

LONGEST_ATTEMPT_SECONDS = 10.0
"""The time limit of one request, however long the ttl is."""


STALLED_TTLS = 3
"""For how many ttls leases are renewed while their event loop does not answer, unless ``stall_limit`` is given."""


class _Options(TypedDict, total=False):
    ttl: float
    renew: bool
    max_lifetime: float | None
    owner: str | None
    max_waiters: int | None


class LockOptions(_Options, total=False):
    """The options of sync coordinators and locks. :class:`Settings` describes each option.

    ``guards`` takes sync guards.
    """

    guards: Iterable[Guard]


class AsyncLockOptions(_Options, total=False):
    """The options of async coordinators and locks. :class:`Settings` describes each option.

    ``guards`` takes async guards.
    """

    guards: Iterable[AsyncGuard]
    stall_limit: float


class CoordinatorOptions(LockOptions, total=False):
    """The options of every sync coordinator: those of its locks, and a namespace for their names.

    ``prefix`` stands in front of the name of each of its locks. :class:`fencing.Coordinator` describes it.
    """

    prefix: str | None


class AsyncCoordinatorOptions(AsyncLockOptions, total=False):
    """The options of every async coordinator: those of its locks, and a namespace for their names.

    ``prefix`` stands in front of the name of each of its locks. :class:`fencing.AsyncCoordinator` describes it.
    """

    prefix: str | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked options of a lock.

    Args:
        ttl: seconds that a grant lasts unless it is renewed. None: it never expires, for compatibility layers only.
        guards: the guards at which each fence is claimed before its holder continues.
        renew: whether leases are renewed automatically, from the grant until they end.
        max_lifetime: seconds after the grant at which automatic renewal stops; None: no limit.
        owner: the label that ``holder()`` shows, up to 200 characters; None: host name and process id.
        stall_limit: for asyncio: seconds for which leases are renewed while their event loop does not answer. None is
            three times the ttl; users cannot pass it.
        max_waiters: how many may wait for the lock. Where so many do, ``acquire`` raises NotAcquired at once. None: no
            limit.
        one_try: whether requests are for a call that tries once: a shorter time limit, and few repetitions. Not an
            option of users.
    """

    ttl: float | None = 10.0
    guards: tuple[Guard | AsyncGuard, ...] = ()
    renew: bool = True
    max_lifetime: float | None = None
    owner: str | None = None
    stall_limit: float | None = None
    max_waiters: int | None = None
    one_try: bool = False
    attempt_seconds: float = field(init=False, repr=False, compare=False)
    """The time limit of one request to a server: a third of the ttl, so that a lease survives a lost request."""
    request_seconds: float = field(init=False, repr=False, compare=False)
    """The time limit of a request with its retries, where the caller gave no deadline: two attempts."""
    believed_seconds: float = field(init=False, repr=False, compare=False)
    """How long a grant is believed to last from the moment at which its request was sent."""
    lane_ttl: float = field(init=False, repr=False, compare=False)
    """The shortest ttl of the locks that are renewed together with this one: the power of two up to its own."""
    milliseconds: int | str = field(init=False, repr=False, compare=False)
    """The ttl as an argument of Redis, rounded up; empty: it never expires."""

    def __post_init__(self) -> None:
        longest = TRY_SECONDS if self.one_try else LONGEST_ATTEMPT_SECONDS
        attempt_seconds = min((self.ttl or 10.0) / 3, longest)
        object.__setattr__(self, "attempt_seconds", attempt_seconds)
        object.__setattr__(self, "request_seconds", 2 * attempt_seconds)
        believed_seconds = math.inf if self.ttl is None else self.ttl * (1 - DRIFT_FACTOR) - DRIFT_SECONDS
        object.__setattr__(self, "believed_seconds", believed_seconds)
        object.__setattr__(self, "lane_ttl", math.ldexp(0.5, math.frexp(self.ttl or 1.0)[1]))
        object.__setattr__(self, "milliseconds", "" if self.ttl is None else math.ceil(self.ttl * 1000))

    def for_one_try(self) -> Settings:
        """Return these settings for the requests of a call that tries once."""
        options = self.ttl, self.guards, self.renew, self.max_lifetime, self.owner, self.stall_limit, self.max_waiters
        return Settings(*options, True)

    def changed(self, options: Mapping[str, Any], *, asynchronous: bool, coordinator: type | None = None) -> Self:
        """Return a copy of these settings with a user's options applied, or these settings if there are no options.

        Args:
            asynchronous: whether the guards must be async.
            coordinator: the class of the coordinator that the options are for; error messages then name its own options
                too. None: the options are for a lock.

        Raises:
            TypeError, ValueError: an option is unknown or has a wrong value. Correct it as the message says.
        """
        if not options:
            return self
        for name in options:
            if name not in _NAMES or (name == "stall_limit" and not asynchronous):
                raise TypeError(_unknown_option(name, coordinator, asynchronous=asynchronous))
        if "stall_limit" in options:
            _check_stall_limit(options["stall_limit"])
        given = {name: options.get(name, getattr(self, name)) for name in _NAMES}
        return type(self)(**_check_options(asynchronous=asynchronous, **given))

    @property
    def stall_seconds(self) -> float:
        """For how many seconds leases are renewed while their event loop does not answer."""
        if self.stall_limit is None:
            return math.inf if self.ttl is None else STALLED_TTLS * self.ttl
        return self.stall_limit

    @property
    def owner_label(self) -> str:
        """What ``holder()`` shows: the owner, or host name and process id."""
        return self.owner or _own_label

    def deadline(self, sent_at: float) -> float:
        """Return the moment until which a grant is believed to last, if its request was sent at ``sent_at``."""
        return sent_at + self.believed_seconds


_own_label = ""


def _make_label() -> None:
    global _own_label
    _own_label = f"{socket.gethostname()}:{process.pid()}"


_make_label()
process.after_fork(_make_label)

_NAMES = tuple(each.name for each in fields(Settings) if each.init and each.name != "one_try")
_WAITING = "; ttl sets how long a lock lasts, hold(timeout=...) sets how long to wait for it"
_HINTS = {
    "at_least": "; it is an argument of hold() and locked(), of one lock or of slots; what acquire() takes is freed by "
    "release()",
    "busy": "; it is an argument of locked(); elsewhere catch NotAcquired, or call try_acquire()",
    "clock_floor": "; it is an option of coordinators, and not of those of SQL",
    "replicas": "; it is an option of RedisCoordinator",
    "prefix": "; it is an option of coordinators: make one with it, and use its locks",
    "stall_limit": "; it is an option for asyncio: threads renew leases beside every work",
    "timeout": _WAITING,
    "blocking_timeout": _WAITING,
    "blocking": _WAITING,
}


def _check_options(
    *,
    ttl: object,
    guards: Any,
    renew: object,
    max_lifetime: object,
    owner: object,
    stall_limit: float | None,
    max_waiters: object,
    asynchronous: bool,
) -> dict[str, Any]:
    check_flag(renew, "renew")
    if max_waiters is not None:
        _check_max_waiters(max_waiters)
    if owner is not None:
        if not isinstance(owner, str):
            raise TypeError(f"owner must be a str, not {type(owner).__name__}")
        if not owner.isprintable() or not 1 <= len(owner) <= MAX_OWNER_CHARACTERS:
            raise ValueError(f"owner must be 1 to {MAX_OWNER_CHARACTERS} printable characters")
    seconds = check_seconds(ttl, "ttl")
    if not MIN_TTL <= seconds <= MAX_TTL:
        raise ValueError(
            f"ttl must be between {MIN_TTL} seconds and a year, not {ttl}; a crashed holder blocks others for that long"
        )
    if max_lifetime is not None:
        if not renew:
            raise ValueError(
                "max_lifetime limits automatic renewal, which renew=False turns off; pass max_lifetime=None with it"
            )
        if check_seconds(max_lifetime, "max_lifetime") < seconds:
            raise ValueError(f"max_lifetime must be at least the ttl ({ttl} s), not {max_lifetime}; pass both, or None")
    return {
        "ttl": seconds,
        "guards": check_guards(guards, asynchronous=asynchronous),
        "renew": renew,
        "max_lifetime": max_lifetime,
        "owner": owner,
        "stall_limit": stall_limit,
        "max_waiters": max_waiters,
    }


def _check_max_waiters(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_waiters must be an int, or None for no limit, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"max_waiters must be at least 1, not {value}; try_acquire() and timeout=0 never wait")


def _check_stall_limit(value: object) -> None:
    if value is None:
        raise TypeError("stall_limit must be a number of seconds, not None; a lease whose event loop hangs must end")
    if check_seconds(value, "stall_limit") <= 0:
        raise ValueError(f"stall_limit must be more than 0 seconds, not {value}; leave it out for three times the ttl")


def _unknown_option(name: str, coordinator: type | None, *, asynchronous: bool) -> str:
    import difflib  # only here, for a mistake

    names = [each for each in _NAMES if asynchronous or each != "stall_limit"]

    subject = "a lock"
    own_options: list[str] = []
    if coordinator is not None:
        parameters = inspect.signature(coordinator).parameters.values()
        subject = coordinator.__name__
        names.append("prefix")
        own_options = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.name not in names]
    else:
        own_options = ["reentrant"]  # of its constructor
    hint = _HINTS.get(name, "")
    if not hint and (near := difflib.get_close_matches(name, [*own_options, *names], 1)):
        hint = f"; did you mean {near[0]!r}?"
    return f"{name!r} is not an option of {subject}; the options are {', '.join([*own_options, *names])}{hint}"


def check_prefix(prefix: object) -> str:
    """Return a coordinator's ``prefix`` if it is one; empty for None.

    Raises:
        TypeError, ValueError: it is no text, cannot begin a resource name, or does not end with a separator: "billing"
            and "billing2" would share names.
    """
    if prefix is None:
        return ""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str such as 'billing:', not {type(prefix).__name__}")
    if not prefix:
        raise ValueError("prefix must not be empty; leave it out for names without one")
    check_resource(prefix)
    if prefix[-1].isalnum():
        raise ValueError(
            f"prefix must end with a separator, because names follow it directly; write {prefix + ':'!r:.80}"
        )
    if len(prefix.encode()) > MAX_PREFIX_BYTES:
        raise ValueError(f"prefix must have at most {MAX_PREFIX_BYTES} bytes of UTF-8, so that names fit behind it")
    return prefix


def check_flag(value: object, name: str) -> bool:
    """Return ``value`` if it is True or False; raise TypeError otherwise."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def check_timeout(timeout: object) -> float:
    """Return the seconds to wait for a lock; infinity for None, which waits for ever.

    Raises:
        TypeError, ValueError: ``timeout`` is not a number of seconds, or it is negative.
    """
    if timeout is None:
        return math.inf
    if (type(timeout) is float or type(timeout) is int) and 0 <= timeout < math.inf:
        return timeout
    seconds = check_seconds(timeout, "timeout")
    if seconds < 0:
        raise ValueError(f"timeout must not be negative, not {timeout}; 0 tries once, None waits for ever")
    return seconds


def check_seconds(value: object, name: str) -> float:
    """Return ``value`` as seconds; raise TypeError or ValueError if it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = "; every lock must expire, so that a crashed holder cannot keep it for ever" if value is None else ""
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}{hint}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number of seconds, not {value}")
    return float(value)
