"""Leases that live: renewed while they are held, lost the moment that is known, and not a moment longer."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncRedisCoordinator, FencedLock, LeaseLost, RedisCoordinator
from fencing.kernel import process
from fencing.kernel.fence import Fence, HasFence
from fencing.locks import callbacks as callbacks_module
from fencing.locks import timer as timer_module
from fencing.redis.scripts import RENEW
from tests.redis.test_cancellation import until
from tests.redis.test_lost_replies import asks_for
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.sides import Side

TTL = 0.6
ROOT = Path(__file__).resolve().parents[2]


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def outlast(seconds: float, holds: Callable[[], object]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert holds()
        time.sleep(0.02)


# While it is held


def test_a_lease_outlives_its_ttl_and_keeps_its_fence(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    lease = side.call(side.coordinator(any_redis.url, ttl=TTL).acquire, "r")
    fence = lease.fence
    outlast(3 * TTL, lambda: lease.held and client.get("r") == fence.token.encode())
    assert lease.fence == fence
    assert not lease.lost.is_set()
    assert side.call(lease.release) is True


def test_without_renewal_it_ends(side: Side, any_redis: RedisServer) -> None:
    lease = side.call(side.coordinator(any_redis.url, ttl=TTL, renew=False).acquire, "r")
    lost = lease.lost
    side.wait_until(lost.is_set, seconds=3 * TTL)
    assert side.expect(LeaseLost, lease.ensure_held).reason == "expired"
    side.call(lease.release)


def test_its_lifetime_is_capped(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url, ttl=TTL, max_lifetime=2 * TTL)
    started = time.monotonic()
    lease = side.call(coordinator.acquire, "r")
    side.wait_until(lease.lost.is_set)
    assert 1.5 * TTL < time.monotonic() - started < 4 * TTL
    assert side.expect(LeaseLost, lease.ensure_held).reason == "expired"
    side.call(lease.release)


class BlockingGuard:
    """Its claim takes three times the ttl."""

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        time.sleep(3 * TTL)

    def mark(self, resource: str) -> None: ...


class AsyncBlockingGuard:
    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        await asyncio.sleep(3 * TTL)

    async def mark(self, resource: str) -> None: ...


def test_renewal_starts_at_the_grant_before_the_claims(side: Side, any_redis: RedisServer) -> None:
    guard = AsyncBlockingGuard() if side.asynchronous else BlockingGuard()
    lease = side.call(side.coordinator(any_redis.url, ttl=TTL, guards=[guard]).acquire, "r", timeout=10)
    assert lease.held
    side.call(lease.renew)
    assert side.call(lease.release) is True


def test_many_leases_go_into_few_requests(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    coordinator = side.coordinator(any_redis.url, ttl=1.5)
    leases = [side.call(coordinator.acquire, f"r{number}") for number in range(300)]
    client.config_resetstat()
    outlast(2.0, lambda: all(lease.held for lease in leases))
    calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls < 150, "some 1,200 renewals"
    for lease in leases:
        assert side.call(lease.release) is True


# When it is lost


def test_gone_is_lost_at_once(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    lease = side.call(side.coordinator(any_redis.url, ttl=3).acquire, "r")
    lost = lease.lost
    started = time.monotonic()
    client.delete("r")
    side.wait_until(lost.is_set)
    assert time.monotonic() - started < 2, "at the next renewal, not at the deadline"
    assert side.expect(LeaseLost, lease.ensure_held).reason == "gone"
    assert client.get("r") is None, "renewal did not take it again"
    side.call(lease.release)


def test_a_silent_redis_means_lost_at_the_deadline_and_holds_up_nobody_else(
    side: Side, any_redis: RedisServer, fresh_redis: RedisFactory
) -> None:
    silent = fresh_redis()
    coordinator, other = side.coordinator(silent.url, ttl=TTL), side.coordinator(any_redis.url, ttl=TTL)
    leases = [side.call(coordinator.acquire, f"r{number}") for number in range(5)]
    neighbour = side.call(other.acquire, "r")
    events = [lease.lost for lease in leases]
    silent.freeze()
    side.wait_until(lambda: not any(lease.held for lease in leases))
    side.wait_until(lambda: all(event.is_set() for event in events), seconds=0.5)
    assert {side.expect(LeaseLost, lease.ensure_held).reason for lease in leases} == {"expired"}
    outlast(2 * TTL, lambda: neighbour.held)
    silent.thaw()
    for lease in leases:
        side.call(lease.release)
    assert side.call(neighbour.release) is True


def test_the_deadline_is_watched_while_the_worker_is_stuck(
    any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisCoordinator(any_redis.client(), ttl=TTL) as coordinator:
        lease = coordinator.acquire("r")
        unstick, whole = threading.Event(), coordinator.perform

        def stuck(effect: Any) -> Any:
            unstick.wait(30)
            return whole(effect)

        monkeypatch.setattr(coordinator, "perform", stuck)
        assert lease.lost.wait(3 * TTL)
        unstick.set()
        lease.release()


def test_a_lost_reply_to_a_renewal_is_no_loss(side: Side, any_redis: RedisServer, proxy: ProxyFactory) -> None:
    through = proxy(any_redis)
    lease = side.call(side.coordinator(through.url(any_redis.url), ttl=1.0).acquire, "r")
    loss = through.drop_reply_when(lambda request: asks_for(RENEW, request), times=3)
    assert loss.wait(10, times=3)
    outlast(1.0, lambda: lease.held)
    assert side.call(lease.release) is True


def test_on_lost_is_called_with_the_loss(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url, ttl=TTL)
    lease = side.call(coordinator.acquire, "r")
    told: list[tuple[LeaseLost, str]] = []
    lease.on_lost(lambda error: told.append((error, threading.current_thread().name)))
    any_redis.client().delete("r")
    side.wait_until(lambda: told)
    [(error, where)] = told
    assert (error.reason, error.fence) == ("gone", lease.fence)
    assert where == ("fencing-contract-loop" if side.asynchronous else "fencing-on-lost")
    side.call(lease.release)


def test_on_lost_after_the_loss_is_called_at_once(side: Side, any_redis: RedisServer) -> None:
    lease = side.call(side.coordinator(any_redis.url, ttl=TTL, renew=False).acquire, "r")
    side.wait_until(lease.lost.is_set)
    told: list[LeaseLost] = []

    async def register() -> None:
        lease.on_lost(told.append)

    side.call(register)
    side.wait_until(lambda: told)
    assert [(error.reason, error.fence) for error in told] == [("expired", lease.fence)]
    side.call(lease.release)


def test_a_callback_that_fails_is_logged_and_one_that_blocks_holds_up_nobody(
    any_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    never = threading.Event()
    with RedisCoordinator(any_redis.client(), ttl=TTL) as coordinator:
        leases = [coordinator.acquire(f"r{number}") for number in range(3)]
        told: list[LeaseLost] = []
        leases[0].on_lost(lambda error: never.wait(30) and None)
        leases[1].on_lost(lambda error: 1 / 0)
        leases[2].on_lost(told.append)
        other = coordinator.acquire("other")
        for number in range(3):
            any_redis.client().delete(f"r{number}")
        wait_until(lambda: told)
        wait_until(lambda: "ZeroDivisionError" in caplog.text)
        assert [(error.fence, error.reason) for error in told] == [(leases[2].fence, "gone")]
        outlast(2 * TTL, lambda: other.held)
        never.set()
        other.release()
        for lease in leases:
            lease.release()
    wait_until(lambda: not threads("fencing-on-lost"))


def test_callbacks_have_a_limited_number_of_threads() -> None:
    started, go_on = [], threading.Event()

    def callback(number: int) -> None:
        started.append(number)
        go_on.wait(30)

    for number in range(3 * callbacks_module.MAX_THREADS):
        callbacks_module.call_in_thread(callback, number)
    wait_until(lambda: len(started) == callbacks_module.MAX_THREADS)
    assert len(threads("fencing-on-lost")) == callbacks_module.MAX_THREADS
    go_on.set()
    wait_until(lambda: len(started) == 3 * callbacks_module.MAX_THREADS)
    wait_until(lambda: not threads("fencing-on-lost"))


# The renewer's own life


def test_it_ends_with_the_last_lease(any_redis: RedisServer) -> None:
    with RedisCoordinator(any_redis.client(), ttl=TTL) as coordinator:
        one, two = coordinator.acquire("one"), coordinator.acquire("two")
        wait_until(lambda: threads("fencing-renewal"))
        assert len(threads("fencing-renewal")) == len(threads("fencing-timer")) == 1
        one.release()
        outlast(2 * TTL, lambda: two.held)
        two.release()
        wait_until(lambda: not threads("fencing-renewal") and not threads("fencing-timer"))


def test_short_holdings_start_no_worker_and_leave_no_calls_behind(any_redis: RedisServer) -> None:
    with RedisCoordinator(any_redis.client(), ttl=10) as coordinator:
        for _ in range(500):
            coordinator.acquire("r").release()
        assert not threads("fencing-renewal")
        assert len(timer_module.timer()._heap) < 50, "one for each moment of the calendar, at most"
        wait_until(lambda: not threads("fencing-timer"))


def test_a_lease_that_is_collected_is_not_renewed(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    lease = side.call(side.coordinator(any_redis.url, ttl=TTL).acquire, "r")
    lease.on_lost(lease.__ne__)  # a cycle through the lease itself
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del lease
        gc.collect()
    side.wait_until(lambda: client.get("r") is None, seconds=4 * TTL)


def test_what_nobody_foresaw_is_logged_and_not_the_end(
    side: Side, any_redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = side.coordinator(any_redis.url, ttl=TTL)
    lease = side.call(coordinator.acquire, "r")
    whole = type(coordinator).plan_renew
    failures = iter([True, True])

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(failures, False):
            raise ZeroDivisionError("unforeseen")
        return whole(coordinator, *args, **kwargs)

    monkeypatch.setattr(coordinator, "plan_renew", failing)
    outlast(3 * TTL, lambda: lease.held)
    assert caplog.text.count("ZeroDivisionError: unforeseen") == 2
    assert "renewing 1 leases failed; they are tried again" in caplog.text
    assert side.call(lease.release) is True


def test_a_thread_that_cannot_be_started_is_tried_again(
    any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([True])
    start = threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if thread.name == "fencing-renewal" and next(failures, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    wait_until(lambda: not threads("fencing-renewal"))
    monkeypatch.setattr(threading.Thread, "start", failing)
    with RedisCoordinator(any_redis.client(), ttl=TTL) as coordinator:
        first = coordinator.acquire("first")
        assert first.lost.wait(3 * TTL)
        second = coordinator.acquire("second")
        outlast(2 * TTL, lambda: second.held)
        first.release()
        second.release()


def test_cancelling_the_renewers_task_is_not_the_end_of_renewal(any_redis: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url), ttl=TTL) as coordinator:
            lease = await coordinator.acquire("r")
            cancelled = 0
            end = time.monotonic() + 4 * TTL
            while time.monotonic() < end:
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    if cancelled < 2:
                        task.cancel()
                        cancelled += 1
                await asyncio.sleep(0)
                assert lease.held
            assert cancelled == 2
            assert await lease.release()

    asyncio.run(main())


def test_a_call_that_fails_is_not_the_end_of_the_timer(caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError

    now = process.now()
    timer_module.timer().call_at(now, fail, lambda: True)
    timer_module.timer().call_at(now + 0.01, lambda: called.append(1), lambda: True)
    wait_until(lambda: called)
    assert "ZeroDivisionError" in caplog.text


def test_calls_come_in_order_and_early_once_none_is_wanted() -> None:
    called: list[int] = []
    wanted = [True]
    timer = timer_module.Timer()
    now = process.now()
    for number in (3, 1, 2, 360_000):
        timer.call_at(now + number / 100, partial(called.append, number), lambda: wanted[0])
    wait_until(lambda: len(called) == 3)
    assert called == [1, 2, 3]
    wanted.clear()
    wanted.append(False)
    wait_until(lambda: called == [1, 2, 3, 360_000] and timer._thread is None)


def test_it_does_not_keep_the_interpreter_alive(any_redis: RedisServer) -> None:
    code = (
        "import redis, sys, warnings; from fencing import FencedLock; warnings.simplefilter('ignore')\n"
        f"lease = FencedLock(redis.Redis.from_url({any_redis.url!r}), 'r', ttl=0.3).acquire()\n"
        "import time; time.sleep(0.4); assert lease.held; print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    wait_until(lambda: any_redis.client().get("r") is None)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_after_a_fork_each_process_renews_its_own(any_redis: RedisServer) -> None:
    with RedisCoordinator(any_redis.client(), ttl=TTL) as coordinator:
        lease = coordinator.acquire("parents")
        wait_until(lambda: threads("fencing-renewal"))
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()

        def child() -> None:
            mine = coordinator.acquire("childs", timeout=5)
            time.sleep(3 * TTL)  # it has to be renewed
            theirs.send((mine.held, mine.release(), lease.held, lease.release()))

        process = context.Process(target=child, daemon=True)
        process.start()
        assert ours.poll(20)
        assert ours.recv() == (True, True, False, False)
        process.join(20)
        assert lease.held
        assert lease.release() is True


# asyncio: the block is cancelled


def test_cancel_on_loss(any_redis: RedisServer) -> None:
    client = any_redis.client()

    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url), ttl=TTL) as coordinator:
            finished = cancelled = False
            started = time.monotonic()
            with pytest.raises(LeaseLost) as caught:  # noqa: PT012 - the block is what is tested
                async with coordinator.hold("r", cancel_on_loss=True):
                    client.delete("r")
                    try:
                        await asyncio.sleep(60)
                        finished = True
                    except asyncio.CancelledError:
                        cancelled = True
                        raise
            assert time.monotonic() - started < 5
            assert (finished, cancelled) == (False, True)
            assert caught.value.reason == "gone"
            assert not caught.value.completed
            await asyncio.sleep(0)  # and this task is not cancelled any more

    asyncio.run(main())


def test_a_loss_that_the_body_finds_itself_is_no_cancellation(any_redis: RedisServer) -> None:
    client = any_redis.client()

    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url), ttl=60) as coordinator:
            with pytest.raises(LeaseLost) as caught:  # noqa: PT012 - the block is what is tested
                async with coordinator.hold("r", cancel_on_loss=True) as lease:
                    client.delete("r")
                    await lease.renew()
            assert not caught.value.completed
            with pytest.raises(LeaseLost) as caught:  # noqa: PT012
                async with coordinator.hold("r", cancel_on_loss=True) as lease:
                    client.delete("r")
                    with pytest.raises(LeaseLost):
                        await lease.renew()
            assert caught.value.completed
            await asyncio.sleep(0)

    asyncio.run(main())


def test_threads_that_ask_for_the_event_at_once_get_the_same_one(any_redis: RedisServer) -> None:
    with RedisCoordinator(any_redis.client()) as coordinator:
        for _ in range(50):
            lease = coordinator.acquire("r")
            found: list[threading.Event] = []
            asking = [threading.Thread(target=lambda lease=lease, found=found: found.append(lease.lost)) for _ in "123"]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join(10)
            assert len({id(event) for event in found}) == 1
            lease.release()


def test_a_cancellation_from_outside_stays_one(any_redis: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url), ttl=TTL) as coordinator:
            inside = asyncio.Event()

            async def work() -> None:
                async with coordinator.hold("r", cancel_on_loss=True):
                    inside.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await coordinator.lock("r").holder() is None

    asyncio.run(main())


def test_lost_and_cancelled_at_once_is_cancelled(any_redis: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url), ttl=TTL) as coordinator:
            inside = asyncio.Event()
            leases = []

            async def work() -> None:
                async with coordinator.hold("r", cancel_on_loss=True) as lease:
                    leases.append(lease)
                    inside.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await inside.wait()
            leases[0]._holding.lose("gone")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_a_body_that_swallows_the_cancellation_still_learns_of_the_loss(any_redis: RedisServer) -> None:
    client = any_redis.client()

    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url), ttl=TTL) as coordinator:
            with pytest.raises(LeaseLost) as caught:  # noqa: PT012 - the block is what is tested
                async with coordinator.hold("r", cancel_on_loss=True):
                    client.delete("r")
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        pass
            assert caught.value.completed
            await asyncio.sleep(0)

    asyncio.run(main())


def test_the_renewers_task_ends_with_the_last_lease(any_redis: RedisServer) -> None:
    def names() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url), ttl=TTL) as coordinator:
            lease = await coordinator.acquire("r")
            await asyncio.sleep(2 * TTL)  # it has to be renewed
            assert lease.held
            await lease.release()
            await until(lambda: names() == ["fencing-redis"])  # the connection's, until it is closed

    asyncio.run(main())


def test_a_lock_may_have_another_ttl_than_its_coordinator(any_redis: RedisServer) -> None:
    with RedisCoordinator(any_redis.client(), ttl=30) as coordinator:
        short = FencedLock(coordinator, "short", ttl=TTL).acquire()
        long = coordinator.acquire("long")
        outlast(2 * TTL, lambda: short.held and long.held)
        assert short.remaining() <= TTL < long.remaining()
        assert short.release() is long.release() is True


def test_the_log_is_quiet_when_all_is_well(any_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "fencing"), RedisCoordinator(any_redis.client(), ttl=TTL) as coordinator:
        lease = coordinator.acquire("r")
        outlast(2 * TTL, lambda: lease.held)
        lease.release()
    assert not [record for record in caplog.records if record.name == "fencing"]
