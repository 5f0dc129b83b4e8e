"""Lending of a few objects, such as connections, to many calls: each call has one of them for itself.

The objects are cheap to make. A connection is opened by the first call that has it, within that call's own time. Each
call checks it as its service demands. So a pool needs no more than a function that makes an object.

A call gives its object back. If an interruption prevents that, the object is collected, and another one may take its
place. So nothing but the call may refer to an object that is lent. A waiter whose wake was lost looks again.

A burst of calls makes many objects. Those that nothing has used for a while are given up, all but one.

Threads compete for what becomes free, since that is faster. One that was woken in vain, or has waited for a moment, is
late: it is handed the next object, before all that came after it. Tasks are served in order.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from fencing.kernel import process, quirks
from fencing.kernel.effects import Plan, run, run_async
from fencing.kernel.retry import NoReply
from fencing.kernel.waking import LOST_WAKE_SECONDS, TaskWake, Wake, safe_lock
from fencing.kernel.workers import Worker

MOST_RECHECK_SECONDS = 1.0
"""How long a task waits at most before it looks again, however many others wait."""


IDLE_SECONDS = 30.0
"""After how long an object that nothing has used is given up."""


class Lendable(Protocol):
    """What a pool lends."""

    @property
    def used(self) -> float:
        """When it was used last, on ``time.monotonic``; 0: never."""
        ...


class Closable(Lendable, Protocol):
    """What a pool for threads lends. It can be used again after it was closed: that opens it."""

    def close(self) -> object:
        """Close it, if it is open."""
        ...


T = TypeVar("T", bound=Lendable)
C = TypeVar("C", bound=Closable)


def refuse_threads_of_gevent() -> None:
    """Raise RuntimeError in a thread of gevent's pool: nothing has been asked for then."""
    if quirks.is_thread_of_gevent():
        raise RuntimeError(
            "a thread of gevent's threadpool cannot use these connections, which belong to the event loop of another "
            "thread: take the lock in a greenlet, and give the threadpool the computation alone"
        )


class _OfGreenlets(deque[T]):
    """The free objects where greenlets have taken the place of threads. Elsewhere, no call pays for the check."""

    def pop(self) -> T:  # type: ignore[override]
        refuse_threads_of_gevent()
        return super().pop()


class _Seeker(Generic[T]):
    """A thread or task that waits for an object. One that is late is handed its object; the others compete for it."""

    __slots__ = ("is_late", "lent", "wake")

    def __init__(self, wake: Wake | TaskWake, *, is_late: bool) -> None:
        self.lent: T | None = None
        self.wake = wake
        self.is_late = is_late


class _Lending(ABC, Generic[T]):
    """The objects, and the queue of calls that wait for one."""

    def __init__(self, make: Callable[[], T], limit: int, least: int) -> None:
        self._make = make
        self._limit = limit
        self._least = least  # so many are not given up
        self._reset()

    def _reset(self) -> None:
        self.free: deque[T] = deque()
        self._seekers: deque[_Seeker[T]] = deque()
        self._made: set[weakref.ref[T]] = set()  # weak: what an interruption took from its call is collected
        self._lock = safe_lock()

    def made(self) -> list[T]:
        """Return all objects that exist, free ones and lent ones."""
        return [found for made in list(self._made) if (found := made()) is not None]

    @abstractmethod
    def _watch(self) -> None:
        """Have the objects given up that will be idle. There are more than ``least``."""

    def _take_idle(self) -> Iterator[T]:
        """Take the objects that nothing has used for a while, unless fewer than ``least`` were left.

        The stack has those at its bottom.
        """
        before = time.monotonic() - IDLE_SECONDS
        for found in list(self.free):
            if self._has_many and found.used <= before:
                try:
                    self.free.remove(found)
                except ValueError:
                    continue  # another call has just taken it
                yield found

    @property
    def _has_many(self) -> bool:
        return len(self._made) > self._least

    def discard(self, lent: T) -> None:
        """Lend the object no more: another one may take its place. This may be repeated after an interruption."""
        self._made.discard(weakref.ref(lent))
        if self._seekers:
            self._pass_on(self._free_or_new())

    # The traceback of an exception refers to its frames while it is handled. So they give up their objects, which would
    # be collected only afterwards.

    def _plan_take(self, seeker: _Seeker[T], seconds: float) -> Plan[T]:
        """Take an object; yield for how many seconds to wait at most until the seeker is woken."""
        deadline = time.monotonic() + seconds
        lent: T | None = None
        try:
            try:
                self._seekers.append(seeker)  # before it looks: what is freed in between wakes it
                while True:
                    lent = self._free_or_new()
                    if lent is None:
                        left = deadline - time.monotonic()
                        if left <= 0:
                            busy = TimeoutError(f"all {self._limit} connections were busy for {seconds:.3g} s")
                            raise NoReply(busy, may_have_run=False)
                        yield left
                        lent, seeker.lent = seeker.lent, None
                    if lent is not None:
                        return lent
                    seeker.is_late = True
                    if seeker not in self._seekers:
                        self._seekers.appendleft(seeker)
            finally:
                self._leave(seeker)
        except BaseException:
            lent = seeker.lent = None
            seeker.is_late = False  # if it is still in the queue, it is handed nothing
            raise

    def _free_or_new(self) -> T | None:
        try:
            return self.free.pop()
        except IndexError:
            pass
        if len(self._made) >= self._limit:
            return None
        lent: T | None = None
        try:
            with self._lock:
                if len(self._made) < self._limit:
                    lent = self._make()
                    self._made.add(weakref.ref(lent, self._made.discard))  # a call of C, so nothing interrupts it
            if self._has_many:
                self._watch()
            return lent
        except BaseException:
            lent = None
            raise

    def _pass_on(self, lent: T | None) -> None:
        """Wake the first seeker. If it is late, hand it the object; otherwise free that. None: one was freed."""
        try:
            try:
                seeker = self._seekers.popleft()
            except IndexError:
                seeker = None
            if lent is not None:
                if seeker is not None and seeker.is_late:
                    seeker.lent = lent
                else:
                    self.free.append(lent)
            if seeker is not None:
                seeker.wake.set()
        except BaseException:
            lent = None
            raise

    def _leave(self, seeker: _Seeker[T]) -> None:
        try:
            self._seekers.remove(seeker)
        except ValueError:
            pass  # it was woken
        if seeker.lent is not None or (self.free and self._seekers):  # it needs no object, or has found another one
            self._pass_on(seeker.lent)


class _Idle:
    """Closes what pools for threads have too much of. Its thread lives while there is such a pool."""

    def __init__(self) -> None:
        self._worker = Worker("fencing-idle")
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._pools: set[weakref.ref[Pool[Any]]] = set()
        self._checks_at = 0.0

    def watch(self, pool: Pool[Any]) -> None:
        """Have the pool give up what is idle. This may be repeated."""
        if not self._pools:
            self._checks_at = time.monotonic() + IDLE_SECONDS
        self._pools.add(weakref.ref(pool, self._pools.discard))
        try:
            self._worker.wake(self._check)
        except RuntimeError:
            pass  # no thread can be started, mostly because the interpreter is ending

    def _check(self) -> float | None:
        now = time.monotonic()
        if now < self._checks_at:
            return self._checks_at - now
        for each in list(self._pools):
            self._pools.discard(each)  # first: whoever makes an object meanwhile adds it again
            pool = each()
            if pool is not None and pool.give_up_idle():
                self._pools.add(each)
        self._checks_at = now + IDLE_SECONDS
        return IDLE_SECONDS if self._pools else None


_idle = _Idle()


class Pool(_Lending[C]):
    """A pool for threads. A forked child has objects of its own.

    A call takes an object and gives it back::

        lent = pool.take(seconds)
        try:
            ...
        finally:
            pool.give_back(lent)

    ``pool.free.pop()`` does the same as ``take`` where an object is free, without a call of Python.

    Args:
        make: makes an object, which can be referenced weakly. It must not block.
        limit: how many objects there are at most.
        keeps_inherited: whether a forked child never collects the objects of its parent, since that would end their
            sessions.

        has_reserve: whether there is one more object, for calls that must not wait for the others.
        must_stay: returns whether an object must not be given up, however long nothing has used it.
        may_change_threads: whether any thread may use an object where greenlets have taken the place of threads. A
            socket belongs to the event loop of the thread that opened it.

    Attributes:
        free: the objects that are not lent, used as a stack.
        closed: whether the pool was closed. It lends all the same: a block may end after the closing.
    """

    def __init__(
        self,
        make: Callable[[], C],
        limit: int,
        *,
        keeps_inherited: bool = False,
        has_reserve: bool = False,
        must_stay: Callable[[C], bool] = lambda _: False,
        may_change_threads: bool = False,
        least: int = 1,
    ) -> None:
        super().__init__(make, limit, least)
        self._must_stay = must_stay
        self._reserve: Pool[C] | None = None
        if has_reserve:
            self._reserve = Pool(
                make, 1, keeps_inherited=keeps_inherited, may_change_threads=may_change_threads, least=0
            )
        self._may_change_threads = may_change_threads
        self.closed = False
        self._is_forked = False
        self._inherited: list[C] | None = [] if keeps_inherited else None
        process.after_fork(self._reset_in_child)

    def _reset_in_child(self) -> None:
        if self._inherited is not None:
            self._inherited += self.made()
        self._is_forked = True
        self._reset()

    def is_inherited(self, lent: C) -> bool:
        """Return whether the object is the parent process's: a signal handler has forked within a call that has it."""
        return self._is_forked and weakref.ref(lent) not in self._made

    def take(self, seconds: float) -> C:
        """Return an object, after at most ``seconds``.

        Raises:
            NoReply: all were lent.
            RuntimeError: this is a thread of gevent's pool, which cannot use them.
        """
        if process.has_greenlets() and not self._may_change_threads:  # nothing was free yet, so each pool comes here
            refuse_threads_of_gevent()
            if type(self.free) is deque:
                self.free = _OfGreenlets(self.free)
        try:
            return self.free.pop()
        except IndexError:
            pass
        wake = Wake()
        plan = self._plan_take(_Seeker(wake, is_late=False), seconds)
        return run(plan, lambda left: wake.wait(min(left, LOST_WAKE_SECONDS)))

    def take_urgently(self, seconds: float) -> tuple[Pool[C], C]:
        """Do what ``take`` does for a call that must not wait for the others: from the reserve if none is free.

        Returns:
            The pool to give it back to, and the object.
        """
        try:
            return self, self.free.pop()
        except IndexError:
            pool = self._reserve or self
            return pool, pool.take(seconds)

    def take_free(self, is_wanted: Callable[[C], bool]) -> C | None:
        """Return a free object of which this is true; None: there is none."""
        for found in list(self.free):
            if is_wanted(found):
                try:
                    self.free.remove(found)
                    return found
                except ValueError:
                    pass  # another call has just taken it
        return None

    def give_back(self, lent: C) -> None:
        """Lend the object to the next call. After the closing, close it first. A child lends nothing of its parent."""
        if self._is_forked and self.is_inherited(lent):
            return
        if self._seekers or self.closed:
            if self.closed:
                lent.close()
            self._pass_on(lent)
            return
        self.free.append(lent)
        if self._seekers:  # a seeker first enters the queue, and then looks for a free object
            self._pass_on(None)
        if self.closed:  # close() first says so, and then closes the free ones
            self.close()

    def _watch(self) -> None:
        if self._may_change_threads or not process.has_greenlets():
            _idle.watch(self)

    def give_up_idle(self) -> bool:
        """Close what nothing has used for a while. Return whether there may be more to give up later."""
        for idle in self._take_idle():
            if self._must_stay(idle):
                self.free.appendleft(idle)
            else:
                try:
                    idle.close()
                finally:
                    self.discard(idle)
        return self._has_many and not self.closed

    def close(self) -> None:
        """Close the free objects, and each other one when it is given back."""
        self.closed = True
        if self._reserve is not None:
            self._reserve.close()
        while True:
            try:
                free = self.free.pop()
            except IndexError:
                return
            free.close()


class AsyncPool(_Lending[T]):
    """A pool for the tasks of one event loop. It is used as a :class:`Pool`, and its arguments are the same.

    Args:
        give_up: ends an object that nothing has used for a while. None: its destructor does.

    Attributes:
        free: the objects that are not lent, used as a stack.
    """

    def __init__(
        self,
        make: Callable[[], T],
        limit: int,
        *,
        has_reserve: bool = False,
        give_up: Callable[[T], object] | None = None,
        least: int = 1,
    ) -> None:
        super().__init__(make, limit, least)
        self._give_up = give_up
        self._is_watched = False
        self._reserve: AsyncPool[T] | None = AsyncPool(make, 1, give_up=give_up, least=0) if has_reserve else None

    @property
    def pools(self) -> list[AsyncPool[T]]:
        """This one and its reserve."""
        return [self] if self._reserve is None else [self, self._reserve]

    def _watch(self) -> None:
        if not self._is_watched:
            asyncio.get_running_loop().call_later(IDLE_SECONDS, _check_idle, weakref.ref(self))
            self._is_watched = True

    def give_up_idle(self) -> None:
        """End what nothing has used for a while."""
        self._is_watched = False
        for idle in self._take_idle():
            try:
                if self._give_up is not None:
                    self._give_up(idle)
            finally:
                self.discard(idle)
        if self._has_many:
            self._watch()

    async def take_urgently(self, seconds: float) -> tuple[AsyncPool[T], T]:
        """Do what ``take`` does for a call that must not wait for the others: from the reserve if none is free."""
        if self.free or self._reserve is None:
            return self, await self.take(seconds)
        return self._reserve, await self._reserve.take(seconds)

    async def take(self, seconds: float) -> T:
        """Return an object, after at most ``seconds``.

        Raises:
            NoReply: all were lent.
        """
        if self.free and not self._seekers:
            return self.free.pop()
        wake = TaskWake()

        async def wait(left: float) -> None:
            recheck = LOST_WAKE_SECONDS * max(1.0, len(self._seekers) / self._limit)
            await wake.wait(min(left, recheck, MOST_RECHECK_SECONDS))

        return await run_async(self._plan_take(_Seeker(wake, is_late=True), seconds), wait)

    def give_back(self, lent: T, *, last: bool = False) -> None:
        """Lend the object to the next task; ``last``: if no task waits, to one for which no other object is free."""
        if self._seekers:
            self._pass_on(lent)
        else:
            (self.free.appendleft if last else self.free.append)(lent)


def _check_idle(pool: weakref.ref[AsyncPool[Any]]) -> None:
    """Give up what is idle, if the pool is still there. The timer of the loop does not keep it alive."""
    found = pool()
    if found is not None:
        found.give_up_idle()
