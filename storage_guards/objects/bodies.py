"""The bodies of a publication: what a body may be, and how it is read, piece by piece.

The caller's own thread or task reads a body. So objects that belong to a thread stay in it, and a slow body blocks no
other caller. The whole body is never in memory, unless the caller has it there.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any

PIECE = 2**20
"""Bytes of one piece: so many are read from a file, or gathered from small chunks."""


def check_body(name: str, body: object, *, asynchronous: bool) -> None:
    """Raise TypeError where ``body`` cannot be a body."""
    if isinstance(body, str):
        raise TypeError(f"the body of {name!r} is a str: encode text, or pass a pathlib.Path")
    if isinstance(body, AsyncIterable) and not isinstance(body, Iterable) and not asynchronous:
        raise TypeError(f"the body of {name!r} is an async iterable, and this guard is sync; use AsyncObjectStoreGuard")
    if isinstance(body, io.TextIOBase):
        raise TypeError(f"the body of {name!r} is a text file; open it with 'rb'")
    if _view(body) is None and not isinstance(body, (os.PathLike, Iterable, AsyncIterable)) and not _is_file(body):
        raise TypeError(
            f"the body of {name!r} is bytes, a path, a binary file or an iterable of bytes, not {type(body).__name__}"
        )
    if isinstance(body, dict):
        raise TypeError(f"the body of {name!r} is a dict; encode it")


def size_of(body: Any) -> int | None:
    """Return the size of a body where it is known before it is read."""
    view = _view(body)
    if view is not None:
        return view.nbytes
    if isinstance(body, os.PathLike):
        return os.stat(body).st_size
    return None


def read_pieces(body: Any) -> Iterator[bytes | memoryview]:
    """Read a body in pieces of about a mebibyte."""
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


async def read_pieces_async(body: Any) -> AsyncIterator[bytes | memoryview]:
    """Read a body in pieces as :func:`read_pieces` does: files in a thread, a sync iterable in this task."""
    if isinstance(body, os.PathLike):
        file = await asyncio.to_thread(open, body, "rb")
        try:
            async for piece in read_pieces_async(file):
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
        for piece in read_pieces(body):
            yield piece


def _gather(gathered: bytearray, chunk: Any) -> bytes:
    """Add a chunk. Return all that has gathered once it is enough for a piece."""
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
        raise TypeError(f"a body gave a {type(chunk).__name__}; it must give bytes")
    return view
