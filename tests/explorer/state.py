"""A whole run as one value: Redis, the storage, the clients, what is under way, and what has gone wrong so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fencing.kernel.fence import Fence, Mark
from fencing.redis.calls import Call
from fencing.redis.keys import keys_of
from tests.explorer.clients import Local, Program
from tests.explorer.simulated_redis import ACCEPT_MS, SPREAD_MS, SimulatedRedis, Snapshot
from tests.explorer.storage import OTHER, RESOURCE, Backend, MemoryBackend, Operation, Storage, Value

__all__ = [
    "CLAIM_BACK",
    "GONE",
    "KEYS",
    "LOST_UPDATE",
    "MOST_MS",
    "NAMES",
    "NEVER_DONE",
    "OTHER_KEYS",
    "OVERLAP",
    "REPAIR",
    "REVIVED",
    "SAME_FENCE",
    "STALE_READ",
    "STUCK",
    "SUPERSEDED",
    "TWICE",
    "UNNOTICED",
    "VERDICT",
    "Bounds",
    "Faults",
    "Hanging",
    "Scenario",
    "State",
    "Step",
    "allowed",
    "counted",
    "with_client",
]

NAMES = "ABCDEFGH"
KEYS = keys_of(RESOURCE)
OTHER_KEYS = keys_of(OTHER)

LOST_UPDATE = "an acknowledged update is lost"
STALE_READ = "a write is accepted that builds on a value no longer current"
SUPERSEDED = "a write of a superseded claim is accepted"
CLAIM_BACK = "a claim is admitted that is older than one admitted before"
OVERLAP = "two hold the lock, and nothing has expired"
REVIVED = "a lease has ended, and a request succeeds under its old number"
GONE = "a lease that is reclaimed is gone, and nothing has ended it"
SAME_FENCE = "two grants have the same number and token"
STUCK = "the lock is held by nobody, and all wait"
UNNOTICED = "for long nobody can notice that the lock is free"
TWICE = "what is done once is done twice"
NEVER_DONE = "what was said to be done was not done, or by another one"
VERDICT = "a write that was found not to have happened happens"
REPAIR = "more claims of one client are refused than the repair may take"


MOST_MS = 2 * (ACCEPT_MS + SPREAD_MS)
"""How long a lock may be free, or held by nobody, before a waiter rechecks."""


class Faults(NamedTuple):
    """How much has gone wrong so far; as bounds: how much may.

    ``lost``: replies lost, of what was done. ``late``: requests to Redis, and claims, that hang, and land at any later
    time or never; ``late_writes``: the same of writes. ``slow``: claims whose answer outlasts the lease. ``gave_up``:
    acquirers whose time is up. ``polls``: acquirers told that the lock is taken; the others just wait. ``takeovers``
    are counted, and have no bound here. ``freezes``: clients that stop for ever, while their listener
    goes on; ``cuts``: connections of listeners that break, with what was under way; ``early``: rechecks of waiters that
    come before the messages that are under way; ``refused``: calls that are refused and not run, as a node of a Redis
    Cluster refuses those of a slot that moves; ``kept``: connections that break under a request: the client goes on at
    once over a new one, and what was sent on the old one lands at any later time, in order, or never; ``pauses``: times
    that a while passes while somebody has the lock, or it is offered.
    """

    expiries: int = 0
    lost: int = 0
    late: int = 0
    slow: int = 0
    crashes: int = 0
    resets: int = 0
    gave_up: int = 0
    polls: int = 0
    late_writes: int = 0
    takeovers: int = 0
    marks_lost: int = 0
    marks_restored: int = 0
    marks_pruned: int = 0
    freezes: int = 0
    cuts: int = 0
    early: int = 0
    refused: int = 0
    kept: int = 0
    pauses: int = 0


Bounds = Faults


class Hanging(NamedTuple):
    """Requests of one client on one connection, sent and not yet executed.

    ``named``: whom a force was meant for.
    """

    client: int
    requests: tuple[Call | Operation, ...]
    named: bytes = b""


class State(NamedTuple):
    redis: Snapshot
    storage: Storage
    clients: tuple[Local, ...]
    faults: Faults = Faults()
    hanging: tuple[Hanging, ...] = ()
    acknowledged: Value = frozenset()
    inbox: tuple[tuple[int, bytes], ...] = ()  # what listeners are told, under way
    newest: Mark | None = None  # of all claims ever admitted, the last: what the storage's mark should be
    over: frozenset[str] = frozenset()  # tokens whose lease has run out, was lost with the data, or was taken away
    followed: frozenset[Fence] = frozenset()  # grants after which the lock was granted again
    denied: frozenset[Fence] = frozenset()  # of writes that were found not to have happened, after a reclaim


class Step(NamedTuple):
    """One step: in words, where it leads, and which properties it violates."""

    label: str
    state: Any
    violated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """Who runs what, and how much may go wrong.

    Args:
        earlier: the number that the last holder before had; 0: the storage is new.
        repair: how many claims of one client may be refused beyond one for each expiry, reset and takeover, short of
            the number of clients: N - repair.
        late_ms: how long an offer may be over before a waiter rechecks.
        cut_off: the script at whose calls connections break; empty: at any.
        hears: whether a plan hears of a release that was sent behind its request. If not, one is sent behind each
            last attempt, also behind one that ends before its time.
    """

    name: str
    programs: tuple[Program, ...]
    bounds: Bounds
    backend: Backend = field(default_factory=MemoryBackend)
    redis: type[SimulatedRedis] = SimulatedRedis
    earlier: int = 0
    repair: int = 1
    late_ms: int = MOST_MS
    cut_off: str = ""
    hears: bool = True

    def __str__(self) -> str:
        return self.name


def allowed(scenario: Scenario, state: State, fault: str) -> bool:
    """Whether one more of these faults lies within the bounds."""
    most: int = getattr(scenario.bounds, fault)
    return most > 0 and getattr(state.faults, fault) < most


def counted(state: State, fault: str) -> State:
    """The state with one more of these faults."""
    return state._replace(faults=state.faults._replace(**{fault: getattr(state.faults, fault) + 1}))


def with_client(state: State, client: int, local: Local) -> State:
    """The state with this client changed."""
    return state._replace(clients=(*state.clients[:client], local, *state.clients[client + 1 :]))
