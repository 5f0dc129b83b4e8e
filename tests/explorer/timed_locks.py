"""Who believes to hold a lock while time passes, on one Redis or on Redlock: the real leases, in every order.

Each client and each node has a clock of its own, in microseconds. Time passes in steps, for all clocks alike. A clock
of a node may gain something beyond that, and a clock of a client may lose something: by rates that differ, or by jumps.
Clients run the library's own locks and leases. Their plans stop at each request, and go on when the answer is heard.
So there may be any delay before a request arrives, and before its answer is heard.

A client believes to hold the lock as long as its lease says ``remaining() > 0``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

from fencing.kernel.admission import admit_claim
from fencing.kernel.effects import Claim, GiveWay, Plan, Shielded, Sleep
from fencing.kernel.errors import FencingError
from fencing.kernel.fence import Fence
from fencing.kernel.retry import NoReply
from fencing.locks import plans
from fencing.locks.lease import Lease
from fencing.locks.settings import Settings
from fencing.locks.ttl import set_ttl
from fencing.redis.calls import Call
from fencing.redis.plans import RedisPlans
from fencing.redlock.calls import FOR_ANYONE, Fanout, member_words
from fencing.redlock.decisions import check_answered, has_decided
from fencing.redlock.plans import RedlockPlans
from tests.explorer.redlock_nodes import MEMBER, Node
from tests.explorer.redlock_storage import LOST, GuardedStorage, Storage
from tests.explorer.simulated_redis import EMPTY, Reply, SimulatedRedis, Snapshot
from tests.explorer.state import NAMES, Step
from tests.explorer.tokens import tokens_from

__all__ = [
    "ACCEPTED",
    "BELIEF_US",
    "BOTH",
    "EARLIEST_US",
    "EARLY",
    "LAST_CHECK",
    "TTL_US",
    "Client",
    "Errs",
    "Timed",
    "TimedWorld",
]

BOTH = "two believe to hold the lock"
LAST_CHECK = "one acts on its last look at remaining(), and another believes to hold the lock"
EARLY = "one gets the lock before another's at_least is over"
ACCEPTED = "a write is accepted while another believes to hold the lock"

TTL = 0.1
SETTINGS = Settings(ttl=TTL, owner="explorer", renew=False)
TTL_US = 100_000
BELIEF_US = 97_000
EARLIEST_US = 99_001
"""When a key of the ttl expires at the earliest: Redis counts whole milliseconds, and it begins at the end of one."""

START_US = 1_000_999
RESOURCE = "r"


class _Lease(Lease):
    def __del__(self) -> None:
        """Say nothing: each client is played again and again, and most plays stop before the release."""


class _Paused(BaseException):
    """There is no answer yet."""


class _Recheck(NamedTuple):
    """The effect: any time may pass before the next line."""

    about: str


class _Read(NamedTuple):
    pass


class _Write(NamedTuple):
    fence: Fence
    read: frozenset[int]


class Client:
    """A client, played up to the first request that has no answer yet."""

    lease: Lease | None = None

    def __init__(self, scenario: Timed, index: int, history: tuple[tuple[Any, int], ...]) -> None:
        self.effect: Any = None
        self.until = self.stays_until = 0
        self.settings = scenario.settings
        self._answers = iter(history)
        self._now = 0
        self._drawn = 0
        self._name, self._one_token = NAMES[index], scenario.one_token
        self.backend = scenario.backend()
        self.backend.clock = lambda: self._now / 1e6
        self.backend.perform = self.perform
        self._next_answer()
        chance = mock.patch("random.uniform", lambda low, high: high)
        try:
            with tokens_from(self._new_token), mock.patch("fencing.locks.lease.run", self.run), chance:
                scenario.clients[index](self)
        except (_Paused, FencingError):
            pass
        if self.effect is None:
            self._note()

    def _new_token(self) -> str:
        self._drawn += not (self._one_token and self._drawn)
        return f"{self._name}-{self._drawn:020d}"

    def _next_answer(self) -> Any:
        answer, self._now = next(self._answers)
        return answer

    def _note(self) -> None:
        remaining = 0.0 if self.lease is None else self.lease.remaining()
        self.until = self._now + math.floor(remaining * 1e6 + 1e-3) if remaining > 1e-9 else 0

    def perform(self, effect: Any) -> Any:
        """Do nothing but return the answer; if there is none, stop."""
        if self.effect is not None:  # it has stopped, and unwinds
            raise _Paused
        if isinstance(effect, (Sleep, GiveWay)):
            return None
        try:
            answer = self._next_answer()
        except StopIteration:
            self.effect = effect
            self._note()
            raise _Paused from None
        if isinstance(effect, Fanout):
            replies = [_plain(each) for each in answer]
            check_answered(replies, effect.least, undone=effect.call.may_take)
            return replies
        if isinstance(effect, Claim):
            return admit_claim(answer, effect.fences[0])  # raises StaleFence, or not, as when it arrived
        return _raised(_plain(answer))

    def run(self, plan: Plan[Any], _: Any = None) -> Any:
        """Run a plan with these answers."""
        result, error = None, None
        while True:
            try:
                effect = plan.send(result) if error is None else plan.throw(error)
            except StopIteration as ended:
                return ended.value
            result = error = None
            try:
                result = self.run(effect.plan) if isinstance(effect, Shielded) else self.perform(effect)
            except BaseException as raised:  # noqa: BLE001 - the plan decides what an error means
                error = raised

    # What programs say

    def acquire(self) -> Lease:
        """Try to take the lock. The program ends if it is taken."""
        self.lease = None
        lease = partial(_Lease, self.backend)
        self.lease = self.run(plans.acquire(self.backend, RESOURCE, self.settings, 0, lease))
        assert self.lease is not None
        return self.lease

    def shorten(self, settings: Settings) -> None:
        """Give the lock a shorter ttl."""
        assert self.lease is not None
        self.run(set_ttl(self.backend, self.lease._holding, settings))

    def release_later(self, at_least: float) -> None:
        """End a block of ``hold(at_least=...)``. An answer behind the end of its lease promises nothing."""
        assert self.lease is not None
        self.lease._stay(at_least)
        free_at, until = self.lease._free_at, self.lease._holding.deadline
        assert free_at is not None
        if self.lease._release_until(None, free_at) and self.backend.clock() < until:
            self.stays_until = round(free_at * 1e6)

    def reclaim(self) -> None:
        """Replace the fence."""
        assert self.lease is not None
        self.lease = self.lease.reclaim()

    def pause(self, about: str) -> None:
        """Let any time pass."""
        self.perform(_Recheck(about))

    def read(self) -> frozenset[int]:
        """Read what is stored."""
        found: frozenset[int] = self.perform(_Read())
        return found

    def write(self, read: frozenset[int]) -> None:
        """Write what was read, and one update more."""
        assert self.lease is not None
        self.perform(_Write(self.lease.fence, read))


@dataclass(frozen=True)
class Errs:
    """How far clocks err: by so many microseconds, so often.

    Each of these nodes may gain so often, and each of these clients may lose so often. ``after_restart``: a node gains
    only after it has restarted.
    """

    gain_us: int = 0
    gains: int = 0
    loss_us: int = 0
    losses: int = 0
    gainers: tuple[int, ...] = (0,)
    after_restart: bool = False
    losers: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Timed:
    """Clients of one Redis or of several nodes, and what may happen to them.

    Args:
        clients: what each does.
        nodes: how many there are; 0: one Redis, which is not of Redlock.
        times: how often a step of time passes.
        step_us: how long it is.
        errs: how far clocks err.
        lost: how many requests have no answer. They arrive at any later time, or never.
        restarts: how many nodes restart.
        persists: whether a node that restarts has its data.
        down_us: how long a node that restarts is away, by its clock.
        most: how many answers a client hears at most.
        in_turn: whether a client begins after the one before it was granted the lock.
        prompt: whether an answer is heard as soon as it is decided.
        fragile: the nodes that restart.
        longest_us: for how long a node of Redlock that was restarted waits.
        settings, redis, mixin, one_token: with a rule off.
    """

    name: str
    clients: tuple[Callable[[Client], Any], ...]
    nodes: int = 0
    times: int = 4
    step_us: int = (BELIEF_US - 1) // 3
    errs: Errs = Errs()
    lost: int = 0
    restarts: int = 0
    persists: bool = False
    down_us: int = 0
    most: int = 8
    in_turn: bool = False
    prompt: bool = False
    fragile: tuple[int, ...] = (0,)
    longest_us: int = TTL_US
    settings: Settings = SETTINGS
    redis: type[SimulatedRedis] | None = None
    mixin: type | None = None
    one_token: bool = False

    def backend(self) -> Any:
        """Return the plans."""
        base: type = RedlockPlans if self.nodes else RedisPlans
        bases = (base,) if self.mixin is None else (self.mixin, base)
        plans_of: Any = type("Plans", bases, {})()
        plans_of.clock_floor, plans_of.settings = False, self.settings
        if self.nodes:
            plans_of.nodes, plans_of.ready, plans_of.node_timeout = self.nodes, set(), 0.01
            plans_of.longest_ttl = self.longest_us / 1e6
        return plans_of


class Local(NamedTuple):
    history: tuple[tuple[Any, int], ...] = ()
    until: int = 0  # by its clock
    has_held: bool = False
    stays_until: int = 0  # it has released the lock, which stays taken until then, by its clock
    replies: tuple[Any, ...] = ()  # of each node
    decided: bool = False


class Sent(NamedTuple):
    """Requests under way, on one connection. Late ones are on a connection of their own."""

    client: int
    node: int
    calls: tuple[Call, ...]
    is_awaited: bool
    is_late: bool = False


class TimedState(NamedTuple):
    """Everything; hashable."""

    nodes: tuple[Snapshot, ...]
    clocks: tuple[int, ...]  # of the clients
    clients: tuple[Local, ...]
    under_way: tuple[Sent, ...] = ()
    storage: Storage = Storage()
    times: int = 0
    gained: tuple[int, ...] = ()
    lost_time: tuple[int, ...] = ()
    lost: int = 0
    runs: tuple[int, ...] = ()
    up_at: tuple[int, ...] = ()


class _Nothing(NamedTuple):
    """No reply."""

    undone: bool = False


def _plain(answer: Any) -> Any:
    if isinstance(answer, _Nothing):
        return NoReply(TimeoutError("no reply"), may_have_run=True, was_undone=answer.undone)
    return list(answer) if type(answer) is tuple else answer


def _raised(answer: Any) -> Any:
    if isinstance(answer, NoReply):
        raise answer
    return answer


class TimedWorld:
    """The steps of a scenario."""

    most_refusals = 0

    def __init__(self, scenario: Timed) -> None:
        self.scenario = scenario
        self.count = scenario.nodes or 1
        self._redis = scenario.redis or (Node if scenario.nodes else SimulatedRedis)
        self._played: dict[Any, tuple[Any, int, int]] = {}
        self._ran: dict[Any, tuple[Reply, Snapshot]] = {}

    def start(self) -> TimedState:
        nodes = []
        for index in range(self.count):
            node = self._redis(EMPTY._replace(clock_us=START_US))
            if self.scenario.nodes:
                node.set(MEMBER, self._words(index, 0).encode())
            nodes.append(node.snapshot())
        clients = len(self.scenario.clients)
        none = (0,) * self.count
        return TimedState(
            tuple(nodes), (0,) * clients, (Local(),) * clients, (), Storage(), 0, none, (0,) * clients, 0, none, none
        )

    def steps(self, state: TimedState) -> Iterator[Step]:
        for step in self._steps(state):
            after, clients = step.state, range(len(state.clients))
            believing = sum(self._believes(after, client) for client in clients)
            stays = any(after.clocks[client] < after.clients[client].stays_until for client in clients)
            violated = (BOTH,) * (believing > 1) + (EARLY,) * (believing > 0 and stays)
            yield step._replace(violated=(*step.violated, *violated)) if violated else step

    def _believes(self, state: TimedState, client: int) -> bool:
        return state.clocks[client] < state.clients[client].until

    def _steps(self, state: TimedState) -> Iterator[Step]:
        scenario = self.scenario
        for client, local in enumerate(state.clients):
            yield from self._client_steps(state, client, local)
        before: set[tuple[int, int]] = set()
        for index, sent in enumerate(state.under_way):
            is_first = sent.is_late or (sent.client, sent.node) not in before
            if not sent.is_late:
                before.add((sent.client, sent.node))
            if is_first and state.nodes[sent.node].clock_us >= state.up_at[sent.node]:
                yield self._arrives(state, index)
            if sent.is_awaited and state.lost < scenario.lost:
                yield self._unanswered(state, index)
        if not any(local.history for local in state.clients):
            return
        if state.times < scenario.times:
            yield Step("time passes", _later(state._replace(times=state.times + 1), scenario.step_us))
        yield from self._errors(state)
        if sum(state.runs) < scenario.restarts:
            for node in scenario.fragile:
                yield self._restarted(state, node)

    def _errors(self, state: TimedState) -> Iterator[Step]:
        errs = self.scenario.errs
        for node, gained in enumerate(state.gained):
            may_gain = node in errs.gainers and (state.runs[node] > 0 or not errs.after_restart)
            if may_gain and gained < errs.gains:
                after = state._replace(gained=_replaced(state.gained, node, gained + 1))
                yield Step(f"the clock of node {node + 1} gains", _gained(after, node, errs.gain_us))
        for client, lost in enumerate(state.lost_time):
            if lost < errs.losses and client in errs.losers:
                lost_time = _replaced(state.lost_time, client, lost + 1)
                after = _later(state._replace(lost_time=lost_time), errs.loss_us, but_for=client)
                yield Step(f"{NAMES[client]}'s clock loses", after)

    def _client_steps(self, state: TimedState, client: int, local: Local) -> Iterator[Step]:
        name = NAMES[client]
        if not local.history:
            programs = self.scenario.clients[: client + 1]
            if client and programs[-1] is programs[-2] and not state.clients[client - 1].history:
                return  # those that differ only by name begin in order
            if client and self.scenario.in_turn and not state.clients[client - 1].has_held:
                return
            yield Step(f"{name} begins", self._resumed(state, client, None))
            return
        effect, *_ = self._play(client, local.history)
        if effect is None or len(local.history) > self.scenario.most:
            return
        if isinstance(effect, (Call, Fanout)):
            if local.decided:
                answer: Any = local.replies if isinstance(effect, Fanout) else local.replies[0]
                yield Step(f"{name} hears the answer", self._resumed(state, client, answer))
        elif isinstance(effect, _Recheck):
            yield Step(f"{name} {effect.about}", self._resumed(state, client, None))
        elif isinstance(effect, _Read):
            yield Step(f"{name} reads", self._resumed(state, client, state.storage.value))
        elif isinstance(effect, Claim):
            yield self._claims(state, client, effect.fences[0])
        else:
            assert isinstance(effect, _Write)
            yield self._writes(state, client, effect)

    def _claims(self, state: TimedState, client: int, fence: Fence) -> Step:
        before = state.storage
        stored = GuardedStorage().claim(before, fence) or before
        after = self._resumed(state._replace(storage=stored), client, before.mark)
        return Step(f"{NAMES[client]} claims {fence.number}", after)

    def _writes(self, state: TimedState, client: int, effect: _Write) -> Step:
        others = any(self._believes(state, each) for each in range(len(state.clients)) if each != client)
        if self.scenario.settings.guards:
            stored = GuardedStorage().write(state.storage, effect.fence, effect.read, client)
        else:
            updates = state.storage.acknowledged | {client}
            stored = state.storage._replace(value=effect.read | {client}, acknowledged=updates)
        violated: tuple[str, ...] = (LAST_CHECK,) if others else ()
        if stored is not None:
            violated += (ACCEPTED,) if others else ()
            violated += () if stored.acknowledged <= stored.value else (LOST,)
        what = "writes" if stored is not None else "writes, and the guard refuses it"
        after = self._resumed(state._replace(storage=stored or state.storage), client, None)
        return Step(f"{NAMES[client]} {what}", after, violated)

    # Requests

    def _resumed(self, state: TimedState, client: int, answer: Any) -> TimedState:
        """Let a client hear an answer, and send its next request."""
        while True:
            history = (*state.clients[client].history, (answer, state.clocks[client]))
            effect, until, stays_until = self._play(client, history)
            has_held = max(until, stays_until) > 0 or state.clients[client].has_held
            local = Local(history if effect is not None else (_OVER,), until, has_held, stays_until)
            blank = (None,) * self.count
            state = state._replace(clients=_replaced(state.clients, client, local._replace(replies=blank)))
            if isinstance(effect, Fanout):
                for node in effect.nodes:
                    state = _sent(state, client, node, (effect.call,), effect.quorum > 0)
                if effect.quorum == 0:
                    answer = blank
                    continue
            elif isinstance(effect, Call):
                state = _sent(state, client, 0, (effect,), True)
            return state

    def _play(self, client: int, history: tuple[tuple[Any, int], ...]) -> tuple[Any, int, int]:
        if history == (_OVER,):
            return None, 0, 0
        found = self._played.get((client, history))
        if found is None:
            played = Client(self.scenario, client, history)
            found = self._played[client, history] = (played.effect, played.until, played.stays_until)
        return found

    def _arrives(self, state: TimedState, index: int) -> Step:
        client, node, (call, *rest), awaited, _ = sent = state.under_way[index]
        left = list(state.under_way)
        left[index : index + 1] = [sent._replace(calls=tuple(rest))] if rest else []
        is_member = self.scenario.nodes > 0 and call.script.name not in FOR_ANYONE
        words = (self._words(node, state.runs[node]),) if is_member else ()
        key = (state.nodes[node], call, words)
        found = self._ran.get(key)
        if found is None:
            redis = self._redis(state.nodes[node])
            reply = redis.run(call.script.name, call.keys, (*call.args, *words))
            found = self._ran[key] = (reply, redis.snapshot())
        reply, snapshot = found
        after = state._replace(nodes=_replaced(state.nodes, node, snapshot), under_way=tuple(left))
        first = reply[0] if isinstance(reply, tuple) else reply
        said = first.decode() if isinstance(first, bytes) else str(first)
        where = f" at {node + 1}" if self.scenario.nodes else ""
        label = f"{NAMES[client]}'s {call.script.name}{where}: {said}"
        return Step(label, self._replied(after, client, node, reply) if awaited else after)

    def _unanswered(self, state: TimedState, index: int) -> Step:
        """A client hears nothing of a request. It arrives later, or never, and a release may follow it."""
        client, node, calls, *_ = state.under_way[index]
        [call] = calls
        undo = call.compensation if call.last_attempt or self.scenario.nodes else None
        late = Sent(client, node, calls if undo is None else (call, undo), False, True)
        after = state._replace(under_way=_replaced(state.under_way, index, late), lost=state.lost + 1)
        where = f" at {node + 1}" if self.scenario.nodes else ""
        label = f"{NAMES[client]}'s {call.script.name}{where} has no answer"
        return Step(label, self._replied(after, client, node, _Nothing(undo is not None)))

    def _replied(self, state: TimedState, client: int, node: int, reply: Any) -> TimedState:
        local = state.clients[client]
        effect, *_ = self._play(client, local.history)
        replies = _replaced(local.replies, node, reply)
        decided = True
        if isinstance(effect, Fanout):
            given = [_plain(each) for i, each in enumerate(replies) if i in effect.nodes and each is not None]
            decided = len(given) == len(effect.nodes)
            if has_decided([each for each in given if not isinstance(each, NoReply)], effect.quorum):
                decided = True
        if decided:
            under_way = (each._replace(is_awaited=False) if each.client == client else each for each in state.under_way)
            state = state._replace(under_way=tuple(under_way))
        local = local._replace(replies=replies, decided=decided)
        state = state._replace(clients=_replaced(state.clients, client, local))
        return self._resumed(state, client, replies) if decided and self.scenario.prompt else state

    # Nodes

    def _words(self, node: int, run: int) -> str:
        return member_words(f"process-{node}-{run}", self.scenario.longest_us // 1000, True)

    def _restarted(self, state: TimedState, node: int) -> Step:
        """Requests that are under way arrive behind the restart."""
        before = state.nodes[node]
        snapshot = before if self.scenario.persists else Snapshot((), before.clock_us)
        after = state._replace(
            nodes=_replaced(state.nodes, node, snapshot),
            runs=_replaced(state.runs, node, state.runs[node] + 1),
            up_at=_replaced(state.up_at, node, before.clock_us + self.scenario.down_us),
        )
        return Step(f"node {node + 1} restarts {'with' if self.scenario.persists else 'without'} its data", after)


_OVER = (None, -1)


def _replaced(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _sent(state: TimedState, client: int, node: int, calls: tuple[Call, ...], awaited: bool) -> TimedState:
    """Send something behind what the same client has sent to the node."""
    under_way = sorted((*state.under_way, Sent(client, node, calls, awaited)), key=lambda sent: sent[:2])
    return state._replace(under_way=tuple(under_way))


def _gained(state: TimedState, node: int, us: int) -> TimedState:
    snapshot = SimulatedRedis(state.nodes[node]._replace(clock_us=state.nodes[node].clock_us + us)).snapshot()
    return state._replace(nodes=_replaced(state.nodes, node, snapshot))


def _later(state: TimedState, us: int, but_for: int | None = None) -> TimedState:
    """Let time pass for all clocks, but for that of one client."""
    for node in range(len(state.nodes)):
        state = _gained(state, node, us)
    clocks = tuple(now + us * (client != but_for) for client, now in enumerate(state.clocks))
    ended = tuple(map(_without_ended, state.clients, clocks))
    if ended != state.clients:
        state = state._replace(clients=ended)
    return state._replace(clocks=clocks)


def _without_ended(local: Local, now: int) -> Local:
    """Forget what is over by the client's clock: nobody will ask when it ended."""
    until, stays_until = local.until, local.stays_until
    if 0 < until <= now:
        local = local._replace(until=0)
    return local._replace(stays_until=0) if 0 < stays_until <= now else local
