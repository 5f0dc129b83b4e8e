"""Stores that take one write a second of a key, that refuse for good, or that let a rare race pass."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from obstore.exceptions import GenericError, PreconditionError

from fencing import Fence, GuardNotEnforceable
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from tests.support.object_faults import FaultyStore
from tests.support.sides import Side

A = Fence("orders:1", 1, "a" * 22)


def guard_on(side: Side, store: Any, **options: Any) -> Any:
    kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
    return kind(store, **options)


class Strict(FaultyStore):
    """Takes one write of a key in ``interval`` seconds. Its client waits and repeats a put that was throttled."""

    def __init__(self, interval: float) -> None:
        super().__init__()
        self.interval = interval
        self.written: dict[str, float] = {}
        self.throttled = 0

    async def put_async(self, path: str, file: Any, **options: Any) -> Any:
        while (left := self.written.get(path, 0.0) + self.interval - time.monotonic()) > 0:
            self.throttled += 1
            await asyncio.sleep(left)
        self.written[path] = time.monotonic()
        return await super().put_async(path, file, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("interval", [0.02, pytest.param(1.0, marks=pytest.mark.thorough)])
def test_a_store_that_takes_few_writes_of_a_key_is_probed_in_time(side: Side, interval: float) -> None:
    store = Strict(interval)
    guard = guard_on(side, store, timeout=10.0)
    report = side.call(guard.verify)
    assert report.races >= 3
    assert report.seconds < 9
    assert store.throttled
    side.call(guard.claim, A)


def test_the_probe_writes_each_key_seldom(side: Side) -> None:
    """Apart from the races, of which all puts but one may be throttled."""
    store = FaultyStore()
    side.call(guard_on(side, store).verify)
    puts = Counter(key for key in store.puts if "race" not in key)
    assert puts
    assert max(puts.values()) <= 3


def test_a_race_that_few_clients_do_not_show(side: Side) -> None:
    """The store lets the eighth of the puts that meet through."""

    class Crowded(FaultyStore):
        def __init__(self) -> None:
            super().__init__()
            self.under_way = 0

        async def put_async(self, path: str, file: Any, *, mode: Any = None, **options: Any) -> Any:
            self.under_way += 1
            number = self.under_way
            try:
                await asyncio.sleep(0)
                if number == 8:
                    mode = "overwrite"
                return await super().put_async(path, file, mode=mode, **options)
            finally:
                self.under_way -= 1

    assert "at the same time" in str(side.expect(GuardNotEnforceable, guard_on(side, Crowded()).verify))


def test_races_meet_in_many_puts(side: Side) -> None:
    """Of a store that checks, and writes a moment later, only puts that meet show it."""

    class Racy(FaultyStore):
        async def put_async(self, path: str, file: Any, *, mode: Any = None, **options: Any) -> Any:
            if mode == "overwrite":
                return await self.inner.put_async(path, file, **options)
            try:
                now = self.inner.head(path)["e_tag"]
            except FileNotFoundError:
                now = None
            if now != (None if mode == "create" else mode["e_tag"]):
                raise PreconditionError(path)
            await asyncio.sleep(0)
            return await self.inner.put_async(path, file, **options)

    assert "at the same time" in str(side.expect(GuardNotEnforceable, guard_on(side, Racy()).verify))


@pytest.mark.parametrize("status", [400, 405, 501])
def test_a_store_that_refuses_conditions_for_good_is_not_told_to_retry(side: Side, status: int) -> None:
    class Refusing(FaultyStore):
        async def put_async(self, path: str, file: Any, *, mode: Any = None, **options: Any) -> Any:
            if mode != "overwrite":
                raise GenericError(f"Error performing PUT in 1ms, retries: 0, - status code: {status} Whatever")
            return await super().put_async(path, file, mode=mode, **options)

    text = str(side.expect(GuardNotEnforceable, guard_on(side, Refusing()).claim, A))
    assert str(status) in text
    assert "under a condition" in text


def test_a_store_whose_versions_never_change_is_not_told_to_retry(side: Side) -> None:
    class Constant(FaultyStore):
        async def put_async(self, path: str, file: Any, *, mode: Any = None, **options: Any) -> Any:
            if isinstance(mode, dict):
                mode = "overwrite" if mode == {"e_tag": "1"} else mode
            await self.inner.put_async(path, file, mode=mode, **options)
            return {"e_tag": "1", "version": None}

        async def get_async(self, path: str, **options: Any) -> Any:
            return _Constant(await self.inner.get_async(path, **options))

    text = str(side.expect(GuardNotEnforceable, guard_on(side, Constant()).claim, A))
    assert "the same version" in text


class _Constant:
    def __init__(self, found: Any) -> None:
        self.meta = {**found.meta, "e_tag": "1", "version": None}
        self.attributes, self.bytes_async = found.attributes, found.bytes_async


def test_a_400_that_passes_is_no_refusal(side: Side) -> None:
    """S3 answers 400 to a request that came too slowly, too."""

    class Slow(FaultyStore):
        slow = 1

        async def get_async(self, path: str, **options: Any) -> Any:
            if self.slow and path.endswith("pointer.json"):
                self.slow -= 1
                raise GenericError("status code: 400 Bad Request: <Code>RequestTimeout</Code>")
            return await super().get_async(path, **options)

    store = Slow()
    guard = guard_on(side, store)
    side.call(guard.verify)
    with pytest.raises(Exception, match="retry"):
        side.call(guard.claim, A)
    side.call(guard.claim, A)
