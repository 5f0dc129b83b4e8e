"""A Redis that accepts connections and does not answer, because it is stopped. Every call ends by its deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable, RedisCoordinator
from tests.support import wait_until
from tests.support.redis_requests import scripts_run
from tests.support.sides import Side

SLACK = 20.0
"""Seconds that a busy machine may add. A default redis.Redis() takes 58 s to give up."""


@pytest.fixture
def server(freezable_redis: RedisServer) -> RedisServer:
    return freezable_redis


def seconds(side: Side, error: type[Exception], function: Any, *args: Any, **kwargs: Any) -> float:
    started = time.monotonic()
    side.expect(error, function, *args, **kwargs)
    return time.monotonic() - started


@pytest.mark.thorough
def test_every_call_ends_by_its_deadline(side: Side, server: RedisServer) -> None:
    coordinator = side.coordinator(server.url, ttl=0.6)  # so an attempt may take 0.2 s, a call without deadline 0.4 s
    lease = side.call(coordinator.lock("held", ttl=0.9).acquire)
    server.freeze()
    assert seconds(side, CoordinatorUnavailable, lease.renew) < SLACK
    assert 0.2 <= seconds(side, CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.2) < 0.2 + SLACK
    assert seconds(side, CoordinatorUnavailable, coordinator.try_acquire, "r") < SLACK
    assert seconds(side, CoordinatorUnavailable, coordinator.acquire, "r") < SLACK, "it has no timeout, and a bound"
    assert seconds(side, CoordinatorUnavailable, coordinator.lock("r").holder) < SLACK
    assert seconds(side, CoordinatorUnavailable, lease.release) < SLACK
    assert not lease.held


def test_the_default_client_is_bounded_too_while_it_connects(side: Side, server: RedisServer) -> None:
    server.freeze()
    coordinator = side.coordinator(server.url, ttl=10)
    assert seconds(side, CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.2) < 0.2 + SLACK


def test_an_acquire_that_was_given_up_gives_the_lock_back_later(side: Side, server: RedisServer) -> None:
    coordinator = side.coordinator(server.url, ttl=60)
    side.call(side.call(coordinator.acquire, "warm").release)  # the scripts are loaded, a connection is open
    before = scripts_run(server)
    server.freeze()
    side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.2)
    server.thaw()
    client = server.client()
    # The request arrives late, and is carried out.
    wait_until(lambda: scripts_run(server) > before)
    wait_until(lambda: client.get("r") is None)


@pytest.mark.thorough
def test_leaving_the_block_neither_hangs_nor_raises(
    side: Side, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = side.coordinator(server.url, ttl=0.9)

    async def work_async() -> None:
        async with coordinator.hold("r"):
            server.freeze()

    def work() -> None:
        with coordinator.hold("r"):
            server.freeze()

    started = time.monotonic()
    side.call(work_async if side.asynchronous else work)
    assert time.monotonic() - started < SLACK
    assert "could not be released" in caplog.text


@pytest.mark.thorough
def test_a_silent_server_is_noticed_by_many_threads_at_once(side: Side, server: RedisServer) -> None:
    coordinator = side.coordinator(server.url, ttl=1.5)
    server.freeze()

    def attempt() -> float:
        return seconds(side, CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.3)

    assert max(side.race([attempt] * 40)) < 0.3 + SLACK, "also for threads that wait for a connection"


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["timer", "another process"])
def test_signals_do_not_extend_the_time_out(server: RedisServer, source: str) -> None:
    """Each signal interrupts the system call, and the time-out of the kernel would start again."""
    program = f"""
import signal, time, redis
from fencing import CoordinatorUnavailable, RedisCoordinator
coordinator = RedisCoordinator(redis.Redis.from_url({server.url!r}), ttl=1.5)
coordinator.acquire("warm").release()
signal.signal(signal.SIGALRM, lambda *_: None)
print("ready", flush=True)
input()
if {source == "timer"}:
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
started = time.monotonic()
try:
    coordinator.acquire("r", timeout=0.5)
except CoordinatorUnavailable:
    print(time.monotonic() - started, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            server.freeze()
            process.stdin.write("go\n")
            process.stdin.flush()
            give_up = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < give_up:
                if source != "timer":
                    process.send_signal(signal.SIGALRM)
                time.sleep(0.05)
            output = process.stdout.readline() if process.poll() is not None else "nothing"
        finally:
            process.kill()
    assert output != "nothing"
    assert 0.4 < float(output) < 0.5 + SLACK


def test_a_lock_is_given_back_when_its_request_was_interrupted_while_it_was_sent(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(fd: int, data: bytes) -> None:
        os.write(fd, data)
        monkeypatch.undo()
        raise KeyboardInterrupt  # as soon as the first request was sent

    with RedisCoordinator(server.client(), ttl=60) as coordinator:
        coordinator.acquire("warm").release()
        monkeypatch.setattr("fencing.redis.connection.os", SimpleNamespace(name=os.name, write=write))
        with pytest.raises(KeyboardInterrupt):
            coordinator.acquire("r", timeout=5)
        wait_until(lambda: coordinator.holder("r") is None)
