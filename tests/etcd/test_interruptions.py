"""An exception at every step and at every line, as a signal handler raises it: nothing is left behind.

That is: no lock, no place in a queue, no connection, and no permission to have a stream.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from examples.servers import EtcdServer
from fencing import AsyncEtcdCoordinator, FencingError
from fencing.etcd import waiters
from fencing.etcd.client import MAX_CONNECTIONS
from fencing.etcd.waiters import Wait
from fencing.kernel.fence import new_token
from tests.support import wait_until
from tests.support.etcd import EtcdSide
from tests.support.every_step import at_every_step, is_idle
from tests.support.interrupted_lines import raise_at_line
from tests.support.interrupted_stories import (
    ALONE,
    HELD,
    Cancelling,
    Story,
    hold_async,
    renew,
    try_in_vain_async,
    wait,
    wait_async,
    wait_in_vain,
    wait_in_vain_async,
)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

WHERE = ("/fencing/etcd/",)


class World:
    """The coordinator whose calls are interrupted, another one that holds the lock, and a third one that looks."""

    def __init__(self, url: str) -> None:
        self.side = EtcdSide(False, [url])
        self.coordinator, self.holder, self.reader = (self.side.coordinator(ttl=60) for _ in range(3))
        self.names = [f"interrupted/{new_token()}/{i}" for i in range(2)]
        self.held: Any = None
        self._threads = ThreadPoolExecutor(1)
        self._releases_at_wait()

    def _releases_at_wait(self) -> None:
        backend = self.coordinator._backend
        perform = backend.perform

        def perform_released(effect: Any) -> Any:
            if isinstance(effect, Wait) and effect.seconds > 1:
                self._threads.submit(self.held.release)
            return perform(effect)

        backend.perform = perform_released

    def take(self) -> None:
        """Have another coordinator hold the lock."""
        self.held = self.holder.acquire(self.names[0], timeout=60)

    def check(self) -> None:
        """Find nothing left behind."""
        if self.held is not None:
            self.held.release()
        wait_until(lambda: not any(self.side.keys(self.reader, each) for each in self.names))
        wait_until(lambda: is_idle(self.coordinator))
        gc.collect()
        wait_until(lambda: not waiters._lent)
        pool = self.coordinator._backend._connections._pool
        assert len(pool.made()) <= MAX_CONNECTIONS
        wait_until(lambda: len(pool.free) == len(pool.made()))
        if self.held is not None:
            self.take()

    def close(self) -> None:
        self._threads.shutdown()
        if self.held is not None:
            self.held.release()
        self.side.close()


@pytest.fixture
def world(etcd_server: EtcdServer) -> Iterator[World]:
    made = World(etcd_server.url)
    yield made
    made.close()


def prepared(world: World, story: Story) -> None:
    if story in HELD:
        world.take()
    story(world)
    world.check()


@pytest.mark.parametrize("story", [*ALONE, *HELD])
def test_every_step(world: World, story: Story) -> None:
    prepared(world, story)
    stride = 5 if story is wait_in_vain else 1
    assert at_every_step(lambda: story(world), world.check, stride) > 100


@pytest.mark.parametrize("story", [renew, wait])
@pytest.mark.deep
def test_every_line(world: World, story: Story) -> None:
    prepared(world, story)
    raised = True
    for line in itertools.count(1):
        try:
            _, raised = raise_at_line(line, KeyboardInterrupt(), WHERE, lambda: story(world))
        except (KeyboardInterrupt, FencingError):
            pass
        world.check()
        if not raised:
            break
    assert line > 100


@pytest.mark.parametrize("moment", ["before", "under way", "after"])
@pytest.mark.parametrize("story", [hold_async, try_in_vain_async, wait_in_vain_async, wait_async])
def test_a_cancellation_at_every_effect(etcd_server: EtcdServer, story: Any, moment: str) -> None:
    async def until(is_so: Callable[[], object]) -> None:
        while not is_so():  # noqa: ASYNC110 - it is bounded below
            await asyncio.sleep(0.005)

    async def main(side: EtcdSide, name: str) -> int:
        coordinator = AsyncEtcdCoordinator([etcd_server.url], ttl=60)
        cancelling, holder, reader = Cancelling(coordinator, Wait), side.coordinator(ttl=60), side.coordinator()
        cancelling.moment = moment
        loop, played = asyncio.get_running_loop(), 0
        for effect in itertools.count():
            held: Any = None if story is hold_async else holder.acquire(name)
            if story is wait_async:
                cancelling.at_wait = partial(loop.run_in_executor, None, held.release)
            cancelling.left = effect
            cancelling.task = asyncio.ensure_future(story(coordinator, name))
            with suppress(asyncio.CancelledError):
                await cancelling.task
            if held is not None:
                await asyncio.to_thread(held.release)
            await until(lambda: not side.keys(reader, name) and is_idle(coordinator) and not waiters._lent)
            [pool] = coordinator._backend._connections._pools.values()
            assert len(pool.made()) <= MAX_CONNECTIONS
            await until(lambda: len(pool.free) == len(pool.made()))  # noqa: B023
            played += 1
            if cancelling.left >= 0:
                break
        await coordinator.close()
        return played

    side = EtcdSide(False, [etcd_server.url])
    assert asyncio.run(asyncio.wait_for(main(side, f"cancelled/{new_token()}"), 60)) > 1
    side.close()
