"""The listener for asyncio in a Redis Cluster: a connection to each node whose slots an event loop waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from redis.exceptions import AskError, RedisError

from fencing.kernel.effects import background, call_surely
from fencing.kernel.errors import CLOSED, FencingError
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.retry import NoReply
from fencing.kernel.waking import TaskWake
from fencing.kernel.workers import PerLoop
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.redis.asyncio_protocol import receive_replies
from fencing.redis.calls import decline_call
from fencing.redis.cluster.client_async import AsyncClusterConnections
from fencing.redis.cluster.subscriptions import Node, Request, Subscription, Subscriptions
from fencing.redis.cluster.topology import Address
from fencing.redis.connection_factory import map_connect_error
from fencing.redis.listener import DECLINE_SECONDS, Heartbeat
from fencing.redis.waiters import Waiter, Waiters


class AsyncClusterListener:
    """The listener for asyncio: each event loop has a connection and a task for each node whose slots it waits for."""

    def __init__(self, cluster: AsyncClusterConnections, clock: Callable[[], float]) -> None:
        self._loops = PerLoop(partial(_LoopListener, cluster, clock))
        self._closed = False

    def is_waited_for(self, resource: str) -> bool:
        """Return whether the running loop has waiters for the resource, or had a moment ago. A hint."""
        listener = self._loops.get(asyncio.get_running_loop())
        found = None if listener is None else listener.subscriptions.of(resource)
        return found is not None and resource in found.waiters

    async def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        """Add a waiter, wait until it is woken, or remove it.

        Raises:
            NoReply: no connection in time; another attempt may succeed.
            CoordinatorUnavailable: the server refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        listener = self._loops[asyncio.get_running_loop()]
        if isinstance(effect, Enlist):
            if self._closed:
                raise RuntimeError(CLOSED)
            return await listener.enlist(effect)
        waiter = effect.waiter
        found = listener.subscriptions.of(waiter.resource)
        if found is None:
            return None
        if isinstance(effect, Leave):
            found.waiters.remove(waiter, effect.free_at)
            return None
        found.waiters.schedule_recheck(waiter, effect.recheck)
        await waiter.waking.wait(effect.seconds)
        return None

    async def close(self) -> None:
        """Stop listening on the running loop. Waiters ask again, and get the error that the coordinator is closed."""
        self._closed = True
        listener = self._loops.remove(asyncio.get_running_loop())
        if listener is not None:
            await listener.close()


class _Node(Node):
    def __init__(self, address: Address, connection: Any) -> None:
        super().__init__(address)
        self.connection = connection
        self.heartbeat = Heartbeat()
        self.task: asyncio.Task[None] | None = None


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _LoopListener:
    """The listener of one event loop. Only that loop uses it."""

    def __init__(
        self, cluster: AsyncClusterConnections, clock: Callable[[], float], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.subscriptions = Subscriptions(partial(Waiters, clock, self._call_at))
        self._cluster = cluster
        self._clock = clock
        self._nodes: dict[Address, _Node] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._loop = loop
        self._declining: set[asyncio.Task[None]] = set()

    async def enlist(self, effect: Enlist) -> Waiter:
        try:
            async with asyncio.timeout(effect.timeout):
                found = self.subscriptions.make(effect.resource)
                address = await self._cluster.primary_of(found.slot, effect.timeout)
                if found.node is None or found.node.address != address:
                    await self._subscribe(found, address)
        except TimeoutError as error:
            raise_interruption(error)
            raise NoReply(TimeoutError(f"no reply within {effect.timeout:.3g} s"), may_have_run=False) from error
        if found.node is None or found not in self.subscriptions:
            raise NoReply(ConnectionError("the connection for waiting broke"), may_have_run=False)
        waiter: Waiter = effect.waiter or Waiter(effect.resource, effect.token, TaskWake(), found.waiters.name)
        found.waiters.add(waiter)
        return waiter

    async def _subscribe(self, subscription: Subscription, address: Address) -> None:
        """Subscribe at a node, and wait until it has confirmed it."""
        async with self._connecting.setdefault(address, asyncio.Lock()):
            node = self._nodes.get(address) or await self._connect(address)
        confirmed = self._loop.create_future()
        request = Request(subscription, partial(_set, confirmed))
        node.requests.append(request)
        try:
            await node.connection.send_packed_command([subscription.command()], check_health=False)
        except (RedisError, OSError) as error:
            raise_interruption(error)
            self._lose(node, error)
            raise map_connect_error(error, "{}:{}".format(*address)) from error
        await confirmed
        if isinstance(request.error, AskError):  # also MovedError
            self._cluster.topology.redirect(request.error, address)
            raise NoReply(request.error, may_have_run=False)
        if request.error is not None:
            raise self.subscriptions.refused(request, "{}:{}".format(*address)) from request.error

    async def _connect(self, address: Address) -> _Node:
        factory = self._cluster.factory(address)
        connection = factory.make()
        try:
            await connection.connect()
        except (RedisError, OSError) as error:
            raise_interruption(error)
            self._cluster.topology.suspect(address)
            raise map_connect_error(error, factory.address) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        node = self._nodes[address] = _Node(address, connection)
        # Not in the task: uvloop may read the first reply before the task begins.
        _, reading = receive_replies(connection, self._loop, partial(self._on_reply, node))
        node.task = background(self._loop, self._listen(node, reading), "fencing-listener")
        node.task.add_done_callback(partial(self._ended, node))
        return node

    def _ended(self, node: _Node, _: object = None) -> None:
        """Note that the task has ended, even if it was cancelled before it began, or interrupted while it ended."""
        self._lose(node, ConnectionError("the listener has ended"))

    def _lose(self, node: _Node, error: Exception) -> None:
        if self._nodes.get(node.address) is node:
            del self._nodes[node.address]
        self.subscriptions.lose(node, error)

    async def _listen(self, node: _Node, reading: asyncio.Future[None]) -> None:
        connection = node.connection
        try:
            while node.heartbeat.must_listen(bool(node.subscriptions or node.requests)) and not reading.done():
                await asyncio.wait([reading], timeout=Heartbeat.TICK_SECONDS)
                commands = self.subscriptions.leave_idle(node, self._cluster.topology.owners)
                if commands:
                    await connection.send_packed_command([commands], check_health=False)
                if node.heartbeat.must_ping():
                    await connection.send_command("PING", check_health=False)
            if reading.done():
                self._cluster.topology.suspect(node.address)
        except (RedisError, OSError):
            self._cluster.topology.suspect(node.address)
        finally:
            if not self._loop.is_closed():
                self._ended(node)
                reading.cancel()
                await connection.disconnect(nowait=True)
                await asyncio.wait([reading])

    def _on_reply(self, node: _Node, reply: Any) -> None:
        node.heartbeat.received()
        try:
            declined = self.subscriptions.on_reply(node, reply)
        except (ValueError, IndexError) as error:
            raise RedisError(f"a message that our scripts do not publish: {reply!r:.100}") from error
        if declined is not None:
            task = background(self._loop, self._decline(*declined), "fencing-decline")
            self._declining.add(task)
            task.add_done_callback(self._declining.discard)

    async def _decline(self, resource: str, token: str, listener: str) -> None:
        try:
            await self._cluster.perform(decline_call(resource, token, listener, timeout=DECLINE_SECONDS))
        except (FencingError, NoReply, RuntimeError):
            pass  # the offer expires by itself

    def _call_at(self, when: float, callback: Callable[[], object], wanted: Callable[[], bool]) -> None:
        self._loop.call_later(max(0.0, when - self._clock()), call_surely, self._loop, callback)

    async def close(self) -> None:
        self.subscriptions.wake_all()
        tasks = [node.task for node in self._nodes.values() if node.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
