"""The subscriptions of listeners in a Redis Cluster: one channel for each slot that is waited for. No I/O.

Since Redis 7.0 a script publishes on a sharded channel, which is in the slot of its keys. Only the slot's primary has
the message and its subscribers. Redis 6.2 has no such channels: there a listener subscribes at the slot's primary too,
because a script counts only the receivers of its own node. See https://redis.io/docs/latest/develop/pubsub/.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import NoReply
from fencing.redis.cluster.topology import Address
from fencing.redis.connection_factory import map_connect_error
from fencing.redis.keys import slot_of, tag_of
from fencing.redis.resp import bulks
from fencing.redis.waiters import Waiters

LINGER_SECONDS = 3.0
"""How long a subscription stays without waiters, so that waits in a row do not need one each."""


class Subscription:
    """The channel of one slot, and the slot's waiters."""

    def __init__(self, slot: int, waiters: Waiters) -> None:
        self.slot = slot
        self.waiters = waiters
        self.node: Node | None = None
        self.waiter_seen_at = time.monotonic()

    @property
    def is_sharded(self) -> bool:
        """Whether the channel is a sharded one."""
        return self.waiters.name.startswith("s{")

    def command(self, *, leave: bool = False) -> bytes:
        """Return the command that subscribes, or unsubscribes, packed."""
        name = ("S" if self.is_sharded else "") + ("UNSUBSCRIBE" if leave else "SUBSCRIBE")
        return b"*2\r\n" + bulks((name, self.waiters.channel))


class Request:
    """A request to subscribe. ``finish`` is called when it has its reply, or its connection is broken."""

    def __init__(self, subscription: Subscription, finish: Callable[[], object]) -> None:
        self.subscription = subscription
        self.finish = finish
        self.error: Exception | None = None


class Node:
    """A listening connection to one node: its subscriptions, and the requests that have no reply yet."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.subscriptions: set[Subscription] = set()
        self.requests: deque[Request] = deque()


class Subscriptions:
    """All subscriptions of a process, or of an event loop. Not thread-safe: the listener must hold its lock.

    Args:
        make_waiters: makes the waiters of a slot, with this prefix of their listener's name.
    """

    def __init__(self, make_waiters: Callable[[str], Waiters]) -> None:
        self._make_waiters = make_waiters
        self._by_slot: dict[int, Subscription] = {}
        self._by_channel: dict[bytes, Subscription] = {}
        self._is_sharded = True  # until a server says that it knows no such channels

    def __bool__(self) -> bool:
        return bool(self._by_slot)

    def __contains__(self, subscription: Subscription) -> bool:
        return self._by_slot.get(subscription.slot) is subscription

    def of(self, resource: str) -> Subscription | None:
        """Return the subscription of a resource's slot; None: there is none."""
        return self._by_slot.get(slot_of(resource.encode())) if self._by_slot else None

    def make(self, resource: str) -> Subscription:
        """Return the subscription of a resource's slot. It may not be subscribed yet."""
        found = self.of(resource)
        if found is None:
            slot = slot_of(resource.encode())
            waiters = self._make_waiters(f"s{{{tag_of(resource)}}}" if self._is_sharded else "")
            found = self._by_slot[slot] = Subscription(slot, waiters)
            self._by_channel[waiters.channel.encode()] = found
        found.waiter_seen_at = time.monotonic()
        return found

    def on_reply(self, node: Node, reply: Any) -> tuple[str, str, str] | None:
        """Handle what a node has sent. Return resource, token and listener of an offer that must be declined.

        Raises:
            RedisError, ValueError: it is not the answer to a request, or a message that our scripts do not publish.
        """
        if isinstance(reply, RedisError):
            if not node.requests:
                raise reply
            request = node.requests.popleft()
            request.error = reply
            request.finish()
            return None
        if not isinstance(reply, list) or len(reply) < 3:
            return None  # of a PING
        kind, found = reply[0], self._by_channel.get(reply[1])
        if kind in (b"ssubscribe", b"subscribe"):
            request = node.requests.popleft()
            request.subscription.node = node
            node.subscriptions.add(request.subscription)
            request.finish()
        elif kind in (b"smessage", b"message") and found is not None:
            declined = found.waiters.on_message(reply[2])
            return None if declined is None else (*declined, found.waiters.name)
        elif kind == b"sunsubscribe" and found is not None and found.node is node:  # the slot has moved
            found.node = None
            node.subscriptions.discard(found)
            found.waiters.wake_all()
        return None

    def lose(self, node: Node, error: Exception) -> None:
        """Note that a connection is broken: its waiters ask again, and subscribe elsewhere."""
        requests = list(node.requests)
        node.requests.clear()
        for request in requests:
            request.error = error
            request.finish()
        for subscription in list(node.subscriptions):
            if subscription.node is node:
                subscription.node = None
                subscription.waiters.wake_all()
        node.subscriptions.clear()

    def leave_idle(self, node: Node, owners: Sequence[Address | None]) -> bytes:
        """Remove the subscriptions without waiters, and those of other nodes. Return the commands that end them.

        A primary tells the subscribers of a sharded channel that its slot has moved. One that has become a replica does
        not. Of other channels no server tells it.
        """
        now = time.monotonic()
        commands = []
        for each in list(node.subscriptions):
            if each.waiters:
                each.waiter_seen_at = now
            if each.node is node and owners[each.slot] not in (None, node.address):
                each.node = None
                each.waiters.wake_all()
            if each.node is not node:
                commands.append(each.command(leave=True))
                node.subscriptions.discard(each)
            elif now - each.waiter_seen_at >= LINGER_SECONDS:
                each.node = None
                self.remove(each)
                commands.append(each.command(leave=True))
                node.subscriptions.discard(each)
        return b"".join(commands)

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription, unless it has waiters."""
        if subscription in self and not subscription.waiters:
            del self._by_slot[subscription.slot]
            self._by_channel.pop(subscription.waiters.channel.encode(), None)

    def refused(self, request: Request, address: str) -> Exception:
        """Return the error of a refused request: NoReply if another attempt may succeed."""
        error, subscription = request.error, request.subscription
        assert error is not None
        if isinstance(error, RedisError) and "unknown command" in str(error) and subscription.is_sharded:
            self._is_sharded = False
            self.remove(subscription)
            return NoReply(error, may_have_run=False)
        if isinstance(error, NoPermissionError):
            rules = "+ssubscribe +sunsubscribe +spublish" if subscription.is_sharded else "+subscribe +publish"
            return CoordinatorUnavailable(
                f"Redis at {address} does not let this user wait for locks: {error}; add the ACL rules "
                f"{rules} +ping &fencing:1:wake:*",
                address=address,
                refused=True,
            )
        if isinstance(error, (RedisError, OSError)):
            return map_connect_error(error, address)
        return NoReply(error, may_have_run=False)

    def wake_all(self) -> None:
        """Wake all waiters, so that they ask again."""
        for subscription in list(self._by_slot.values()):
            subscription.waiters.wake_all()
