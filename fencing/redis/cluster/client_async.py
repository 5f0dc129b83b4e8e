"""The coordinator's own connections to the nodes of a Redis Cluster, for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import AskError, RedisError

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.workers import PerLoop
from fencing.redis import quirks
from fencing.redis.calls import ASKING, CLUSTER_SLOTS, Call, Calls, NodeCall, by_text
from fencing.redis.client_async import AsyncConnections
from fencing.redis.cluster.topology import (
    QUESTION_SECONDS,
    Address,
    Failure,
    Topology,
    cause_of,
    explain_question,
    time_left,
)
from fencing.redis.connection_factory import ConnectionFactory

CALLS_AT_ONCE = 100
"""How many of several calls are under way at one node. The node's other calls come in between."""


class AsyncClusterConnections:
    """The connections of a coordinator on a Redis Cluster for asyncio: one per event loop for each primary.

    Replicas are asked for the topology at most. A forked child opens its own connections.
    """

    def __init__(self, client: Any) -> None:
        quirks.require_connections(asynchronous=True)
        self._client = client
        known = quirks.known_nodes(client)
        self.address = self.location = "the Cluster of {}:{}".format(*known[0])
        self.topology = Topology(known, quirks.remap_of(client), self.address)
        self.closed = False
        self._nodes: dict[Address, AsyncConnections] = {}
        self._asking: PerLoop[asyncio.Lock] = PerLoop(lambda _: asyncio.Lock())

    def node(self, address: Address) -> AsyncConnections:
        """Return the connections to a node."""
        found = self._nodes.get(address)
        if found is None:
            made = AsyncConnections(quirks.node_client(self._client, *address))
            made.closed = self.closed
            found = self._nodes.setdefault(address, made)
        return found

    def factory(self, address: Address) -> ConnectionFactory:
        """Return a factory of connections to a node."""
        return ConnectionFactory(quirks.node_client(self._client, *address))

    async def perform(self, effect: Call | Calls | NodeCall) -> Any:
        """Run calls on the primaries of their slots. If the task is cancelled, the compensation of a call is sent.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: the server refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if type(effect) is Call:
            slot = effect.slot
            assert slot is not None
            return await self._run(effect, slot)
        if isinstance(effect, Calls):
            return await self._run_all(effect)
        assert isinstance(effect, NodeCall)
        reply = await self._run(effect.call, effect.slot)
        return reply, self.topology.next_primary(effect.slot)

    async def primary_of(self, slot: int, seconds: float) -> Address:
        """Return the primary of a slot; if it is not known, ask for the topology, at most ``seconds``.

        Raises:
            NoReply, CoordinatorUnavailable: no node has the slot, or no node replied.
        """
        if self.topology.is_stale and not self.closed:
            await self._refresh(slot, seconds)
        address = self.topology.owners[slot]
        if address is None:
            raise self.topology.not_covered(slot)
        return address

    async def _run(self, call: Call, slot: int) -> Any:
        started, topology = time.monotonic(), self.topology
        address = topology.owners[slot]
        if address is None or topology.is_stale:
            address = await self.primary_of(slot, call.timeout)
            call, started = call._replace(timeout=time_left(started, call.timeout)), time.monotonic()
        asking, redirects = False, 0
        while True:
            try:
                node = self._nodes.get(address) or self.node(address)
                return await (_perform_asking(node, call) if asking else node.perform(call))
            except (NoReply, CoordinatorUnavailable) as failure:
                address, asking = topology.follow(failure, slot, address, redirects)
            redirects += 1
            call, started = call._replace(timeout=time_left(started, call.timeout)), time.monotonic()

    async def _run_all(self, effect: Calls) -> list[Any]:
        """Run calls on all their nodes at once."""
        deadline, calls = time.monotonic() + effect.timeout, effect.calls
        results: list[Any] = [None] * len(calls)
        by_node: dict[Address, list[int]] = {}
        for i, call in enumerate(calls):
            slot = call.slot
            assert slot is not None
            try:
                by_node.setdefault(await self.primary_of(slot, effect.timeout), []).append(i)
            except (NoReply, CoordinatorUnavailable) as failure:
                results[i] = failure
        tasks = [
            asyncio.ensure_future(self._run_some(address, calls, indices, deadline, results))
            for address, indices in by_node.items()
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return results

    async def _run_some(
        self, address: Address, calls: Sequence[Call], indices: Sequence[int], deadline: float, results: list[Any]
    ) -> None:
        """Run the calls of one node, some at once."""
        limit = self.topology.share_of(address, deadline - time.monotonic())
        for first in range(0, len(indices), CALLS_AT_ONCE):
            some = indices[first : first + CALLS_AT_ONCE]
            seconds = max(min(deadline - time.monotonic(), limit), LEAST_SECONDS)
            found = await self.node(address).perform_all([calls[i] for i in some], seconds)
            if not isinstance(found[-1], (NoReply, CoordinatorUnavailable)):
                self.topology.trust(address)
            for i, result in zip(some, found, strict=True):
                is_reply = not isinstance(result, (NoReply, CoordinatorUnavailable))
                results[i] = result if is_reply else await self._follow_one(calls[i], address, result, deadline)

    async def _follow_one(self, call: Call, address: Address, failure: Failure, deadline: float) -> Any:
        """Return the reply to one of several calls that was redirected, or its failure."""
        error = cause_of(failure)
        slot = call.slot
        assert slot is not None
        try:
            if type(error) is AskError:  # each key of a slot that moves needs another ASKING
                return await self._run(call._replace(timeout=max(deadline - time.monotonic(), LEAST_SECONDS)), slot)
            self.topology.follow(failure, slot, address, 0)
        except (NoReply, CoordinatorUnavailable) as failed:
            return failed
        return NoReply(RedisError(str(error)), may_have_run=False)  # it is repeated with all the others that moved

    async def _refresh(self, slot: int, seconds: float) -> None:
        """Ask for the topology, unless that was done a moment ago, or another task does it just now."""
        topology = self.topology
        asking = self._asking[asyncio.get_running_loop()]
        if topology.owners[slot] is not None and (asking.locked() or not topology.must_ask):
            return
        deadline = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds), asking:
                if topology.must_ask:
                    await self._ask(deadline)
        except TimeoutError as error:
            raise NoReply(TimeoutError("no node told the topology in time"), may_have_run=False) from error

    async def _ask(self, deadline: float) -> None:
        topology = self.topology
        for address in topology.to_ask():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                question = CLUSTER_SLOTS._replace(timeout=min(left, QUESTION_SECONDS))
                topology.update(await self.node(address).perform(question), address)
            except (NoReply, CoordinatorUnavailable) as failure:
                topology.failure = explain_question(failure, address)
            except RedisError as error:
                topology.failure = NoReply(error, may_have_run=False)
            else:
                primaries = set(topology.owners)
                for each in list(self._nodes):  # connections of the others are closed when nothing uses them any more
                    if each not in primaries:
                        self._nodes.pop(each, None)
                return

    async def close(self) -> None:
        """Close the connections of the running loop. Later calls raise RuntimeError, except releases."""
        self.closed = True
        for node in list(self._nodes.values()):
            await node.close()


async def _perform_asking(node: AsyncConnections, call: Call) -> Any:
    """Run a call whose slot is just moving to this node: ASKING comes directly before it."""
    _, reply = await node.perform_all([ASKING, by_text(call)], call.timeout)
    if isinstance(reply, (NoReply, CoordinatorUnavailable)):
        raise reply
    return reply
