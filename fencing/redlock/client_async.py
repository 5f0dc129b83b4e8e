"""Requests to all nodes at once, for asyncio: one connection to each node and event loop, shared by all calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, RedisError

from fencing.kernel.effects import background
from fencing.kernel.errors import CLOSED, CoordinatorUnavailable
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.workers import PerLoop
from fencing.redis.calls import Call
from fencing.redis.connection_async import LoopConnection, Request
from fencing.redis.connection_factory import IDLE_SECONDS
from fencing.redis.scripts import RELEASE, RELEASE_LATER, RELEASE_SEVERAL
from fencing.redlock.calls import Fanout, bytes_for
from fencing.redlock.decisions import check_answered, vote
from fencing.redlock.nodes import INFO, LOAD_CALLS, LOADS, STALLED_SECONDS, Nodes


class _Unsent(NamedTuple):
    """A call to one node that waits for a connection."""

    collector: _Collector
    node: int
    call: Call
    deadline: float


class _NodeRequest(Request):
    """A request to one node. It may stay unanswered for longer than its time-out: others have decided."""

    __slots__ = ()

    @property
    def must_run(self) -> bool:
        return self.call.form.script in (RELEASE, RELEASE_LATER, RELEASE_SEVERAL)

    @property
    def stalls_at(self) -> float:
        return max(self.deadline, self.sent + STALLED_SECONDS)


class NodeConnection(LoopConnection):
    """The connection of one event loop to one node."""

    def __init__(self, nodes: Nodes, index: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(nodes.factories[index], loop)
        self._nodes, self._index = nodes, index
        self._member = b""
        self.refusal: CoordinatorUnavailable | None = None
        self.opener: asyncio.Task[None] | None = None
        self._unsent: deque[_Unsent] = deque()  # in order, until the connection is open

    def send_in_turn(self, unsent: _Unsent) -> None:
        """Send a call, behind those that wait for the connection to open: a release never overtakes its acquire."""
        if self.open and not self._unsent:
            self._send_now(unsent)
            return
        self._unsent.append(unsent)
        self._loop.call_later(max(unsent.deadline - time.monotonic(), 0.0), self._expire, unsent)
        if self.opener is None:
            self.opener = background(self._loop, self._open(), "fencing-redlock")

    def take_back(self, collector: _Collector) -> bool:
        """Remove a call that was not sent yet. Return False if it was sent."""
        for unsent in list(self._unsent):
            if unsent.collector is collector:
                self._unsent.remove(unsent)
                return True
        return False

    def _expire(self, unsent: _Unsent) -> None:
        if unsent in self._unsent:
            self._unsent.remove(unsent)
            failure = NoReply(TimeoutError("no connection in time"), may_have_run=False)
            unsent.collector.on_failure(self._index, failure)

    def _send_now(self, unsent: _Unsent) -> None:
        self.used = now = time.monotonic()
        future: Any = _Slot(unsent.collector, unsent.node)
        self.send(_NodeRequest(unsent.call, future, now, unsent.deadline))

    async def _open(self) -> None:
        """Open the connection, and send what waits for it."""
        try:
            while self._unsent:
                last = max(unsent.deadline for unsent in self._unsent)
                try:
                    await self.wait_until_open(max(last - time.monotonic(), LEAST_SECONDS))
                except (NoReply, CoordinatorUnavailable) as error:
                    while self._unsent:
                        self._unsent.popleft().collector.on_failure(self._index, error)
                while self._unsent:
                    self._send_now(self._unsent.popleft())
        finally:
            self.opener = None

    async def _greet(self, connection: Any) -> None:
        self.refusal = None
        try:
            self._member = self._nodes.greeted(self._index, await self._ask(connection, INFO))
            for load in LOADS:
                await self._ask(connection, load)
        except CoordinatorUnavailable as refusal:
            self.refusal = refusal
            raise RedisError(str(refusal)) from refusal

    def _pack(self, request: Request) -> bytes:
        if not request.call.script.sha:
            return request.call.packed
        return bytes_for(request.call, self._member, by_text=request.by_text)

    def _on_reply(self, reply: Any) -> None:
        if self._index in self._nodes.failing:
            self._nodes.replied(self._index)
        self._nodes.note(self._index, reply)
        if type(reply) is NoScriptError:  # the server was told to forget them, or has no room for them
            now = time.monotonic()
            for call in LOAD_CALLS:
                request = _NodeRequest(call, None, now, now + STALLED_SECONDS)
                request.by_text = False
                self.send(request)
        super()._on_reply(reply)

    def send_undo(self, call: Call, sent: float, deadline: float) -> None:
        """Send the compensation of a call behind it, if it has one. Its reply is not needed."""
        if call.compensation is not None:
            self.send(_NodeRequest(call.compensation, None, sent, deadline))

    def _give_up(self, request: Request, now: float) -> None:
        request.fail(NoReply(TimeoutError(f"no reply within {now - request.sent:.3g} s"), may_have_run=True))
        self.send_undo(request.call, now, now)


class _Slot:
    """Takes the place of a future for one node's reply."""

    def __init__(self, collector: _Collector, index: int) -> None:
        self._collector, self._index = collector, index

    def done(self) -> bool:
        return self._collector.future.done() or self._index not in self._collector.waiting

    def set_result(self, reply: Any) -> None:
        self._collector.on_reply(self._index, reply)

    def set_exception(self, error: Exception) -> None:
        self._collector.on_failure(self._index, error)


class _Collector:
    """The replies of one fan-out. ``future`` is done when enough nodes agree, or all have replied or failed."""

    def __init__(self, fanout: Fanout, nodes: Nodes, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()
        self.replies: list[Any] = [None] * nodes.count
        self.waiting: set[int] = set()
        self._fanout, self._nodes = fanout, nodes
        self._votes: Counter[Hashable] = Counter()

    def on_reply(self, index: int, reply: Any) -> None:
        self.replies[index] = reply
        self.waiting.discard(index)
        said = vote(reply)
        self._votes[said] += 1
        self.check(decided=self._votes[said] >= self._fanout.quorum)

    def on_failure(self, index: int, error: Exception) -> None:
        self._nodes.failed(index, time.monotonic())
        self.replies[index] = error
        self.waiting.discard(index)
        self.check(decided=False)

    def check(self, *, decided: bool) -> None:
        if (decided or not self.waiting) and not self.future.done():
            self.future.set_result(None)


def _make_all(nodes: Nodes, loop: asyncio.AbstractEventLoop) -> list[NodeConnection]:
    return [NodeConnection(nodes, index, loop) for index in range(nodes.count)]


def _stop_all(connections: list[NodeConnection]) -> None:
    for connection in connections:
        connection.stop()


class AsyncFanoutConnections:
    """The connections of a Redlock coordinator for asyncio. A forked child opens its own."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.address = nodes.address
        self.closed = False
        self._loops = PerLoop(partial(_make_all, nodes), stop=_stop_all)

    async def perform(self, fanout: Fanout) -> list[Any]:
        """Send the call to nodes, and return their replies. If the task is cancelled, releases are sent behind it.

        Raises:
            NoReply: too few usable replies; another attempt may succeed.
            CoordinatorUnavailable: nodes refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        loop = asyncio.get_running_loop()
        connections = self._connections(fanout, loop)
        collector = _Collector(fanout, self._nodes, loop)
        now = time.monotonic()
        deadline = now + max(fanout.timeout, LEAST_SECONDS)
        call = fanout.call
        chosen = self._nodes.chosen(fanout, now)
        if any(now - connections[i].used > IDLE_SECONDS for i in chosen):
            await asyncio.sleep(0)  # so that the event loop sees whether a server has closed the connection
        for index in fanout.nodes:
            if index in chosen or (fanout.is_for_anyone and connections[index].open):
                collector.waiting.add(index)
            else:
                collector.replies[index] = NoReply(TimeoutError("the node is skipped"), may_have_run=False)
        for index in tuple(collector.waiting):  # all of them wait before the first one can fail
            connections[index].send_in_turn(_Unsent(collector, index, call, deadline))
        try:
            if fanout.quorum > 0:
                collector.check(decided=False)
                await collector.future
                await self._greet_unknown(connections, collector, fanout.nodes, deadline)
        except asyncio.CancelledError:
            self._send_compensations(connections, collector, call, now, deadline)
            raise
        finally:
            if self.closed:
                for connection in connections:
                    await connection.close()
        if fanout.quorum > 0:
            check_answered(collector.replies, fanout.least, undone=call.may_take)
        return collector.replies

    async def _greet_unknown(
        self, connections: list[NodeConnection], collector: _Collector, nodes: tuple[int, ...], deadline: float
    ) -> None:
        """Wait for the first connections, so that a node that cannot be one is told at each use."""
        unknown = [index for index in nodes if self._nodes.is_unknown(index)]
        openers = [each for each in (connections[index].opener for index in unknown) if each is not None]
        if openers:
            await asyncio.wait(openers, timeout=max(deadline - time.monotonic(), LEAST_SECONDS))
        for index in unknown:
            refusal = connections[index].refusal or collector.replies[index]
            if isinstance(refusal, CoordinatorUnavailable) and self._nodes.is_unknown(index):
                raise refusal

    def _send_compensations(
        self, connections: list[NodeConnection], collector: _Collector, call: Call, now: float, deadline: float
    ) -> None:
        if call.may_take:
            for index in list(collector.waiting):
                if not connections[index].take_back(collector) and connections[index].open:
                    connections[index].send_undo(call, now, deadline)

    def _connections(self, fanout: Fanout, loop: asyncio.AbstractEventLoop) -> list[NodeConnection]:
        found = self._loops.get(loop)
        if found is None or self.closed:
            if not self.closed:
                return self._loops[loop]
            if fanout.script not in (RELEASE, RELEASE_LATER):  # a block may end after the closing, and gets its own
                raise RuntimeError(CLOSED)
            return _make_all(self._nodes, loop)
        return found

    async def close(self) -> None:
        """Close the connections of the running loop. Later calls raise RuntimeError, except releases."""
        self.closed = True
        for connection in self._loops.remove(asyncio.get_running_loop()) or ():
            await connection.close()
