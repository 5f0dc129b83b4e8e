"""A toy service of the kind of etcd and ZooKeeper, and its coordinators: one log, sessions, a queue, no clock to read.

It is what a third party would write: nothing of it uses more than docs/coordinators/your-own.md names.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from fencing import AsyncCoordinator, Coordinator
from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.retry import Answer, NoReply
from fencing.locks.backend import Backend, Holder, Taken
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.numbers import LogBase, log_base
from fencing.locks.settings import Settings

OVER = "the session is over"
RACED = "another client has stored another base"


@dataclass
class Entry:
    """A key of one waiter or holder. The first one of a resource has the lock, once it has a number."""

    session: int
    token: str  # empty: another program's
    owner: str = ""
    number: int | None = None
    made: int = 0  # the position at which it queued


class Request(NamedTuple):
    """The effect: one request."""

    operation: str
    arguments: tuple[Any, ...]
    timeout: float = 0.0


class LogService:
    """Takes one request after the other.

    Args:
        step: in which steps it tells how long a session still lasts; None: it does not tell.
    """

    def __init__(self, step: float | None) -> None:
        self.step = step
        self.position, self.base = 0, None
        self.ends: dict[int, float] = {}  # by session
        self.ttls: dict[int, float] = {}
        self.queues: dict[str, list[Entry]] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    base: int | None

    def ask(self, request: Request) -> Any:
        with self._lock:
            now = time.monotonic()
            for session in [each for each, until in self.ends.items() if until <= now]:
                self._end(now, session)
            return getattr(self, f"_{request.operation}")(now, *request.arguments)

    def _open(self, now: float, ttl: float) -> int:
        session = next(self._ids)
        self.ttls[session], self.ends[session] = ttl, now + ttl
        return session

    def _touch(self, now: float, session: int) -> bool:
        """Give the session its full ttl again. Return False if it is over."""
        if session not in self.ends:
            return False
        self.ends[session] = now + self.ttls[session]
        return True

    def _held(self, now: float, session: int) -> set[tuple[str, str, int | None]]:
        """Return what the session holds."""
        firsts = ((name, queue[0]) for name, queue in self.queues.items())
        return {(name, first.token, first.number) for name, first in firsts if first.session == session}

    def _end(self, now: float, session: int) -> None:
        self.ends.pop(session, None)
        for resource, queue in list(self.queues.items()):
            self._put(resource, [each for each in queue if each.session != session])

    def _put(self, resource: str, queue: list[Entry]) -> None:
        self.position += 1
        if queue:
            self.queues[resource] = queue
        else:
            self.queues.pop(resource, None)

    def _read(self, now: float) -> tuple[int | None, int]:
        return self.base, self.position

    def _write(self, numbers: LogBase) -> int | None:
        """Begin a write that mints. Return its number; None: the base is another one by now."""
        if numbers.stored != self.base:
            return None
        self.base, self.position = numbers.base, self.position + 1
        return numbers.number_at(self.position)

    def _take(
        self, now: float, resource: str, token: str, session: int, owner: str, numbers: LogBase, waits: bool
    ) -> int | str | tuple[float, Entry]:
        if session not in self.ends:
            return OVER
        queue = self.queues.get(resource, [])
        first = queue[0] if queue else None
        if first is None or first.token == token:
            if first is not None and first.number is not None and first.session == session:  # the same request again
                return first.number
            number = self._write(numbers)
            if number is None:
                return RACED
            self._put(resource, [Entry(session, token, owner, number), *queue[1:]])
            return number
        if waits and all(each.token != token for each in queue):
            self._put(resource, [*queue, Entry(session, token, owner)])
        return self.ends[first.session] - now, first

    def _replace(
        self, now: float, resource: str, token: str, session: int, owner: str, numbers: LogBase, old: Any
    ) -> int | str | None:
        """Replace the holder of which ``old`` is true: the same place in the queue, another token and number."""
        if session not in self.ends:
            return OVER
        queue = self.queues.get(resource, [])
        if not queue or not (queue[0].token == token or old == (queue[0].token, queue[0].number, queue[0].made)):
            return None
        if queue[0].token == token and queue[0].number is not None:
            return queue[0].number
        number = self._write(numbers)
        if number is None:
            return RACED
        self._put(resource, [Entry(session, token, owner, number), *queue[1:]])
        return number

    def _release(self, now: float, resource: str, token: str) -> bool:
        queue = self.queues.get(resource, [])
        held = bool(queue) and queue[0].token == token
        if any(each.token == token for each in queue):
            self._put(resource, [each for each in queue if each.token != token])
        return held

    def _holder(self, now: float, resource: str) -> tuple[float, Entry] | None:
        queue = self.queues.get(resource, [])
        return (self.ends[queue[0].session] - now, queue[0]) if queue else None

    def take_as_another_program(self, resource: str) -> Callable[[], object]:
        session = self.ask(Request("open", (60.0,)))
        with self._lock:
            self._put(resource, [Entry(session, "", made=self.position + 1)])
        return lambda: self.ask(Request("end", (session,)))


class Waiting(NamedTuple):
    """The place of a waiter. Its session keeps it alive, and it asks again after a pause: nothing wakes it."""

    plans: LogPlans
    settings: Settings
    resource: str
    token: str

    def plan_wait(self, seconds: float) -> Plan[None]:
        yield Sleep(min(0.01, seconds))

    def plan_leave(self, *, deadline: float) -> Plan[None]:
        yield from self.plans._ask("release", (self.resource, self.token), self.resource, self.settings, deadline)


class LogPlans(Backend):
    service = "the log"
    address = "in memory"
    max_renewals: int = 1000
    one_of_many_wins: ClassVar[Literal[True]] = True

    def __init__(self, log: LogService, session_seconds: float) -> None:
        self.log, self.session_seconds = log, session_seconds
        self.session: int | None = None
        self.touched_at = 0.0
        """The moment before the session was given its full ttl last."""
        self.is_over = threading.Event()
        self.is_cut_off = False  # no request is answered
        self.is_frozen = False  # its session is not kept alive

    def _answer(self, effect: Request) -> Any:
        if self.is_cut_off:
            raise NoReply(ConnectionError("cut off"), may_have_run=False)
        return self.log.ask(effect)

    def keep_alive(self) -> None:
        """Keep the session alive, as a client does by itself: it is what keeps the locks. Renewals only look."""
        session, pause = self.session, self.session_seconds / 20
        while session is not None and self.session == session and not self.is_over.wait(pause):
            now = self.clock()
            if not (self.is_cut_off or self.is_frozen):
                if not self.log.ask(Request("touch", (session,))):
                    self.session_is_over(session)
                    return
                self.touched_at = now

    def drop(self, grant: Grant) -> None:
        if not self.is_cut_off:  # it does not wait: the log is in this process
            self.log.ask(Request("release", (grant.resource, grant.token)))

    def close(self) -> None:
        self.is_over.set()
        if self.session is not None and not self.is_cut_off:
            self.log.ask(Request("end", (self.session,)))

    def _ask(
        self, operation: str, arguments: Any, about: str, settings: Settings, deadline: float, may_take: Any = None
    ) -> Plan[Answer]:
        return self.plan_until_answered(
            lambda timeout, _: Request(operation, arguments, timeout), about, settings, deadline, may_take=may_take
        )

    def session_is_over(self, session: int) -> None:
        """End all its grants at once, as a client does that is told."""
        for grant in self.held():
            if grant.kept == session:
                grant.lose("gone", OVER)

    def _plan_mint(
        self,
        operation: str,
        resource: str,
        token: str,
        settings: Settings,
        floor: int,
        deadline: float,
        more: Any,
        may_take: str | None,
    ) -> Plan[Any]:
        while True:
            if self.session is None:
                opened = yield from self._ask("open", (self.session_seconds,), resource, settings, deadline)
                self.session, self.touched_at = opened.value, opened.sent_at
                threading.Thread(target=self.keep_alive, daemon=True).start()
            session = self.session
            read = yield from self._ask("read", (), resource, settings, deadline)
            stored, position = read.value
            clock_us = time.time_ns() // 1000
            numbers = log_base(resource, stored=stored, position=position, floor=floor, clock_us=clock_us)
            arguments = (resource, token, session, settings.owner_label, numbers, more)
            answer = yield from self._ask(operation, arguments, resource, settings, deadline, may_take)
            if answer.value == OVER:
                self.session = None
            elif answer.value != RACED:
                break
        if isinstance(answer.value, int):
            return Grant(resource, answer.value, token, settings.deadline(self.touched_at), session)
        return answer.value

    def _taken(self, reply: tuple[float, Entry], place: Waiting | None) -> Taken:
        remaining, first = reply
        kept_by: Any = "foreign" if not first.token else "waiter" if first.number is None else None
        return Taken(remaining, first.owner or None, place, kept_by=kept_by)

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken]:
        reply = yield from self._plan_mint("take", resource, token, settings, floor, deadline, False, token)
        return reply if isinstance(reply, Grant) else self._taken(reply, None)

    def is_waited_for(self, resource: str) -> bool:
        return True

    def plan_queue(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, place: Any
    ) -> Plan[Grant | Taken]:
        reply = yield from self._plan_mint("take", resource, token, settings, floor, deadline, True, token)
        return reply if isinstance(reply, Grant) else self._taken(reply, Waiting(self, settings, resource, token))

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        old = (grant.token, grant.number, 0)
        reply = yield from self._plan_mint("replace", grant.resource, token, settings, floor, deadline, old, None)
        return reply if isinstance(reply, Grant) else None

    def plan_force(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, holder: Holder
    ) -> Plan[Grant | None]:
        found = yield from self._ask("holder", (resource,), resource, settings, deadline)
        if found.value is None:
            return None
        _, first = found.value
        if first.token != token and (first.number, str(first.made)) != (holder.number, holder.digest or "0"):
            return None
        old = (first.token, first.number, first.made)
        reply = yield from self._plan_mint("replace", resource, token, settings, floor, deadline, old, token)
        return reply if isinstance(reply, Grant) else None

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        """Ask what the sessions of the grants hold: mostly one request for all."""
        held: dict[int, tuple[float, set[Any]]] = {}
        for session in {grant.kept for grant in grants}:
            until = settings.deadline(self.touched_at)
            answer = yield from self._ask("held", (session,), "the session", settings, deadline)
            held[session] = until, answer.value
        asked = [(held[grant.kept], (grant.resource, grant.token, grant.number)) for grant in grants]
        return [until if named in names else None for (until, names), named in asked]

    def plan_release(self, grant: GrantOrFence, settings: Settings, *, deadline: float) -> Plan[bool]:
        named = (grant.resource, grant.token)
        answer = yield from self._ask("release", named, grant.resource, settings, deadline)
        return bool(answer.value or answer.repeated)

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        answer = yield from self._ask("holder", (resource,), resource, settings, deadline)
        if answer.value is None or (answer.value[1].number is None and answer.value[1].token):
            return None  # a waiter is about to take it
        left, first = answer.value
        step = self.log.step
        remaining = None if step is None else left // step * step
        digest = "" if first.token else str(first.made)
        return Holder(first.owner or None, first.number, None, remaining, digest=digest, expires=True)


class LogBackend(LogPlans):
    def perform(self, effect: Request) -> Any:
        return self._answer(effect)


class AsyncLogBackend(LogPlans):
    async def perform(self, effect: Request) -> Any:
        return self._answer(effect)


class LogCoordinator(Coordinator):
    def __init__(self, log: LogService, *, ttl: float = 10.0, **options: Any) -> None:
        super().__init__(LogBackend(log, ttl), **options)


class AsyncLogCoordinator(AsyncCoordinator):
    def __init__(self, log: LogService, *, ttl: float = 10.0, **options: Any) -> None:
        super().__init__(AsyncLogBackend(log, ttl), **options)
