"""The numbers that Redis mints: above the counter, not below the server's clock, and never beyond 2^53-1."""

from __future__ import annotations

import pytest

from examples.servers import RedisServer
from fencing import MarkImplausible
from fencing.kernel.fence import MAX_NUMBER
from fencing.redis.keys import keys_of
from tests.support.sides import Side

COUNTER = keys_of("r").counter


def number_of_a_grant(side: Side, server: RedisServer, **options: bool) -> int:
    lease = side.call(side.coordinator(server.url, **options).acquire, "r", timeout=5)
    side.call(lease.release)
    number: int = lease.fence.number
    return number


def test_a_counter_ahead_of_the_clock_goes_on(side: Side, any_redis: RedisServer) -> None:
    """The clock of the server was set back, or a failover led to a server whose clock is behind."""
    any_redis.client().set(COUNTER, 2**52)
    assert [number_of_a_grant(side, any_redis) for _ in range(3)] == [2**52 + 1, 2**52 + 2, 2**52 + 3]


@pytest.mark.parametrize("clock_floor", [True, False])
def test_the_last_number_is_granted_and_no_other_after_it(
    side: Side, any_redis: RedisServer, clock_floor: bool
) -> None:
    client = any_redis.client()
    client.set(COUNTER, MAX_NUMBER - 1)
    assert number_of_a_grant(side, any_redis, clock_floor=clock_floor) == MAX_NUMBER
    for _ in range(2):
        coordinator = side.coordinator(any_redis.url, clock_floor=clock_floor)
        error = side.expect(MarkImplausible, coordinator.acquire, "r", timeout=5)
        assert error.number == MAX_NUMBER
    assert client.get(COUNTER) == str(MAX_NUMBER).encode(), "a refusal changes nothing"
    assert client.get("r") is None


def test_the_clock_of_the_server_is_the_least_number(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    for counter in (None, 7):
        if counter is not None:
            client.set(COUNTER, counter)
        seconds, microseconds = client.time()
        before = int(seconds) * 1_000_000 + int(microseconds)
        assert before <= number_of_a_grant(side, any_redis) < before + 60_000_000
        client.delete(COUNTER)
    assert number_of_a_grant(side, any_redis, clock_floor=False) == 1
