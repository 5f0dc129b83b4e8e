"""The block under `hold`: what comes out of it, whatever happens inside."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import Fence, LeaseLost, Mark, StaleFence
from tests.support.fixtures import RedisFactory
from tests.support.sides import Side


def in_block(side: Side, coordinator: Any, body: Callable[[Any], Any], resource: str = "r") -> Any:
    """Run a sync body under `hold` of either colour."""

    def sync() -> Any:
        with coordinator.hold(resource, timeout=5) as lease:
            body(lease)
        return lease

    async def asynchronous() -> Any:
        async with coordinator.hold(resource, timeout=5) as lease:
            body(lease)
        return lease

    return side.call(asynchronous if side.asynchronous else sync)


def fail(error: BaseException) -> Callable[[Any], None]:
    def body(lease: Any) -> None:
        raise error

    return body


def test_it_is_held_inside_and_free_afterwards(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    seen: list[Any] = []

    def body(lease: Any) -> None:
        seen.append((lease.held, client.get("r") == lease.fence.token.encode()))

    lease = in_block(side, side.coordinator(any_redis.url), body)
    assert seen == [(True, True)]
    assert client.get("r") is None
    assert not lease.held
    assert lease.ended == "released"
    assert lease.fence.resource == "r", "readable afterwards, for logs"


def test_the_bodys_error_comes_out_as_it_is(side: Side, any_redis: RedisServer) -> None:
    error = ZeroDivisionError("mine")
    assert side.expect(ZeroDivisionError, in_block, side, side.coordinator(any_redis.url), fail(error)) is error
    assert any_redis.client().get("r") is None


def test_the_bodys_error_is_not_masked_by_a_loss(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    error = ZeroDivisionError("mine")

    def body(lease: Any) -> None:
        client.delete("r")
        raise error

    assert side.expect(ZeroDivisionError, in_block, side, side.coordinator(any_redis.url), body) is error


def test_a_loss_noticed_at_the_end_is_raised(side: Side, any_redis: RedisServer) -> None:
    client = any_redis.client()
    coordinator = side.coordinator(any_redis.url)
    error = side.expect(LeaseLost, in_block, side, coordinator, lambda lease: client.delete("r"))
    assert error.reason == "gone"
    assert error.completed
    assert error.fence.resource == "r"


def test_a_loss_that_is_known_is_raised_though_redis_is_away(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    coordinator = side.coordinator(server.url, ttl=0.6)

    def body(lease: Any) -> None:
        server.kill()
        side.wait_until(lambda: not lease.held)

    error = side.expect(LeaseLost, in_block, side, coordinator, body)
    assert (error.reason, error.completed) == ("expired", True)


def test_redis_away_at_the_end_of_a_block_that_is_not_lost_is_logged(
    side: Side, fresh_redis: RedisFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_redis()
    in_block(side, side.coordinator(server.url, ttl=1.5), lambda lease: server.kill())
    assert "could not be released; if it is still held, it frees itself within" in caplog.text


def test_a_lock_itself_is_no_context_manager_and_says_so(side: Side, any_redis: RedisServer) -> None:
    lock = side.coordinator(any_redis.url).lock("r")
    error = side.expect(TypeError, lock.__aenter__ if side.asynchronous else lock.__enter__)
    assert "with lock.hold(timeout=5) as lease:" in str(error)
    if not side.asynchronous:
        with pytest.raises(TypeError, match="a lock is reusable"), lock:
            pass


def test_an_adopted_lease_is_a_context_manager(side: Side, any_redis: RedisServer) -> None:
    lock = side.coordinator(any_redis.url).lock("r")
    fence = side.call(lock.acquire).detach()

    def work() -> Any:
        with lock.adopt(fence) as lease:
            return lease.held and lease.fence.number > fence.number

    async def work_async() -> Any:
        async with await lock.adopt(fence) as lease:
            return lease.held and lease.fence.number > fence.number

    assert side.call(work_async if side.asynchronous else work)
    assert any_redis.client().get("r") is None


def test_stale_fence_leaving_the_block_marks_the_lease_lost(side: Side, any_redis: RedisServer) -> None:
    leases: list[Any] = []

    def body(lease: Any) -> None:
        leases.append(lease)
        raise StaleFence(fence=lease.fence, mark=Mark(lease.fence.number + 1, "b" * 22))

    side.expect(StaleFence, in_block, side, side.coordinator(any_redis.url), body)
    assert not leases[0].held


def test_stale_fence_in_a_group_marks_the_lease_lost(side: Side, any_redis: RedisServer) -> None:
    leases: list[Any] = []

    def body(lease: Any) -> None:
        leases.append(lease)
        stale = StaleFence(fence=lease.fence, mark=Mark(lease.fence.number + 1, "b" * 22))
        raise ExceptionGroup("of a task group", [ValueError(), stale])

    side.expect(ExceptionGroup, in_block, side, side.coordinator(any_redis.url), body)
    assert leases[0].lost.is_set()


def test_closing_the_coordinator_inside_masks_nothing(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    error = KeyError("mine")

    async def close_and_fail_async() -> None:
        async with coordinator.hold("r"):
            await coordinator.close()
            raise error

    def close_and_fail() -> None:
        with coordinator.hold("r"):
            coordinator.close()
            raise error

    assert side.expect(KeyError, close_and_fail_async if side.asynchronous else close_and_fail) is error


def test_another_fences_staleness_says_nothing_of_this_lease(side: Side, any_redis: RedisServer) -> None:
    def body(lease: Any) -> None:
        try:
            raise StaleFence(fence=Fence("other", 1, "a" * 22), mark=None, floor=1)
        except StaleFence as error:
            lease._note(error)
        lease.ensure_held()

    in_block(side, side.coordinator(any_redis.url), body)


def test_released_or_detached_inside_is_respected(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    client = any_redis.client()
    lease = in_block(side, coordinator, lambda lease: lease.detach())
    assert client.get("r") == lease.fence.token.encode()
    adopted = side.call(coordinator.lock("r").adopt, lease.fence)
    side.call(adopted.release)


def test_a_used_up_lease_says_what_is_wrong(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    lease = side.call(coordinator.acquire, "r")
    side.call(lease.release)
    for use in (lease.ensure_held, lease.renew, lease.detach):
        error = side.expect(LeaseLost, use)
        assert error.reason == "released"
        assert "was released; acquire the lock again" in str(error)


def test_time_running_out_is_seen(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url, ttl=0.2, renew=False)
    lease = side.call(coordinator.acquire, "r")
    first = lease.remaining()
    assert 0 < first <= 0.2
    side.wait_until(lambda: not lease.held)
    assert lease.remaining() == 0.0
    assert side.expect(LeaseLost, lease.ensure_held).reason == "expired"
    side.call(lease.release)


def test_a_lease_that_is_forgotten_warns(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    lease = side.call(coordinator.acquire, "r")
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del lease
        gc.collect()
    [warning] = [each for each in caught if each.category is ResourceWarning]
    assert "the lease on 'r'" in str(warning.message)
    assert "was never released; use hold()" in str(warning.message)


@pytest.mark.parametrize("end", ["release", "detach"])
def test_a_lease_that_was_ended_does_not_warn(side: Side, any_redis: RedisServer, end: str) -> None:
    lease = side.call(side.coordinator(any_redis.url).acquire, "r")
    side.call(getattr(lease, end))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del lease
        gc.collect()
    assert not [each for each in caught if "never released" in str(each.message)]


def test_it_shows_itself_without_the_token(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    lease = side.call(coordinator.acquire, "r")
    assert f"of 'r', fence {lease.fence.number}, " in repr(lease)
    assert lease.fence.token not in repr(lease)
    side.call(lease.release)
    assert repr(lease).endswith("released>")
