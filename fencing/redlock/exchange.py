"""One request to all nodes over a bundle of connections, for threads: write to all sockets, then wait for replies."""

from __future__ import annotations

import math
import select
import selectors
import ssl
import time
import weakref
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.interruptions import interruption_in, raise_interruption
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.waking import Wake
from fencing.redis import quirks
from fencing.redis.calls import Call
from fencing.redis.connection import READ_BYTES, LazyConnection
from fencing.redis.connection_factory import map_connect_error, map_error, not_of_a_script
from fencing.redis.resp import INCOMPLETE
from fencing.redlock.calls import Fanout, bytes_for
from fencing.redlock.decisions import vote
from fencing.redlock.nodes import INFO, LOADS, STALLED_SECONDS, Nodes

WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class NodeConnection(LazyConnection):
    """A connection to one node, and the replies that it still owes."""

    __slots__ = ("expected", "member", "since", "sock")

    def __init__(self) -> None:
        super().__init__()
        self.sock: Any = None
        self.member = b""
        self.expected: list[tuple[Call, bool] | None] = []  # in order; None: the reply is dropped; True: it is awaited
        self.since = 0.0  # when the oldest reply that is dropped was given up

    def greet(self, connection: Any, seconds: float) -> Any:
        """Connect, and return the reply to the first question."""
        self.expected = []
        self.open(connection, seconds)
        deadline = time.monotonic() + seconds
        reply = self.ask(INFO, deadline)
        for load in LOADS:
            self.ask(load, deadline)
        self.sock = quirks.socket_of(connection)
        if self.sock is None:
            raise CoordinatorUnavailable("this version of redis-py hides its sockets; install one that was tested")
        self.sock.settimeout(0)
        return reply

    def send(self, data: bytes) -> None:
        """Write all of it. A socket whose buffer is full has a server that does not read."""
        sent = self.sock.send(data)
        if sent != len(data):
            raise RedisError("the server does not read")

    def receive(self) -> list[Any]:
        """Return the replies that have arrived."""
        replies: list[Any] = []
        reader = self._reader
        while True:
            try:
                data = self.sock.recv(READ_BYTES)
            except WOULD_BLOCK:
                return replies
            if not data:
                raise RedisError("Connection closed by server.")
            reader.feed(data)
            while (reply := reader.gets()) is not INCOMPLETE:
                replies.append(reply)
            if len(data) < READ_BYTES and self._fd is not None:  # TLS may have read ahead
                return replies


class Poll:
    """A wait for several sockets: poll() where there is one. It has no state in the kernel, so a fork does no harm."""

    def __init__(self) -> None:
        self._poll: Any = getattr(select, "poll", lambda: None)()
        self._indices: dict[int, int] = {}
        self._selector = selectors.SelectSelector() if self._poll is None else None

    def register(self, sock: Any, index: int) -> None:
        """Wait for this socket, too."""
        self._indices[sock.fileno()] = index
        if self._selector is not None:
            self._selector.register(sock, selectors.EVENT_READ)
        else:
            self._poll.register(sock, select.POLLIN)

    def unregister(self, sock: Any) -> None:
        """Wait for this socket no longer."""
        self._indices.pop(sock.fileno(), None)
        (self._selector or self._poll).unregister(sock)

    def select(self, seconds: float) -> list[int]:
        """Return the indices of the sockets that can be read, after at most this many seconds."""
        if self._selector is not None:
            return [self._indices[key.fd] for key, _ in self._selector.select(seconds)]
        return [self._indices[number] for number, _ in self._poll.poll(math.ceil(seconds * 1000))]


class Bundle:
    """One connection to each node.

    Attributes:
        wanted: the threads that wait for this very bundle, in order.
        reference: a weak reference to this bundle.
    """

    def __init__(self, count: int) -> None:
        self.nodes = [NodeConnection() for _ in range(count)]
        self.wanted: deque[Wake] = deque()
        self.reference = weakref.ref(self)
        self._poll = Poll()
        self.select = self._poll.select

    @property
    def owes(self) -> bool:
        """Whether replies are missing."""
        return any(node.expected for node in self.nodes)

    def register(self, index: int) -> None:
        """Note that a connection was opened."""
        self._poll.register(self.nodes[index].sock, index)

    def close(self) -> None:
        """Close all connections."""
        for index in range(len(self.nodes)):
            self.close_node(index)

    def close_node(self, index: int) -> None:
        """Close the connection to one node."""
        node = self.nodes[index]
        if node.sock is not None:
            try:
                self._poll.unregister(node.sock)
            except (KeyError, ValueError, OSError):
                pass  # it was closed before
        node.sock = None
        node.close()


class Exchange:
    """One fan-out over one bundle."""

    def __init__(self, nodes: Nodes, bundle: Bundle, fanout: Fanout) -> None:
        self.nodes, self.bundle, self.fanout = nodes, bundle, fanout
        self.call = fanout.call
        self.deadline = 0.0
        self.replies: list[Any] = [None] * nodes.count
        self.waiting: set[int] = set()
        self.votes: dict[Hashable, int] = {}
        self.decided = fanout.quorum <= 0

    def send(self) -> None:
        now = time.monotonic()
        fanout, nodes = self.fanout, self.bundle.nodes
        chosen = self.nodes.chosen(fanout, now)
        data, is_for_anyone = self.call.packed, fanout.is_for_anyone
        indices: Sequence[int] = fanout.nodes
        if None in [node.sock for node in nodes]:
            indices = sorted(indices, key=lambda i: nodes[i].sock is None)  # opening takes time
        for index in indices:
            node = nodes[index]
            is_chosen = index in chosen
            if not is_chosen and (node.sock is None or not is_for_anyone):
                self.replies[index] = NoReply(TimeoutError("the node is skipped"), may_have_run=False)
                continue
            try:
                if is_chosen:
                    may_be_stale = node.sock is None or node.expected or now - node.used >= 1.0
                    if may_be_stale and (node.sock is None or self._is_stale(index, node, now)):
                        self._open(index, node)
                self.waiting.add(index)
                node.expected.append((self.call, True))
                node.send(data if is_for_anyone else data + node.member)
            except CoordinatorUnavailable as error:
                if self.nodes.is_unknown(index):  # told at the first use; later, a node that fails is one of many
                    raise
                self._failed(index, error)
            except (NoReply, RedisError, OSError) as error:
                raise_interruption(error)
                self._failed(index, error)
        # Counted from here: new connections to some nodes must not use up the time of the others.
        self.deadline = time.monotonic() + max(self.fanout.timeout, LEAST_SECONDS)

    def _is_stale(self, index: int, node: NodeConnection, now: float) -> bool:
        """Return whether a connection that was idle, or owes replies, is of no more use."""
        self._read(index)
        if node.sock is None:
            return True
        if node.expected and now - node.since > self.fanout.timeout:
            self.nodes.health[index].failed(now)
            return now - node.since > max(STALLED_SECONDS, self.fanout.timeout)
        return False

    def _open(self, index: int, node: NodeConnection) -> None:
        self.bundle.close_node(index)
        factory = self.nodes.factories[index]
        seconds = factory.limit_seconds(self.fanout.timeout)
        try:
            node.member = self.nodes.greeted(index, node.greet(factory.make(), seconds))
        except (RedisError, OSError) as error:
            raise_interruption(error)
            raise map_connect_error(error, factory.address) from error
        node.used = time.monotonic()
        self.bundle.register(index)

    def wait(self) -> None:
        """Read replies until enough agree, all have replied, or the time is up."""
        while self.waiting and not self.decided:
            left = self.deadline - time.monotonic()
            for index in self.bundle.select(left if left > 0 else 0.0):
                self._read(index)
            if left <= 0:
                return

    def _read(self, index: int) -> None:
        node = self.bundle.nodes[index]
        try:
            for reply in node.receive():
                self._on_reply(index, node, reply)
            node.used = time.monotonic()
        except (RedisError, OSError) as error:
            raise_interruption(error)
            self._failed(index, error)

    def _on_reply(self, index: int, node: NodeConnection, reply: Any) -> None:
        if not node.expected:
            raise not_of_a_script(reply)
        expected = node.expected.pop(0)
        self.nodes.note(index, reply)
        if expected is None:
            return
        call, is_awaited = expected
        if not is_awaited:
            self.nodes.settled(index, call.token)
        elif type(reply) in call.form.script.replies:
            self.waiting.discard(index)
            self.replies[index] = reply
            said = vote(reply)
            self.votes[said] = votes = self.votes.get(said, 0) + 1
            self.decided = self.decided or votes >= self.fanout.quorum
        elif type(reply) is NoScriptError:
            node.expected.append((call, True))
            node.send(bytes_for(call, node.member, by_text=True))
        elif isinstance(reply, RedisError):
            self.waiting.discard(index)
            self.replies[index] = map_error(reply, self.nodes.factories[index].address)
        else:
            raise not_of_a_script(reply)

    def _failed(self, index: int, error: Exception) -> None:
        """Close the connection of a node after an error. What was sent may have run."""
        self.nodes.health[index].failed(time.monotonic())
        self.bundle.close_node(index)
        if index in self.waiting:
            self.waiting.discard(index)
            error = error if isinstance(error, NoReply) else NoReply(error, may_have_run=True)
        if isinstance(error, (NoReply, CoordinatorUnavailable)):
            self.replies[index] = error
        elif index in self.fanout.nodes and self.replies[index] is None:
            self.replies[index] = NoReply(error, may_have_run=False)

    def end(self) -> None:
        """Give up the replies that are missing. If the time was up, send a release behind them."""
        now = time.monotonic()
        for index in list(self.waiting):
            node = self.bundle.nodes[index]
            self.waiting.discard(index)
            node.since = now if None not in node.expected else node.since
            node.expected[-1] = None  # a connection awaits one reply, that to the last call
            if not self.decided:
                self.replies[index] = NoReply(TimeoutError("no reply in time"), may_have_run=True)
                self.nodes.health[index].failed(now)
                self._release_behind(index, node)

    def _release_behind(self, index: int, node: NodeConnection) -> None:
        undo = self.call.compensation
        if undo is None or undo.token is None or node.sock is None:
            return
        self.nodes.doubt(index, undo.token)
        try:
            node.expected.append((undo, False))
            node.send(bytes_for(undo, b"", by_text=True))
        except (RedisError, OSError) as error:
            raise_interruption(error)
            self.bundle.close_node(index)

    def abandon(self) -> None:
        """Close the connections that an interruption left in between, each after a release."""
        for index in list(self.waiting):
            try:
                self._release_behind(index, self.bundle.nodes[index])
            except BaseException as error:  # noqa: BLE001 - the ttl frees the lock; the first interruption is raised
                if interruption_in(error) is not None:
                    continue
        for index in list(self.waiting):
            self.bundle.close_node(index)
