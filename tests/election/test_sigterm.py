"""`release_all` and `on_sigterm` in this process: what they do with claims, and where they refuse to work."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fencing import AsyncMemoryCoordinator, Fence, MemoryCoordinator, on_sigterm
from fencing.testing.base import ScriptedGuard
from tests.support.memory_side import MemorySide


@pytest.fixture(autouse=True)
def handled() -> Iterator[list[int]]:
    """The signals that the handler of before has got."""
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    yield got
    signal.signal(signal.SIGTERM, before)


def test_a_lock_whose_fence_is_being_claimed_is_released_and_asked_for_again() -> None:
    """A signal comes while a guard takes its time. A process that ends would leave the lock taken for the whole ttl."""
    side = MemorySide(asynchronous=False)
    guard = ScriptedGuard()
    coordinator = side.coordinator(guards=[guard])
    holders: list[Any] = []

    def before_claim(fence: Fence) -> None:
        if not holders:
            coordinator.release_all()
            holders.append(side.holder())

    guard.before_claim = before_claim
    lease = coordinator.acquire("r")
    assert holders == [None]
    assert side.holder().number == lease.fence.number, "the lock is its own"
    assert [fence.number for fence in guard.claimed] == sorted({fence.number for fence in guard.claimed})
    assert lease.fence == guard.claimed[-1]
    lease.release()


def test_what_could_not_be_released_is_logged(side: MemorySide, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = side.coordinator()
    lease = side.call(coordinator.acquire, "r")
    side.cut_off(coordinator)
    side.call(coordinator.release_all)
    assert "1 locks were held that could not be released, such as 'r'" in caplog.text
    assert not lease.held, "it has ended, whatever the coordinator says"
    side.reconnect(coordinator)
    assert side.call(lease.release) is True


def test_a_lease_that_was_detached_is_not_released(side: MemorySide) -> None:
    coordinator = side.coordinator()
    fence = side.call(coordinator.acquire, "r").detach()
    side.call(coordinator.release_all)
    assert side.holder().number == fence.number


def test_the_handler_releases_once_and_passes_the_signal_on(handled: list[int]) -> None:
    first, second = MemoryCoordinator(), MemoryCoordinator()
    leases = [first.acquire("a"), second.acquire("b")]
    on_sigterm(first, second)
    os.kill(os.getpid(), signal.SIGTERM)
    assert handled == [signal.SIGTERM]
    assert not any(lease.held for lease in leases)
    again = first.acquire("a")
    os.kill(os.getpid(), signal.SIGTERM)
    assert handled == [signal.SIGTERM] * 2
    assert again.held, "the second one goes to the handler of before alone"
    again.release()


def test_the_handler_of_an_async_coordinator_releases_in_its_loop(handled: list[int]) -> None:
    async def main() -> None:
        async with AsyncMemoryCoordinator() as coordinator:
            lease = await coordinator.acquire("a")
            on_sigterm(coordinator)
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(30):
                while not handled:  # noqa: ASYNC110 - a handler sets it
                    await asyncio.sleep(0)
            assert not lease.held
            assert await coordinator.holder("a") is None

    asyncio.run(main())
    assert handled == [signal.SIGTERM]


def test_a_loop_that_has_ended_needs_no_release(handled: list[int]) -> None:
    async def main() -> None:
        on_sigterm(AsyncMemoryCoordinator())

    asyncio.run(main())
    os.kill(os.getpid(), signal.SIGTERM)
    assert handled == [signal.SIGTERM]


def test_a_loop_that_runs_no_more_keeps_no_signal(handled: list[int]) -> None:
    """Nothing would pass it on."""

    async def main() -> None:
        on_sigterm(AsyncMemoryCoordinator())

    with asyncio.Runner() as runner:
        runner.run(main())
        os.kill(os.getpid(), signal.SIGTERM)
        assert handled == [signal.SIGTERM]


def test_a_process_ends_although_a_later_handler_calls_this_one() -> None:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        on_sigterm(MemoryCoordinator())
        before: Any = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda number, frame: before(number, frame))
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    coordinator = MemoryCoordinator()
    lease = coordinator.acquire("a")
    on_sigterm(coordinator)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not lease.held


def test_the_handler_of_before_is_put_back_unless_there_is_another_one() -> None:
    before = signal.getsignal(signal.SIGTERM)
    on_sigterm(MemoryCoordinator())()
    assert signal.getsignal(signal.SIGTERM) is before
    remove = on_sigterm(MemoryCoordinator())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    remove()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


@pytest.mark.parametrize("wrong", [(), (None,), ("redis://",), (MemoryCoordinator,)])
def test_what_is_no_coordinator_is_refused(wrong: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TypeError):
        on_sigterm(*wrong)
    assert signal.getsignal(signal.SIGTERM) is before


def test_where_it_cannot_work_it_says_so() -> None:
    errors: list[Exception] = []

    def in_thread() -> None:
        try:
            on_sigterm(MemoryCoordinator())
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])
    with pytest.raises(RuntimeError, match="call on_sigterm in a coroutine"):
        on_sigterm(AsyncMemoryCoordinator())


@pytest.mark.parametrize("kind", [MemoryCoordinator, AsyncMemoryCoordinator])
def test_a_forked_child_leaves_the_parents_locks_and_loop_alone(handled: list[int], kind: Any) -> None:
    async def main() -> None:
        coordinator = kind()
        lease = coordinator.acquire("a")
        lease = await lease if kind is AsyncMemoryCoordinator else lease
        on_sigterm(coordinator)
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0 if handled == [signal.SIGTERM] else 1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert lease.held
        released = lease.release()
        assert (await released if kind is AsyncMemoryCoordinator else released) is True

    asyncio.run(main())
