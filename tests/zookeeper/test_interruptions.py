"""An exception at every step and at every line, as a signal handler raises it: nothing is left behind.

That is: no lock, no node in a queue, no watch, and nobody who waits for a connection.
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
from kazoo.client import KazooClient

from examples.servers import ZooKeeperServer
from fencing import AsyncZooKeeperCoordinator, FencingError
from fencing.kernel.fence import new_token
from fencing.zookeeper.calls import Wait
from fencing.zookeeper.session import Watching
from tests.support import wait_until
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
from tests.support.zookeeper import ZooKeeperSide, loops

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

WHERE = ("/fencing/zookeeper/",)


def is_clean(coordinator: Any) -> bool:
    """Return whether its session watches nothing, and nobody waits for it."""
    session = coordinator._backend._client._session
    return session is None or not (session.waiting or any(session._child_watchers.values()))


class World:
    """The coordinator whose calls are interrupted, and another one that holds the lock."""

    def __init__(self, hosts: str) -> None:
        self.side = ZooKeeperSide(False, hosts)
        self.coordinator, self.holder = (self.side.coordinator(ttl=60) for _ in range(2))
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
        wait_until(lambda: not any(self.side.queue(each) for each in self.names))
        wait_until(lambda: is_idle(self.coordinator))
        wait_until(lambda: is_clean(self.coordinator))
        if self.held is not None:
            self.take()

    def close(self) -> None:
        self._threads.shutdown()
        if self.held is not None:
            self.held.release()
        self.side.close()


def begin(world: World) -> None:
    """Begin with a session that is not there yet."""
    client = world.coordinator._backend._client
    session = client._session
    if session is not None:
        client._drop(session)
    with world.coordinator.hold(world.names[0], timeout=30):
        pass


@pytest.fixture
def world(zookeeper_server: ZooKeeperServer) -> Iterator[World]:
    before, made = loops(), World(zookeeper_server.hosts)
    yield made
    made.close()
    vars(made).clear()  # a session whose end was interrupted ends with its coordinator
    wait_until(lambda: gc.collect() >= 0 and not loops() - before)


def prepared(world: World, story: Story) -> None:
    if story in HELD:
        world.take()
    story(world)
    world.check()


@pytest.mark.parametrize("story", [begin, *ALONE, *HELD])
def test_every_step(world: World, story: Story) -> None:
    prepared(world, story)
    stride = 5 if story is wait_in_vain else 1
    assert at_every_step(lambda: story(world), world.check, stride) > 100


@pytest.mark.parametrize("story", [begin, renew, wait])
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
def test_a_cancellation_at_every_effect(zookeeper_server: ZooKeeperServer, story: Any, moment: str) -> None:
    async def until(is_so: Callable[[], object]) -> None:
        while not is_so():  # noqa: ASYNC110 - it is bounded below
            await asyncio.sleep(0.005)

    async def main(side: ZooKeeperSide, name: str) -> int:
        coordinator = AsyncZooKeeperCoordinator(KazooClient(zookeeper_server.hosts), ttl=60)
        cancelling, holder = Cancelling(coordinator, Wait), side.coordinator(ttl=60)
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
            await until(lambda: not side.queue(name) and is_idle(coordinator) and is_clean(coordinator))
            played += 1
            if cancelling.left >= 0:
                break
        await coordinator.close()
        return played

    side = ZooKeeperSide(False, zookeeper_server.hosts)
    assert asyncio.run(asyncio.wait_for(main(side, f"cancelled/{new_token()}"), 60)) > 1
    side.close()


def test_a_watch_that_is_given_up_before_its_reply_is_forgotten(zookeeper_server: ZooKeeperServer) -> None:
    """kazoo would keep it for as long as the holder has the lock."""
    side, resource = ZooKeeperSide(False, zookeeper_server.hosts), f"given up/{new_token()}"
    coordinator = side.coordinator(ttl=60)
    lease = coordinator.acquire(resource, timeout=30)
    session = coordinator._backend._client.current()
    for is_given_up in (False, True):
        request = Watching(lease._holding.kept.path, lambda _: None)
        request.is_given_up = is_given_up
        assert session.send(request).get(timeout=30) is not None
        lease.renew()  # its reply comes behind
        assert is_clean(coordinator) is is_given_up
        session.forget_watch(request.path, request.watcher)
    assert lease.release()
    side.close()
