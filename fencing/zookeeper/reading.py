"""Plans that only read: who holds a lock, who holds which locks. No I/O."""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from fencing.kernel.effects import Plan
from fencing.kernel.patterns import Pattern
from fencing.locks.backend import Holder
from fencing.locks.settings import Settings
from fencing.zookeeper.calls import children, is_missing, read, sync
from fencing.zookeeper.layout import LOCKS, Node, nodes_of, number_of, queue_of, record_of, resource_of
from fencing.zookeeper.requests import ZooKeeperRequests

PAGE_LOCKS = 100


class ZooKeeperReading(ZooKeeperRequests):
    """The plans that only read."""

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        parent = self.root + queue_of(resource)
        while True:
            answer = yield from self.plan_ask(resource, settings, deadline, sync(self.root or "/"), children(parent))
            found = answer.value.values[1]
            nodes = [] if is_missing(found) else nodes_of(found[0])
            if not nodes:
                return None
            answer = yield from self.plan_ask(resource, settings, deadline, read(f"{parent}/{nodes[0].name}"))
            if not is_missing(answer.value.values[0]):
                return describe(nodes, *answer.value.values[0])

    def plan_holders(
        self, pattern: Pattern, page: str, settings: Settings, *, deadline: float
    ) -> Plan[tuple[list[tuple[str, Holder]], str]]:
        """Return a page of holders: see ``ListsHolders`` in ``fencing/locks/capabilities.py``."""
        locks, about = self.root + LOCKS, pattern.text
        answer = yield from self.plan_ask(about, settings, deadline, sync(self.root or "/"), children(locks))
        found = answer.value.values[1]
        names = [] if is_missing(found) else sorted(found[0])
        names = [name for name in names if name > page and pattern.matches(resource_of(name))]
        some = names[:PAGE_LOCKS]
        if not some:
            return [], ""
        answer = yield from self.plan_ask(about, settings, deadline, *(children(f"{locks}/{name}") for name in some))
        queues: list[tuple[str, list[Node]]] = []
        for name, queue in zip(some, answer.value.values, strict=True):
            nodes = [] if is_missing(queue) else nodes_of(queue[0])
            if nodes:
                queues.append((name, nodes))
        holders: list[tuple[str, Holder]] = []
        if queues:
            requests = (read(f"{locks}/{name}/{nodes[0].name}") for name, nodes in queues)
            answer = yield from self.plan_ask(about, settings, deadline, *requests)
            for (name, nodes), seen in zip(queues, answer.value.values, strict=True):
                resource = resource_of(name)
                if is_missing(seen):  # it changes hands
                    holder = yield from self.plan_holder(resource, settings, deadline=deadline)
                else:
                    holder = describe(nodes, *seen)
                if holder is not None:
                    holders.append((resource, holder))
        return holders, some[-1] if len(names) > len(some) else ""


def describe(nodes: Sequence[Node], data: bytes, stat: Any) -> Holder | None:
    """Describe the first node of a queue; None: its waiter does not hold the lock yet.

    Args:
        nodes: the queue. The others are waiters, also of other programs.
        data: of the first one.
        stat: ZooKeeper's description of that.
    """
    node, waiting, record = nodes[0], len(nodes) - 1, record_of(data)
    if record is None:
        expires = bool(stat.ephemeralOwner)
        return Holder(None, None, None, None, digest_of(node, stat), expires=expires, waiting=waiting)
    number = number_of(record, stat.mzxid)
    if number is None:
        return None
    held_for = max(0.0, time.time() - stat.mtime / 1000)
    return Holder(record.owner, number, held_for, None, digest_of(node, stat), expires=True, waiting=waiting)


def digest_of(node: Node, stat: Any) -> str:
    """Return what stands for the grant of a node, of which there may be no number."""
    return sha256(f"{node.name}:{stat.czxid}:{stat.mzxid}".encode()).hexdigest()[:32]
