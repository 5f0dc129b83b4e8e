"""Redlock's own plans over several simulated nodes, in every order of requests, replies and faults.

A client has a connection to each node: its requests arrive there in order. Each arrival is a step. A client's fan-out
ends as in the library: when enough replies agree, or each node has replied or failed. What is under way stays so.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fencing.kernel.effects import Shielded, Sleep
from fencing.kernel.errors import CoordinatorUnavailable, FencingError
from fencing.kernel.fence import Fence, digest_of
from fencing.kernel.retry import NoReply
from fencing.locks import plans as lock_plans
from fencing.locks.holding import Grant
from fencing.locks.settings import Settings
from fencing.redis.calls import Call
from fencing.redis.keys import keys_of
from fencing.redlock.calls import FOR_ANYONE, Fanout, member_words
from fencing.redlock.decisions import check_answered, has_decided
from fencing.redlock.plans import RedlockPlans
from tests.explorer.redlock_nodes import BACK, MEMBER, Node
from tests.explorer.redlock_storage import LOST, GuardedStorage, Storage
from tests.explorer.search import Violation
from tests.explorer.simulated_redis import EMPTY, Reply, Snapshot
from tests.explorer.state import REVIVED
from tests.explorer.tokens import tokens_from

__all__ = ["BOTH_HOLD", "NOT_HIGHER", "REVIVED", "TAKEN", "TWICE", "Faults", "Nodes", "Program", "explore"]

TTL = 10.0
TTL_US = 10_000_000
NOT_HIGHER = "a number is not higher than one that was held before"
TWICE = "two holders have the same number"
BOTH_HOLD = "two hold the lock, and no clock has erred"
TAKEN = "a node is taken from a holder, who has no majority any more"

Operation = Literal[
    "acquire",
    "again",
    "remint",
    "renew",
    "release",
    "force",
    "admit",
    "other",
    "claim",
    "read",
    "write",
    "hold",
    "adopt",
    "initialise",
]

AT_STORAGE = ("claim", "read", "write")
PAUSES = ("hold", "renew", "adopt", "force", "initialise")
ENDS = ("release", "force_release")
GIVES_UP = ("release", "adopt", "force")
ASKS_ANEW = ("again", "remint")
UNDER_A_FENCE = ("renew", "remint", "adopt")


class Program(NamedTuple):
    """What a client does, in order.

    ``again``: the same request, with the same token, as after a restart. ``admit``: look after nodes that came back.
    ``other``: take a lock whose numbers are counted elsewhere. ``claim``, ``read`` and ``write`` go to the storage.
    ``hold``: acquire as the lock does, which asks again after a pause, at most ``pauses`` times in all. ``adopt``: the
    same with a fence. ``renew``: the same with a lease, which is believed meanwhile. ``force``: take the lock from its
    holder, and free it. ``after``: it begins when that client has done the first ``done`` of its own, or all; None: at
    any time.
    """

    operations: tuple[Operation, ...] = ("acquire", "release")
    pauses: int = 0
    after: int | None = None
    done: int | None = None


class Faults(NamedTuple):
    """How often each fault may happen."""

    lost_requests: int = 0
    lost_replies: int = 0
    late: int = 0  # a time-out: the request arrives later, and its release behind it
    repeats: int = 0  # the network delivers a request once more
    expiries: int = 0  # of one lock at one node: its clock jumps
    ttls: int = 0  # a whole ttl passes for all
    halves: int = 0  # half a ttl passes for all
    restarts: int = 0  # of a node, without its data
    losses: int = 0  # of all data of a node, whose process goes on
    kept: int = 0  # connections that break: what was sent on one lands later, in order, or never


NO_FAULTS = Faults()


@dataclass(frozen=True)
class Nodes:
    """The nodes and clients of an exploration.

    Args:
        clients: what each client does.
        faults: what may go wrong.
        counters: what each node has minted before, for attempts that failed.
        back: a node that has restarted without its data, and has waited for a ttl; the highest number was held. None:
            there is none.
        new: whether all nodes are empty, and were never admitted.
        fragile: the nodes that lose their data; None: any.
        cut_off: the script at whose calls connections break; empty: at any.
        plans, node, one_token: with a rule off.
    """

    clients: tuple[Program, ...]
    faults: Faults = NO_FAULTS
    counters: tuple[int, ...] = (0, 0, 0)
    back: int | None = None
    new: bool = False
    fragile: tuple[int, ...] | None = None
    cut_off: str = ""
    one_token: bool = False
    plans: type[RedlockPlans] = RedlockPlans
    node: type[Node] = Node
    storage: type[GuardedStorage] = GuardedStorage


class Request(NamedTuple):
    call: Call
    is_awaited: bool
    repeat: bool = False
    run: int = 0  # of the process that its connection was made to


class Client(NamedTuple):
    step: int = 0  # which operation
    token: int = 0  # how many were drawn
    history: tuple[Any, ...] = ()  # results of the fan-outs, with the clock at their end
    fence: tuple[int, str] | None = None
    started: int = -1  # the highest number that was held when this operation began
    began: float = 0  # the clock then
    asked: Fanout | None = None
    replies: tuple[Any, ...] = ()
    read: frozenset[int] | None = None
    believed_until: float = 0.0
    pauses: int = 0
    pausing: bool = False


class State(NamedTuple):
    nodes: tuple[Snapshot, ...]
    runs: tuple[int, ...]  # how often each node was restarted
    clients: tuple[Client, ...]
    queues: tuple[tuple[tuple[Request, ...], ...], ...]  # of each client, for each node
    used: Faults = Faults()
    held: frozenset[int] = frozenset()
    clock: float = 0  # ttls
    storage: Storage = Storage()
    kept: tuple[tuple[int, int, tuple[Request, ...]], ...] = ()  # client, node, and what lands later
    forced: frozenset[str] = frozenset()  # the digests of the tokens that a force was meant for, and took a node from


@dataclass
class Found:
    states: int = 0
    seconds: float = 0.0
    exhausted: bool = False
    grants: int = 0
    writes: int = 0
    violations: dict[str, Violation] = field(default_factory=dict)


class _Lost(NamedTuple):
    """No reply from a node."""


class _World:
    def __init__(self, scenario: Nodes) -> None:
        self.scenario = scenario
        self.count = len(scenario.counters)
        self._ran: dict[Any, tuple[Reply, Snapshot]] = {}
        self._followed: dict[Any, tuple[Fanout | Sleep | None, Any, int]] = {}
        self.grants = self.writes = 0

    def start(self) -> State:
        nodes = []
        for index, counter in enumerate(self.scenario.counters):
            node = self.scenario.node(EMPTY._replace(clock_us=TTL_US))
            if index == self.scenario.back:
                node.set(BACK, f"process-{index}-0 0 us".encode())
                nodes.append(node.snapshot())
                continue
            if self.scenario.new:
                nodes.append(node.snapshot())
                continue
            node.set(MEMBER, self._words(index, 0).encode())
            if counter:
                node._raise_numbers(keys_of("r").counter, counter)
            nodes.append(node.snapshot())
        idle = tuple(() for _ in range(self.count))
        clients = tuple(Client() for _ in self.scenario.clients)
        held = frozenset() if self.scenario.back is None else frozenset({max(self.scenario.counters)})
        state = State(tuple(nodes), (0,) * self.count, clients, tuple(idle for _ in clients), held=held)
        for index in range(len(clients)):
            state, violated = self._go_on(state, index)
            assert not violated
        return state

    # Steps

    def steps(self, state: State) -> Iterator[tuple[str, State, tuple[str, ...]]]:
        for client, queues in enumerate(state.queues):
            for node, queue in enumerate(queues):
                if queue:
                    yield from self._arrivals(state, client, node, queue[0])
        for index, (client, node, requests) in enumerate(state.kept):
            yield self._lands(state, index, client, node, requests)
        for client, local in enumerate(state.clients):
            if local.pausing:
                if local.pauses < self.scenario.clients[client].pauses:
                    history = (*local.history, (None, state.clock))
                    goes = local._replace(history=history, pausing=False, pauses=local.pauses + 1)
                    after, violated = self._go_on(_with_client(state, client, goes), client)
                    yield f"{_name(client)} asks again", after, violated
            elif local.asked is None and self._may_begin(state, client):
                began, violated = self._begin(state, client)
                operation = self._operation(state, client)
                verb = f"{operation}s" if operation in AT_STORAGE else f"begins to {operation}"
                yield f"{_name(client)} {verb}", began, violated
        yield from self._faults(state)

    def _arrivals(
        self, state: State, client: int, node: int, request: Request
    ) -> Iterator[tuple[str, State, tuple[str, ...]]]:
        what = f"{_name(client)}'s {request.call.script.name} at {node + 1}"
        rest = _pop(state, client, node)
        reply, ran = self._run(rest, node, request)
        said, taken = _said(reply), self._taken(state, ran, node, request)
        if not request.is_awaited:
            yield f"{what} lands: {said}", ran, taken
            return
        after, violated = self._reply(ran, client, node, reply)
        yield f"{what}: {said}", after, taken + violated
        if self._allowed(state, "repeats"):
            again = _push(_counted(ran, "repeats"), client, node, Request(request.call, False, True), front=True)
            after, violated = self._reply(again, client, node, reply)
            yield f"{what}: {said}, and under way once more", after, violated
        for fault, base, left in (
            ("lost_requests", rest, None),
            ("lost_replies", ran, None),
            ("late", rest, request._replace(is_awaited=False)),
        ):
            if self._allowed(state, fault):
                without = _counted(base, fault)
                if left is not None:
                    without = _push(without, client, node, left)
                if request.call.compensation is not None:
                    without = _push(without, client, node, Request(request.call.compensation, False))
                after, violated = self._reply(without, client, node, _Lost())
                yield f"{what}: {fault.replace('_', ' ')}", after, violated

    def _lands(
        self, state: State, index: int, client: int, node: int, requests: tuple[Request, ...]
    ) -> tuple[str, State, tuple[str, ...]]:
        """Something of a broken connection arrives."""
        request, *rest = requests
        left = [*state.kept[:index], *state.kept[index + 1 :]]
        if rest:
            left.append((client, node, tuple(rest)))
        reply, after = self._run(state._replace(kept=tuple(sorted(left, key=repr))), node, request)
        taken = self._taken(state, after, node, request)
        return f"{_name(client)}'s {request.call.script.name} at {node + 1} lands: {_said(reply)}", after, taken

    def _breaks(self, state: State, client: int, node: int) -> tuple[str, State, tuple[str, ...]]:
        """A connection breaks. The next request goes over a new one."""
        queue = state.queues[client][node]
        left = (client, node, tuple(each._replace(is_awaited=False) for each in queue))
        broken = state._replace(
            queues=_replaced(state.queues, client, _replaced(state.queues[client], node, ())),
            kept=tuple(sorted((*state.kept, left), key=repr)),
        )
        violated: tuple[str, ...] = ()
        broken = _counted(broken, "kept")
        if any(each.is_awaited for each in queue):
            broken, violated = self._reply(broken, client, node, _Lost())
        names = " and ".join(each.call.script.name for each in queue)
        return f"{_name(client)}'s connection to {node + 1} breaks under its {names}", broken, violated

    def _faults(self, state: State) -> Iterator[tuple[str, State, tuple[str, ...]]]:
        if self._allowed(state, "expiries"):
            for index, snapshot in enumerate(state.nodes):
                node = self.scenario.node(snapshot)
                if node.get("r") is not None:
                    node.delete("r")
                    after = _with_node(state, index, node.snapshot())
                    yield f"the lock expires at {index + 1}", _counted(after, "expiries"), ()
        for fault, text, ttls in (("ttls", "a ttl passes", 1), ("halves", "half a ttl passes", 0.5)):
            if self._allowed(state, fault):
                microseconds = int(ttls * TTL_US)
                nodes = tuple(
                    self.scenario.node(each._replace(clock_us=each.clock_us + microseconds)).snapshot()
                    for each in state.nodes
                )
                yield text, _counted(state._replace(nodes=nodes, clock=state.clock + ttls), fault), ()
        if self._allowed(state, "kept"):
            for client, queues in enumerate(state.queues):
                for index, queue in enumerate(queues):
                    if queue and self.scenario.cut_off in ("", *(each.call.script.name for each in queue)):
                        yield self._breaks(state, client, index)
        if self._allowed(state, "losses"):
            for index, snapshot in enumerate(state.nodes):
                if snapshot.entries and self._may_lose(index):
                    after = _with_node(state, index, _emptied(snapshot))
                    yield f"node {index + 1} loses its data", _counted(after, "losses"), ()
        if self._allowed(state, "restarts"):
            for index in filter(self._may_lose, range(self.count)):
                yield f"node {index + 1} restarts empty", *self._restarted(state, index)

    def _may_begin(self, state: State, client: int) -> bool:
        """Whether a client that does nothing has something left to do, and its turn has come."""
        local, program = state.clients[client], self.scenario.clients[client]
        if local.step >= len(program.operations):
            return False
        before = program.after
        if before is None or local.step:
            return True
        done = len(self.scenario.clients[before].operations) if program.done is None else program.done
        return state.clients[before].step >= done

    def _may_lose(self, index: int) -> bool:
        return self.scenario.fragile is None or index in self.scenario.fragile

    def _restarted(self, state: State, index: int) -> tuple[State, tuple[str, ...]]:
        runs = tuple(run + (i == index) for i, run in enumerate(state.runs))
        empty = _with_node(state, index, _emptied(state.nodes[index]))
        state = _counted(empty, "restarts")._replace(runs=runs)
        violated: tuple[str, ...] = ()
        for client in range(len(state.clients)):
            waiting = any(request.is_awaited for request in state.queues[client][index])
            while state.queues[client][index]:
                state = _pop(state, client, index)
            if waiting:
                state, more = self._reply(state, client, index, _Lost())
                violated += more
        return state, violated

    def _allowed(self, state: State, fault: str) -> bool:
        return bool(getattr(state.used, fault) < getattr(self.scenario.faults, fault))

    # What a reply does

    def _run(self, state: State, index: int, request: Request) -> tuple[Reply, State]:
        call = request.call
        key = (state.nodes[index], index, request.run, call)
        found = self._ran.get(key)
        if found is None:
            node = self.scenario.node(state.nodes[index])
            words = () if call.script.name in FOR_ANYONE else (self._words(index, request.run),)
            reply = node.run(call.script.name, call.keys, (*call.args, *words))
            found = self._ran[key] = (reply, node.snapshot())
        if call.script.name == "force_release" and isinstance(found[0], bytes):
            holder, named = self._holder(state, index), call.args[-2]
            if holder is not None and digest_of(holder.decode()) == named:
                state = state._replace(forced=state.forced | {named})
        return found[0], _with_node(state, index, found[1])

    def _taken(self, before: State, after: State, node: int, request: Request) -> tuple[str, ...]:
        """Return whether a request has taken a node from a client that believes to hold the lock, and needs it.

        A client that asks anew is left out: its remint goes from node to node, and its repeated request may be undone.
        """
        used = after.used
        if request.call.script.name not in ENDS or used.expiries or used.restarts or used.losses:
            return ()
        holder = self._holder(before, node)
        if holder is None or holder == self._holder(after, node):
            return ()
        for index, local in enumerate(after.clients):
            if local.fence is not None and local.fence[1].encode() == holder and self._believes(after, index):
                if local.started >= 0 and self._operation(after, index) in ASKS_ANEW:
                    return ()
                left = sum(self._holder(after, each) == holder for each in range(self.count))
                return (TAKEN,) if left <= self.count // 2 else ()
        return ()

    def _holder(self, state: State, index: int) -> bytes | None:
        return self.scenario.node(state.nodes[index]).get("r")

    def _words(self, index: int, run: int) -> str:
        return member_words(f"process-{index}-{run}", TTL_US // 1000, True)

    def _reply(self, state: State, client: int, node: int, reply: Any) -> tuple[State, tuple[str, ...]]:
        local = state.clients[client]
        fanout = local.asked
        assert fanout is not None
        replies = _replaced(local.replies, node, reply)
        state = _with_client(state, client, local._replace(replies=replies))
        given = [_plain(each) for i, each in enumerate(replies) if i in fanout.nodes and _has(each)]
        missing = [i for i in fanout.nodes if replies[i] is None]
        if missing and not has_decided(given, fanout.quorum):
            return state, ()
        return self._ended(state, client)

    def _ended(self, state: State, client: int) -> tuple[State, tuple[str, ...]]:
        """End a fan-out. What is still under way is not awaited any more."""
        local = state.clients[client]
        mine = tuple(tuple(each._replace(is_awaited=False) for each in queue) for queue in state.queues[client])
        state = state._replace(queues=_replaced(state.queues, client, mine))
        local = local._replace(history=(*local.history, (local.replies, state.clock)), asked=None, replies=())
        return self._go_on(_with_client(state, client, local), client)

    # The client's plan

    def _operation(self, state: State, client: int) -> Operation:
        return self.scenario.clients[client].operations[state.clients[client].step]

    def _begin(self, state: State, client: int) -> tuple[State, tuple[str, ...]]:
        local = state.clients[client]
        if self._operation(state, client) in AT_STORAGE:
            return self._at_storage(state, client)
        drawn = local.token + (self._operation(state, client) in ("acquire", "remint", "other"))
        highest = max(state.held, default=0)
        return self._go_on(
            _with_client(state, client, local._replace(started=highest, began=state.clock, token=drawn)), client
        )

    def _go_on(self, state: State, client: int) -> tuple[State, tuple[str, ...]]:
        """Run the plan to its next fan-out, or to the operation's end. The first one begins by a step of its own."""
        local = state.clients[client]
        if local.started < 0:
            return state, ()
        fanout, outcome, drawn = self._follow(client, local, self._operation(state, client))
        violated: tuple[str, ...] = ()
        if fanout is not None and outcome is not None:  # it has taken the lock by force, and goes on to release it
            fence = outcome.fence.number, outcome.fence.token
            if local.fence != fence:
                state, violated = self._granted(state, client, outcome)
                local = local._replace(fence=fence)
        if isinstance(fanout, Sleep):
            return _with_client(state, client, local._replace(pausing=True)), violated
        if fanout is not None:
            state = _with_client(state, client, local._replace(asked=fanout, replies=(None,) * self.count))
            for node in fanout.nodes:
                request = Request(fanout.call, fanout.quorum > 0, run=state.runs[node])
                state = _push(state, client, node, request)
            return state if fanout.quorum > 0 else self._ended(state, client)[0], violated
        state = _with_client(state, client, local._replace(token=local.token + drawn))
        return self._operation_ended(state, client, outcome)

    def _operation_ended(self, state: State, client: int, outcome: Any) -> tuple[State, tuple[str, ...]]:
        local, operation = state.clients[client], self._operation(state, client)
        after = Client(local.step + 1, local.token, fence=local.fence, read=local.read, pauses=local.pauses)
        if operation == "renew":
            assert local.fence is not None
            if isinstance(outcome, CoordinatorUnavailable):  # the lease keeps its deadline
                return _with_client(state, client, after._replace(believed_until=local.believed_until)), ()
            outcome = outcome if isinstance(outcome, FencingError) else Grant("r", *local.fence, outcome)
        if operation in ("admit", "other", "initialise"):
            return _with_client(state, client, after), ()
        if operation in ("release", "force"):
            return _with_client(state, client, after._replace(fence=None)), ()
        if not isinstance(outcome, Grant):
            last = len(self.scenario.clients[client].operations)
            following = after if operation == "acquire" and self._repeats(client, after) else after._replace(step=last)
            return _with_client(state, client, following), ()
        state, violated = self._granted(state, client, outcome)
        fence = (outcome.fence.number, outcome.fence.token)
        after = after._replace(fence=fence, believed_until=outcome.deadline)
        return _with_client(state, client, after), violated

    def _granted(self, state: State, client: int, grant: Grant) -> tuple[State, tuple[str, ...]]:
        """Note that a client was granted the lock, or that its lease goes on."""
        local, number = state.clients[client], grant.fence.number
        self.grants += 1
        violated: tuple[str, ...] = ()
        if local.fence is not None and self._operation(state, client) in UNDER_A_FENCE:
            violated += (REVIVED,) if local.fence[0] < local.started else ()
        if local.fence != (number, grant.fence.token):
            violated += (NOT_HIGHER,) if number < local.started else ()
            violated += (TWICE,) if number in state.held else ()
            state = state._replace(held=state.held | {number})
        if not state.used.expiries and self._lasts(state, grant.fence.token, grant.deadline):
            others = (self._believes(state, index) for index in range(len(state.clients)) if index != client)
            violated += (BOTH_HOLD,) if any(others) else ()
        return state, violated

    def _lasts(self, state: State, token: str, until: float) -> bool:
        """Whether a lease is valid by its client's clock, and no force that was meant for it has taken the lock.

        It may end while a renewal is under way.
        """
        return state.clock * TTL < until and not (state.forced and digest_of(token) in state.forced)

    def _believes(self, state: State, client: int) -> bool:
        """Whether a client has a lease that lasts, and has not begun to release it."""
        local = state.clients[client]
        if local.fence is None or not self._lasts(state, local.fence[1], local.believed_until):
            return False
        operations = self.scenario.clients[client].operations
        return local.started < 0 or operations[local.step] not in GIVES_UP

    def _at_storage(self, state: State, client: int) -> tuple[State, tuple[str, ...]]:
        """Claim, read or write. A client that is refused stops."""
        local, operation, storage = state.clients[client], self._operation(state, client), state.storage
        assert local.fence is not None
        fence, guard = Fence("r", *local.fence), self.scenario.storage()
        after = local._replace(step=local.step + 1)
        if operation == "read":
            return _with_client(state, client, after._replace(read=storage.value)), ()
        if operation == "claim":
            stored = guard.claim(storage, fence)
        else:
            assert local.read is not None
            stored = guard.write(storage, fence, local.read, client)
            self.writes += stored is not None
        if stored is None:
            stopped = local._replace(step=len(self.scenario.clients[client].operations), read=None)
            return _with_client(state, client, stopped), ()
        violated = () if stored.acknowledged <= stored.value else (LOST,)
        return _with_client(state._replace(storage=stored), client, after), violated

    def _repeats(self, client: int, local: Client) -> bool:
        operations = self.scenario.clients[client].operations
        return local.step < len(operations) and operations[local.step] in ("again", "acquire")

    def _plans(self, now: float) -> RedlockPlans:
        plans = self.scenario.plans()
        plans.nodes, plans.ready, plans.node_timeout = self.count, set(), 0.01
        plans.longest_ttl, plans.clock_floor = TTL, False
        plans.settings = Settings(ttl=TTL, owner="explorer")
        plans.clock = lambda: now
        return plans

    def _follow(self, client: int, local: Client, operation: Operation) -> tuple[Fanout | Sleep | None, Any, int]:
        key = (client, local.token, local.history, local.fence, operation, local.began)
        found = self._followed.get(key)
        if found is None:
            with _no_chance():
                found = self._followed[key] = self._replay(client, local, operation)
        return found

    def _replay(self, client: int, local: Client, operation: Operation) -> tuple[Fanout | Sleep | None, Any, int]:
        now = local.began * TTL
        backend = self._plans(0.0)
        backend.clock = lambda: now
        taken: list[Grant] = []
        backend.track = taken.append
        settings = Settings(ttl=TTL, owner="explorer").for_one_try()
        token = f"{_name(client)}-{local.token:020d}"
        resource = "s" if operation == "other" else "r"
        drawn = 0

        def new_token() -> str:
            nonlocal drawn
            drawn += not (self.scenario.one_token and drawn)
            return f"{_name(client)}-{local.token + drawn:020d}"

        plan: Any
        if operation == "admit":
            plan = backend.plan_admit()
        elif operation == "initialise":
            plan = backend.plan_initialise()
        elif operation == "hold":
            plan = lock_plans.acquire(backend, resource, Settings(ttl=TTL, owner="explorer"), math.inf)
        elif operation == "force":
            plan = lock_plans.force_release(backend, resource, Settings(ttl=TTL, owner="explorer"))
        elif operation == "renew":
            assert local.fence is not None
            plan = lock_plans.renew(backend, Grant(resource, *local.fence, now), Settings(ttl=TTL, owner="explorer"))
        elif operation == "adopt":
            assert local.fence is not None
            plan = lock_plans.adopt(backend, Fence(resource, *local.fence), Settings(ttl=TTL, owner="explorer"))
        elif operation in ("acquire", "again", "other"):
            plan = backend.plan_acquire(resource, token, settings, floor=0, deadline=now)
        else:
            assert local.fence is not None
            fence = Fence(resource, *local.fence)
            if operation == "release":
                plan = backend.plan_release(fence, settings, deadline=now)
            else:
                plan = backend.plan_remint(fence, token, settings, floor=fence.number, deadline=now)
        history = list(local.history)
        passes = operation not in PAUSES
        stack = [plan]
        result: Any = None
        error: BaseException | None = None
        while True:
            try:
                with tokens_from(new_token):
                    effect = stack[-1].send(result) if error is None else stack[-1].throw(error)
            except StopIteration as stop:
                stack.pop()
                result, error = stop.value, None
                if not stack:
                    return None, result, drawn
                continue
            except FencingError as failure:
                stack.pop()
                error = failure
                if not stack:
                    return None, failure, drawn
                continue
            result = error = None
            if isinstance(effect, Shielded):
                stack.append(effect.plan)
                continue
            if isinstance(effect, Sleep) and (passes or effect.seconds <= backend.node_timeout / 4):
                continue
            if not history:
                for each in reversed(stack):
                    each.close()
                return effect, taken[-1] if operation == "force" and taken else None, drawn
            replies, clock = history.pop(0)
            now = clock * TTL
            if replies is None:
                continue
            result = [_plain(each) for each in replies]
            try:
                check_answered(result, effect.least, undone=effect.call.may_take)
            except (NoReply, FencingError) as failure:
                result, error = None, failure


def explore(scenario: Nodes, *, until: str | None = None, limit: int = 5_000_000) -> Found:
    """Visit every state of a scenario; stop at the first violation (of ``until``, if it is given)."""
    started = time.perf_counter()
    world, found = _World(scenario), Found()
    start = world.start()
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    level = [start]
    try:
        while level and len(came_from) < limit:
            following = []
            for state in level:
                for label, after, violated in world.steps(state):
                    for kind in violated:
                        found.violations.setdefault(kind, Violation(kind, (*_trace(came_from, state), label)))
                        if until is None or kind == until:
                            return found
                    origin = (state, label)
                    if came_from.setdefault(after, origin) is origin:
                        following.append(after)
            level = following
        found.exhausted = not level
        return found
    finally:
        found.states, found.grants, found.writes = len(came_from), world.grants, world.writes
        found.seconds = time.perf_counter() - started


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    labels = []
    before = came_from[state]
    while before is not None:
        state, label = before
        labels.append(label)
        before = came_from[state]
    return tuple(reversed(labels))


# Small changes to a state


def _name(client: int) -> str:
    return "ABCDEFGH"[client]


def _said(reply: Reply) -> str:
    """A reply in a word."""
    if isinstance(reply, tuple):
        return " ".join(str(each, "utf-8") if isinstance(each, bytes) else str(each) for each in reply[:1])
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def _emptied(snapshot: Snapshot) -> Snapshot:
    return Snapshot((), snapshot.clock_us + 1)  # the time tells two losses of data apart


def _has(reply: Any) -> bool:
    return reply is not None and not isinstance(reply, _Lost)


def _plain(reply: Any) -> Any:
    if isinstance(reply, _Lost):
        return NoReply(TimeoutError("no reply"), may_have_run=True)
    return list(reply) if isinstance(reply, tuple) else reply


def _replaced(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _with_node(state: State, index: int, snapshot: Snapshot) -> State:
    return state._replace(nodes=_replaced(state.nodes, index, snapshot))


def _with_client(state: State, index: int, client: Client) -> State:
    return state._replace(clients=_replaced(state.clients, index, client))


def _counted(state: State, fault: str) -> State:
    return state._replace(used=state.used._replace(**{fault: getattr(state.used, fault) + 1}))


def _push(state: State, client: int, node: int, request: Request, *, front: bool = False) -> State:
    queue = state.queues[client][node]
    queue = (request, *queue) if front else (*queue, request)
    return state._replace(queues=_replaced(state.queues, client, _replaced(state.queues[client], node, queue)))


def _pop(state: State, client: int, node: int) -> State:
    queue = state.queues[client][node][1:]
    return state._replace(queues=_replaced(state.queues, client, _replaced(state.queues[client], node, queue)))


@contextmanager
def _no_chance() -> Iterator[None]:
    before = random.uniform
    random.uniform = lambda low, high: high  # type: ignore[assignment]
    try:
        yield
    finally:
        random.uniform = before
