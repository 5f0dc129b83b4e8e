"""The plans of ``fencing/etcd`` over a model of etcd, in every order of their requests.

Clients perform the coordinator's own plans, request by request. What a request does is written down here: transactions,
leases, revisions. A reply can be lost. A request can be lost, too, and then it arrives at any later time, or never. A
waiter goes on when the key is gone that it watches.

Time passes in steps, and a lease lasts for two of them. When a leader is frozen, another one leads, which gives each
lease its full time. The former leader may still answer one renewal.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from unittest import mock

from fencing.etcd.calls import Call, Key, Refusal, Reply
from fencing.etcd.layout import LOCKS, number_of, queue_of, record_of, resource_of
from fencing.etcd.leases import Leases
from fencing.etcd.plans import EtcdPlans
from fencing.etcd.waiters import Wait
from fencing.kernel.effects import Sleep
from fencing.kernel.retry import NoReply
from fencing.locks.backend import Taken
from fencing.locks.holding import Grant
from fencing.locks.settings import Settings
from tests.explorer.state import OVERLAP, Step

__all__ = ["LEFT_BEHIND", "NOT_GROWING", "EtcdScenario", "EtcdWorld", "acquires", "remints", "renews"]

NOT_GROWING = "a grant has no higher number than one before"
OTHER_NUMBER = "a token has two numbers"
LEFT_BEHIND = "all have ended, and a lock is taken"

NAMES = "ABC"
LOST = "lost"
SETTINGS = Settings(ttl=10.0)
FOREVER = 10.0**6
TTL_STEPS = 2
FORMER, NOW = {"raft_term": "1"}, {"raft_term": "2"}


class Holds(NamedTuple):
    """The client believes in a lock, or no longer: the number is 0."""

    resource: str
    number: int


Moves = Generator[Any, Any, None]


class Plans(EtcdPlans):
    """The plans, with a clock that stands still."""

    clock = staticmethod(lambda: 1.0)

    def __init__(self) -> None:
        self.leases, self.settings, self.clock_floor = Leases(), SETTINGS, False


def _take(backend: Plans, resource: str, token: str) -> Generator[Any, Any, Grant]:
    place: Any = None
    while True:
        outcome = yield from backend.plan_queue(resource, token, SETTINGS, floor=0, deadline=FOREVER, place=place)
        if isinstance(outcome, Grant):
            return outcome
        assert isinstance(outcome, Taken)
        place = outcome.place
        yield from place.plan_wait(FOREVER)


def acquires(*names: str) -> Callable[[Plans, int], Moves]:
    """Take locks, one after the other, and release each."""

    def moves(backend: Plans, client: int) -> Moves:
        for turn, resource in enumerate(names):
            grant = yield from _take(backend, resource, f"{NAMES[client]}{turn}" * 11)
            yield Holds(resource, grant.number)
            yield Holds(resource, 0)
            yield from backend.plan_release(grant, SETTINGS, deadline=FOREVER)

    return moves


def remints(resource: str, by: int) -> Callable[[Plans, int], Moves]:
    """Take a lock, replace its fence by one that is higher by so much, and release it."""

    def moves(backend: Plans, client: int) -> Moves:
        grant = yield from _take(backend, resource, f"{NAMES[client]}0" * 11)
        floor, token = grant.number + by, f"{NAMES[client]}9" * 11
        reminted = yield from backend.plan_remint(grant, token, SETTINGS, floor=floor, deadline=FOREVER)
        assert reminted is not None
        yield Holds(resource, reminted.number)
        yield Holds(resource, 0)
        yield from backend.plan_release(reminted, SETTINGS, deadline=FOREVER)

    return moves


def renews(resource: str) -> Callable[[Plans, int], Moves]:
    """Take a lock, renew it once, and let it end."""

    def moves(backend: Plans, client: int) -> Moves:
        grant = yield from _take(backend, resource, f"{NAMES[client]}0" * 11)
        yield Holds(resource, grant.number)
        [until] = yield from backend.plan_renew([grant], SETTINGS, deadline=FOREVER)
        yield Holds(resource, grant.number if isinstance(until, float) else 0)

    return moves


@dataclass(frozen=True)
class EtcdScenario:
    """Clients, and what may happen to them.

    Args:
        lost: how many requests or replies are lost at most.
        times: how many steps of time pass at most.
        elects: whether another leader is elected once, because the first one is frozen.
    """

    name: str
    programs: tuple[Callable[[Plans, int], Moves], ...]
    lost: int = 0
    times: int = 0
    elects: bool = False


class Stored(NamedTuple):
    value: str
    created: int
    modified: int
    lease: int


class EtcdState(NamedTuple):
    """Everything; hashable."""

    clients: tuple[tuple[Any, ...], ...]  # the answers of each
    revision: int = 1
    keys: tuple[tuple[str, Stored], ...] = ()
    leases: tuple[tuple[int, int], ...] = ()  # and when each was renewed
    late: tuple[Call, ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()  # the highest of each lock
    tokens: tuple[tuple[str, int], ...] = ()  # the number of each token
    believing: tuple[tuple[str, int, int], ...] = ()  # the lock, the client, and until when
    lost: int = 0
    time: int = 0
    sent: tuple[tuple[int, int], ...] = ()  # the last request of each client that gave a lease its time
    former: int = 0  # 0: it leads; 1: another one leads, and it has not noticed; 2: it has


@lru_cache(maxsize=200_000)
def _effect_of(program: Callable[[Plans, int], Moves], client: int, answers: tuple[Any, ...]) -> Any:
    """What the client does next, after these answers. None: it has ended."""
    ids = iter(range(100 * client, 100 * client + 100))
    with (
        mock.patch("fencing.etcd.leases.secrets.randbits", side_effect=ids),
        mock.patch("fencing.etcd.plans.time.time", return_value=0.0),
        mock.patch("fencing.etcd.requests.time.time_ns", return_value=0),
    ):
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
        effect = moves.send(_reply(answer) if isinstance(answer, str) else answer)
    while not isinstance(effect, (Call, Wait, Holds)):
        assert isinstance(effect, Sleep) or type(effect).__name__ == "Leave"
        effect = moves.send(None)
    return effect


def _reply(text: str) -> Reply:
    refused, *messages = json.loads(text)
    return Reply(messages, Refusal(refused) if refused else None)


class EtcdWorld:
    """The steps of a scenario."""

    most_refusals = 0

    def __init__(self, scenario: EtcdScenario) -> None:
        self.scenario = scenario

    def start(self) -> EtcdState:
        return EtcdState(((),) * len(self.scenario.programs))

    def steps(self, state: EtcdState) -> Iterator[Step]:
        have_ended = True
        for client, program in enumerate(self.scenario.programs):
            effect = _effect_of(program, client, state.clients[client])
            if effect is not None:
                have_ended = False
                yield from self._client_steps(state, client, effect)
        for index, call in enumerate(state.late):
            without = state._replace(late=state.late[:index] + state.late[index + 1 :])
            after, _, violated = _served(without, call)
            yield Step(f"{call.path} arrives late", after, violated)
        if have_ended and not state.late and any(name.startswith(LOCKS) for name, _ in state.keys):
            yield Step("the end", state, () if self.scenario.times else (LEFT_BEHIND,))
        if state.time < self.scenario.times:
            yield Step("time passes", _later(state))
        if self.scenario.elects and not state.former:
            renewed = tuple((lease, state.time) for lease, _ in state.leases)
            yield Step("the leader is frozen, and another one leads", state._replace(leases=renewed, former=1))

    def _client_steps(self, state: EtcdState, client: int, effect: Any) -> Iterator[Step]:
        name = NAMES[client]
        if isinstance(effect, Holds):
            yield self._believes(state, client, effect)
            return
        if isinstance(effect, Wait):
            if effect.key not in dict(state.keys):
                yield Step(f"{name} is woken", _answered(state, client, True))
            return
        if effect.path == "lease/keepalive" and state.former == 1:
            lease = int(json.loads(effect.body)["ID"])
            message = {"header": FORMER, "ID": str(lease), **({"TTL": "10"} if lease in dict(state.leases) else {})}
            noted = _answered(_sent(state._replace(former=2), client, effect), client, json.dumps(["", message]))
            yield Step(f"{name} {effect.path} at the former leader", noted)
        after, reply, violated = _served(state, effect)
        after = _sent(after, client, effect)
        yield Step(f"{name} {effect.path}", _answered(after, client, reply), violated)
        if state.lost < self.scenario.lost:
            lost = _answered(after._replace(lost=state.lost + 1), client, LOST)
            yield Step(f"{name} {effect.path}, and its reply is lost", lost, violated)
            late = state._replace(late=(*state.late, effect), lost=state.lost + 1)
            yield Step(f"{name} {effect.path} is under way", _answered(late, client, LOST))

    def _believes(self, state: EtcdState, client: int, holds: Holds) -> Step:
        others = tuple(each for each in state.believing if each[1] != client)
        violated: tuple[str, ...] = ()
        until = dict(state.sent)[client] + TTL_STEPS
        if holds.number and until > state.time:  # else it knows that its time is over
            if any(each[0] == holds.resource for each in others):
                violated += (OVERLAP,)
            if dict(state.numbers)[holds.resource] != holds.number:
                violated += (OTHER_NUMBER,)
            others = (*others, (holds.resource, client, until))
        after = _answered(state._replace(believing=others), client, None)
        return Step(f"{NAMES[client]} believes in {holds.number or 'nothing'}", after, violated)


def _answered(state: EtcdState, client: int, answer: Any) -> EtcdState:
    clients = list(state.clients)
    clients[client] = (*clients[client], answer)
    return state._replace(clients=tuple(clients))


def _sent(state: EtcdState, client: int, call: Call) -> EtcdState:
    """Note when a client has asked for the full time of a lease."""
    if not call.path.startswith("lease/"):
        return state
    return state._replace(sent=tuple(sorted((dict(state.sent) | {client: state.time}).items())))


def _later(state: EtcdState) -> EtcdState:
    """End what was believed, and then the leases, of which the time is over."""
    time = state.time + 1
    believing = tuple(each for each in state.believing if each[2] > time)
    server = _Server(state)
    for lease, renewed in state.leases:
        if renewed + TTL_STEPS <= time:
            for name, key in state.keys:
                record = record_of(Key(name, *key))
                if record is not None and key.lease == lease:
                    server.tokens.pop(record.token, None)  # it may be granted another number
            server.revoke(lease)
    return server.state(state._replace(time=time, believing=believing))


# The server


def _served(state: EtcdState, call: Call) -> tuple[EtcdState, str, tuple[str, ...]]:
    """Return the state after a request, its reply, and what it has violated."""
    server = _Server(state)
    body = json.loads(call.body.splitlines()[0])
    lease = int(body.get("ID", 0))
    if call.path == "kv/txn":
        refused, message = server.transact(body)
    elif call.path == "lease/grant":
        refused, message = ("lease already exists", {}) if lease in server.leases else ("", {"ID": str(lease)})
        server.leases.setdefault(lease, state.time)
    elif call.path == "lease/keepalive":
        refused, message = "", {"header": server.header, "ID": str(lease)}
        if lease in server.leases:
            message["TTL"], server.leases[lease] = "10", state.time
    else:
        refused, message = ("" if lease in server.leases else "requested lease not found"), {}
        server.revoke(lease)
    return server.state(state), json.dumps([refused, message]), tuple(server.violated)


def _plain(text: str) -> str:
    return b64decode(text).decode()


class _Server:
    def __init__(self, state: EtcdState) -> None:
        self.revision, self.keys, self.leases = state.revision, dict(state.keys), dict(state.leases)
        self.header: dict[str, Any] = NOW if state.former else FORMER
        self.numbers, self.tokens = dict(state.numbers), dict(state.tokens)
        self.violated: list[str] = []

    def state(self, before: EtcdState) -> EtcdState:
        return before._replace(
            revision=self.revision,
            keys=tuple(sorted(self.keys.items())),
            leases=tuple(sorted(self.leases.items())),
            numbers=tuple(sorted(self.numbers.items())),
            tokens=tuple(sorted(self.tokens.items())),
        )

    def revoke(self, lease: int) -> None:
        self.leases.pop(lease, None)
        gone = [name for name, key in self.keys.items() if key.lease == lease]
        self.revision += bool(gone)
        for name in gone:
            del self.keys[name]

    def transact(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        chosen = self._chosen(body)
        if any(lease not in self.leases for lease in self._leases_of(chosen)):
            return "requested lease not found", {}
        self.writes = False
        responses, self.at = [], self.revision + 1
        succeeded = self._holds(body)
        responses = [self._step(step) for step in chosen]
        self.revision += self.writes
        header = self.header | {"revision": str(self.revision)}
        return "", {"header": header, "succeeded": succeeded, "responses": responses}

    def _chosen(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = body["success" if self._holds(body) else "failure"]
        return found

    def _leases_of(self, steps: list[dict[str, Any]]) -> Iterator[int]:
        for step in steps:
            if "request_txn" in step:
                yield from self._leases_of(self._chosen(step["request_txn"]))
            if lease := int(step.get("request_put", {}).get("lease", 0)):
                yield lease

    def _holds(self, body: dict[str, Any]) -> bool:
        return all(self._is_so(each) for each in body["compare"])

    def _range(self, asked: dict[str, Any]) -> list[tuple[str, Stored]]:
        first = _plain(asked["key"])
        if "range_end" not in asked:
            return [(first, self.keys[first])] if first in self.keys else []
        return [(name, key) for name, key in sorted(self.keys.items()) if first <= name < _plain(asked["range_end"])]

    def _is_so(self, condition: dict[str, Any]) -> bool:
        found = [key for _, key in self._range(condition)]
        if not found and "range_end" not in condition:
            if condition["target"] == "VALUE":
                return False
            found = [Stored("", 0, 0, 0)]
        for key in found:
            if condition["target"] == "VALUE":
                if key.value != _plain(condition["value"]):
                    return False
                continue
            field = {"CREATE": "create_revision", "MOD": "mod_revision"}[condition["target"]]
            actual = key.created if field == "create_revision" else key.modified
            wanted = int(condition[field])
            if not (actual > wanted if condition["result"] == "GREATER" else actual == wanted):
                return False
        return True

    def _step(self, step: dict[str, Any]) -> dict[str, Any]:
        [(kind, asked)] = step.items()
        if kind == "request_txn":
            return {"response_txn": {"responses": [self._step(each) for each in self._chosen(asked)]}}
        if kind == "request_range":
            return {"response_range": {"kvs": self._read(asked)}}
        self.writes = True
        name = _plain(asked["key"])
        if kind == "request_delete_range":
            self.keys.pop(name, None)
            return {"response_delete_range": {}}
        before = self.keys.get(name)
        created = self.at if before is None else before.created
        self.keys[name] = Stored(_plain(asked["value"]), created, self.at, int(asked["lease"]))
        self._check(name, self.keys[name])
        return {"response_put": {}}

    def _read(self, asked: dict[str, Any]) -> list[dict[str, str]]:
        found = self._range(asked)
        if "max_create_revision" in asked:
            found = [each for each in found if each[1].created <= int(asked["max_create_revision"])]
        if "sort_target" in asked:
            found.sort(key=lambda each: each[1].created, reverse=asked["sort_order"] == "DESCEND")
        return [
            {
                "key": b64encode(name.encode()).decode(),
                "value": b64encode(key.value.encode()).decode(),
                "create_revision": str(key.created),
                "mod_revision": str(key.modified),
                "lease": str(key.lease),
            }
            for name, key in found[: int(asked.get("limit", 10**6))]
        ]

    def _check(self, name: str, key: Stored) -> None:
        """Note the number of a grant."""
        read = Key(name, *key)
        record = record_of(read) if name.startswith(LOCKS) else None
        if record is None:
            return
        resource, number = resource_of(name), number_of(read, record)
        if number <= self.numbers.get(resource, 0):
            self.violated.append(NOT_GROWING)
        if self.tokens.setdefault(record.token, number) != number:
            self.violated.append(OTHER_NUMBER)
        self.numbers[resource] = max(number, self.numbers.get(resource, 0))
        assert name.startswith(queue_of(resource))
