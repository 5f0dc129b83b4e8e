"""The bodies of a publication: what a body may be, and how it is read, piece by piece.

The caller's own thread or task reads a body. So objects that belong to a thread stay in it, and a slow body blocks no
other caller. The whole body is never in memory, unless the caller has it there.

A publication that fails may be repeated with the same bodies. A repetition must never publish the rest of a body, or
nothing. So a file is put back to where its reading began, and an iterator that was read is refused.
"""

from __future__ import annotations

import asyncio
import io
import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from typing import Any, NoReturn

from storage_guards.objects.pointer import Entry
from storage_guards.objects.upload import Upload

PIECE = 2**20
"""Bytes of one piece: so many are read from a file, or gathered from small chunks."""

MOST_REMEMBERED = 1024
"""How many bodies that were read are remembered. Most are gone by then."""

_CONSUMED = "consumed"


class Body:
    """One body of one publication.

    Raises:
        TypeError: ``source`` cannot be a body.
        ValueError: ``source`` was read before, so it would give only a rest, or nothing.
    """

    def __init__(self, name: str, source: Any, *, asynchronous: bool) -> None:
        given = source if isinstance(source, Upload) else Upload(source)
        source = given.body
        check_body(name, source, asynchronous=asynchronous)
        self.attributes: Mapping[str, str] = given.attributes
        self.tags = given.tags
        self._name = name
        self._source = source
        self._is_file = (
            is_file(source) and _view(source) is None and not (asynchronous and isinstance(source, AsyncIterable))
        )
        self._start: int | None = None
        self._size: int | None = None
        self._over = False
        self._gathered: Gathered | None = None
        self._gave_before = False  # to an earlier publication, which succeeded
        self._reading = threading.Lock()
        if _view(source) is not None or isinstance(source, os.PathLike):
            return
        if _read_before.get(source) == _CONSUMED or _is_finished(source):
            self._refuse_consumed()
        if self._is_file:
            self._start, self._size, at_end = _position(source)
            if at_end:
                raise ValueError(
                    f"the body of {name!r} is a file at its end, with nothing left to read; call seek(0) on it first"
                )

    @property
    def size(self) -> int | None:
        """The bytes of the body where that is known before it is read."""
        return _size(self._source) if not self.must_be_restored else self._size

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Read the body in pieces of about a mebibyte."""
        view = _view(self._source)
        if view is not None:
            for start in range(0, view.nbytes, PIECE):
                yield view[start : start + PIECE]
        elif isinstance(self._source, os.PathLike):
            received = 0
            with open(self._source, "rb") as file:
                self._size = os.fstat(file.fileno()).st_size
                while chunk := _chunk(file.read(PIECE)):
                    received += len(chunk)
                    yield chunk
            self._check_whole(received)
        elif self._is_file:
            self._begin()
            received = 0
            while chunk := self._read():
                received += len(chunk)
                yield chunk
            self._check_whole(received)
        else:
            self._begin()
            gathered = self._gathered = Gathered()
            for chunk in self._source:
                if piece := gathered.add(chunk):
                    yield piece
            yield from self._last(gathered)

    async def pieces_async(self) -> AsyncIterator[bytes | memoryview]:
        """Read the body as :meth:`pieces` does: files in a thread, a sync iterable in this task."""
        if isinstance(self._source, os.PathLike):
            received = 0
            file = await asyncio.to_thread(open, self._source, "rb")
            try:
                self._size = os.fstat(file.fileno()).st_size
                while chunk := _chunk(await asyncio.to_thread(file.read, PIECE)):
                    received += len(chunk)
                    yield chunk
            finally:
                await asyncio.to_thread(file.close)
            self._check_whole(received)
        elif self._is_file:
            self._begin()
            received = 0
            while chunk := await asyncio.to_thread(self._read):
                received += len(chunk)
                yield chunk
            self._check_whole(received)
        elif isinstance(self._source, AsyncIterable):
            self._begin()
            gathered = self._gathered = Gathered()
            async for chunk in self._source:
                if piece := gathered.add(chunk):
                    yield piece
            for piece in self._last(gathered):
                yield piece
        else:
            for each in self.pieces():
                yield each

    def restore(self) -> None:
        """Put a file back to where its reading began. A read that is under way in another thread does it afterwards."""
        self._over = True
        if self._start is not None and _read_before.get(self._source) == _CONSUMED:
            self._seek_back()
        elif self._may_be_read_again and self._gathered is not None and not self._gathered.gave:
            _read_before.forget(self._source)

    def finish(self) -> None:
        """Note that the publication has succeeded."""
        if self._start is not None:
            _read_before.forget(self._source)  # it is at its end, and refused there
        elif self._may_be_read_again and self._gathered is not None:
            _read_before.put(self._source, "")

    @property
    def may_be_compared(self) -> bool:
        """Whether it can be read twice, and nothing but its bytes would be stored."""
        is_lasting = _view(self._source) is not None or isinstance(self._source, os.PathLike) or self._start is not None
        return is_lasting and not self.attributes and not self.tags

    @property
    def must_be_restored(self) -> bool:
        """Whether a failure, or a success, changes what may be read of it later."""
        return _view(self._source) is None and not isinstance(self._source, os.PathLike)

    @property
    def _may_be_read_again(self) -> bool:
        """Whether it is an iterable that can begin anew, such as an object with an ``__iter__`` of its own.

        Nobody knows: it may also go on where it was. So after a failure it is refused, as an iterator is.
        """
        return not self._is_file and not isinstance(self._source, (Iterator, AsyncIterator, Collection))

    def _begin(self) -> None:
        if self._start is not None:
            _read_before.put(self._source, _CONSUMED)  # until it is put back
            with self._reading:
                self._source.seek(self._start)  # another name of the publication may have the same file
        elif not isinstance(self._source, Collection):
            before = _read_before.get(self._source)
            if before == _CONSUMED:  # for another name of the same publication
                self._refuse_consumed()
            self._gave_before = before is not None
            _read_before.put(self._source, _CONSUMED)

    def _read(self) -> bytes:
        try:
            with self._reading:
                return _chunk(self._source.read(PIECE))
        finally:
            if self._over:  # restored meanwhile
                self._seek_back()

    def _seek_back(self) -> None:
        if self._start is None or not self._reading.acquire(blocking=False):
            return  # the read that is under way does it when it ends
        try:
            self._source.seek(self._start)
            _read_before.forget(self._source)
        except (OSError, ValueError):  # it was closed, for example: it stays refused
            pass
        finally:
            self._reading.release()

    def _check_whole(self, received: int) -> None:
        if self._size is not None and received < self._size:
            raise ValueError(
                f"the body of {self._name!r} gave {received} bytes of {self._size}: was its file truncated, or read by "
                f"others, meanwhile? Open it again"
            )

    def _last(self, gathered: Gathered) -> Iterator[bytes]:
        if gathered.rest:
            yield bytes(gathered.rest)
        elif not gathered.gave and self._gave_before:
            self._refuse_consumed()  # it gave something before, and nothing now

    def _refuse_consumed(self) -> NoReturn:
        raise ValueError(
            f"the body of {self._name!r} was read before, so it would give only a rest, or nothing: pass a new "
            f"{type(self._source).__name__}; or bytes, a path or a seekable file, which can be read again"
        )


class Bodies:
    """The bodies of one publication, made of what the caller gives.

    Attributes:
        read: those that a failure, or a success, concerns. They may be many, so the others are not kept.
    """

    def __init__(self, *, asynchronous: bool, has_tags: bool) -> None:
        self.read: list[Body] = []
        self._asynchronous = asynchronous
        self._has_tags = has_tags

    def take(self, name: str, given: Any) -> Body:
        """Return a body. Raise TypeError or ValueError where it cannot be one."""
        body = given if isinstance(given, Body) else Body(name, given, asynchronous=self._asynchronous)
        if body.tags and not self._has_tags:
            raise ValueError(f"{name!r} has tags, but Google Cloud Storage has none; use metadata")
        if body is not given and body.must_be_restored:
            self.read.append(body)
        return body

    def checked(self, name: str, given: Any) -> Any:
        """Check a body that will be taken later. Return what to take then: a body only where that must remember
        something, because there may be many."""
        body = self.take(name, given)
        return body if body.must_be_restored else given


@contextmanager
def restored(bodies: Iterable[Body]) -> Iterator[None]:
    """Run a publication. Where it fails, make its bodies fit for a repetition, or refused there."""
    try:
        yield
    except BaseException:
        for body in bodies:
            body.restore()
        raise
    for body in bodies:
        body.finish()


def check_body(name: str, body: object, *, asynchronous: bool) -> None:
    """Raise TypeError where ``body`` cannot be a body."""
    if isinstance(body, str):
        raise TypeError(f"the body of {name!r} is a str: encode text, or pass a pathlib.Path")
    if isinstance(body, AsyncIterable) and not isinstance(body, Iterable) and not asynchronous:
        raise TypeError(f"the body of {name!r} is an async iterable, and this guard is sync; use AsyncObjectStoreGuard")
    if isinstance(body, io.TextIOBase):
        raise TypeError(f"the body of {name!r} is a text file; open it with 'rb'")
    if _view(body) is None and not isinstance(body, (os.PathLike, Iterable, AsyncIterable)) and not is_file(body):
        raise TypeError(
            f"the body of {name!r} is bytes, a path, a binary file or an iterable of bytes, not {type(body).__name__}"
        )
    if isinstance(body, dict):
        raise TypeError(f"the body of {name!r} is a dict; encode it")


def read_once(source: object, label: str) -> None:
    """Note that ``source`` is read now. Raise ValueError where it was read before."""
    if _read_before.get(source) is not None or _is_finished(source):
        raise ValueError(
            f"{label} was read before, so it would give only a rest, or nothing: pass a new one, or a list"
        )
    _read_before.put(source, _CONSUMED)


def total_of(bodies: object, most: float = math.inf) -> int | None:
    """Return the bytes of all bodies of a mapping together. None: they are not known before they are read.

    Args:
        most: where it is more, any greater number is returned.
    """
    if not isinstance(bodies, Mapping):
        return None
    total = 0
    for given in bodies.values():
        source = given.body if isinstance(given, Upload) else given
        try:
            size = 0 if isinstance(source, Entry) else source.size if isinstance(source, Body) else _size(source)
        except OSError:  # the upload raises it
            return None
        if size is None:
            return None
        total += size
        if total > most:
            break
    return total


def _size(source: Any) -> int | None:
    view = _view(source)
    if view is not None:
        return view.nbytes
    if isinstance(source, os.PathLike):
        return os.stat(source).st_size
    return _position(source)[1] if is_file(source) else None


def is_file(body: object) -> bool:
    return callable(getattr(body, "read", None))


class Gathered:
    """Chunks of an iterable, until they are enough for a piece."""

    def __init__(self) -> None:
        self.rest = bytearray()
        self.gave = False

    def add(self, chunk: Any) -> bytes:
        """Add a chunk. Return all that has gathered once it is enough for a piece."""
        self.rest += as_bytes(chunk)
        self.gave = self.gave or bool(self.rest)
        if len(self.rest) < PIECE:
            return b""
        piece = bytes(self.rest)
        self.rest.clear()
        return piece


class _ReadBefore:
    """What is known of bodies that were read, by identity. Weak where that is possible, and bounded."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[Callable[[], object], str]] = OrderedDict()

    def get(self, body: object) -> str | None:
        """Return ``_CONSUMED``; "": it was read by a publication that succeeded; None: it was not read."""
        found = self._known.get(id(body))
        return None if found is None or found[0]() is not body else found[1]

    def put(self, body: object, state: str) -> None:
        key = id(body)
        try:
            alive: Callable[[], object] = weakref.ref(body, lambda gone: self._drop(key, gone))
        except TypeError:  # a list's iterator, for example
            alive = lambda: body  # noqa: E731 - referenced, so that no other object gets its id
        self._known.pop(key, None)  # and not move_to_end: another thread may remove it in between
        self._known[key] = alive, state
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)

    def forget(self, body: object) -> None:
        self._known.pop(id(body), None)

    def _drop(self, key: int, gone: object) -> None:
        found = self._known.get(key)
        if found is not None and found[0] is gone:
            self._known.pop(key, None)


_read_before = _ReadBefore()


def _position(file: Any) -> tuple[int | None, int | None, bool]:
    """Return where a file is; how many bytes follow; and whether it is at the end of bytes that were read.

    None instead of the first: it cannot be put back. None instead of the second: it cannot be counted without reading.
    """
    try:
        if not getattr(file, "seekable", lambda: True)() or type(start := file.tell()) is not int:
            return None, None, False
        size = None
        if isinstance(file, io.BytesIO) or isinstance(getattr(file, "raw", file), io.FileIO):
            size = max(0, file.seek(0, os.SEEK_END) - start)
        at_end = start > 0 and not (file.read(1) if size is None else size)
        file.seek(start)
    except (OSError, ValueError, AttributeError, TypeError):
        return None, None, False
    return start, size, bool(at_end)


def _is_finished(body: Any) -> bool:
    """Return whether a generator has come to its end."""
    if isinstance(body, Generator):
        return getattr(body, "gi_frame", body) is None
    return getattr(body, "ag_frame", body) is None


def _view(body: Any) -> memoryview | None:
    try:
        return memoryview(body).cast("B")
    except TypeError:
        return None


def _chunk(read: Any) -> bytes:
    return bytes(as_bytes(read))


def as_bytes(chunk: Any) -> memoryview:
    """Return the bytes of a chunk. Raise TypeError where it has none."""
    view = _view(chunk)
    if view is None:
        raise TypeError(f"bytes are needed, not {type(chunk).__name__}; encode text")
    return view
