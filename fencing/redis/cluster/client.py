"""The coordinator's own connections to the nodes of a Redis Cluster, for threads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import AskError, NoScriptError, RedisError

from fencing.kernel import process
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.lending import Pool
from fencing.kernel.opening import Openings
from fencing.kernel.retry import LEAST_SECONDS, NoReply
from fencing.kernel.waking import Turns, Wake, safe_lock
from fencing.redis import quirks
from fencing.redis.calls import ASKING, CLUSTER_SLOTS, Call, Calls, NodeCall, by_text
from fencing.redis.client import Connections
from fencing.redis.cluster.topology import (
    QUESTION_SECONDS,
    Address,
    Failure,
    Topology,
    cause_of,
    explain_question,
    time_left,
)
from fencing.redis.connection import LazyConnection
from fencing.redis.connection_factory import IDLE_SECONDS, map_error, not_of_a_script


class NodeConnections(Connections):
    """The connections to one node of a Cluster."""

    def perform_asking(self, call: Call) -> Any:
        """Run a call whose slot is just moving to this node: ASKING comes before it, on the same connection."""
        started = time.monotonic()
        connection = self._pool.take(call.timeout)
        try:
            self.perform(ASKING._replace(timeout=call.timeout), connection, started)
            return self.perform(by_text(call), connection, started)  # ASKING is for one command only
        finally:
            self._pool.give_back(connection)

    def send_all(self, calls: Sequence[Call], seconds: float) -> Batch:
        """Send calls, all in one write. Their replies must be read, and the batch must be closed.

        They renew or release, so they wait for no others: see ``URGENT``.
        """
        pool, connection = self._pool.take_urgently(seconds)
        batch = Batch(self, pool, connection, calls)
        try:
            batch.send(seconds)
        except BaseException:
            batch.close()
            raise
        return batch


class Batch:
    """Calls that were sent to a node together, on one connection."""

    def __init__(
        self, node: NodeConnections, pool: Pool[LazyConnection], connection: LazyConnection, calls: Sequence[Call]
    ) -> None:
        self._node, self._pool = node, pool
        self._connection = connection
        self._calls = calls
        self.is_whole = False  # every reply was read
        self._is_closed = False

    def send(self, seconds: float) -> None:
        """Send all calls.

        Raises:
            NoReply, CoordinatorUnavailable: they could not be sent.
        """
        node, connection, now = self._node, self._connection, time.monotonic()
        used, connection.used = connection.used, 0.0
        try:
            is_open = used > node._broken_at and not (now - used > IDLE_SECONDS and connection.is_stale())
            if not is_open:
                node._connect(connection, seconds)
            connection.set_timeout(seconds)
            connection.send(b"".join([call.packed for call in self._calls]))
        except (RedisError, OSError) as error:
            raise_interruption(error)
            node._broken_at = time.monotonic()
            raise map_error(error, node.address) from error

    def read(self, deadline: float) -> list[Any]:
        """Return the reply to each call, or its failure."""
        results: list[Any] = []
        try:
            for call in self._calls:
                reply = self._connection.next_reply(deadline)
                if type(reply) in call.form.script.replies:
                    results.append(reply)
                elif isinstance(reply, NoScriptError):
                    results.append(NoReply(reply, may_have_run=False))
                elif isinstance(reply, RedisError):
                    results.append(map_error(reply, self._node.address))
                else:
                    raise not_of_a_script(reply)
            self.is_whole = True
        except (RedisError, OSError) as error:
            raise_interruption(error)
            self._node._broken_at = time.monotonic()
            results += [NoReply(error, may_have_run=True)] * (len(self._calls) - len(results))
        return results

    def close(self) -> None:
        """Give the connection back, unless that was done."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.is_whole:
            self._connection.used = time.monotonic()
        else:
            self._connection.close()
        self._pool.give_back(self._connection)


class ClusterConnections:
    """The connections of a coordinator on a Redis Cluster for threads: some for each primary, made when needed.

    Replicas are asked for the topology at most. A forked child opens its own connections.
    """

    def __init__(self, client: Any) -> None:
        quirks.require_connections(asynchronous=False)
        self._openings = Openings()
        self._client = client
        known = quirks.known_nodes(client)
        self.address = self.location = "the Cluster of {}:{}".format(*known[0])
        self.topology = Topology(known, quirks.remap_of(client), self.address)
        self.closed = False
        self._nodes: dict[Address, NodeConnections] = {}
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._lock = safe_lock()
        self._asking = Turns()

    def node(self, address: Address) -> NodeConnections:
        """Return the connections to a node."""
        found = self._nodes.get(address)
        if found is None:
            with self._lock:
                made = NodeConnections(quirks.node_client(self._client, *address), self._openings)
                if self.closed:
                    made.close()
                found = self._nodes.setdefault(address, made)
        return found

    def perform(self, effect: Call | Calls | NodeCall) -> Any:
        """Run calls on the primaries of their slots.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: the server refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if type(effect) is Call:
            slot = effect.slot
            assert slot is not None
            return self._run(effect, slot)
        if isinstance(effect, Calls):
            return self._run_all(effect)
        assert isinstance(effect, NodeCall)
        reply = self._run(effect.call, effect.slot)
        return reply, self.topology.next_primary(effect.slot)

    def primary_of(self, slot: int, seconds: float) -> Address:
        """Return the primary of a slot; if it is not known, ask for the topology, at most ``seconds``.

        Raises:
            NoReply, CoordinatorUnavailable: no node has the slot, or no node replied.
        """
        if self.topology.is_stale and not self.closed:
            self._refresh(slot, seconds)
        address = self.topology.owners[slot]
        if address is None:
            raise self.topology.not_covered(slot)
        return address

    def _run(self, call: Call, slot: int) -> Any:
        started, topology = time.monotonic(), self.topology
        address = topology.owners[slot]
        if address is None or topology.is_stale:
            address = self.primary_of(slot, call.timeout)
            call, started = call._replace(timeout=time_left(started, call.timeout)), time.monotonic()
        asking, redirects = False, 0
        while True:
            try:
                node = self._nodes.get(address) or self.node(address)
                return node.perform_asking(call) if asking else node.perform(call)
            except (NoReply, CoordinatorUnavailable) as failure:
                address, asking = topology.follow(failure, slot, address, redirects)
            redirects += 1
            call, started = call._replace(timeout=time_left(started, call.timeout)), time.monotonic()

    def _run_all(self, effect: Calls) -> list[Any]:
        """Run calls on all their nodes at once. The nodes that failed lately come last, and have less time."""
        topology, started, calls = self.topology, time.monotonic(), effect.calls
        deadline = started + effect.timeout
        results: list[Any] = [None] * len(calls)
        by_node: dict[Address, list[int]] = {}
        for i, call in enumerate(calls):
            try:
                slot = call.slot
                assert slot is not None
                by_node.setdefault(self.primary_of(slot, effect.timeout), []).append(i)
            except (NoReply, CoordinatorUnavailable) as failure:
                results[i] = failure
        limits = {address: topology.share_of(address, effect.timeout) for address in by_node}
        for are_suspects in (False, True):  # the replies of the others are read before a node is waited for that failed
            chosen = [address for address in by_node if (limits[address] < effect.timeout) is are_suspects]
            self._run_at(chosen, by_node, calls, results, limits, deadline)
        return results

    def _run_at(
        self,
        nodes: Sequence[Address],
        by_node: Mapping[Address, Sequence[int]],
        calls: Sequence[Call],
        results: list[Any],
        limits: Mapping[Address, float],
        deadline: float,
    ) -> None:
        """Send each of the nodes its calls, and then read all replies."""
        batches: list[tuple[Address, Batch, float]] = []
        try:
            for address in nodes:
                seconds = max(min(deadline - time.monotonic(), limits[address]), LEAST_SECONDS)
                ends_at = time.monotonic() + seconds
                try:
                    batch = self.node(address).send_all([calls[i] for i in by_node[address]], seconds)
                    batches.append((address, batch, ends_at))
                except (NoReply, CoordinatorUnavailable) as failure:
                    self.topology.suspect(address)
                    for i in by_node[address]:
                        results[i] = failure
            for address, batch, ends_at in batches:
                replies = batch.read(ends_at)
                batch.close()  # what is asked again below may need just this connection
                if batch.is_whole:
                    self.topology.trust(address)
                knows_scripts = True
                for i, result in zip(by_node[address], replies, strict=True):
                    if not isinstance(result, (NoReply, CoordinatorUnavailable)):
                        results[i] = result
                    elif not isinstance(cause_of(result), NoScriptError):
                        results[i] = self._follow_one(calls[i], address, result, deadline)
                    else:  # one call brings the script; then the others are repeated together
                        results[i] = self._alone(calls[i], deadline) if knows_scripts else result
                        knows_scripts = False
        finally:
            for _, batch, _ in batches:
                batch.close()

    def _follow_one(self, call: Call, address: Address, failure: Failure, deadline: float) -> Any:
        """Return the reply to one of several calls that failed, or its failure."""
        error = cause_of(failure)
        if type(error) is AskError:  # each call of a slot that moves needs an ASKING of its own
            return self._alone(call, deadline)
        slot = call.slot
        assert slot is not None
        try:
            self.topology.follow(failure, slot, address, 0)
        except (NoReply, CoordinatorUnavailable) as failed:
            return failed
        return NoReply(RedisError(str(error)), may_have_run=False)  # it is repeated with all the others that moved

    def _alone(self, call: Call, deadline: float) -> Any:
        """Return the reply to one of several calls, which is run again alone, or its failure."""
        slot = call.slot
        assert slot is not None
        try:
            return self._run(call._replace(timeout=max(deadline - time.monotonic(), LEAST_SECONDS)), slot)
        except (NoReply, CoordinatorUnavailable) as failure:
            return failure

    def _refresh(self, slot: int, seconds: float) -> None:
        """Ask for the topology, unless that was done a moment ago, or another thread does it just now."""
        topology, asking = self.topology, self._asking
        if topology.owners[slot] is not None and (asking.queue or not topology.must_ask):
            return
        turn = Wake()
        deadline = time.monotonic() + seconds
        try:
            if not asking.take(turn, seconds):
                raise NoReply(TimeoutError("another thread still asks for the nodes"), may_have_run=False)
            if topology.must_ask:
                self._ask(deadline)
        finally:
            asking.queue.pop(turn, None)
            asking.wake_first()

    def _ask(self, deadline: float) -> None:
        topology = self.topology
        for address in topology.to_ask():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                reply = self.node(address).perform(CLUSTER_SLOTS._replace(timeout=min(left, QUESTION_SECONDS)))
                topology.update(reply, address)
            except (NoReply, CoordinatorUnavailable) as failure:
                topology.failure = explain_question(failure, address)
            except RedisError as error:
                topology.failure = NoReply(error, may_have_run=False)
            else:
                primaries = set(topology.owners)
                with self._lock:  # connections of the others are closed when nothing uses them any more
                    self._nodes = {each: node for each, node in self._nodes.items() if each in primaries}
                return

    def close(self) -> None:
        """Close all connections. Later calls raise RuntimeError, except releases."""
        self.closed = True
        for node in list(self._nodes.values()):
            node.close()
