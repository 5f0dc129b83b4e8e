"""Publications, as users see them: in memory, and what depends on HTTP on each real server."""

from __future__ import annotations

import asyncio
import hashlib
import io
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, StaleFence, StaleRead
from storage_guards.objects.plans import ANYTHING
from storage_guards.objects.requests import BeginBatch, Get, Next, OpenBody
from storage_guards.objects.uploads import SMALL
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import Place
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.sides import Side

R = "orders:1"
A, B, C = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22), Fence(R, 3, "c" * 22)
MIB = 2**20


def test_a_publication_is_all_of_its_objects(http: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"from a path")
    bodies = {
        "bytes": b"some bytes",
        "empty": b"",
        "buffer": bytearray(b"a buffer"),
        "view": memoryview(b"a view"),
        "path": tmp_path / "file",
        "file": io.BytesIO(b"from a file"),
        "iterable": iter([b"from ", b"", b"an iterable"]),
        "reports/2026/ä b.csv": b"in a folder",
        "..": b"up",
        "a//b": b"twice",
        "/x": b"root",
    }
    published = http.publish(A, bodies, claim=True)
    expected = {
        "bytes": b"some bytes",
        "empty": b"",
        "buffer": b"a buffer",
        "view": b"a view",
        "path": b"from a path",
        "file": b"from a file",
        "iterable": b"from an iterable",
        "reports/2026/ä b.csv": b"in a folder",
        "..": b"up",
        "a//b": b"twice",
        "/x": b"root",
    }
    assert http.current == expected
    assert {name: entry.size for name, entry in published.items()} == {name: len(it) for name, it in expected.items()}
    read = http.call(http.guard.read, R)
    assert (read, read.number, read.token, read.id) == (published, 1, A.token, published.id)
    assert http.call(http.guard.read, "orders:2") is None
    http.publish(A, {"other": b"1"})
    assert http.current == {"other": b"1"}, "not added to it, but in its place"
    assert http.call(read.read, "bytes") == b"some bytes", "all of one publication"
    assert read != http.call(http.guard.read, R)


@pytest.mark.thorough
def test_a_big_body_is_sent_in_parts(http: Desk) -> None:
    size = 20 * MIB + 12345
    block = bytes(range(256)) * 4096
    expected = hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        left = size
        while left:
            chunk = block[: min(left, 700_001)]
            expected.update(chunk)
            left -= len(chunk)
            yield chunk

    seen: list[tuple[str, int, int | None]] = []
    published = http.publish(A, {"big": chunks()}, claim=True, progress=lambda *so_far: seen.append(so_far))
    assert published["big"].size == size
    assert seen[-1] == ("big", size, None)
    assert [sent for _, sent, _ in seen] == sorted({sent for _, sent, _ in seen})
    got = hashlib.sha256()
    for piece in _stream(http, "big"):
        got.update(piece)
    assert got.digest() == expected.digest()


@pytest.mark.thorough
def test_big_bodies_of_every_kind(desk: Desk, tmp_path: Path) -> None:
    data = bytes(range(256)) * (40 * 1024)  # ten mebibytes
    (tmp_path / "file").write_bytes(data)
    desk.store.put("elsewhere", data)
    with open(tmp_path / "file", "rb") as file:
        bodies = {
            "bytes": data,
            "buffer": bytearray(data),
            "path": tmp_path / "file",
            "file": file,
            "one chunk": iter([data]),
            "from obstore": desk.store.get("elsewhere"),
        }
        sizes: dict[str, set[int | None]] = {}
        desk.publish(A, bodies, claim=True, progress=lambda name, _, total: sizes.setdefault(name, set()).add(total))
    current = desk.current
    assert current is not None
    assert all(it == data for it in current.values())
    assert sizes["bytes"] == sizes["path"] == {len(data)}
    desk.publish(A, {"copied": desk.call(desk.guard.open, R, "bytes")})
    assert desk.current == {"copied": data}
    desk.refused(FileNotFoundError, A, {"x": tmp_path / "missing"})


def _stream(desk: Desk, name: str) -> list[bytes]:
    async def collect() -> list[bytes]:
        return [piece async for piece in await desk.guard.open(R, name)]

    if desk.side.asynchronous:
        pieces: list[bytes] = desk.call(collect)
        return pieces
    return list(desk.guard.open(R, name))


def test_a_stream_reads_as_a_file_does(desk: Desk) -> None:
    desk.publish(A, {"x": b"0123456789"}, claim=True)
    stream = desk.call(desk.guard.open, R, "x")
    parts = [desk.call(stream.read, size) for size in (3, 0, 4, 100, 100)]
    assert parts == [b"012", b"", b"3456", b"789", b""]
    desk.call(stream.close)
    assert "open it again" in str(desk.side.expect(ValueError, stream.read))
    missing = desk.side.expect(KeyError, desk.guard.open, R, "y")
    assert "'y' is not in the publication of 'orders:1', which has 'x'" in str(missing)
    missing = desk.side.expect(KeyError, desk.guard.open, "orders:2", "x")
    assert "nothing is published for 'orders:2', so it has no 'x'; publish it first" in str(missing)


def test_data_changed_past_the_guard_are_refused(desk: Desk) -> None:
    published = desk.publish(A, {"x": b"0123456789"}, claim=True)
    key = "fencing/orders=3A1/" + published["x"].key
    for other in (b"012345678", b"01234567890", b"", b"0123456780", b"1123456789"):
        desk.store.put(key, other)
        for read in (lambda: published.read("x"), published.read_all):
            error = str(desk.side.expect(GuardNotEnforceable, read))
            assert "is not the object that was published" in error
            assert "restore it from a backup, or publish again" in error


@pytest.mark.parametrize("error", [GenericError, KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupted_stream_does_not_continue(side: Side, error: type[BaseException]) -> None:
    """What had come by then is lost, so an end without an error would be one of less than all."""
    desk = Desk(side, MemoryStore())
    desk.publish(A, {"x": b"12345"}, claim=True)
    stream = desk.call(desk.guard.open, R, "x")
    steps = stream._reading.plan_read(-1)
    next(steps)
    steps.send(b"123")  # a piece has come
    with pytest.raises((GenericError, KeyboardInterrupt, asyncio.CancelledError)):
        steps.throw(error("now"))
    for _ in range(2):
        assert "open it again" in str(side.expect(GuardUnavailable, stream.read))
    assert desk.call(stream.seek, 2) == 2
    assert desk.call(stream.read) == b"345", "where to go on was said"


# Bodies that fail, and arguments that are none


def failing(after: int) -> Iterator[bytes]:
    for _ in range(after):
        yield bytes(MIB)
    raise ZeroDivisionError


@pytest.mark.parametrize("after", [0, 1, 14])
def test_a_body_that_raises_publishes_nothing(http: Desk, after: int) -> None:
    http.publish(A, {"x": b"old"}, claim=True)
    http.refused(ZeroDivisionError, A, {"a": b"new", "x": failing(after)})
    assert http.current == {"x": b"old"}
    uploads = http.call(http.guard.history, R)
    assert not any("x" in each.sizes for each in uploads if not each.current), "of the broken upload there is nothing"


def test_progress_that_raises_publishes_nothing(desk: Desk) -> None:
    desk.publish(A, {"x": b"old"}, claim=True)
    desk.refused(ZeroDivisionError, A, {"x": b"new"}, progress=lambda *_: 1 // 0)
    assert desk.current == {"x": b"old"}


def test_bad_arguments_are_refused_before_anything_is_sent(side: Side) -> None:
    store = FaultyStore()
    desk = Desk(side, store)
    desk.publish(A, {"x": b"old"}, claim=True)
    del store.puts[:]
    assert "at least one" in desk.refused(ValueError, A, {})
    assert "encode" in desk.refused(TypeError, A, {"a": b"", "x": "text"})
    for body in (None, 7, {"a": 1}, io.StringIO("text")):
        desk.refused(TypeError, A, {"a": b"", "x": body})
    for name in ("", "x" * 1025, "\ud800"):
        desk.refused(ValueError, A, {"a": b"", name: b""})
    desk.refused(TypeError, A, {7: b""})
    for objects in (7, "x", b"x", [b"x"], [["x", b""]]):
        desk.refused(TypeError, A, objects)
    desk.refused(TypeError, A, {"x": b""}, replacing="x")
    desk.refused(StaleFence, Fence(R, 1, "x" * 22), {"x": b""})
    desk.refused(StaleRead, A, {"x": b""}, replacing=None)
    assert store.puts == []
    desk.refused(TypeError, A, {"x": [b"1", "2"]})
    if not side.asynchronous:
        desk.refused(TypeError, A, {"x": _async_chunks([])})


async def _async_chunks(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_body_may_be_an_async_iterable(desk: Desk) -> None:
    desk.publish(A, {"x": _async_chunks([b"a", b"b"]), "big": _async_chunks([bytes(MIB)] * 12)}, claim=True)
    current = desk.current
    assert current is not None
    assert (current["x"], len(current["big"])) == (b"ab", 12 * MIB)


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_body_may_publish_itself(desk: Desk) -> None:
    """The outer one comes last, unless it was to replace what was current before."""

    def body(value: bytes) -> Iterator[bytes]:
        desk.publish(A, {"x": value})
        yield b"outer"

    first = desk.publish(A, {"x": b"first"}, claim=True)
    desk.publish(A, {"x": body(b"inner")})
    assert desk.current == {"x": b"outer"}
    desk.side.expect(StaleRead, lambda: desk.publish(A, {"x": body(b"inner")}, replacing=first))
    assert desk.current == {"x": b"outer"}
    now = desk.call(desk.guard.read, R)
    desk.side.expect(StaleRead, lambda: desk.publish(A, {"x": body(b"inner")}, replacing=now))
    assert desk.current == {"x": b"inner"}


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_body_is_read_in_the_thread_of_the_caller(desk: Desk) -> None:
    seen = set()

    def body() -> Iterator[bytes]:
        for _ in range(12):
            seen.add(threading.get_ident())
            yield bytes(MIB)

    desk.publish(A, {"x": body()}, claim=True)
    assert seen == {threading.get_ident()}


@pytest.mark.thorough
def test_of_a_big_body_only_a_few_parts_are_in_memory(side: Side) -> None:
    """A store that has taken nothing yet stops the body, instead of having it all read."""

    class Slow(MemoryStore):
        taken = 0

        async def put_async(self, path: str, file: Any, **options: Any) -> Any:
            if not options["use_multipart"]:
                return await super().put_async(path, file, **options)
            async for piece in file:
                await asyncio.sleep(0.005)
                Slow.taken += len(piece)
                ahead.append(made - Slow.taken)
            return {"e_tag": None, "version": None}

    made, ahead = 0, [0]

    def body() -> Iterator[bytes]:
        nonlocal made
        for _ in range(100):
            made += MIB
            yield bytes(MIB)

    desk = Desk(side, Slow())
    desk.publish(A, {"x": body()}, claim=True)
    assert Slow.taken == 100 * MIB
    assert max(ahead) <= SMALL + 3 * MIB


def test_a_discarded_publication_ends_silently(desk: Desk) -> None:
    """As when a loop is closed with it in there."""
    _, plan = desk.guard._plan_publish(A, {"x": iter([b"1"])}, True, ANYTHING)
    assert isinstance(next(plan), Get)
    assert isinstance(plan.send(None), BeginBatch)
    opened = plan.send(None)
    assert isinstance(opened, OpenBody)
    assert isinstance(plan.send(desk.call(desk.guard._perform, opened)), Next)
    plan.close()
    assert desk.current is None


@pytest.mark.thorough
@pytest.mark.parametrize("takes", [False, True], ids=["nothing", "all of it"])
def test_an_upload_without_progress_is_given_up(side: Side, takes: bool) -> None:
    class Stuck(MemoryStore):
        cancelled = 0

        async def put_async(self, path: str, file: Any, **options: Any) -> Any:
            if not options["use_multipart"]:
                return await super().put_async(path, file, **options)
            try:
                if takes:
                    async for _ in file:
                        pass
                return await asyncio.Event().wait()
            finally:
                Stuck.cancelled += 1

    desk = Desk(side, Stuck(), upload_timeout=0.2)
    desk.call(desk.guard.claim, A)
    started = time.monotonic()
    said = desk.refused(GuardUnavailable, A, {"x": [bytes(MIB)] * 20})
    assert ("did not end" if takes else "no progress") in said
    assert time.monotonic() - started < 50, "the default is a minute"
    assert Stuck.cancelled == 1
    assert desk.current is None


# Replacing, carrying over, sharing


def test_replacing_exactly_what_was_read(desk: Desk) -> None:
    first = desk.publish(A, {"x": b"1"}, claim=True, replacing=None)
    second = desk.publish(A, {"x": b"2"}, replacing=first)
    assert second != first
    for stale in (first, None):
        desk.refused(StaleRead, A, {"x": b"3"}, replacing=stale)
    desk.call(desk.guard.delete, A)
    desk.refused(StaleRead, A, {"x": b"3"}, replacing=second)
    third = desk.publish(A, {"x": b"3"}, replacing=None)
    other = desk.publish(Fence("orders:2", 1, "a" * 22), {"x": b""}, claim=True)
    desk.refused(ValueError, A, {"x": b"4"}, replacing=other)
    assert third == desk.call(desk.guard.read, R)


def test_an_entry_is_carried_over_without_a_copy(side: Side) -> None:
    store = FaultyStore()
    desk = Desk(side, store)
    first = desk.publish(A, {"a": b"1", "b": b"2"}, claim=True)
    del store.puts[:]
    second = desk.publish(A, {**first, "renamed": first["a"], "new": b"3"})
    assert len(store.puts) == 3, "one body, the manifest, and the pointer"
    assert second["renamed"] == first["a"]
    assert desk.current == {"a": b"1", "b": b"2", "renamed": b"1", "new": b"3"}


def test_an_entry_is_carried_over_as_it_is_or_not_at_all(desk: Desk) -> None:
    """Another size would make a publication that can never be read."""
    first = desk.publish(A, {"x": b"123"}, claim=True)
    desk.refused(StaleRead, A, {"x": replace(first["x"], size=2)})
    desk.refused(StaleRead, A, {"x": replace(first["x"], key=first["x"].key + "y")})
    assert desk.current == {"x": b"123"}


def test_threads_that_share_a_fence(desk: Desk) -> None:
    """Each publication counts, none is lost without a word; with ``replacing`` exactly one of them wins."""
    desk.call(desk.guard.claim, A)
    desk.side.race([lambda n=n: desk.publish(A, {"x": b"%d" % n}) for n in range(6)])  # type: ignore[misc]
    mark = desk.beside.mark(R)
    assert mark is not None
    assert mark.seq == 6
    base = desk.call(desk.guard.read, R)

    def replace_it(number: int) -> bool:
        try:
            desk.publish(A, {"x": b"%d" % number}, replacing=base)
            return True
        except StaleRead:
            return False

    assert desk.side.race([lambda n=n: replace_it(n) for n in range(6)]).count(True) == 1  # type: ignore[misc]


def test_a_store_with_a_prefix_of_its_own(place: Place) -> None:
    side, server = place
    bucket = server.new_bucket()
    inside = Desk(side, server.store(bucket=bucket, prefix="team/a"), server, prefix="guard/")
    inside.publish(A, {"x": b"1"}, claim=True)
    inside.publish(B, {"x": b"2"}, claim=True)
    inside.call(inside.guard.claim, C)
    assert [each.number for each in inside.call(inside.guard.collect, C)] == [1]
    assert inside.current == {"x": b"2"}
    outside = Desk(side, server.store(bucket=bucket), server, prefix="team/a/guard/")
    assert outside.current == {"x": b"2"}
    assert Desk(side, server.store(bucket=bucket), server).current is None


# Readers of what was collected


def test_reading_collected_data_is_a_stale_read(http: Desk) -> None:
    old = http.publish(A, {"x": b"old"}, claim=True)
    http.publish(B, {"x": b"new"}, claim=True)
    http.call(http.guard.collect, B)
    stale = http.side.expect(StaleRead, http.call(old.open, "x").read)
    assert stale.resource == R
    assert "read it again" in str(stale)
    assert _stream(http, "x") == [b"new"]


def test_open_resolves_again_when_data_were_collected_in_between(side: Side) -> None:
    class Collected(MemoryStore):
        """Just before the data are read, they are replaced and collected."""

        async def get_async(self, path: str, **options: Any) -> Any:
            if "/data/" in path and hold:
                fence = hold.pop()
                beside.publish(fence, {"x": b"by %d" % fence.number}, claim=True)
                beside.collect(fence)
            return await super().get_async(path, **options)

    hold: list[Fence] = []
    inner = Collected()
    desk = Desk(side, inner)
    beside = desk.beside
    desk.publish(A, {"x": b"old"}, claim=True)
    reader: Any = _BesideLoop(inner)
    desk.guard._io.store = reader
    hold.extend([C, B])
    assert _stream(desk, "x") == [b"by 3"]


class _BesideLoop:
    """Runs a store's reads in a thread, as they call another guard, which needs the loop."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def get_async(self, path: str, **options: Any) -> Any:
        return await asyncio.to_thread(lambda: asyncio.run(self._store.get_async(path, **options)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
