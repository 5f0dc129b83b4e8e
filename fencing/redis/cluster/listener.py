"""The listener for threads in a Redis Cluster: one thread, and a connection to each node whose slots are waited for."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
from redis.exceptions import AskError, RedisError

from fencing.kernel import process
from fencing.kernel.errors import CLOSED, CoordinatorUnavailable, FencingError
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.retry import NoReply
from fencing.kernel.timer import timer
from fencing.kernel.waking import LOST_WAKE_SECONDS, Turns, Wake, safe_lock
from fencing.kernel.workers import DaemonThread
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.redis import quirks
from fencing.redis.calls import decline_call
from fencing.redis.cluster.client import ClusterConnections
from fencing.redis.cluster.subscriptions import Node, Request, Subscription, Subscriptions
from fencing.redis.cluster.topology import Address
from fencing.redis.connection import LazyConnection
from fencing.redis.connection_factory import map_connect_error
from fencing.redis.listener import DECLINE_SECONDS, Heartbeat
from fencing.redis.waiters import Waiter, Waiters

PING = b"*1\r\n$4\r\nPING\r\n"


class _Node(Node):
    def __init__(self, address: Address, connection: LazyConnection) -> None:
        super().__init__(address)
        self.connection = connection
        self.heartbeat = Heartbeat()
        self.outgoing: deque[bytes] = deque()

    def send_outgoing(self) -> None:
        data = b"".join([self.outgoing.popleft() for _ in range(len(self.outgoing))])
        if data:
            self.connection.send(data)


class ClusterListener:
    """The listener for threads: a daemon thread that lives while there are waiters. A forked child has its own.

    Only that thread reads and writes the connections, for TLS allows no two threads at once.
    """

    def __init__(self, cluster: ClusterConnections, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._closed = False
        self._nodes: dict[Address, _Node] = {}
        self._reset()
        process.after_fork(self._after_fork)

    def _reset(self) -> None:
        self._lock = safe_lock()
        self._connecting = Turns()
        self._subscriptions = Subscriptions(partial(Waiters, self._clock, self._call_at))
        self._nodes = {}
        self._thread: threading.Thread | None = None
        self._poke: socket.socket | None = None  # a byte sent here wakes the thread
        self._poked: socket.socket | None = None  # the thread's end

    def _after_fork(self) -> None:
        nodes = list(self._nodes.values())
        self._reset()
        for node in nodes:
            quirks.close_copy(node.connection.raw)  # otherwise the parent's listener would seem alive after its end

    def is_waited_for(self, resource: str) -> bool:
        """Return whether there are waiters for the resource, or were a moment ago. A hint."""
        found = self._subscriptions.of(resource)
        return found is not None and resource in found.waiters

    def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        """Add a waiter, block until it is woken, or remove it.

        Raises:
            NoReply: no connection in time; another attempt may succeed.
            CoordinatorUnavailable: the server refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if isinstance(effect, Enlist):
            return self._enlist(effect)
        waiter = effect.waiter
        with self._lock:
            found = self._subscriptions.of(waiter.resource)
            if found is not None and isinstance(effect, Leave):
                found.waiters.remove(waiter, effect.free_at)
            elif found is not None and isinstance(effect, Wait):
                found.waiters.schedule_recheck(waiter, effect.recheck)
        if found is not None and isinstance(effect, Wait):
            waiter.waking.wait(effect.seconds)
        return None

    def close(self) -> None:
        """Stop listening. Waiters ask again, and get the error that the coordinator is closed."""
        with self._lock:
            self._closed = True
            self._subscriptions.wake_all()
        self._wake_thread()

    def _enlist(self, effect: Enlist) -> Waiter:
        if self._closed:
            raise RuntimeError(CLOSED)
        deadline = time.monotonic() + effect.timeout
        with self._lock:
            found = self._subscriptions.make(effect.resource)
        address = self._cluster.primary_of(found.slot, effect.timeout)
        if found.node is None or found.node.address != address:
            self._subscribe(found, address, deadline)
        with self._lock:
            if found.node is None or found not in self._subscriptions:
                raise NoReply(ConnectionError("the connection for waiting broke"), may_have_run=False)
            waiter: Waiter = effect.waiter or Waiter(effect.resource, effect.token, Wake(), found.waiters.name)
            found.waiters.add(waiter)
        return waiter

    def _subscribe(self, subscription: Subscription, address: Address, deadline: float) -> None:
        """Subscribe at a node, and wait until it has confirmed it."""
        node = self._nodes.get(address) or self._connect(address, deadline)
        wake = Wake()
        request = Request(subscription, wake.set)
        with self._lock:
            if self._nodes.get(address) is not node:
                raise NoReply(ConnectionError("the connection for waiting broke"), may_have_run=False)
            node.requests.append(request)
            node.outgoing.append(subscription.command())
        self._wake_thread()
        while subscription.node is not node and request.error is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NoReply(TimeoutError("the node did not confirm the subscription in time"), may_have_run=False)
            wake.wait(min(left, LOST_WAKE_SECONDS))
        if request.error is not None:
            if isinstance(request.error, AskError):  # also MovedError
                self._cluster.topology.redirect(request.error, address)
                raise NoReply(request.error, may_have_run=False)
            with self._lock:
                raise self._subscriptions.refused(request, "{}:{}".format(*address)) from request.error

    def _connect(self, address: Address, deadline: float) -> _Node:
        turn, connecting = Wake(), self._connecting
        try:
            if not connecting.take(turn, deadline - time.monotonic()):
                raise NoReply(TimeoutError("another thread is still connecting"), may_have_run=False)
            node = self._nodes.get(address)
            return self._open(address, deadline) if node is None else node
        finally:
            connecting.queue.pop(turn, None)
            connecting.wake_first()

    def _open(self, address: Address, deadline: float) -> _Node:
        connection, factory = LazyConnection(), self._cluster.node(address).factory
        try:
            seconds = factory.limit_seconds(deadline - time.monotonic())
            connection.open(factory.open(seconds), seconds)
            if connection.waits_on is None:
                raise CoordinatorUnavailable(
                    f"the connection to Redis at {factory.address} has no socket to wait for; "
                    f"for locks that are waited for, pass a client with a connection class of redis-py",
                    address=factory.address,
                )
            node = _Node(address, connection)
            with self._lock:
                self._nodes[address] = node
                if self._thread is None:
                    self._start_thread()
        except (RedisError, OSError) as error:
            connection.close()
            raise_interruption(error)
            self._cluster.topology.suspect(address)
            raise map_connect_error(error, factory.address) from error
        except BaseException:
            self._nodes.pop(address, None)
            connection.close()
            raise
        return node

    # The thread

    def _start_thread(self) -> None:
        poke, poked = socket.socketpair()
        poke.setblocking(False)
        poked.setblocking(False)
        thread = DaemonThread(self._listen, "fencing-listener", poke, poked)
        self._poke, self._poked, self._thread = poke, poked, thread
        try:
            thread.start()
        except BaseException:
            self._poke = self._poked = self._thread = None
            raise

    def _wake_thread(self) -> None:
        poke = self._poke
        if poke is not None:
            try:
                poke.send(b"\0")
            except OSError:
                pass  # its buffer is full: the thread is about to read it; or the thread has ended

    def _listen(self, poke: socket.socket, poked: socket.socket) -> None:
        selector = selectors.DefaultSelector()
        selector.register(poked, selectors.EVENT_READ)
        registered: dict[_Node, Any] = {}
        checked_at = 0.0
        try:
            while self._must_listen():
                self._register(selector, registered)
                for node in registered:
                    if node.outgoing:
                        self._guard(node, _Node.send_outgoing)
                for key, _ in selector.select(Heartbeat.TICK_SECONDS):
                    if key.data is not None:
                        self._guard(key.data, self._read)
                    else:
                        poked.recv(4096)
                if time.monotonic() - checked_at >= Heartbeat.TICK_SECONDS:
                    checked_at = time.monotonic()
                    for node in registered:
                        self._guard(node, self._check)
        finally:
            with self._lock:
                if self._poked is poked:  # it was closed, or interrupted: the nodes are still this thread's
                    self._thread = self._poke = self._poked = None
                    for node in list(self._nodes.values()):
                        registered.setdefault(node, None)
                        self._subscriptions.lose(node, ConnectionError("the listener has ended"))
                    self._nodes = {}
            for node in registered:
                node.connection.close()
            selector.close()
            poke.close()
            poked.close()

    def _must_listen(self) -> bool:
        with self._lock:
            if self._nodes or self._closed:
                return not self._closed
            self._thread = self._poke = self._poked = None  # a waiter that comes now starts another thread
        return False

    def _register(self, selector: selectors.BaseSelector, registered: dict[_Node, Any]) -> None:
        with self._lock:
            current = set(self._nodes.values())
        for node in [each for each in registered if each not in current]:
            sock = registered.pop(node)
            if sock is not None:
                selector.unregister(sock)
            node.connection.close()
        for node in current.difference(registered):
            registered[node] = sock = node.connection.waits_on
            node.connection.set_timeout(Heartbeat.TICK_SECONDS)
            if sock is not None:
                selector.register(sock, selectors.EVENT_READ, node)

    def _guard(self, node: _Node, step: Callable[[_Node], None]) -> None:
        """Do a step with a connection; if it is broken, its waiters ask again."""
        if self._nodes.get(node.address) is not node:
            return
        try:
            step(node)
        except (RedisError, OSError, ValueError, TypeError, AttributeError, IndexError) as error:
            with self._lock:
                self._nodes.pop(node.address, None)
                self._cluster.topology.suspect(node.address)
                self._subscriptions.lose(node, error if isinstance(error, OSError) else ConnectionError(str(error)))

    def _read(self, node: _Node) -> None:
        try:
            replies = node.connection.read_arrived()
        except (TimeoutError, redis.TimeoutError):
            return  # only a part has arrived
        for reply in replies:
            node.heartbeat.received()
            with self._lock:
                declined = self._subscriptions.on_reply(node, reply)
            if declined is not None:
                try:
                    self._cluster.perform(decline_call(*declined, timeout=DECLINE_SECONDS))
                except (FencingError, NoReply, RuntimeError):
                    pass  # the offer expires by itself

    def _check(self, node: _Node) -> None:
        with self._lock:
            node.outgoing.append(self._subscriptions.leave_idle(node, self._cluster.topology.owners))
            is_used = bool(node.subscriptions or node.requests)
            if not node.heartbeat.must_listen(is_used):
                self._nodes.pop(node.address, None)
        if node.heartbeat.must_ping():
            node.outgoing.append(PING)
        node.send_outgoing()

    def _call_at(self, when: float, callback: Callable[[], object], wanted: Callable[[], bool]) -> None:
        timer().call_at(when, partial(self._call_locked, callback), wanted)

    def _call_locked(self, callback: Callable[[], object]) -> None:
        with self._lock:
            callback()
