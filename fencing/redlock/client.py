"""Requests to all nodes at once, for threads: the caller's thread writes to all sockets, then waits for all of them.

A ``Bundle`` has one connection to each node. A call uses one bundle, so the connections are bounded as those of one
Redis are. A reply that came too late is dropped before the next one: replies come in order.

All requests of a token go over one bundle while it owes replies. So a release never overtakes its acquire at a slow
node: the lock would stay there until its ttl ends.
"""

from __future__ import annotations

import time
import weakref
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from fencing.kernel import process
from fencing.kernel.errors import CLOSED, CoordinatorUnavailable
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.lending import Pool
from fencing.kernel.opening import Opener, Openings
from fencing.kernel.retry import NoReply
from fencing.kernel.waking import LOST_WAKE_SECONDS, Wake
from fencing.redis.calls import Call, count_call, release_call
from fencing.redis.connection_factory import MAX_CONNECTIONS, map_error
from fencing.redis.scripts import RELEASE, RELEASE_LATER, RELEASE_SEVERAL
from fencing.redlock.bundle import Bundle, NodeConnection
from fencing.redlock.calls import Fanout
from fencing.redlock.decisions import check_answered
from fencing.redlock.exchange import Exchange
from fencing.redlock.nodes import Nodes
from fencing.redlock.scripts import REMINT

LEAST_WAIT_SECONDS = 1.0
"""How long a thread waits for a bundle at least: the time-out of a node would be too short for that."""

_NO_CALL = Fanout(count_call(0.0), (), 0, 0, 0.0)

MOST_TOKENS = 4096
"""For how many tokens it is known which bundle owes replies. For older ones a release may overtake its acquire."""


class FanoutConnections:
    """The connections of a Redlock coordinator for threads. A forked child opens its own."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.address = self.location = nodes.address
        self._pool = Pool(partial(Bundle, nodes.count), MAX_CONNECTIONS, must_stay=self._must_stay)
        openings = Openings()
        self._openers = [
            Opener(each.address, partial(NodeConnection.greeted, i, each), NodeConnection.close, self._adopt, openings)
            for i, each in enumerate(nodes.factories)
        ]
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._owing: dict[str, weakref.ref[Bundle]] = {}  # token: the bundle that owes replies to its requests

    def perform(self, fanout: Fanout) -> list[Any]:
        """Send the call to nodes, and return their replies.

        Raises:
            NoReply: too few usable replies; another attempt may succeed.
            CoordinatorUnavailable: nodes refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        call, pool = fanout.call, self._pool
        if pool.closed and call.form.script not in (RELEASE, RELEASE_LATER):  # a block may end after the closing
            raise RuntimeError(CLOSED)
        found = self._owing.get(_first_token(call)) if self._owing else None
        wanted = found() if found is not None else None
        bundle: Bundle | None = None
        try:
            try:  # take() does the same, but a call of Python takes its time
                if wanted is None:
                    bundle = pool.free.pop()
                else:
                    pool.free.remove(wanted)
                    bundle = wanted
            except (IndexError, ValueError):
                bundle = self._wait_for_bundle(wanted, fanout) if wanted is not None else None
                bundle = bundle or pool.take(max(fanout.timeout, LEAST_WAIT_SECONDS))
            exchange = Exchange(self.nodes, self._openers, bundle, fanout)
            try:
                exchange.run()
                if exchange.owes or bundle.has_owed:
                    self._note_owing(call.token, bundle)
            except BaseException:
                exchange.abandon()
                raise
        except NoReply as failure:  # no bundle was free in time
            if fanout.least:
                raise
            return [failure] * self.nodes.count  # a round that needs no reply does without them all
        except (RedisError, OSError) as error:
            raise_interruption(error)
            raise map_error(error, self.address) from error
        finally:
            if bundle is not None:
                self._give_back(bundle)
        if call.form.script is RELEASE_SEVERAL:
            self._release_behind(fanout, bundle)
        if not exchange.decided or fanout.quorum < fanout.least:
            check_answered(exchange.replies, fanout.least, undone=call.may_take)
        return exchange.replies

    def _adopt(self, node: NodeConnection) -> bool:
        """Give a connection that came too late for its call to a free bundle."""
        bundle = self._pool.take_free(lambda each: node.index in each.closed)
        if bundle is None:
            return False
        try:
            bundle.adopt(self.nodes, node)
            return True
        except (NoReply, CoordinatorUnavailable):
            return False  # the server is none that can be a node; the next call is told
        finally:
            self._give_back(bundle)

    def _must_stay(self, bundle: Bundle) -> bool:
        """Return whether a thread waits for this very bundle, or it owes replies behind those that have arrived."""
        if bundle.wanted:
            return True
        if bundle.owes():
            Exchange(self.nodes, self._openers, bundle, _NO_CALL).read_late()
        return bundle.owes()

    def _note_owing(self, token: str | None, bundle: Bundle) -> None:
        """Note that the bundle owes replies, perhaps to a request of this token; or that it owes none any more."""
        bundle.has_owed = bundle.owes()
        if not bundle.has_owed:
            for each, owing in list(self._owing.items()):
                if owing is bundle.reference:
                    self._owing.pop(each, None)
        elif token is not None:
            self._owing[token] = bundle.reference
        if len(self._owing) > MOST_TOKENS:
            try:
                self._owing.pop(next(iter(self._owing)), None)  # the oldest
            except (RuntimeError, StopIteration):
                pass  # another thread changes it; the next call tries again

    def _release_behind(self, fanout: Fanout, bundle: Bundle) -> None:
        """Release locks once more, behind their requests, where another bundle owes replies to those."""
        call = fanout.call
        locks = call.keys[:: len(call.keys) // len(call.args)]
        for lock, token in zip(locks, call.args, strict=True):
            found = self._owing.get(str(token))
            if found is not None and found() not in (None, bundle):
                self.perform(Fanout(release_call(lock, str(token)), fanout.nodes, 0, 0, fanout.timeout))

    def _give_back(self, bundle: Bundle) -> None:
        if not bundle.wanted or self._pool.closed or self._pool.is_inherited(bundle):
            self._pool.give_back(bundle)
        else:
            self._pool.free.appendleft(bundle)  # the last one that a call without a wish takes
        if bundle.wanted:  # a thread first says that it waits, and then looks for its bundle
            for wake in list(bundle.wanted)[:1]:
                wake.set()

    def _wait_for_bundle(self, bundle: Bundle, fanout: Fanout) -> Bundle | None:
        """Wait for this very bundle; None: it does not come, and another one will do.

        That is so for a release: an interruption may have taken the bundle from its call, and its traceback keeps it.
        """
        deadline, wake = time.monotonic() + max(fanout.timeout, LEAST_WAIT_SECONDS), Wake()
        try:
            bundle.wanted.append(wake)
            while True:
                try:
                    self._pool.free.remove(bundle)
                    return bundle
                except ValueError:
                    pass  # a call has it
                if time.monotonic() > deadline:
                    if fanout.is_for_anyone:
                        self._owing.pop(_first_token(fanout.call), None)
                        return None
                    raise NoReply(TimeoutError("its connections were busy"), may_have_run=False)
                wake.wait(LOST_WAKE_SECONDS)
        finally:
            if wake in bundle.wanted:
                bundle.wanted.remove(wake)

    def close(self) -> None:
        """Close all connections. Later calls raise RuntimeError, except releases."""
        self._pool.close()


def _first_token(call: Call) -> str:
    """Return the token that the lock is taken from, or for; empty: there is none."""
    return str(call.form.args[-2]) if call.form.script is REMINT else call.token or ""
