"""Bodies, and how they get to the store with bounded memory and bounded waits.

The caller's own thread or task reads the body and hands its pieces over, one at a time: what belongs to a thread stays
in it, and a body that is slow keeps nobody else waiting. A few parts of a multipart upload are under way at any time,
never the whole body. An upload that fails or is given up leaves no object, at worst unfinished parts: have the bucket's
lifecycle rules delete those.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from fencing.kernel.effects import Plan
from storage_guards.objects.requests import Await, Close, Lost, Next, Put

__all__ = ["check_body", "pieces", "pieces_async", "upload"]

PART = 8 * 2**20
"""Bytes of a part. A store takes 10,000 parts (S3), so 80 GB of a body whose size is not known."""

MOST_PARTS = 9_000
PARTS_AT_ONCE = 3
SMALL = PART
"""A body up to this size is one put."""

PIECE = 2**20
"""Bytes of a file that are read, and of small chunks that are gathered, before they are handed over."""

_ABORT_SECONDS = 5.0


def upload(
    key: str, body: Any, progress: Callable[[int, int | None], object] | None, seconds: float, asynchronous: bool
) -> Plan[int]:
    """Store a body under a key that nobody else writes; its size.

    Args:
        progress: called with the bytes handed over so far, and all of them where that is known.
        seconds: how long the store may take without progress.
        asynchronous: whether the plan is run in a task.

    Raises:
        Lost: the store did not take it all.
    """
    total = _size(body)
    source = pieces_async(body) if asynchronous else pieces(body)
    parts = _Multipart(key, total, seconds)

    def report() -> None:
        if progress is not None:
            progress(sent, total)

    try:
        sent, head = 0, []
        while sent <= SMALL and (piece := (yield Next(source))) is not None:
            head.append(piece)
            sent += len(piece)
        if sent <= SMALL:
            yield Put(key, b"".join(head), None, seconds)
            report()
        else:
            sent, head = 0, head[::-1]
            while (piece := head.pop() if head else (yield Next(source))) is not None:
                yield Await(lambda io, piece=piece: parts.send(io, piece), seconds)  # type: ignore[misc]
                sent += len(piece)
                report()
            yield Await(parts.finish, 2 * seconds)
    except GeneratorExit:  # thrown away: nothing can be done any more
        raise
    except BaseException:
        yield Await(lambda _: parts.abort(), _ABORT_SECONDS)
        yield Close(source)
        raise
    yield Close(source)
    return sent


def check_body(name: str, body: object, *, asynchronous: bool) -> None:
    """TypeError where ``body`` cannot be one."""
    if isinstance(body, str):
        raise TypeError(f"the body of {name!r} is a str: encode text, or pass a pathlib.Path")
    if isinstance(body, AsyncIterable) and not isinstance(body, Iterable) and not asynchronous:
        raise TypeError(f"the body of {name!r} is an async iterable; use AsyncObjectStoreGuard")
    if isinstance(body, io.TextIOBase):
        raise TypeError(f"the body of {name!r} is a text file; open it with 'rb'")
    if _view(body) is None and not isinstance(body, (os.PathLike, Iterable, AsyncIterable)) and not _is_file(body):
        raise TypeError(
            f"the body of {name!r} is bytes, a path, a binary file or an iterable of bytes, not {type(body).__name__}"
        )
    if isinstance(body, dict):
        raise TypeError(f"the body of {name!r} is a dict; encode it")


def _size(body: Any) -> int | None:
    """The size of a body where it is known before it is read."""
    view = _view(body)
    if view is not None:
        return view.nbytes
    if isinstance(body, os.PathLike):
        return os.stat(body).st_size
    return None


def pieces(body: Any) -> Iterator[bytes | memoryview]:
    """A body in pieces of about a mebibyte."""
    view = _view(body)
    if view is not None:
        for start in range(0, view.nbytes, PIECE):
            yield view[start : start + PIECE]
    elif isinstance(body, os.PathLike):
        with open(body, "rb") as file:
            yield from _read(file)
    elif _is_file(body):
        yield from _read(body)
    else:
        gathered = bytearray()
        for chunk in body:
            if piece := _gather(gathered, chunk):
                yield piece
        if gathered:
            yield bytes(gathered)


async def pieces_async(body: Any) -> AsyncIterator[bytes | memoryview]:
    """As :func:`pieces`; files are read in a thread, a sync iterable in this one."""
    if isinstance(body, os.PathLike):
        file = await asyncio.to_thread(open, body, "rb")
        try:
            async for piece in pieces_async(file):
                yield piece
        finally:
            await asyncio.to_thread(file.close)
    elif _is_file(body) and not isinstance(body, AsyncIterable):
        while chunk := await asyncio.to_thread(body.read, PIECE):
            yield bytes(_bytes(chunk))
    elif isinstance(body, AsyncIterable):
        gathered = bytearray()
        async for chunk in body:
            if piece := _gather(gathered, chunk):
                yield piece
        if gathered:
            yield bytes(gathered)
    else:
        for piece in pieces(body):
            yield piece


def _gather(gathered: bytearray, chunk: Any) -> bytes:
    """Add a chunk; all that has gathered, where it is enough for a piece."""
    gathered += _bytes(chunk)
    if len(gathered) < PIECE:
        return b""
    piece = bytes(gathered)
    gathered.clear()
    return piece


def _read(file: Any) -> Iterator[bytes]:
    while chunk := file.read(PIECE):
        yield bytes(_bytes(chunk))


def _is_file(body: object) -> bool:
    return callable(getattr(body, "read", None))


def _view(body: Any) -> memoryview | None:
    try:
        return memoryview(body).cast("B")
    except TypeError:
        return None


def _bytes(chunk: Any) -> memoryview:
    view = _view(chunk)
    if view is None:
        raise TypeError(f"a body gives bytes, not {type(chunk).__name__}")
    return view


class _Multipart:
    """One multipart upload. All its methods run on one event loop.

    Args:
        seconds: how long the store may take without progress.
    """

    def __init__(self, key: str, size: int | None, seconds: float) -> None:
        self._key = key
        self._part = max(PART, (size or 0) // MOST_PARTS + 1)
        self._seconds = seconds
        self._upload: asyncio.Future[Any] | None = None

    async def send(self, io: Any, piece: bytes | memoryview | None) -> None:
        """Hand over a piece, when there is room for it; None: that was all.

        Raises:
            Lost: the store made no progress, or the upload broke off.
        """
        if self._upload is None:
            self._pieces: asyncio.Queue[bytes | memoryview | BaseException | None] = asyncio.Queue(1)
            self._upload = asyncio.ensure_future(self._put(io))
        room = asyncio.ensure_future(self._pieces.put(piece))
        try:
            await asyncio.wait([room, self._upload], timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._upload.done():
                self._upload.result()
                if piece is not None:
                    raise Lost(f"storing {self._key} ended early")
            elif not room.done():
                raise Lost(f"storing {self._key} made no progress for {self._seconds:.3g} s")
        finally:
            room.cancel()

    async def finish(self, io: Any) -> None:
        """Hand over the end, and wait until the store has it all."""
        await self.send(io, None)
        assert self._upload is not None
        await asyncio.wait([self._upload], timeout=self._seconds)
        if not self._upload.done():
            raise Lost(f"storing {self._key} did not end within {self._seconds:.3g} s of its last byte")
        self._upload.result()

    async def abort(self) -> None:
        """Give it up: obstore has the store forget the parts, if there is time."""
        if self._upload is None or self._upload.done():
            if self._upload is not None and not self._upload.cancelled():
                self._upload.exception()  # looked at, so that asyncio does not report it
            return
        while not self._pieces.empty():
            self._pieces.get_nowait()
        self._pieces.put_nowait(_GivenUp())
        try:
            await asyncio.wait([self._upload], timeout=min(_ABORT_SECONDS, self._seconds))
        finally:
            if not self._upload.done():
                self._upload.cancel()
            elif not self._upload.cancelled():
                self._upload.exception()

    async def _put(self, io: Any) -> None:
        put = io.store.put_async(
            self._key, self._handed_over(), use_multipart=True, chunk_size=self._part, max_concurrency=PARTS_AT_ONCE
        )
        try:
            # What bounds it is each wait in send() and finish().
            await io.bounded(put, None, f"storing {self._key}")
        except FileNotFoundError as error:
            raise Lost(f"storing {self._key}: {error}") from error

    async def _handed_over(self) -> AsyncIterator[bytes | memoryview]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece


class _GivenUp(Exception):
    pass
