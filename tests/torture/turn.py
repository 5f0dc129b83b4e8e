"""One turn: acquire, read, change and write, release; and what is noted of each."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import psycopg
import psycopg_pool
import redis
import sqlalchemy.exc

from fencing import (
    AlreadyDone,
    FencingError,
    GuardUnavailable,
    NotAcquired,
    OutcomeUnknown,
    StaleFence,
    TooOld,
    UnclaimedFence,
)
from tests.torture.log import Log
from tests.torture.steps import Steps, run, run_async

if TYPE_CHECKING:
    from tests.torture.connections import Sessions
    from tests.torture.services.base import Kit
    from tests.torture.ways import Way

__all__ = ["EXPECTED", "Interrupted", "Turn", "key_of", "today"]


class Interrupted(Exception):
    """Raised by the handler of a signal, at any line."""


OF_DRIVERS = (
    *(sqlalchemy.exc.DBAPIError, sqlalchemy.exc.TimeoutError, psycopg.Error, psycopg_pool.PoolTimeout),
    httpx2.HTTPError,
)
EXPECTED = (FencingError, *OF_DRIVERS, Interrupted, TimeoutError, asyncio.CancelledError, redis.RedisError)

DAY_SECONDS = 0.5
AGES = (0, 0, 0, 1, 1, 2, 4, 30, 120)
"""How many days old a key of shared ones may be: mostly others try the same one, and some are old."""


def today() -> int:
    """Return the number of the day. All processes of the machine have the same, and it is never lower later."""
    return int(time.monotonic() / DAY_SECONDS)


def key_of(day: int, part: int = 0) -> str:
    """Return a key of what is done once on a day. Keys sort by time."""
    return f"{max(day, 0):010d}-{part:03d}"


TRY_SECONDS = 3.0
"""A call that tries once takes at most so long if nothing answers, claims included: docs/guide/locks.md."""
CANCEL_SECONDS = 4.0
"""A commit under way is first carried to its answer: the guard's time-out and a second (docs/guards/sqlalchemy.md)."""
WRITE_SECONDS = 16.0
"""Four requests of a guarded transaction, each within the guard's time-out and a second."""
RELEASE_SECONDS = 5.0
LANDED_SECONDS = 12.0
ASKING_SECONDS = 20.0


class Turn:
    """One attempt to add one to a counter, or a few times one under the same lease.

    Args:
        counter: its name, which is also the resource's.
        kit: the guard and its source of connections.
        way: how.
        hold: makes the context of the lease, for so many seconds of waiting.
        slack: seconds that a busy machine may add to every bound.
        pause: seconds, the longest that it works before it begins, and between reading and writing.
        sessions: of the thread or the task, with what earlier turns have read.
        keys: whether each write is made once per key: no, "own" keys, or those that all "shared" have.
        at_least: seconds after the grant for which its lock stays taken.
    """

    lease: Any
    write: int | None = None
    id = ""
    is_sent = False
    once: str | None = None
    """What the guard is given: see ``keys``."""
    _attempt: int | None = None

    def __init__(
        self,
        counter: str,
        kit: Kit,
        way: Way,
        hold: Any,
        log: Log,
        chance: random.Random,
        slack: float,
        pause: float,
        sessions: Sessions,
        keys: str = "",
        at_least: float = 0.0,
    ) -> None:
        self.counter, self.kit, self.way = counter, kit, way
        self.chance, self._hold, self._log, self._slack = chance, hold, log, slack
        self.unknown: list[tuple[str, OutcomeUnknown]] = []
        self.timeout = chance.choice([0.0, 0.1, 0.3, 2.0])
        self._release: int | None = None
        self._sessions = sessions
        self._pauses = [chance.choice([0.0, pause / 5, pause]) for _ in range(2)]
        self._rounds = chance.choice([1, 1, 2, 3])
        self._keys, self._at_least, self._parts = keys, at_least, 2

    @property
    def guard(self) -> Any:
        return self.kit.guard

    def repeat(self, times: int) -> None:
        """Write so often under one lease, mostly under other keys, without pauses."""
        self._rounds, self._pauses, self._parts = times, [0.0, 0.0], 10 * times

    # What a body needs

    def begin_session(self) -> Any:
        """Begin a transaction of a session that earlier turns have used; the guard must make it read again."""
        session = self._sessions.of(self.kit)
        return _begin_async(session) if self.kit.asynchronous else _begin(session)

    def think(self) -> Any:
        """Pause between reading and writing."""
        return self._pause(self._pauses[1])

    def _pause(self, seconds: float) -> Any:
        if self.kit.asynchronous:
            return asyncio.sleep(seconds)
        time.sleep(seconds)
        return None

    def begin_read(self) -> int:
        self._refuse_repeated()
        self._note_belief()
        return self._log.begin("read", counter=self.counter, **self._fence)

    def seen(self, reading: int, value: int, last: str) -> dict[str, Any]:
        self._log.end(reading, write=last, value=value)
        return {"name": self.counter, "value": value + 1, "before": last}

    def begin_write(self, values: dict[str, Any]) -> dict[str, Any]:
        self._note_belief()
        self.id = f"{self.chance.getrandbits(64):016x}"
        allowed = WRITE_SECONDS + self._slack
        self.write = self._log.begin(
            "write",
            counter=self.counter,
            write=self.id,
            before=values["before"],
            allowed=allowed,
            key=self.once or "",
            **self._fence,
        )
        return {"name": values["name"], "value": values["value"], "last": self.id}

    @property
    def _fence(self) -> dict[str, Any]:
        fence = self.lease.fence
        return {"number": fence.number, "token": fence.token, "text": self.way.name}

    def _note_belief(self) -> None:
        """Note that the lease is believed to be held, at a moment before it is asked."""
        now = time.monotonic()
        if getattr(self.lease, "held", False):  # locks of other libraries do not say
            self._log.add("held", counter=self.counter, **{**self._fence, "start": now, "end": now})

    # The shells

    def take(self) -> None:
        """Do it, sync."""
        acquiring = self._begin_acquire()
        try:
            with self._hold(self.timeout) as lease:
                self._granted(acquiring, lease)
                try:
                    for _ in range(self._rounds):
                        self._pause(self._pauses[0])
                        try:
                            self._perform()
                        except (AlreadyDone, TooOld) as error:
                            self._failed(error)
                except EXPECTED as error:
                    self._failed(error)
                    raise
                self._release = self._begin_release()
            self._end_release()
        except EXPECTED as error:
            self._over(acquiring, error)

    def _perform(self) -> None:
        self._begin_once()
        if self.way.runs:
            self.guard.run(self.lease, lambda connection: run(self._whole(connection)), once=self.once)
        elif self.way.context is None:
            run(self._whole(None))
        else:
            with self.way.context(self) as given:
                run(self._whole(given))
        self._acknowledged()

    async def take_async(self) -> None:
        """Do it, async."""
        acquiring = self._begin_acquire()
        try:
            async with self._hold(self.timeout) as lease:
                self._granted(acquiring, lease)
                try:
                    for _ in range(self._rounds):
                        await self._pause(self._pauses[0])
                        try:
                            await self._perform_async()
                        except (AlreadyDone, TooOld) as error:
                            self._failed(error)
                except EXPECTED as error:
                    self._failed(error)
                    raise
                self._release = self._begin_release()
            self._end_release()
        except EXPECTED as error:
            self._over(acquiring, error)
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _perform_async(self) -> None:
        self._begin_once()
        if self.way.runs:

            async def function(connection: Any) -> None:
                await run_async(self._whole(connection))

            await self.guard.run(self.lease, function, once=self.once)
        elif self.way.context is None:
            await run_async(self._whole(None))
        else:
            async with self.way.context(self) as given:
                await run_async(self._whole(given))
        self._acknowledged()

    def ask(self, error: OutcomeUnknown, write: str) -> Steps[None]:
        """Ask what became of a write, until there is an answer, but not for ever."""
        deadline = time.monotonic() + ASKING_SECONDS
        while time.monotonic() < deadline:
            values = {"counter": self.counter, "write": write, "allowed": LANDED_SECONDS + self._slack}
            op = self._log.begin("landed", **values)
            try:
                answer = yield self.guard.landed(error)
            except GuardUnavailable as unavailable:
                self._log.end(op, "", text=repr(unavailable))
                yield self._pause(0.1)
            else:
                self._log.end(op, str(answer))
                return

    # What is noted

    def _begin_acquire(self) -> int:
        self._claim = self._log.begin("claim", counter=self.counter)  # its end is noted if it was admitted
        more = {"at_least": self._at_least} if self._at_least else {}
        return self._log.begin("acquire", counter=self.counter, allowed=self._allowed_to_wait(), **more)

    def _allowed_to_wait(self) -> float | None:
        return (self.timeout or TRY_SECONDS) + self._slack

    def _granted(self, acquiring: int, lease: Any) -> None:
        self.lease = lease
        self.counter = getattr(lease.fence, "resource", self.counter)  # of slots: the one that it is
        fence = {"number": lease.fence.number, "token": lease.fence.token, "counter": self.counter}
        if self.kit.claims:  # the lock has claimed before it returned
            self._log.end(self._claim, "acknowledged", **fence)
        self._log.end(acquiring, "granted", **fence)
        self._is_granted = True

    _is_granted = False

    def _begin_release(self) -> int:
        self._note_belief()
        token = self.lease.fence.token
        allowed = RELEASE_SECONDS + self._slack
        return self._log.begin("release", counter=self.counter, allowed=allowed, token=token)

    def _end_release(self) -> None:
        """Note that the block has ended as it should. Where nothing answered, the lock may be freed by its ttl."""
        assert self._release is not None
        has_answer = getattr(self.lease, "_freed", True) is True
        self._log.end(self._release, "released" if has_answer else "no answer")

    def _begin_once(self) -> None:
        """Choose a key of what is done now, if it is done once."""
        if self._keys == "own":
            self.once = f"{self.chance.getrandbits(64):016x}"
        elif self._keys == "shared":
            self.once = key_of(today() - self.chance.choice(AGES), self.chance.randrange(self._parts))
        if self.once is not None:
            self._attempt = self._log.begin("once", counter=self.counter, key=self.once, **self._fence)

    def _end_once(self, error: BaseException | None) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if isinstance(error, AlreadyDone):
            self._log.end(attempt, "already", value=error.number)
        elif isinstance(error, TooOld):
            self._log.end(attempt, "too old", before=error.floor)
        else:
            self._log.end(attempt, "done" if error is None else "failed")

    def _whole(self, given: Any) -> Steps[None]:
        self.is_sent = False
        yield from self.way.body(self, given)
        self.is_sent = True

    def _refuse_repeated(self) -> None:
        """Note that the database has undone the earlier run of a body."""
        if self.write is not None:
            self._log.end(self.write, "refused", text="repeated")
            self.write = None

    def _acknowledged(self) -> None:
        self._end_once(None)
        if self.write is not None:
            self._log.end(self.write, "acknowledged")
            self.write = None

    def _failed(self, error: BaseException) -> None:
        self._sessions.clear()
        self._end_once(error)
        if self.write is None:
            return
        unknown = _unknown_in(error)
        if unknown is not None:
            self.unknown.append((self.id, unknown))
            outcome = "unknown"
        elif isinstance(error, (StaleFence, UnclaimedFence)):
            outcome = "refused"
        elif isinstance(error, Interrupted) or (self.way.own_commit and self.is_sent):
            outcome = "unknown"  # it may have been raised here, after the commit; or the commit is not the guard's
        else:
            outcome = "refused"
        write, self.write = self.write, None
        self._log.end(write, outcome, text=_short(error))

    def _over(self, acquiring: int, error: BaseException) -> None:
        if not self._is_granted:
            kind = "refused" if isinstance(error, NotAcquired) else "failed"
            more = {"allowed": CANCEL_SECONDS + self._slack} if isinstance(error, asyncio.CancelledError) else {}
            self._log.end(acquiring, kind, text=_short(error), **more)
        elif self._release is not None:
            self._log.end(self._release, "lost", text=_short(error))


@contextmanager
def _begin(session: Any) -> Iterator[Any]:
    with session.begin():
        yield session


@asynccontextmanager
async def _begin_async(session: Any) -> AsyncIterator[Any]:
    async with session.begin():
        yield session


def _unknown_in(error: BaseException | None) -> OutcomeUnknown | None:
    """Return the unknown outcome that an error is, or is caused by."""
    for _ in range(5):
        if error is None or isinstance(error, OutcomeUnknown):
            return error
        error = error.__cause__
    return None


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
