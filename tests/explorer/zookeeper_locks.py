"""The plans of ``fencing/zookeeper`` over a model of ZooKeeper, in every order of their requests.

Clients perform the coordinator's own plans. What a request does is written down here: nodes, transactions, positions.
The requests of one effect are made one by one, in their order, and those of others may come between them. The
connection may be lost between any two of them, and after the last one: then no reply comes, and what was not made yet
never is, because a server refuses what comes from a connection that its session has left.

A session may end at any time, with all its nodes. Whoever holds a lock by then knows it, by its own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from unittest import mock

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import ZnodeStat

from fencing.kernel.effects import Sleep
from fencing.kernel.retry import NoReply
from fencing.locks.backend import Taken
from fencing.locks.holding import Grant
from fencing.locks.settings import Settings
from fencing.zookeeper.calls import EPHEMERAL, SEQUENTIAL, Ask, Leave, Reply, Wait
from fencing.zookeeper.layout import BASES, LOCKS
from fencing.zookeeper.plans import ZooKeeperPlans
from tests.explorer.state import OVERLAP, Step

__all__ = ["LEFT_BEHIND", "NOT_GROWING", "OTHER_NUMBER", "ZooKeeperScenario", "ZooKeeperWorld", "acquires", "remints"]

NOT_GROWING = "a grant has no higher number than one before"
OTHER_NUMBER = "a token has two numbers"
LEFT_BEHIND = "all have ended, and a lock is taken"

NAMES = "ABC"
LOST = "lost"
SETTINGS = Settings(ttl=10.0)
FOREVER = 10.0**6

_ERRORS = {each.__name__: each for each in (BadVersionError, NodeExistsError, NoNodeError, RolledBackError)}


class Holds(NamedTuple):
    """The client believes in a lock, or no longer: the number is 0."""

    resource: str
    number: int
    token: str = ""


Moves = Generator[Any, Any, None]


class Plans(ZooKeeperPlans):
    """The plans, with a clock that stands still."""

    clock = staticmethod(lambda: 1.0)

    def __init__(self) -> None:
        self.settings, self.clock_floor, self.acl, self.base = SETTINGS, False, (), 0


def _take(backend: Plans, resource: str, token: str, *, tries: bool) -> Generator[Any, Any, Grant]:
    place: Any = None
    if tries:
        outcome: Any = yield from backend.plan_acquire(resource, token, SETTINGS, floor=0, deadline=FOREVER)
        if isinstance(outcome, Grant):
            return outcome
    while True:
        outcome = yield from backend.plan_queue(resource, token, SETTINGS, floor=0, deadline=FOREVER, place=place)
        if isinstance(outcome, Grant):
            return outcome
        assert isinstance(outcome, Taken)
        place = outcome.place
        yield from place.plan_wait(FOREVER)


def acquires(*names: str, tries: bool = True) -> Callable[[Plans, int], Moves]:
    """Take locks, one after the other, and release each. ``tries``: without a place in the queue at first."""

    def moves(backend: Plans, client: int) -> Moves:
        for turn, resource in enumerate(names):
            token = f"{NAMES[client]}{turn}" * 11
            grant = yield from _take(backend, resource, token, tries=tries)
            yield Holds(resource, grant.number, token)
            yield Holds(resource, 0)
            yield from backend.plan_release(grant, SETTINGS, deadline=FOREVER)

    return moves


def remints(resource: str, by: int, *, tries: bool = True) -> Callable[[Plans, int], Moves]:
    """Take a lock, replace its fence by one that is higher by so much, and release it."""

    def moves(backend: Plans, client: int) -> Moves:
        grant = yield from _take(backend, resource, f"{NAMES[client]}0" * 11, tries=tries)
        floor, token = grant.number + by, f"{NAMES[client]}9" * 11
        reminted = yield from backend.plan_remint(grant, token, SETTINGS, floor=floor, deadline=FOREVER)
        if reminted is None:  # its session was over
            return
        yield Holds(resource, reminted.number, token)
        yield Holds(resource, 0)
        yield from backend.plan_release(reminted, SETTINGS, deadline=FOREVER)

    return moves


@dataclass(frozen=True)
class ZooKeeperScenario:
    """Clients, and what may happen to them.

    Args:
        lost: how often a connection is lost at most.
        ends: how many sessions end at most.
    """

    name: str
    programs: tuple[Callable[[Plans, int], Moves], ...]
    lost: int = 0
    ends: int = 0


class Stored(NamedTuple):
    data: bytes
    created: int
    modified: int
    version: int = 0
    owner: int = 0


class ZooKeeperState(NamedTuple):
    """Everything; hashable."""

    clients: tuple[tuple[Any, ...], ...]  # the answers of each
    sessions: tuple[int, ...]  # of each
    begun: tuple[tuple[Any, ...], ...]  # the values of each that belong to the effect under way
    position: int = 1
    nodes: tuple[tuple[str, Stored], ...] = ()
    children: tuple[tuple[str, tuple[int, int]], ...] = ()  # of a parent: how many were created, the last change
    numbers: tuple[tuple[str, int], ...] = ()  # the highest of each lock
    tokens: tuple[tuple[str, int], ...] = ()  # the number of each token
    believing: tuple[tuple[str, int], ...] = ()  # the lock, and the client
    lost: int = 0
    ended: int = 0


@lru_cache(maxsize=400_000)
def _effect_of(program: Callable[[Plans, int], Moves], client: int, answers: tuple[Any, ...]) -> Any:
    """What the client does next, after these answers. None: it has ended."""
    with mock.patch("fencing.zookeeper.requests.time.time_ns", return_value=0):
        moves = program(Plans(), client)
        try:
            effect = _next(moves, None)
            for answer in answers:
                effect = _next(moves, answer)
        except StopIteration:
            return None
        finally:
            moves.close()
        return effect


def _next(moves: Moves, answer: Any) -> Any:
    """Go on to the next effect that concerns others."""
    if answer == LOST:
        effect = moves.throw(NoReply(ConnectionError("lost"), may_have_run=True))
    else:
        effect = moves.send(_reply(*answer) if isinstance(answer, tuple) else answer)
    while not isinstance(effect, (Ask, Wait, Holds)):
        assert isinstance(effect, (Sleep, Leave))
        effect = moves.send(None)
    return effect


def _reply(values: tuple[Any, ...], session: int, position: int) -> Reply:
    return Reply([_value(each) for each in values], session, 1.0, position)


def _value(value: Any) -> Any:
    """An error, a list of those of a transaction, or what it is."""
    if isinstance(value, str) and value in _ERRORS:
        return _ERRORS[value]()
    if value == "RuntimeInconsistency":
        return RuntimeInconsistency()
    if isinstance(value, tuple) and value and value[0] == "multi":
        return [_value(each) for each in value[1:]]
    return value


class ZooKeeperWorld:
    """The steps of a scenario."""

    most_refusals = 0

    def __init__(self, scenario: ZooKeeperScenario) -> None:
        self.scenario = scenario

    def start(self) -> ZooKeeperState:
        count = len(self.scenario.programs)
        nodes = {BASES: Stored(b"", 1, 1), f"{BASES}/0": Stored(b"", 1, 1)}
        for name in "ab":
            nodes[f"{LOCKS}/{name}"] = Stored(b"", 1, 1)
        return ZooKeeperState(
            ((),) * count, tuple(range(1, count + 1)), ((),) * count, nodes=tuple(sorted(nodes.items()))
        )

    def steps(self, state: ZooKeeperState) -> Iterator[Step]:
        have_ended = True
        for client, program in enumerate(self.scenario.programs):
            effect = _effect_of(program, client, state.clients[client])
            if effect is not None:
                have_ended = False
                yield from self._client_steps(state, client, effect)
            if effect is not None and state.ended < self.scenario.ends:
                yield Step(f"the session of {NAMES[client]} ends", _session_over(state, client))
        if have_ended and any(node.owner for _, node in state.nodes):
            yield Step("the end", state, (LEFT_BEHIND,))

    def _client_steps(self, state: ZooKeeperState, client: int, effect: Any) -> Iterator[Step]:
        name = NAMES[client]
        if isinstance(effect, Holds):
            yield self._believes(state, client, effect)
            return
        if isinstance(effect, Wait):
            if effect.path not in dict(state.nodes):
                yield Step(f"{name} is woken", _answered(state, client, True))
            return
        begun = state.begun[client]
        request = effect.requests[len(begun)]
        server = _Server(state, state.sessions[client])
        value = server.serve(request)
        values = (*begun, value)
        after = server.state(state)
        kind = type(request).__name__
        if len(values) == len(effect.requests):
            answer = (values, state.sessions[client], after.position)
            yield Step(f"{name} {kind}", _answered(after, client, answer))
        else:
            yield Step(f"{name} {kind}", _begun(after, client, values))
        if state.lost < self.scenario.lost:
            if not begun:
                lost = _answered(state._replace(lost=state.lost + 1), client, LOST)
                yield Step(f"{name} loses the connection before {kind}", lost)
            lost = _answered(after._replace(lost=state.lost + 1), client, LOST)
            yield Step(f"{name} {kind}, and the connection is lost", lost)

    def _believes(self, state: ZooKeeperState, client: int, holds: Holds) -> Step:
        others = tuple(each for each in state.believing if each[1] != client)
        violated: tuple[str, ...] = ()
        numbers, tokens = dict(state.numbers), dict(state.tokens)
        if holds.number and self._has_node(state, client):  # else its session is over, as it knows
            if any(each[0] == holds.resource for each in others):
                violated += (OVERLAP,)
            if holds.number <= numbers.get(holds.resource, -1):
                violated += (NOT_GROWING,)
            if tokens.setdefault(holds.token, holds.number) != holds.number:
                violated += (OTHER_NUMBER,)
            numbers[holds.resource] = max(holds.number, numbers.get(holds.resource, 0))
            others = (*others, (holds.resource, client))
        after = state._replace(
            believing=others, numbers=tuple(sorted(numbers.items())), tokens=tuple(sorted(tokens.items()))
        )
        return Step(
            f"{NAMES[client]} believes in {holds.number or 'nothing'}", _answered(after, client, None), violated
        )

    def _has_node(self, state: ZooKeeperState, client: int) -> bool:
        return any(node.owner == state.sessions[client] for _, node in state.nodes)


def _answered(state: ZooKeeperState, client: int, answer: Any) -> ZooKeeperState:
    clients = list(state.clients)
    clients[client] = (*clients[client], answer)
    return _begun(state._replace(clients=tuple(clients)), client, ())


def _begun(state: ZooKeeperState, client: int, values: tuple[Any, ...]) -> ZooKeeperState:
    begun = list(state.begun)
    begun[client] = values
    return state._replace(begun=tuple(begun))


def _session_over(state: ZooKeeperState, client: int) -> ZooKeeperState:
    """End a session. What is under way in it gets no reply, and the client has another one from then on."""
    server = _Server(state, state.sessions[client])
    server.end()
    sessions = list(state.sessions)
    sessions[client] += 10
    believing = tuple(each for each in state.believing if each[1] != client)
    after = server.state(state)._replace(sessions=tuple(sessions), believing=believing, ended=state.ended + 1)
    return _answered(after, client, LOST) if state.begun[client] else after


class _Failed(Exception):
    pass


class _Server:
    """What requests of a session do."""

    def __init__(self, state: ZooKeeperState, session: int) -> None:
        self.position, self.nodes, self.children = state.position, dict(state.nodes), dict(state.children)
        self.session = session

    def state(self, before: ZooKeeperState) -> ZooKeeperState:
        return before._replace(
            position=self.position,
            nodes=tuple(sorted(self.nodes.items())),
            children=tuple(sorted(self.children.items())),
        )

    def end(self) -> None:
        gone = [path for path, node in self.nodes.items() if node.owner == self.session]
        self.position += 1
        for path in gone:
            self._remove(path)

    def serve(self, request: Any) -> Any:
        kind = type(request).__name__
        if kind == "Transaction":
            return self._transaction(request.operations)
        if kind in ("Create2", "Delete", "SetData"):
            self.position += 1
        try:
            return self._do(kind, request)
        except _Failed as failed:
            return str(failed)

    def _transaction(self, operations: list[Any]) -> Any:
        before = self.position, dict(self.nodes), dict(self.children)
        self.position += 1
        values: list[Any] = ["multi"]
        for index, operation in enumerate(operations):
            try:
                values.append(self._do(type(operation).__name__, operation))
            except _Failed as failed:
                _, self.nodes, self.children = before
                after = len(operations) - index - 1
                return ("multi", *["RolledBackError"] * index, str(failed), *["RuntimeInconsistency"] * after)
        return tuple(values)

    def _do(self, kind: str, request: Any) -> Any:
        if kind in ("Create", "Create2"):
            path = self._create(request)
            return path if kind == "Create" else (path, self._stat(path))
        path = request.path
        if kind == "Sync":
            return path
        if kind == "Exists":
            return self._stat(path) if path in self.nodes else None
        node = self.nodes.get(path)
        if node is None:
            raise _Failed("NoNodeError")
        if getattr(request, "version", -1) not in (-1, node.version):
            raise _Failed("BadVersionError")
        if kind == "Delete":
            self._remove(path)
            return True
        if kind == "SetData":
            self.nodes[path] = node._replace(data=request.data, modified=self.position, version=node.version + 1)
            return self._stat(path)
        if kind == "GetData":
            return node.data, self._stat(path)
        if kind == "GetChildren2":
            names = tuple(each.rpartition("/")[2] for each in self.nodes if each.rpartition("/")[0] == path)
            return names, self._stat(path)
        assert kind == "CheckVersion"
        return True

    def _create(self, request: Any) -> str:
        parent, path = request.path.rpartition("/")[0], request.path
        if parent not in self.nodes:
            raise _Failed("NoNodeError")
        made, _ = self.children.get(parent, (0, 1))
        if request.flags & SEQUENTIAL:
            path = f"{path}{made:010d}"
        if path in self.nodes:
            raise _Failed("NodeExistsError")
        self.children[parent] = made + 1, self.position
        owner = self.session if request.flags & EPHEMERAL else 0
        self.nodes[path] = Stored(request.data, self.position, self.position, 0, owner)
        return str(path)

    def _remove(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        del self.nodes[path]
        made, _ = self.children.get(parent, (0, 1))
        self.children[parent] = made, self.position

    def _stat(self, path: str) -> ZnodeStat:
        node = self.nodes[path]
        _, changed = self.children.get(path, (0, node.created))
        return ZnodeStat(node.created, node.modified, 0, 0, node.version, 0, 0, node.owner, 0, 0, changed)
