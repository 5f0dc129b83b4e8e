"""A Redis that accepts connections and never answers (SIGSTOP). Every call ends by its deadline."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable, RedisCoordinator
from fencing.redis import quirks
from tests.support import wait_until
from tests.support.fixtures import RedisFactory
from tests.support.sides import Side

SLACK = 1.0  # what a busy machine may add


@pytest.fixture
def server(fresh_redis: RedisFactory) -> RedisServer:
    return fresh_redis()


def seconds(side: Side, error: type[Exception], function: Any, *args: Any, **kwargs: Any) -> float:
    started = time.monotonic()
    side.expect(error, function, *args, **kwargs)
    return time.monotonic() - started


def test_every_call_ends_by_its_deadline(side: Side, server: RedisServer) -> None:
    coordinator = side.coordinator(server.url, ttl=1.5)  # so an attempt may take 0.5 s, a call without deadline 1 s
    lease = side.call(coordinator.acquire, "held")
    server.freeze()
    assert seconds(side, CoordinatorUnavailable, lease.renew) < 1 + SLACK
    assert 0.2 <= seconds(side, CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.2) < 0.2 + SLACK
    assert seconds(side, CoordinatorUnavailable, coordinator.try_acquire, "r") < 1 + SLACK
    assert seconds(side, CoordinatorUnavailable, coordinator.acquire, "r") < 1 + SLACK, "no timeout is not no bound"
    assert seconds(side, CoordinatorUnavailable, lease.release) < 1 + SLACK
    assert seconds(side, CoordinatorUnavailable, coordinator.lock("r").holder) < 1 + SLACK
    assert not lease.held


def test_the_default_client_is_bounded_too_while_it_connects(side: Side, server: RedisServer) -> None:
    server.freeze()
    coordinator = side.coordinator(server.url, ttl=10)
    assert seconds(side, CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.2) < 0.2 + SLACK


def test_an_acquire_that_was_given_up_does_not_leave_the_lock_to_its_ttl(side: Side, server: RedisServer) -> None:
    coordinator = side.coordinator(server.url, ttl=60)
    side.call(side.call(coordinator.acquire, "warm").release)  # the scripts are loaded, a connection is open
    server.freeze()
    side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.2)
    server.thaw()
    client = server.client()
    counted = "cmdstat_evalsha"
    side.wait_until(lambda: client.info("commandstats")[counted]["calls"] >= 3)  # it did arrive, late
    side.wait_until(lambda: client.get("r") is None, seconds=5)


def test_leaving_the_block_neither_hangs_nor_raises(
    side: Side, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = side.coordinator(server.url, ttl=1.5)

    async def work_async() -> None:
        async with coordinator.hold("r"):
            server.freeze()

    def work() -> None:
        with coordinator.hold("r"):
            server.freeze()

    started = time.monotonic()
    side.call(work_async if side.asynchronous else work)
    assert time.monotonic() - started < 1 + SLACK
    assert "could not be released" in caplog.text


def test_a_silent_server_is_noticed_by_many_threads_at_once(side: Side, server: RedisServer) -> None:
    coordinator = side.coordinator(server.url, ttl=1.5)
    server.freeze()

    def attempt() -> float:
        return seconds(side, CoordinatorUnavailable, coordinator.acquire, "r", timeout=0.3)

    assert max(side.race([attempt] * 40)) < 0.3 + 2 * SLACK, "also for those who wait for a connection"


@pytest.mark.parametrize("source", ["timer", "another process"])
def test_signals_that_come_faster_than_the_time_out_do_not_put_it_off(server: RedisServer, source: str) -> None:
    """Where the kernel keeps a time-out, each signal makes it count anew."""
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
            give_up = time.monotonic() + 20
            while process.poll() is None and time.monotonic() < give_up:
                if source != "timer":
                    process.send_signal(signal.SIGALRM)
                time.sleep(0.05)
            said = process.stdout.readline() if process.poll() is not None else "nothing"
        finally:
            process.kill()
    assert said != "nothing"
    assert 0.4 < float(said) < 0.5 + SLACK


class Interrupted(socket.socket):
    """A socket whose user presses Ctrl-C just as the first request has gone out, whoever sends it."""

    sent = 0

    def sendall(self, data: Any, flags: int = 0) -> None:
        super().sendall(data, flags)
        self.sent += 1
        if self.sent == 1:
            raise KeyboardInterrupt


def test_a_lock_is_given_back_when_its_request_was_interrupted_while_it_was_sent(fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    with RedisCoordinator(server.client(), ttl=60) as coordinator:
        coordinator.acquire("warm").release()
        connection = coordinator._connections._free[-1].connection  # which is used next
        real = quirks.socket_of(connection)
        assert real is not None
        connection._sock = Interrupted(fileno=os.dup(real.fileno()))
        with pytest.raises(KeyboardInterrupt):
            coordinator.acquire("r", timeout=5)
        wait_until(lambda: coordinator.holder("r") is None)
        real.close()
