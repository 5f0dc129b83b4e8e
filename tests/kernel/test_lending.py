"""The lending of one of a few objects: bounded, fair, and whole after interruptions, forks and the closing."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from fencing.kernel import lending
from fencing.kernel.lending import AsyncPool, Pool
from fencing.kernel.retry import NoReply
from fencing.kernel.waking import LOST_WAKE_SECONDS, TaskWake, Wake
from tests.support import wait_until
from tests.support.every_step import Exit, at_every_step
from tests.support.forks import in_child
from tests.support.interrupted_lines import raise_at_line
from tests.support.loops import until

LONG = 30.0
"""Seconds: what is waited for comes at once."""


class Connection:
    """A stand-in for one."""

    open_ones = 0

    def __init__(self) -> None:
        self.is_open = False
        self.used = math.inf  # nothing is given up of itself

    def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            Connection.open_ones += 1

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            Connection.open_ones -= 1

    def __del__(self) -> None:
        self.close()


def pool_of(limit: int, **options: Any) -> Pool[Connection]:
    return Pool(Connection, limit, **options)


@contextmanager
def waiting(pool: Any, count: int = 1, seconds: float = LONG) -> Iterator[list[Any]]:
    """Let threads wait for an object, one after the other. The list gets what they were lent, in that order."""
    got: list[Any] = []

    def work() -> None:
        got.append(pool.take(seconds))

    threads = [threading.Thread(target=work) for _ in range(count)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        wait_until(lambda number=number: len(pool._seekers) == number)  # type: ignore[misc]
    yield got
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


def test_the_last_one_that_was_used_is_lent_first() -> None:
    pool = pool_of(3)
    first, second = pool.take(0), pool.take(0)
    assert first is not second
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(0) is second
    assert pool.take(0) is first
    assert len(pool.made()) == 2, "they are made when they are needed"


def test_no_more_are_lent_than_the_limit() -> None:
    pool = pool_of(2)
    lent = [pool.take(0) for _ in range(2)]
    started = time.monotonic()
    with pytest.raises(NoReply, match=r"all 2 connections were busy for 0\.1 s") as caught:
        pool.take(0.1)
    assert time.monotonic() - started >= 0.1
    assert caught.value.may_have_run is False
    assert not pool._seekers
    pool.give_back(lent.pop())
    pool.take(0)


def test_one_that_is_lost_is_replaced() -> None:
    pool = pool_of(1)
    pool.take(0).open()
    assert Connection.open_ones == 0, "it was collected"
    pool.take(0)


def test_one_that_is_lost_while_a_thread_waits_is_replaced() -> None:
    pool = pool_of(1)
    lent = [pool.take(0)]
    with waiting(pool) as got:
        lent.clear()  # and nothing wakes the thread
    assert len(got) == 1


def test_one_that_is_discarded_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "LOST_WAKE_SECONDS", LONG)  # nothing comes of itself
    pool = pool_of(1)
    lent = pool.take(0)
    with waiting(pool) as got:
        pool.discard(lent)
        pool.discard(lent)  # as after an interruption
    assert got != [lent]
    with pytest.raises(NoReply):
        pool.take(0)


def test_a_thread_that_waits_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "LOST_WAKE_SECONDS", LONG)
    pool = pool_of(1)
    lent = pool.take(0)
    with waiting(pool) as got:
        pool.give_back(lent)
    assert got == [lent]


def test_a_thread_that_has_waited_in_vain_gets_the_next_one() -> None:
    """However fast the others take what becomes free."""
    pool = pool_of(1)
    lent = pool.take(0)
    with waiting(pool) as got:
        wait_until(lambda: pool._seekers[0].is_late)
        pool.give_back(lent)
        with pytest.raises(NoReply):
            pool.take(0)
    assert got == [lent]


def test_threads_that_have_waited_in_vain_are_served_in_order() -> None:
    pool = pool_of(1)
    lent = pool.take(0)
    order: list[int] = []

    def work(number: int) -> None:
        mine = pool.take(LONG)
        order.append(number)
        pool.give_back(mine)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        wait_until(lambda number=number: len(pool._seekers) == number)  # type: ignore[misc]
    wait_until(lambda: all(seeker.is_late for seeker in pool._seekers))
    pool.give_back(lent)
    for thread in threads:
        thread.join(LONG)
    assert order == [0, 1, 2, 3, 4]


def test_a_wake_that_finds_nothing_makes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread was faster: the one that was woken goes before all that came after it."""
    monkeypatch.setattr(lending, "LOST_WAKE_SECONDS", LONG)
    pool = pool_of(1)
    lent = pool.take(0)
    with waiting(pool, 2) as got:
        first = pool._seekers[0]
        pool._seekers.popleft().wake.set()  # for one that is gone already
        wait_until(lambda: len(pool._seekers) == 2)
        assert pool._seekers[0] is first
        pool.give_back(lent)
        wait_until(lambda: got == [lent])
        pool.give_back(lent)
    assert got == [lent, lent]


def test_a_seeker_that_leaves_passes_on_what_it_was_handed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "LOST_WAKE_SECONDS", LONG)
    pool = pool_of(1)
    lent = pool.take(0)
    seeker: Any = lending._Seeker(Wake(), is_late=True)
    pool._seekers.append(seeker)
    pool.give_back(lent)
    assert seeker.lent is lent
    with waiting(pool) as got:
        pool._leave(seeker)
    assert got == [lent]


def test_many_threads_share_a_few() -> None:
    pool = pool_of(3)
    in_use: set[int] = set()
    most = [0]

    def work() -> None:
        for _ in range(100):
            lent = pool.take(LONG)
            assert id(lent) not in in_use
            in_use.add(id(lent))
            most[0] = max(most[0], len(in_use))
            time.sleep(0)
            in_use.remove(id(lent))
            pool.give_back(lent)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert most[0] <= 3
    assert len(pool.free) == len(pool.made()) <= 3
    assert not pool._seekers


# The closing


def test_free_ones_are_closed_at_once_and_lent_ones_when_they_come_back() -> None:
    pool = pool_of(3)
    lent = [pool.take(0) for _ in range(3)]
    for each in lent:
        each.open()
    pool.give_back(lent[0])
    pool.close()
    assert [each.is_open for each in lent] == [False, True, True]
    pool.give_back(lent[1])
    pool.give_back(lent[2])
    assert not any(each.is_open for each in lent)
    pool.close()


def test_a_closed_pool_lends_and_closes_again() -> None:
    pool = pool_of(1)
    pool.close()
    for _ in range(2):
        lent = pool.take(0)
        lent.open()
        pool.give_back(lent)
        assert not lent.is_open


def test_one_that_comes_back_just_as_the_pool_is_closed_is_closed() -> None:
    """The closing has closed the free ones, and the one that gives back has seen that it is not closed yet."""
    pool = pool_of(1)
    lent = pool.take(0)
    lent.open()

    class Free(type(pool.free)):  # type: ignore[misc]
        def append(self, each: Any) -> None:
            pool.free = free
            pool.close()
            free.append(each)

    free, pool.free = pool.free, Free()
    pool.give_back(lent)
    assert not lent.is_open


# Forks


def test_a_child_has_its_own_while_all_of_its_parent_are_lent() -> None:
    pool = pool_of(1)
    lent = pool.take(0)
    with waiting(pool) as got, pool._lock:

        def check() -> None:
            assert not pool._seekers
            mine = pool.take(5)
            assert mine is not lent
            pool.give_back(mine)

        in_child(check)
        pool.give_back(lent)
    assert got == [lent]


@pytest.mark.parametrize("keeps_inherited", [True, False])
def test_a_child_collects_what_it_inherited_unless_that_would_end_sessions(*, keeps_inherited: bool) -> None:
    pool = pool_of(1, keeps_inherited=keeps_inherited)
    lent = pool.take(0)
    lent.open()
    pool.give_back(lent)
    del lent

    def check() -> None:
        gc.collect()
        assert Connection.open_ones == (1 if keeps_inherited else 0)
        pool.take(0)

    in_child(check)
    assert Connection.open_ones == 1


def test_a_child_that_was_forked_within_a_call_lends_nothing_of_its_parent() -> None:
    """A signal handler may fork, and return in the child, too: both would write to one socket."""
    pool = pool_of(1)
    lent = pool.take(0)

    def check() -> None:
        pool.give_back(lent)
        assert pool.take(0) is not lent

    in_child(check)
    pool.give_back(lent)
    assert pool.take(0) is lent


# Interruptions

WHERE = ("kernel/lending.py",)


def use(pool: Pool[Connection]) -> None:
    lent = pool.take(0)
    try:
        lent.open()
    finally:
        pool.give_back(lent)


def wait_in_vain(pool: Pool[Connection]) -> None:
    lent = pool.take(0)
    try:
        with pytest.raises(NoReply):
            pool.take(0.001)
    finally:
        pool.give_back(lent)


def hand_over(pool: Pool[Connection]) -> None:
    """Give back while one waits that is late, and which then leaves."""
    lent = pool.take(0)
    seeker: Any = lending._Seeker(Wake(), is_late=True)
    try:
        pool._seekers.append(seeker)
    finally:
        try:
            pool.give_back(lent)
        finally:
            pool._leave(seeker)


def lends_again(pool: Pool[Connection]) -> None:
    """Without a wait: what was lost has been collected."""
    for _ in range(2):  # a seeker that was interrupted as it left may be handed one, which is then collected
        lent = [pool.take(0)]
        assert pool.made() == lent
        pool.give_back(lent.pop())


EACH_WORK = pytest.mark.parametrize("work", [use, wait_in_vain, hand_over])


@EACH_WORK
@pytest.mark.parametrize("has_free", [False, True])
def test_an_interruption_at_any_line(work: Callable[[Any], None], *, has_free: bool) -> None:
    line, raised = 0, True
    while raised:
        line, pool = line + 1, pool_of(1)
        if has_free:
            pool.give_back(pool.take(0))
        try:
            _, raised = raise_at_line(line, Exit(), WHERE, partial(work, pool))
        except Exit:
            pass
        lends_again(pool)
        pool.close()
        assert Connection.open_ones == 0
    assert line > 5


@EACH_WORK
def test_an_interruption_at_any_step(work: Callable[[Any], None]) -> None:
    pool = pool_of(1)
    assert at_every_step(partial(work, pool), partial(lends_again, pool)) > 3


@pytest.mark.thorough
@pytest.mark.parametrize("is_late", [False, True])
def test_an_interruption_of_a_return_holds_up_no_other_thread(*, is_late: bool) -> None:
    line, raised = 0, True
    while raised:
        line, pool = line + 1, pool_of(1)
        lent = [pool.take(0)]
        with waiting(pool) as got:
            if is_late:
                wait_until(lambda pool=pool: pool._seekers[0].is_late)  # type: ignore[misc]
            try:
                _, raised = raise_at_line(
                    line,
                    Exit(),
                    WHERE,
                    lambda pool=pool, lent=lent: pool.give_back(lent.pop()),  # type: ignore[misc]
                )
            except Exit:
                pass
        assert len(got) == 1
    assert line > 5


class Turn:
    """An object that has nothing to close."""

    used = math.inf

    def close(self) -> None:
        pass


class Operation:
    """One that refers to its object, and so can discard it again after an interruption."""

    lent: Turn | None = None

    def run(self, pool: Pool[Turn]) -> None:
        try:
            self.lent = pool.take(0)
        finally:
            self.end(pool)

    def end(self, pool: Pool[Turn]) -> None:
        if self.lent is not None:
            pool.discard(self.lent)
            self.lent = None


def test_what_is_discarded_again_is_free_while_the_interruption_is_handled() -> None:
    """Whose traceback refers to the frames of the pool: a guard has one connection, and may be used just there."""
    pool = Pool(Turn, 1)
    line, raised = 0, True
    while raised:
        line, operation = line + 1, Operation()
        try:
            _, raised = raise_at_line(line, Exit(), (*WHERE, __file__), partial(operation.run, pool))
        except Exit:
            operation.end(pool)
            pool.discard(pool.take(0))
        pool.discard(pool.take(0))
    assert line > 10


def interrupt(*_: object) -> None:
    raise Exit


def test_an_interruption_while_a_thread_waits_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(1)
    lent = pool.take(0)
    with monkeypatch.context() as patch:
        patch.setattr(Wake, "wait", interrupt)
        with pytest.raises(Exit):
            pool.take(LONG)
    assert not pool._seekers
    pool.give_back(lent)
    lends_again(pool)


def test_a_late_thread_that_was_interrupted_as_it_left_is_handed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is still in the queue, and the traceback of its exception refers to it."""
    pool = pool_of(1)
    lent = pool.take(0)
    waits = iter([lambda: None, interrupt])
    with monkeypatch.context() as patch:
        patch.setattr(Wake, "wait", lambda *_: next(waits)())
        patch.setattr(pool, "_leave", interrupt)
        with pytest.raises(Exit) as handled:
            pool.take(LONG)
    assert len(pool._seekers) == 1
    pool.give_back(lent)
    assert pool.take(0) is lent
    assert handled.value.__traceback__ is not None


def test_a_signal_handler_may_use_the_pool_while_one_is_made() -> None:
    """So its lock is one that the same thread can take twice."""
    pool = pool_of(2)
    with pool._lock:
        lent = pool.take(0)
    assert pool.made() == [lent]


# What a burst has made


def after_a_burst(pool: Pool[Connection], count: int) -> list[weakref.ref[Connection]]:
    """The connections that so many calls at once have opened, the one that was used last at the end."""
    lent = [pool.take(0) for _ in range(count)]
    for number, each in enumerate(lent):
        each.open()
        each.used = number * 1e-3  # long ago
        pool.give_back(each)
    return [weakref.ref(each) for each in lent]


def test_what_a_burst_made_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "IDLE_SECONDS", 0.01)
    pool = pool_of(4)
    *_, last = after_a_burst(pool, 4)
    wait_until(lambda: Connection.open_ones == 1 and len(pool.made()) == 1)
    assert pool.take(0) is last(), "the one that was used last stays"
    wait_until(lambda: not lending._idle._worker.is_running)


def test_what_was_used_lately_is_not_given_up() -> None:
    pool = pool_of(4)
    alive = after_a_burst(pool, 4)
    busy = pool.take(0)
    for each in alive[1:]:
        if (found := each()) is not None:
            found.used = time.monotonic()
    assert pool.give_up_idle() is True, "it is watched further"
    assert [each() is None for each in alive] == [True, False, False, False]
    assert busy.is_open
    pool.give_back(busy)
    pool.close()
    assert pool.give_up_idle() is False


def test_one_that_must_stay_is_not_given_up() -> None:
    stays: list[Connection] = []
    pool = pool_of(3, must_stay=lambda each: each in stays)
    after_a_burst(pool, 3)
    stays.append(pool.free[0])
    pool.give_up_idle()
    assert pool.made() == stays
    assert pool.take(0) is stays[0]


def test_the_reserve_is_given_up_whole() -> None:
    pool = pool_of(1, has_reserve=True)
    lent = pool.take(0)
    reserve, urgent = pool.take_urgently(0)
    urgent.used = 0.0
    reserve.give_back(urgent)
    del urgent
    assert reserve.give_up_idle() is False
    assert not reserve.made()
    assert pool.made() == [lent]


def test_a_pool_that_is_watched_may_be_collected() -> None:
    pool = pool_of(2)
    after_a_burst(pool, 2)
    watched = weakref.ref(pool)
    assert watched in lending._idle._pools
    del pool
    assert watched() is None
    assert watched not in lending._idle._pools
    assert Connection.open_ones == 0


@pytest.mark.parametrize("may_change_threads", [False, True])
def test_the_sockets_of_greenlets_are_closed_by_no_other_thread(
    monkeypatch: pytest.MonkeyPatch, may_change_threads: bool
) -> None:
    pool = pool_of(2, may_change_threads=may_change_threads)
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: None)  # greenlets
        after_a_burst(pool, 2)
    assert (weakref.ref(pool) in lending._idle._pools) is may_change_threads


# Tasks


def test_what_a_burst_of_tasks_made_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "IDLE_SECONDS", 0.01)

    async def main() -> None:
        pool = AsyncPool(Connection, 4, give_up=Connection.close, has_reserve=True)
        lent = [await pool.take(LONG) for _ in range(4)]
        reserve, urgent = await pool.take_urgently(LONG)
        reserve.give_back(urgent)
        for each in [*lent, urgent]:
            each.open()
            each.used = 0.0
        busy = lent[3]
        for each in lent[:3]:
            pool.give_back(each)
        del each, lent, urgent
        await until(lambda: Connection.open_ones == 1)
        assert busy.is_open, "one of them stays, and that is not free"
        assert [each.made() for each in pool.pools] == [[busy], []]
        watched = weakref.ref(pool)
        del pool, reserve
        assert watched() is None, "the timer of the loop does not keep it"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_last_idle_one_of_tasks_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given up counts no more, also while it is still referred to."""
    monkeypatch.setattr(lending, "IDLE_SECONDS", 0.01)
    given_up: list[Connection] = []

    async def main() -> None:
        pool = AsyncPool(Connection, 4, give_up=given_up.append)
        lent = [await pool.take(LONG) for _ in range(4)]
        for each in lent:
            each.used = 0.0
            pool.give_back(each)
        pool.give_up_idle()
        assert given_up == lent[:3]
        assert pool.made() == lent[3:]
        assert list(pool.free) == lent[3:]

    asyncio.run(asyncio.wait_for(main(), 60))


async def waiting_tasks(pool: AsyncPool[Connection], count: int) -> list[asyncio.Task[Connection]]:
    tasks = []
    for number in range(1, count + 1):
        tasks.append(asyncio.ensure_future(pool.take(LONG)))
        await asyncio.sleep(0)
        assert len(pool._seekers) == number
    return tasks


def test_tasks_are_served_in_order() -> None:
    async def story() -> None:
        pool = AsyncPool(Connection, 1)
        lent = await pool.take(0)
        with pytest.raises(NoReply, match=r"all 1 connections were busy for 0\.01 s"):
            await pool.take(0.01)
        for task in await waiting_tasks(pool, 5):
            assert not task.done()
            pool.give_back(lent)
            assert not pool.free, "it is handed to the first one that waits"
            assert await asyncio.wait_for(task, LONG) is lent

    asyncio.run(story())


def test_what_serves_badly_is_lent_last() -> None:
    async def story() -> None:
        pool = AsyncPool(Connection, 2)
        good, bad = await pool.take(0), await pool.take(0)
        pool.give_back(good)
        pool.give_back(bad, last=True)
        assert await pool.take(0) is good
        assert await pool.take(0) is bad
        [task] = await waiting_tasks(pool, 1)
        pool.give_back(bad, last=True)
        assert await asyncio.wait_for(task, LONG) is bad

    asyncio.run(story())


def test_a_task_takes_what_another_one_has_lost() -> None:
    async def story() -> None:
        pool = AsyncPool(Connection, 1)
        lent = [await pool.take(0)]
        [task] = await waiting_tasks(pool, 1)
        lent.clear()  # and nothing wakes the task
        lent = [await asyncio.wait_for(task, LONG)]
        assert pool.made() == lent

    asyncio.run(story())


def test_many_tasks_wake_up_as_rarely_as_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[float] = []
    wait = TaskWake.wait

    async def note(wake: Any, limit: float) -> None:
        seconds.append(limit)
        await wait(wake, limit)

    async def story() -> None:
        pool = AsyncPool(Connection, 2)
        lent = [await pool.take(0) for _ in range(2)]
        tasks = await waiting_tasks(pool, 100)
        assert seconds[0] == LOST_WAKE_SECONDS
        assert seconds[9] == pytest.approx(5 * LOST_WAKE_SECONDS)
        assert seconds[-1] == lending.MOST_RECHECK_SECONDS
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert not pool._seekers
        assert lent

    monkeypatch.setattr(TaskWake, "wait", note)
    asyncio.run(story())


@pytest.mark.parametrize("count", [1, 2])
def test_a_task_that_is_cancelled_as_it_is_handed_one_passes_it_on(count: int) -> None:
    """It is neither lost, nor is the cancellation."""

    async def story() -> None:
        pool = AsyncPool(Connection, 1)
        lent = await pool.take(0)
        first, *others = await waiting_tasks(pool, count)
        pool.give_back(lent)
        first.cancel()  # it has not run yet
        with pytest.raises(asyncio.CancelledError):
            await first
        for task in others:
            assert await asyncio.wait_for(task, LONG) is lent
        assert len(pool.free) == 2 - count

    asyncio.run(story())


def test_a_task_that_was_interrupted_as_it_left_is_handed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        pool = AsyncPool(Connection, 1)
        lent = await pool.take(0)
        [task] = await waiting_tasks(pool, 1)
        with monkeypatch.context() as patch:
            patch.setattr(pool, "_leave", interrupt)
            task.cancel()
            with pytest.raises(Exit):
                await task
        assert len(pool._seekers) == 1
        pool.give_back(lent)
        assert await pool.take(0) is lent
        assert task.done()

    asyncio.run(story())


@pytest.mark.thorough
def test_an_interruption_of_a_task_at_any_line() -> None:
    async def use() -> None:
        lent = await pool.take(LONG)
        try:
            await asyncio.sleep(0)
        finally:
            pool.give_back(lent)

    async def is_interrupted() -> bool:
        try:
            await use()
        except Exit:  # and whatever it refers to is collected: a task would refer to it for as long as the task lives
            return True
        return False

    async def story() -> bool:
        """Return whether one of three tasks was interrupted, which all take turns."""
        tasks = [asyncio.ensure_future(is_interrupted()) for _ in range(3)]
        done, pending = await asyncio.wait(tasks, timeout=LONG)
        assert not pending
        return sum(task.result() for task in done) == 1

    async def lends_again() -> None:
        lent = await pool.take(0)
        assert pool.made() == [lent]

    line, raised = 0, True
    while raised:
        line, pool = line + 1, AsyncPool(Connection, 1)
        raised, _ = raise_at_line(line, Exit(), WHERE, lambda: asyncio.run(story()))
        asyncio.run(lends_again())
    assert line > 50


def test_an_urgent_call_has_an_object_also_if_the_others_keep_all() -> None:
    pool = pool_of(1, has_reserve=True)
    lent = pool.take(LONG)
    with waiting(pool) as got:
        reserve, urgent = pool.take_urgently(LONG)
        assert urgent is not lent
        with pytest.raises(NoReply):
            pool.take_urgently(0.01)
        reserve.give_back(urgent)
        assert not got, "nobody else has it"
        pool.give_back(lent)
        wait_until(lambda: got == [lent])


def test_an_urgent_call_prefers_an_object_that_is_free() -> None:
    pool = pool_of(1, has_reserve=True)
    lent = pool.take(LONG)
    pool.give_back(lent)
    assert pool.take_urgently(LONG) == (pool, lent)


def test_the_reserve_is_closed_with_the_pool() -> None:
    pool = pool_of(1, has_reserve=True)
    pool.take(LONG)
    reserve, urgent = pool.take_urgently(LONG)
    urgent.open()
    reserve.give_back(urgent)
    pool.close()
    assert not urgent.is_open


def test_an_urgent_task_has_an_object_also_if_the_others_keep_all() -> None:
    async def main() -> None:
        pool = AsyncPool(Connection, 1, has_reserve=True)
        lent = await pool.take(LONG)
        reserve, urgent = await pool.take_urgently(LONG)
        assert urgent is not lent
        assert [each.made() for each in pool.pools] == [[lent], [urgent]]
        with pytest.raises(NoReply):
            await pool.take(0.01)
        reserve.give_back(urgent)
        pool.give_back(lent)
        assert await pool.take_urgently(LONG) == (pool, lent)

    asyncio.run(main())
