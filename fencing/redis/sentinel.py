"""The primary that Sentinels name, found within a time limit. A plan, and its two shells for threads and asyncio.

redis-py would ask each Sentinel with that client's own time-outs and retries, and so take many seconds for one try. The
Sentinels are asked one after another, as their documentation for clients says:
https://redis.io/docs/latest/develop/reference/sentinel-clients/.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from fencing.kernel.effects import Plan
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.retry import LEAST_SECONDS
from fencing.redis.connection import LazyConnection
from fencing.redis.resp import bulks

Address = tuple[str, int]

ASK_PRIMARIES = b"*2\r\n" + bulks(("SENTINEL", "MASTERS"))
"""The question for the primaries and their states, packed. redis-py asks the same, so it needs no other permission."""

PATIENCE_SECONDS = 0.5
"""How long one Sentinel may take. The limit doubles each time that all of them were silent."""

LONGEST_PATIENCE_SECONDS = 2.0

MOST_NAMED = 3
"""How many services or Sentinels a message names."""


class NoAnswer(Exception):
    """A Sentinel's silence, or an answer that is none of a Sentinel's."""


class NoPrimary(RedisError):
    """The Sentinels answer, and have no primary at the moment: a failover is under way."""


class NoService(RedisError):
    """No Sentinel answers, or none knows the service: a wrong setting, unless it has worked before."""


class Ask(NamedTuple):
    """The effect: ask a Sentinel for all primaries, within this many seconds."""

    sentinel: Sentinel
    seconds: float


class Sentinel(NamedTuple):
    """A Sentinel's address, and what makes a connection to it; for threads, what opens one within so many seconds."""

    address: str
    make: Callable[[], Any]
    open: Callable[[float], Any]


class NamedPrimary:
    """What a connection of redis-py asks for the primary's address instead of a Sentinel's pool."""

    is_master = True
    check_connection = False

    def __init__(self, service: str, address: Address, *, asynchronous: bool) -> None:
        self.service_name = service
        self._address = address
        self.get_master_address = self._answer_async if asynchronous else self._answer

    def _answer(self) -> Address:
        return self._address

    async def _answer_async(self) -> Address:
        return self._address


class Sentinels:
    """The Sentinels of a service. The one that answered last is asked first.

    Args:
        service: the name under which they know the primary.
        sentinels: in the order in which they are asked.
        least_others: how many other Sentinels one must know, so that its answer counts.
        forced_host: used in place of the primary's host; None: it is not replaced.
    """

    def __init__(self, service: str, sentinels: list[Sentinel], least_others: int, forced_host: str | None) -> None:
        self.service = service
        self._sentinels = sentinels
        self._least_others = least_others
        self._forced_host = forced_host
        self._patience = PATIENCE_SECONDS

    def plan_find(self, seconds: float) -> Plan[Address]:
        """Return the address of the primary.

        Raises:
            NoPrimary, NoService: there is none that a Sentinel names.
        """
        deadline = time.monotonic() + seconds
        silent: list[str] = []
        others: set[str] = set()
        knows = False
        for sentinel in list(self._sentinels):
            left = deadline - time.monotonic()
            try:
                states = yield Ask(sentinel, max(min(left / 2, self._patience), LEAST_SECONDS))
            except NoAnswer as failure:
                silent.append(f"{sentinel.address} ({failure})")
                self._move(sentinel, len(self._sentinels))
                continue
            state = next((each for each in states if each.get("name") == self.service), None)
            if state is None:
                others.update(each.get("name", "") for each in states)
                continue
            knows = True
            if self._counts(state):
                self._move(sentinel, 0)
                self._patience = PATIENCE_SECONDS
                return self._forced_host or state["ip"], int(state["port"])
        if knows:
            raise NoPrimary(f"the Sentinels see no primary of {self.service!r} at the moment")
        if len(silent) == len(self._sentinels):
            self._patience = min(2 * self._patience, LONGEST_PATIENCE_SECONDS)
            raise NoService(f"no Sentinel of {self.service!r} answers: {_named(silent)}")
        raise NoService(
            f"the Sentinels do not know the service {self.service!r}; they know {_named(map(repr, sorted(others)))}"
        )

    def _counts(self, state: dict[str, str]) -> bool:
        """Return whether what a Sentinel says of the primary counts, by redis-py's rule."""
        flags = state["flags"].split(",")
        is_up = "master" in flags and "s_down" not in flags and "o_down" not in flags
        return is_up and int(state["num-other-sentinels"]) >= self._least_others

    def _move(self, sentinel: Sentinel, index: int) -> None:
        """Change the place of a Sentinel. Another thread may do the same meanwhile, so the list is replaced."""
        others = [each for each in self._sentinels if each is not sentinel]
        others.insert(index, sentinel)
        self._sentinels = others


def ask(effect: Ask) -> list[dict[str, str]]:
    """Ask a Sentinel, for threads. Return its states of all primaries."""
    connection, deadline = LazyConnection(), time.monotonic() + effect.seconds
    try:
        connection.open(effect.sentinel.open(effect.seconds), effect.seconds)
        reply = connection.ask(ASK_PRIMARIES, deadline)
        if isinstance(reply, RedisError):
            raise reply
        return _states(reply)
    except _FAILURES as error:
        raise_interruption(error)
        raise _no_answer(error) from error
    finally:
        connection.close()


async def ask_async(effect: Ask) -> list[dict[str, str]]:
    """Ask a Sentinel, for asyncio. Return its states of all primaries."""
    connection = effect.sentinel.make()
    try:
        async with asyncio.timeout(effect.seconds):
            await connection.connect()
            await connection.send_packed_command([ASK_PRIMARIES], check_health=False)
            return _states(await connection.read_response(disconnect_on_error=False))
    except _FAILURES as error:
        raise_interruption(error)
        raise _no_answer(error) from error
    finally:
        await connection.disconnect(nowait=True)


_FAILURES = (RedisError, OSError, ValueError, TypeError, AttributeError)
"""Of connections, and of answers that are none of a Sentinel's."""


def _no_answer(error: Exception) -> NoAnswer:
    if isinstance(error, (AuthenticationError, ResponseError)):
        return NoAnswer(f"refused: {error}")
    if isinstance(error, (TimeoutError, RedisTimeoutError)):
        return NoAnswer("silent")
    return NoAnswer("no connection" if isinstance(error, (RedisError, OSError)) else "this is no Sentinel")


def _states(reply: list[list[bytes]]) -> list[dict[str, str]]:
    return [_fields([word.decode("utf-8", "replace") for word in each]) for each in reply]


def _fields(words: list[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))


def _named(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return (", ".join(every[:MOST_NAMED]) or "none") + more
