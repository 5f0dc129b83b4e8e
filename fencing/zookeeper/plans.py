"""The plans of a ZooKeeper coordinator: its requests, the meaning of the replies, the queue. No I/O."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple
from weakref import WeakValueDictionary

from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable, FencingError
from fencing.kernel.fence import Fence
from fencing.locks.backend import Holder, Taken
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import Settings
from fencing.zookeeper.calls import (
    EPHEMERAL,
    SEQUENTIAL,
    Leave,
    Reply,
    check,
    children,
    create,
    create_in_multi,
    delete,
    exists,
    failed_at,
    is_missing,
    multi,
    put,
    read,
    sync,
)
from fencing.zookeeper.keeping import ZooKeeperKeeping
from fencing.zookeeper.layout import (
    BASES,
    Node,
    Record,
    nodes_of,
    number_of,
    place_of,
    queue_of,
    record_of,
    taken_over,
)
from fencing.zookeeper.place import ZooKeeperPlace
from fencing.zookeeper.reading import digest_of
from fencing.zookeeper.requests import Numbers

MOST_RACES = 20
"""How often a request is made again because another one has changed the base, or the queue."""


class _Seen(NamedTuple):
    """What a request has told.

    Args:
        reply: the last one.
        nodes: the queue.
        granted_at: the position at which the creation of the node took the lock; None: it did not.
        results: of the transaction that takes the lock, if it was made already.
    """

    reply: Reply
    nodes: list[Node]
    granted_at: int | None = None
    results: list[Any] | None = None


class ZooKeeperPlans(ZooKeeperKeeping):
    """The plans of locks in ZooKeeper."""

    session_seconds: float = 10.0
    one_of_many_wins: ClassVar[Literal[True]] = True

    @cached_property
    def _id(self) -> str:
        """Stands for this client in the name of a node."""
        return secrets.token_hex(4)

    @cached_property
    def _places(self) -> WeakValueDictionary[str, ZooKeeperPlace]:
        return WeakValueDictionary()

    # Acquire

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken]:
        place = ZooKeeperPlace(self, resource, token, settings)
        try:
            outcome = yield from self._plan_take(place, floor, deadline, queue=False)
        except FencingError:
            if place.path:  # its node would block all others
                self.give_back_later(Fence(resource, 1, token), settings)
            raise
        if isinstance(outcome, Taken) and place.path:
            yield from self._plan_delete(place, [place.path], deadline)
            place.lose()
        return outcome

    def is_waited_for(self, resource: str) -> bool:
        """Return whether this process has waiters."""
        return resource in self._places

    def plan_queue(
        self,
        resource: str,
        token: str,
        settings: Settings,
        *,
        floor: int,
        deadline: float,
        place: ZooKeeperPlace | None = None,
    ) -> Plan[Grant | Taken]:
        """Do the same as ``plan_acquire`` for a waiter: see ``Queues`` in ``fencing/locks/capabilities.py``."""
        is_new = place is None
        place = place or ZooKeeperPlace(self, resource, token, settings)
        try:
            outcome = yield from self._plan_take(place, floor, deadline, queue=True)
        except FencingError:
            if is_new and place.path:  # nobody else knows it
                self.give_back_later(Fence(resource, 1, token), settings)
            raise
        if isinstance(outcome, Grant):
            yield Leave(place.watch)
            return outcome
        self._places[resource] = place
        return replace(outcome, place=place)

    def _plan_take(self, place: ZooKeeperPlace, floor: int, deadline: float, *, queue: bool) -> Plan[Grant | Taken]:
        """Take the lock if nobody is before this place."""
        resource, settings, token = place.resource, place.settings, place.token
        parent = self.root + queue_of(resource)
        for _ in range(MOST_RACES):
            numbers = yield from self.plan_base(resource, settings, floor, deadline)
            seen = yield from self._plan_inspect(place, numbers, deadline, queue=queue)
            if seen is None:
                continue
            mine = [node for node in seen.nodes if node.token == token]
            if not mine or seen.reply.session != place.session:
                place.lose()
                continue
            path, results, is_first = f"{parent}/{mine[0].name}", seen.results, mine[0] is seen.nodes[0]
            if path != place.path or len(mine) > 1:
                known = yield from self._plan_settle(
                    place, [f"{parent}/{node.name}" for node in mine], is_first, deadline
                )
                if known is not None:
                    return known
                continue
            if is_first and seen.granted_at is not None:
                return self._granted(token, resource, settings, numbers, seen.granted_at, path, seen.reply)
            if not is_first:
                before = seen.nodes.index(mine[0]) - 1
                place.ahead, place.is_next = f"{parent}/{seen.nodes[before].name}", before == 0
                return (yield from self._plan_taken(place, f"{parent}/{seen.nodes[0].name}", deadline))
            reply = seen.reply
            if results is None:
                transaction = self._taking(path, numbers, settings)
                answer = yield from self.plan_ask(resource, settings, deadline, transaction, may_take=token)
                reply, results = answer.value, answer.value.values[0]
            failed = failed_at(results)
            if failed is None:
                return self._granted(token, resource, settings, numbers, results[-1].mzxid, path, reply)
            if failed == len(results) - 1:
                place.lose()
            else:
                self.base = None
        raise CoordinatorUnavailable(f"{resource!r} keeps changing hands; retry", resource=resource)

    def _taking(self, path: str, numbers: Numbers, settings: Settings) -> Any:
        """Return the transaction whose position is that of a grant."""
        return multi(*self.base_operations(numbers), put(path, self._record(numbers, settings)))

    def _plan_inspect(
        self, place: ZooKeeperPlace, numbers: Numbers, deadline: float, *, queue: bool
    ) -> Plan[_Seen | None]:
        """Return the queue, in which the place has a node; None: look again."""
        if not place.path:
            return (yield from self._plan_enter(place, numbers, deadline, queue=queue))
        requests = [children(self.root + queue_of(place.resource))]
        if place.is_woken and place.is_next:  # it is mostly the first, so it does not wait for the reply that says so
            place.is_woken = False
            requests.append(self._taking(place.path, numbers, place.settings))
        answer = yield from self.plan_ask(place.resource, place.settings, deadline, *requests, may_take=place.token)
        found, *results = answer.value.values
        nodes = [] if is_missing(found) else nodes_of(found[0])
        return _Seen(answer.value, nodes, results=results[0] if results else None)

    def _plan_enter(
        self, place: ZooKeeperPlace, numbers: Numbers, deadline: float, *, queue: bool
    ) -> Plan[_Seen | None]:
        """Create the node of a place.

        A try creates it as the holder's. That it is if nobody was in the queue: then one request has taken the lock.
        """
        resource, settings, token = place.resource, place.settings, place.token
        parent = self.root + queue_of(resource)
        tries = not queue and not numbers.log.is_new
        data = self._record(numbers, settings) if tries else Record(None, settings.owner_label).data
        making = create(self.root + place_of(resource, token), data, self.acl, EPHEMERAL | SEQUENTIAL)
        first = (making, children(parent), *([exists(f"{self.root}{BASES}/{numbers.log.base}")] if tries else []))
        answer = yield from self.plan_ask(resource, settings, deadline, *first, may_take=token, keeps_refusals=True)
        reply: Reply = answer.value
        made, found, *base = reply.values
        refusals = [value for value in reply.values if isinstance(value, CoordinatorUnavailable)]
        if refusals:
            if made is not refusals[0] and not is_missing(made):  # nobody without the right to look could find it later
                yield from self._plan_delete(place, [made[0]], deadline)
            raise refusals[0]
        if is_missing(made):
            yield from self.plan_make_parents(resource, settings, deadline, parent)
            return None
        (place.path, stat), place.session = made, reply.session
        nodes = nodes_of(found[0])
        return _Seen(reply, nodes, stat.czxid if tries and took_at_once(stat, found[1], base[0]) else None)

    def _plan_settle(
        self, place: ZooKeeperPlace, paths: list[str], is_first: bool, deadline: float
    ) -> Plan[Grant | None]:
        """Keep one node of a token, the first one that this session has.

        An attempt that was not answered has made another one, or an earlier call, or another client with this token. A
        node of another session must not be waited with: it goes when that is over.

        Returns:
            The grant that the token has already; None: look again.
        """
        resource, settings, token = place.resource, place.settings, place.token
        requests = (*map(read, paths), multi(check(paths[0])))
        answer = yield from self.plan_ask(resource, settings, deadline, *requests)
        reply: Reply = answer.value
        owners = {
            path: value[1].ephemeralOwner
            for path, value in zip(paths, reply.values[:-1], strict=True)
            if not is_missing(value)
        }
        own = [path for path, owner in owners.items() if owner == reply.session]
        is_elsewhere = is_first and paths[0] in owners and paths[0] not in own
        unused = own if is_elsewhere else [path for path in owners if path not in own[:1]]
        if unused:
            yield from self._plan_delete(place, unused, deadline)
        place.path, place.session = "" if is_elsewhere or not own else own[0], reply.session
        if is_elsewhere:
            return (yield from self._plan_replace(resource, token, settings, 0, deadline, _is_no_other, token))
        known = self._known.get(token)
        if known is None or not is_first or own[:1] != paths[:1] or failed_at(reply.values[-1]) is not None:
            return None
        if known.kept.path != own[0]:  # that of an earlier session, which is over: this node is to get a number
            return None
        return self.grant_of(resource, known.number, token, settings, own[0], reply)

    def _plan_taken(self, place: ZooKeeperPlace, first: str, deadline: float) -> Plan[Taken]:
        """Say who has the lock."""
        answer = yield from self.plan_ask(place.resource, place.settings, deadline, read(first), may_take=place.token)
        found = answer.value.values[0]
        if is_missing(found):
            return Taken(math.inf, None)
        record = record_of(found[0])
        if record is None:
            return Taken(math.inf, None, kept_by="foreign")
        return Taken(math.inf, record.owner, kept_by="waiter" if record.base is None else None)

    def _plan_delete(self, place: ZooKeeperPlace, paths: Sequence[str], deadline: float) -> Plan[None]:
        """Delete nodes that are not used."""
        requests = map(delete, paths)
        try:
            yield from self.plan_ask(place.resource, place.settings, deadline, *requests, is_release=True)
        except CoordinatorUnavailable:
            self.give_back_later(Fence(place.resource, 1, place.token), place.settings)
            raise

    # Replace

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        def is_it(node: Node, record: Record | None, stat: Any) -> bool:
            return (node.token, number_of(record, stat.mzxid)) == (grant.token, grant.number)

        try:
            made = yield from self._plan_replace(grant.resource, token, settings, floor, deadline, is_it, None)
        except CoordinatorUnavailable:
            self.note_remint(token, grant.token)
            raise
        self.forget_remint(token, grant.token if made is not None else None)
        return made

    def plan_force(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, holder: Holder
    ) -> Plan[Grant | None]:
        def is_it(node: Node, record: Record | None, stat: Any) -> bool:
            if record is None:
                return digest_of(node, stat) == holder.digest
            return number_of(record, stat.mzxid) == holder.number

        return (yield from self._plan_replace(resource, token, settings, floor, deadline, is_it, token))

    def _plan_replace(
        self,
        resource: str,
        token: str,
        settings: Settings,
        floor: int,
        deadline: float,
        is_it: Callable[[Node, Record | None, Any], bool],
        may_take: str | None,
    ) -> Plan[Grant | None]:
        """Delete the first node of the queue, and create one of this session at its place, in one transaction."""
        parent = self.root + queue_of(resource)
        _asking = ZooKeeperPlace(self, resource, token, settings)  # while it lives, its node is in use
        for _ in range(MOST_RACES):
            numbers = yield from self.plan_base(resource, settings, floor, deadline)
            answer = yield from self.plan_ask(resource, settings, deadline, sync(parent), children(parent))
            nodes = [] if is_missing(answer.value.values[1]) else nodes_of(answer.value.values[1][0])
            if not nodes:
                return None
            first = nodes[0]
            path = f"{parent}/{first.name}"
            answer = yield from self.plan_ask(resource, settings, deadline, read(path), multi(check(path)))
            reply: Reply = answer.value
            if is_missing(reply.values[0]) or failed_at(reply.values[1]) is not None:
                continue
            data, stat = reply.values[0]
            record = record_of(data)
            number = number_of(record, stat.mzxid)
            if first.token == token and number is not None and stat.ephemeralOwner == reply.session:  # it has run
                return self.grant_of(resource, number, token, settings, path, reply)
            if first.token != token and not is_it(first, record, stat):
                return None
            new, data = taken_over(path, token, self._id), self._record(numbers, settings)
            operations = [
                *self.base_operations(numbers),
                delete(path, stat.version),
                create_in_multi(new, data, self.acl, EPHEMERAL),
                put(new, data),
            ]
            answer = yield from self.plan_ask(resource, settings, deadline, multi(*operations), may_take=may_take)
            results = answer.value.values[0]
            failed = failed_at(results)
            if failed is None:
                self.held_nodes.pop(first.token, None)
                return self._granted(token, resource, settings, numbers, results[-1].mzxid, new, answer.value)
            if failed < len(results) - 3:
                self.base = None
        raise CoordinatorUnavailable(f"{resource!r} keeps changing hands; retry", resource=resource)

    # Grants

    def _record(self, numbers: Numbers, settings: Settings) -> bytes:
        return Record(numbers.log.base, settings.owner_label).data

    def _granted(
        self,
        token: str,
        resource: str,
        settings: Settings,
        numbers: Numbers,
        position: int,
        path: str,
        reply: Reply,
    ) -> Grant:
        self.base = numbers.log.base
        return self.grant_of(resource, numbers.log.number_at(position), token, settings, path, reply)


def took_at_once(created: Any, parent: Any, base: Any) -> bool:
    """Return whether the creation of the first node of a queue took the lock, so that its position is the grant's.

    Whoever queues and is granted later must not use that position: those before it may have minted higher numbers.

    Args:
        created: the stat of the node.
        parent: that of its parent, read behind it. If its last change is this very creation, the queue was empty.
        base: the stat of the base, read behind both; None: it is another one by now, and may have been before.
    """
    return bool(created.czxid == parent.pzxid) and base is not None


def _is_no_other(node: Node, record: Record | None, stat: Any) -> bool:
    """Replace no other grant than one with the own token."""
    return False
