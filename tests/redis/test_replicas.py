"""The option ``replicas``: a grant counts when so many replicas have it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from examples.servers import RedisServer, SentinelServers
from fencing import NotAcquired
from fencing.kernel import lending
from fencing.redis.connection_factory import MAX_CONNECTIONS
from fencing.redis.keys import keys_of
from tests.support import wait_until
from tests.support.bursts import MANY, burst_until
from tests.support.fixtures import flush
from tests.support.redis_requests import times_run
from tests.support.sentinels import started
from tests.support.sides import Account, Side
from tests.support.waiters import Queue, Waiter


class Pair(NamedTuple):
    primary: RedisServer
    replica: RedisServer

    def calls(self, command: str) -> int:
        """Return how often the primary has run a command."""
        return times_run(self.primary, command)


@pytest.fixture(scope="module")
def _pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        servers: SentinelServers = started(stack, replicas=1, sentinels=1, down_after=60.0)
        yield Pair(*servers.servers)


@pytest.fixture
def pair(_pair: Pair) -> Iterator[Pair]:
    """A primary and a replica, which the test may freeze."""
    flush(_pair.primary)
    _pair.primary.client().wait(1, 5000)
    yield _pair
    _pair.replica.thaw()


def test_a_grant_waits_for_the_replica(side: Side, pair: Pair) -> None:
    before = pair.calls("wait")
    coordinator = side.coordinator(pair.primary.url, replicas=1)
    lease = side.call(coordinator.acquire, "r", timeout=10)
    assert pair.replica.client().get("r") == lease.fence.token.encode()
    side.call(lease.renew)
    assert side.call(lease.release) is True
    assert pair.calls("wait") == before + 1, "only the grant waits"


@pytest.mark.deep
def test_the_connections_of_a_burst_are_given_up(side: Side, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each grant that waits for a replica blocks a connection."""
    monkeypatch.setattr(lending, "IDLE_SECONDS", 0.1)
    coordinator = side.coordinator(side.client(pair.primary.url, client_name="app"), replicas=1)
    admin = pair.primary.client()

    def connections() -> int:
        return sum(each["name"] == "app" for each in admin.client_list(_type="normal"))

    burst_until(side, coordinator, MANY, lambda: connections() > 4)
    side.wait_until(lambda: connections() <= 2)  # on asyncio one is for all other calls
    assert side.call(side.call(coordinator.acquire, "r", timeout=60).release) is True


def test_it_is_off_by_default(side: Side, pair: Pair) -> None:
    before = pair.calls("wait")
    pair.replica.freeze()
    side.call(side.call(side.coordinator(pair.primary.url).acquire, "r", timeout=10).release)
    assert pair.calls("wait") == before


@pytest.mark.thorough
@pytest.mark.parametrize("timeout", [0, 30])
def test_a_replica_that_does_not_confirm(side: Side, pair: Pair, timeout: float) -> None:
    coordinator = side.coordinator(pair.primary.url, ttl=3, replicas=1)
    pair.replica.freeze()
    began = time.monotonic()
    with pytest.raises(NotAcquired, match="only 0 of the replicas") as caught:
        side.call(coordinator.acquire, "r", timeout=timeout)
    took = time.monotonic() - began
    assert 0.4 < took < 20, "half of a third of the ttl"
    assert (caught.value.reason, caught.value.replicas) == ("unreplicated", 0)
    assert took - 0.5 < caught.value.waited < took
    assert pair.primary.client().get("r") is None, "it was given back"
    pair.replica.thaw()
    side.call(side.call(coordinator.acquire, "r", timeout=10).release)


def test_fewer_replicas_than_asked_for_are_told_at_once(side: Side, pair: Pair) -> None:
    coordinator = side.coordinator(pair.primary.url, ttl=60, replicas=2)
    before = pair.calls("wait")
    with pytest.raises(NotAcquired, match="only 1 of the replicas") as caught:
        side.call(coordinator.acquire, "r", timeout=30)
    assert pair.calls("wait") == before
    assert (caught.value.reason, caught.value.replicas) == ("unreplicated", 1)
    assert pair.primary.client().keys() == [], "nothing was minted"
    assert side.call(coordinator.try_acquire, "r") is None


def test_waiters_wait_for_the_replica_too(side: Side, pair: Pair) -> None:
    coordinator = side.coordinator(pair.primary.url, ttl=30, replicas=1)
    holder = side.call(coordinator.acquire, "r")
    before = pair.calls("wait")
    waiters = [Waiter(side, coordinator) for _ in range(3)]
    Queue(pair.primary).has(3)
    side.call(holder.release)
    assert [waiter.join().error for waiter in waiters] == [None] * 3
    assert pair.calls("wait") == before + 3


@pytest.mark.thorough
def test_a_waiter_whose_grant_is_not_confirmed_lets_the_next_one_in(side: Side, pair: Pair) -> None:
    coordinator = side.coordinator(pair.primary.url, ttl=3, replicas=1)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(2)]
    Queue(pair.primary).has(2)
    pair.replica.freeze()
    side.call(holder.release)
    errors = [waiter.join().error for waiter in waiters]
    assert [type(error) for error in errors] == [NotAcquired] * 2, errors
    assert pair.primary.client().get("r") is None
    assert Queue(pair.primary).entries() == []


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_a_reminted_fence_waits_for_the_replica(side: Side, pair: Pair, account: Account) -> None:
    coordinator = side.coordinator(pair.primary.url, replicas=1)
    lock = coordinator.lock("r", guards=[account.guard])
    side.call(side.call(lock.acquire, timeout=10).release)
    pair.primary.client().delete(keys_of("r").counter)
    coordinator._backend.clock_floor = False  # the numbers begin anew
    before = pair.calls("wait")
    lease = side.call(lock.acquire, timeout=10)
    assert pair.calls("wait") == before + 2
    side.call(lease.release)


def test_other_calls_do_not_wait_behind_it(side: Side, pair: Pair) -> None:
    """With asyncio, they share a connection, which WAIT would block. For threads, one is kept for them."""
    coordinator = side.coordinator(pair.primary.url, ttl=60, replicas=1)
    lease = side.call(coordinator.acquire, "other", timeout=10)
    pair.replica.freeze()
    before = pair.calls("evalsha")
    outcome: list[BaseException] = []

    def acquire(name: str) -> None:
        try:
            side.call(coordinator.acquire, name, timeout=60)
        except NotAcquired as error:
            outcome.append(error)

    threads = [threading.Thread(target=acquire, args=(f"r{i}",), daemon=True) for i in range(MAX_CONNECTIONS)]
    for thread in threads:
        thread.start()
    wait_until(lambda: pair.calls("evalsha") >= before + MAX_CONNECTIONS)
    began = time.monotonic()
    side.call(lease.renew)
    assert side.call(lease.release) is True
    assert time.monotonic() - began < 4, "WAIT takes 5 s"
    for thread in threads:
        thread.join(20)
    assert {error.reason for error in outcome if isinstance(error, NotAcquired)} == {"unreplicated"}


@pytest.mark.parametrize(("value", "error"), [(True, TypeError), ("1", TypeError), (1.0, TypeError), (-1, ValueError)])
def test_wrong_values(side: Side, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="replicas must"):
        side.coordinator("redis://127.0.0.1:1", replicas=value)
