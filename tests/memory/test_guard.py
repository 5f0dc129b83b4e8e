"""What only the memory guard promises; the rest is the contract of all guards."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from fencing.kernel.errors import AlreadyDone, GuardUnavailable, StaleFence
from fencing.kernel.fence import Fence, Mark
from fencing.locks.plans import number_to_exceed
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support.sides import Side

MINE = Fence("orders:1", 5, "a" * 22)
OTHER = Fence("orders:2", 5, "b" * 22)


def test_a_transaction_that_does_not_end_makes_others_give_up() -> None:
    guard = MemoryGuard(timeout=30.0)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with guard.begin(MINE, claim=True):
            inside.set()
            leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(10)
    started = time.monotonic()
    with pytest.raises(GuardUnavailable) as refused:
        guard.claim(OTHER, timeout=0.05)
    with pytest.raises(GuardUnavailable):
        guard.claim(OTHER, timeout=-1)
    assert refused.value.resource == "orders:2"
    assert time.monotonic() - started < 30
    leave.set()
    holder.join()
    guard.claim(OTHER)


def test_an_asyncio_transaction_that_does_not_end_makes_others_give_up() -> None:
    async def scenario() -> None:
        guard = AsyncMemoryGuard(timeout=0.05)
        async with guard.begin(MINE, claim=True):
            with pytest.raises(GuardUnavailable):
                await guard.claim(OTHER)
        await guard.claim(OTHER)

    asyncio.run(scenario())


def test_data_that_leaves_the_block_has_no_effect() -> None:
    guard = MemoryGuard()
    with guard.begin(MINE, claim=True) as kept:
        kept["x"] = 1
    kept["x"] = 2
    assert dict(guard.data) == {"x": 1}


def test_the_data_is_read_only_outside_a_transaction() -> None:
    data: Any = MemoryGuard().data
    with pytest.raises(TypeError):
        data["x"] = 1


@pytest.mark.parametrize("timeout", [True, None, "1", b"1"])
def test_a_timeout_is_a_number(timeout: Any) -> None:
    with pytest.raises(TypeError, match="number of seconds"):
        MemoryGuard(timeout=timeout)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_timeout_is_finite_and_above_zero(timeout: Any) -> None:
    with pytest.raises(ValueError):
        MemoryGuard(timeout=timeout)


def test_a_cancellation_that_comes_as_the_lock_is_granted_is_delivered() -> None:
    async def scenario(steps: int) -> None:
        guard = AsyncMemoryGuard()
        async with guard.begin(MINE, claim=True):
            waiting = asyncio.ensure_future(guard.claim(OTHER))
            await asyncio.sleep(0)  # its first step takes it to the lock
            assert not waiting.done()
        for _ in range(steps):
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await guard.claim(OTHER, timeout=1)

    for steps in range(5):
        asyncio.run(scenario(steps))


def test_the_data_are_a_snapshot() -> None:
    guard = MemoryGuard()
    before = guard.data
    guard.write(MINE, "x", 1, claim=True)
    assert (dict(before), dict(guard.data)) == ({}, {"x": 1})


# A reader was admitted: no coordinator of this version makes one, so the tests put its number into the mark.


@pytest.mark.parametrize("claim", [False, True])
def test_a_newer_reader_shuts_out_an_older_holder(side: Side, claim: bool) -> None:
    guard: Any = AsyncMemoryGuard() if side.asynchronous else MemoryGuard()
    guard._marks[MINE.resource] = Mark(5, MINE.token, 2, 7)
    stale = side.expect(StaleFence, guard.claim, MINE)
    assert (stale.mark, number_to_exceed(stale)) == (Mark(5, MINE.token, 2, 7), 7)
    side.expect(StaleFence, guard.write, MINE, "x", 1, claim=claim)
    side.expect(StaleFence, guard.claim, Fence(MINE.resource, 7, "n" * 22))
    assert side.call(guard.mark, MINE.resource) == Mark(5, MINE.token, 2, 7)
    assert not guard.data


@pytest.mark.parametrize("claim", [False, True])
def test_claims_and_writes_keep_the_readers(side: Side, claim: bool) -> None:
    guard: Any = AsyncMemoryGuard() if side.asynchronous else MemoryGuard()
    newer = Fence(MINE.resource, 8, "n" * 22)
    guard._marks[MINE.resource] = Mark(5, MINE.token, 2, 7)
    if not claim:
        side.call(guard.claim, newer)
    side.call(guard.write, newer, "x", 1, claim=claim)
    side.call(guard.claim, newer, OTHER)
    assert side.call(guard.mark, MINE.resource) == Mark(8, newer.token, 1, 7)
    side.call(guard.claim, Fence(MINE.resource, 9, "o" * 22))
    assert side.call(guard.mark, MINE.resource) == Mark(9, "o" * 22, 0, 7)


def test_a_block_once_per_key(side: Side) -> None:
    guard: Any = (AsyncMemoryGuard if side.asynchronous else MemoryGuard)()
    newer = Fence("orders:1", 6, "c" * 22)
    side.call(guard.write, MINE, "x", 1, claim=True, once="2026-11-23")
    for fence, is_own in ((MINE, True), (newer, False)):
        error = side.expect(AlreadyDone, guard.write, fence, "x", 2, claim=True, once="2026-11-23")
        assert (error.resource, error.key, error.number, error.is_own) == ("orders:1", "2026-11-23", 5, is_own)
    assert guard.data == {"x": 1}
    assert side.call(guard.mark, "orders:1").number == 5, "a claim of a block that is refused is undone"
    side.call(guard.write, OTHER, "x", 2, claim=True, once="2026-11-23")
    side.expect(ValueError, guard.write, MINE, "x", 3, once="")


def test_a_block_that_fails_is_not_done() -> None:
    guard = MemoryGuard()
    with pytest.raises(ZeroDivisionError), guard.begin(MINE, claim=True, once="a"):
        _ = 1 / 0
    with guard.begin(MINE, claim=True, once="a") as data:
        data["x"] = 1
    with pytest.raises(ValueError, match="exactly one lease"), guard.begin(MINE, OTHER, claim=True, once="b"):
        pytest.fail("the block has run")
