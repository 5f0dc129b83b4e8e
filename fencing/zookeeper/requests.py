"""What each plan of a ZooKeeper coordinator uses: a request that is repeated, the base of numbers. No I/O."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import Answer
from fencing.locks.backend import Backend
from fencing.locks.numbers import LogBase, log_base
from fencing.locks.settings import Settings
from fencing.zookeeper.calls import (
    Ask,
    check,
    children,
    create,
    create_container,
    create_in_multi,
    delete,
    exists,
    is_missing,
    put,
)
from fencing.zookeeper.layout import BASES, PARENTS, base_in


class Numbers(NamedTuple):
    """The base of a grant that is about to be taken, and the version of the node that has it as a child."""

    log: LogBase
    version: int


class ZooKeeperRequests(Backend):
    """The requests of all plans.

    Attributes:
        base: the one that was stored when it was last read; None: it was not read, or there is none.
    """

    service = "ZooKeeper"
    clock_floor: bool = True
    root: str = ""
    """The client's chroot, which begins each path."""
    acl: Any = None
    """What may be done with new nodes, and by whom."""

    base: int | None = None
    has_containers: bool = True
    """Whether the servers are taken to have them."""

    def plan_ask(
        self,
        about: str,
        settings: Settings,
        deadline: float,
        *requests: Any,
        may_take: str | None = None,
        is_release: bool = False,
        keeps_refusals: bool = False,
    ) -> Plan[Answer]:
        """Make requests, and repeat them until they are answered."""

        def attempt(timeout: float, last: bool) -> Ask:
            return Ask(requests, timeout, is_release, keeps_refusals)

        return self.plan_until_answered(attempt, about, settings, deadline, may_take=may_take)

    def plan_base(self, resource: str, settings: Settings, floor: int, deadline: float) -> Plan[Numbers]:
        """Return a base with which the next number exceeds the floor."""
        if self.base is not None and not floor:
            return Numbers(LogBase(self.base, self.base), 0)
        while True:
            answer = yield from self.plan_ask(resource, settings, deadline, children(self.root + BASES))
            found, reply = answer.value.values[0], answer.value
            if not is_missing(found):
                break
            yield from self.plan_make_parents(resource, settings, deadline)
        names, stat = found
        self.base = base_in(names, self.address)
        numbers = log_base(
            resource,
            stored=self.base,
            position=reply.position,
            floor=floor,
            clock_us=time.time_ns() // 1000,
            clock_floor=self.clock_floor,
        )
        return Numbers(numbers, stat.version)

    def base_operations(self, numbers: Numbers) -> list[Any]:
        """Return the first operations of a transaction that mints: the stored base is the grant's, or becomes it."""
        (stored, base), bases = numbers.log, self.root + BASES
        if stored == base:
            return [check(f"{bases}/{base}")]
        lifted = [put(bases, b"", numbers.version), create_in_multi(f"{bases}/{base}", b"", self.acl)]
        return lifted if stored is None else [*lifted, delete(f"{bases}/{stored}")]

    def plan_make_parents(self, resource: str, settings: Settings, deadline: float, queue: str = "") -> Plan[None]:
        """Create the nodes that all locks share; and ``queue``, whose children are the queue of a lock."""
        paths = [self.root + each for each in PARENTS]
        seen = yield from self.plan_ask(resource, settings, deadline, *map(exists, paths))
        missing = [create(path, b"", self.acl) for path, stat in zip(paths, seen.value.values, strict=True) if not stat]
        if queue:
            missing.append(create_container(queue, self.acl) if self.has_containers else create(queue, b"", self.acl))
        if not missing:  # another client has just created them
            return
        made = yield from self.plan_ask(resource, settings, deadline, *missing)
        if is_missing(made.value.values[0]) and self.root:
            raise CoordinatorUnavailable(
                f"ZooKeeper at {self.address} has no node {self.root!r}, the chroot of the client; create it, or "
                f"correct the hosts of the client",
                resource=resource,
                address=self.address,
                refused=True,
            )
        if queue and self.has_containers and type(made.value.values[-1]).__name__ == "UnimplementedError":
            self.has_containers = False
            yield from self.plan_make_parents(resource, settings, deadline, queue)
