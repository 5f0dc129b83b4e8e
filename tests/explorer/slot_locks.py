"""The plan of slots over a simulated Redis, in every order of its requests: by one request for all, and one by one.

Clients perform the library's own plan, and its own plans of Redis. A reply can be lost. A request can hang, and then it
arrives at any later time, or never. A slot can expire under its holder. Each client claims at a guard, writes once
under its fence, however late it is, and releases. What is given back in the background is released at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from unittest import mock

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.effects import Claim, GiveWay, Shielded, Sleep
from fencing.kernel.errors import CoordinatorUnavailable, StaleFence
from fencing.kernel.fence import Fence, Mark
from fencing.kernel.retry import NoReply
from fencing.locks.any_slot import acquire_slot
from fencing.locks.settings import Settings
from fencing.redis.calls import Call
from fencing.redis.connection_factory import must_undo
from fencing.redis.keys import keys_of
from fencing.redis.plans import RedisPlans
from storage_guards import MemoryGuard
from tests.explorer.simulated_redis import EMPTY, Reply, SimulatedRedis, Snapshot, kind_of
from tests.explorer.state import OVERLAP, Step
from tests.explorer.tokens import tokens_from

__all__ = ["LEFT_BEHIND", "NOT_OUT", "REFUSED", "TOO_MANY", "TWO", "OneByOne", "SlotScenario", "SlotWorld"]

TOO_MANY = "more hold a slot than there are"
TWO = "one caller keeps two slots"
NOT_OUT = "a holder writes, and the next one of its slot has claimed"
REFUSED = "a holder is refused, and has its slot"
LEFT_BEHIND = "all have ended, and a slot is taken"

NAMES = "ABC"
SETTINGS = Settings(ttl=10.0, guards=(MemoryGuard(),), owner="explorer")
FOREVER = 10.0**6


class OneByOne(RedisPlans):
    """The same service without a request for all slots."""

    plan_acquire_any = None  # type: ignore[assignment]


class Holds(NamedTuple):
    """The client believes in a slot, or no longer: None."""

    fence: Fence | None


class Write(NamedTuple):
    """The client writes under its fence, which the guard checks."""

    fence: Fence


@dataclass(frozen=True)
class SlotScenario:
    """Clients that take any of some slots, each once, and what may happen to them.

    Args:
        polls: how many refusals each client is told of at most.
        lost: how many replies are lost at most.
        late: how many requests hang at most.
        expiries: how many slots expire at most.
    """

    name: str
    clients: int
    slots: int
    plans: type[RedisPlans] = RedisPlans
    redis: type[SimulatedRedis] = SimulatedRedis
    polls: int = 2
    lost: int = 0
    late: int = 0
    expiries: int = 0
    mark_of: Callable[[str], str] = str
    admit_write: Callable[[Mark | None, Fence], Mark] = admit_write

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(f"{{s}}#{slot}" for slot in range(self.slots))


class SlotState(NamedTuple):
    """Everything; hashable."""

    clients: tuple[tuple[Any, ...], ...]  # the answers of each
    redis: Snapshot = EMPTY
    marks: tuple[tuple[str, Mark], ...] = ()
    claimed: tuple[tuple[str, int], ...] = ()  # the highest number of each slot that was claimed
    hanging: tuple[tuple[Call, ...], ...] = ()
    holding: tuple[tuple[int, Fence], ...] = ()  # the clients that believe in a slot, which has not expired
    lost: int = 0
    late: int = 0
    expiries: int = 0


Moves = Generator[Any, Any, None]


def _moves(scenario: SlotScenario, backend: RedisPlans) -> Moves:
    later: list[Any] = []
    backend.give_back_later = lambda grant, settings: later.append(grant)
    try:
        grant = yield from acquire_slot(backend, "{s}", scenario.resources, SETTINGS, math.inf, lambda grant: grant)
        yield Holds(grant.fence)
        yield Write(grant.fence)
        yield Holds(None)
        yield from backend.plan_release(grant, SETTINGS, deadline=FOREVER)
    except CoordinatorUnavailable:
        pass
    for each in later:
        yield from backend.plan_release(each, SETTINGS, deadline=FOREVER)


@lru_cache(maxsize=200_000)
def _effect_of(scenario: SlotScenario, client: int, answers: tuple[Any, ...]) -> Any:
    """What the client does next, after these answers. None: it has ended."""
    drawn, now = iter(range(1000)), [1.0]
    backend = scenario.plans()
    backend.clock_floor, backend.clock = False, lambda: now[0]
    with (
        tokens_from(lambda: f"{NAMES[client]}-{next(drawn):020d}"),
        mock.patch("random.randrange", return_value=0),
        mock.patch("random.uniform", return_value=0.0),
    ):
        stack: list[Moves] = [_moves(scenario, backend)]
        remaining = list(answers)
        send: Any = None
        while stack:
            try:
                effect = stack[-1].throw(send) if isinstance(send, BaseException) else stack[-1].send(send)
            except StopIteration as stop:
                send = stop.value
                stack.pop()
                continue
            send = None
            if isinstance(effect, Shielded):
                stack.append(effect.plan)
            elif not isinstance(effect, (Sleep, GiveWay)):
                if not remaining:
                    for each in reversed(stack):
                        each.close()
                    return effect
                send = remaining.pop(0)
                if isinstance(send, tuple) and send[0] == "lost":
                    now[0] += send[1]
                    send = NoReply(ConnectionError("lost"), may_have_run=True, was_undone=send[2])
                elif isinstance(send, tuple) and send[0] == "stale":
                    send = StaleFence(fence=effect.fences[0], mark=send[1])
                elif isinstance(send, tuple):
                    send = list(send)
    return None


class SlotWorld:
    """The steps of a scenario."""

    most_refusals = 0

    def __init__(self, scenario: SlotScenario) -> None:
        self.scenario = scenario

    def start(self) -> SlotState:
        return SlotState(((),) * self.scenario.clients)

    def steps(self, state: SlotState) -> Iterator[Step]:
        have_ended = True
        for client in range(self.scenario.clients):
            if client and state.clients[client] == state.clients[client - 1] == ():
                have_ended = False
                continue  # they differ by their names alone, so the first one begins
            effect = _effect_of(self.scenario, client, state.clients[client])
            if effect is not None:
                have_ended = False
                yield from self._client_steps(state, client, effect)
        for index, calls in enumerate(state.hanging):
            rest = (calls[1:],) if calls[1:] else ()
            without = state._replace(hanging=(*state.hanging[:index], *rest, *state.hanging[index + 1 :]))
            after, _ = self._served(without, calls[0])
            yield Step(f"{calls[0].script.name} arrives late", after, self._two(after))
        if state.expiries < self.scenario.expiries:
            for resource in self.scenario.resources:
                if self._token(state, resource) is not None:
                    yield Step(f"slot {resource[-1]} expires", self._expired(state, resource))
        if have_ended and not state.late and not state.hanging:
            taken = any(self._token(state, resource) for resource in self.scenario.resources)
            yield Step("the end", state, (LEFT_BEHIND,) if taken else ())

    def _client_steps(self, state: SlotState, client: int, effect: Any) -> Iterator[Step]:
        name = NAMES[client]
        if isinstance(effect, Holds):
            yield self._believes(state, client, effect.fence)
        elif isinstance(effect, Claim):
            yield self._claims(state, client, effect.fences[0])
        elif isinstance(effect, Write):
            yield self._writes(state, client, effect.fence)
        else:
            yield from self._call(state, client, name, effect)

    def _call(self, state: SlotState, client: int, name: str, call: Call) -> Iterator[Step]:
        after, reply = self._served(state, call)
        said = f"{name}'s {call.script.name}{_slot_of(call, reply)}"
        if kind_of(reply) == b"taken":
            polls = sum(isinstance(each, tuple) and each[0] == b"taken" for each in state.clients[client])
            if polls < self.scenario.polls:
                yield Step(f"{said} is refused", _answered(after, client, reply))
        else:
            yield Step(said, _answered(after, client, reply))
        undone = call.compensation is not None and must_undo(call, call.timeout, interrupted=False)
        requests = (call, call.compensation) if undone and call.compensation is not None else (call,)
        lost = ("lost", call.timeout, undone)
        if state.lost < self.scenario.lost:
            for each in requests[1:]:
                after, _ = self._served(after, each)
            yield Step(f"{said}, its reply is lost", _answered(after._replace(lost=state.lost + 1), client, lost))
        if state.late < self.scenario.late:
            hanging = state._replace(hanging=(*state.hanging, requests), late=state.late + 1)
            yield Step(f"{said} hangs", _answered(hanging, client, lost))

    def _believes(self, state: SlotState, client: int, fence: Fence | None) -> Step:
        others = tuple(each for each in state.holding if each[0] != client)
        violated: tuple[str, ...] = ()
        if fence is not None and self._token(state, fence.resource) == fence.token:
            if any(held.resource == fence.resource for _, held in others):
                violated += (OVERLAP,)
            others = (*others, (client, fence))
        after = _answered(state._replace(holding=others), client, None)
        if len(others) > self.scenario.slots:
            violated += (TOO_MANY,)
        what = "nothing" if fence is None else f"slot {fence.resource[-1]}"
        return Step(f"{NAMES[client]} believes in {what}", after, violated + self._two(after))

    def _two(self, state: SlotState) -> tuple[str, ...]:
        """Return the violation if a caller that holds a slot has another one, and nothing of it is under way."""
        if state.late and self.scenario.plans is OneByOne:
            return ()  # a request for one slot that arrives late takes it, until its ttl ends
        tokens = [self._token(state, resource) for resource in self.scenario.resources]
        for client, fence in state.holding:
            own = [token for token in tokens if token is not None and token[0] == NAMES[client]]
            if len(own) > 1 and fence.token in own:
                return (TWO,)
        return ()

    def _claims(self, state: SlotState, client: int, fence: Fence) -> Step:
        marks = dict(state.marks)
        key = self.scenario.mark_of(fence.resource)
        try:
            marks[key] = admit_claim(marks.get(key), fence)
        except StaleFence as stale:
            violated = self._refused(state, fence)
            return Step(
                f"{NAMES[client]}'s claim is refused", _answered(state, client, ("stale", stale.mark)), violated
            )
        claimed = dict(state.claimed)
        claimed[fence.resource] = max(claimed.get(fence.resource, 0), fence.number)
        after = state._replace(marks=tuple(sorted(marks.items())), claimed=tuple(sorted(claimed.items())))
        return Step(f"{NAMES[client]} claims", _answered(after, client, None))

    def _writes(self, state: SlotState, client: int, fence: Fence) -> Step:
        key = self.scenario.mark_of(fence.resource)
        try:
            self.scenario.admit_write(dict(state.marks).get(key), fence)
        except StaleFence:
            return Step(
                f"{NAMES[client]}'s write is refused", _answered(state, client, None), self._refused(state, fence)
            )
        is_out = dict(state.claimed)[fence.resource] > fence.number
        return Step(f"{NAMES[client]} writes", _answered(state, client, None), (NOT_OUT,) if is_out else ())

    def _refused(self, state: SlotState, fence: Fence) -> tuple[str, ...]:
        return (REFUSED,) if self._token(state, fence.resource) == fence.token else ()

    def _served(self, state: SlotState, call: Call) -> tuple[SlotState, Reply]:
        redis = self.scenario.redis(state.redis)
        reply = redis.run(call.script.name, call.keys, call.args)
        return state._replace(redis=redis.snapshot()), reply

    def _token(self, state: SlotState, resource: str) -> str | None:
        token = SimulatedRedis(state.redis).get(resource)
        return None if token is None else token.decode()

    def _expired(self, state: SlotState, resource: str) -> SlotState:
        redis = self.scenario.redis(state.redis)
        redis.delete(resource, keys_of(resource).holder)
        holding = tuple(each for each in state.holding if each[1].resource != resource)
        return state._replace(redis=redis.snapshot(), holding=holding, expiries=state.expiries + 1)


def _answered(state: SlotState, client: int, answer: Any) -> SlotState:
    clients = list(state.clients)
    clients[client] = (*clients[client], answer)
    return state._replace(clients=tuple(clients))


def _slot_of(call: Call, reply: Reply) -> str:
    if call.script.name == "acquire_any":
        return f" gives slot {reply.split()[1].decode()}" if isinstance(reply, bytes) else ""
    return f" of slot {call.keys[0][-1]}"
