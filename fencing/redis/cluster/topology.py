"""The topology of a Redis Cluster: which primary has which slot. No I/O.

It is asked for by ``CLUSTER SLOTS``, over the coordinator's own connections, because the client's refresh has no time
limit. See https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ (redirection and resharding).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import AskError, ClusterDownError, RedisError, TryAgainError

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import NoReply
from fencing.redis.keys import SLOTS

Address = tuple[str, int]
Failure = NoReply | CoordinatorUnavailable

REFRESH_SECONDS = 1.0
"""The shortest time between two questions for the topology."""

QUESTION_SECONDS = 0.5
"""The time limit of one node that is asked for the topology. Then the next one is asked."""

MOST_REDIRECTS = 5
"""How many redirections one call follows. Two are usual while a slot moves."""

SUSPECT_SECONDS = 10.0
"""How long a node that did not answer has less time for its share of several calls, so that the others wait less."""

SUSPECT_SHARE = 1 / 4

_HIGHEST_PORT = 65_535

_NOT_SERVED = "Hash slot not served"
"""In the error of a node that does not have the slot, and knows of no other one that has it (cluster.c of Redis)."""

FAULT_SECONDS = 1.0
"""How long the Cluster may give an answer that cannot be right. It is right again soon after a change."""


class Topology:
    """The primary of each slot, as far as it is known.

    Args:
        known: addresses of nodes to ask first.
        remap: maps an address that a node names to the one to connect to.
        address: of the Cluster, for messages.

    Attributes:
        owners: the primary of each slot.
        is_stale: whether it may have changed.
        failure: of the node that was asked last; None: it has replied.
    """

    def __init__(self, known: Sequence[Address], remap: Callable[[Address], Address] | None, address: str) -> None:
        self.owners: list[Address | None] = [None] * SLOTS
        self.is_stale = True
        self.address = address
        self._startup = tuple(known)
        self._known = self._startup
        self._remap = remap or (lambda named: named)
        self._asked_at = -REFRESH_SECONDS
        self.failure: Failure | None = None
        self._uncovered: int | None = None
        self._suspects: dict[Address, float] = {}  # when each did not answer
        self._faults: dict[str, tuple[float, float]] = {}  # when each was first and last seen

    @property
    def primaries(self) -> dict[Address, int]:
        """The primaries, each with its first slot, in the order of these."""
        found: dict[Address, int] = {}
        for slot, owner in enumerate(self.owners):
            if owner is not None:
                found.setdefault(owner, slot)
        return found

    def next_primary(self, slot: int) -> int | None:
        """Return the first slot of the primary that comes after the one whose first slot is ``slot``."""
        return min((first for first in self.primaries.values() if first > slot), default=None)

    @property
    def must_ask(self) -> bool:
        """Whether to ask for the topology now."""
        return self.is_stale and time.monotonic() - self._asked_at >= REFRESH_SECONDS

    def to_ask(self) -> list[Address]:
        """Return the nodes to ask, one after another until one replies. Those that failed come last."""
        self._asked_at = time.monotonic()
        nodes = random.sample(self._known, len(self._known))
        nodes += [node for node in self._startup if node not in nodes]
        return sorted(nodes, key=lambda node: self._suspects.get(node, 0.0))

    def update(self, reply: Sequence[Any], asked: Address) -> None:
        """Take over the reply to ``CLUSTER SLOTS``.

        Raises:
            RedisError: this is not such a reply.
        """
        owners: list[Address | None] = [None] * SLOTS
        known: dict[Address, None] = {}
        try:
            for first, last, *nodes in reply:
                begin, end = int(first), int(last) + 1
                if not 0 <= begin < end <= SLOTS:
                    raise RedisError(f"the reply to CLUSTER SLOTS names slots that do not exist: {reply!r:.100}")
                addresses = [self._resolve(node[0], int(node[1]), asked) for node in nodes]
                known.update(dict.fromkeys(addresses))
                owners[begin:end] = [addresses[0]] * (end - begin)
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            raise RedisError(f"this is not a reply to CLUSTER SLOTS: {reply!r:.100}") from error
        self.owners = owners
        self._uncovered = owners.index(None) if None in owners else None
        self._known = tuple(known) or self._startup
        self._suspects = {node: at for node, at in self._suspects.items() if node in known}
        self.is_stale = False
        self.failure = None

    def redirect(self, error: AskError, asked: Address) -> Address:
        """Take over a redirection, and return the node that it names. ASK changes nothing."""
        node = self._resolve(error.host, error.port, asked)
        if type(error) is not AskError and 0 <= error.slot_id < SLOTS:
            self.owners[error.slot_id] = node
            self.is_stale = True  # other slots may have moved with it
        return node

    def suspect(self, node: Address) -> None:
        """Note that a node did not answer: the topology may have changed."""
        self._suspects[node] = time.monotonic()
        self.is_stale = True

    def trust(self, node: Address) -> None:
        """Note that a node answers."""
        self._suspects.pop(node, None)

    def share_of(self, node: Address, seconds: float) -> float:
        """Return the time limit of a node's share of several calls."""
        failed_at = self._suspects.get(node)
        if failed_at is None or time.monotonic() - failed_at > SUSPECT_SECONDS:
            return seconds
        return seconds * SUSPECT_SHARE

    def follow(self, failure: Failure, slot: int, node: Address, redirects: int) -> tuple[Address, bool]:
        """Return the node to try at once after a failure of a node, and whether ASKING must come before the call.

        Args:
            failure: of the call.
            slot: of the call.
            node: that failed.
            redirects: how many the call has followed already.

        Raises:
            NoReply, CoordinatorUnavailable: the failure, unless it is a redirection.
        """
        error = cause_of(failure)
        if isinstance(error, AskError):  # also MovedError
            if redirects >= MOST_REDIRECTS:
                raise self._in_circles(slot, node) from error
            return self.redirect(error, node), type(error) is AskError
        if isinstance(failure, NoReply) and not isinstance(error, TryAgainError):
            self.suspect(node)
        if isinstance(error, ClusterDownError):
            if self._uncovered is not None:
                raise self.not_covered(self._uncovered) from error
            if _NOT_SERVED in str(error):
                raise self._not_served(slot, node) from error
        raise failure

    def not_covered(self, slot: int) -> Failure:
        """Return the error of a slot that no node has. Shortly after a change, another attempt may succeed."""
        if self.failure is not None and self._known == self._startup and self.owners.count(None) == SLOTS:
            if isinstance(self.failure, NoReply):
                return NoReply(self.failure.cause, may_have_run=False)
            return CoordinatorUnavailable(str(self.failure), address=self.failure.address, refused=self.failure.refused)
        text = f"no node has slot {slot}"
        return self._fault(
            "slots", text, f"Redis at {self.address} does not cover all slots: {text}; run redis-cli --cluster fix"
        )

    def _not_served(self, slot: int, node: Address) -> Failure:
        text = f"{_NOT_SERVED}: slot {slot} by {node[0]}:{node[1]}, which has it as others say"
        return self._fault(
            f"slot {slot}", text, f"the nodes of Redis at {self.address} disagree: {text}; run redis-cli --cluster fix"
        )

    def _in_circles(self, slot: int | None, node: Address) -> Failure:
        text = f"{MOST_REDIRECTS} redirections in a row for slot {slot}, the last one by {node[0]}:{node[1]}"
        return self._fault(
            "circles", text, f"the nodes of Redis at {self.address} disagree: {text}; run redis-cli --cluster check"
        )

    def _fault(self, kind: str, text: str, full: str) -> Failure:
        now = time.monotonic()
        first, last = self._faults.get(kind, (now, now))
        first = now if now - last > FAULT_SECONDS else first
        self._faults[kind] = first, now
        self.is_stale = True
        if now - first >= FAULT_SECONDS:
            return CoordinatorUnavailable(full, address=self.address)
        return NoReply(RedisError(text), may_have_run=False)

    def _resolve(self, host: Any, port: int, asked: Address) -> Address:
        name = host.decode() if isinstance(host, bytes) else host
        if not isinstance(name, str | None) or not 0 <= port <= _HIGHEST_PORT:
            raise ValueError(f"{name!r:.100}:{port!r:.20} is no address")
        return self._remap((asked[0] if name in (None, "", "?") else name, port))


def cause_of(failure: Failure) -> BaseException | None:
    """Return the error of redis-py behind a failure of a call."""
    return failure.cause if isinstance(failure, NoReply) else failure.__cause__


def time_left(started: float, seconds: float) -> float:
    """Return the seconds that a call has left, after its primary was looked for.

    Raises:
        NoReply: it has none. Nothing was sent.
    """
    left = started + seconds - time.monotonic()
    if left <= 0:
        raise NoReply(TimeoutError("the time was up before the slot's primary was found"), may_have_run=False)
    return left


def explain_question(failure: Failure, node: Address) -> Failure:
    """Return the error to raise where a node did not tell the topology."""
    text = str(cause_of(failure) or failure)
    address = f"{node[0]}:{node[1]}"
    if "cluster support disabled" in text:
        return CoordinatorUnavailable(
            f"Redis at {address} is one server and no Redis Cluster; pass a redis.Redis, or for asyncio a "
            f"redis.asyncio.Redis",
            address=address,
            refused=True,
        )
    if "permission" in text.lower():
        return CoordinatorUnavailable(
            f"Redis at {address} does not let this user ask for the nodes: {text}; add the ACL rule +cluster|slots",
            address=address,
            refused=True,
        )
    return failure
