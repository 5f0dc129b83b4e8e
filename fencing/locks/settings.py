"""How a lock is taken: the options of coordinators and locks, checked once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypedDict

from fencing.kernel.guard import AsyncGuard, Guard, check_guards

MIN_TTL = 0.01
MAX_TTL = 365 * 24 * 3600.0
MAX_OWNER_CHARACTERS = 200

DRIFT_FACTOR = 0.01
DRIFT_SECONDS = 0.002
"""What clocks of different machines, and Redis' expiry in whole milliseconds, may take from a lease: the values of
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/ (the reference implementations' clock
drift)."""


class _Options(TypedDict, total=False):
    ttl: float
    renew: bool
    max_lifetime: float | None
    owner: str | None


class LockOptions(_Options, total=False):
    """The options of sync coordinators and locks; what they mean is said at :class:`Settings`."""

    guards: Iterable[Guard]


class AsyncLockOptions(_Options, total=False):
    """:class:`LockOptions` for asyncio."""

    guards: Iterable[AsyncGuard]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a lock is taken.

    Args:
        ttl: seconds a grant lasts unless it is renewed. None never expires; it is for compatibility layers only.
        guards: the storages at which each grant is claimed before its holder goes on.
        renew: whether leases are renewed by themselves, from the grant until they end.
        max_lifetime: seconds after which a lease is not renewed by itself any more; None: no such cap.
        owner: the label that ``holder()`` shows, up to 200 characters; None: host name and process id.
    """

    ttl: float | None = 10.0
    guards: tuple[Guard | AsyncGuard, ...] = ()
    renew: bool = True
    max_lifetime: float | None = None
    owner: str | None = None

    def changed(self, options: Mapping[str, Any], *, asynchronous: bool, of: type | None = None) -> Self:
        """Return these settings with a user's options in place of some; these very ones where there are none.

        Args:
            of: the coordinator's class, whose own options an error names, too; None: they are a lock's.

        Raises:
            TypeError, ValueError: what is wrong with an option.
        """
        if not options:
            return self
        for name in options:
            if name not in _NAMES:
                raise TypeError(_no_option(name, of))
        given = {name: options.get(name, getattr(self, name)) for name in _NAMES}
        return type(self)(**_checked(asynchronous=asynchronous, **given))

    @property
    def attempt_seconds(self) -> float:
        """How long one request to a server may take: a third of the ttl, so that a lease survives one that is lost."""
        return (self.ttl or 10.0) / 3

    @property
    def request_seconds(self) -> float:
        """How long a request, its repetitions included, may take where the caller gave no deadline: two attempts."""
        return 2 * self.attempt_seconds

    def deadline(self, sent_at: float) -> float:
        """Until when a grant whose request was sent at ``sent_at`` is believed to last."""
        if self.ttl is None:
            return math.inf
        return sent_at + self.ttl * (1 - DRIFT_FACTOR) - DRIFT_SECONDS


_NAMES = tuple(field.name for field in fields(Settings))
_WAITING = "; how long a lock lasts is its ttl, how long to wait for it is said in hold(timeout=...)"
_HINTS = {
    "clock_floor": "; it is an option of RedisCoordinator",
    "timeout": _WAITING,
    "blocking_timeout": _WAITING,
    "blocking": _WAITING,
}


def _checked(
    *, ttl: object, guards: Any, renew: object, max_lifetime: object, owner: object, asynchronous: bool
) -> dict[str, Any]:
    check_flag(renew, "renew")
    if owner is not None:
        if not isinstance(owner, str):
            raise TypeError(f"owner is a str, not {type(owner).__name__}")
        if not owner.isprintable() or not 1 <= len(owner) <= MAX_OWNER_CHARACTERS:
            raise ValueError(f"owner is 1 to {MAX_OWNER_CHARACTERS} printable characters, not {owner!r}")
    seconds = _check_seconds(ttl, "ttl")
    if not MIN_TTL <= seconds <= MAX_TTL:
        raise ValueError(
            f"ttl lies between {MIN_TTL} seconds and a year, not {ttl}; a crashed holder blocks others for as long"
        )
    if max_lifetime is not None:
        if not renew:
            raise ValueError(
                "max_lifetime caps automatic renewal, which renew=False switches off; give max_lifetime=None with it"
            )
        if _check_seconds(max_lifetime, "max_lifetime") < seconds:
            raise ValueError(f"max_lifetime is at least the ttl ({ttl} s), not {max_lifetime}; give both, or None")
    return {
        "ttl": seconds,
        "guards": check_guards(guards, asynchronous=asynchronous),
        "renew": renew,
        "max_lifetime": max_lifetime,
        "owner": owner,
    }


def _no_option(name: str, of: type | None) -> str:
    import difflib  # only here, for a mistake

    whose, own = "a lock", []
    if of is not None:
        parameters = inspect.signature(of).parameters.values()
        whose, own = of.__name__, [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    hint = _HINTS.get(name, "")
    if not hint and (near := difflib.get_close_matches(name, [*own, *_NAMES], 1)):
        hint = f"; did you mean {near[0]!r}?"
    return f"{name!r} is no option of {whose}, which are: {', '.join([*own, *_NAMES])}{hint}"


def check_flag(value: object, what: str) -> bool:
    """Return ``value`` if it is True or False; TypeError otherwise."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} is True or False, not {value!r}")
    return value


def check_timeout(timeout: object) -> float:
    """Return the seconds to wait for a lock: 0 tries once, None waits for ever (infinity).

    Raises:
        TypeError, ValueError: it is no number of seconds, or negative.
    """
    if timeout is None:
        return math.inf
    seconds = _check_seconds(timeout, "timeout")
    if seconds < 0:
        raise ValueError(f"timeout is not negative, not {timeout}; 0 tries once, None waits for ever")
    return seconds


def _check_seconds(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = "; every lock expires, so that a crashed holder cannot keep it for ever" if value is None else ""
        raise TypeError(f"{what} is a number of seconds, not {type(value).__name__}{hint}")
    if not math.isfinite(value):
        raise ValueError(f"{what} is a finite number of seconds, not {value}")
    return float(value)
