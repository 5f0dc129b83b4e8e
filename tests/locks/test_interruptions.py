"""An exception at every single line of an acquire and of a block: the lock is given back, and nothing renews it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import (
    AsyncMemoryCoordinator,
    Fence,
    FencingError,
    LeaseLost,
    MemoryCoordinator,
    NotAcquired,
    RedisCoordinator,
    StaleFence,
)
from fencing.coordinator import Coordinator
from fencing.kernel.fence import HasFence
from fencing.locks import lease as leases
from fencing.locks.holding import Grant
from fencing.memory.table import LockTable
from fencing.testing import ManualClock
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support import wait_until
from tests.support.every_step import Exit, Failure, at_every_step, interruption, is_idle


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_every_step_in_memory(several: bool) -> None:
    table = LockTable()
    coordinator = MemoryCoordinator(table, ttl=60, guards=[MemoryGuard()] if several else [])

    def work() -> None:
        with coordinator.hold_all(["r", "s"], timeout=0) if several else coordinator.hold("r", timeout=0):
            pass

    def check() -> None:
        wait_until(lambda: not table._held and is_idle(coordinator))

    work()
    assert at_every_step(work, check) > 50


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_every_step_in_memory_for_asyncio(several: bool) -> None:
    table = LockTable()
    coordinator = AsyncMemoryCoordinator(table, ttl=60, guards=[AsyncMemoryGuard()] if several else [])

    async def work() -> None:
        async with coordinator.hold_all(["r", "s"], timeout=0) if several else coordinator.hold("r", timeout=0):
            pass

    async def main() -> None:
        for step in range(3000):
            left = [0]
            try:
                with interruption(step, Failure) as left:
                    await work()
            except (Failure, FencingError):
                pass
            for _ in range(500):
                if not table._held and is_idle(coordinator):
                    break
                await asyncio.sleep(0.002)
            assert not table._held, step
            if left[0] >= 0:
                assert step > 50
                return

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.thorough)])
def test_steps_at_redis(any_redis: RedisServer, stride: int) -> None:
    direct = any_redis.client()
    with RedisCoordinator(any_redis.client(), ttl=60) as coordinator:

        def work() -> None:
            with coordinator.hold("r", timeout=1):
                pass

        def check() -> None:
            wait_until(lambda: direct.get("r") is None and is_idle(coordinator))

        work()
        assert at_every_step(work, check, stride) > 100
        assert len(coordinator._backend._connections._pool.made()) <= 16


def test_a_lease_that_could_not_be_made_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = LockTable()
    coordinator = MemoryCoordinator(table, ttl=60)

    def fail(*_: object) -> None:
        raise Exit

    with monkeypatch.context() as patch:
        patch.setattr(leases.LeaseBase, "__init__", fail)
        with pytest.raises(Exit):
            coordinator.acquire("r")
    assert not table._held
    assert is_idle(coordinator)


def test_a_holding_without_a_lease_leaves_the_calendar() -> None:
    clock = ManualClock()
    coordinator = MemoryCoordinator(ttl=60, clock=clock)
    lease = coordinator.acquire("r")
    holding = Grant("r", 7, "t" * 22, lease._holding.deadline)
    holding.begin(lease._holding.settings, coordinator._backend.clock())
    coordinator._backend.track(holding)
    assert len(coordinator._renewal.held()) == 2
    clock.advance(coordinator._backend.settings.attempt_seconds)
    del holding
    gc.collect()
    assert coordinator._renewal.held() == [lease._holding]
    lease.release()


class ExitingGuard:
    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        raise GeneratorExit

    def mark(self, resource: str) -> None:
        return None


def test_a_guard_that_raises_generator_exit() -> None:
    table = LockTable()
    coordinator = MemoryCoordinator(table, ttl=60, guards=[ExitingGuard()])
    with pytest.raises(GeneratorExit):
        coordinator.acquire("r")
    wait_until(lambda: not table._held)


# What a block's error looks like


class Odd(Exception):
    def __init__(self, exceptions: object) -> None:
        self.exceptions = exceptions


class OddGroup(BaseExceptionGroup[BaseException]):
    @property
    def exceptions(self) -> Any:
        raise Failure


def cyclic() -> Odd:
    odd = Odd(None)
    odd.exceptions = [odd]
    return odd


ERRORS = [Odd(None), Odd(5), cyclic(), OddGroup("odd", [ValueError()])]


@pytest.mark.parametrize("error", ERRORS, ids=["None", "int", "cyclic", "group"])
def test_an_odd_error_of_a_block_is_raised_unchanged(error: BaseException) -> None:
    table = LockTable()
    coordinator = MemoryCoordinator(table, ttl=60)
    with pytest.raises(BaseException) as raised, coordinator.hold("r"):
        raise error
    assert raised.value is error
    assert not table._held


def test_a_stale_fence_is_found_in_deep_groups() -> None:
    coordinator = MemoryCoordinator(ttl=60)
    with pytest.raises(BaseExceptionGroup), coordinator.hold("r") as lease:  # noqa: PT012
        error: BaseException = StaleFence(fence=lease.fence, mark=None, floor=7)
        for _ in range(5000):
            error = BaseExceptionGroup("group", [error])
        raise error
    assert lease._holding.lost == "stale"


# Several threads


class Slow(MemoryCoordinator):
    """Its first release waits for an event after it has run."""

    def __init__(self) -> None:
        super().__init__(ttl=60)
        self.released, self.answer = threading.Event(), threading.Event()
        self._perform, self._backend.perform = self._backend.perform, self._slowly  # type: ignore[method-assign]

    def _slowly(self, effect: Any) -> Any:
        reply = self._perform(effect)
        if effect.operation == "release" and not self.released.is_set():
            self.released.set()
            assert self.answer.wait(10)
        return reply


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, results


def test_a_block_that_ends_while_another_thread_releases() -> None:
    coordinator = Slow()
    with coordinator.hold("r") as lease:
        thread, results = in_thread(lease.release)
        assert coordinator.released.wait(10)
        threading.Timer(0.05, coordinator.answer.set).start()
    thread.join()
    assert results == [True]


def test_detach_returns_no_fence_that_a_release_frees() -> None:
    coordinator = Slow()
    lease = coordinator.acquire("r")
    thread, results = in_thread(lease.release)
    assert coordinator.released.wait(10)
    with pytest.raises(LeaseLost):
        lease.detach()
    coordinator.answer.set()
    thread.join()
    assert results == [True]


def test_a_release_leaves_alone_what_was_detached_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread detaches between the release's check and its end of the holding."""
    table = LockTable()
    lease = MemoryCoordinator(table, ttl=60).acquire("r")
    end = Grant.end

    def end_late(holding: Any, how: Any) -> bool:
        monkeypatch.setattr(Grant, "end", end)
        if how == "released":
            lease.detach()
        return end(holding, how)

    monkeypatch.setattr(Grant, "end", end_late)
    assert lease.release() is False
    assert table._held


# Closing


def test_closing_releases_what_is_held_in_memory() -> None:
    table = LockTable()
    coordinator: Coordinator = MemoryCoordinator(table, ttl=60)
    with coordinator.hold("r") as lease:
        coordinator.close()
        assert not table._held
        assert not lease.held
    with pytest.raises(RuntimeError):
        coordinator.acquire("r")
    with pytest.raises(NotAcquired), MemoryCoordinator(table).hold("r"), MemoryCoordinator(table).hold("r", timeout=0):
        pass
