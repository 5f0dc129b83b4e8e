"""The bytes of one object as a file that can seek: what it asks for, and that it never gives wrong bytes."""

from __future__ import annotations

import _thread
import asyncio
import io
import os
import random
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any

import pytest
from obstore.exceptions import GenericError

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, StaleRead
from storage_guards.objects import reading
from storage_guards.objects.pointer import Entry
from storage_guards.objects.requests import Open, Read
from tests.support.interrupted_lines import raise_at_line
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.sides import Side

R = "orders:1"
A = Fence(R, 1, "a" * 22)
DATA = bytes(range(256)) * 40
AHEAD = 100


class RangedStore(FaultyStore):
    """It notes which bytes were asked for, and gives them in small pieces. It can lose any of them.

    Attributes:
        asked: the range of each get of data; None: the whole object.
        first: the number of the first step of gets of data that fails.
        steps: how many there were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []
        self.first = 10**9
        self.steps = 0
        self.change: Callable[[bytes], bytes] = bytes

    async def get_async(self, path: str, **options: Any) -> Any:
        found = await super().get_async(path, **options)
        if "/data/" not in path:
            return found
        self.step()
        self.asked.append((options.get("options") or {}).get("range"))
        return Pieces(self, found)

    def step(self) -> None:
        self.steps += 1
        if self.steps >= self.first:
            raise GenericError("the connection broke")


class Pieces:
    def __init__(self, store: RangedStore, found: Any) -> None:
        self._store, self._found = store, found
        self.meta, self.range, self.attributes = found.meta, found.range, found.attributes

    async def stream(self, **_: Any) -> Any:
        data = self._store.change(bytes(await self._found.bytes_async()))
        for start in range(0, len(data), 70):
            self._store.step()
            yield data[start : start + 70]
            yield b""

    async def bytes_async(self) -> Any:
        return await self._found.bytes_async()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FIRST_AHEAD", AHEAD)


@pytest.fixture
def desk(side: Side, small: None) -> Desk:
    desk = Desk(side, RangedStore())
    desk.publish(A, {"x": DATA, "empty": b""}, claim=True)
    return desk


def opened(desk: Desk, name: str = "x") -> Any:
    return desk.call(desk.call(desk.guard.read, R).open, name)


def test_it_asks_for_what_is_read_and_a_little_ahead(desk: Desk) -> None:
    store: Any = desk.store
    stream = opened(desk)
    assert store.asked == []
    assert desk.call(stream.seek, -8, os.SEEK_END) == len(DATA) - 8
    assert desk.call(stream.read) == DATA[-8:]
    assert desk.call(stream.seek, 500) == 500
    assert desk.call(stream.read, 10) == DATA[500:510]
    assert desk.call(stream.read, 60) == DATA[510:570]
    assert desk.call(stream.seek, -65, os.SEEK_CUR) == 505, "has come already"
    assert desk.call(stream.read, 95) == DATA[505:600]
    assert store.asked == [(len(DATA) - 8, len(DATA)), (500, 600)]
    assert desk.call(stream.read, 1) == DATA[600:601], "reads follow one another: twice as much"
    desk.call(stream.seek, 2000)
    assert desk.call(stream.read, 3000) == DATA[2000:5000], "all of it by one request"
    assert store.asked[2:] == [(600, 800), (2000, 5000)]
    assert desk.call(stream.tell) == 5000


def test_all_of_it_is_one_request_without_a_range(desk: Desk) -> None:
    store: Any = desk.store
    assert desk.call(opened(desk).read) == DATA
    assert store.asked == [None]
    assert desk.call(opened(desk, "empty").read) == b""
    assert store.asked == [None], "there is nothing to ask for"


def test_an_iteration_is_one_request_for_the_rest(desk: Desk) -> None:
    stream = opened(desk)
    desk.call(stream.seek, 300)

    async def chunks() -> list[bytes]:
        return [chunk async for chunk in stream]

    got = desk.call(chunks) if desk.side.asynchronous else list(stream)
    assert b"".join(got) == DATA[300:]
    if desk.side.asynchronous:
        assert desk.store.asked == [(300, len(DATA))]
    else:
        assert got == list(io.BytesIO(DATA[300:])), "lines, as of a file"


def test_it_goes_where_a_file_goes(desk: Desk) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose, stream, model = random.Random(seed), opened(desk), io.BytesIO(DATA)
    for _ in range(60):
        offset, whence = choose.choice(
            [(choose.randrange(11000), 0), (choose.randrange(-200, 200), 1), (-choose.randrange(400), 2), (0, 1)]
        )
        if whence == os.SEEK_CUR and model.tell() + offset < 0:
            continue
        assert desk.call(stream.seek, offset, whence) == model.seek(offset, whence)
        size = choose.choice([0, 1, 5, 80, 300, 2000])
        assert desk.call(stream.read, size) == model.read(size)
        assert desk.call(stream.tell) == model.tell()


def test_a_place_that_cannot_be_is_refused(desk: Desk) -> None:
    stream = opened(desk)
    desk.side.expect(ValueError, stream.seek, -1)
    desk.side.expect(ValueError, stream.seek, 0, 7)
    assert desk.call(stream.tell) == 0


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_libraries_take_it_for_a_file(desk: Desk) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", "a\nb\n")
        archive.writestr("b.bin", DATA)
    desk.publish(A, {"zip": packed.getvalue(), "lines": b"1\n2\n\n3"})
    with opened(desk, "zip") as stream, zipfile.ZipFile(stream) as archive:
        assert archive.read("b.bin") == DATA
        assert archive.read("a.txt") == b"a\nb\n"
    with io.TextIOWrapper(opened(desk, "lines")) as text:
        assert list(text) == ["1\n", "2\n", "\n", "3"]
    stream = opened(desk, "lines")
    assert issubclass(type(stream), io.BufferedIOBase)
    assert (stream.readable(), stream.seekable(), stream.writable(), stream.mode) == (True, True, False, "rb")
    assert (stream.peek(), stream.read1(2), stream.readline(), stream.size) == (b"1\n2\n\n3", b"1\n", b"2\n", 6)
    room = bytearray(9)
    assert (stream.readinto(room), bytes(room)) == (2, b"\n3" + bytes(7))
    stream.close()
    assert stream.closed


def test_a_stream_that_read_before_can_be_published_again(desk: Desk) -> None:
    desk.publish(A, {"copied": opened(desk)})
    assert desk.current == {"copied": DATA}


# Several threads or tasks


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_two_reads_at_the_same_time_are_refused(desk: Desk) -> None:
    async def read_twice() -> Any:
        stream = await (await desk.guard.read(R)).open("x")
        return await asyncio.gather(stream.read(5), stream.read(5), stream.seek(7), return_exceptions=True)

    first, *others = desk.call(read_twice)
    assert first == DATA[:5]
    assert ["under way" in str(other) for other in others] == [True, True]


def in_foreign_thread(work: Callable[[], Any]) -> Any:
    """Call it in a thread that Python has not started, as far as ``threading`` knows."""
    result: list[Any] = []
    ended = threading.Event()

    def run() -> None:
        try:
            result.append(work())
        finally:
            ended.set()

    _thread.start_new_thread(run, ())
    assert ended.wait(60)
    return result[0]


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_foreign_thread_reads_where_it_sought(desk: Desk) -> None:
    """The four calls of two threads of DuckDB, in the order that would give one the bytes of the other."""
    stream = opened(desk)
    stream.seek(100)
    assert in_foreign_thread(lambda: (stream.seek(500), stream.read(10))[1]) == DATA[500:510]
    assert stream.read(10) == DATA[100:110]
    sought, read = threading.Event(), threading.Event()

    def seek_then_read() -> bytes:
        stream.seek(500)
        sought.set()
        assert read.wait(60)
        return bytes(stream.read(10))

    with ThreadPoolExecutor(1) as pool:
        foreign = pool.submit(in_foreign_thread, seek_then_read)
        assert sought.wait(60)
        stream.seek(100)
        read.set()
        assert foreign.result() == DATA[500:510]
    assert stream.read(10) == DATA[100:110]


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_threads_of_python_share_one_position(desk: Desk) -> None:
    """As of any file: a pool of threads may run each call in another one."""
    stream = opened(desk)
    stream.seek(0, os.SEEK_END)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(stream.seek, 300).result() == 300
        assert stream.read(10) == DATA[300:310]
        assert pool.submit(stream.read, 10).result() == DATA[310:320]
        assert in_foreign_thread(lambda: stream.read(10)) == DATA[320:330]
        stream.seek(400)
        assert in_foreign_thread(lambda: stream.read(10)) == DATA[400:410]
        assert in_foreign_thread(lambda: (stream.seek(600), stream.read(10))[1]) == DATA[600:610]
        assert stream.read(10) == DATA[610:620], "and not again where it sought, because that was read"


# What is not there, or is something else


def test_of_data_that_were_collected_meanwhile_nothing_is_read(desk: Desk) -> None:
    current = desk.call(desk.guard.read, R)
    stream = opened(desk)
    assert desk.call(stream.read, 70) == DATA[:70]
    desk.store.inner.delete("fencing/orders=3A1/" + current["x"].key)
    assert desk.call(stream.read, 30) == DATA[70:100], "its bytes were on their way"
    for _ in range(2):
        assert desk.side.expect(StaleRead, stream.read, 30).resource == R
    desk.call(stream.seek, 1000)
    desk.side.expect(StaleRead, stream.read, 1)


@pytest.mark.parametrize("other", [DATA[:-1], DATA + b"x"])
def test_a_part_of_another_object_is_refused(desk: Desk, other: bytes) -> None:
    """Its length is that of the part, so only the size of the whole tells."""
    stream = opened(desk)
    desk.store.inner.put("fencing/orders=3A1/" + desk.call(desk.guard.read, R)["x"].key, other)
    desk.call(stream.seek, 500)
    assert "publish again" in str(desk.side.expect(GuardNotEnforceable, stream.read, 10))


@pytest.mark.parametrize("place", [0, 500, len(DATA) - 1])
def test_the_end_of_other_bytes_never_comes(desk: Desk, place: int) -> None:
    """Also where the store was asked for a few bytes at a time, and asked again."""
    key = "fencing/orders=3A1/" + desk.call(desk.guard.read, R)["x"].key
    desk.store.inner.put(key, DATA[:place] + b"?" + DATA[place + 1 :])
    stream = opened(desk)
    assert desk.call(stream.read, 700) == desk.store.inner.get(key).bytes()[:700]
    desk.call(stream.seek, 300)
    assert "publish again" in str(desk.side.expect(GuardNotEnforceable, stream.read))
    assert "open it again" in str(desk.side.expect(GuardUnavailable, stream.read)), "it does not go on"
    desk.call(stream.seek, 0)
    assert "publish again" in str(desk.side.expect(GuardNotEnforceable, stream.read))


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x"], ids=["less", "more"])
@pytest.mark.parametrize("place", [0, 500])
def test_less_or_more_than_asked_for_is_refused(desk: Desk, change: Any, place: int) -> None:
    store: Any = desk.store
    stream = opened(desk)
    desk.call(stream.seek, place)
    store.change = change
    assert "broke off" in str(desk.side.expect(GuardUnavailable, stream.read, 1000))


def test_other_bytes_than_asked_for_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pieces, "range", property(lambda self: (0, 100), lambda self, value: None), raising=False)
    stream = opened(desk)
    desk.call(stream.seek, 500)
    assert "instead of (500, 600)" in str(desk.side.expect(GuardUnavailable, stream.read, 10))


# Errors in between: nothing is left out, and nothing comes twice


def test_whichever_step_fails_the_bytes_are_right_or_there_are_none(desk: Desk) -> None:
    store: Any = desk.store
    for first in count(1):
        store.steps, store.first = 0, first
        stream, got = opened(desk), []
        desk.call(stream.seek, 500)
        try:
            for size in (10, 100, 400):
                got.append(desk.call(stream.read, size))
        except GuardUnavailable as error:
            assert "open it again" in str(error)
            store.first = 10**9
            assert "open it again" in str(desk.side.expect(GuardUnavailable, stream.read, 10)), "it does not go on"
            desk.call(stream.seek, 510)
            assert desk.call(stream.read, 90) == DATA[510:600]
        else:
            break
        finally:
            assert b"".join(got) == DATA[500 : 500 + sum(map(len, got))]
    assert first > 5


class Interruption(Exception):
    pass


@pytest.mark.parametrize("error", [Interruption, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("begin", [0, 500])
def test_an_interruption_at_any_line_leaves_out_no_byte(error: type[BaseException], begin: int) -> None:
    """The plan alone is interrupted: the loop of requests has tests of its own."""
    for line in count(1):
        stream = reading.Reading("key", Entry("key", len(DATA), sha256(DATA).hexdigest()), 1.0, R)
        stream.seek(begin)
        got: list[bytes] = []
        read = partial(read_twice, stream, got)
        try:
            is_over = not raise_at_line(line, error("now"), ("objects/reading.py",), read)[1]
        except (Interruption, KeyboardInterrupt, asyncio.CancelledError):
            is_over = False
        if is_over:
            break
        place = begin + sum(map(len, got))
        assert b"".join(got) == DATA[begin:place]
        try:
            rest = scripted(stream.plan_read(-1))
        except GuardUnavailable:
            stream.seek(place)
            rest = scripted(stream.plan_read(-1))
        assert rest == DATA[place:]
    assert line > 50


def read_twice(stream: reading.Reading, got: list[bytes]) -> None:
    for size in (10, 150):
        got.append(scripted(stream.plan_read(size)))


def scripted(plan: Any) -> bytes:
    """Perform a plan on data in memory, piece by piece."""
    reply: Any = None
    while True:
        try:
            request = plan.send(reply)
        except StopIteration as stop:
            return bytes(stop.value)
        match request:
            case Open():
                data = DATA[slice(*request.part)] if request.part else DATA
                reply = iter([data[at : at + 70] for at in range(0, len(data), 70)])
            case Read():
                reply = next(request.stream, None)  # type: ignore[call-overload]
            case _:
                raise AssertionError(request)
