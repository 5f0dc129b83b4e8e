"""Plans that keep locks, renew and free them; and which nodes of the session are in use. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple
from weakref import WeakValueDictionary

from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import Settings
from fencing.zookeeper.calls import Reply, check, children, delete, exists, failed_at, is_missing, multi, sync
from fencing.zookeeper.layout import nodes_of, queue_of
from fencing.zookeeper.place import ZooKeeperPlace
from fencing.zookeeper.reading import ZooKeeperReading

logger = logging.getLogger("fencing")

MOST_NAMED = 100
"""How many detached locks the closing looks for."""

MOST_REMINTS = 1000
"""How many replacements without an answer are remembered."""

SWEEP_ABOVE = 1000
"""Above how many nodes of locks those are forgotten that others have taken over."""

OVER = "its session in ZooKeeper is over"


class Kept(NamedTuple):
    """What a grant keeps for the backend.

    Args:
        path: of its node.
        session: that the node belongs to.
    """

    path: str
    session: int


class HeldNode(NamedTuple):
    """The node of a lock that this process was granted, and has not released."""

    resource: str
    path: str
    session: int


def _sweep_nothing(seconds: float) -> None:
    """Do nothing: without a coordinator there is no session."""


class ZooKeeperKeeping(ZooKeeperReading):
    """The plans that keep locks, and what they know of the session's nodes."""

    max_renewals: int = 100

    @cached_property
    def _known(self) -> WeakValueDictionary[str, Grant]:
        """The grants that somebody in this process has, by their tokens."""
        return WeakValueDictionary()

    @cached_property
    def tokens_in_use(self) -> WeakValueDictionary[str, ZooKeeperPlace]:
        """The places of those who wait for a lock or ask for one, by their tokens."""
        return WeakValueDictionary()

    @cached_property
    def held_nodes(self) -> dict[str, HeldNode]:
        """The resource and the node of each lock that this process was granted and has not released, by its token."""
        return {}

    def session_is_over(self, session: int) -> None:
        """End all grants of a session. Any thread may call it."""
        for grant in self.held():
            if grant.kept.session == session:
                grant.lose("gone", OVER)
        for token, node in list(self.held_nodes.items()):
            if node.session == session:
                self.held_nodes.pop(token, None)

    def unused_of(self, paths: Sequence[str]) -> list[str]:
        """Return those of the session's nodes that nobody here uses. Any thread may call it."""
        return [
            path
            for path in paths
            for node in nodes_of([path.rpartition("/")[2]])
            if node.token not in self.held_nodes and node.token not in self.tokens_in_use
            if node.token not in self.adoptions.values()  # without an answer: the same request is made again
            if self._remints.get(node.token) not in self.held_nodes  # likewise
        ]

    def forget_missing(self, tokens: Iterable[str], paths: Sequence[str]) -> None:
        """Forget those of the tokens that have none of these nodes: others have adopted them, or forced them out."""
        there, reminted = set(paths), set(self._remints.values())
        for token in tokens:
            if token in reminted:  # it stands for the one that may have replaced it
                continue
            node = self.held_nodes.get(token)
            if node is not None and node.path not in there:
                self.held_nodes.pop(token, None)
        self._sweep_above = max(SWEEP_ABOVE, 2 * len(self.held_nodes))

    def drop(self, grant: Grant) -> None:
        """Free the lock of a lease that was dropped, which the session would keep."""
        if self.held_nodes.pop(grant.token, None) is not None:
            self.sweep_in(0.0)

    sweep_in: Callable[[float], None] = staticmethod(_sweep_nothing)
    """Has the nodes deleted that nobody uses, in so many seconds."""

    _sweep_above = SWEEP_ABOVE

    @cached_property
    def _remints(self) -> dict[str, str]:
        """Of each replacement that got no answer, its token and that of the lease. The lease makes it again."""
        return {}

    def note_remint(self, token: str, former: str) -> None:
        """Note that the replacement of a lease's fence got no answer: its node is in use as long as the lease is."""
        while len(self._remints) >= MOST_REMINTS:
            self._remints.pop(next(iter(self._remints)), None)
        self._remints[token] = former

    def forget_remint(self, token: str, former: str | None) -> None:
        """Note its answer. ``former``: the token that it has replaced."""
        self._remints.pop(token, None)
        if former is not None:
            self.held_nodes.pop(former, None)

    def grant_of(self, resource: str, number: int, token: str, settings: Settings, path: str, reply: Reply) -> Grant:
        """Return the grant of a node of this session, which is in use from now on."""
        self.held_nodes[token] = HeldNode(resource, path, reply.session)
        if len(self.held_nodes) > self._sweep_above:
            self._sweep_above = 2 * len(self.held_nodes)
            self.sweep_in(0.0)
        grant = Grant(resource, number, token, settings.deadline(reply.alive_at), Kept(path, reply.session))
        self._known[token] = grant
        return grant

    # Renew and release

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        """Prove that the session lives, and that each grant's node exists. A transaction goes through the leader."""
        asked = {grant.kept.path for grant in grants}
        alive: Reply | None = None
        about = grants[0].resource
        while asked:
            answer = yield from self.plan_ask(about, settings, deadline, multi(*map(check, asked)))
            reply: Reply = answer.value
            if failed_at(reply.values[0]) is None:
                alive = reply
                break
            paths = sorted(asked)
            answer = yield from self.plan_ask(about, settings, deadline, sync(self.root or "/"), *map(exists, paths))
            there = {path for path, stat in zip(paths, answer.value.values[1:], strict=True) if stat is not None}
            if len(there) == len(asked) and self.clock() >= deadline:
                raise CoordinatorUnavailable("the nodes of its locks come and go; retry", resource=about)
            asked &= there
        until = None if alive is None else settings.deadline(alive.alive_at)
        renewed: list[float | None] = []
        for grant in grants:
            is_there = alive is not None and grant.kept.path in asked and grant.kept.session == alive.session
            renewed.append(until if is_there else None)
            if not is_there:
                self.held_nodes.pop(grant.token, None)
        return renewed

    def plan_release(self, grant: GrantOrFence, settings: Settings, *, deadline: float) -> Plan[bool]:
        resource, token = grant.resource, grant.token
        # First: if this gets no answer, and its connection is lost, the next one deletes what is not in use.
        self.held_nodes.pop(token, None)
        if isinstance(grant, Grant):
            answer = yield from self.plan_ask(resource, settings, deadline, delete(grant.kept.path), is_release=True)
            return not is_missing(answer.value.values[0]) or answer.repeated
        parent = self.root + queue_of(resource)
        answer = yield from self.plan_ask(resource, settings, deadline, sync(parent), children(parent), is_release=True)
        found = answer.value.values[1]
        nodes = [] if is_missing(found) else nodes_of(found[0])
        own = [node for node in nodes if node.token == token]
        held = False
        if own:
            requests = [delete(f"{parent}/{node.name}") for node in own]
            answer = yield from self.plan_ask(resource, settings, deadline, *requests, is_release=True)
            held = own[0] is nodes[0] and (answer.repeated or not is_missing(answer.value.values[0]))
        return held

    def plan_before_closing(self) -> Plan[None]:
        """Warn of the locks that the end of the session frees: they were detached, and nobody has adopted them."""
        held, settings = list(self.held_nodes.values())[-MOST_NAMED:], self.settings.for_one_try()
        if not held:
            return
        try:
            requests = (exists(node.path) for node in held)
            answer = yield from self.plan_ask("closing", settings, self.give_back_deadline(settings), *requests)
        except (CoordinatorUnavailable, RuntimeError):
            return
        freed = [node.resource for node, stat in zip(held, answer.value.values, strict=True) if stat is not None]
        if freed:
            logger.warning(
                "%r frees locks that were detached, and that nobody has adopted, because its session ends with it: %s",
                self,
                ", ".join(map(repr, freed)),
            )
