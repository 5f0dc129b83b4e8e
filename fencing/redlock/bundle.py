"""A bundle of connections for threads, one to each node, and the wait for all of them."""

from __future__ import annotations

import math
import select
import selectors
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from redis.exceptions import RedisError

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.opening import Opening
from fencing.kernel.waking import Wake
from fencing.redis import quirks
from fencing.redis.calls import Call
from fencing.redis.connection import LazyConnection
from fencing.redis.connection_factory import ConnectionFactory
from fencing.redlock.nodes import INFO, LOADS, Nodes

Expected = tuple[Call | None, float]
"""A reply that is missing: the call (None: its reply is dropped), and when the caller stopped waiting for it."""


class NodeConnection(LazyConnection):
    """A connection to one node, and the replies that it still owes to earlier calls, in order.

    Attributes:
        greeting: the reply to the first question.
        index: of the node.
        reads_ahead: whether there may be bytes of which the kernel knows nothing: TLS reads whole records.
        used: when its last good exchange began; minus infinity: it is closed.
    """

    __slots__ = ("expected", "greeting", "index", "member", "reader", "reads_ahead", "sock")

    CLOSED = -math.inf

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.sock: Any = None
        self.reader: Any = None
        self.reads_ahead = False
        self.greeting: Any = None
        self.member = b""
        self.expected: list[Expected] = []

    @classmethod
    def greeted(cls, index: int, factory: ConnectionFactory, opening: Opening[NodeConnection]) -> NodeConnection:
        """Open a connection, ask the first question, and load the scripts. A helper thread of an opener does it."""
        node, deadline = cls(index), time.monotonic() + opening.left
        try:
            node.open(factory.connect(opening), opening.left)
            node._sock.sendall(INFO + b"".join(LOADS))  # in one round trip: a far server has no time for more
            node.greeting, *_ = [node.next_reply(deadline) for _ in (INFO, *LOADS)]
            node.sock = quirks.socket_of(node.raw)
            if node.sock is None:
                raise CoordinatorUnavailable("there is no socket to wait for; pass clients with redis-py's connections")
            node.sock.settimeout(0)
            node.reader, node.reads_ahead = node._reader, node._fd is None
        except BaseException:
            node.close()
            raise
        return node

    def send(self, data: bytes) -> None:
        """Write all of it. A socket whose buffer is full has a server that does not read."""
        if self.sock.send(data) != len(data):
            raise does_not_read()


def does_not_read() -> RedisError:
    """Return the error of a socket that has no room for a call."""
    return RedisError("the server does not read")


class Poll:
    """A wait for several sockets: poll() where there is one. It has no state in the kernel, so a fork does no harm.

    Attributes:
        indices: of the sockets, by their files.
        poll: returns the files of the sockets that can be read, after at most so many milliseconds.
    """

    def __init__(self) -> None:
        self._poll: Any = getattr(select, "poll", lambda: None)()
        self._selector = selectors.SelectSelector() if self._poll is None else None
        self.indices: dict[int, int] = {}
        self.poll: Callable[[float], Iterable[tuple[int, Any]]]
        self.poll = self._select if self._poll is None else self._poll.poll

    def register(self, sock: Any, index: int) -> None:
        """Wait for this socket, too."""
        self.indices[sock.fileno()] = index
        if self._selector is not None:
            self._selector.register(sock, selectors.EVENT_READ)
        else:
            self._poll.register(sock, select.POLLIN)

    def unregister(self, sock: Any) -> None:
        """Wait for this socket no longer."""
        try:
            (self._selector or self._poll).unregister(sock)
        finally:
            self.indices.pop(sock.fileno(), None)

    def _select(self, milliseconds: float) -> Iterable[tuple[int, Any]]:
        assert self._selector is not None
        return [(key.fd, None) for key, _ in self._selector.select(milliseconds / 1000)]


class Bundle:
    """One connection to each node.

    Attributes:
        closed: the indices of the connections that are not open.
        has_owed: whether replies were missing after the last call that looked.
        wanted: the threads that wait for this very bundle, in order.
        reference: a weak reference to this bundle.
    """

    def __init__(self, count: int) -> None:
        self.nodes = [NodeConnection(index) for index in range(count)]
        self.closed = set(range(count))
        self.has_owed = False
        self.wanted: deque[Wake] = deque()
        self.reference = weakref.ref(self)
        self._poll = Poll()
        self.poll, self.indices = self._poll.poll, self._poll.indices

    @property
    def used(self) -> float:
        """When one of the connections was used last."""
        return max(node.used for node in self.nodes)

    def owes(self) -> bool:
        """Return whether replies are missing."""
        for node in self.nodes:  # noqa: SIM110 - any() takes longer
            if node.expected:
                return True
        return False

    def adopt(self, nodes: Nodes, node: NodeConnection) -> None:
        """Use a connection that was opened, in the place of one that is closed.

        Raises:
            NoReply, CoordinatorUnavailable: the server is none that can be a node.
        """
        try:
            node.member = nodes.greeted(node.index, node.greeting)
        except BaseException:
            node.close()  # it must not be asked
            raise
        node.used = time.monotonic()
        self.nodes[node.index] = node
        self._poll.register(node.sock, node.index)
        self.closed.discard(node.index)

    def close(self) -> None:
        """Close all connections."""
        for index in range(len(self.nodes)):
            self.close_node(index)

    def close_node(self, index: int) -> None:
        """Close the connection to one node."""
        node = self.nodes[index]
        node.used = -math.inf  # first: an interruption may come between any two of these steps
        self.closed.add(index)
        if node.sock is not None:
            try:
                self._poll.unregister(node.sock)
            except (KeyError, ValueError, OSError):
                pass  # it was closed before
        node.sock, node.expected = None, []
        node.close()
