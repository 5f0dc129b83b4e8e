"""The effects of waiting, and a waiter's stream. No I/O."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from fencing.etcd.calls import body_of, encode
from fencing.kernel import process

MOST_STREAMS = 64
"""How many streams of one process watch keys at the same time. Each is a connection. All other waiters poll."""


class Waiter:
    """A waiter, with the stream that watches the key before its own.

    Attributes:
        stream: of the client that performs its waits; None: it has none.
        is_notified: whether it was told to ask again.
    """

    __slots__ = ("__weakref__", "is_notified", "stream")

    def __init__(self) -> None:
        self.stream: Any = None
        self.is_notified = False

    def notify(self) -> None:
        """Tell a thread that waits to ask again. It notices within ``RECHECK_SECONDS`` of ``kernel/waking.py``."""
        self.is_notified = True


class Wait(NamedTuple):
    """The effect: wait until a key is deleted, at most ``seconds``.

    The result is True: ask again; False: the time is over; None: there is no stream, or it has ended, so poll.

    Args:
        waiter: keeps its stream from one wait to the next.
        key: that of whoever is next before it.
        revision: the first one of which nothing is known.
        credentials: as in ``Call``.
    """

    waiter: Waiter
    key: str
    revision: int
    seconds: float
    credentials: str = ""

    @property
    def body(self) -> bytes:
        """The body of the request that opens the stream."""
        create = {"key": encode(self.key), "start_revision": str(self.revision), "filters": ["NOPUT"]}
        return body_of({"create_request": create})


class Leave(NamedTuple):
    """The effect: end a waiter's stream."""

    waiter: Waiter


def is_deletion(line: bytes) -> bool:
    """Return whether a line of a stream says that the key was deleted."""
    return b'"events"' in line


def is_end(line: bytes) -> bool:
    """Return whether a line says that nothing more comes: a revision was compacted, or a right is missing."""
    return b'"canceled"' in line or b'"error"' in line


class Permit:
    """The permission to have a stream, until it is given back or collected."""

    __slots__ = ("__weakref__",)

    def give_back(self) -> None:
        """Let another waiter have a stream."""
        _lent.discard(weakref.ref(self))


_lent: set[weakref.ref[Permit]] = set()  # weak: what an interruption took from its waiter is collected


def _reset() -> None:
    _lent.clear()


process.after_fork(_reset)


def permit() -> Permit | None:
    """Return the permission to have one more stream; None: there are too many."""
    if len(_lent) >= MOST_STREAMS:
        return None
    made = Permit()
    _lent.add(weakref.ref(made, _lent.discard))
    if len(_lent) > MOST_STREAMS:  # another thread was faster
        made.give_back()
        return None
    return made


def end_stream(waiter: Waiter) -> None:
    """Close the stream of a waiter, if it has one."""
    stream, waiter.stream = waiter.stream, None
    if stream is not None:
        try:
            stream.connection.close()
        finally:
            stream.permit.give_back()
