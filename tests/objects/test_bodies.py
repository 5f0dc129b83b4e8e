"""A publication that is repeated with the same bodies publishes all of them, or is refused."""

from __future__ import annotations

import asyncio
import bz2
import gc
import io
import mmap
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from fencing import Fence, GuardUnavailable
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from storage_guards.objects import bodies
from storage_guards.objects.probe import ProbeReport
from storage_guards.objects.uploads import SMALL
from tests.support import wait_until
from tests.support.object_faults import FaultyStore
from tests.support.sides import Side

R = "orders:1"
A = Fence(R, 1, "a" * 22)
DATA = b"0123456789" * 10
BIG = bytes(range(256)) * (SMALL // 256 + 5000)


REPORT = ProbeReport("as given", versions_return=False, races=6, seconds=0.1)
"""Of a store in memory: it need not be probed again for each test."""


class Desk:
    """A guard on a store whose uploads fail when told to."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.store = FaultyStore()
        self.store.about = "/data/"
        kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
        self.guard = kind(self.store, upload_timeout=5.0)
        self.guard._report = REPORT
        self.publish({"x": b"old"}, claim=True)

    def publish(self, objects: Any, **options: Any) -> Any:
        return self.side.call(self.guard.publish, A, objects, **options)

    def fails(self, objects: Any, fault: str = "request lost") -> None:
        """Publish in vain, with an error that says: retry."""
        self.store.faults.append(fault)
        assert "nothing was published" in str(self.side.expect(GuardUnavailable, lambda: self.publish(objects)))

    def refused(self, objects: Any) -> str:
        puts = len(self.store.puts)
        text = str(self.side.expect(ValueError, lambda: self.publish(objects)))
        assert not any("pointer.json" in key for key in self.store.puts[puts:]), "nothing was published"
        return text

    @property
    def current(self) -> dict[str, bytes]:
        found = ObjectStoreGuard(self.store.inner).read(R)
        assert found is not None
        return {name: found.read(name) for name in found}


@pytest.fixture
def desk(side: Side) -> Desk:
    return Desk(side)


OPEN: list[Any] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Seekable:
    """A file that is neither of the standard library nor able to say its size."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def seek(self, position: int) -> None:
        self._file.seek(position)

    def tell(self) -> int:
        return self._file.tell()


def opened(path: Path, data: bytes) -> Any:
    path.write_bytes(data)
    OPEN.append(open(path, "rb", buffering=0 if path.name == "raw" else -1))  # noqa: SIM115
    return OPEN[-1]


def compressed(path: Path, data: bytes) -> Any:
    path.write_bytes(bz2.compress(data))
    OPEN.append(bz2.open(path))  # noqa: SIM115
    return OPEN[-1]


FILES: dict[str, Callable[[Path, bytes], Any]] = {
    "in memory": lambda _, data: io.BytesIO(data),
    "open file": opened,
    "unbuffered": lambda path, data: opened(path.with_name("raw"), data),
    "compressed": compressed,
    "of another kind": lambda _, data: Seekable(data),
}


@pytest.fixture(params=FILES)
def file_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], Any]:
    return lambda data: FILES[request.param](tmp_path / "file", data)


@pytest.mark.parametrize("start", [0, 30])
def test_a_file_is_published_from_where_it_was_after_a_failure(
    desk: Desk, file_of: Callable[[bytes], Any], start: int
) -> None:
    file = file_of(DATA)
    file.seek(start)
    desk.fails({"x": file})
    assert file.tell() == start
    desk.fails({"x": file, "y": file})
    desk.publish({"x": file, "y": file, "z": b"z"})
    assert desk.current == {"x": DATA[start:], "y": DATA[start:], "z": b"z"}, "under both names"


def test_a_file_at_its_end_is_refused(desk: Desk, file_of: Callable[[bytes], Any]) -> None:
    file = file_of(DATA)
    desk.publish({"x": file})
    assert "seek(0)" in desk.refused({"x": file})
    file.seek(0)
    desk.publish({"x": file})
    assert desk.current == {"x": DATA}


def test_a_buffer_that_was_written_and_not_rewound_is_refused(desk: Desk) -> None:
    buffer = io.BytesIO()
    buffer.write(DATA)
    assert "seek(0)" in desk.refused({"a": b"a", "x": buffer})
    assert desk.current == {"x": b"old"}
    desk.publish({"x": io.BytesIO()})
    assert desk.current == {"x": b""}, "a file without bytes is fine"


def test_a_big_file_whose_upload_breaks_off_is_published_from_its_start(desk: Desk) -> None:
    file, calls = io.BytesIO(BIG), []

    def progress(*so_far: Any) -> None:
        calls.append(so_far)
        raise ZeroDivisionError

    desk.side.expect(ZeroDivisionError, lambda: desk.publish({"x": file}, progress=progress))
    assert calls[0][2] == len(BIG), "its size is known"
    desk.publish({"x": file})
    assert desk.current == {"x": BIG}


def test_an_error_of_another_body_puts_a_file_back(desk: Desk) -> None:
    def fails() -> Iterator[bytes]:
        yield b"1"
        raise ZeroDivisionError

    file = io.BytesIO(DATA)
    desk.side.expect(ZeroDivisionError, lambda: desk.publish({"x": file, "y": fails()}))
    desk.publish({"x": file})
    assert desk.current == {"x": DATA}


def generator(data: bytes) -> Iterator[bytes]:
    yield data[:10]
    yield data[10:]


class Pipe:
    """A file that cannot be put back."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int) -> bytes:
        return self._file.read(size)


def pipe(data: bytes) -> Any:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    OPEN.append(open(reading, "rb"))  # noqa: SIM115
    return OPEN[-1]


ONCE: dict[str, Callable[[bytes], Any]] = {
    "generator": generator,
    "iterator of a list": lambda data: iter([data[:10], data[10:]]),
    "map": lambda data: map(bytes, [data[:10], data[10:]]),
    "a file without seek": Pipe,
    "pipe": pipe,
}


@pytest.mark.parametrize("kind", ONCE)
@pytest.mark.parametrize("fails", [True, False])
def test_what_can_be_read_once_is_refused_the_second_time(desk: Desk, kind: str, fails: bool) -> None:
    body = ONCE[kind](DATA)
    if fails:
        desk.fails({"x": body})
    else:
        desk.publish({"x": body})
    assert "read before" in desk.refused({"a": b"a", "x": body})
    assert desk.current == {"x": b"old" if fails else DATA}
    desk.publish({"x": ONCE[kind](DATA)})
    assert desk.current == {"x": DATA}


@pytest.mark.parametrize("kind", ONCE)
def test_what_can_be_read_once_is_not_taken_for_two_names(desk: Desk, kind: str) -> None:
    body = ONCE[kind](DATA)
    assert "read before" in desk.refused({"x": body, "y": body})


@pytest.mark.parametrize("kind", ONCE)
def test_an_iterator_that_no_upload_has_begun_may_be_passed_again(desk: Desk, kind: str) -> None:
    body = ONCE[kind](DATA)
    desk.store.deaf = True
    desk.side.expect(GuardUnavailable, lambda: desk.publish({"x": body}))
    desk.store.deaf = False
    desk.publish({"x": body})
    assert desk.current == {"x": DATA}


def test_a_generator_that_the_caller_has_used_up_is_refused_and_an_empty_one_is_not(desk: Desk) -> None:
    used = generator(DATA)
    list(used)
    desk.refused({"x": used})
    desk.publish({"x": (chunk for chunk in [])})  # type: ignore[var-annotated]
    assert desk.current == {"x": b""}


class Repeatable:
    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)

    def __iter__(self) -> Iterator[bytes]:
        yield from self.chunks


class HiddenOnce(Repeatable):
    """It makes a new iterator each time, over something that can be read once."""

    def __iter__(self) -> Iterator[bytes]:
        while self.chunks:
            yield self.chunks.pop(0)


@pytest.mark.parametrize("first", [10, 1000, 2**20])
def test_an_iterable_that_goes_on_where_it_was_is_refused_after_a_failure(desk: Desk, first: int) -> None:
    """As requests.Response does with stream=True. That it gives the same bytes again says nothing."""
    body = HiddenOnce(*[b"0" * first] * 4)
    desk.fails({"x": body})
    with pytest.raises(ValueError, match="was read before"):
        desk.publish({"x": body})
    assert desk.current == {"x": b"old"}


def test_an_iterable_is_refused_after_a_failure_and_not_after_a_success(desk: Desk) -> None:
    body = Repeatable(b"1", b"2")
    for _ in range(2):
        desk.publish({"x": body})
        assert desk.current == {"x": b"12"}
    desk.fails({"x": body})
    with pytest.raises(ValueError, match="was read before"):
        desk.publish({"x": body})


@pytest.mark.parametrize("body", [[b"1", b"2"], (b"1", b"2"), b"12", bytearray(b"12")])
def test_what_can_be_read_twice_may_be_passed_again(desk: Desk, body: Any) -> None:
    desk.fails({"x": body})
    desk.publish({"x": body})
    assert desk.current == {"x": b"12"}
    desk.publish({"x": body, "y": body})
    assert desk.current == {"x": b"12", "y": b"12"}


def test_an_iterable_may_give_other_bytes_for_the_next_publication(desk: Desk) -> None:
    body = Repeatable(b"1")
    desk.publish({"x": body})
    body.chunks = [b"2"]
    desk.publish({"x": body})
    assert desk.current == {"x": b"2"}


@pytest.mark.parametrize("chunks", [[DATA], [b"1" * bodies.PIECE, b"2" * bodies.PIECE, bytes(SMALL), DATA]])
def test_an_iterable_that_hides_a_stream_is_refused_the_second_time(desk: Desk, chunks: list[bytes]) -> None:
    body = HiddenOnce(*chunks)

    def progress(*_: Any) -> None:
        raise ZeroDivisionError

    desk.side.expect(ZeroDivisionError, lambda: desk.publish({"x": body}, progress=progress))
    assert "read before" in desk.refused({"x": body})
    assert desk.current == {"x": b"old"}
    body = HiddenOnce(DATA)
    desk.publish({"x": body})
    assert "read before" in desk.refused({"x": body})


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data[:10]
    await asyncio.sleep(0)
    yield data[10:]


@pytest.mark.parametrize("side", ["async"], indirect=True)
@pytest.mark.parametrize("fails", [True, False])
def test_an_async_iterator_is_refused_the_second_time(desk: Desk, fails: bool) -> None:
    class Hidden:
        def __init__(self) -> None:
            self.body = _chunks(DATA)

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self.give()

        async def give(self) -> AsyncIterator[bytes]:
            async for chunk in self.body:
                yield chunk

    for body in (_chunks(DATA), Hidden()):
        if fails:
            desk.fails({"x": body})
        else:
            desk.publish({"x": body})
        assert "read before" in desk.refused({"x": body})


class Late(io.BytesIO):
    """Its reads stand still until they may go on."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.goes_on, self.reading = threading.Event(), threading.Event()

    def read(self, size: int | None = -1) -> bytes:
        self.reading.set()
        assert self.goes_on.wait(10)
        return super().read(size)


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_read_that_outlives_a_cancellation_does_not_move_the_file(desk: Desk) -> None:
    file = Late(DATA)

    async def cancelled() -> None:
        task = asyncio.ensure_future(desk.guard.publish(A, {"x": file}))
        await asyncio.to_thread(file.reading.wait, 10)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert "read before" in str(_refused(desk.guard, file)), "while the read is under way"
        file.goes_on.set()
        await asyncio.to_thread(wait_until, lambda: bodies._read_before.get(file) is None)
        assert file.tell() == 0

    desk.side.call(cancelled)
    desk.publish({"x": file})
    assert desk.current == {"x": DATA}


def _refused(guard: Any, file: Any) -> ValueError:
    with pytest.raises(ValueError, match="body of") as caught:
        guard._plan_publish(A, {"x": file}, False, None)
    return caught.value


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_file_whose_restoration_was_interrupted_is_refused(desk: Desk) -> None:
    class Interrupted(io.BytesIO):
        seeks = 0

        def seek(self, *where: int) -> int:
            self.seeks += 1
            if self.seeks > 3:  # two to find its size, one before it is read
                raise KeyboardInterrupt
            return super().seek(*where)

    file = Interrupted(DATA)
    desk.store.faults.append("request lost")
    with pytest.raises(KeyboardInterrupt):
        desk.publish({"x": file})
    file.seeks = -100
    assert "read before" in desk.refused({"x": file})


def test_a_file_that_gives_less_than_it_has_is_refused(desk: Desk, tmp_path: Path) -> None:
    class Short(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            return data[:40]

    assert "40 bytes of 100" in desk.refused({"x": Short(DATA)})
    assert desk.current == {"x": b"old"}


def test_a_file_that_gives_none_is_refused(desk: Desk) -> None:
    """As one does that does not block and has nothing yet: that is not its end."""

    class NotYet(Pipe):
        def read(self, size: int) -> bytes:
            return None  # type: ignore[return-value]

    desk.side.expect(TypeError, lambda: desk.publish({"x": NotYet(b"")}))


def test_the_memory_of_what_was_read_is_weak_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    known = bodies._ReadBefore()
    body = generator(DATA)
    known.put(body, "consumed")
    assert known.get(body) == "consumed"
    del body
    assert not known._known
    monkeypatch.setattr(bodies, "MOST_REMEMBERED", 3)
    lists = [iter([b"1"]) for _ in range(5)]
    for each in lists:
        known.put(each, "consumed")
    assert [known.get(each) for each in lists] == [None, None, "consumed", "consumed", "consumed"]


def test_memory_stores_are_fine_too(side: Side) -> None:
    kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
    guard = kind(MemoryStore())
    file = io.BytesIO(DATA)
    side.call(guard.publish, A, {"x": file}, claim=True)
    side.expect(ValueError, lambda: side.call(guard.publish, A, {"x": file}))


@pytest.mark.parametrize("position", [0, 7, len(DATA)])
def test_a_memory_map_is_bytes_wherever_it_stands(desk: Desk, tmp_path: Path, position: int) -> None:
    """It can be read like a file, too. Async guards did so, and published a rest of it, or nothing."""
    (tmp_path / "data").write_bytes(DATA)
    with open(tmp_path / "data", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        mapped.seek(position)
        desk.fails({"x": mapped})
        desk.publish({"x": mapped})
        assert mapped.tell() == position
        gc.collect()  # of the failed attempt's frames, which refer to its memory
    assert desk.current == {"x": DATA}


def test_a_path_whose_file_shrinks_is_refused(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(BIG)

    def cut(name: str, sent: int, total: int | None) -> None:
        os.truncate(path, 2**20)

    fails = f"bytes of {len(BIG)}"
    assert fails in str(desk.side.expect(ValueError, lambda: desk.publish({"x": path}, progress=cut)))
    assert desk.current == {"x": b"old"}
    desk.publish({"x": path})
    assert desk.current == {"x": BIG[: 2**20]}
