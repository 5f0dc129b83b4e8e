"""Small objects are uploaded and read several at a time, within bounds; a failure or an interruption ends them all."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from obstore.store import MemoryStore

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, StaleRead
from storage_guards import AsyncObjectStoreGuard
from storage_guards.objects import uploads
from storage_guards.objects.batch import AT_ONCE, BYTES_AT_ONCE, Batch
from storage_guards.objects.requests import Get, Lost, Put
from tests.support import wait_until
from tests.support.loops import until
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.sides import Side

A = Fence("orders:1", 1, "a" * 22)
MIB = 2**20
POINTER = "fencing/orders=3A1/pointer.json"


class Busy(MemoryStore):
    """A store that counts the requests and bytes of data that are under way at the same time.

    Attributes:
        meeting: how many data requests are under way before the first of them is answered.
        fail: the numbers of the data puts that fail, and the errors.
        silent: whether data requests are never answered.
        stubborn: whether these also ignore their cancellation, until ``released``.
        begun_by_then: how many puts had begun when one failed.
    """

    def __init__(self) -> None:
        self.under_way: dict[str, int] = {}
        self.most = self.most_bytes = self.meeting = 0
        self.puts: list[str] = []
        self.done: list[str] = []
        self.fail: dict[int, Exception] = {}
        self.silent = self.stubborn = False
        self.released = threading.Event()
        self.begun_by_then = 0

    async def put_async(self, path: str, file: Any, **options: Any) -> Any:
        self.puts.append(path)
        if "/data/" not in path:
            return await super().put_async(path, file, **options)
        error = self.fail.get(len(self.puts) - 1)
        async with self._transfer(path, 0 if hasattr(file, "__aiter__") else len(file), error):
            result = await super().put_async(path, file, **options)
        self.done.append(path)
        return result

    async def get_async(self, path: str, **options: Any) -> Any:
        if "/data/" not in path:
            return await super().get_async(path, **options)
        async with self._transfer(path, 0, None):
            return await super().get_async(path, **options)

    @asynccontextmanager
    async def _transfer(self, path: str, size: int, error: Exception | None) -> AsyncIterator[None]:
        self.under_way[path] = size
        self.most = max(self.most, len(self.under_way))
        self.most_bytes = max(self.most_bytes, sum(self.under_way.values()))
        try:
            if error is not None:
                await asyncio.sleep(0.01)  # the others are under way
                self.begun_by_then = len(self.puts)
                raise error
            if self.silent:
                await self._be_silent()
            await until(lambda: len(self.under_way) >= self.meeting)
            self.meeting = 0
            await asyncio.sleep(0.003)
            yield
        finally:
            del self.under_way[path]

    async def _be_silent(self) -> None:
        while not self.released.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise

    def clear(self) -> None:
        self.puts.clear()
        self.done.clear()
        self.most = self.most_bytes = 0


@pytest.fixture
def desk(side: Side) -> Desk:
    desk = Desk(side, Busy(), upload_timeout=120.0)
    desk.publish(A, {"x": b"old"}, claim=True)
    desk.store.clear()
    return desk


def objects(number: int, size: int = 10) -> dict[str, bytes]:
    return {f"object {index}": b"%d" % index * size for index in range(number)}


def is_unpublished(desk: Desk) -> None:
    """Nothing was published, and nothing is under way any more."""
    assert POINTER not in desk.store.puts
    assert desk.store.under_way == {}
    assert desk.beside.read("orders:1")["x"].size == 3


@pytest.mark.thorough
def test_small_objects_are_uploaded_several_at_a_time(desk: Desk) -> None:
    desk.store.meeting = AT_ONCE
    desk.publish(A, objects(100))
    assert desk.store.most == AT_ONCE
    assert desk.store.puts[-1] == POINTER
    assert len(desk.store.done) == 101, "the pointer came after the last of them, and their manifest"
    assert desk.current == objects(100)


def test_the_bytes_under_way_are_bounded(desk: Desk) -> None:
    sizes = [3, 3, 3, 1, 8, 1, 2, 5, 4]
    desk.store.meeting = 2
    desk.publish(A, {f"{index}": bytes(size * MIB) for index, size in enumerate(sizes)})
    assert 5 * MIB <= desk.store.most_bytes <= BYTES_AT_ONCE
    assert [len(data) for data in (desk.current or {}).values()] == [size * MIB for size in sizes]


def test_a_big_body_is_uploaded_alone(desk: Desk) -> None:
    seen: list[tuple[int, bool]] = []

    def big() -> Iterator[bytes]:
        for number in range(12):
            yield bytes(MIB)
            if number >= 9:  # its first part was sent
                seen.append((len(desk.store.under_way), len(desk.store.done) == 5))

    desk.publish(A, {**objects(5), "big": big(), **{f"z{name}": data for name, data in objects(5).items()}})
    assert seen == [(1, True)] * 3
    current = desk.call(desk.guard.read, "orders:1")
    assert (len(current), current["big"].size) == (11, 12 * MIB)


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_uploads_are_under_way_while_the_next_body_is_read(desk: Desk) -> None:
    def slow() -> Iterator[bytes]:
        wait_until(lambda: len(desk.store.done) == 3)
        yield b"slow"

    desk.publish(A, {**objects(3), "slow": slow(), "more": b"1"})
    assert desk.current == {**objects(3), "slow": b"slow", "more": b"1"}


def test_progress_is_reported_in_order_for_each_body(desk: Desk) -> None:
    seen: list[Any] = []
    desk.publish(A, {**objects(20), "big": [bytes(MIB)] * 9}, progress=lambda *so_far: seen.append(so_far))
    assert seen[:20] == [(name, len(data), len(data)) for name, data in objects(20).items()]
    assert seen[-1] == ("big", 9 * MIB, None)


# Failures


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, 1, 7, 20, 39])
@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (GenericError("the connection broke"), GuardUnavailable, "nothing was published, retry"),
        (PermissionDeniedError("no"), GuardNotEnforceable, "the store refused"),
    ],
)
def test_the_first_failure_ends_the_other_uploads(
    desk: Desk, number: int, fault: Exception, error: type[Exception], text: str
) -> None:
    desk.store.fail = {number: fault}
    assert text in desk.refused(error, A, objects(40))
    is_unpublished(desk)
    assert len(desk.store.puts) == desk.store.begun_by_then, "no more were begun"
    desk.store.fail.clear()
    desk.publish(A, objects(40))
    assert desk.current == objects(40)


def test_a_failure_ends_uploads_without_an_answer(desk: Desk) -> None:
    """They are cancelled. Otherwise this would last as long as their bound."""
    desk.store.silent = True
    desk.store.fail = {3: GenericError("the connection broke")}
    started = time.monotonic()
    desk.refused(GuardUnavailable, A, objects(10))
    assert time.monotonic() - started < 60
    is_unpublished(desk)


@pytest.mark.parametrize("number", [1, 5, 30])
def test_a_body_that_raises_ends_the_uploads_before_it(desk: Desk, number: int) -> None:
    def failing() -> Iterator[bytes]:
        yield b"1"
        raise ZeroDivisionError

    desk.store.silent = number < AT_ONCE
    bodies = {**objects(number), "failing": failing(), "never read": iter([b"1"])}
    desk.refused(ZeroDivisionError, A, bodies)
    is_unpublished(desk)
    desk.store.silent = False
    desk.publish(A, {"x": bodies["never read"]})
    assert desk.current == {"x": b"1"}


def test_an_upload_that_fails_before_a_big_body_ends_the_publication(desk: Desk) -> None:
    desk.store.fail = {2: GenericError("the connection broke")}
    assert "nothing was published" in desk.refused(GuardUnavailable, A, {**objects(5), "big": [bytes(MIB)] * 20})
    is_unpublished(desk)
    assert len(desk.store.puts) <= 5, "the big one was not begun"


def test_silent_uploads_end_at_their_bound(side: Side) -> None:
    desk = Desk(side, Busy(), upload_timeout=0.2)
    desk.call(desk.guard.claim, A)
    desk.store.clear()
    desk.store.silent = True
    assert "within 0.2 s; nothing was published" in desk.refused(GuardUnavailable, A, objects(40))
    assert desk.store.under_way == {}
    assert POINTER not in desk.store.puts


def test_an_upload_that_does_not_end_when_it_is_cancelled_is_left_behind_after_a_while(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "ABORT_SECONDS", 0.05)
    desk.store.silent = desk.store.stubborn = True
    desk.store.fail = {3: GenericError("the connection broke")}

    async def publish() -> None:
        with pytest.raises(GuardUnavailable):
            await desk.guard.publish(A, objects(10))
        assert 2 <= len(desk.store.under_way) <= 10, "all that were begun before the failure"
        desk.store.released.set()
        await asyncio.to_thread(wait_until, lambda: not desk.store.under_way)

    if desk.side.asynchronous:
        desk.call(publish)
    else:
        desk.refused(GuardUnavailable, A, objects(10))
        assert 2 <= len(desk.store.under_way) <= 10, "all that were begun before the failure"
        desk.store.released.set()
        wait_until(lambda: not desk.store.under_way)
    desk.store.silent = False
    is_unpublished(desk)


# Interruptions


@pytest.mark.parametrize("side", ["async"], indirect=True)
@pytest.mark.parametrize("number", [5, 40])
@pytest.mark.parametrize("times", [1, 2])
def test_a_cancellation_ends_all_uploads(desk: Desk, number: int, times: int) -> None:
    """While the guard waits for room, or for the last of them."""
    desk.store.silent = True

    async def cancelled() -> None:
        before = asyncio.all_tasks()
        task = asyncio.ensure_future(desk.guard.publish(A, objects(number)))
        await asyncio.to_thread(wait_until, lambda: len(desk.store.under_way) == min(number + 1, AT_ONCE))
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        assert task.cancelled()
        if times == 1:
            assert desk.store.under_way == {}
        for left in asyncio.all_tasks() - before:  # after a second cancellation, they end in the background
            await asyncio.wait([left], timeout=10)

    desk.call(cancelled)
    is_unpublished(desk)
    assert len(desk.store.puts) == min(number + 1, AT_ONCE), "the manifest is one more"


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_the_end_of_a_loop_ends_all_uploads(side: Side) -> None:
    store = Busy()
    desk = Desk(side, store)
    desk.beside.claim(A)
    store.silent = True

    async def leave() -> None:
        guard = AsyncObjectStoreGuard(store)
        guard._report = desk.guard._report
        tasks.append(asyncio.ensure_future(guard.publish(A, objects(10))))
        await asyncio.to_thread(wait_until, lambda: len(store.under_way) == 11)

    tasks: list[asyncio.Task[Any]] = []
    asyncio.run(leave())
    assert tasks[0].cancelled()
    assert store.under_way == {}


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_an_upload_that_another_task_cancels_is_unavailable(desk: Desk) -> None:
    """The publication itself was not cancelled, so it raises no CancelledError."""
    desk.store.silent = True

    async def cancelled() -> None:
        task = asyncio.ensure_future(desk.guard.publish(A, objects(10)))
        await asyncio.to_thread(wait_until, lambda: len(desk.store.under_way) == 11)
        next(each for each in asyncio.all_tasks() if "object-store-guard" in each.get_name()).cancel()
        with pytest.raises(GuardUnavailable, match="the request was cancelled; nothing was published"):
            await task

    desk.call(cancelled)
    is_unpublished(desk)


@pytest.mark.parametrize("side", ["sync"], indirect=True)
@pytest.mark.parametrize("number", [5, 40])
def test_ctrl_c_ends_all_uploads_at_once(desk: Desk, number: int) -> None:
    desk.store.silent = True

    def interrupt() -> None:
        wait_until(lambda: len(desk.store.under_way) == min(number + 1, AT_ONCE))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as caught:
        desk.publish(A, objects(number))
    thread.join()
    assert time.monotonic() - started < 60
    assert caught.value.__cause__ is None, "the put that counts was not sent"
    is_unpublished(desk)


# Reads


def test_objects_are_read_several_at_a_time(desk: Desk) -> None:
    big = {"big": bytes(9 * MIB), "empty": b""}
    desk.publish(A, {**big, **objects(50)})
    current = desk.call(desk.guard.read, "orders:1")
    desk.store.most, desk.store.meeting = 0, 2
    read = desk.call(current.read_all)
    assert read == {**big, **objects(50)}
    assert list(read) == list(current)
    assert 1 < desk.store.most <= AT_ONCE
    some = ["object 7", "big", "object 3"]
    assert list(desk.call(current.read_all, some)) == some
    assert desk.call(current.read_all, []) == {}


def test_reading_names_that_are_not_there(desk: Desk) -> None:
    current = desk.call(desk.guard.read, "orders:1")
    desk.side.expect(KeyError, current.read_all, ["x", "y"])
    assert "pass ['x']" in str(desk.side.expect(TypeError, current.read_all, "x"))


def test_reading_objects_that_were_collected_or_changed(desk: Desk) -> None:
    current = desk.publish(A, objects(30))
    key = "fencing/orders=3A1/" + current["object 20"].key
    desk.store.put(key, b"too short")
    assert "9 bytes instead of 20" in str(desk.side.expect(GuardNotEnforceable, current.read_all))
    desk.store.delete(key)
    assert desk.side.expect(StaleRead, current.read_all).key == key


def test_a_reading_that_fails_ends_the_others(side: Side) -> None:
    desk = Desk(side, Busy(), upload_timeout=0.2)
    current = desk.publish(A, objects(30), claim=True)
    desk.store.silent = True
    assert "retry" in str(side.expect(GuardUnavailable, current.read_all))
    assert desk.store.under_way == {}


# A batch by itself


def get(key: str) -> Get:
    return Get(key, 0, 1.0)


def test_nothing_is_begun_after_a_failure() -> None:
    async def run() -> None:
        begun: list[str] = []

        async def perform(request: Get) -> str:
            begun.append(request.key)
            if request.key == "b":
                raise Lost("no answer")
            return request.key

        batch = Batch(1.0, perform)
        await batch.add(get("a"))
        assert await batch.finish() == ["a"]
        await batch.add(get("b"))
        with pytest.raises(Lost, match="no answer"):
            await batch.finish()
        with pytest.raises(Lost, match="no answer"):
            await batch.add(get("c"))
        await batch.abort(1.0)
        assert begun == ["a", "b"]

    asyncio.run(run())


def test_replies_come_in_the_order_of_the_requests() -> None:
    async def run() -> None:
        async def perform(request: Get) -> str:
            await asyncio.sleep(0.001 * (10 - int(request.key)))
            return request.key

        batch = Batch(1.0, perform)
        for number in range(10):
            await batch.add(get(f"{number}"))
        assert await batch.finish() == [f"{number}" for number in range(10)]

    asyncio.run(run())


def test_requests_that_break_their_bound_are_not_waited_for_without_end() -> None:
    async def run() -> None:
        async def perform(_: Get) -> None:
            await asyncio.Event().wait()

        batch = Batch(0.01, perform)
        await batch.add(get("a"))
        with pytest.raises(Lost, match="no request of several ended"):
            await batch.finish()
        await batch.abort(1.0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_a_request_that_was_cancelled_before_it_began_has_failed() -> None:
    """Code that ends a program may cancel all tasks but its own."""

    async def story() -> None:
        async def perform(request: Any) -> None:
            raise AssertionError("it began")

        batch = Batch(5.0, perform)
        await batch.add(Put("fencing/x", b"1", None, 5.0))
        for task in batch._running:
            task.cancel()
        with pytest.raises(Lost, match="cancelled before it began"):
            await batch.finish()

    asyncio.run(story())
