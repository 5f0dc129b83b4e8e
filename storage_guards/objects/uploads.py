"""The uploads of one publication: each object goes to a key that no other upload writes, several at a time.

The bytes of an object are handed over piece by piece, by a body that is read or by a writer. Up to ``SMALL`` bytes they
are gathered, and sent by one put in a batch. From there on they are sent in parts, of which a few are under way at a
time. So the memory that each open object takes is bounded.

An upload that fails or is aborted leaves no object, at worst unfinished parts: have the bucket's lifecycle rules delete
those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fencing.kernel.effects import Plan
from storage_guards.objects.batch import ABORT_SECONDS
from storage_guards.objects.bodies import Body
from storage_guards.objects.requests import (
    Abort,
    Add,
    Begin,
    BeginBatch,
    Close,
    Finish,
    Next,
    OpenBody,
    Progressed,
    Put,
    Send,
)
from storage_guards.objects.upload import NO_TEXTS

PART = 8 * 2**20
"""Bytes of a part. S3 takes 10,000 parts, so 80 GB of a body whose size is not known."""

MOST_PARTS = 9_000

SMALL = PART
"""A body up to this size is one put."""


class Uploads:
    """What is under way of one publication. Several threads or tasks may share it, each with objects of its own.

    Args:
        seconds: how long the store may make no progress.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._batch: object = None

    def plan_begin(self) -> Plan[None]:
        """Be ready for objects. Nothing is sent yet."""
        self._batch = yield BeginBatch(self.seconds)

    def plan_store(self, key: str, body: Body, name: str | None = None) -> Plan[tuple[int, str]]:
        """Read a body to its end, and store it. A small one may still be under way then: see :meth:`plan_finish`.

        Args:
            name: for the reports of progress. None: there are none.

        Returns:
            Its size, and the SHA-256 of what was handed over.

        Raises:
            Lost: the store did not take this one, or one before it.
        """
        pieces, total = yield OpenBody(body)
        coming = Incoming(self, key, name, total, body.attributes, body.tags)
        try:
            while (piece := (yield Next(pieces))) is not None:
                yield from coming.plan_take(piece)
            yield from coming.plan_end()
            yield Close(pieces)
        except GeneratorExit:  # the plan was dropped: no request is possible any more
            raise
        except BaseException:
            yield from coming.plan_abort()
            yield Close(pieces)
            raise
        return coming.size, coming.sha256

    def plan_put(self, put: Put) -> Plan[None]:
        """Store a small object, together with others."""
        yield Add(self._batch, put)

    def plan_finish(self) -> Plan[None]:
        """Wait until the store has all small objects that were handed over. Raise Lost where it did not take one."""
        yield Finish(self._batch, 2 * self.seconds)

    def plan_abort(self) -> Plan[None]:
        """Give up the small objects that are under way. None of them begins any more."""
        if self._batch is not None:
            yield Abort(self._batch, min(ABORT_SECONDS, self.seconds))


class Incoming:
    """One object whose bytes come in pieces.

    Args:
        name: for the reports of progress. None: there are none.
        total: its size where that is known.

    Attributes:
        size: the bytes so far.
    """

    def __init__(
        self,
        uploads: Uploads,
        key: str,
        name: str | None = None,
        total: int | None = None,
        attributes: Mapping[str, str] = NO_TEXTS,
        tags: Mapping[str, str] = NO_TEXTS,
    ) -> None:
        self.size = 0
        self._uploads = uploads
        self._key = key
        self._name = name
        self._total = total
        self._attributes, self._tags = attributes, tags
        self._head: list[bytes] = []
        self._upload: object = None
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of the bytes so far."""
        return self._hash.hexdigest()

    def plan_take(self, piece: bytes | memoryview) -> Plan[None]:
        """Take the next bytes."""
        piece = bytes(piece)  # a copy, unless it is bytes: what is hashed is what is sent
        self._hash.update(piece)
        self.size += len(piece)
        if self._upload is not None:
            yield from self._plan_send(piece, self.size)
            return
        self._head.append(piece)
        if self.size <= SMALL:
            return
        yield from self._uploads.plan_finish()  # a slow connection has enough to do with one
        part = max(PART, (self._total or 0) // MOST_PARTS + 1)
        self._upload = yield Begin(self._key, part, self._uploads.seconds, self._attributes, self._tags)
        head, self._head, sent = self._head, [], 0
        for each in head:
            sent += len(each)
            yield from self._plan_send(each, sent)

    def plan_end(self) -> Plan[None]:
        """Store the rest. A small object may still be under way then."""
        seconds = self._uploads.seconds
        if self._upload is not None:
            yield Finish(self._upload, 2 * seconds)  # the last piece, and the end
            self._upload = None
            return
        put = Put(self._key, b"".join(self._head), None, seconds, self._attributes, tags=self._tags)
        self._head = []
        yield from self._uploads.plan_put(put)
        if self._name is not None:
            yield Progressed(self._name, self.size, self._total)

    def plan_abort(self) -> Plan[None]:
        """Give up what is under way of it."""
        upload, self._upload, self._head = self._upload, None, []
        if upload is not None:
            yield Abort(upload, min(ABORT_SECONDS, self._uploads.seconds))

    def _plan_send(self, piece: bytes, sent: int) -> Plan[None]:
        yield Send(self._upload, piece, self._uploads.seconds)
        if self._name is not None:
            yield Progressed(self._name, sent, self._total)
