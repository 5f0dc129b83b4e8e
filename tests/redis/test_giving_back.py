"""Locks that a request may have taken, but that nobody got: they are given back, whatever happened."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
import time
from types import SimpleNamespace

import pytest
import redis

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable, FencingError, RedisCoordinator
from fencing.redis.scripts import ACQUIRE
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory
from tests.support.redis_requests import asks_for, times_run
from tests.support.sides import Side


def test_a_server_that_is_frozen_during_the_whole_call(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    coordinator = side.coordinator(server.url, ttl=60)
    direct = server.client()
    side.call(side.call(coordinator.acquire, "warm").release)
    before = times_run(server, "set")
    server.freeze()
    with pytest.raises(FencingError):
        side.call(coordinator.acquire, "r", timeout=0.2)
    server.thaw()
    side.wait_until(lambda: times_run(server, "set") > before)  # it ran after all
    side.wait_until(lambda: direct.get("r") is None)


class Signal(Exception):
    """What a signal handler raises."""


@pytest.mark.parametrize("kind", [Signal, TimeoutError])
def test_an_exception_of_a_signal_handler_gives_back(
    any_redis: RedisServer, proxy: ProxyFactory, kind: type[Exception]
) -> None:
    through = proxy(any_redis)
    client = any_redis.client()

    def handle(*_: object) -> None:
        raise kind("the time of this job is up")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with RedisCoordinator(redis.Redis.from_url(through.url(any_redis.url)), ttl=60) as coordinator:
            coordinator.acquire("warm").release()
            through.hold_reply_when(lambda request: asks_for(ACQUIRE, request))

            def interrupt() -> None:
                wait_until(lambda: client.get("r") is not None)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                through.restore()

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(kind, match="of this job"):
                coordinator.acquire("r")
            thread.join()
            wait_until(lambda: client.get("r") is None)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_acquire_that_is_stopped_in_the_back_off(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reply is lost, so the lock is taken; then the pause before the repetition is interrupted."""
    through = proxy(any_redis)
    client = any_redis.client()
    coordinator = side.coordinator(through.url(any_redis.url), ttl=60)
    side.call(side.call(coordinator.acquire, "warm").release)
    loss = through.drop_reply_when(lambda request: asks_for(ACQUIRE, request), times=1)
    stop: type[BaseException] = asyncio.CancelledError if side.asynchronous else KeyboardInterrupt
    this_thread = threading.current_thread()

    # Only this test's own call is stopped. Threads and tasks of other tests may still give locks back, and an exception
    # of this kind would end the event loop that all tests share.
    def sleep(seconds: float) -> None:
        if threading.current_thread() is this_thread:
            raise stop
        time.sleep(seconds)

    async def sleep_async(seconds: float) -> None:
        task = asyncio.current_task()
        if side.asynchronous and task is not None and not task.get_name().startswith("fencing-"):
            raise stop
        await asyncio.sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr("fencing.kernel.effects.time", SimpleNamespace(sleep=sleep))
        patch.setattr("fencing.kernel.effects.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep_async}))
        with pytest.raises((stop, concurrent.futures.CancelledError)):
            side.call(coordinator.acquire, "r", timeout=10)
    assert loss.fired == 1
    side.wait_until(lambda: client.get("r") is None)


def test_a_deadline_while_reconnecting(side: Side, any_redis: RedisServer, proxy: ProxyFactory) -> None:
    """The first reply is lost, and then there is no connection until the deadline."""
    through = proxy(any_redis)
    client = any_redis.client()
    coordinator = side.coordinator(through.url(any_redis.url), ttl=60)
    side.call(side.call(coordinator.acquire, "warm").release)
    factory = coordinator._backend._connections.factory
    right = factory.options["port"]

    def lose(request: bytes) -> bool:
        if asks_for(ACQUIRE, request):
            factory.options["port"] = 1  # nothing listens there
            return True
        return False

    through.drop_reply_when(lose, times=1)
    with pytest.raises(CoordinatorUnavailable):
        side.call(coordinator.acquire, "r", timeout=0.3)
    assert client.get("r") is not None
    factory.options["port"] = right
    side.wait_until(lambda: client.get("r") is None)


# One try


@pytest.mark.parametrize("call", ["try_acquire", "acquire", "holder"])
def test_a_refused_connection_is_tried_only_a_few_times(side: Side, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencing.locks.settings.TRY_SECONDS", 60.0)
    coordinator = side.coordinator("redis://127.0.0.1:1", ttl=600)
    options = {"timeout": 0} if call == "acquire" else {}
    began = time.monotonic()
    with pytest.raises(CoordinatorUnavailable):
        side.call(getattr(coordinator, call), "r", **options)
    assert time.monotonic() - began < 30, "it does not go on for the minute of a request that has no answer"


@pytest.mark.thorough
def test_a_silent_server_costs_one_try_no_more_than_two_requests(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencing.locks.settings.TRY_SECONDS", 0.1)
    through = proxy(any_redis)
    through.silence()
    coordinator = side.coordinator(through.url(any_redis.url), ttl=600)
    began = time.monotonic()
    for call in (coordinator.try_acquire, coordinator.holder):
        with pytest.raises(CoordinatorUnavailable):
            side.call(call, "r")
    assert time.monotonic() - began < 30


# Closing


def test_closing_in_a_block_releases(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    coordinator = side.coordinator(any_redis.url, ttl=60)
    lease = side.call(coordinator.acquire, "r")
    side.call(coordinator.close)
    assert client.get("r") is None
    assert lease._ended == "released"
    assert side.call(lease.release) is True
    with pytest.raises(RuntimeError):
        side.call(coordinator.acquire, "r")


def test_blocks_that_end_after_the_closing_release(
    side: Side, any_redis: RedisServer, proxy: ProxyFactory, caplog: pytest.LogCaptureFixture
) -> None:
    through = proxy(any_redis)
    client = any_redis.client()
    coordinator = side.coordinator(through.url(any_redis.url), ttl=1.2, renew=False)
    leases = [side.call(coordinator.acquire, name) for name in ("r", "s", "t")]
    for lease in leases:
        client.pexpire(lease.fence.resource, 60_000)
    through.silence()
    began = time.monotonic()
    side.call(coordinator.close)
    assert time.monotonic() - began < 30
    assert "3 locks were held that could not be released" in caplog.text
    through.restore()
    for lease in leases:  # one after the other, over connections that were closed
        assert side.call(lease.release) is True
        assert client.get(lease.fence.resource) is None
