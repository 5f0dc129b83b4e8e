"""Publications that are made in a block, that keep what is current, and that skip what has not changed."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from obstore.store import MemoryStore

from fencing import Fence, GuardUnavailable, OutcomeUnknown, StaleFence, StaleRead
from storage_guards import Upload
from storage_guards.objects import pointer as states
from storage_guards.objects import publishing, uploads
from storage_guards.objects.keys import Directory
from storage_guards.objects.requests import Begin, Finish
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.sides import Side

R = "orders:1"
A, B = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)
MIB = 2**20
SMALL = MIB


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is big takes less time."""
    monkeypatch.setattr(uploads, "SMALL", SMALL)


@pytest.fixture
def faulty(side: Side) -> Desk:
    """A guard that has claimed, on a store that counts its puts."""
    desk = Desk(side, FaultyStore())
    desk.publish(A, {"x": b"old"}, claim=True)
    del desk.store.puts[:]
    return desk


def staged(desk: Desk, work: Callable[..., Any], **options: Any) -> Any:
    """Publish what ``work`` adds in a block: it is called with the staging, and with what calls a method of it."""

    async def run() -> Any:
        async with desk.guard.publishing(A, **options) as new:
            for step in work(new):
                await step
        return new.publication

    if desk.side.asynchronous:
        return desk.call(run)
    with desk.guard.publishing(A, **options) as new:
        for _ in work(new):
            pass
    return new.publication


def nothing(_: Any) -> Any:
    return []


def two_objects(new: Any) -> Iterator[Any]:
    yield new.add("a", b"1")
    yield new.add("b", b"2")


def never(_: Any) -> Any:
    raise AssertionError("the block has begun")


def data_puts(desk: Desk) -> list[str]:
    return [key for key in desk.store.puts if "/~/" in key]


# In a block


def test_a_block_publishes_at_its_end(faulty: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"from a path")

    def work(new: Any) -> Iterator[Any]:
        yield new.add("a", b"1")
        yield new.add("path", Upload(tmp_path / "file", content_type="text/plain"))
        with pytest.raises(ValueError, match="'a' was added before"):
            raise_from(new.add("a", b"2"))
        yield new.add("gone", b"3")
        new.remove("gone")
        assert new.names == ["a", "path"]
        assert faulty.beside.read(R)["x"].size == 3, "not yet"

    publication = staged(faulty, work)
    assert faulty.current == {"a": b"1", "path": b"from a path"}
    assert publication == faulty.call(faulty.guard.read, R)


def raise_from(result: Any) -> None:
    """Raise what a method raises: the sync one at once, the async one when it is run."""
    if hasattr(result, "send"):
        result.send(None)


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
def test_a_block_that_raises_publishes_nothing(faulty: Desk, error: type[BaseException]) -> None:
    file = io.BytesIO(b"123")

    def work(new: Any) -> Iterator[Any]:
        yield new.add("a", file)
        yield new.open("big").write(bytes(SMALL + 3 * MIB))
        raise error

    with pytest.raises((error, CancelledError)):
        staged(faulty, work)
    assert faulty.current == {"x": b"old"}
    assert file.read() == b"123", "it may be added again"
    assert not any("pointer" in key for key in faulty.store.puts)


def test_a_late_holder_is_refused_before_and_after_its_uploads(faulty: Desk) -> None:
    def work(new: Any) -> Iterator[Any]:
        yield new.add("a", b"1")
        faulty.beside.claim(B)

    with pytest.raises(StaleFence):
        staged(faulty, work)
    assert len(data_puts(faulty)) == 1
    with pytest.raises(StaleFence):
        staged(faulty, never)
    assert faulty.current == {"x": b"old"}


def test_an_unknown_outcome_of_a_block(faulty: Desk) -> None:
    faulty.store.deaf_after_fault = True

    def work(new: Any) -> Iterator[Any]:
        yield new.add("a", b"1")
        faulty.store.faults.append("reply lost")

    faulty.guard._timeout = 0.3
    with pytest.raises(OutcomeUnknown) as caught:
        staged(faulty, work)
    faulty.store.deaf = False
    assert faulty.call(faulty.guard.landed, caught.value) is True
    assert faulty.current == {"a": b"1"}


def test_an_upload_that_is_lost_ends_the_block(faulty: Desk) -> None:
    faulty.store.about = "/~/"
    faulty.store.faults.append("request lost")
    with pytest.raises(GuardUnavailable, match="nothing was published"):
        staged(faulty, two_objects)
    assert faulty.current == {"x": b"old"}


def test_objects_are_added_in_the_block_only(desk: Desk) -> None:
    desk.call(desk.guard.claim, A)
    new = desk.guard.publishing(A)
    with pytest.raises(RuntimeError, match="in the block"):
        raise_from(new.add("a", b""))
    with pytest.raises(RuntimeError, match="in the block"):
        new.open("a")
    with pytest.raises(ValueError, match="at least one"):
        staged(desk, nothing)


# Writers


def written(desk: Desk, chunks: Iterable[Any], **options: Any) -> None:
    async def run() -> None:
        async with desk.guard.writer(A, "part-0", **options) as file:
            for chunk in chunks:
                assert await file.write(chunk) == len(chunk)

    if desk.side.asynchronous:
        desk.call(run)
    else:
        with desk.guard.writer(A, "part-0", **options) as file:
            for chunk in chunks:
                assert file.write(chunk) == len(chunk)


@pytest.mark.parametrize("size", [0, 5, SMALL - 10, SMALL - 9, 3 * MIB])
def test_a_writer_publishes_what_was_written(faulty: Desk, size: int) -> None:
    buffer = bytearray(b"0123456789")
    reported: list[tuple[str, int, int | None]] = []
    written(faulty, [buffer, memoryview(bytes(size))], progress=lambda *so_far: reported.append(so_far))
    assert faulty.current == {"part-0": b"0123456789" + bytes(size)}
    assert reported[-1] == ("part-0", 10 + size, None)


def test_what_was_written_may_be_changed_afterwards(faulty: Desk) -> None:
    def chunks() -> Iterator[bytearray]:
        buffer = bytearray(MIB)
        for number in range(6):
            buffer[:] = bytes([number]) * len(buffer)
            yield buffer
            buffer[:] = b"?" * len(buffer)

    written(faulty, chunks())
    assert faulty.current == {"part-0": b"".join(bytes([number]) * MIB for number in range(6))}


def test_a_writer_that_is_not_closed_keeps_all_from_being_published(faulty: Desk) -> None:
    def work(new: Any) -> Iterator[Any]:
        yield new.add("a", b"1")
        yield new.open("b").write(b"the beginning")  # and nobody holds it any more

    with pytest.raises(ValueError, match="'b' has no end"):
        staged(faulty, work)
    assert faulty.current == {"x": b"old"}


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_writer_whose_block_raises_leaves_its_object_out(faulty: Desk) -> None:
    with faulty.guard.publishing(A) as new:
        for body in (b"1", bytes(SMALL + 2 * MIB)):
            with suppress(ZeroDivisionError), new.open("b") as file:
                file.write(body)
                raise ZeroDivisionError
            assert file.closed
        with new.open("b") as file:
            file.write(b"whole")
        with pytest.raises(ValueError, match="closed"):
            file.write(b"more")
        new.add("a", b"1")
    assert faulty.current == {"a": b"1", "b": b"whole"}


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_writer_that_broke_off_takes_no_more(faulty: Desk) -> None:
    faulty.store.about = "/~/"

    def work(new: Any) -> Iterator[Any]:
        file = new.open("b")
        file.write(bytes(SMALL))
        faulty.store.faults.append("request lost")
        faulty.side.expect(GuardUnavailable, lambda: [file.write(bytes(MIB)) for _ in range(1000)])
        faulty.side.expect(ValueError, file.write, b"more")
        yield file.close()

    with pytest.raises(ValueError, match="'b' has no end"):
        staged(faulty, work)
    assert faulty.current == {"x": b"old"}


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_writer_is_a_binary_file(faulty: Desk) -> None:
    with faulty.guard.writer(A, "text") as file, io.TextIOWrapper(file, "utf-8") as text:
        assert (file.writable(), file.readable(), file.seekable()) == (True, False, False)
        text.write("ä\n")
    assert faulty.current == {"text": b"\xc3\xa4\n"}


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_threads_share_a_block(faulty: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "SMALL", 100_000)

    def work(number: int) -> None:
        for index in range(10):
            new.add(f"{number}/{index}", bytes([number]) * 90_000)
        with new.open(f"{number}/big") as file:
            for _ in range(9):
                file.write(bytes([number]) * 90_000)

    with faulty.guard.publishing(A) as new:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    is_whole(faulty)


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_tasks_share_a_block(faulty: Desk) -> None:
    async def work(new: Any, number: int) -> None:
        for index in range(10):
            await new.add(f"{number}/{index}", bytes([number]) * 90_000)
        async with new.open(f"{number}/big") as file:
            for _ in range(9):
                await file.write(bytes([number]) * 90_000)

    async def run() -> None:
        async with faulty.guard.publishing(A) as new:
            await asyncio.gather(*(work(new, number) for number in range(4)))

    faulty.call(run)
    is_whole(faulty)


def is_whole(desk: Desk) -> None:
    current = desk.current
    assert current is not None
    assert len(current) == 44
    for name, data in current.items():
        assert data == bytes([int(name[0])]) * (810_000 if name.endswith("big") else 90_000)


@pytest.mark.parametrize("total", [None, 50 * 10**9, 5 * 10**12])
def test_a_big_object_has_at_most_10_000_parts(total: int | None) -> None:
    """S3 takes no more. Where the size is not known, 80 GB fit."""
    coming = uploads.Incoming(uploads.Uploads(1.0), "key", "x", total)
    requests = coming.plan_take(bytes(SMALL + 1))
    assert isinstance(next(requests), Finish), "of what is under way"
    begin = requests.send(None)
    assert isinstance(begin, Begin)
    assert (total or 80 * 10**9) / begin.part_size <= 10_000
    assert begin.part_size <= 600_000_000, "three of them are in memory"


class Late(MemoryStore):
    """A store that looks at the pieces of a big body only when all have come."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    async def put_async(self, path: str, file: Any, **options: Any) -> Any:
        if options["use_multipart"]:
            self.pieces = [piece async for piece in file]
            file, options = b"".join(self.pieces), {}
        return await super().put_async(path, file, **options)


def test_what_is_sent_is_what_was_hashed(side: Side) -> None:
    """A buffer that changes while it is under way would be published under the hash of something else."""
    desk = Desk(side, Late())
    buffer = bytearray(SMALL + 3 * MIB)

    def change(_: str, sent: int, __: int | None) -> None:
        buffer[:sent] = b"?" * sent

    published = desk.publish(A, {"x": buffer}, claim=True, progress=change)
    assert sha256(desk.call(published.read, "x")).hexdigest() == published["x"].sha256


def test_small_writes_are_gathered(side: Side) -> None:
    desk = Desk(side, Late())
    desk.call(desk.guard.claim, A)
    written(desk, [bytes(10_000)] * 400)
    assert len(desk.store.pieces) < 6
    assert sum(map(len, desk.store.pieces)) == 4_000_000


# Added again


class Overtaken(FaultyStore):
    """Of the objects that are called x, the first arrives after the second."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = 0
        self.second: asyncio.Event | None = None

    async def put_async(self, path: str, file: Any, **options: Any) -> Any:
        if not path.endswith("/~/x"):
            return await super().put_async(path, file, **options)
        self.second = self.second or asyncio.Event()
        self.objects += 1
        if self.objects == 1:
            await self.second.wait()
        stored = await super().put_async(path, file, **options)
        self.second.set()
        return stored


def test_an_object_that_is_added_again_has_the_later_bytes(side: Side) -> None:
    """The earlier ones are still on their way, to another key."""
    desk = Desk(side, Overtaken())
    desk.call(desk.guard.claim, A)

    def work(new: Any) -> Iterator[Any]:
        yield new.add("x", b"1")
        new.remove("x")
        yield new.add("x", b"2")

    staged(desk, work)
    assert desk.current == {"x": b"2"}
    assert len(set(data_puts(desk))) == len(data_puts(desk)) == 2


def test_a_writer_that_broke_off_and_its_successor_have_two_keys(faulty: Desk) -> None:
    """What the store was sent of the first may arrive late."""

    def work(new: Any) -> Iterator[Any]:
        first = new.open("x")
        yield first.write(b"1")
        yield close_with(faulty, first, ZeroDivisionError())
        second = new.open("x")
        yield second.write(b"2")
        yield second.close()

    keys: list[str] = []
    make_key = Directory.data_key

    def noted(*args: Any) -> str:
        keys.append(make_key(*args))
        return keys[-1]

    with mock.patch.object(Directory, "data_key", staticmethod(noted)):
        staged(faulty, work)
    assert faulty.current == {"x": b"2"}
    assert len(set(keys)) == len(keys) == 2


def close_with(desk: Desk, writer: Any, error: Exception) -> Any:
    """End the block of a writer by an error."""
    if desk.side.asynchronous:
        return writer.__aexit__(type(error), error, None)
    return writer.__exit__(type(error), error, None)


# Keeping


@pytest.mark.parametrize("most", [1, 1000])
def test_entries_of_the_current_publication_are_added(desk: Desk, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Also of one whose pointer has no objects."""
    monkeypatch.setattr(states, "MOST_INLINE", most)
    first = desk.publish(A, {"0": b"1", "1": b"1", "2": b"1"}, claim=True)
    staged(Desk(desk.side, desk.store), lambda new: (new.add(name, first[name]) for name in ("0", "1")))
    assert desk.current == {"0": b"1", "1": b"1"}
    second = desk.publish(A, dict.fromkeys(first, b"1"))
    desk.call(Desk(desk.side, desk.store).guard.publish, A, iter([("0", second["0"])]))
    assert desk.current == {"0": b"1"}
    with pytest.raises(StaleRead):
        staged(desk, lambda new: [new.add("1", second["1"])])


def test_too_many_objects_are_refused_with_those_that_are_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """They could not be read."""
    monkeypatch.setattr(publishing, "MAX_OBJECTS", 3)
    first = desk.publish(A, {"a": b"1", "b": b"2"}, claim=True)
    error = desk.refused(ValueError, A, {"c": b"3", "d": b"4"}, keeping=first)
    assert "at most 3 objects, with those it keeps" in error
    desk.publish(A, {"b": b"3", "c": b"4"}, keeping=first)
    assert desk.current == {"a": b"1", "b": b"3", "c": b"4"}


def test_a_file_that_is_written_or_removed_leaves_what_is_in_a_folder_of_its_name(desk: Desk) -> None:
    if desk.side.asynchronous:
        pytest.skip("libraries write into the sync guard")
    pytest.importorskip("fsspec")
    first = desk.publish(A, {"a": b"1", "a/b": b"2", "c": b"3", "c/d": b"4", "e/f": b"5"}, claim=True)
    with desk.guard.publishing(A, keeping=first) as new:
        files = new.filesystem()
        with files.open("a", "wb") as file:
            file.write(b"6")
        with pytest.raises(FileExistsError):
            files.open("a/b", "xb")
        files.rm("c")
        files.rm_file("e")
    assert desk.current == {"a": b"6", "a/b": b"2", "c/d": b"4", "e/f": b"5"}
    with desk.guard.publishing(A, keeping=new.publication) as new:
        new.filesystem().rm("c", recursive=True)
    assert desk.current == {"a": b"6", "a/b": b"2", "e/f": b"5"}


def test_appending_and_replacing_a_partition(faulty: Desk) -> None:
    first = faulty.publish(A, {"month=1/a": b"1", "month=11/a": b"2", "month=11/b": b"3", "readme": b"4"})
    del faulty.store.puts[:]
    second = faulty.publish(A, {"month=12/a": b"5", "readme": b"new"}, keeping=first)
    assert len(data_puts(faulty)) == 2
    assert faulty.current == {
        "month=1/a": b"1",
        "month=11/a": b"2",
        "month=11/b": b"3",
        "month=12/a": b"5",
        "readme": b"new",
    }
    faulty.publish(A, {"month=1/c": b"6"}, keeping=second, dropping=["month=1", "readme"])
    assert faulty.current == {"month=1/c": b"6", "month=11/a": b"2", "month=11/b": b"3", "month=12/a": b"5"}
    faulty.refused(StaleRead, A, {"x": b""}, keeping=second)
    third = faulty.call(faulty.guard.read, R)

    def work(new: Any) -> Iterator[Any]:
        new.remove("month=11/")
        yield new.add("month=11/c", b"7")

    staged(faulty, work, keeping=third)
    assert faulty.current == {"month=1/c": b"6", "month=11/c": b"7", "month=12/a": b"5"}
    fourth = faulty.call(faulty.guard.read, R)
    faulty.publish(A, {}, keeping=fourth, dropping="month=11")
    assert faulty.current == {"month=1/c": b"6", "month=12/a": b"5"}


def test_keeping_none_replaces_none(desk: Desk) -> None:
    desk.call(desk.guard.claim, A)
    desk.publish(A, {"a": b"1"}, keeping=desk.call(desk.guard.read, R))
    desk.refused(StaleRead, A, {"b": b"2"}, keeping=None)


def test_one_of_two_appends_is_refused(desk: Desk) -> None:
    """Both have read the same. The later one would lose what the other has appended."""
    first = desk.publish(A, {"a": b"1"}, claim=True)
    desk.publish(A, {"b": b"2"}, keeping=first)
    desk.refused(StaleRead, A, {"c": b"3"}, keeping=first)
    with pytest.raises(StaleRead):
        staged(desk, never, keeping=first)
    assert desk.current == {"a": b"1", "b": b"2"}


def test_what_is_kept_is_asked_for_clearly(desk: Desk) -> None:
    first = desk.publish(A, {"a": b"1"}, claim=True)
    other = desk.publish(Fence("orders:2", 1, "a" * 22), {"a": b"1"}, claim=True)
    for error, options in (
        (ValueError, {"keeping": first, "replacing": first}),
        (ValueError, {"keeping": other}),
        (TypeError, {"keeping": {"a": first["a"]}}),
        (ValueError, {"dropping": "a"}),
        (ValueError, {"objects": {}, "keeping": first, "dropping": "a"}),
    ):
        objects = options.pop("objects", {"b": b"2"})
        desk.refused(error, A, objects, **options)


# Unchanged


def test_unchanged_bytes_are_not_uploaded_again(faulty: Desk, tmp_path: Path) -> None:
    (tmp_path / "same").write_bytes(b"same")
    (tmp_path / "other").write_bytes(b"1234")
    bodies = {
        "bytes": b"bytes",
        "path": tmp_path / "same",
        "file": io.BytesIO(b"file"),
        "other": tmp_path / "other",
        "chunks": [b"12", b"34"],
        "typed": b"typed",
    }
    first = faulty.publish(A, bodies)
    (tmp_path / "other").write_bytes(b"4321")
    bodies["file"].seek(0)  # type: ignore[attr-defined]
    del faulty.store.puts[:]
    reported = []
    typed = {"typed": Upload(b"typed", content_type="text/plain")}
    second = faulty.publish(A, {**bodies, **typed}, replacing=first, progress=lambda *so_far: reported.append(so_far))
    assert {key.partition("/~/")[2] for key in data_puts(faulty)} == {"other", "chunks", "typed"}
    assert {name: second[name] for name in ("bytes", "path", "file")} == {
        name: first[name] for name in ("bytes", "path", "file")
    }
    assert faulty.current == {
        "bytes": b"bytes",
        "path": b"same",
        "file": b"file",
        "other": b"4321",
        "chunks": b"1234",
        "typed": b"typed",
    }
    assert ("path", 4, 4) in reported
    assert bodies["file"].read() == b"", "it was read"  # type: ignore[attr-defined]
    del faulty.store.puts[:]
    faulty.publish(A, {"bytes": b"bytes"})
    assert len(data_puts(faulty)) == 1, "what it replaces was not passed to it"


def test_a_file_of_another_size_is_read_once(faulty: Desk) -> None:
    class Counted(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            self.reads += bool(data)
            return data

    for body, reads in ((b"1234", 1), (b"124", 2), (b"123", 1)):
        before = faulty.publish(A, {"x": b"123"})
        file = Counted(body)
        faulty.publish(A, {"x": file}, replacing=before)
        assert file.reads == reads


def test_a_body_that_changes_while_it_is_compared(faulty: Desk) -> None:
    """Each reading gives something else. What is published has the hash of its own bytes."""

    class Changing(io.BytesIO):
        def seek(self, *where: int) -> int:
            position = super().seek(*where)
            if where == (0,):
                self.getbuffer()[:] = next(contents)
            return position

    first = faulty.publish(A, {"x": b"AAAA"})
    contents = iter([b"????", b"BBBB", b"AAAA", b"AAAA"])  # found out its size; compared; read; put back
    second = faulty.publish(A, {"x": Changing(b"....")}, replacing=first)
    current = faulty.current
    assert current is not None
    assert second["x"] == faulty.publish(A, current, replacing=second)["x"]
    assert current["x"] != b"BBBB", "it was read again"


# Pairs, and folders


def test_pairs_are_read_one_after_the_other(faulty: Desk) -> None:
    alive: list[int] = []

    def pairs() -> Iterator[tuple[str, Any]]:
        for number in range(20):
            alive.append(len(faulty.store.puts))
            yield f"{number}", bytes(SMALL // 4)

    faulty.publish(A, pairs())
    assert alive[-1] > 10, "the first ones were uploaded before the last ones were made"
    current = faulty.current
    assert current is not None
    assert len(current) == 20


def test_pairs_that_were_read_are_refused(faulty: Desk) -> None:
    pairs = ((name, b"1") for name in "abc")
    faulty.store.about = "/~/"
    faulty.store.faults.append("request lost")
    faulty.refused(GuardUnavailable, A, pairs)
    assert "was read before" in faulty.refused(ValueError, A, pairs)
    faulty.publish(A, [("a", b"1"), ("b", iter([b"2"]))])
    assert faulty.current == {"a": b"1", "b": b"2"}
    for bad in ([("a", b""), ("a", b"")], [("", b"")], [("a", "text")], [], [("a", b""), "b"]):
        faulty.refused((TypeError, ValueError), A, bad)  # type: ignore[arg-type]
    assert faulty.current == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_pairs_may_be_asynchronous(desk: Desk) -> None:
    async def pairs() -> AsyncIterator[tuple[str, bytes]]:
        yield "a", b"1"
        yield "b", b"2"

    desk.publish(A, pairs(), claim=True)
    assert desk.current == {"a": b"1", "b": b"2"}


def test_a_folder_is_published_with_its_paths(faulty: Desk, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for name in ("year=2026/month=11/part-0", "year=2026/part-0", "b", "a"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "link").symlink_to(folder / "a")
    expected = {name: name.encode() for name in ("year=2026/month=11/part-0", "year=2026/part-0", "b", "a")}
    first = faulty.call(faulty.guard.publish_dir, A, folder)
    assert faulty.current == {**expected, "link": b"a"}
    (folder / "b").write_bytes(b"B")
    (folder / "link").unlink()
    del faulty.store.puts[:]
    faulty.call(faulty.guard.publish_dir, A, str(folder), replacing=first)
    assert {key.partition("/~/")[2] for key in data_puts(faulty)} == {"b"}
    assert faulty.current == {**expected, "b": b"B"}


def test_folders_that_are_refused(faulty: Desk, tmp_path: Path) -> None:
    def refused(error: type[Exception]) -> None:
        faulty.side.expect(error, faulty.guard.publish_dir, A, folder)

    folder = tmp_path / "out"
    refused(FileNotFoundError)
    folder.mkdir()
    refused(ValueError)
    (folder / "ring").symlink_to(folder)
    refused(ValueError)
    (folder / "ring").unlink()
    (folder / "broken").symlink_to(folder / "gone")
    refused(FileNotFoundError)
    assert faulty.current == {"x": b"old"}
    assert faulty.store.puts == []


def test_progress_is_a_function_or_a_bar(desk: Desk) -> None:
    desk.refused(ValueError, A, {"x": b""}, progress="curses")
    desk.refused(TypeError, A, {"x": b""}, progress=7)
    with pytest.raises(ValueError, match="'tqdm', 'rich'"):
        desk.guard.publishing(A, progress="curses")
