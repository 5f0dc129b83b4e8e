"""Errors that a signal handler raises while Redis does not answer: they are not errors of the connection."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import pytest
import redis

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable, RedisCoordinator
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory
from tests.support.servers import Proxy

ERRORS = [
    pytest.param(TimeoutError, id="TimeoutError"),
    pytest.param(ConnectionResetError(104, "reset"), id="ConnectionResetError", marks=pytest.mark.thorough),
    pytest.param(redis.TimeoutError("the time is up"), id="of redis-py", marks=pytest.mark.thorough),
]


pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Alarm:
    """A real alarm, with the error that its handler raises."""

    def __init__(self, error: Any) -> None:
        self.error = error
        self.raised: BaseException | None = None

    def handle(self, number: int, frame: FrameType | None) -> NoReturn:
        self.raised = self.error("the time is up") if isinstance(self.error, type) else self.error
        del frame
        raise self.raised

    def assert_interrupts(self, call: Callable[..., object], *args: object) -> None:
        """Assert that the alarm ends the call with the handler's own exception."""
        before = signal.signal(signal.SIGALRM, self.handle)
        try:
            with pytest.raises(BaseException) as caught:  # noqa: PT012 - the alarm comes in the block
                signal.setitimer(signal.ITIMER_REAL, 0.05, 0.5)  # again, if it came in a destructor, which loses it
                call(*args)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert caught.value is self.raised


@pytest.fixture(params=ERRORS)
def alarm(request: pytest.FixtureRequest) -> Alarm:
    return Alarm(request.param)


@pytest.fixture
def through(any_redis: RedisServer, proxy: ProxyFactory) -> Proxy:
    return proxy(any_redis)


@pytest.fixture
def coordinator(any_redis: RedisServer, through: Proxy) -> Iterator[RedisCoordinator]:
    with RedisCoordinator(redis.Redis.from_url(through.url(any_redis.url)), ttl=60, renew=False) as made:
        made.acquire("warm").release()
        yield made
        through.restore()


@pytest.mark.thorough
@pytest.mark.usefixtures("way_to_redis")
def test_while_a_reply_is_awaited(
    any_redis: RedisServer, through: Proxy, coordinator: RedisCoordinator, alarm: Alarm
) -> None:
    client = any_redis.client()
    lease = coordinator.acquire("held")
    through.silence()
    alarm.assert_interrupts(coordinator.acquire, "r", 3)
    alarm.assert_interrupts(coordinator.holder, "r")
    alarm.assert_interrupts(lease.renew)
    alarm.assert_interrupts(lease.release)
    through.restore()
    wait_until(lambda: client.get("r") is None)
    wait_until(lambda: client.get("held") is None)
    assert lease.release() is True


@pytest.mark.thorough
def test_while_it_connects(any_redis: RedisServer, through: Proxy, alarm: Alarm) -> None:
    through.silence()
    made = RedisCoordinator(redis.Redis.from_url(through.url(any_redis.url), db=3), ttl=60)
    alarm.assert_interrupts(made.acquire, "r", 3)
    alarm.assert_interrupts(made.holder, "r")
    through.restore()


@pytest.mark.thorough
def test_while_a_waiter_connects_or_waits(
    any_redis: RedisServer, through: Proxy, coordinator: RedisCoordinator, alarm: Alarm
) -> None:
    client = any_redis.client()
    client.set("r", "another holder")
    alarm.assert_interrupts(coordinator.acquire, "r", 3)
    coordinator._backend._listener.close()
    coordinator._backend._listener._closed = False
    connect = coordinator._backend._listener._connect

    def silent(deadline: float) -> None:
        through.silence()
        connect(deadline)

    coordinator._backend._listener._connect = silent
    alarm.assert_interrupts(coordinator.acquire, "r", 3)
    through.restore()
    client.delete("r")
    wait_until(lambda: not client.exists("r"))


@pytest.mark.parametrize("kind", [TimeoutError, KeyboardInterrupt, SystemExit])
def test_at_the_end_of_a_block(
    any_redis: RedisServer, through: Proxy, coordinator: RedisCoordinator, kind: type[BaseException]
) -> None:
    client = any_redis.client()

    def block() -> None:
        with coordinator.acquire("r"):
            through.silence()

    Alarm(kind).assert_interrupts(block)
    through.restore()
    wait_until(lambda: client.get("r") is None)


def test_an_earlier_alarm_is_not_taken_for_one_of_this_call(any_redis: RedisServer) -> None:
    """The caller handles the error of its handler, and calls a server that does not answer."""

    def handle(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError("an earlier alarm")

    made = RedisCoordinator(redis.Redis(port=1), ttl=60)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            time.sleep(5)
        except TimeoutError:
            with pytest.raises(CoordinatorUnavailable):
                made.holder("r")
    finally:
        signal.signal(signal.SIGALRM, before)
