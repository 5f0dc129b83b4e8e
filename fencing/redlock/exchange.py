"""One request to all nodes over a bundle of connections, for threads: write to all sockets, then wait for replies."""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.interruptions import interruption_in, raise_interruption
from fencing.kernel.opening import Opener, Opening
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.waking import LOST_WAKE_SECONDS, RECHECK_SECONDS
from fencing.redis.connection import READ_BYTES
from fencing.redis.connection_factory import map_connect_error, map_error, map_function_error, not_of_a_script
from fencing.redis.resp import INCOMPLETE
from fencing.redlock.bundle import Bundle, Expected, NodeConnection, does_not_read
from fencing.redlock.calls import FOR_ANYONE, Fanout, bytes_for
from fencing.redlock.decisions import has_decided
from fencing.redlock.nodes import LOADS, STALLED_SECONDS, Nodes

WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

FAILURES = (CoordinatorUnavailable, NoReply, RedisError, OSError)
"""The errors of one node."""

FRESH_SECONDS = 1.0
"""A connection that was used within so many seconds is believed to be open."""

AWAITED: Expected = (None, math.inf)
"""In the place of a node's reply while it is waited for; and in ``expected``, where other replies come behind it."""

OPENING_SHARE = 3
"""How many times the time-out of a node its new connections are waited for. They take three round trips and more."""

OPENING_STEP_SECONDS = 0.001
"""How long the first wait for connections that are being opened takes; the later ones take up to ``LOST_WAKE_SECONDS``:
nothing wakes a thread that waits for replies."""


class Exchange:
    """One fan-out over one bundle. What it does for each reply is most of what a lock costs its thread: few calls.

    Attributes:
        decided: whether enough nodes agreed.
        owes: whether a node that was asked owes its reply.
        replies: the result: see ``Fanout``.
    """

    __slots__ = (
        "_bundle",
        "_fanout",
        "_nodes",
        "_openers",
        "_opening",
        "_sent_at",
        "decided",
        "owes",
        "replies",
    )

    def __init__(self, nodes: Nodes, openers: Sequence[Opener[NodeConnection]], bundle: Bundle, fanout: Fanout) -> None:
        self._nodes, self._openers, self._bundle, self._fanout = nodes, openers, bundle, fanout
        self._opening: dict[int, Opening[NodeConnection]] = {}
        self._sent_at = time.monotonic()
        self.replies: list[Any] = [None] * nodes.count
        self.decided = fanout.quorum <= 0
        self.owes = False

    def run(self) -> None:
        """Send the call, and read replies until enough agree, all have replied, or the time is up."""
        now, fanout, bundle, replies = self._sent_at, self._fanout, self._bundle, self.replies
        data, asked = fanout.call.packed, fanout.nodes
        is_for_anyone = fanout.call.form.script.name in FOR_ANYONE
        chosen = asked if not self._nodes.failing else self._nodes.chosen(fanout, now)
        all_are_chosen = len(chosen) == len(asked)
        if bundle.closed:  # those that must be opened come last: it takes some time to begin that
            asked = tuple(sorted(asked, key=bundle.closed.__contains__))
        fresh_since, owes_since = now - FRESH_SECONDS, now - fanout.timeout
        for index in asked:
            node = bundle.nodes[index]
            expected = node.expected
            try:
                is_ready = all_are_chosen and node.used > fresh_since and not (expected and expected[0][1] < owes_since)
                if not is_ready and not self._prepare(index, node, index in chosen, now):
                    continue
                replies[index] = AWAITED
                words = data if is_for_anyone else data + node.member
                if node.sock.send(words) != len(words):
                    raise does_not_read()
            except FAILURES as error:
                self._refused_or_failed(index, error)
        if self._opening:
            self._send_to_opened()
        left = max(fanout.timeout, LEAST_SECONDS)
        # Counted from here: new connections to some nodes must not use up the time of the others.
        deadline = time.monotonic() + left
        while not self.decided and AWAITED in replies:
            self._read(bundle.poll(1000 * min(left, RECHECK_SECONDS)))
            if left <= 0:
                break
            if not self.decided:
                left = max(deadline - time.monotonic(), 0.0)
        if AWAITED in replies:
            self.owes = True
            self._give_up()

    def read_late(self) -> None:
        """Read the replies to earlier calls that have arrived. A release among those may have to be sent again."""
        self._read([(file, None) for file in list(self._bundle.indices)])

    def _prepare(self, index: int, node: NodeConnection, is_chosen: bool, now: float) -> bool:
        """Begin to open a connection, if the node is chosen and the one there is of no more use.

        Return whether to send the call now.
        """
        if is_chosen:
            if node.sock is not None and not self._is_stale(index, node, now):
                return True
            self._bundle.close_node(index)
            self._begin_to_open(index)
            return False
        if node.sock is not None and self._fanout.is_for_anyone:
            return True
        self.replies[index] = NoReply(TimeoutError("the node is skipped"), may_have_run=False)
        return False

    def _is_stale(self, index: int, node: NodeConnection, now: float) -> bool:
        """Return whether a connection that was idle, or owes replies, is of no more use."""
        if index in self._bundle.closed:  # an interruption came while it was opened or closed
            return True
        self._read([(node.sock.fileno(), None)])
        if node.sock is None:
            return True
        owes_since = node.expected[0][1] if node.expected else now
        if now - owes_since > self._fanout.timeout:
            self._nodes.failed(index, now)
        return now - owes_since > max(STALLED_SECONDS, self._fanout.timeout)

    def _begin_to_open(self, index: int) -> None:
        factory = self._nodes.factories[index]
        seconds = factory.limit_seconds(OPENING_SHARE * self._fanout.timeout)
        try:
            self._opening[index] = self._openers[index].begin(seconds, factory.connect_seconds)
        except OSError as error:
            raise_interruption(error)
            raise map_connect_error(error, factory.address) from error

    def _send_to_opened(self) -> None:
        """Send the call to nodes as soon as their connections are open, and read the replies of the others meanwhile.

        All of them are waited for, also if enough have agreed: a lock is kept by as many nodes as possible.
        """
        deadline = time.monotonic() + max(OPENING_SHARE * self._fanout.timeout, LEAST_SECONDS)
        step = OPENING_STEP_SECONDS
        while self._opening:
            for index in list(self._opening):
                try:
                    self._send_if_opened(index)
                except FAILURES as error:
                    self._refused_or_failed(index, error)
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if self._opening:
                self._read(self._bundle.poll(1000 * min(left, step)))
                step = min(2 * step, LOST_WAKE_SECONDS)
        for index in list(self._opening):
            self._failed(index, NoReply(TimeoutError("no connection in time"), may_have_run=False))

    def _send_if_opened(self, index: int) -> None:
        opening = self._opening[index]
        if opening.is_waiting:
            return
        failure = opening.error
        try:
            node = opening.take()
        except (RedisError, OSError) as error:
            raise_interruption(error)
            raise map_connect_error(error, self._nodes.factories[index].address) from error
        except Exception as error:
            if error is not failure or isinstance(error, FAILURES):
                raise  # what a signal handler raised here, or what is mapped already
            raise map_function_error(error) from error
        self._leave(index)
        self._bundle.adopt(self._nodes, node)
        self.replies[index] = AWAITED
        node.send(bytes_for(self._fanout.call, node.member))

    def _read(self, ready: Iterable[tuple[int, Any]]) -> None:
        """Read what has arrived at these files."""
        indices, nodes, failing = self._bundle.indices, self._bundle.nodes, self._nodes.failing
        kinds, replies = self._fanout.call.form.script.replies, self.replies
        for file, _ in ready:
            index = indices[file]
            node = nodes[index]
            reader, expected = node.reader, node.expected
            try:
                size = READ_BYTES
                while size == READ_BYTES or node.reads_ahead:
                    try:
                        data = node.sock.recv(READ_BYTES)
                    except WOULD_BLOCK:
                        break
                    size = len(data)
                    if not size:
                        raise RedisError("Connection closed by server.")
                    reader.feed(data)
                    while (reply := reader.gets()) is not INCOMPLETE:
                        if index in failing:
                            self._nodes.replied(index)
                        kind = type(reply)
                        if expected or replies[index] is not AWAITED or kind not in kinds:
                            self._on_unusual(node, reply)
                            continue
                        replies[index] = reply
                        if kind is list:
                            self._nodes.note(index, reply)
                node.used = self._sent_at
            except (RedisError, OSError) as error:
                raise_interruption(error)
                self._failed(index, error)
        self.decided = self.decided or has_decided(replies, self._fanout.quorum)

    def _on_unusual(self, node: NodeConnection, reply: Any) -> None:
        """Take a reply that is an error, or may be that to an earlier call."""
        index, expected = node.index, node.expected
        is_awaited = self.replies[index] is AWAITED
        if not expected and not is_awaited:
            raise not_of_a_script(reply)
        missing = expected.pop(0) if expected else AWAITED
        call = self._fanout.call if missing is AWAITED else missing[0]
        self._nodes.note(index, reply)
        if type(reply) is NoScriptError:  # the server was told to forget them, or has no room for them
            if is_awaited and missing is not AWAITED and AWAITED not in expected:
                expected.append(AWAITED)  # it was sent before what follows
            expected += [(None, self._sent_at)] * len(LOADS)
            data = b"".join(LOADS)
            if call is not None:
                expected.append(missing)
                data += bytes_for(call, node.member, by_text=True)
            node.send(data)
        elif missing is not AWAITED:
            return
        elif isinstance(reply, RedisError):
            self.replies[index] = map_error(reply, self._nodes.factories[index].address)
        elif type(reply) in self._fanout.call.form.script.replies:
            self.replies[index] = reply
        else:
            raise not_of_a_script(reply)

    def _refused_or_failed(self, index: int, error: Exception) -> None:
        """Raise the refusal of a node at its first use. Later, a node that fails is one of many."""
        if isinstance(error, CoordinatorUnavailable) and self._nodes.is_unknown(index):
            raise error
        raise_interruption(error)
        self._failed(index, error)

    def _failed(self, index: int, error: Exception) -> None:
        """Close the connection of a node after an error. What was sent may have run."""
        self._leave(index)
        self._nodes.failed(index, time.monotonic())
        self._bundle.close_node(index)
        if self.replies[index] is AWAITED:
            error = error if isinstance(error, NoReply) else NoReply(error, may_have_run=True)
        if isinstance(error, (NoReply, CoordinatorUnavailable)):
            self.replies[index] = error
        elif index in self._fanout.nodes and self.replies[index] is None:
            self.replies[index] = NoReply(error, may_have_run=False)

    def _give_up(self) -> None:
        """Give up the replies that are missing. If the time was up, send a release behind an acquisition."""
        now = time.monotonic()
        fanout, replies = self._fanout, self.replies
        # A release is remembered: it may have to be repeated.
        missing: Expected = (fanout.call if fanout.is_for_anyone else None, now)
        for index in [i for i, reply in enumerate(replies) if reply is AWAITED]:
            node = self._bundle.nodes[index]
            if AWAITED in node.expected:
                node.expected[node.expected.index(AWAITED)] = missing
            else:
                node.expected.append(missing)
            replies[index] = None
            if not self.decided:
                replies[index] = NoReply(TimeoutError("no reply in time"), may_have_run=True)
                self._nodes.failed(index, now)
                self._release_behind(index, node, now)

    def _release_behind(self, index: int, node: NodeConnection, now: float) -> None:
        compensation = self._fanout.call.compensation
        if compensation is None or compensation.token is None or node.sock is None:
            return
        try:
            node.expected.append((compensation, now))
            node.send(bytes_for(compensation, b"", by_text=True))
        except (RedisError, OSError) as error:
            raise_interruption(error)
            self._bundle.close_node(index)

    def _leave(self, index: int) -> None:
        """Leave the opening of a connection to a later call."""
        opening = self._opening.pop(index, None)
        if opening is not None:
            self._openers[index].leave(opening)

    def abandon(self) -> None:
        """Close the connections that owe replies after an interruption, each after a release behind an acquisition."""
        for index in list(self._opening):
            self._leave(index)
        nodes, replies = self._bundle.nodes, self.replies
        owing = [index for index, node in enumerate(nodes) if node.expected or replies[index] is AWAITED]
        for index in owing:
            try:
                self._release_behind(index, nodes[index], time.monotonic())
            except BaseException as error:  # noqa: BLE001 - the ttl frees the lock; the first interruption is raised
                if interruption_in(error) is not None:
                    continue
        for index in owing:
            self._bundle.close_node(index)
