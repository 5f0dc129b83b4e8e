"""After a fork the child opens connections of its own, and the lease stays the parent's."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest
import redis.asyncio

from examples.servers import RedisServer
from fencing import AsyncRedisCoordinator, LeaseLost, RedisCoordinator
from fencing.kernel.admission import as_fence
from tests.support.forks import in_child
from tests.support.waiters import Queue


def test_the_childs_copy_of_a_lease_is_not_held_and_its_release_does_nothing(any_redis: RedisServer) -> None:
    with RedisCoordinator(any_redis.client()) as coordinator:
        lease = coordinator.acquire("r")

        def check() -> None:
            assert not lease.held
            assert lease._ended == "forked"
            assert lease.remaining() == 0.0
            assert lease.release() is False
            for use in (lease.ensure_held, lease.renew, lease.detach, lambda: as_fence(lease)):
                try:
                    use()
                except LeaseLost as error:
                    assert error.reason == "forked"
                else:
                    raise AssertionError(f"{use} went through")

        in_child(check)
        assert lease.held
        lease.renew()
        assert lease.release() is True


def test_the_child_uses_the_coordinator_on_connections_of_its_own(any_redis: RedisServer) -> None:
    with RedisCoordinator(any_redis.client()) as coordinator:
        for _ in range(3):
            coordinator.acquire("warm").release()
        parents = {each["id"] for each in any_redis.client().client_list(_type="normal")}

        def check() -> None:
            with coordinator.hold("child", timeout=5) as lease:
                holder = coordinator.lock("child").holder()
                assert holder is not None
                assert holder.owner is not None
                assert holder.owner.endswith(f":{os.getpid()}")
                now = {each["id"] for each in any_redis.client().client_list(_type="normal")}
                assert now - parents, "a new connection"
                assert lease.held

        in_child(check)
        for _ in range(3):
            coordinator.acquire("warm").release()  # the parent's connections are in order


def test_a_fork_while_every_connection_is_in_use(any_redis: RedisServer) -> None:
    with RedisCoordinator(any_redis.client()) as coordinator:
        coordinator._backend._connections._pool.free.clear()

        def check() -> None:
            assert coordinator.acquire("r", timeout=5).release() is True

        in_child(check)


@pytest.mark.thorough
def test_a_child_with_an_event_loop_does_not_disturb_the_loop_of_its_parent(any_redis: RedisServer) -> None:
    """Both processes share the selector of the parent's loop, an epoll on Linux."""
    admin, queue = any_redis.client(), Queue(any_redis)  # both stay connected to the end

    def connected() -> set[str]:
        return {each["id"] for kind in ("normal", "pubsub") for each in admin.client_list(_type=kind)}

    async def main() -> None:
        async with AsyncRedisCoordinator(redis.asyncio.Redis.from_url(any_redis.url), ttl=60) as coordinator:
            holder = await coordinator.acquire("r")
            waiting = asyncio.ensure_future(coordinator.acquire("r"))
            await asyncio.to_thread(queue.has, 1)
            before = connected()

            async def job() -> None:
                async with coordinator.hold("child", timeout=5):
                    gc.collect()
                gc.collect()

            in_child(lambda: asyncio.run(job()))
            await holder.release()
            await (await asyncio.wait_for(waiting, 30)).release()
            assert before <= connected(), "the parent's connections are in order"

    asyncio.run(main())
