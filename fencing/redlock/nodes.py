"""What a coordinator knows of its nodes: which process answers, and which is skipped. No I/O."""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Sequence
from typing import Any

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.process import after_fork
from fencing.redis.calls import plain_command
from fencing.redis.connection_factory import PIPELINES, ConnectionFactory, hint_of_valkey
from fencing.redis.quirks import sentinel_service
from fencing.redis.resp import bulk, bulks
from fencing.redis.scripts import RELEASE, RELEASE_LATER, RELEASE_SEVERAL
from fencing.redlock.calls import Fanout, member_words
from fencing.redlock.scripts import ACQUIRE, FORCE_RELEASE, REMINT, RENEW

logger = logging.getLogger("fencing")

INFO = b"*1\r\n" + bulks(("INFO",))
"""The question that each new connection begins with, packed."""

LOAD_CALLS = tuple(
    plain_command("SCRIPT", "LOAD", script.text, replies=(bytes, str))
    for script in (ACQUIRE, RENEW, RELEASE, RELEASE_LATER, RELEASE_SEVERAL, REMINT, FORCE_RELEASE)
)
LOADS = tuple(call.packed for call in LOAD_CALLS)
"""Each new connection loads these scripts, and one whose server has forgotten a script. A node that is slower than the
majority could not ask for their text: its reply is not waited for. An error reply, such as of a user who may not do
that, is ignored."""

STALLED_SECONDS = 1.0
"""A connection whose oldest reply is missing for so long is closed: its network path may be gone."""

FAILURES = 3
"""After so many failures in a row a node is skipped."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""For how long it is skipped, in seconds: the pause doubles with each failure. Then one request tries it again."""


class Health:
    """The circuit breaker of one node. ``failures``: how many requests in a row failed."""

    def __init__(self) -> None:
        self.failures = 0
        self._skipped_until = -math.inf

    def may_ask(self, now: float) -> bool:
        """Return whether a request should be sent. If the pause is over, this is the one request that tries."""
        if self.failures < FAILURES:
            return True
        if now < self._skipped_until:
            return False
        self._skipped_until = now + self._pause()
        return True

    def failed(self, now: float) -> None:
        """Note that it did not reply in time, or that there was no connection."""
        self.failures += 1
        if self.failures >= FAILURES:
            self._skipped_until = now + self._pause()

    def _pause(self) -> float:
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.failures - FAILURES, 10))
        return longest * random.uniform(0.5, 1)


class Nodes:
    """The nodes of a coordinator.

    Attributes:
        failing: the indices of those whose last request failed.
        ready: the indices of those that came back, and have waited long enough to be admitted.
    """

    def __init__(self, clients: Sequence[Any], *, longest_ms: int, restart_wait: bool) -> None:
        self.factories = [ConnectionFactory(client) for client in clients]
        self.count = len(self.factories)
        self.quorum = self.count // 2 + 1
        self.ready: set[int] = set()
        self._words = longest_ms, restart_wait
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        self.failing: set[int] = set()
        self._health = [Health() for _ in self.factories]
        self._run_ids: dict[int, str] = {}

    @property
    def address(self) -> str:
        """The addresses of all, for messages."""
        return ", ".join(factory.address for factory in self.factories)

    def chosen(self, fanout: Fanout, now: float) -> tuple[int, ...]:
        """Return the nodes to connect to: not those that are dead, unless a majority would be missing.

        A release also goes to a dead node whose connection is open: the node may have granted.
        """
        nodes = fanout.nodes
        if self.failing:
            failing = self.failing.intersection(nodes)
            if len(nodes) - len(failing) >= min(fanout.quorum, len(nodes)):
                nodes = tuple([i for i in nodes if i not in failing or self._health[i].may_ask(now)])
        return nodes

    def failed(self, index: int, now: float) -> None:
        """Note that a node did not reply in time, or that there was no connection."""
        self._health[index].failed(now)
        self.failing.add(index)

    def replied(self, index: int) -> None:
        """Note that a node that is failing has replied, perhaps late."""
        self._health[index].failures = 0
        self.failing.discard(index)

    def note(self, index: int, reply: Any) -> None:
        """Note what a reply says of its node."""
        if type(reply) is list and reply[0] == b"back" and int(reply[1]) == 0:
            self.ready.add(index)

    def is_unknown(self, index: int) -> bool:
        """Return whether no connection to the node was ever good."""
        return index not in self._run_ids

    def greeted(self, index: int, reply: Any) -> bytes:
        """Return the words of a member, packed, for a new connection; ``reply``: that to ``INFO``.

        Raises:
            CoordinatorUnavailable: the server is none that can be a node.
        """
        info = dict(re.findall(rb"(?m)^([a-z_]+):([^\r\n]*)", reply)) if isinstance(reply, bytes) else {}
        address = self.factories[index].address
        run_id = info.get(b"run_id", b"").decode()
        if not run_id:
            raise CoordinatorUnavailable(
                f"Redis at {address} does not tell its run id; allow the command INFO", address=address, refused=True
            )
        if info.get(b"role", b"master") != b"master":
            raise CoordinatorUnavailable(
                f"Redis at {address} is a replica; name its primary", address=address, refused=True
            )
        if info.get(b"cluster_enabled", b"0") != b"0":
            raise CoordinatorUnavailable(
                f"Redis at {address} belongs to a Redis Cluster; each node must be a single server",
                address=address,
                refused=True,
            )
        for other, its_id in list(self._run_ids.items()):
            if its_id == run_id and other != index:
                first, second = sorted((other + 1, index + 1))
                raise CoordinatorUnavailable(
                    f"nodes {first} and {second} are the same Redis server, at {address}; name each server once",
                    address=address,
                    refused=True,
                )
        self._run_ids[index] = run_id
        if self.factories[index].must_ask_info():
            self.factories[index].check_info(reply)
        return bulk(member_words(run_id, *self._words))


def check_clients(clients: Any, wanted: Any, coordinator: str) -> list[Any]:
    """Return the clients of the nodes.

    Raises:
        TypeError, ValueError: they are not an odd number of clients of different single servers, at least three.
    """
    name = f"{wanted.__module__.removesuffix('.client')}.{wanted.__name__}"
    if isinstance(clients, (str, bytes)) or not hasattr(clients, "__iter__"):
        raise TypeError(
            f"{coordinator} takes a list of clients, one for each node, such as [{name}.from_url(...), ...], "
            f"not {type(clients).__name__}"
        )
    found: list[Any] = list(clients)
    for number, client in enumerate(found, 1):
        kind = type(client).__name__
        if "Cluster" in kind:
            raise TypeError(f"client {number} is of a Redis Cluster; each node must be a single server, a {name}")
        if not isinstance(client, wanted) or isinstance(client, PIPELINES):
            hint = hint_of_valkey(client, name) or _hint_for(client, coordinator)
            raise TypeError(f"client {number} must be a {name}, not {type(client).__module__}.{kind}{hint}")
        if sentinel_service(client.connection_pool):
            raise TypeError(f"client {number} is of a Sentinel; each node must be a single server, a {name}")
    if len(found) < 3 or len(found) % 2 == 0:
        more = "one node fewer stands as many failures" if len(found) > 2 else "with one server, use RedisCoordinator"
        raise ValueError(f"{coordinator} takes an odd number of nodes, at least 3, not {len(found)}; {more}")
    return found


def _hint_for(client: Any, coordinator: str) -> str:
    if isinstance(client, PIPELINES):
        return "; pass the client that made the pipeline"
    if isinstance(client, str):
        return "; make it with from_url()"
    if type(client).__name__ == "Redis":  # of the other redis-py
        return f"; use {'RedlockCoordinator' if coordinator.startswith('Async') else 'AsyncRedlockCoordinator'}"
    return ""


def check_distinct(factories: Sequence[ConnectionFactory]) -> None:
    """Raise ValueError if two nodes have the same address, even with other databases: one server fails as a whole."""
    seen: dict[str, int] = {}
    for number, factory in enumerate(factories, 1):
        first = seen.setdefault(factory.address, number)
        if first != number:
            raise ValueError(
                f"clients {first} and {number} are of the same server, {factory.address}; name each server once"
            )
